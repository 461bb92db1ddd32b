"""Tables of which a part cannot be used: the messages say what is missing, what is left and what to do."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import plan_dataset
from tpu_pipelines.starting.data_overview import look_at, source_of

_JOIN = r"pandas\.merge\(examples, labels, on='id'\)"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts.csv").write_text("id,text\n1,good\n2,bad\n", encoding="utf-8")
    (tmp_path / "labels.csv").write_text("id,label\n1,yes\n2,no\n", encoding="utf-8")
    return tmp_path


def test_a_table_without_labels_is_told_to_be_joined(folder):
    with pytest.raises(InputError, match=f"Missing columns in .*'label'.*join them into one.*{_JOIN}"):
        plan_dataset(WriteParams(f"csv:{folder / 'texts.csv'}"))


def test_a_folder_of_tables_names_them_and_says_to_join(folder):
    with pytest.raises(InputError, match=r"which file of .*: it contains '(labels|texts)\.csv', '") as told:
        source_of(str(folder))
    assert "Name one of them, for example csv:" in str(told.value)
    assert "pandas.merge(examples, labels, on='id')" in str(told.value)


def test_columns_that_a_model_does_not_get_are_named(folder):
    rows = "".join(f"text {number},{'yes' if number % 2 else 'no'},{number},here\n" for number in range(60))
    (folder / "all.csv").write_text(f"text,label,weight_kg,site\n{rows}", encoding="utf-8")
    plan = plan_dataset(WriteParams(f"csv:{folder / 'all.csv'}", slice_columns=("site",)))
    assert [note for note in plan.listing.notes if "not used" in note] == [
        "columns that are not used: 'weight_kg'. A model gets only the text of a line"
    ]


def test_a_table_of_numbers_is_refused_for_what_it_is(folder):
    (folder / "numbers.csv").write_text("age,income,label\n1,2,a\n3,4,b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"'path'.*A table of numbers, without images or texts, is not supported"):
        plan_dataset(WriteParams(f"csv:{folder / 'numbers.csv'}"))


def test_sounds_are_refused_when_they_are_looked_at(tmp_path):
    for number in range(12):
        sound = tmp_path / "audio" / "ab"[number % 2] / f"{number}.png"
        sound.parent.mkdir(parents=True, exist_ok=True)
        sound.write_bytes(b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40))
    with pytest.raises(InputError, match=r"Cannot use any of the \d+ examples .*Audio and video are not supported"):
        look_at(WriteParams(f"images:{tmp_path / 'audio'}"))
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "1.wav").write_bytes(b"RIFF")
    with pytest.raises(InputError, match="Audio, video and tables of numbers are not supported"):
        source_of(str(tmp_path / "sounds"))

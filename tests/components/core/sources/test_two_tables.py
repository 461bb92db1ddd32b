"""Examples in one table and labels in another: the messages say to join the two."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import plan_dataset
from tpu_pipelines.starting.data_overview import source_of

_JOIN = r"pandas\.merge\(examples, labels, on='id'\)"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts.csv").write_text("id,text\n1,good\n2,bad\n", encoding="utf-8")
    (tmp_path / "labels.csv").write_text("id,label\n1,yes\n2,no\n", encoding="utf-8")
    return tmp_path


def test_a_table_without_labels_is_told_to_be_joined(folder):
    with pytest.raises(InputError, match=f"Missing columns in .*'label'.*join the two into one.*{_JOIN}"):
        plan_dataset(WriteParams(f"csv:{folder / 'texts.csv'}"))


def test_a_folder_of_tables_names_them_and_says_to_join(folder):
    with pytest.raises(InputError, match=r"which file of .*; it holds '(labels|texts)\.csv', '") as told:
        source_of(str(folder))
    assert "Name one, as csv:" in str(told.value)
    assert "pandas.merge(examples, labels, on='id')" in str(told.value)

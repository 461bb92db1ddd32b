"""Claims about every kind of source, and about every bad one being refused with its reason."""

import gzip
import os
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import unpacking
from tpu_components.core.sources.idx import read_idx
from tpu_components.core.sources.kinds import list_examples, list_unlabelled
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records


def _plan(source: str, **params):
    return plan_dataset(WriteParams(source, **params))


def _csv(folder: Path, text: str, name: str = "labels.csv") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return f"csv:{folder}/{name}"


def _rows(count: int = 20, extra: str = "") -> str:
    return "".join(f"img/{i}.png,{'cat' if i % 2 else 'dog'}{extra}\n" for i in range(count))


# images:


def test_images_takes_labels_from_folders_sorted(image_folder):
    plan = _plan(f"images:{image_folder(classes=('dog', 'cat', 'ant'))}")
    listing = plan.listing
    assert listing.class_names == ("ant", "cat", "dog")
    assert [listing.class_names[label] for label in listing.labels] == [key.split("/")[0] for key in listing.keys]
    assert plan.split_examples == {"train": 19, "validation": 4, "test": 7}


def test_images_sorts_numeric_class_names_as_numbers(image_folder):
    listing = _plan(f"images:{image_folder(classes=('10', '9', '1'))}").listing
    assert listing.class_names == ("1", "9", "10")


def test_images_sorts_absurdly_long_numbers_as_text(image_folder):
    names = ("1" * 100, "2")
    assert _plan(f"images:{image_folder(classes=names)}").listing.class_names == names


def test_images_takes_the_order_of_class_names_from_the_user(image_folder):
    listing = _plan(f"images:{image_folder()}", class_names=("dog", "cat")).listing
    assert listing.class_names == ("dog", "cat")
    assert {listing.labels[i] for i, key in enumerate(listing.keys) if key.startswith("dog/")} == {0}


def test_images_keeps_split_folders(image_folder, tmp_path):
    for name, count in (("train", 6), ("validation", 2), ("test", 3)):
        image_folder(count, name=f"data/{name}")
    plan = _plan(f"images:{tmp_path}/data")
    assert plan.split_examples == {"train": 12, "validation": 4, "test": 6}
    assert all(plan.listing.keys[i].startswith("test/") for i in plan.order["test"])
    assert plan.split_rule == "the source's test, train, validation"


def test_images_does_not_mind_a_slash_at_the_end(image_folder):
    folder = image_folder()
    assert _plan(f"images:{folder}/").listing.root == _plan(f"images:{folder}").listing.root


def test_images_ignores_hidden_files_and_what_desktops_leave(image_folder):
    folder = image_folder(per_class=5)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "cat" / "Thumbs.db").write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_bytes(b"x")
    assert len(_plan(f"images:{folder}").listing.keys) == 10


def test_images_keeps_a_newline_in_a_file_name(image_folder, encode):
    folder = image_folder(per_class=5)
    (folder / "cat" / "a\nb.png").write_bytes(encode())
    assert "cat/a\nb.png" in _plan(f"images:{folder}").listing.keys


def test_images_refuses_file_names_that_are_not_utf8(image_folder, encode):
    folder = image_folder(per_class=5)
    Path(os.fsdecode(os.fsencode(folder / "cat") + b"/\xff.png")).write_bytes(encode())
    with pytest.raises(InputError, match=r"not UTF-8: 'cat/\\udcff.png'. Rename"):
        _plan(f"images:{folder}")


def test_images_refuses_an_empty_folder(tmp_path):
    with pytest.raises(
        InputError, match=f"Found no files in '{tmp_path}': expected a folder with data.*Check the path"
    ):
        _plan(f"images:{tmp_path}")


def test_images_refuses_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=f"Cannot list '{tmp_path}/none': .* is not a folder.*Check the path"):
        _plan(f"images:{tmp_path}/none")


def test_images_refuses_one_class_only(image_folder):
    with pytest.raises(InputError, match=r"at least two classes. Received: one class \('cat'\).*Give every class"):
        _plan(f"images:{image_folder(classes=('cat',))}")


@pytest.mark.parametrize(
    ("name", "stray", "expected"),
    [("data", "stray.png", "CLASS/FILE"), ("data/train", "train/stray.png", "SPLIT/CLASS/FILE")],
)
def test_images_refuses_files_outside_class_folders(image_folder, tmp_path, name, stray, expected):
    image_folder(name=name)
    (tmp_path / "data" / stray).write_bytes(b"x")
    with pytest.raises(
        InputError, match=f"Files without a class in .*: '{stray}'. Expected {expected}. Move the files"
    ):
        _plan(f"images:{tmp_path}/data")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (
            {"train": "cat dog", "trian": "cat dog"},
            "The folders 'trian' are next to split folders .*Expected only train, valid",
        ),
        (
            {"train": "cat dog", "training": "cat dog"},
            "Several folders in .* belong to the same split: {'train': 'train', 'training'",
        ),
        (
            {"train": "cat dog", "test": "cat cow"},
            "Classes without training examples in .*: 'cow'. Expected every class",
        ),
        (
            {"train": "cat dog unsorted", "test": "cat dog"},
            r"Classes without test examples in .*: 'unsorted'.*in data\.class_names",
        ),
        ({"test": "cat dog"}, r"The 'train' split of .*Add a train/ folder"),
    ],
)
def test_images_refuses_split_folders_that_cannot_be_trained_or_judged_by(image_folder, tmp_path, folders, message):
    for name, classes in folders.items():
        image_folder(name=f"data/{name}", classes=tuple(classes.split()))
    with pytest.raises(InputError, match=message):
        _plan(f"images:{tmp_path}/data")


def test_images_takes_the_classes_that_are_named_and_says_what_is_left_out(image_folder, tmp_path, capsys):
    folder = image_folder(classes=("cat", "dog", "unsorted"))
    (folder / "README").write_text("By hand.")
    write_records(WriteParams(f"images:{folder}", class_names=("dog", "cat")), tmp_path / "out")
    assert sum(split.num_examples for split in Manifest.load(tmp_path / "out").splits.values()) == 20
    said = capsys.readouterr().err
    assert "left out 10 files in 'unsorted', which is not in data.class_names" in said
    assert "left out 1 files that are not in a class folder" in said


def test_images_refuses_a_class_without_a_folder(image_folder):
    with pytest.raises(InputError, match=r"has no folder for the classes 'cow'. Received: 'cat', 'dog'. Correct"):
        _plan(f"images:{image_folder()}", class_names=("cat", "cow"))


@pytest.mark.parametrize(
    "names", [("training", "testing", "valid"), ("Train", "Test", "Val"), ("train", "test", "validation")]
)
def test_images_knows_the_usual_names_of_splits(image_folder, names):
    for count, name in zip((4, 2, 1), names, strict=True):
        image_folder(count, name=f"data/{name}")
    plan = _plan(f"images:{image_folder(1, name='other').parent / 'data'}")
    assert plan.split_examples == {"train": 8, "test": 4, "validation": 2}
    assert plan.listing.class_names == ("cat", "dog")


def test_images_without_classes_is_told_of_the_list_beside_them(image_folder):
    folder = image_folder()
    (folder / "cat" / "0000.png").rename(folder / "0.png")
    (folder / "labels.csv").write_text("path,label\n")
    with pytest.raises(InputError, match=rf"Files without a class.*'0.png'.*lists them, use csv:{folder}/labels.csv"):
        _plan(f"images:{folder}")


def test_images_refuses_a_link_that_leads_back_up(image_folder):
    folder = image_folder()
    (folder / "cat" / "again").symlink_to(folder)
    with pytest.raises(InputError, match=r"cat/again.*a link to one of its parent folders.*Remove the link"):
        _plan(f"images:{folder}")


# csv:


def test_csv_takes_paths_labels_and_splits(tmp_path):
    source = _csv(tmp_path, "path,label,split\n" + _rows(12, ",train") + "a.png,cat,test\nb.png,dog,validation\n")
    plan = _plan(source)
    assert plan.split_examples == {"train": 12, "validation": 1, "test": 1}
    assert plan.listing.class_names == ("cat", "dog")
    assert plan.listing.root == str(tmp_path)


def test_csv_knows_the_usual_names_of_splits(tmp_path):
    plan = _plan(_csv(tmp_path, "path,label,split\n" + _rows(12, ",Training") + "a.png,cat,testing\nb.png,dog,val\n"))
    assert plan.split_examples == {"train": 12, "validation": 1, "test": 1}


def test_csv_does_not_depend_on_the_order_of_its_lines(tmp_path):
    lines = _rows(40).splitlines(keepends=True)
    straight = _plan(_csv(tmp_path / "one", "path,label\n" + "".join(lines)))
    turned = _plan(_csv(tmp_path / "two", "path,label\n" + "".join(lines[::-1])))
    assert list(straight.listing.keys) == list(turned.listing.keys)
    assert {name: order.tolist() for name, order in straight.order.items()} == {
        name: order.tolist() for name, order in turned.order.items()
    }


def test_csv_may_start_with_a_byte_order_mark_and_have_windows_line_ends(tmp_path):
    source = _csv(tmp_path, "\ufeffpath,label\r\n" + _rows(20).replace("\n", "\r\n"))
    assert len(_plan(source).listing.keys) == 20


def test_csv_in_the_working_directory_needs_no_folder(tmp_path, monkeypatch):
    _csv(tmp_path, "path,label\n" + _rows())
    monkeypatch.chdir(tmp_path)
    assert _plan("csv:labels.csv").listing.root == "."


def test_csv_groups_stay_in_one_split(tmp_path):
    rows = "".join(f"{i}.png,{'cat' if i % 2 else 'dog'},p{i // 4}\n" for i in range(400))
    plan = _plan(_csv(tmp_path, "path,label,patient\n" + rows), group_column="patient")
    where = {name: {plan.listing.groups[i] for i in order} for name, order in plan.order.items()}
    assert set(where) == {"train", "validation", "test"}
    assert not (where["train"] & where["test"])
    assert not (where["train"] & where["validation"])
    assert not where["validation"] & where["test"]


def test_csv_refuses_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=f"Cannot read '{tmp_path}/none.csv': there is no such file. Check the path"):
        _plan(f"csv:{tmp_path}/none.csv")


@pytest.mark.parametrize(
    ("header", "params", "message"),
    [
        ("picture,label", {}, r"Missing columns in .*: 'path'. Received: \['.*first line must name.*columns={path: …}"),
        ("path,tag", {}, r"Missing columns in .*: 'label'. Received: \['.*first line must name.*columns={label: …}"),
        ("a,b", {}, r"Missing columns in .*: 'path', 'label'. Received: \['.*The first line must name"),
        (
            "path,label,label",
            {},
            r"Repeated columns in .*\['path', 'label', 'label'\]. Each column that is used needs a unique name",
        ),
        ("path,label", {"group_column": "patient"}, r"Missing columns in .*: 'patient'. Received: \['path', 'label'\]"),
        (
            "path,label",
            {"columns": {"path": "where"}},
            r"Missing columns in .*'where'. The setting data.columns names them. Received: \['path', 'label'\]",
        ),
    ],
)
def test_csv_refuses_missing_and_repeated_columns_with_the_way_out(tmp_path, header, params, message):
    with pytest.raises(InputError, match=message):
        _plan(_csv(tmp_path, f"{header}\n{_rows()}"), **params)


@pytest.mark.parametrize(
    ("header", "delimiter", "columns", "told"),
    [
        ("path;label", ";", {}, "the values of the CSV file are separated by ';'"),
        ("path\tlabel", "\t", {}, "the values of the CSV file are separated by tabs"),
        ("Path,Label", ",", {}, "column 'Label' is used as the label. Set data.columns to use another column"),
        ("filename,class", ",", {}, "column 'filename' is used as the path. Set data.columns to use another column"),
        ("where,what", ",", {"path": "where", "label": "what"}, None),
    ],
)
def test_csv_is_read_as_people_have_it(tmp_path, header, delimiter, columns, told):
    rows = _rows().replace(",", delimiter)
    listing = _plan(_csv(tmp_path, f"{header}\n{rows}"), columns=columns).listing
    assert (len(listing.keys), listing.class_names) == (20, ("cat", "dog"))
    assert "img/3.png" in listing.keys
    assert (told in listing.notes) if told else not listing.notes


def test_csv_of_reviews_and_sentiments_is_one_of_texts(tmp_path):
    rows = "".join(f'"a film; number {i}",{"good" if i % 2 else "bad"}\n' for i in range(20))
    listing = _plan(_csv(tmp_path, f"review,sentiment\n{rows}")).listing
    assert listing.kind == "text"
    assert listing.class_names == ("bad", "good")
    assert listing.notes == (
        "column 'sentiment' is used as the label. Set data.columns to use another column",
        "column 'review' is used as the text. Set data.columns to use another column",
    )


def test_csv_of_absolute_paths_keeps_splits_when_other_folders_come(image_folder, tmp_path):
    first, second = image_folder(20, name="one"), image_folder(5, name="two")

    def plan(*folders):
        rows = "".join(f"{path},{path.parent.name}\n" for folder in folders for path in sorted(folder.rglob("*.png")))
        # The paths, and so the draws, differ between runs. In halves, 40 examples leave no split empty but once in 10¹²
        # runs. Stratified, a class that drew no example would borrow one.
        halves = {"validation_fraction": 0, "test_fraction": 0.5}
        found = _plan(_csv(tmp_path / "lists", f"path,label\n{rows}"), stratify=False, **halves)
        listing = found.listing
        return {f"{listing.root}/{listing.keys[i]}": split for split, some in found.order.items() for i in some}

    before, after = plan(first), plan(first, second)
    assert set(before) == set(map(str, first.rglob("*.png")))
    assert len(after) == 50
    assert {path: after[path] for path in before} == before


def test_csv_rows_with_an_id_stay_where_they_are_when_their_text_is_mended(tmp_path):
    def plan(words: str):
        rows = "".join(f"r{i},{words} {i},{'ab'[i % 2]}\n" for i in range(40))
        return _plan(_csv(tmp_path, f"id,text,label\n{rows}"))

    before, after = plan("a flim"), plan("a film")
    assert {name: some.tolist() for name, some in before.order.items()} == {
        name: some.tolist() for name, some in after.order.items()
    }


def test_csv_messages_name_the_line_and_cut_long_texts(tmp_path):
    source = _csv(tmp_path, "text,label\n" + "fine text,a\n" * 3 + f"{'long ' * 1000},a,b\n")
    with pytest.raises(InputError, match=r"Malformed line 5 of .*… \(5,000 characters\)") as caught:
        _plan(source)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("last", ['"great, film",a', "fine text,a"])
def test_a_quotation_mark_without_its_counterpart_is_refused_with_its_line(tmp_path, last):
    """Lines up to the next quotation mark, or to the end, were taken for one text."""
    source = _csv(tmp_path, "text,label\n" + "fine text,a\n" * 3 + '"odd text,b\n' + "fine text,b\n" * 3 + f"{last}\n")
    with pytest.raises(InputError, match=r"Malformed line 5 of .*: an unclosed quotation mark would join 5 lines"):
        _plan(source)


def test_quoted_texts_of_several_lines_and_odd_quotes_within_a_line_are_read(tmp_path):
    rows = ('"two\n\nlines with ""quotes""",a', '"two, more\nlines",b', '5" disk,a', '"he said "hi" to me",b')
    source = _csv(tmp_path, "text,label\n" + "\n\n".join(rows))
    texts = list_examples(WriteParams(source)).texts
    assert sorted(texts) == [b'5" disk', b'he said hi" to me"', b'two\n\nlines with "quotes"', b"two, more\nlines"]


def test_folders_in_a_class_folder_are_told(image_folder):
    folder = image_folder(classes=("dog", "cat"))
    for name in ("black", "white"):
        (folder / "cat" / name).mkdir()
        (folder / "cat" / name / "1.png").write_bytes(next((folder / "dog").iterdir()).read_bytes())
    notes = _plan(f"images:{folder}").listing.notes
    assert notes == (
        "the folders in 'cat', 'black', 'white', are not used as classes: their files have the class 'cat'",
    )


def test_a_folder_without_its_kind_is_named_with_it(image_folder):
    folder = image_folder()
    with pytest.raises(InputError, match=rf"Unknown source '{folder}': .* Did you mean images:{folder}, or text:"):
        _plan(str(folder))


def test_a_csv_row_without_a_label_is_set_aside_by_its_line_and_counted(tmp_path, capsys):
    rows = "".join(f"text number {i},{'ab'[i % 2]}\n" for i in range(40))
    source = _csv(tmp_path, f"text,label\n{rows}nothing known, \n")
    listing = list_examples(WriteParams(source))
    assert (len(listing.keys), listing.num_inputs, listing.class_names) == (40, 41, ("a", "b"))
    with pytest.raises(InputError, match=r"1 of 41 inputs cannot be used: 'line/00000042' \('label' is empty\)"):
        write_records(WriteParams(source, num_workers=1), tmp_path / "out")
    write_records(WriteParams(source, num_workers=1, max_bad_fraction=0.03), tmp_path / "out")
    assert [item.reason for item in Manifest.load(tmp_path / "out").quarantined] == ["'label' is empty"]
    with pytest.raises(InputError, match=r"No line of .* can be used\. .* in line/00000002, 'label' is empty"):
        list_examples(WriteParams(_csv(tmp_path, "text,label\nwords,\n")))


def test_numbers_of_a_german_spreadsheet_have_a_decimal_comma(tmp_path):
    prices = ["80,50", "1.250,75", "7", "1.300"] * 10
    rows = "".join(f"Wort {i};{price}\n" for i, price in enumerate(prices))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text;label\n{rows}"), task="regression"))
    assert listing.labels[:4, 0].tolist() == [80.5, 1250.75, 7, 1300]
    with_points = list_examples(
        WriteParams(_csv(tmp_path, "text;label\nein Wort;80.5\nnoch eins;1.3\n"), task="regression")
    )
    assert with_points.labels[:, 0].tolist() == pytest.approx([80.5, 1.3])
    with pytest.raises(InputError, match="expected a number in 'label', received '1,234'"):
        list_examples(WriteParams(_csv(tmp_path, 'text,label\na word,"1,234"\n'), task="regression"))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            ["1,250", "950", "12,300"],
            "'1,250' in 'label' of .* is ambiguous: ',' may be a decimal separator or separate thousands",
        ),
        (["1.250", "950", "12.300"], r"'1\.250' in 'label' of .* is ambiguous"),
        (["-1,250", "2,500,000"], "because three digits follow every ',' in the column"),
        (["1.25", "950,5", "12.300"], "decimal comma and others a decimal point, such as '950,5' and '1.25'"),
    ],
)
def test_numbers_that_may_be_a_thousand_times_as_large_are_refused(tmp_path, numbers, message):
    rows = "".join(f"word {i}\t{numbers[i % len(numbers)]}\n" for i in range(30))
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(_csv(tmp_path, f"text\tlabel\n{rows}", "t.tsv"), task="regression"))


@pytest.mark.parametrize("numbers", [["0.125", "950", "1.250"], ["1.250", "3.142"], ["0,125", "950"], ["1.5", "2"]])
def test_numbers_with_a_fraction_of_three_digits_stay_as_they_are(tmp_path, numbers):
    rows = "".join(f"word {i}\t{numbers[i % len(numbers)]}\n" for i in range(30))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text\tlabel\n{rows}", "t.tsv"), task="regression"))
    wanted = [float(number.replace(",", ".")) for number in numbers]
    assert listing.labels[: len(numbers), 0].tolist() == pytest.approx(wanted)


def test_class_numbers_that_may_be_thousands_are_refused(tmp_path):
    rows = "".join(f"text {i};{label}\n" for i, label in enumerate(["1", "10", "100", "1.000"] * 10))
    with pytest.raises(InputError, match=r"'1\.000' in the labels of .* is ambiguous"):
        list_examples(WriteParams(_csv(tmp_path, f"text;label\n{rows}")))


@pytest.mark.parametrize("task", ["multi_label", "classification"])
@pytest.mark.parametrize("cell", ["", "-1", "nan", "?"])
def test_a_column_of_0_and_1_with_an_unknown_value_is_refused(tmp_path, cell, task):
    rows = "".join(f"text {i},{int(i % 2 == 0)},{int(i % 2)},0\n" for i in range(20))
    source = _csv(tmp_path, f"text,toxic,obscene,insult\n{rows}odd,{cell},0,1\n")
    with pytest.raises(
        InputError, match=rf"column 'toxic' of .* only 0 and 1 .*, but line 22 contains '{re.escape(cell)}'"
    ):
        list_examples(WriteParams(source, task=task))


def test_columns_of_0_and_1_may_be_written_as_floats_and_are_not_told_as_unused(tmp_path):
    rows = "".join(f"text {i},{i % 2}.0,{int(i % 3 == 0)},{i}\n" for i in range(20))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text,cat,dog,number\n{rows}"), task="multi_label"))
    assert listing.labels.tolist() == [[i % 2, int(i % 3 == 0)] for i in range(20)]
    assert any("columns that are not used: 'number'. " in note for note in listing.notes)


def test_a_column_split_may_begin_with_a_capital(tmp_path):
    rows = "".join(f"text {i},{'ab'[i % 2]},{'Train' if i % 3 else 'TEST'}\n" for i in range(30))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text,label,Split\n{rows}")))
    assert listing.splits.tolist() == ["train" if i % 3 else "test" for i in range(30)]


def test_an_empty_column_beside_columns_of_0_and_1_is_no_label(tmp_path):
    rows = "".join(f"text {i},{i % 2},{(i + 1) % 2},\n" for i in range(20))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text,toxic,fine,note\n{rows}")))
    assert listing.class_names == ("fine", "toxic")


@pytest.mark.parametrize(
    "names",
    [
        ("training_set", "test_set"),
        ("seg_train", "seg_test"),
        ("train2017", "val2017"),
        ("data_train", "data_dev_test"),
    ],
)
def test_folders_that_look_like_splits_are_no_classes(tmp_path, names):
    for name in names:
        for animal in ("cat", "dog"):
            for i in range(3):
                (tmp_path / name / animal).mkdir(parents=True, exist_ok=True)
                (tmp_path / name / animal / f"{i}.txt").write_text(f"{name} {animal} {i}")
    with pytest.raises(
        InputError,
        match=r"look like splits, not classes: each contains 'cat', 'dog'\. Rename '\w+' to '(train|test|val)",
    ):
        list_examples(WriteParams(f"text:{tmp_path}"))
    listing = list_examples(WriteParams(f"text:{tmp_path}", class_names=tuple(sorted(names))))
    assert listing.class_names == tuple(sorted(names))


def test_a_class_folder_that_begins_with_a_dot_is_told(tmp_path):
    for name in (".net", "java", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.txt").write_text(f"code in {name}")
    listing = list_examples(WriteParams(f"text:{tmp_path}"))
    assert listing.class_names == ("c", "java")
    assert "left out the folder '.net', because its name begins with a dot" in listing.notes


def test_columns_of_0_and_1_are_labels_where_there_is_no_other(tmp_path):
    rows = "".join(f"text {i},{int(i % 2 == 0)},{int(i % 2)},0\n" for i in range(20))
    listing = list_examples(WriteParams(_csv(tmp_path, f"text,cat,dog,bird\n{rows}")))
    assert (listing.class_names, listing.labels[:3].tolist()) == (("cat", "dog"), [0, 1, 0])
    assert any("'cat', 'dog', 'bird' contain 0 and 1, so each is used as a label" in note for note in listing.notes)
    both = _csv(tmp_path, f"text,cat,dog,bird\n{rows}both,1,1,0\nnone,0,0,0\n")
    with pytest.raises(InputError, match=r"contain 0 and 1. Line 22 does not have exactly one 1\. .*multi_label"):
        list_examples(WriteParams(both))
    several = list_examples(WriteParams(both, task="multi_label"))
    assert several.labels[-2:].tolist() == [[1, 1], [0, 0]]
    with pytest.raises(InputError, match=r"Name the columns with the targets: data.target_columns=\[cat, dog, bird\]"):
        list_examples(WriteParams(_csv(tmp_path, f"text,cat,dog,bird\n{rows}"), task="regression"))


def test_spaces_around_a_cell_make_no_other_class(tmp_path):
    rows = "".join(f" img/{i}.png,{' cat' if i % 4 == 1 else 'cat ' if i % 2 else 'dog'}, train\n" for i in range(20))
    rows += "img/t0.png,cat,test\nimg/t1.png,dog,test\n"
    listing = _plan(_csv(tmp_path, " path , label,split\n" + rows)).listing
    assert listing.class_names == ("cat", "dog")
    assert listing.keys[0] == "img/0.png"
    assert sorted(set(listing.splits)) == ["test", "train"]


def test_csv_refuses_a_class_that_is_judged_and_never_learnt_and_notes_one_that_is_never_judged(tmp_path):
    rows = "".join(f"{i}.png,{'abc'[i % 3]},train\n" for i in range(12))
    plan = _plan(_csv(tmp_path, "path,label,split\n" + rows + "x.png,a,test\ny.png,b,test\n"))
    assert plan.listing.notes == ("there are no test examples of 'c'",)
    rows = "".join(f"{i}.png,{'ab'[i % 2]},train\n" for i in range(12))
    source = _csv(tmp_path, "path,label,split\n" + rows + "x.png,a,test\ny.png,c,test\n")
    with pytest.raises(InputError, match=r"Classes without training examples in csv:.*: 'c'"):
        _plan(source)
    assert _plan(source, class_names=("a", "b", "c")).listing.class_names == ("a", "b", "c")


def test_a_folder_around_the_classes_is_recognised(image_folder, tmp_path):
    image_folder(name="unpacked/flowers")
    with pytest.raises(
        InputError, match=r"one class \('flowers'\).* a separate folder or label\. If .*images:.*/flowers\."
    ):
        _plan(f"images:{tmp_path / 'unpacked'}")


def test_a_long_table_is_listed_in_columns(tmp_path):
    rows = 5000
    (tmp_path / "table.csv").write_text("text,label\n" + "".join(f"good {i:08d},c{i % 10}\n" for i in range(rows)))
    tracemalloc.start()
    try:
        listing = list_examples(WriteParams(f"csv:{tmp_path}/table.csv"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert listing.texts[-1] == b"good 00004999"
    assert peak < 250 * rows  # Rows as dictionaries took 800 bytes each.


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x.png", ": expected a path below .*without"),
        ("img/../../x.png", ": expected a path below .*without"),
        ("/etc/passwd", ": expected a path below .*without"),
        ("..", ": expected a path below .*without"),
        ("a\0.png", ":.*NUL"),
    ],
)
def test_csv_refuses_paths_that_climb_out_or_hold_a_nul(tmp_path, path, reason):
    with pytest.raises(InputError, match=rf"Line 22 of .*: Cannot use the path {re.escape(repr(path))}{reason}"):
        _plan(_csv(tmp_path, f"path,label\n{_rows()}{path},cat\n"))


@pytest.mark.parametrize("twin", ["img/3.png", "img/./3.png", "./img/3.png", "img//3.png"])
def test_csv_refuses_duplicate_paths_however_they_are_written(tmp_path, twin):
    expected = r"Duplicate paths in .*: 'img/3.png'. Each image must be listed only once.*Remove"
    with pytest.raises(InputError, match=expected):
        _plan(_csv(tmp_path, f"path,label\n{_rows()}{twin},dog\n"))


@pytest.mark.parametrize(
    ("more", "line", "message"),
    [
        ("", "x.png", r"\['path', 'label'\], received \['x.png'\]"),
        ("", "x.png,cat,more", r"\['path', 'label'\], received \['x.png', 'cat', 'more'\]"),
        (",who", "x.png,cat", r"\['path', 'label', 'who'\], received \['x.png', 'cat'\]"),
        (",split", "x.png,cat", r"\['path', 'label', 'split'\], received \['x.png', 'cat'\]"),
    ],
)
def test_csv_refuses_malformed_lines_by_number(tmp_path, more, line, message):
    source = _csv(tmp_path, f"path,label{more}\n{_rows(extra=more and ',train')}\n\n{line}\n")
    with pytest.raises(InputError, match=rf"Malformed line 24 of .*: expected values for {message}"):
        _plan(source, group_column="who" if more == ",who" else "")


@pytest.mark.parametrize(("line", "empty"), [("x.png,,ann", "label"), (",cat,ann", "path"), ("x.png,cat, ", "who")])
def test_csv_refuses_an_empty_cell_by_its_line_and_column(tmp_path, line, empty):
    with pytest.raises(InputError, match=rf"1 of 21 inputs cannot be used: 'line/00000024' \('{empty}' is empty\)"):
        _plan(_csv(tmp_path, f"path,label,who\n{_rows(extra=',ann')}\n\n{line}\n"), group_column="who")


def test_every_row_needs_a_prediction(tmp_path):
    source = _csv(tmp_path, "path,note\na.png,x\n,y\n")
    with pytest.raises(InputError, match=r"Cannot use line/0*3 of .*: 'path' is empty\. Correct the line"):
        list_unlabelled(WriteParams(source))


@pytest.mark.parametrize("split", ["dev", "trian"])
def test_csv_refuses_an_unknown_split(tmp_path, split):
    with pytest.raises(InputError, match=rf"Unknown splits in .*: '{split}'. Expected only train, validation, test"):
        _plan(_csv(tmp_path, f"path,label,split\n{_rows(extra=',train')}x.png,cat,{split}\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"Found no rows in .*labels.csv: expected a header line with path and label"),
        ("path,label\n", r"Found no rows in .*labels.csv: expected a header line with path and label"),
        (
            "path,label,who,split\na.png,cat,ann,train\nb.png,dog,ann,test\n",
            r"Group 'ann' is in two splits of .*: train and test.*Correct the split",
        ),
        (
            "path,label\né.png,cat\n".encode("latin-1"),
            r"csv: 'utf-8' codec .* in line 2\. Expected a CSV file in UTF-8\. "
            r".*If the line should be 'é\.png,cat', .* Windows-1252",
        ),
        (
            'path,label\n"' + "x" * 1_100_000 + '",cat\n',
            r"expected a CSV file in UTF-8, received field larger than field limit",
        ),
    ],
    ids=["no header", "no rows", "a group in two splits", "another encoding", "a field without an end"],
)
def test_csv_refuses_a_file_that_cannot_be_used(tmp_path, content, message):
    (tmp_path / "labels.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        _plan(f"csv:{tmp_path}/labels.csv", group_column="who" if "who" in str(content) else "")


def test_csv_follows_links_and_never_reads_a_device(tmp_path, encode):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.png").write_bytes(encode())
    rows = "linked/x.png,cat\nb.png,dog\nzero.png,dog\ngone.png,cat\n"
    source = _csv(tmp_path / "data", "path,label\n" + rows)
    (tmp_path / "data" / "b.png").write_bytes(encode(seed=1))
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "zero.png").symlink_to("/dev/zero")
    params = WriteParams(source, validation_fraction=0, test_fraction=0, max_bad_fraction=0.5)
    plan = plan_dataset(params)
    assert plan.listing.files.sizes[plan.listing.keys.index("linked/x.png")] == len(encode())
    assert len(plan.listing.content_digest()) == 64
    result = write_records(params, tmp_path / "records")
    assert (result.num_examples, result.num_quarantined) == (2, 2)


def test_a_split_that_was_asked_for_must_have_examples(tmp_path):
    source = _csv(tmp_path, "path,label\na.png,cat\nb.png,dog\n")
    with pytest.raises(
        InputError, match=r"The 'validation' split has no examples: .* has 2 examples.*Set data.validation_fraction"
    ):
        _plan(source)
    assert _plan(source, validation_fraction=0, test_fraction=0).split_examples == {"train": 2}


# npz:


def _images(count: int, seed: int = 0, shape: tuple[int, ...] = (4, 4)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def _npz(folder: Path, **arrays) -> str:
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder}/data.npz"


def test_numbers_of_classes_get_the_names_in_order(tmp_path):
    source = _npz(tmp_path, x=_images(20), y=np.arange(20) % 2)
    listing = _plan(source, class_names=("dog", "cat")).listing
    assert (listing.class_names, listing.labels.tolist()) == (("dog", "cat"), [0, 1] * 10)
    assert _plan(source, class_names=("1", "0")).listing.labels.tolist() == [1, 0] * 10
    stars = _npz(tmp_path, x=_images(20), y=np.arange(20) % 4 + 1)
    with pytest.raises(
        InputError, match=r"label 1 in .* ambiguous: it may be the class '1', or the class at index 1, which is '2'\."
    ):
        _plan(stars, class_names=tuple("12345"))
    source = _npz(tmp_path, x=_images(20), y=np.arange(20) % 2)
    with pytest.raises(
        InputError,
        match=r"class list: 1 \(first at all/00000001\). Expected .* from 0 to 0, the indices of \['a'\]",
    ):
        _plan(source, class_names=("a",))


@pytest.mark.parametrize(("images", "labels"), [("x", "y"), ("images", "labels")])
def test_npz_takes_one_unsplit_pair(tmp_path, images, labels):
    pixels, values = _images(20), np.arange(20) % 2
    plan = _plan(_npz(tmp_path, **{images: pixels, labels: values}))
    assert plan.split_examples == {"train": 12, "validation": 4, "test": 4}
    np.testing.assert_array_equal(plan.listing.images, pixels[..., None])
    assert plan.listing.labels.tolist() == values.tolist()


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_npz_takes_its_own_splits(tmp_path, validation):
    parts = {"train": 6, validation: 2, "test": 4}
    arrays = {f"x_{name}": _images(count, shape=(4, 4, 3)) for name, count in parts.items()}
    arrays |= {f"y_{name}": np.arange(count) % 2 for name, count in parts.items()}
    plan = _plan(_npz(tmp_path, **arrays))
    assert plan.split_examples == {"train": 6, "validation": 2, "test": 4}
    assert plan.listing.images.shape == (12, 4, 4, 3)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_npz_takes_names_as_labels(tmp_path, kind):
    names = np.array(["dog", "cat"] * 10).astype(kind)
    assert _plan(_npz(tmp_path, x=_images(20), y=names)).listing.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("array", "received"),
    [
        (np.full((4, 4, 4), 2, np.float32), r"float32\[4, 4, 4\]"),
        (np.zeros((4, 16), np.uint8), r"uint8\[4, 16\]"),
        (np.zeros((4, 4, 4, 2), np.uint8), r"uint8\[4, 4, 4, 2\]"),
        (np.zeros((4, 0, 4), np.uint8), r"uint8\[4, 0, 4\]"),
        (np.uint8(0), r"uint8\[\]"),
    ],
)
def test_npz_refuses_images_of_another_type_or_shape(tmp_path, array, received):
    with pytest.raises(InputError, match=rf"the images in npz:.*expected uint8\[N, height.*received {received}"):
        _plan(_npz(tmp_path, x=array, y=np.array([0, 1, 0, 1])))


@pytest.mark.parametrize(
    ("labels", "received"),
    [(np.zeros(3, int), r"int64\[3\]"), (np.eye(4) * 2, "float64")],
)
def test_npz_refuses_labels_that_do_not_fit(tmp_path, labels, received):
    with pytest.raises(
        InputError, match=rf"Cannot use the labels .*expected 4 whole numbers or strings, received {received}"
    ):
        _plan(_npz(tmp_path, x=_images(4), y=labels))


@pytest.mark.parametrize(
    ("arrays", "advice"),
    [
        ({"x": np.ones((4, 4, 4)) / 2}, r"\(images \* 255\)\.round\(\)\.astype\('uint8'\)"),
        ({"y": np.eye(4, 5) * 2}, r"save labels\.argmax\(1\), or set data\.task to multi_label"),
        ({"y": np.arange(4.0) / 2}, r"numbers with a fraction: '0\.5', '1\.5' .*set data\.task to regression"),
    ],
)
def test_npz_that_is_nearly_right_is_refused_with_the_way_out(tmp_path, arrays, advice):
    source = _npz(tmp_path, **{"x": np.zeros((4, 4, 4), np.uint8), "y": np.array([0, 1, 0, 1]), **arrays})
    with pytest.raises(InputError, match=advice):
        _plan(source, convert_arrays=False)


@pytest.mark.parametrize(
    ("convert", "note"),
    [
        (lambda x, y: (np.moveaxis(x, 3, 1), y), "channels first"),
        (lambda x, y: (x / 255, y), "floats in [0, 1]"),
        (lambda x, y: (x.astype(np.int64), y), "int64 in [0, 255]"),
        (lambda x, y: (x, np.eye(2)[y]), "one column for each class"),
        (lambda x, y: ((np.moveaxis(x, 3, 1) / 255).astype("f4"), np.eye(2, dtype=bool)[y]), "one column"),
    ],
)
def test_arrays_as_other_libraries_have_them_are_read_and_it_is_said(tmp_path, convert, note):
    images, labels = np.random.default_rng(0).integers(0, 256, (8, 5, 4, 3), np.uint8), np.arange(8) % 2
    plain = _plan(_npz(tmp_path, x=images, y=labels)).listing
    images, labels = convert(images, labels)
    converted = _plan(_npz(tmp_path, x=images, y=labels)).listing
    assert np.array_equal(converted.images, plain.images)
    assert np.array_equal(converted.labels, plain.labels)
    assert re.search(rf"{re.escape(note)}.*\. data\.convert_arrays=false rejects", " ".join(converted.notes))
    assert plain.notes == ()
    with pytest.raises(InputError, match=r"Cannot use the (images|labels)"):
        _plan(_npz(tmp_path, x=images, y=labels), convert_arrays=False)


def test_one_split_alone_is_not_read_another_way(tmp_path):
    pixels, shares = np.zeros((8, 5, 4), np.uint8), np.ones((8, 5, 4)) / 2
    labels = np.arange(8) % 2
    with pytest.raises(InputError, match="Cannot use the images of the 'test' split"):
        _plan(_npz(tmp_path, x_train=pixels, y_train=labels, x_test=shares, y_test=labels))


def test_classes_that_differ_only_in_case_or_spaces_are_noted(tmp_path):
    rows = [f"text {i},{name}" for i, name in enumerate(["Cat", "cat", "dog", "cat ", "big  dog", "big dog"] * 4)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    said = [note for note in _plan(f"csv:{tmp_path / 't.csv'}").listing.notes if "differ only" in note]
    assert len(said) == 2
    assert any("'Cat', 'cat' differ only in case or spaces" in note for note in said)


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (("x_train", "y_train", "x_test", "Y_test"), "x_test"),
        (("x_train", "y_train", "x_val", "y_validation"), "x_val"),
        (("x_train", "y_train", "x_training", "y_training"), "x_training"),
        (("x_train", "y_train", "x_holdout", "y_holdout"), "x_holdout"),
    ],
)
def test_npz_never_leaves_out_a_split_whose_name_it_does_not_know(tmp_path, names, odd):
    values = {"x": np.zeros((8, 4, 4), np.uint8), "y": np.arange(8) % 2}
    with pytest.raises(InputError, match=f"Cannot use '{odd}' in .*: expected one pair for each split"):
        _plan(_npz(tmp_path, **{name: values[name[0].lower()] for name in names}))


def test_npz_refuses_splits_of_different_shapes(tmp_path):
    source = _npz(
        tmp_path, x_train=_images(4), y_train=np.arange(4), x_test=_images(4, shape=(5, 5)), y_test=np.arange(4)
    )
    with pytest.raises(InputError, match=r"The images in npz:.* have different shapes: \[\(4, 4\), \(5, 5\)\]. Resize"):
        _plan(source)


def test_npz_refuses_pickled_objects_without_running_them(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    source = _npz(tmp_path, x=np.array([Evil()], dtype=object), y=np.array([0]))
    with pytest.raises(InputError, match=r"expected an .npz file without pickled objects, received Object arrays"):
        _plan(source)
    assert not (tmp_path / "ran").exists()


def test_npz_refuses_arrays_by_other_names(tmp_path):
    with pytest.raises(InputError, match=r"expected arrays x_train, y_train .*Received: \['features', 'target'\]"):
        _plan(_npz(tmp_path, features=_images(4), target=np.arange(4)))


@pytest.mark.parametrize(
    ("damage", "received"),
    [("empty", r"[^.]*"), ("text", r"[^.]*"), ("half", ".*"), ("npy", r"a single array, as numpy\.save writes it")],
)
def test_npz_refuses_what_is_none(tmp_path, damage, received):
    source = _npz(tmp_path, x=_images(20), y=np.arange(20))
    path = tmp_path / "data.npz"
    whole = path.read_bytes()
    if damage == "npy":
        with open(path, "wb") as file:
            np.save(file, _images(4))
    else:
        path.write_bytes({"empty": b"", "text": b"hello", "half": whole[: len(whole) // 2]}[damage])
    message = rf"expected an .npz file without pickled objects, received {received}\. Write the file with numpy\.savez"
    with pytest.raises(InputError, match=f"Cannot read {path}: {message}"):
        _plan(source)


@pytest.mark.parametrize("code", [0xD800, 0x110005])
def test_npz_refuses_labels_that_no_file_can_hold(tmp_path, code):
    labels = np.array(["a", "b"] * 10)
    labels[1:2].view(np.uint32)[:] = code
    with pytest.raises(
        InputError, match=r"Cannot use the labels of npz:.*: .+\. Expected whole numbers, or text that UTF-8 can"
    ):
        _plan(_npz(tmp_path, x=_images(20), y=labels))


def test_npz_that_unpacks_to_very_much_is_refused_before_it_does(tmp_path, monkeypatch):
    params = WriteParams(f"npz:{tmp_path}/data.npz")
    arrays = {"x": np.zeros((300, 100, 100), np.uint8), "y": np.arange(300) % 2}
    np.savez_compressed(tmp_path / "data.npz", **arrays)
    assert len(list_examples(params).keys) == 300  # 3 MB are little.
    monkeypatch.setattr(unpacking, "SMALL_BYTES", 1 << 20)
    with pytest.raises(
        InputError, match=r"at most 1 MiB .*received at least 2 MiB.*100 times the size of the compressed file"
    ):
        list_examples(params)
    arrays["x"][:, ::10, ::10] = np.random.default_rng(0).integers(0, 256, (300, 10, 10))  # Nine tenths are zeros.
    np.savez_compressed(tmp_path / "data.npz", **arrays)
    assert len(list_examples(params).keys) == 300


# idx:


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def _mnist(folder: Path, packed: bool = False) -> str:
    folder.mkdir()
    for prefix, count in (("train", 20), ("t10k", 6)):
        for name, array in (("images-idx3", _images(count)), ("labels-idx1", np.arange(count) % 2)):
            content = _idx(array)
            path = folder / (f"{prefix}-{name}-ubyte" + (".gz" if packed else ""))
            path.write_bytes(gzip.compress(content) if packed else content)
    return f"idx:{folder}"


def test_idx_reads_plain_and_gzipped_files_alike(tmp_path):
    plain, packed = _plan(_mnist(tmp_path / "plain")), _plan(_mnist(tmp_path / "gz", packed=True))
    assert plain.split_examples == {"train": 16, "validation": 4, "test": 6}
    np.testing.assert_array_equal(plain.listing.images, packed.listing.images)
    np.testing.assert_array_equal(plain.listing.images[:20, ..., 0], _images(20))
    assert plain.listing.labels.tolist() == packed.listing.labels.tolist()


def test_idx_takes_names_with_a_dot_as_well(tmp_path):
    source = _mnist(tmp_path / "mnist")
    for path in (tmp_path / "mnist").iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(_plan(source).listing.keys) == 26


def test_idx_refuses_a_missing_file(tmp_path):
    source = _mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"Missing t10k-labels-idx1-ubyte\[.gz\] in .*Expected MNIST's four files"):
        _plan(source)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kept", [0, 3, 10, 100])
def test_idx_refuses_truncated_files(tmp_path, packed, kept):
    source = _mnist(tmp_path / "mnist", packed)
    path = tmp_path / "mnist" / ("train-images-idx3-ubyte" + (".gz" if packed else ""))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=rf"Cannot read {path}: expected an IDX file of unsigned bytes, received"):
        _plan(source)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_idx(_images(5)) + b"more", "expected an IDX file"),
        (struct.pack(">HBBI4f", 0, 13, 1, 4, 0, 0, 0, 0), "expected an IDX file .* magic number 00000d01"),
        (
            struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**20, 2**20),
            r".* received at least 2,251,799,813,685,248 MiB\..* the size of the compressed file .\d+ bytes",
        ),
    ],
    ids=["more than its array", "no bytes", "unpacks to very much"],
)
def test_idx_refuses_content_that_its_header_does_not_describe(pack, content, message):
    with pytest.raises(InputError, match=f"Cannot read x: {message}"):
        read_idx(pack(content), "x")


def test_idx_refuses_a_damaged_gzip_stream():
    packed = bytearray(gzip.compress(_idx(_images(50))))
    packed[20:40] = bytes(20)
    with pytest.raises(InputError, match=r"Cannot read x.gz: expected an IDX file"):
        read_idx(bytes(packed), "x.gz")


# sklearn:, keras: and unknown ones


def test_keras_knows_what_the_numbers_of_its_classes_stand_for(monkeypatch):
    import keras

    pair = _images(20, shape=(28, 28)), np.arange(20, dtype=np.uint8) % 10
    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", lambda: (pair, pair))
    listing = _plan("keras:fashion_mnist").listing
    assert [listing.class_names[i] for i in listing.labels[[0, 9]]] == ["T-shirt/top", "Ankle boot"]
    named = _plan("keras:fashion_mnist", class_names=tuple("abcdefghij")).listing
    assert (named.class_names, named.labels.tolist()) == (tuple("abcdefghij"), listing.labels.tolist())


def test_arrays_in_any_memory_order_are_the_same_examples(monkeypatch):
    import keras

    images, labels = _images(20, shape=(8, 8, 3)), np.arange(20, dtype=np.uint8) % 10
    transposed = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)  # As Keras returns CIFAR-10.
    listings = []
    for stored in (images, transposed, np.asfortranarray(images)):
        pair = stored, labels[:, None]
        monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda pair=pair: (pair, pair))
        listings.append(_plan("keras:cifar10").listing)
    for listing in listings:
        np.testing.assert_array_equal(listing.images, listings[0].images)
        np.testing.assert_array_equal(listing.hashes, listings[0].hashes)
        assert listing.version == listings[0].version


def test_a_download_of_keras_prints_one_line_on_stderr_and_nothing_on_stdout(monkeypatch, capsys):
    import keras
    from keras.src.utils import io_utils

    def download():
        io_utils.print_msg("Downloading data from https://example.com/mnist.npz")
        bar = keras.utils.Progbar(2)
        for done in (1, 2):
            bar.update(done)
        return pair, pair

    pair = _images(20, shape=(28, 28)), np.arange(20, dtype=np.uint8) % 10
    monkeypatch.setattr(keras.datasets.mnist, "load_data", download)
    _plan("keras:mnist")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[create_tfrecords] Downloading data from https://example.com/mnist.npz\n")


@pytest.mark.heavy  # Another process with TensorFlow: 4 s.
def test_a_data_set_of_keras_is_read_without_the_log_messages_of_tensorflow(tmp_path):
    words = ["--source", "keras:mnist", "--output", tmp_path / "out"]
    unreachable = {"https_proxy": "http://127.0.0.1:9", "KERAS_HOME": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-m", "tpu_components.create_tfrecords", *words],
        env=environment | unreachable,
        capture_output=True,
        text=True,
        check=False,
    )
    started, downloading, error = done.stderr.splitlines()
    assert started == "[create_tfrecords] started"
    assert downloading.startswith("[create_tfrecords] Downloading data from https://")
    assert error.startswith("error: Could not download 'keras:mnist'")


def test_what_keras_cannot_load_may_come_from_elsewhere(monkeypatch):
    import keras

    def refuse():
        raise Exception("Incomplete or corrupted file detected")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", refuse)
    expected = (
        r"'keras:mnist': Incomplete or corrupted .* only if the file is identical to the one that Keras downloads\..*"
        r" idx:DIR"
    )
    with pytest.raises(InputError, match=expected):
        _plan("keras:mnist")


def test_sklearn_digits_are_scaled_to_bytes():
    from sklearn.datasets import load_digits

    plan = _plan("sklearn:digits")
    assert plan.listing.class_names == tuple("0123456789")
    assert plan.listing.images.shape == (1797, 8, 8, 1)
    assert (plan.listing.images.min(), plan.listing.images.max()) == (0, 255)
    assert plan.listing.labels.tolist() == load_digits().target.tolist()
    assert sum(plan.split_examples.values()) == 1797


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("sklearn:iris", "Unknown source 'sklearn:iris': expected sklearn:digits"),
        (
            "keras:mnits",
            "Unknown source 'keras:mnits': expected keras:NAME, where NAME is mnist or fashion_mnist or cifar10",
        ),
        ("imagse:x", "Unknown source 'imagse:x': expected one of images:DIR.*Did you mean 'images'?"),
        ("CSV:x", "Unknown source 'CSV:x': expected one of images:DIR"),
        ("/data/cats", "Unknown source '/data/cats': expected one of images:DIR, .*csv:FILE, .*npz:FILE, idx:DIR"),
        ("", "Unknown source '': expected one of"),
        ("images:", "The source 'images:' has no location: expected images:DIR"),
    ],
)
def test_unknown_sources_are_refused_and_the_nearest_is_named(source, expected):
    with pytest.raises(InputError, match=expected):
        _plan(source)


def test_group_column_needs_a_csv():
    with pytest.raises(
        InputError,
        match=r"group_column='who' requires a csv:, .* source. Received: 'sklearn:digits'. Remove",
    ):
        _plan("sklearn:digits", group_column="who")


# Digests, which decide whether a run may be skipped


def test_digests_change_with_content_labels_and_names(image_folder, encode):
    folder = image_folder(per_class=5)
    params = WriteParams(f"images:{folder}")
    before = list_examples(params)
    content, stat = before.content_digest(), before.stat_digest()
    assert list_examples(params).content_digest() == content
    assert list_examples(params).stat_digest() == stat
    (folder / "cat" / "0000.png").write_bytes(encode(seed=99, size=(9, 9)))
    after = list_examples(params)
    changed = after.content_digest()
    assert changed != content
    assert after.stat_digest() != stat
    (folder / "cat" / "0001.png").rename(folder / "dog" / "0009.png")
    assert list_examples(params).content_digest() not in (content, changed)


@pytest.mark.parametrize("source", ["sklearn:digits", "images:gs://bucket/photos"])
def test_what_is_the_same_from_everywhere_has_the_same_digest_in_every_folder(source, bucket, tmp_path, monkeypatch):
    for name in ("cats/1.png", "dogs/1.png"):
        bucket.blob(f"photos/{name}").upload_from_string(b"picture")
    before = list_examples(WriteParams(source)).stat_digest()
    monkeypatch.chdir(tmp_path)
    assert list_examples(WriteParams(source)).stat_digest() == before


# Params


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1. Received: .*=1.0"),
        ({"test_fraction": -0.1}, "Received: test_fraction=-0.1"),
        ({"max_bad_fraction": float("nan")}, "Received: max_bad_fraction=nan"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, r"leave examples to train on. Received: 0.5 \+ 0.5"),
        ({"encoding": "jpeg"}, "encoding must be one of auto, raw, resized, encoded. Received: encoding='jpeg'"),
        ({"jpeg_quality": 0}, "jpeg_quality must be from 1 to 100. Received: jpeg_quality=0"),
        ({"crop_margin": -0.1}, "crop_margin must be from 0 to 1. Received: crop_margin=-0.1"),
        (
            {"crop_margin": 0.1},
            r"crop_margin requires image_size and .* Received: crop_margin=0.1 with image_size=\[\]",
        ),
        ({"crop_margin": 0.1, "image_size": (8,), "encoding": "raw"}, "crop_margin requires .* encoding='raw'"),
        ({"channels": 4}, "channels must be one of 0, 1, 3. Received: channels=4"),
        ({"image_size": (32, 8, 3)}, r"image_size must be \[height, width\]. Received: image_size=\[32, 8, 3\]"),
        ({"image_size": (32, 0)}, r"Received: image_size=\[32, 0\]"),
        ({"target_shard_mib": 0}, "Received: target_shard_mib=0"),
        ({"num_workers": -1}, "Received: num_workers=-1"),
        (
            {"class_names": ("a", "b", "a")},
            r"class_names must not .* twice. Received: class_names=\['a', 'b', 'a'\]",
        ),
        (
            {"columns": {"lable": "x"}},
            r"The keys of columns must be among path, image, text, label, split, id, weight. Received: 'lable'",
        ),
    ],
)
def test_params_refuse_values_out_of_range(values, message):
    with pytest.raises(InputError, match=message):
        WriteParams("sklearn:digits", **values)

"""Names of classes and missing labels: one rule for all sources."""

import html
import json
import random
import re
import tarfile
import unicodedata
from io import BytesIO
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

from tests.support.cli import tpu_pipelines_here
from tests.support.pictures import encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.records import encode_example, frame_record
from tpu_components.core.sources.kinds import SOURCES, list_examples
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NFC, NFD = "Caf\u00e9", "Cafe\u0301"
_PIXELS = np.random.default_rng(0).integers(0, 256, (4000, 2, 2), np.uint8)


def _csv(folder, labels):
    import csv

    with open(folder / "t.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([("text", "label"), *((f"text number {i}", label) for i, label in enumerate(labels))])
    return f"csv:{folder}/t.csv"


def _parquet(folder, labels):
    texts = [f"text number {i}" for i in range(len(labels))]
    pq.write_table(pa.table({"text": texts, "label": labels}), folder / "t.parquet")
    return f"parquet:{folder}"


def _class_labels(folder, labels):
    """As the package `datasets` writes classes: numbers, with the names in the metadata."""
    names = sorted({label for label in labels if label})
    numbers = [names.index(label) if label else -1 for label in labels]
    feature = {"label": {"names": names, "_type": "ClassLabel"}}
    table = pa.table({"text": [f"text number {i}" for i in range(len(labels))], "label": numbers})
    metadata = {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), folder / "t.parquet")
    return f"parquet:{folder}"


def _tfrecords(folder, labels):
    fields = [{"text": f"text number {i}".encode(), "label": _as_feature(label)} for i, label in enumerate(labels)]
    frames = (frame_record(encode_example({k: v for k, v in one.items() if v is not None})) for one in fields)
    (folder / "t.tfrecord").write_bytes(b"".join(frames))
    return f"tfrecords:{folder}"


def _as_feature(label):
    if isinstance(label, float):
        return [label]
    return label.encode() if isinstance(label, str) else label


def _tar(folder, labels, suffix="cls", write=lambda label: label if isinstance(label, bytes) else str(label).encode()):

    with tarfile.open(folder / "t.tar", "w") as archive:
        for i, label in enumerate(labels):
            members = [(f"{i:04d}.png", encoded(_PIXELS[i]))]
            members += [] if label is None else [(f"{i:04d}.{suffix}", write(label))]
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, BytesIO(content))
    return f"webdataset:{folder}"


def _tar_with_json(folder, labels):
    return _tar(folder, labels, "json", lambda label: json.dumps({"label": label}).encode())


def _npz(folder, labels):
    np.savez(folder / "t.npz", images=_PIXELS[: len(labels)], labels=np.array(labels))
    return f"npz:{folder}/t.npz"


def _npz_of_bytes(folder, labels):
    return _npz(folder, [label.encode() for label in labels])


def _folders(folder, labels):
    for i, label in enumerate(labels):
        (folder / "t" / label).mkdir(parents=True, exist_ok=True)
        (folder / "t" / label / f"{i}.txt").write_text(f"text number {i}")
    return f"text:{folder}/t"


def _label_studio(folder, labels):
    def choice(label):
        return {"type": "choices", "from_name": "kind", "value": {"choices": [label]}}

    tasks = [
        {"id": i, "data": {"text": f"text number {i}"}, "annotations": [{"result": [choice(label)]}]}
        for i, label in enumerate(labels)
    ]
    (folder / "t.json").write_text(json.dumps(tasks))
    return f"labelstudio:{folder}/t.json"


def _cvat(folder, labels):
    from PIL import Image

    (folder / "images").mkdir()
    elements = []
    for i, label in enumerate(labels):
        Image.fromarray(_PIXELS[i]).save(folder / "images" / f"{i}.png")
        elements.append(f'<image id="{i}" name="{i}.png"><tag label={quoteattr(label)}/></image>')
    (folder / "t.xml").write_text(f"<annotations>{''.join(elements)}</annotations>")
    return f"cvat:{folder}/t.xml"


_SOURCES = {
    "csv": _csv,
    "parquet": _parquet,
    "ClassLabel": _class_labels,
    "tfrecords": _tfrecords,
    "webdataset": _tar,
    "webdataset JSON": _tar_with_json,
    "npz": _npz,
    "npz of bytes": _npz_of_bytes,
    "folders": _folders,
    "labelstudio": _label_studio,
    "cvat": _cvat,
}
_TABLES = ["csv", "parquet", "tfrecords", "webdataset", "npz"]


def _folder(path):
    path.mkdir()
    return path


def test_every_kind_of_source_whose_files_hold_names_is_tried(tmp_path):
    made = {kind: make(_folder(tmp_path / kind), ["pos", "neg"] * 10) for kind, make in _SOURCES.items()}
    tried = {SourceRef.parse(source).kind for source in made.values()}
    # Numbers, or a text without classes; what a library holds; folders, which are tried with texts.
    assert set(SOURCES) - tried == {"idx", "corpus", "keras", "sklearn", "huggingface", "images"}


@pytest.mark.parametrize("kind", _SOURCES)
def test_one_name_in_two_unicode_forms_is_one_class(kind, tmp_path):
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, [NFC, NFD, "tea", NFD] * 5)))
    assert listing.class_names == (NFC, "tea")
    assert np.bincount(listing.labels).tolist() == [15, 5]


@pytest.mark.parametrize("form", [NFC, NFD])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "folders"])
def test_class_names_fit_labels_of_another_unicode_form(kind, form, tmp_path):
    source = _SOURCES[kind](tmp_path, [NFC, NFD, "tea"] * 5)
    listing = list_examples(WriteParams(source, class_names=("tea", form)))
    assert listing.class_names == ("tea", NFC)
    assert np.bincount(listing.labels).tolist() == [5, 10]


def _names_of_all_blocks(count, is_usable):
    """Different names from all planes of Unicode, some with controls and marks of direction, in NFC."""
    draw = random.Random(5)
    names = {}
    while len(names) < count:
        letters = [chr(draw.choice((draw.randrange(0x20, 0x2FF), draw.randrange(0x300, 0x1FFFF)))) for _ in range(4)]
        letters.insert(
            2, draw.choice(["\x1b[2J", "\x07", "\u202e", "\u2067", "\u05d0", "\u0627", "e\u0301", "\ufeff", "x"])
        )
        name = unicodedata.normalize("NFC", "".join(letters)).strip()
        if name and not any(0xD800 <= ord(c) <= 0xDFFF for c in name) and is_usable(name):
            names[name] = True
    return list(names)


def _is_usable(kind):
    """Return whether a kind of source can hold a name at all."""
    if kind == "folders":
        return lambda name: "/" not in name and not name.startswith(("._", "."))
    if kind == "cvat":  # XML has no control characters.
        return lambda name: (
            all(c.isprintable() or ord(c) > 0xFF for c in name) and not set(name) & {"\ufffe", "\uffff", "|"}
        )
    return lambda name: "|" not in name


@pytest.mark.parametrize("kind", _SOURCES)
def test_a_thousand_names_of_all_unicode_blocks_are_a_thousand_classes(kind, tmp_path):
    names = _names_of_all_blocks(1000, _is_usable(kind))
    labels = names + [unicodedata.normalize("NFD", name) for name in names]
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, labels)))
    assert sorted(listing.class_names) == sorted(names)
    assert np.bincount(listing.labels).tolist() == [2] * 1000


def test_pages_and_terminals_show_no_control_of_a_name(tmp_path):
    names = _names_of_all_blocks(1000, _is_usable("folders"))
    source = _csv(tmp_path, names * 3)
    done = tpu_pipelines_here("init", source, "--output", str(tmp_path / "made"), "--name", "made")
    assert done.returncode == 0, done.stderr
    write_records(WriteParams(source, num_workers=1, join_copies=False), tmp_path / "records")
    page = html.unescape((tmp_path / "records" / "data.html").read_text())
    shown = (done.stdout, done.stderr, (tmp_path / "made" / "made.yaml").read_text(), page)
    controls = set(
        map(chr, (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
    )
    for text in shown:
        assert not controls & set(text)
    assert "\\u202e" in page


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("csv", ["1", "1.0", "0", "0.0"]),
        ("csv", ["1.0", "1.0", "0.0", "0"]),
        ("parquet", [1.0, 1.0, 0.0, 0.0]),
        ("tfrecords", [1.0, 1.0, 0.0, 0.0]),
        ("webdataset", ["1", 1.0, "0", "0.00"]),
        ("webdataset JSON", [1, 1.0, "0", "0.0"]),
        ("npz", [1.0, 1.0, 0.0, 0.0]),
        ("folders", ["1", "1.0", "0", "0.0"]),
    ],
)
def test_a_whole_number_is_one_class_however_it_is_written(kind, labels, tmp_path):
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, labels * 5)))
    assert listing.class_names == ("0", "1")
    assert np.bincount(listing.labels).tolist() == [10, 10]


def test_codes_with_leading_zeros_stay_as_they_are(tmp_path):
    listing = list_examples(WriteParams(_csv(tmp_path, ["007", "7", "7.0", "1e1"] * 5)))
    assert sorted(listing.class_names) == ["007", "1e1", "7"]


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("csv", ""),
        ("csv", "NaN"),
        ("csv", "<NA>"),
        ("parquet", None),
        ("parquet", ""),
        ("ClassLabel", None),
        ("tfrecords", None),
        ("webdataset", None),
        ("webdataset", "nan"),
        ("webdataset JSON", None),
        ("npz", "nan"),
        ("npz", ""),
        ("folders", "nan"),
    ],
)
def test_an_example_without_a_label_is_set_aside_within_the_allowed_share(kind, missing, tmp_path):
    labels = ["cat", "dog"] * 20
    labels[7] = missing
    params = WriteParams(_SOURCES[kind](tmp_path, labels), max_bad_fraction=0.05)
    listing = plan_dataset(params).listing
    assert listing.class_names == ("cat", "dog")
    assert np.bincount(listing.labels).tolist() == [20, 19]
    assert [len(column) for column in (listing.keys, listing.identities or listing.keys, listing.bad)] == [39, 39, 1]
    with pytest.raises(InputError, match="1 of 40 inputs cannot be used"):
        plan_dataset(WriteParams(params.source))


@pytest.mark.parametrize("kind", ["parquet", "tfrecords", "npz"])
def test_a_label_that_is_nan_is_missing(kind, tmp_path):
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, [0.0, 1.0, float("nan"), 1.0] * 5)))
    assert (listing.class_names, len(listing.keys), len(listing.bad)) == (("0", "1"), 15, 5)


@pytest.mark.parametrize("kind", ["parquet", "tfrecords", "webdataset", "npz"])
def test_label_bytes_that_are_not_utf8_are_set_aside_and_merge_no_classes(kind, tmp_path):
    labels = [b"cat", b"dog"] * 10 + [b"caf\xe9", b"caf\xe8"]
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, labels)))
    assert listing.class_names == ("cat", "dog")
    assert [bad.reason for bad in listing.bad] == [
        f"its label is not UTF-8: {label!r}" for label in (b"caf\xe9", b"caf\xe8")
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_what_is_set_aside_takes_its_content_along(kind, tmp_path):
    labels = ["cat", "dog"] * 10
    labels[4] = ""
    source = _SOURCES[kind](tmp_path, labels)
    listing = list_examples(WriteParams(source))
    for i in range(19):
        number = i + (i >= 4)
        content = listing.read(i)
        if kind == "npz":
            assert content.squeeze().tolist() == _PIXELS[number].tolist()
        else:
            assert content == f"text number {number}".encode()


@pytest.mark.parametrize("name", ["None", "NA", "null"])
def test_a_class_with_the_name_of_nothing_stays_a_class_with_a_note(name, tmp_path):
    listing = list_examples(WriteParams(_csv(tmp_path, [name, "dog"] * 5)))
    assert set(listing.class_names) == {name, "dog"}
    assert any(repr(name) in note and "leave the label empty" in note for note in listing.notes)


def test_the_missing_number_of_a_column_of_floats_is_missing(tmp_path):
    source = _csv(tmp_path, ["-1.0", "0.0", "1.0", "0.0"])
    listing = list_examples(WriteParams(source, class_names=("0", "1"), max_bad_fraction=0.5))
    assert (listing.labels.tolist(), len(listing.bad)) == ([0, 1, 0], 1)
    listing = list_examples(WriteParams(source, class_names=("-1", "0", "1")))
    assert (listing.labels.tolist(), len(listing.bad)) == ([0, 1, 2, 1], 0)


def test_class_names_say_what_is_missing(tmp_path):
    source = _csv(tmp_path, ["0", "1", "-1", "nan"] * 5)
    assert any("'-1' is used as a class" in note for note in list_examples(WriteParams(source)).notes)
    listing = list_examples(WriteParams(source, class_names=("0", "1")))
    assert (listing.class_names, len(listing.keys), len(listing.bad)) == (("0", "1"), 10, 10)
    listing = list_examples(WriteParams(source, class_names=("nan", "0", "1", "-1")))
    assert np.bincount(listing.labels).tolist() == [5] * 4


@pytest.mark.parametrize("kind", _TABLES)
def test_numbers_with_a_fraction_are_classes_only_if_they_are_named(kind, tmp_path):
    labels = [0.5, 1.5, 2.0, 1.5] * 5
    source = _SOURCES[kind](tmp_path, labels)
    with pytest.raises(InputError, match=r"numbers with a fraction: '0\.5', '1\.5'.*set data\.task to regression"):
        list_examples(WriteParams(source))
    if kind != "npz":  # There, class_names are the names of numbers.
        listing = list_examples(WriteParams(source, class_names=("0.5", "1.5", "2.0")))
        assert (listing.class_names, np.bincount(listing.labels).tolist()) == (("0.5", "1.5", "2"), [5, 10, 5])


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_a_missing_number_of_a_regression_is_set_aside(kind, tmp_path):
    values = [i / 4 for i in range(40)]
    values[3] = float("nan")
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, values), task="regression"))
    assert (len(listing.keys), len(listing.bad)) == (39, 1)
    assert listing.labels[:, 0].tolist() == [*values[:3], *values[4:]]


def test_an_example_without_a_split_is_set_aside(tmp_path):
    rows = [f"text {i},{'ab'[i % 2]},{('train', 'test', '')[i % 3]}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,split", *rows]))
    columns = {
        "text": [f"text {i}" for i in range(30)],
        "label": list("ab" * 15),
        "split": ["train", "test", None] * 10,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for source in (f"csv:{tmp_path}/t.csv", f"parquet:{tmp_path}/t.parquet"):
        listing = list_examples(WriteParams(source))
        assert (len(listing.keys), len(listing.bad)) == (20, 10)
        assert listing.splits.tolist() == ["train", "test"] * 10


@pytest.mark.parametrize(
    "cells",
    [
        ["cat dog", "dog", "cat", "cow cat", "cow"],
        ["cat/dog", "dog/cow", "cat / cow", "dog"],
        ["cat\tdog", "dog\tcow", "cow\tcat"],
        ["['cat', 'dog']", "['dog']", "[]"],
        ["['cat']", "['dog']"],
        ["{cat,dog}", "{dog}"],
        ["cat,dog", "dog"],
        ["\u732b\u3001\u72ac", "\u72ac"],
        ["\u732b\uff0c\u72ac", "\u72ac"],
        ["\u732b\uff5c\u72ac", "\u72ac"],
        ["\u0627\u060c \u0628", "\u0628"],
        ["cat & dog", "dog&cow", "cat&cow", "dog"],
        ["cat+dog", "dog", "cat", "cow+cat", "cow"],
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_labels_that_are_separated_by_other_characters_are_noticed(kind, cells, tmp_path):
    with pytest.raises(InputError, match=r"Expected '\|' between the labels in a cell, received "):
        list_examples(WriteParams(_SOURCES[kind](tmp_path, cells * 4), task="multi_label"))


@pytest.mark.parametrize("cell", ["cat,dog", "cat;dog", "cat / dog", "dog & cat"])
def test_another_separator_beside_the_right_one_is_noticed(cell, tmp_path):
    with pytest.raises(InputError, match=rf"Expected '\|' between the labels in a cell, received '{re.escape(cell)}'"):
        list_examples(WriteParams(_csv(tmp_path, ["cat|dog", "dog", "cat", cell] * 4), task="multi_label"))


def test_a_label_with_a_comma_of_its_own_stays_whole_beside_the_right_separator(tmp_path):
    cells = ["home|toys", "garden, outdoors|toys", "garden", "home"] * 4
    listing = list_examples(WriteParams(_csv(tmp_path, cells), task="multi_label"))
    assert listing.class_names == ("garden", "garden, outdoors", "home", "toys")


def test_single_labels_with_spaces_are_not_taken_for_several(tmp_path):
    names = ["polar bear", "sea lion", "golden retriever", "guinea pig", "cat", "dog"]
    listing = list_examples(WriteParams(_csv(tmp_path, names * 4), task="multi_label"))
    assert sorted(listing.class_names) == sorted(names)


@pytest.mark.parametrize("kind", ["parquet", "tfrecords", "webdataset JSON"])
def test_a_column_is_found_in_another_unicode_form(kind, tmp_path):
    labels = ["cat", "dog"] * 10
    if kind == "parquet":
        texts = [f"text {i}" for i in range(20)]
        pq.write_table(pa.table({"text": texts, "cate\u0301gorie": labels}), tmp_path / "t.parquet")
        source = f"parquet:{tmp_path}"
    elif kind == "tfrecords":
        fields = [{"text": b"text %d" % i, "cate\u0301gorie": label.encode()} for i, label in enumerate(labels)]
        (tmp_path / "t.tfrecord").write_bytes(b"".join(frame_record(encode_example(one)) for one in fields))
        source = f"tfrecords:{tmp_path}"
    else:
        source = _tar(tmp_path, labels, "json", lambda label: json.dumps({"cate\u0301gorie": label}).encode())
    listing = list_examples(WriteParams(source, columns={"label": "cat\u00e9gorie"}))
    assert np.bincount(listing.labels).tolist() == [10, 10]


def test_columns_of_a_csv_file_are_found_in_another_unicode_form(tmp_path):
    rows = [f"text {i},{'ab'[i % 2]},{(NFC, NFD)[i % 2]}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["text,cate\u0301gorie,re\u0301gion", *rows]))
    params = WriteParams(
        f"csv:{tmp_path}/t.csv", columns={"label": "cat\u00e9gorie"}, slice_columns=("r\u00e9gion",), num_workers=1
    )
    write_records(params, tmp_path / "records")
    with np.load(tmp_path / "records" / "slices.npz") as slices:
        assert slices["names"].tolist() == ["r\u00e9gion"]
        assert slices["0"].tolist() == [NFC]


@pytest.mark.parametrize(("on_disk", "written"), [(NFD, NFC), (NFC, NFD)])
def test_a_path_in_another_unicode_form_is_found_and_keeps_its_key(tmp_path, on_disk, written):
    from PIL import Image

    (tmp_path / on_disk).mkdir()
    for i in range(12):
        Image.fromarray(_PIXELS[i]).save(tmp_path / on_disk / f"{NFC}{i}.png")
    rows = [f"{written}/{NFC}{i}.png,{'ab'[i % 2]}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    params = WriteParams(f"csv:{tmp_path}/t.csv", num_workers=1, validation_fraction=0.0, test_fraction=0.0)
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    assert (manifest.splits["train"].num_examples, manifest.quarantined) == (12, ())
    assert set(list_examples(params).keys) == {row.partition(",")[0] for row in rows}


def test_an_image_of_an_archive_with_labels_does_not_get_its_folder_as_class(tmp_path):
    source = _tar(tmp_path, ["cat", "dog"] * 10)
    with tarfile.open(tmp_path / "t.tar", "a") as archive, tarfile.open(tmp_path / "t.tar") as first:
        content = first.extractfile("0000.png").read()
        info = tarfile.TarInfo("photos/extra.png")
        info.size = len(content)
        archive.addfile(info, BytesIO(content))
    listing = list_examples(WriteParams(source))
    assert listing.class_names == ("cat", "dog")
    assert [bad.key for bad in listing.bad] == ["photos/extra.png"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_that_differ_by_what_cannot_be_seen_are_noted(kind, tmp_path):
    listing = list_examples(
        WriteParams(_SOURCES[kind](tmp_path, ["cat", "cat\u200b", "ca\u00adt", "\ufeffcat", "dog"] * 4))
    )
    assert len(listing.class_names) == 5
    (note,) = (note for note in listing.notes if "differ only" in note)
    assert "invisible characters" in note
    assert "'cat\\u200b'" in note


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ([{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}], "classification"),
        ([{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}], "multi_label"),
        ([[[1, 2]], [[3, 4]]], "classification"),
        ([[[1, 2], [3]], [[3, 4]]], "multi_label"),
    ],
)
def test_a_structure_is_no_label(labels, task, tmp_path):
    with pytest.raises(InputError, match=r"t\.parquet\[0\]: expected a name or a number in 'label', received"):
        list_examples(WriteParams(_parquet(tmp_path, labels * 3), task=task))


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ([[1, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 0]], "multi_label"),
        ([[1, 0], [0, 1]], "multi_label"),
        ([[1, 0, 0], [0, 0, 1]], "classification"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "tfrecords"])
def test_rows_of_0_and_1_for_each_class_are_no_lists_of_labels(kind, labels, task, tmp_path):
    with pytest.raises(InputError, match=r"received \[1, 0.*\]\. This looks like a 0 or 1 for each class\. Store"):
        list_examples(WriteParams(_SOURCES[kind](tmp_path, labels), task=task))


@pytest.mark.parametrize("labels", [["cat dog", "dog", "cat"], ["cat|dog", "dog"], ["cat,dog", "dog"]])
def test_several_labels_in_one_text_of_a_record_are_noticed(labels, tmp_path):
    source = _tfrecords(tmp_path, labels * 3)
    with pytest.raises(InputError, match=rf"Received: '{re.escape(labels[0])}'\. Store a list"):
        list_examples(WriteParams(source, task="multi_label"))
    names = tuple(sorted(set(labels)))
    assert list_examples(WriteParams(source, task="multi_label", class_names=names)).class_names == names


@pytest.mark.parametrize("kind", ["parquet", "tfrecords"])
def test_lists_of_the_labels_0_and_1_are_labels(kind, tmp_path):
    labels = [[0, 1], [1], [0], [1, 0]]
    listing = list_examples(WriteParams(_SOURCES[kind](tmp_path, labels), task="multi_label"))
    assert listing.labels.tolist() == [[1, 1], [0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("task", ["classification", "multi_label"])
@pytest.mark.parametrize("column", ["weight", "split"])
def test_a_class_whose_examples_are_all_set_aside_is_no_class(column, task, tmp_path):
    columns = {
        "text": [f"text {i}" for i in range(12)],
        "label": ["b", "c"] * 5 + ["a", "a"],
        "weight": [1.0] * 10 + [None, None],
        "split": ["train", "train", "test", "test", "validation"] * 2 + ["train", "train"],
    }
    columns["split"][-2:] = ["train"] * 2 if column == "weight" else [None] * 2
    columns["weight"][-2:] = [None] * 2 if column == "weight" else [1.0] * 2
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    listing = list_examples(WriteParams(f"parquet:{tmp_path}", task=task, columns={"weight": "weight"}))
    labels = listing.labels if task == "classification" else listing.labels.argmax(1)
    assert (listing.class_names, labels.tolist(), len(listing.bad)) == (("b", "c"), [0, 1] * 5, 2)


def test_a_class_of_class_names_without_examples_needs_no_warning(tmp_path):
    source = _csv(tmp_path, ["a", "b"] * 20)
    write_records(WriteParams(source, class_names=("a", "b", "c")), tmp_path / "records")
    assert Manifest.load(tmp_path / "records").class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (("fish", "\ufb01sh"), "differ only in case, spaces, quotation marks or the form of letters"),
        (("cat", "\uff43\uff41\uff54"), "differ only in case, spaces, quotation marks or the form of letters"),
        (("\u30cd\u30b3", "\uff88\uff7a"), "differ only in case, spaces, quotation marks or the form of letters"),
        (("cat", "\u201ccat\u201d"), "differ only in case, spaces, quotation marks or the form of letters"),
        (("Cat", "cat"), "differ only in case or spaces"),
        (("c\0a\0t\0", "d\0o\0g\0"), "contain control characters"),
        (("\\N", "cat"), "is used as a class"),
        (("#NV", "cat"), "is used as a class"),
    ],
)
def test_names_that_look_alike_or_stand_for_nothing_are_noted(labels, note, tmp_path):
    listing = list_examples(WriteParams(_csv(tmp_path, labels * 4)))
    assert len(listing.class_names) == 2
    assert [note in each for each in listing.notes] == [True]


@pytest.mark.parametrize("labels", [("m\u00b2", "m2"), ("'", '"'), ("+", "-"), ("\u2460", "1"), ("3", "\u00b3")])
def test_names_that_only_resemble_each_other_are_not_noted(labels, tmp_path):
    assert list_examples(WriteParams(_csv(tmp_path, labels * 4))).notes == ()

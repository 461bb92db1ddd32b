"""Images in Parquet files: their bytes, or only their paths."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pictures import encode_picture
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.preparing import prepare
from tpu_components.create_tfrecords.writer import write_records

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _write(path, images, **columns) -> WriteParams:
    labels = [f"c{i % 2}" for i in range(len(images))]
    pq.write_table(pa.table({"image": images, "label": labels, **columns}), path)
    return WriteParams(f"parquet:{path}")


@pytest.mark.parametrize("columns", [{}, {"id": [f"id{i}" for i in range(50)]}])
def test_a_column_with_paths_and_no_bytes_is_refused_with_the_first_path(tmp_path, columns):
    images = pa.array([{"bytes": None, "path": f"/data/{i}.png"} for i in range(50)], _IMAGE)
    params = _write(tmp_path / "a.parquet", images, **columns)
    with pytest.raises(InputError, match=r"only paths \(the first: '/data/0.png'\)\. .*embed_table_storage.*csv:"):
        prepare(plan_dataset(params))


@pytest.mark.parametrize("images", [[None] * 50, [b""] * 50])
def test_a_column_without_any_bytes_is_refused(tmp_path, images):
    params = _write(tmp_path / "a.parquet", pa.array(images, pa.binary()))
    with pytest.raises(InputError, match="received only empty values"):
        plan_dataset(params)


@pytest.mark.parametrize(
    "images",
    [
        pa.array([f"{i}.png" for i in range(50)]),
        pa.array([{"path": f"{i}.png"} for i in range(50)], pa.struct([("path", pa.string())])),
    ],
)
def test_a_column_of_paths_is_refused_with_what_to_do(tmp_path, images):
    with pytest.raises(InputError, match=r"If the column contains paths: .*embed_table_storage.*csv:"):
        plan_dataset(_write(tmp_path / "a.parquet", images))


def test_rows_without_bytes_are_set_aside_if_they_are_few(tmp_path):
    images = [{"bytes": None if i in (3, 30) else encode_picture(i, mode="L"), "path": f"{i}.png"} for i in range(60)]
    params = _write(tmp_path / "a.parquet", pa.array(images, _IMAGE))
    with pytest.raises(InputError, match=r"2 of 60 inputs are unreadable: .*'a.parquet\[3\]' \(no bytes\)"):
        write_records(params, tmp_path / "out")
    write_records(WriteParams(params.source, max_bad_fraction=0.1), tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    assert {item.key: item.reason for item in manifest.quarantined} == {
        "a.parquet[3]": "no bytes",
        "a.parquet[30]": "no bytes",
    }
    assert sum(split.num_examples for split in manifest.splits.values()) == 58


_CATEGORIES = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), _CATEGORIES])
def test_texts_may_have_any_type_of_strings(tmp_path, kind):
    texts = [f"text number {i % 20}" for i in range(40)]
    table = pa.table({"text": pa.array(texts).cast(kind), "label": pa.array(["a", "b"] * 20).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    listing = list_examples(WriteParams(f"parquet:{tmp_path}"))
    assert ([text.decode() for text in listing.texts], listing.class_names) == (texts, ("a", "b"))


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.large_binary()])
def test_images_may_have_any_type_of_bytes(tmp_path, kind):
    params = _write(tmp_path / "a.parquet", pa.array([encode_picture(i, mode="L") for i in range(6)], kind))
    assert write_records(params, tmp_path / "records").num_examples == 6


def test_a_categorical_column_of_many_categories_is_not_taken_for_a_bomb(tmp_path):
    count = 60_000
    ids = pa.array([f"{i:064d}" for i in range(count)]).dictionary_encode()
    table = pa.table({"text": [f"text {i % 100}" for i in range(count)], "label": ["a", "b"] * (count // 2), "id": ids})
    pq.write_table(table, tmp_path / "a.parquet")
    assert len(list_examples(WriteParams(f"parquet:{tmp_path}")).keys) == count


def _write_classes(path, names, labels, texts):
    table = pa.table({"text": texts, "label": labels})
    if names:
        feature = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": feature}}).encode()})
    pq.write_table(table, path)


def test_the_class_indices_of_a_file_have_the_names_of_this_file(tmp_path):
    """As `class_encode_column` writes them if a class is missing in a split."""
    for i, names in enumerate((["bird", "cat", "dog"], ["cat", "dog"])):
        texts = [f"a {name} in file {i}, number {n}" for name in names for n in range(3)]
        labels = [names.index(name) for name in names for _ in range(3)]
        _write_classes(tmp_path / f"{i}.parquet", names, labels, texts)
    listing = list_examples(WriteParams(f"parquet:{tmp_path}"))
    assert listing.class_names == ("bird", "cat", "dog")
    names = [listing.class_names[label] for label in listing.labels.tolist()]
    assert names == [bytes(listing.read(i)).split()[1].decode() for i in range(len(names))]


@pytest.mark.parametrize(
    ("second", "class_names", "message"),
    [
        (None, (), r"1.parquet are numbers without names, but the metadata of other files names the classes: 'a', 'b'"),
        (
            ["b", "a"],
            ("0", "1"),
            r"0.parquet have different names for the class indices in 'label', so numbers in data.class_names",
        ),
    ],
)
def test_class_indices_that_may_mean_other_classes_in_another_file_are_refused(tmp_path, second, class_names, message):
    for i, names in enumerate((["a", "b"], second)):
        _write_classes(tmp_path / f"{i}.parquet", names, [0, 1] * 10, [f"{i} {n}" for n in range(20)])
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(f"parquet:{tmp_path}", class_names=class_names))

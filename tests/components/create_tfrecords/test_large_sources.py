"""Sources of files that hold many examples: tar archives, Parquet files, TFRecords of others."""

import io
import json
import re
import struct
import tarfile
import types
from dataclasses import replace

import google_crc32c
import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.records import encode_example, frame_record, load_split, read_fields, read_frames
from tpu_components.core.files import storage, unpacking
from tpu_components.core.sources import spans
from tpu_components.core.sources.kinds import list_examples
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write_tar(path, members):
    """An archive of files, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def pictures(encode):
    """24 pictures, and the class of each."""
    return [(encode(seed=i), ("cat", "dog")[i % 2]) for i in range(24)]


def write_archives(folder, pictures):
    for number in range(2):
        members = []
        for i, (content, name) in enumerate(pictures[12 * number : 12 * number + 12], 12 * number):
            members += [(f"{i:04d}.png", content), (f"{i:04d}.cls", name.encode())]
        write_tar(folder / f"part-{number}.tar", members)
    return f"webdataset:{folder}"


def write_table(folder, pictures):
    folder.mkdir()
    for number, some in enumerate((pictures[:12], pictures[12:])):
        images = [{"bytes": content, "path": None} for content, _ in some]
        table = pa.table({"image": images, "label": [name for _, name in some]})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=5)
    return f"parquet:{folder}"


def write_records_of_others(folder, pictures):
    folder.mkdir()
    for number, some in enumerate((pictures[:12], pictures[12:])):
        fields = [{"image/encoded": content, "image/class/label": int(name == "dog")} for content, name in some]
        frames = b"".join(frame_record(encode_example(one)) for one in fields)
        (folder / f"part-{number}.tfrecord").write_bytes(frames)
    return f"tfrecords:{folder}"


WRITERS = [write_archives, write_table, write_records_of_others]


def contents_of(records_dir):
    manifest = Manifest.load(records_dir)
    return sorted(
        (image.tobytes(), int(label) % 2)
        for split in manifest.splits
        for examples in [load_split(records_dir, manifest, split)]
        for image, label in zip(examples.inputs, examples.labels, strict=True)
    )


@pytest.mark.parametrize("write", WRITERS)
def test_the_same_pictures_are_written_from_files_that_hold_many(write, pictures, tmp_path):
    folder = tmp_path / "images"
    for i, (content, name) in enumerate(pictures):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{i}.png").write_bytes(content)
    source = write(tmp_path / "data", pictures)
    results = [
        write_records(WriteParams(source, num_workers=count), tmp_path / str(count)).fingerprint for count in (1, 2)
    ]
    assert results[0] == results[1]
    write_records(WriteParams(f"images:{folder}", num_workers=1), tmp_path / "expected")
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "expected")


@pytest.mark.parametrize("write", WRITERS)
def test_names_of_files_say_their_split_and_a_damaged_picture_is_set_aside(write, pictures, tmp_path):
    source = write(tmp_path / "data", [*pictures[:3], (pictures[3][0][:60], "dog"), *pictures[4:]])
    for file in sorted((tmp_path / "data").iterdir()):
        file.rename(file.with_name(file.name.replace("part-0", "train-0").replace("part-1", "val-0")))
    plan = plan_dataset(WriteParams(source, test_fraction=0))
    assert plan.split_examples == {"train": 12, "validation": 12}
    params = WriteParams(source, test_fraction=0, max_bad_fraction=0.1, num_workers=1)
    write_records(params, tmp_path / "records")
    (aside,) = Manifest.load(tmp_path / "records").quarantined
    assert "damaged" in aside.reason


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_a_pattern_and_a_place_in_a_bucket_are_read_too(write, pictures, tmp_path, bucket):
    source = write(tmp_path / "data", pictures)
    kind, _, folder = source.partition(":")
    first = sorted((tmp_path / "data").iterdir())[0]
    assert len(list_examples(WriteParams(f"{kind}:{first}")).keys) == 12
    assert len(list_examples(WriteParams(f"{kind}:{folder}/part-*{first.suffix}")).keys) == 24
    storage.upload(tmp_path / "data", "gs://bucket/data")
    there = list_examples(WriteParams(f"{kind}:gs://bucket/data"))
    assert list(there.keys) == list(list_examples(WriteParams(source)).keys)
    assert there.read(20) == pictures[20][0]
    with pytest.raises(InputError, match="Found no files for"):
        list_examples(WriteParams(f"{kind}:{folder}/none-*"))


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kept", [0.6, 0.0])
def test_a_cut_off_file_is_refused_in_words(write, kept, pictures, tmp_path):
    source = write(tmp_path / "data", pictures)
    last = sorted((tmp_path / "data").iterdir())[-1]
    content = last.read_bytes()
    last.write_bytes(content[: int(len(content) * kept)])
    if not kept and write is not write_table:
        last.write_bytes(b"something else" * 100)
    with pytest.raises(InputError, match=f"Cannot read {last}.*: expected|Cannot read {last}.*Expected"):
        list_examples(WriteParams(source))


def test_labels_of_an_archive_may_stand_in_json_or_be_folders(pictures, tmp_path):
    members = []
    for i, (content, name) in enumerate(pictures):
        members += [(f"{i}.png", content), (f"{i}.json", json.dumps({"id": i, "class": name}).encode())]
    write_tar(tmp_path / "a.tar", members)
    write_tar(tmp_path / "b.tar", [(f"./{name}/{i}.png", content) for i, (content, name) in enumerate(pictures)])
    for file in "ab":
        listing = list_examples(WriteParams(f"webdataset:{tmp_path}/{file}.tar"))
        assert listing.class_names == ("cat", "dog")
        assert listing.labels.tolist() == [0, 1] * 12
    assert listing.keys[:2] == ("cat/0.png", "dog/1.png")


def test_an_archive_without_labels_or_with_a_name_twice_is_refused(pictures, tmp_path):
    write_tar(tmp_path / "bare.tar", [("1.png", pictures[0][0])])
    write_tar(tmp_path / "twice.tar", 2 * [("1.png", pictures[0][0]), ("1.cls", b"cat")])
    write_tar(tmp_path / "odd.tar", [("1.png", pictures[0][0]), ("1.json", b"[")])
    for name, message in (
        ("bare", "without a label"),
        ("twice", "Repeated names"),
        ("odd", "image's label"),
    ):
        with pytest.raises(InputError, match=message):
            list_examples(WriteParams(f"webdataset:{tmp_path}/{name}.tar"))


def test_a_table_of_texts_has_ids_splits_and_several_labels(tmp_path):
    table = pa.table(
        {
            "review": [f"text {i}" for i in range(12)],
            "tags": [["a", "b"] if i % 2 else ["a"] for i in range(12)],
            "split": ["train", "test"] * 6,
            "id": list(range(12)),
        }
    )
    pq.write_table(table, tmp_path / "texts.parquet")
    params = WriteParams(f"parquet:{tmp_path}/texts.parquet", "multi_label", columns={"label": "tags"})
    listing = list_examples(params)
    assert (listing.class_names, listing.labels.sum(0).tolist()) == (("a", "b"), [12, 6])
    assert listing.splits.tolist() == ["train", "test"] * 6
    assert list(listing.identities) == list(map(str, range(12)))
    assert "'review' is used as the text" in listing.notes[0]
    assert listing.read(3) == b"text 3"


@pytest.mark.parametrize("kind", ["parquet", "tfrecords"])
def test_a_regression_takes_its_numbers_from_fields(kind, pictures, tmp_path):
    values = np.arange(24) / 4
    if kind == "parquet":
        pq.write_table(pa.table({"img": [one for one, _ in pictures], "age": values}), tmp_path / "data.parquet")
    else:
        fields = [{"img": content, "age": [float(value)]} for (content, _), value in zip(pictures, values, strict=True)]
        frames = b"".join(frame_record(encode_example(one)) for one in fields)
        (tmp_path / "data.tfrecords").write_bytes(frames)
    listing = list_examples(WriteParams(f"{kind}:{tmp_path}", "regression", target_columns=("age",)))
    assert listing.labels[:, 0].tolist() == values.tolist()


def _weighted(kind, folder, pictures, weights):
    """Pictures with a weight each, as a source of a kind has them."""
    columns = {"weight": "trust"}
    rows = [
        {"image": content, "label": name, "trust": value}
        for (content, name), value in zip(pictures, weights, strict=True)
    ]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "data.parquet")
    elif kind == "tfrecords":
        fields = [{"image": row["image"], "label": row["label"].encode(), "trust": [row["trust"]]} for row in rows]
        (folder / "data.tfrecords").write_bytes(b"".join(frame_record(encode_example(one)) for one in fields))
    elif kind == "webdataset":
        facts = [json.dumps({"label": row["label"], "trust": row["trust"]}).encode() for row in rows]
        members = [((f"{i}.png", rows[i]["image"]), (f"{i}.json", facts[i])) for i in range(len(rows))]
        write_tar(folder / "data.tar", [member for pair in members for member in pair])
    else:
        for i, row in enumerate(rows):
            (folder / f"{i}.png").write_bytes(row["image"])
        lines = [f"{i}.png,{row['label']},{row['trust']}" for i, row in enumerate(rows)]
        (folder / "data.csv").write_text("\n".join(["path,label,trust", *lines]))
        return WriteParams(f"csv:{folder}/data.csv", columns=columns)
    return WriteParams(f"{kind}:{folder}", columns=columns)


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecords", "webdataset"])
def test_weights_of_examples_are_read_from_a_column_and_kept_in_the_records(kind, pictures, tmp_path):
    (folder := tmp_path / "data").mkdir()
    params = replace(_weighted(kind, folder, pictures, [i / 4 for i in range(24)]), join_copies=False)
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    assert manifest.features["weight"] == "float32"
    read = [load_split(tmp_path / "records", manifest, split, with_keys=True) for split in manifest.splits]
    keys, values = [key for part in read for key in part.keys], np.concatenate([part.weights for part in read])
    found = {int(re.findall(r"\d+", key)[-1]): weight for key, weight in zip(keys, values, strict=True)}
    assert found == {i: i / 4 for i in range(24)}
    # Without weights records have the same bytes as ever.
    write_records(replace(params, columns={}), tmp_path / "plain")
    plain = Manifest.load(tmp_path / "plain")
    assert "weight" not in plain.features
    assert load_split(tmp_path / "plain", plain, "train").weights.tolist() == [1.0] * plain.splits["train"].num_examples
    (shard, *_) = plain.splits["train"].shards
    with open(tmp_path / "plain" / shard.name, "rb") as file:
        assert set(read_fields(next(read_frames(file))[0])) == {"image", "label", "key"}


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecords", "webdataset"])
@pytest.mark.parametrize("weight", [-0.5, float("inf")])
def test_a_weight_that_is_negative_or_not_finite_is_refused(kind, weight, pictures, tmp_path):
    params = _weighted(kind, tmp_path, pictures, [*[1.0] * 23, weight])
    said = rf"numbers of at least 0. Received: {weight} in 'trust' at .*23.*, which is the first of 1"
    with pytest.raises(InputError, match=said.replace("23", "25") if kind == "csv" else said):
        list_examples(params)


def test_weights_that_are_missing_empty_all_0_or_of_another_kind_of_source_are_refused(pictures, tmp_path):
    params = _weighted("csv", tmp_path, pictures, [0.0] * 24)
    with pytest.raises(InputError, match=r"All weights of training examples in .* are 0.*the column 'trust'"):
        plan_dataset(params)
    with pytest.raises(
        InputError, match=r"Missing columns .*'confidence'. The setting data.columns names them. Received: .*'trust'"
    ):
        list_examples(replace(params, columns={"weight": "confidence"}))
    params = _weighted("csv", tmp_path, pictures, [*[1.0] * 23, ""])
    with pytest.raises(InputError, match=r"1 of 24 inputs cannot be used: 'line/00000025' \('weight' is empty"):
        plan_dataset(params)
    params = _weighted("csv", tmp_path, pictures, [*[1.0] * 23, "much"])
    with pytest.raises(InputError, match=r"Cannot use line 25 of .*: expected a number in 'trust', received 'much'"):
        plan_dataset(params)
    with pytest.raises(InputError, match=r"columns=.* requires a csv:, .* source"):
        list_examples(WriteParams(f"images:{tmp_path}", columns={"weight": "trust"}))


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecords", "webdataset"])
def test_an_example_without_a_weight_is_set_aside(kind, pictures, tmp_path):
    params = _weighted(kind, tmp_path, pictures, [*[1.0] * 23, float("nan")])
    listing = list_examples(params)
    assert (len(listing.keys), len(listing.weights), len(listing.labels), len(listing.bad)) == (23, 23, 23, 1)
    assert "'trust' is missing" in listing.bad[0].reason or "'weight' is 'nan'" in listing.bad[0].reason


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        ({"image": [1, 2], "label": ["a", "b"]}, {}, "expected the bytes of image files, received int64"),
        ({"picture_file": [b"1"], "label": ["a"]}, {}, "Missing fields in .*'image \\(or text\\)'.*data.columns"),
        ({"image": [b"1", b"2"]}, {}, "Missing fields in .*'label'"),
        (
            {"image": [b"1"], "label": [["a", "b"]]},
            {},
            r"part.parquet\[0\]: expected one value of 'label', .*set data.task to multi",
        ),
        (
            {"image": [b"1"], "label": ["a"]},
            {"columns": {"image": "png"}},
            "'png'. The setting data.columns names them",
        ),
        ({"image": [b"1"], "label": ["x"]}, {"task": "regression"}, "expected a number in 'label', received 'x'"),
        ({"image": [b"1"], "label": ["x"], "split": ["dev"]}, {}, "Unknown splits in .*'dev'"),
        ({"image": [], "label": []}, {}, "expected the bytes of image files|Found no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_way_out(tmp_path, columns, fields, message):
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    with pytest.raises(InputError, match=message):
        list_examples(WriteParams(f"parquet:{tmp_path}", **fields))


def test_a_compressed_file_of_records_is_refused(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"\x1f\x8b" + 100 * b"x")
    with pytest.raises(InputError, match=r"no valid record at byte 0.*not compressed"):
        list_examples(WriteParams(f"tfrecords:{tmp_path}"))


def test_digests_change_with_the_files(pictures, tmp_path):
    params = WriteParams(write_archives(tmp_path / "data", pictures))
    before = list_examples(params)
    write_archives(tmp_path / "data", [pictures[1], *pictures[1:]])
    after = list_examples(params)
    assert before.stat_digest() != after.stat_digest()
    assert before.content_digest() != after.content_digest()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (b"[" * 100_000, "nested more than 100 levels deep"),
        (b'{"label": "\\ud800"}', "surrogates not allowed"),
        (b'{"label": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b"3", "expected the image's label"),
    ],
)
def test_facts_of_an_image_that_are_odd_are_refused_by_their_file(facts, message, pictures, tmp_path):
    write_tar(tmp_path / "data.tar", [("0.png", pictures[0][0]), ("0.json", facts)])
    with pytest.raises(InputError, match=rf"Cannot read 0.json in .*data.tar: .*{message}"):
        list_examples(WriteParams(f"webdataset:{tmp_path}"))


@pytest.mark.parametrize("name", ["a/\udcff.png", "\udcff/a.png"])
def test_an_archive_with_a_name_that_is_not_utf8_is_refused(name, tmp_path):
    write_tar(tmp_path / "data.tar", [(name, b"")])
    with pytest.raises(InputError, match=r"A file name in .*data.tar is not UTF-8: .*Rename the file"):
        list_examples(WriteParams(f"webdataset:{tmp_path}"))


@pytest.mark.parametrize(
    "headers",
    [
        {"size": "-5"},
        {"size": "9" * 30},
        {"GNU.sparse.size": "abc"},
        {"GNU.sparse.size": "9" * 30},
        {"GNU.sparse.map": "0,5", "GNU.sparse.size": "5"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "5"},
    ],
)
def test_an_archive_with_odd_sizes_or_sparse_files_is_refused(headers, pictures, tmp_path):
    with tarfile.open(tmp_path / "data.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("cat/0.png")
        info.size, info.pax_headers = len(pictures[0][0]), headers
        archive.addfile(info, io.BytesIO(pictures[0][0]))
    with pytest.raises(InputError, match=r"Cannot read .*data.tar: .+\. Expected a complete, uncompressed tar archive"):
        list_examples(WriteParams(f"webdataset:{tmp_path}"))


def test_a_table_whose_texts_are_not_utf8_is_refused(tmp_path):
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"a"]).buffers())
    pq.write_table(pa.table({"text": texts, "label": [0, 1]}), tmp_path / "data.parquet")
    with pytest.raises(
        InputError, match=r"Cannot read .*data.parquet: .*can't decode byte 0xff .*byte\. Write the file again"
    ):
        list_examples(WriteParams(f"parquet:{tmp_path}"))


# What a file unpacks to:


def _dictionary_of_one(path, value, count):
    """A table that holds a value once for all of its rows."""
    table = pa.table({"image": [value] * count, "label": [i % 2 for i in range(count)]})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, write_statistics=False)


@pytest.mark.parametrize("kind", ["values", "rows", "lists", "texts"])
def test_a_table_that_unpacks_to_very_much_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(unpacking, "SMALL_BYTES", 1 << 20)
    path, label = tmp_path / "data.parquet", pa.array([0, 1] * 100)
    if kind == "values":
        _dictionary_of_one(path, bytes(100_000), 200)  # 20 MB; below a value's limit, above that of all.
    elif kind == "rows":
        pq.write_table(pa.table({"image": pa.nulls(200_000, pa.binary()), "label": [0] * 200_000}), path)
    elif kind == "lists":
        pq.write_table(pa.table({"image": [b"a"] * 200, "label": [[1] * 2000] * 200}), path)
    else:
        pq.write_table(pa.table({"text": ["a" * 100_000] * 200, "label": label}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match=rf"Cannot read {path}: expected at most .* received at least \d+ MiB"):
        list_examples(WriteParams(f"parquet:{path}"))


def test_a_table_of_many_copies_is_no_more_than_its_rule_allows(tmp_path, monkeypatch, encode):
    monkeypatch.setattr(unpacking, "SMALL_BYTES", 1 << 20)
    path, picture = tmp_path / "data.parquet", encode(seed=1, size=(64, 64))
    _dictionary_of_one(path, picture, 50)
    listing = list_examples(WriteParams(f"parquet:{path}"))
    assert [listing.read(i) for i in range(50)] == [picture] * 50


def test_the_disk_is_looked_at_again_while_a_column_is_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "SMALL_BYTES", 1 << 20)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 100_000), np.uint8)
    table = pa.table({"image": [row.tobytes() for row in pixels], "label": [i % 2 for i in range(30)]})
    pq.write_table(table, tmp_path / "data.parquet")
    listing, usage = list_examples(WriteParams(f"parquet:{tmp_path}")), iter([1 << 40, 1 << 40, 1000])
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=next(usage)))
    with pytest.raises(InputError, match=r"expected at least 1 MiB of free disk space, received 0 MiB"):
        listing.read(0)


def test_a_record_of_very_many_bytes_is_refused_though_the_file_is_as_long(tmp_path):
    frame = frame_record(b"")[:12]
    length = struct.pack("<Q", 100 << 30)
    checksum = google_crc32c.value(length)
    masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    with open(tmp_path / "data.tfrecord", "wb") as file:
        file.write(length + struct.pack("<I", masked))
        file.truncate((100 << 30) + len(frame) + 4)  # Sparse: it takes a few kilobytes of the disk.
    with pytest.raises(InputError, match=r"at record 0: a record of 102,400 MiB at byte 0, expected at most 512 MiB\."):
        list_examples(WriteParams(f"tfrecords:{tmp_path}"))

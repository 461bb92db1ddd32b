import csv
import dataclasses
import datetime
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.components.create_tfrecords.engines.cases import same_files
from tests.support.cli import assert_user_error, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import KEY_FEATURE, Manifest, file_crc32c
from tpu_components.core.examples.images import encode_png
from tpu_components.core.examples.interface import ImageInput, UnreadableError
from tpu_components.core.examples.records import encode_example, frame_record, load_split
from tpu_components.core.examples.text import Tokenizer, load_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.predict_batch import PredictParams, predict_batch, predicting
from tpu_components.predict_batch.component import list_inputs
from tpu_components.predict_batch.inputs import read_input
from tpu_components.predict_batch.predicting import predict_to_file
from tpu_components.predict_batch.prediction_files import plan_answers
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import predict_inputs


def read_lines(folder, pattern="predictions-*.jsonl"):
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


@pytest.fixture
def pictures(image_folder):
    """23 pictures in folders that are no classes, one of them damaged, and a file that is no picture."""
    root = image_folder(11, ("a", "b"), mode="L")
    (root / "top.png").write_bytes((root / "a" / "0000.png").read_bytes()[:60])
    (root / "notes.txt").write_text("no picture")
    return root


def test_every_picture_is_answered_once_as_predict_answers_it_and_a_damaged_one_set_aside(
    export_dir, pictures, tmp_path
):
    params = PredictParams(f"images:{pictures}", part_examples=5, num_workers=1)
    result = predict_batch(params, export_dir, tmp_path / "out")
    assert (result.num_examples, result.num_predicted, result.num_set_aside, result.num_files) == (23, 22, 1, 5)
    lines = read_lines(tmp_path / "out")
    assert [line["key"] for line in lines] == [f"{name}/{i:04d}.png" for name in "ab" for i in range(11)]
    places = [str(pictures / line["key"]) for line in lines]
    for line, expected in zip(lines, predict_inputs(export_dir, places, top=10), strict=True):
        assert line["class"] == expected.classes[0][0]
        assert line["probabilities"] == pytest.approx(dict(expected.classes), abs=1e-6)
        assert line["confidence"] == line["probabilities"][line["class"]]
    (aside,) = read_lines(tmp_path / "out", "set_aside.jsonl")
    assert aside["key"] == "top.png"
    assert "damaged" in aside["reason"]
    summary = json.loads((tmp_path / "out" / "predictions.json").read_bytes())
    assert sum(summary["predicted"].values()) == 22
    for file in summary["files"]:
        path = tmp_path / "out" / file["name"]
        assert (path.stat().st_size, file_crc32c(path)) == (file["num_bytes"], file["crc32c"])
    assert not list(tmp_path.glob(".out*"))


def test_the_listing_component_reads_what_predict_batch_reads_and_tells_when_it_changes(
    exported_digits, digits_records, pictures, tmp_path
):
    """Without labels, and with records."""

    def version(source, **inputs):
        return list_inputs.python_func(exported_digits, source=source, **inputs)

    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copyfile(pictures / "a" / "0000.png", flat / "a.png")
    table = tmp_path / "list.csv"
    table.write_text("file\nflat/a.png\n")
    sources = [f"images:{pictures}", f"images:{flat}", f"records:{digits_records}"]
    versions = {version(source) for source in sources} | {version(f"csv:{table}", columns={"path": "file"})}
    assert len(versions) == 4
    assert {version(source) for source in sources} < versions
    shutil.copyfile(pictures / "a" / "0001.png", flat / "a.png")
    changed = {version(f"images:{flat}"), version(f"csv:{table}", columns={"path": "file"})}
    assert len(changed | versions) == 6


def test_pictures_that_lose_their_content_are_told_by_both_ways_to_predict(export_dir, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for i in range(3):
        values = np.random.default_rng(i).integers(0, 1024, (8, 8), np.uint16)
        Image.fromarray(values if i else values.astype(np.uint8)).save(tmp_path / "in" / f"{i}.png")
    predict_batch(PredictParams(f"images:{tmp_path}/in", num_workers=1), export_dir, tmp_path / "out")
    told = "2 of 3 16-bit images keep at most 64 of 256 grey levels"
    assert told in " ".join(capsys.readouterr().err.split())
    assert len(list(predict_inputs(export_dir, [f"{tmp_path}/in"]))) == 3
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_run_goes_on_where_an_earlier_one_was_ended_and_leaves_the_same_bytes(
    export_dir, digits_records, tmp_path, capsys
):
    shutil.copytree(digits_records, tmp_path / "records")
    params = PredictParams(f"records:{tmp_path}/records", part_examples=300, num_workers=1)
    whole = predict_batch(params, export_dir, tmp_path / "whole")
    shard = tmp_path / "records" / "validation-00000-of-00001.tfrecord"
    content = shard.read_bytes()
    shard.write_bytes(bytes(len(content)))
    with pytest.raises(InputError, match=rf"Cannot read {shard}: no valid record at byte 0. Write the records again"):
        predict_batch(params, export_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shard.write_bytes(content)
    assert predict_batch(params, export_dir, tmp_path / "out") == whole
    assert "continuing after 1,200 of 1,797 examples" in capsys.readouterr().err
    assert same_files(tmp_path / "out", tmp_path / "whole")


def test_what_was_begun_on_other_data_is_begun_anew(export_dir, tmp_path):
    picture = tmp_path / "pictures" / "a.png"
    storage.write_bytes(picture, b"no picture")
    params = PredictParams(f"images:{picture.parent}", num_workers=1)
    with pytest.raises(InputError, match="None of the 1 examples"):
        predict_batch(params, export_dir, tmp_path / "out")
    picture.write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    assert predict_batch(params, export_dir, tmp_path / "out").num_predicted == 1


def test_a_model_that_changes_meanwhile_answers_nothing(export_dir, pictures, tmp_path):
    shutil.copytree(export_dir, tmp_path / "export")
    plan = plan_answers(PredictParams(f"images:{pictures}", num_workers=1), f"{tmp_path}/export")
    (tmp_path / "export" / "model_int8.tflite").unlink()
    with pytest.raises(
        InputError, match=rf"The model {tmp_path}/export has changed since its predictions were planned"
    ):
        predicting.answer_files(plan, ResumeState(f"{tmp_path}/begun"))
    assert not (tmp_path / "begun").exists()


def test_the_model_and_the_pictures_may_be_in_a_bucket(export_dir, pictures, tmp_path, bucket):
    for name, folder in (("export", export_dir), ("pictures", pictures)):
        storage.upload(folder, f"gs://bucket/{name}")
    params = PredictParams(f"images:{pictures}", num_workers=1)
    there = dataclasses.replace(params, source="images:gs://bucket/pictures")
    assert predict_batch(there, "gs://bucket/export", tmp_path / "there") == predict_batch(
        params, export_dir, tmp_path / "here"
    )
    assert read_lines(tmp_path / "there") == read_lines(tmp_path / "here")


def test_two_processes_write_the_same_as_one(export_dir, pictures, tmp_path):
    for count in (1, 2):
        params = PredictParams(f"images:{pictures}", part_examples=6, num_workers=count)
        predict_batch(params, export_dir, tmp_path / str(count))
    assert same_files(tmp_path / "1", tmp_path / "2")


def test_records_are_answered_with_the_names_and_pixels_that_they_hold(export_dir, digits_records, tmp_path):
    result = predict_batch(PredictParams(f"records:{digits_records}", num_workers=1), export_dir, tmp_path / "out")
    assert result.num_predicted == 1797
    answers = {line["key"]: line["probabilities"] for line in read_lines(tmp_path / "out")}
    examples = load_split(digits_records, Manifest.load(digits_records), "test", with_keys=True)
    expected = load_model(export_dir).predict(examples.inputs)
    received = np.array([list(answers[key].values()) for key in examples.keys])
    np.testing.assert_allclose(received, expected, atol=1e-6)


def test_records_in_a_bucket_are_answered_in_place(export_dir, pictures, tmp_path, bucket):
    (pictures / "top.png").unlink()
    write_records(WriteParams(f"images:{pictures}", num_workers=1), tmp_path / "records")
    storage.upload(tmp_path / "records", "gs://bucket/records")
    for place, name in ((tmp_path / "records", "here"), ("gs://bucket/records", "there")):
        predict_batch(PredictParams(f"records:{place}", num_workers=1), export_dir, tmp_path / name)
    assert len(read_lines(tmp_path / "here")) == 22
    assert read_lines(tmp_path / "there") == read_lines(tmp_path / "here")
    bucket.blob("records/dataset.json").upload_from_string("{}")
    with pytest.raises(InputError, match=r"gs://bucket/records/dataset\.json: it is not a data set manifest"):
        predict_batch(PredictParams("records:gs://bucket/records"), export_dir, tmp_path / "out")


def test_records_are_read_by_whoever_answers_them(export_dir, digits_records, tmp_path):
    shutil.copytree(digits_records, tmp_path / "records")
    shard = tmp_path / "records" / "test-00000-of-00001.tfrecord"
    shard.write_bytes(bytes(shard.stat().st_size))
    params = PredictParams(f"records:{tmp_path}/records", part_examples=100, num_workers=1)
    plan = plan_answers(params, str(export_dir))
    assert (len(plan.inputs.keys), len(plan.names)) == (1797, 18), "as the manifest says, and no shard was looked into"
    with pytest.raises(InputError, match=rf"Cannot read {shard}: no valid record at byte 0. Write the records again"):
        predict_batch(params, export_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_record_is_set_aside_with_its_place(export_dir, digits_records, tmp_path):
    shutil.copytree(digits_records, tmp_path / "records")
    shard = tmp_path / "records" / "test-00000-of-00001.tfrecord"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    result = predict_batch(PredictParams(f"records:{tmp_path}/records", num_workers=1), export_dir, tmp_path / "out")
    assert (result.num_predicted, result.num_set_aside) == (1796, 1)
    (aside,) = read_lines(tmp_path / "out", "set_aside.jsonl")
    assert aside == {
        "key": "test-00000-of-00001.tfrecord[0]",
        "reason": "a damaged record, whose checksum does not match",
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "a record that is not a tf.train.Example"),
        ({}, "KeyError"),
        ({"image": bytes(64)}, "KeyError"),
        ({"image": bytes(10), KEY_FEATURE: b"a"}, "cannot reshape"),
        ({"image": 3, KEY_FEATURE: b"a"}, "TypeError"),
        ({"image": bytes(64), KEY_FEATURE: 3}, "AttributeError"),
        ({"image": bytes(64), KEY_FEATURE: b"\xff"}, "invalid start byte"),
    ],
)
def test_a_whole_record_that_is_not_as_create_tfrecords_writes_it_is_set_aside(export_dir, fields, reason):
    stored = ImageInput((8, 8, 1), "raw")
    frame = frame_record(b"\xff\xff\xff" if fields is None else encode_example(fields))
    with pytest.raises((InputError, UnreadableError), match=reason):
        read_input(load_model(export_dir), stored, "shard[0]", frame)


def test_texts_and_tables_without_labels_are_answered(exported_reviews, tmp_path):
    (tmp_path / "reviews.csv").write_text("id,review\n7,great lovely film\n8,awful dull film\n9, \n")
    params = PredictParams(f"csv:{tmp_path}/reviews.csv", num_workers=1)
    result = predict_batch(params, exported_reviews, tmp_path / "out")
    assert (result.num_predicted, result.num_set_aside) == (2, 1)
    assert [line["class"] for line in read_lines(tmp_path / "out")] == ["pos", "neg"]
    assert read_lines(tmp_path / "out", "set_aside.jsonl")[0]["reason"] == "no word in it"


def test_texts_are_asked_as_they_are_learned(exported_reviews, tmp_path):
    """The same files have the same ids, and the same files are set aside."""
    words, mark = b"great lovely film", "\ufeff".encode()
    odd = (
        words,
        mark + words,
        words + mark + words,
        mark,
        b"",
        b" \n",
        b"?!",
        b"<br />",
        b"\xff",
        b"\x00",
        b"\x00 " + words,
    )
    source = tmp_path / "texts"
    for name, content in [*(("pos", content) for content in odd), *[("neg", b"awful dull film")] * 9]:
        (source / name).mkdir(parents=True, exist_ok=True)
        (source / name / f"{len(list(source.rglob('*.txt'))):02d}.txt").write_bytes(content)
    records = tmp_path / "records"
    write_records(WriteParams(f"text:{source}", num_workers=1, max_bad_fraction=0.9, join_copies=False), records)
    manifest = Manifest.load(records)
    examples = [load_split(records, manifest, split, with_keys=True) for split in manifest.splits]
    learned = {key: ids for split in examples for key, ids in zip(split.keys, split.inputs, strict=True)}
    tokenizer = Tokenizer(manifest.input, load_vocabulary(records, manifest.input))
    model = dataclasses.replace(load_model(exported_reviews), input=manifest.input, reader=tokenizer)
    asked, aside = {}, set()
    for file in source.rglob("*.txt"):
        key = file.relative_to(source).as_posix()
        try:
            asked |= {key: read_input(model, None, key, file.read_bytes()).value}
        except UnreadableError:
            aside.add(key)
    assert len(learned) == 13
    assert asked.keys() == learned.keys()
    for key, ids in learned.items():
        assert ids.tolist() == asked[key].tolist(), key
    assert {item.key for item in manifest.quarantined} == aside


def test_arrays_alone_are_answered(export_dir, digits_records, tmp_path):
    images = load_split(digits_records, Manifest.load(digits_records), "test").inputs[:9]
    np.savez(tmp_path / "images.npz", x=images)
    predict_batch(PredictParams(f"npz:{tmp_path}/images.npz", num_workers=1), export_dir, tmp_path / "out")
    expected = load_model(export_dir).predict(images)
    received = np.array([list(line["probabilities"].values()) for line in read_lines(tmp_path / "out")])
    np.testing.assert_allclose(received, expected, atol=1e-6)


def test_a_table_holds_the_same_and_says_the_class_names(export_dir, pictures, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    source = f"images:{pictures}"
    predict_batch(PredictParams(source, num_workers=1), export_dir, tmp_path / "lines")
    params = PredictParams(source, form="parquet", part_examples=6, num_workers=1)
    predict_to_file(params, export_dir, tmp_path / "answers.parquet")
    table = pq.read_table(tmp_path / "answers.parquet")
    names = json.loads(table.schema.metadata[b"class_names"])
    lines = read_lines(tmp_path / "lines")
    rows = table.to_pylist()
    assert [(row["key"], row["class"]) for row in rows] == [(line["key"], line["class"]) for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert dict(zip(names, row["probabilities"], strict=True)) == pytest.approx(line["probabilities"], abs=1e-6)


def _table_of(folder, kind, count):
    """Write a source of pictures, or in `texts` of texts; returns it, and its rows as a customer has them, by id."""
    pictures = [encode_png(np.full((8, 8, 1), i % 256, np.uint8)) for i in range(256)]
    rows = {f"K-{count - i:05d}": {"note": f"line {i}\nand another" if i % 3 else f"note {i}"} for i in range(count)}
    if kind == "folder":
        for place, key in enumerate(rows):
            path = folder / f"{key[-1]}" / f"{key}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(pictures[place % 256])
        return f"images:{folder}", rows
    if kind == "webdataset":
        with tarfile.open(folder / "all.tar", "w") as archive:
            for place, (key, row) in enumerate(rows.items()):
                facts = json.dumps({"kundennummer": key, **row}).encode()
                for suffix, content in (("png", pictures[place % 256]), ("json", facts)):
                    member = tarfile.TarInfo(f"{place:06d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return f"webdataset:{folder}/all.tar", rows
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        images = [pictures[place % 256] for place in range(count)]
        columns = {"image": images, "kundennummer": list(rows), "note": [row["note"] for row in rows.values()]}
        pq.write_table(pa.table(columns), folder / "all.parquet")
        return f"parquet:{folder}/all.parquet", rows
    with open(folder / "all.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kundennummer", "note", "text" if kind == "texts" else "bild"])
        for place, (key, row) in enumerate(rows.items()):
            path = folder / f"{place}.png"
            if kind == "csv":
                path.write_bytes(pictures[place % 256])
            writer.writerow([key, row["note"], f"great film\n{key}" if kind == "texts" else path.name])
    return f"csv:{folder}/all.csv", rows


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["csv", "texts", "parquet", "webdataset", "folder"])
def test_answers_are_joined_to_their_table_by_id(export_dir, request, tmp_path, kind, count, form):
    (folder := tmp_path / "source").mkdir()
    source, rows = _table_of(folder, kind, count)
    model = request.getfixturevalue("exported_reviews") if kind == "texts" else export_dir
    columns = {"csv": {"path": "bild"}}.get(kind, {}) | ({} if kind == "folder" else {"id": "kundennummer"})
    keep = () if kind == "folder" else ("note",)
    params = PredictParams(source, columns, keep, form, part_examples=-(-count // 3), num_workers=1)
    result, aside = predict_to_file(params, model, tmp_path / f"answers.{form}")
    assert (result.num_predicted, aside) == (count, None)
    if form == "parquet":
        answers = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "answers.parquet").to_pylist()
    else:
        answers = read_lines(tmp_path, "answers.jsonl")
    ids = [Path(answer["key"]).stem if kind == "folder" else answer["kundennummer"] for answer in answers]
    assert len(ids) == len(set(ids)) == count
    assert set(ids) == set(rows)
    if kind != "folder":
        assert all(rows[answer["kundennummer"]]["note"] == answer["note"] for answer in answers)
    if kind == "texts":  # Each row has a cell of two lines or two of them, and its key is the first.
        lines = (folder / "all.csv").read_text().split("\n")
        assert all(lines[int(answer["key"][-8:]) - 1].startswith(answer["kundennummer"]) for answer in answers)


def test_columns_are_those_of_the_training_data_else_those_that_are_named(export_dir, tmp_path):
    (tmp_path / "all.csv").write_text("bild,kunde,land\na.png,7,de\n")
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    shutil.copytree(export_dir, tmp_path / "run" / "export")
    file, source = tmp_path / "answers.jsonl", f"csv:{tmp_path}/all.csv"

    def predict(*flags):
        return tpu_pipelines_here("predict", str(tmp_path / "run"), source, *flags)

    assert_user_error(predict("--output", str(file)), 'columns={"path": "…"}')
    assert_user_error(predict("--columns", '{"path": "img"}', "--output", str(file)), "Missing columns")
    assert_user_error(predict("--keep", "land"), "--columns and --keep require --output")
    assert_user_error(predict(), f"requires --output. Use {source} --output answers.jsonl")
    (parquet := tmp_path / "all.parquet").touch()
    without_output = tpu_pipelines_here("predict", str(tmp_path / "run"), str(parquet))
    assert_user_error(without_output, f"requires --output. Use parquet:{parquet} --output answers.jsonl")
    predict("--columns", '{"path": "bild", "id": "kunde"}', "--keep", "land", "--output", str(file))
    (line,) = read_lines(tmp_path, "answers.jsonl")
    assert (line["kunde"], line["land"]) == (7, "de"), "as in the table"
    assert "id" not in line
    assert_user_error(predict("--columns", '{"path": "bild", "id": "kunden"}', "--output", str(file)), "'kunden'")
    path = tmp_path / "run" / "export" / "export.json"
    columns = {"path": "bild", "id": "kunde", "label": "art", "split": "teil"}  # The table has neither art nor teil.
    path.write_text(json.dumps({**json.loads(path.read_text()), "columns": columns}))
    file.unlink()
    predict("--output", str(file))
    (line,) = read_lines(tmp_path, "answers.jsonl")
    assert (line["key"], line["kunde"]) == ("a.png", 7)


def test_numbers_stay_numbers_and_what_is_set_aside_has_its_id(export_dir, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good = encode_png(np.zeros((8, 8, 1), np.uint8))
    days = [datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 3)]
    table = pa.table({"image": [good, b"bad", good], "id": [7, 8, 9], "paid": [1.5, None, float("nan")], "day": days})
    pq.write_table(table, tmp_path / "all.parquet")
    for form in ("jsonl", "parquet"):
        params = PredictParams(f"parquet:{tmp_path}/all.parquet", keep=("paid", "day"), form=form, num_workers=1)
        predict_batch(params, export_dir, tmp_path / form)
    kept = [{name: line[name] for name in ("id", "paid", "day")} for line in read_lines(tmp_path / "jsonl")]
    assert kept == [{"id": 7, "paid": 1.5, "day": "2026-01-01"}, {"id": 9, "paid": None, "day": "2026-01-03"}]
    (aside,) = read_lines(tmp_path / "jsonl", "set_aside.jsonl")
    assert (aside["id"], aside["paid"], aside["reason"]) == (8, None, "not an image")
    (file,) = (tmp_path / "parquet").glob("*.parquet")
    assert pq.read_table(file, columns=["id", "paid", "day"]).to_pylist() == kept
    assert pq.read_schema(file).field("id").type == pa.int64()


@pytest.mark.parametrize(
    ("source", "keep", "message"),
    [
        ("images:{}", ("note",), "Cannot keep 'note' of 'images:"),
        ("csv:{}/all.csv", ("nte",), "Missing columns in .*: 'nte'"),
        ("csv:{}/all.csv", ("class",), "keep must not contain 'class'"),
    ],
)
def test_what_cannot_be_kept_is_refused(export_dir, tmp_path, source, keep, message):
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    (tmp_path / "all.csv").write_text("path,note\na.png,x\n")
    with pytest.raises(InputError, match=message):
        predict_batch(PredictParams(source.format(tmp_path), keep=keep), export_dir, tmp_path / "out")


@pytest.mark.parametrize("kind", ["webdataset", "parquet", "tfrecords"])
def test_examples_within_large_files_are_answered_without_labels(export_dir, pictures, tmp_path, kind):
    files = sorted(pictures.glob("[ab]/*.png"))
    if kind == "webdataset":
        with tarfile.open(tmp_path / "pictures.tar", "w") as archive:
            for file in files:
                archive.add(file, file.name)
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"image": [file.read_bytes() for file in files]}), tmp_path / "pictures.parquet")
    else:
        frames = [frame_record(encode_example({"image/encoded": file.read_bytes()})) for file in files]
        (tmp_path / "pictures.tfrecord").write_bytes(b"".join(frames))
    (file,) = tmp_path.glob("pictures.*")
    params = PredictParams(f"{kind}:{file}", part_examples=8, num_workers=1)
    if kind == "webdataset":  # Of two files of one name neither would be told from the other.
        with pytest.raises(InputError, match="Repeated names"):
            predict_batch(params, export_dir, tmp_path / "out")
        with tarfile.open(file, "w") as archive:
            for picture in files:
                archive.add(picture, f"{picture.parent.name}/{picture.name}")
    assert predict_batch(params, export_dir, tmp_path / "out").num_predicted == 22
    predict_batch(PredictParams(f"images:{pictures}", num_workers=1), export_dir, tmp_path / "expected")
    received, expected = read_lines(tmp_path / "out"), read_lines(tmp_path / "expected")
    assert [line["probabilities"] for line in received] == [line["probabilities"] for line in expected]


def test_one_file_holds_all_lines_and_what_was_set_aside_stands_beside_it(export_dir, pictures, tmp_path):
    params = PredictParams(f"images:{pictures}", part_examples=6, num_workers=1)
    _, aside = predict_to_file(params, export_dir, tmp_path / "answers.jsonl")
    assert aside == tmp_path / "answers.set_aside.jsonl"
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 22
    (pictures / "top.png").unlink()
    result, aside = predict_to_file(params, export_dir, tmp_path / "answers.jsonl")
    assert (result.num_predicted, aside) == (22, None)
    assert sorted(path.name for path in tmp_path.glob("*answers*")) == ["answers.jsonl"]
    assert not list(tmp_path.glob(".answers*"))


def test_the_command_writes_a_file_and_says_what_was_set_aside(export_dir, pictures, tmp_path):
    file = tmp_path / "answers.jsonl"
    said = tpu_pipelines_here("predict", str(export_dir), str(pictures), "--output", str(file)).stdout
    assert said == f"22 predictions in {file}; 1 could not be read, see {tmp_path}/answers.set_aside.jsonl\n"
    assert len(file.read_text().splitlines()) == 22
    for words, message in (((str(pictures), "b"), "Received: 2"), ((str(pictures),), "ends in .jsonl or .parquet")):
        done = tpu_pipelines_here("predict", str(export_dir), *words, "--output", str(tmp_path / "answers.txt"))
        assert_user_error(done, message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("text:{tmp_path}/texts", "the model 'digits_cnn' expects images, received a source of the kind 'text'"),
        ("corpus:{tmp_path}/texts/a.txt", "'digits_cnn' expects images, received a source of the kind 'corpus'"),
        ("images:{tmp_path}/texts", "Found no images in"),
        ("images:{tmp_path}/none", "Cannot list"),
        ("photos:{tmp_path}", "Unknown source"),
        ("records:{tmp_path}", "dataset.json"),
        ("images:{tmp_path}/damaged", "None of the 1 examples"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(export_dir, tmp_path, source, message):
    for name, content in (("texts/a.txt", "a word"), ("damaged/a.png", "no picture")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        predict_batch(PredictParams(source.format(tmp_path=tmp_path), num_workers=1), export_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_files_is_not_written_into(export_dir, pictures, tmp_path):
    with pytest.raises(InputError, match=r"Cannot write to .* expected an empty folder"):
        predict_batch(PredictParams(f"images:{pictures}"), export_dir, pictures)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"form": "json"}, "form='json'"), ({"part_examples": 0}, "=0"), ({"num_workers": -1}, "num_workers=-1")],
)
def test_parameters_out_of_range_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        PredictParams("images:photos", **fields)


def test_predictions_of_data_that_changed_meanwhile_are_refused_and_not_continued(export_dir, pictures, tmp_path):
    plan = plan_answers(PredictParams(f"images:{pictures}", part_examples=5, num_workers=1), str(export_dir))
    state = ResumeState(str(tmp_path / "answers")).begin(plan.digest)
    predicting.answer_files(plan, state)
    (pictures / "a" / "0000.png").write_bytes((pictures / "a" / "0001.png").read_bytes())
    with pytest.raises(
        InputError, match=r"The data changed while they were being read: 1 files differ .*'a/0000\.png'"
    ):
        predicting.publish(plan, state, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not state.holds(plan.digest)

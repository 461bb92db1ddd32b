"""Records of other programs that stay where they are: checked once, and read in place by training and evaluation."""

import dataclasses
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits

from tests.support.fakes.googleapis import google_over_tls
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.examples.records import load_split
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.sample import written
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.find_drift import DriftParams
from tpu_components.find_drift.finding import find_drift
from tpu_components.predict_batch.inputs import list_inputs
from tpu_components.predict_batch.params import PredictParams
from tpu_components.serving.exported import ExportedModel
from tpu_components.train_model import TrainParams, train_model

SPLIT_FILES = {"train": "own-train*", "validation": "own-validation*", "test": "own-test*"}
PARTS = {"train-0": (0, 500), "train-1": (500, 900), "validation-0": (900, 1000), "test-0": (1000, 1300)}


def feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = value if isinstance(value, list) else [value]
    if isinstance((values or [0])[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path, rows, compression=""):
    with tf.io.TFRecordWriter(str(path), compression or None) as writer:
        for row in rows:
            features = {name: feature(value) for name, value in row.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def png(pixels):
    return tf.io.encode_png(pixels).numpy()


DIGITS = load_digits()
PIXELS = (DIGITS.images * 15).astype(np.uint8)[..., None]


def as_files(number):
    return {"picture": png(PIXELS[number]), "digit": int(DIGITS.target[number])}


def as_pixels(number):
    sizes = {"height": 8, "width": 8, "depth": 1}
    return {"picture": PIXELS[number].tobytes(), "digit": int(DIGITS.target[number]), **sizes}


def write_digits(folder, row, compression=""):
    folder.mkdir()
    for name, (start, end) in PARTS.items():
        write(folder / f"own-{name}.tfrecord", [row(number) for number in range(start, end)], compression)
    columns = {"image": "picture", "label": "digit"}
    return WriteParams(f"tfrecords:{folder}", columns=columns, split_files=SPLIT_FILES, rewrite=False, num_workers=1)


def write_few(tmp_path, rows, **more):
    """A train and a test file with these rows each."""
    for name in ("train", "test"):
        write(tmp_path / f"{name}.tfrecord", rows)
    return WriteParams(f"tfrecords:{tmp_path}", rewrite=False, num_workers=1, **more)


FEW = [{"image": png(PIXELS[number]), "label": number % 2} for number in range(6)]


@pytest.mark.parametrize("row", [as_files, as_pixels])
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_are_read_in_place_under_the_names_of_their_features(row, compression, tmp_path):
    params = write_digits(tmp_path / "own", row, compression)
    before = {path: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    result = write_records(params, tmp_path / "records")
    assert result.split_examples == {"train": 900, "validation": 100, "test": 300}
    assert {path: path.read_bytes() for path in (tmp_path / "own").iterdir()} == before
    assert not list((tmp_path / "records").glob("*.tfrecord*"))
    manifest = Manifest.load(tmp_path / "records")
    assert manifest.class_names == tuple("0123456789")
    for split, (start, end) in {"train": (0, 900), "test": (1000, 1300)}.items():
        examples = load_split(tmp_path / "records", manifest, split, with_keys=True)
        assert np.array_equal(examples.inputs, PIXELS[start:end])
        assert np.array_equal(examples.labels, DIGITS.target[start:end])
        assert examples.keys[-1] == {"train": "own-train-1.tfrecord[399]", "test": "own-test-0.tfrecord[299]"}[split]


@pytest.mark.parametrize("in_memory_mib", [0, 100], ids=["streamed", "in memory"])
def test_training_evaluation_and_drift_use_them(in_memory_mib, tmp_path):
    write_records(write_digits(tmp_path / "own", as_files, "GZIP"), tmp_path / "records")
    params = TrainParams("digits_cnn", epochs=3, batch_size_per_replica=32, learning_rate=0.005, accelerator="cpu")
    train_model(dataclasses.replace(params, in_memory_mib=in_memory_mib), tmp_path / "records", tmp_path / "model")
    judged = evaluate_model(
        EvaluateParams(minimum={"accuracy": 0.8}, accelerator="cpu"),
        tmp_path / "records",
        tmp_path / "model",
        tmp_path / "evaluation",
    )
    assert judged.promote
    assert "own-test-0.tfrecord[" in (tmp_path / "evaluation" / "report.html").read_text()
    drift = find_drift(DriftParams(against=str(tmp_path / "records")), tmp_path / "records", tmp_path / "drift")
    assert drift.alike


def test_a_regression_is_evaluated_without_a_training_split(tmp_path):
    rows = [{"image": png(PIXELS[number]), "label": float(number)} for number in range(20)]
    params = write_few(tmp_path, rows, task="regression", split_files={"test": "*"})
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    assert (manifest.interface.mean, manifest.split("test").targets[0].mean) == ((), 9.5)


def test_a_changed_file_is_found_before_it_is_used(tmp_path):
    write_records(write_digits(tmp_path / "own", as_files), tmp_path / "records")
    write(tmp_path / "own" / "own-test-0.tfrecord", [as_files(number) for number in range(300)])
    with pytest.raises(InputError, match=r"own-test-0.tfrecord does not match its manifest"):
        Manifest.load(tmp_path / "records")


def test_records_in_a_bucket_are_referred_to_and_checked_by_the_checksum_of_the_store(tmp_path, bucket):
    params = write_few(tmp_path, FEW)
    files = [tmp_path / f"{name}.tfrecord" for name in ("train", "test")]
    for path in files:
        bucket.blob(f"own/{path.name}").upload_from_filename(path)
    place = f"gs://{bucket.name}/own"
    write_records(dataclasses.replace(params, source=f"tfrecords:{place}"), tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    write_records(params, tmp_path / "others")
    of_local = Manifest.load(tmp_path / "others")
    assert manifest.fingerprint == of_local.fingerprint
    for split, described in manifest.splits.items():
        (shard,), (other,) = described.shards, of_local.split(split).shards
        assert shard.name == f"{place}/{split}.tfrecord"
        assert (shard.num_bytes, shard.crc32c) == (other.num_bytes, other.crc32c)
    bucket.blob("own/test.tfrecord").upload_from_string(files[0].read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"gs://.*test.tfrecord does not match its manifest"):
        Manifest.load(tmp_path / "records")
    bucket.blob("own/test.tfrecord").delete()
    with pytest.raises(InputError, match=r"gs://.*test.tfrecord is missing"):
        Manifest.load(tmp_path / "records", verify=False)


@pytest.mark.heavy  # Two trainings in processes of their own: 40 s.
def test_training_reads_a_bucket_through_tensorflows_own_client_as_it_reads_local_files(tmp_path, bucket):
    rows = [{"image": png(PIXELS[number]), "label": int(DIGITS.target[number])} for number in range(300)]
    params = write_few(tmp_path, rows)
    for path in tmp_path.glob("*.tfrecord"):
        bucket.blob(f"own/{path.name}").upload_from_filename(path)
    write_records(dataclasses.replace(params, source=f"tfrecords:gs://{bucket.name}/own"), tmp_path / "remote")
    write_records(params, tmp_path / "local")
    command = [sys.executable, "-m", "tpu_components.train_model", "--model=digits_cnn", "--epochs=2"]
    command += ["--in-memory-mib=0", "--accelerator=cpu", "--batch-size-per-replica=32"]
    metrics = {}
    port = int(os.environ["STORAGE_EMULATOR_HOST"].rpartition(":")[2])
    with google_over_tls(port, tmp_path) as variables:
        for name, more in (("local", {}), ("remote", variables)):
            place = [f"--records={tmp_path / name}", f"--output={tmp_path / 'models' / name}"]
            done = subprocess.run(
                [*command, *place], env={**os.environ, **more}, capture_output=True, text=True, check=True
            )
            metrics[name] = json.loads(done.stdout.splitlines()[-1])["metrics"]
    assert metrics["remote"] == metrics["local"]


def test_a_folder_of_records_without_a_manifest_is_told_how_to_get_one(tmp_path):
    write_few(tmp_path, FEW)
    with pytest.raises(InputError, match=rf"no dataset.json. .*source=tfrecords:{tmp_path} and rewrite=false"):
        Manifest.load(tmp_path)


def test_a_sample_for_a_preflight_is_a_data_set_of_its_own(tmp_path):
    plan = plan_dataset(write_digits(tmp_path / "own", as_files))
    with written(dataclasses.replace(plan, order={"train": plan.order["train"][:20]})) as (folder, manifest):
        assert manifest.input.encoding == "encoded"
        assert len(load_split(folder, manifest, "train").labels) == 20


def test_predictions_name_the_files_instead(tmp_path):
    write_records(write_digits(tmp_path / "own", as_files), tmp_path / "records")
    params = PredictParams(source=f"records:{tmp_path / 'records'}")
    with pytest.raises(InputError, match=rf"Use those records as the source: tfrecords:{tmp_path}/own"):
        list_inputs(
            params, ExportedModel("digits", (), ImageInput((8, 8, 1), "raw"), None, ImageInput((8, 8, 1), "raw"))
        )


def test_several_labels_and_numbers_are_read_as_they_are_stored(tmp_path):
    several = [{"image": png(PIXELS[n]), "label": [int(n % 2), int(n % 3 == 0), 1 - n % 2]} for n in range(6)]
    write_records(write_few(tmp_path, several, task="multi_label", class_names=("a", "b", "c")), tmp_path / "several")
    stored = load_split(tmp_path / "several", Manifest.load(tmp_path / "several"), "train")
    assert stored.labels.tolist() == [row["label"] for row in several]
    assert Manifest.load(tmp_path / "several").class_names == ("a", "b", "c")
    numbers = [{"image": png(PIXELS[n]), "label": [n / 2, -float(n)], "rank": n / 4} for n in range(6)]
    params = write_few(tmp_path, numbers, task="regression", columns={"weight": "rank"})
    write_records(params, tmp_path / "numbers")
    manifest = Manifest.load(tmp_path / "numbers")
    stored = load_split(tmp_path / "numbers", manifest, "train")
    assert stored.labels.tolist() == [row["label"] for row in numbers]
    assert stored.weights.tolist() == [row["rank"] for row in numbers]
    assert manifest.class_names == ("label_0", "label_1")


def test_class_names_of_tensorflow_datasets_are_found_beside_the_records(tmp_path):
    params = write_few(tmp_path, FEW)
    (tmp_path / "label.labels.txt").write_text("cat\ndog\n")
    assert plan_dataset(params).listing.class_names == ("cat", "dog")
    assert plan_dataset(dataclasses.replace(params, class_names=("no", "yes"))).listing.class_names == ("no", "yes")


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def turned_jpeg():
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.new("RGB", (8, 8), "red"), "JPEG", exif=exif)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": b"no image" * 20}, r"train.tfrecord\[6\]' \(.*image"),
        ({"image": FEW[0]["image"][:60]}, r"train.tfrecord\[6\]' \(.*image"),
        ({"label": []}, r"train.tfrecord\[6\]' \(its label is missing"),
        ({"label": 2}, r"train.tfrecord\[6\]' \(its label is 2, expected 0 to 1, the indices of the class names"),
        ({"label": -1}, r"train.tfrecord\[6\]' \(its label is -1, expected 0 to 1"),
        ({"label": b"dog"}, r"label of test.tfrecord\[6\] as it is stored: expected one whole number.*b'dog'"),
        ({"label": [0, 1]}, r"label of test.tfrecord\[6\].*received \[0, 1\], 2 in all"),
        (
            {"image": png(np.zeros((9, 8, 1), np.uint8))},
            r"expected 8×8 like the first image, received 9×8 for 'train.tf",
        ),
        ({"image": png(np.zeros((8, 8, 3), np.uint8))}, r"Grey and colour images are mixed"),
        (
            {"image": encoded(Image.new("L", (8, 8)), "BMP")},
            r"train.tfrecord\[6\]' \(.*as it is stored: expected a greyscale or RGB JPEG",
        ),
    ],
)
def test_a_record_that_training_cannot_use_is_named_with_what_to_do(row, message, tmp_path):
    params = write_few(tmp_path, [*FEW, {**FEW[0], **row}], class_names=("cat", "dog"))
    with pytest.raises(InputError, match=message) as error:
        write_records(params, tmp_path / "records")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("row", [{"label": 7}, {"image": b"no image" * 20}])
def test_no_share_of_unusable_records_is_allowed_but_a_check_counts_them(row, tmp_path):
    names = ("cat", "dog")
    params = write_few(tmp_path, [*FEW, {**FEW[0], **row}], class_names=names, max_bad_fraction=0.9)
    assert plan_dataset(params).num_examples >= 12
    with pytest.raises(InputError, match=r"2 of 14 inputs .*Expected at most 0.00%"):
        write_records(params, tmp_path / "records")


def test_a_photo_that_exif_rotates_is_refused_unless_it_is_to_stay_unrotated(tmp_path):
    rows = [{"image": turned_jpeg(), "label": number % 2} for number in range(4)]
    params = write_few(tmp_path, rows)
    with pytest.raises(InputError, match=r"received a photo that its EXIF orientation rotates"):
        write_records(params, tmp_path / "records")
    write_records(dataclasses.replace(params, apply_rotation=False), tmp_path / "records")
    assert not Manifest.load(tmp_path / "records").input.upright


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "sklearn:digits"}, r"rewrite=False requires a tfrecords: source"),
        ({"engine": "fan_out"}, r"rewrite=false uses the records as they are, so engine has no effect"),
        ({"encoding": "resized"}, r"so encoding has no effect"),
        ({"columns": {"split": "part"}}, r"so columns.split has no effect"),
        ({"split_files": {"tset": "a*"}}, r"'tset'. Did you mean 'test'"),
        ({"split_files": {"train": "tr*", "test": "nothing*"}}, r"No file in .* matches 'nothing\*'"),
        ({"split_files": {"train": "tr*"}}, r"'test.tfrecord' .* matches no pattern"),
        ({"split_files": {"train": "t*", "test": "test*"}}, r"matches the patterns of train and test"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(changes, message, tmp_path):
    base = dataclasses.asdict(write_few(tmp_path, FEW))
    with pytest.raises(InputError, match=message):
        plan_dataset(WriteParams(**{**base, **changes}))


def test_labels_that_begin_at_one_are_explained(tmp_path):
    params = write_few(tmp_path, [{**row, "label": row["label"] + 1} for row in FEW], class_names=("cat", "dog"))
    with pytest.raises(InputError, match=r"labels in .* are 1 to 2, but training counts classes from 0"):
        plan_dataset(params)


def test_files_without_a_split_or_without_records_and_mixed_compression_are_refused(tmp_path):
    params = write_few(tmp_path, FEW)
    write(tmp_path / "validation.tfrecord", [])
    with pytest.raises(InputError, match=r"Files without records in .*: 'validation.tfrecord'"):
        plan_dataset(params)
    write(tmp_path / "validation.tfrecord", FEW, "GZIP")
    with pytest.raises(InputError, match=r"compressed with GZIP and others are not"):
        plan_dataset(params)
    write(tmp_path / "more.tfrecord", FEW)
    (tmp_path / "validation.tfrecord").unlink()
    (tmp_path / "train.tfrecord").unlink()
    (tmp_path / "test.tfrecord").unlink()
    expected = r"do not define splits, and records that are used in place cannot be divided\. Received: "
    with pytest.raises(InputError, match=expected):
        plan_dataset(params)


def test_a_truncated_gzip_file_is_named(tmp_path):
    params = write_few(tmp_path, FEW)
    write(tmp_path / "train.tfrecord", FEW, "GZIP")
    content = (tmp_path / "train.tfrecord").read_bytes()
    (tmp_path / "train.tfrecord").write_bytes(content[:-20])
    with pytest.raises(InputError, match=r"train.tfrecord, at record \d: damaged GZIP data"):
        plan_dataset(params)


def test_texts_are_rewritten(tmp_path):
    params = write_few(tmp_path, [{"text": b"good film", "label": 1}, {"text": b"bad film", "label": 0}])
    with pytest.raises(InputError, match=r"Training cannot read the texts .* Set data.rewrite to true"):
        plan_dataset(params)


def test_the_manifest_of_written_records_has_their_own_names(tmp_path):
    write_records(WriteParams("sklearn:digits", num_workers=1), tmp_path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    assert (manifest["feature_names"], manifest["compression"]) == ({}, "")

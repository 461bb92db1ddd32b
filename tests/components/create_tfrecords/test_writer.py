"""Claims about the files that are written, judged by TensorFlow's own reader."""

import dataclasses
import json
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from google.cloud.storage import Blob
from PIL import Image

from tests.components.create_tfrecords.engines.cases import same_files
from tests.support.cli import REPOSITORY
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.images import read_image
from tpu_components.core.examples.interface import ImageRule
from tpu_components.core.examples.records import load_split
from tpu_components.core.files import storage
from tpu_components.create_tfrecords import WriteParams, parts, plan_dataset, write_records
from tpu_components.create_tfrecords.preparing import prepare

ALL_TRAIN = {"validation_fraction": 0, "test_fraction": 0}


def _read(directory: Path, split: str) -> list[tuple[str, int, bytes]]:
    """Key, label and image of every example, read without any code of ours."""
    found = []
    for path in sorted(directory.glob(f"{split}-*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            assert sorted(feature) == ["image", "key", "label"]
            (key,), (label,) = feature["key"].bytes_list.value, feature["label"].int64_list.value
            (image,) = feature["image"].bytes_list.value
            found.append((key.decode(), label, image))
    return found


def _contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def array_source(tmp_path) -> str:
    """More examples than one worker takes at a time."""
    images = np.random.default_rng(0).integers(0, 256, (9000, 2, 2), np.uint8)
    np.savez(tmp_path / "many.npz", x=images, y=np.arange(9000) % 3)
    return f"npz:{tmp_path}/many.npz"


@pytest.fixture(scope="session")
def many_files(tmp_path_factory) -> Path:
    """More image files than one worker takes at a time."""
    root = tmp_path_factory.mktemp("many")
    noise = np.random.default_rng(0).integers(0, 256, (4200, 2, 2, 3), np.uint8)
    for i, pixels in enumerate(noise):
        (root / str(i % 2)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / str(i % 2) / f"{i}.png")
    return root


# What is written


def test_write_records_stores_what_went_in_by_tensorflows_own_reader(image_folder, tmp_path):
    folder = image_folder(per_class=10, classes=("ant", "bee", "cat"))
    result = write_records(WriteParams(f"images:{folder}"), tmp_path / "out")
    found = {split: _read(tmp_path / "out", split) for split in result.split_examples}
    assert {split: len(examples) for split, examples in found.items()} == result.split_examples
    keys = sorted(key for examples in found.values() for key, _, _ in examples)
    assert keys == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    for key, label, image in (example for examples in found.values() for example in examples):
        assert ("ant", "bee", "cat")[label] == key.split("/")[0]
        assert image == read_image((folder / key).read_bytes(), ImageRule(None, 0)).pixels.tobytes()


def test_write_records_keeps_encoded_images_untouched(image_folder, tmp_path):
    folder = image_folder(kind="JPEG")
    write_records(WriteParams(f"images:{folder}", encoding="encoded"), tmp_path / "out")
    for key, _, image in _read(tmp_path / "out", "train"):
        assert image == (folder / key).read_bytes()


def test_write_records_stores_arrays_as_they_are(array_source, tmp_path):
    write_records(WriteParams(array_source, **ALL_TRAIN), tmp_path / "out")
    with np.load(tmp_path / "many.npz") as data:
        images, labels = data["x"], data["y"]
    found = _read(tmp_path / "out", "train")
    places = [int(key.split("/")[1]) for key, _, _ in found]
    assert sorted(places) == list(range(9000))
    assert [label for _, label, _ in found] == labels[places].tolist()
    assert b"".join(image for _, _, image in found) == images[places].tobytes()


def test_the_manifest_counts_examples_classes_bytes_and_checksums(image_folder, tmp_path):
    folder, out = image_folder(per_class=10), tmp_path / "out"
    result = write_records(WriteParams(f"images:{folder}"), out)
    manifest = Manifest.load(out)
    assert result.num_examples == 20
    assert result.num_shards == 3
    assert result.fingerprint == manifest.fingerprint
    assert manifest.class_names == ("cat", "dog")
    assert (manifest.input.encoding, manifest.input.image_shape) == ("raw", (8, 8, 3))
    assert manifest.source == f"images:{folder}"
    for name, split in manifest.splits.items():
        labels = [label for _, label, _ in _read(out, name)]
        assert split.num_examples == len(labels) == result.split_examples[name]
        assert split.class_counts == tuple(np.bincount(labels, minlength=2).tolist())
        for shard in split.shards:
            content = (out / shard.name).read_bytes()
            assert shard.num_bytes == len(content)
            assert int(shard.crc32c, 16) == google_crc32c.value(content)
            assert shard.num_examples == len(labels)


def test_auto_stores_large_images_encoded_and_small_ones_raw(image_folder, tmp_path):
    for name, size, encoding in (("small", (64, 64), "raw"), ("large", (65, 64), "encoded")):
        folder = image_folder(per_class=2, name=name, size=size)
        write_records(WriteParams(f"images:{folder}", **ALL_TRAIN), tmp_path / encoding)
        assert Manifest.load(tmp_path / encoding).input.encoding == encoding


def test_auto_brings_larger_photos_to_the_size_once(image_folder, tmp_path):
    for name, side, encoding in (("large", 100, "resized"), ("hardly", 74, "encoded"), ("small", 50, "encoded")):
        folder = image_folder(per_class=2, name=name, size=(side, side), kind="JPEG")
        write_records(WriteParams(f"images:{folder}", image_size=(70, 70), **ALL_TRAIN), tmp_path / f"{name}-out")
        manifest = Manifest.load(tmp_path / f"{name}-out")
        assert (manifest.input.encoding, manifest.input.image_shape) == (encoding, (70, 70, 3))
        for key, _, image in _read(tmp_path / f"{name}-out", "train"):
            assert (image == (folder / key).read_bytes()) == (encoding == "encoded")


def test_resized_images_are_jpegs_of_one_shape_that_models_read_as_they_are_served(image_folder, encode, tmp_path):
    folder = image_folder(per_class=3, size=(60, 90))
    (folder / "dog" / "0005.png").write_bytes(encode(size=(20, 24), kind="JPEG"))
    params = WriteParams(f"images:{folder}", image_size=(20, 24), encoding="resized", **ALL_TRAIN)
    for workers in (1, 2):
        out = tmp_path / str(workers)
        write_records(dataclasses.replace(params, num_workers=workers), out)
    assert same_files(tmp_path / "1", tmp_path / "2")
    written = _read(out, "train")
    assert {read_image(image, ImageRule(None, 0)).pixels.shape for _, _, image in written} == {(20, 24, 3)}
    kept = [key for key, _, image in written if image == (folder / key).read_bytes()]
    assert kept == ["dog/0005.png"]
    read = load_split(out, Manifest.load(out), "train").inputs
    np.testing.assert_array_equal(read, [read_image(image, ImageRule(None, 0)).pixels for _, _, image in written])


def test_resized_images_keep_a_margin_that_only_training_sees(image_folder, tmp_path):
    folder = image_folder(per_class=5, size=(60, 90))
    params = WriteParams(f"images:{folder}", image_size=(20, 24), crop_margin=0.25, **ALL_TRAIN)
    for name, share in (("margin", 0.25), ("none", 0.0)):
        write_records(dataclasses.replace(params, crop_margin=share), tmp_path / name)
    manifest = Manifest.load(tmp_path / "margin")
    assert (manifest.input.encoding, manifest.input.shape, manifest.input.margin) == ("resized", (20, 24, 3), (4, 6))
    assert "margin" not in json.loads((tmp_path / "none" / "dataset.json").read_text())
    assert Manifest.load(tmp_path / "none").input.margin == (0, 0)
    files = [image for _, _, image in _read(tmp_path / "margin", "train")]
    larger = np.array([read_image(file, ImageRule(None, 0)).pixels for file in files])
    assert larger.shape == (10, 24, 30, 3)
    np.testing.assert_array_equal(load_split(tmp_path / "margin", manifest, "train", with_margin=True).inputs, larger)
    middle = load_split(tmp_path / "margin", manifest, "train").inputs
    np.testing.assert_array_equal(middle, larger[:, 2:22, 3:27])
    served = [read_image(file, ImageRule((20, 24), 3, margin=(4, 6))).pixels for file in files]
    np.testing.assert_array_equal(served, middle)


def test_a_margin_is_for_files_that_are_stored_resized(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((20, 8, 8, 1), np.uint8), y=np.arange(20) % 2)
    params = WriteParams(f"npz:{tmp_path}/x.npz", image_size=(8, 8), crop_margin=0.5, **ALL_TRAIN)
    with pytest.raises(
        InputError,
        match=r"Arrays are stored raw and without a margin, .* Received: encoding='auto' and crop_margin=0.5",
    ):
        write_records(params, tmp_path / "out")


def test_a_lower_quality_takes_less_space(image_folder, tmp_path):
    folder = image_folder(size=(60, 90))
    sizes = []
    for quality in (50, 95):
        params = WriteParams(
            f"images:{folder}", image_size=(40, 40), encoding="resized", jpeg_quality=quality, **ALL_TRAIN
        )
        write_records(params, tmp_path / str(quality))
        sizes.append(sum(len(image) for _, _, image in _read(tmp_path / str(quality), "train")))
    assert sizes[0] < sizes[1] / 2


def test_shards_are_cut_to_the_target_size(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((600, 64, 64, 1), np.uint8), y=np.arange(600) % 2)
    write_records(WriteParams(f"npz:{tmp_path}/x.npz", target_shard_mib=1, **ALL_TRAIN), tmp_path / "out")
    split = Manifest.load(tmp_path / "out").splits["train"]
    assert [shard.name for shard in split.shards] == [f"train-0000{i}-of-00003.tfrecord" for i in range(3)]
    assert [shard.num_examples for shard in split.shards] == [200] * 3
    assert len(_read(tmp_path / "out", "train")) == 600


# The same bytes, whatever the number of workers and the size of tasks


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_records_are_byte_for_byte_the_same_with_one_and_two_workers(kind, array_source, many_files, tmp_path):
    source = array_source if kind == "arrays" else f"images:{many_files}"
    results = [write_records(WriteParams(source, num_workers=workers), tmp_path / str(workers)) for workers in (1, 2)]
    assert results[0] == results[1]
    assert same_files(tmp_path / "1", tmp_path / "2")


def test_a_part_that_is_written_over_a_longer_one_begins_with_the_same_records(many_files, tmp_path):
    prepared = prepare(plan_dataset(WriteParams(f"images:{many_files}")))
    listing, path = prepared.plan.listing, tmp_path / "part"
    examples = np.arange(len(listing.keys))
    whole = parts.write_part(prepared.encoder, str(path), listing.select(examples))
    before = path.read_bytes()
    assert sum(whole.sizes) == len(before)
    last = parts.write_part(prepared.encoder, str(path), listing.select(examples[-1:]))
    assert path.read_bytes()[: sum(last.sizes)] == before[-sum(last.sizes) :]


def test_files_in_a_bucket_are_read_several_at_a_time(image_folder, tmp_path, bucket, monkeypatch):
    folder, both, download = image_folder(per_class=3), threading.Barrier(2), Blob.download_as_bytes
    prepared = prepare(plan_dataset(WriteParams(f"images:{folder}")))
    examples = dataclasses.replace(prepared.plan.listing.select(np.arange(6)), root="gs://bucket/files")
    keys = examples.keys
    (folder / keys[2]).unlink()
    storage.upload(folder, "gs://bucket/files")

    def download_with_another(*arguments, **options):
        both.wait(timeout=10)  # Breaks unless another one is read at the same time.
        return download(*arguments, **options)

    monkeypatch.setattr(Blob, "download_as_bytes", download_with_another)
    part = parts.write_part(prepared.encoder, str(tmp_path / "part"), examples)
    assert part.kept.tolist() == [0, 1, 3, 4, 5]
    assert [item.key for item in part.bad] == [keys[2]]
    assert "there is no such file" in part.bad[0].reason


def test_records_are_the_same_however_work_is_cut_into_tasks(image_folder, tmp_path, monkeypatch):
    params = WriteParams(f"images:{image_folder(per_class=20)}", num_workers=2)
    write_records(params, tmp_path / "whole")
    monkeypatch.setattr(parts, "TASK_EXAMPLES", 3)  # Below the number of examples, so two processes take turns.
    write_records(params, tmp_path / "cut")
    assert same_files(tmp_path / "whole", tmp_path / "cut")


def test_the_fingerprint_is_of_the_content_not_of_its_shards(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (600, 64, 64, 1), np.uint8)
    np.savez(tmp_path / "x.npz", x=images, y=np.arange(600) % 2)
    source = f"npz:{tmp_path}/x.npz"
    few = write_records(WriteParams(source), tmp_path / "few")
    many = write_records(WriteParams(source, target_shard_mib=1), tmp_path / "many")
    assert many.num_shards > few.num_shards
    assert many.fingerprint == few.fingerprint


def test_the_fingerprint_changes_with_one_pixel_one_label_or_the_order(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 255, (20, 4, 4), np.uint8), np.arange(20) % 2
    pixel, flipped = images.copy(), labels.copy()
    pixel[3, 1, 1] += 1
    flipped[:2] = 1, 0
    found = set()
    for i, (x, y, seed) in enumerate(
        [(images, labels, 0), (pixel, labels, 0), (images, flipped, 0), (images, labels, 1)]
    ):
        np.savez(tmp_path / "x.npz", x=x, y=y)
        found.add(write_records(WriteParams(f"npz:{tmp_path}/x.npz", seed=seed), tmp_path / str(i)).fingerprint)
    assert len(found) == 4


# Bad images


def _with_bad_files(image_folder, encode) -> Path:
    folder = image_folder(per_class=10, kind="JPEG", size=(16, 16))
    (folder / "cat" / "0003.jpeg").write_bytes(b"no image at all")
    (folder / "dog" / "0004.jpeg").write_bytes(encode(kind="JPEG", size=(16, 16))[:-100])
    return folder


@pytest.mark.parametrize("encoding", ["raw", "encoded"])
def test_unreadable_images_over_budget_are_refused_by_name(image_folder, encode, tmp_path, encoding):
    folder = _with_bad_files(image_folder, encode)
    with pytest.raises(InputError, match=r"2 of 20 inputs are unreadable: .*at most 5.00%. Repair or remove") as caught:
        write_records(WriteParams(f"images:{folder}", max_bad_fraction=0.05, encoding=encoding), tmp_path / "out" / "d")
    assert "'cat/0003.jpeg' (not an image)" in str(caught.value)
    assert "'dog/0004.jpeg' (damaged JPEG: Premature end of JPEG file)" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_unreadable_images_within_budget_are_set_aside_and_the_rest_written(image_folder, encode, tmp_path, capsys):
    folder = _with_bad_files(image_folder, encode)
    result = write_records(WriteParams(f"images:{folder}", max_bad_fraction=0.1), tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    assert (result.num_examples, result.num_quarantined) == (18, 2)
    assert {item.key: item.reason for item in manifest.quarantined} == {
        "cat/0003.jpeg": "not an image",
        "dog/0004.jpeg": "damaged JPEG: Premature end of JPEG file",
    }
    assert "quarantined 'cat/0003.jpeg': not an image" in capsys.readouterr().err
    assert sum(len(_read(tmp_path / "out", split)) for split in manifest.splits) == 18


def test_images_that_lose_their_content_are_counted_and_told(image_folder, tmp_path, capsys):
    folder = image_folder(per_class=10, classes=("cat", "dog"), mode="L", size=(8, 8))
    for i in range(3):
        values = np.random.default_rng(i).integers(0, 1024, (8, 8), np.uint16)
        Image.fromarray(values).save(folder / "cat" / f"{i:04d}.png")
    drawing = np.zeros((8, 8, 2), np.uint8)
    drawing[2:6, 2:6, 1] = 255
    Image.fromarray(drawing).save(folder / "dog" / "0007.png")
    write_records(WriteParams(f"images:{folder}", channels=1), tmp_path / "out")
    told = " ".join(capsys.readouterr().err.split())
    assert "3 of 20 16-bit images keep at most 64 of 256 grey levels" in told
    assert "1 of 20 images have only one colour, because their content is in the transparency" in told
    statistics = [split.statistics for split in Manifest.load(tmp_path / "out").splits.values()]
    assert sum(each.get("num_few_levels", 0) for each in statistics) == 3
    assert sum(each.get("num_only_alpha", 0) for each in statistics) == 1


def test_drawings_that_all_become_one_flat_picture_are_refused_with_the_cause(tmp_path, capsys):
    for i in range(40):
        drawing = np.zeros((8, 8, 4), np.uint8)
        drawing[..., 3] = np.random.default_rng(i).integers(0, 256, (8, 8))
        (tmp_path / f"data/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing).save(tmp_path / f"data/{i % 2}/{i}.png")
    with pytest.raises(InputError, match="exact or near copies"):
        write_records(WriteParams(f"images:{tmp_path}/data", num_workers=1), tmp_path / "out")
    told = " ".join(capsys.readouterr().err.split())
    assert "40 of 40 images have only one colour, because their content is in the transparency" in told


def test_files_that_are_missing_are_set_aside_too(image_folder, tmp_path):
    folder = image_folder(per_class=10)
    rows = "".join(f"{path.relative_to(folder)},{path.parent.name}\n" for path in folder.rglob("*.png"))
    (folder / "labels.csv").write_text("path,label\n" + rows + "gone.png,cat\n")
    write_records(WriteParams(f"csv:{folder}/labels.csv", max_bad_fraction=0.1), tmp_path / "out")
    (item,) = Manifest.load(tmp_path / "out").quarantined
    assert item.key == "gone.png"
    assert item.reason.endswith("there is no such file. Check the path.")


def test_a_source_without_any_readable_image_is_refused(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            (tmp_path / "data" / name / f"{i}.png").write_bytes(b"text")
    with pytest.raises(
        InputError,
        match=r"no readable image in .*Received: 20 files that cannot be read as images \(the first: 'cat/0.png'",
    ):
        write_records(WriteParams(f"images:{tmp_path}/data"), tmp_path / "out")


def test_a_split_left_without_readable_images_is_refused(image_folder, tmp_path):
    folder = image_folder(name="data/train").parent
    for name in ("cat", "dog"):
        (folder / "test" / name).mkdir(parents=True)
        (folder / "test" / name / "x.png").write_bytes(b"text")
    with pytest.raises(InputError, match=r"The 'test' split has no readable examples left after 2 were quarantined"):
        write_records(WriteParams(f"images:{folder}", max_bad_fraction=0.5), tmp_path / "out")


# Shapes


@pytest.mark.parametrize("encoding", ["raw", "encoded"])
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"size": (9, 8)}, r"expected 8×8 like the first image, received 9×8 for 'dog/0005.png'. Set data.image_size"),
        (
            {"mode": "L"},
            r"expected colour images like the first image, received the grey image 'dog/0005.png'. Set data.ch",
        ),
    ],
)
def test_images_of_mixed_sizes_or_colours_are_refused_with_the_way_out(
    image_folder, encode, tmp_path, encoding, odd, message
):
    folder = image_folder()
    (folder / "dog" / "0005.png").write_bytes(encode(**odd))
    with pytest.raises(InputError, match=message):
        write_records(WriteParams(f"images:{folder}", encoding=encoding), tmp_path / "out" / "d")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("encoding", ["raw", "encoded"])
@pytest.mark.parametrize("channels", [1, 3])
def test_image_size_and_channels_make_mixed_images_alike(image_folder, encode, tmp_path, encoding, channels):
    folder = image_folder()
    (folder / "dog" / "0005.png").write_bytes(encode(size=(20, 9), mode="L"))
    (folder / "cat" / "0005.png").write_bytes(encode(size=(5, 5), mode="RGBA"))
    params = WriteParams(f"images:{folder}", image_size=(6, 7), channels=channels, encoding=encoding)
    write_records(params, tmp_path / "out")
    assert Manifest.load(tmp_path / "out").input.image_shape == (6, 7, channels)
    if encoding == "raw":
        assert {len(image) for _, _, image in _read(tmp_path / "out", "train")} == {6 * 7 * channels}


def test_image_size_and_channels_apply_to_arrays(tmp_path):
    images = np.arange(20, dtype=np.uint8).repeat(16).reshape(20, 4, 4)
    np.savez(tmp_path / "x.npz", x=images, y=np.arange(20) % 2)
    params = WriteParams(f"npz:{tmp_path}/x.npz", image_size=(6, 5), channels=3)
    write_records(params, tmp_path / "out")
    assert Manifest.load(tmp_path / "out").input.image_shape == (6, 5, 3)
    assert {image for _, _, image in _read(tmp_path / "out", "train")} <= {bytes([i]) * 90 for i in range(20)}


@pytest.mark.parametrize("encoding", ["resized", "encoded"])
def test_arrays_cannot_be_stored_as_files(tmp_path, encoding):
    with pytest.raises(InputError, match=f"Received: encoding='{encoding}' and crop_margin=0.0 with 'sklearn:digits'"):
        write_records(WriteParams("sklearn:digits", encoding=encoding), tmp_path / "out")


# Where it is written


def test_the_same_data_set_is_replaced_by_the_same_bytes(image_folder, tmp_path):
    params, out = WriteParams(f"images:{image_folder()}"), tmp_path / "out"
    first = write_records(params, out)
    before = _contents(out)
    assert write_records(params, out) == first
    assert _contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_an_empty_folder_is_filled(image_folder, tmp_path):
    (tmp_path / "out").mkdir()
    write_records(WriteParams(f"images:{image_folder()}"), tmp_path / "out")
    assert Manifest.load(tmp_path / "out").splits


def test_damaged_records_are_repaired_by_writing_again(image_folder, tmp_path):
    params, out = WriteParams(f"images:{image_folder()}"), tmp_path / "out"
    write_records(params, out)
    before = _contents(out)
    next(out.glob("train-*")).unlink()
    write_records(params, out)
    assert _contents(out) == before


def test_another_data_set_is_refused_and_left_untouched(image_folder, tmp_path):
    out = tmp_path / "out"
    write_records(WriteParams(f"images:{image_folder()}"), out)
    before = _contents(out)
    with pytest.raises(
        InputError, match=r"already contains another data set. Expected 'sklearn:digits', received 'images:"
    ):
        write_records(WriteParams("sklearn:digits"), out)
    assert _contents(out) == before


@pytest.mark.parametrize("beside", [False, True])
def test_other_files_are_refused_and_left_untouched(image_folder, tmp_path, beside):
    params, out = WriteParams(f"images:{image_folder()}"), tmp_path / "out"
    if beside:
        write_records(params, out)
    out.mkdir(exist_ok=True)
    (out / "thesis.txt").write_text("years of work")
    before = _contents(out)
    with pytest.raises(InputError, match=r"expected an empty folder, received other files \('thesis.txt'\). Choose"):
        write_records(params, out)
    assert _contents(out) == before


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_strange_manifest_is_refused_and_left_untouched(tmp_path, text):
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError, match=r"received other files \('dataset.json'\)"):
        write_records(WriteParams("sklearn:digits"), tmp_path)
    assert _contents(tmp_path) == {"dataset.json": text.encode()}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match=r"out is a file, not a folder"):
        write_records(WriteParams("sklearn:digits"), tmp_path / "out")


# Full disks and killed processes


def test_too_little_disk_is_noticed_before_any_work(tiny_disk, array_source):
    with pytest.raises(
        InputError, match=r"Cannot write to .*out: expected at least [\d,]+ MiB of free disk space, received"
    ):
        write_records(WriteParams(array_source), tiny_disk / "out")
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_fills_up_leaves_nothing_behind(tiny_disk, image_folder, workers):
    """JPEG files of the best quality take several times the space that is estimated before."""
    params = WriteParams(
        f"images:{image_folder(per_class=40)}",
        image_size=(60, 60),
        encoding="resized",
        jpeg_quality=100,
        num_workers=workers,
    )
    with pytest.raises(
        InputError, match=r"Could not write .*/out: the disk is full \(.* MiB free\).*unchanged. Free some"
    ):
        write_records(params, tiny_disk / "out")
    assert list(tiny_disk.iterdir()) == []


def test_an_error_in_mid_write_keeps_what_stood_there(image_folder, tmp_path):
    params, out = WriteParams(f"images:{image_folder()}", num_workers=1), tmp_path / "out"
    write_records(params, out)
    before = _contents(out)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"Could not write .*/out: the file exceeds the size limit"):
            write_records(params, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_a_killed_run_leaves_no_half_artifact_and_a_second_run_gives_the_same_bytes(array_source, tmp_path):
    params = WriteParams(array_source, num_workers=1)
    out = tmp_path / "killed" / "out"
    code = (
        "import time; from tpu_components.create_tfrecords import *; "
        "from tpu_components.create_tfrecords import merging; "
        "add = merging.Merger.add; merging.Merger.add = lambda *a: (add(*a), print('written', flush=True), "
        "time.sleep(60)); "
        f"from pathlib import Path; write_records({params!r}, Path({str(out)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    (left,) = out.parent.iterdir()
    assert left.name.startswith(".out.")
    assert any(left.glob("train-*"))
    again = write_records(params, out)
    assert again == write_records(params, tmp_path / "fresh")
    assert same_files(out, tmp_path / "fresh")


def test_a_refusal_in_one_worker_stops_the_others_and_leaves_nothing(many_files, encode, tmp_path):
    rows = "".join(f"{path.relative_to(many_files)},{path.parent.name}\n" for path in many_files.rglob("*.png"))
    (tmp_path / "data").mkdir()
    for name in ("0", "1"):
        (tmp_path / "data" / name).symlink_to(many_files / name)
    (tmp_path / "data" / "odd.png").write_bytes(encode(size=(9, 9)))
    (tmp_path / "data" / "labels.csv").write_text("path,label\n" + rows + "odd.png,1\n")
    params = WriteParams(f"csv:{tmp_path}/data/labels.csv", num_workers=2)
    with pytest.raises(InputError, match=r"Images differ in size: expected 2×2 .*received 9×9 for 'odd.png'"):
        write_records(params, tmp_path / "out" / "d")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_wanted_of_a_split_is_said_beside_what_it_got(tmp_path, capsys):
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (500, 8, 8), np.uint8), np.arange(500) % 5
    np.savez(tmp_path / "x.npz", x=images, y=labels)
    write_records(WriteParams(f"npz:{tmp_path}/x.npz", num_workers=1), tmp_path / "out")
    tested = Manifest.load(tmp_path / "out").splits["test"]
    shares = np.array(tested.class_counts) / 100
    said = (
        f"test {tested.num_examples / 500:.1%} ({shares.min():.1%} to {shares.max():.1%} of a class), requested 20.0%"
    )
    assert f"{said}; validation " in capsys.readouterr().err
    # A test split of the source's own is nothing that validation is drawn from.
    np.savez(tmp_path / "y.npz", x_train=images[:400], y_train=labels[:400], x_test=images[400:], y_test=labels[400:])
    write_records(WriteParams(f"npz:{tmp_path}/y.npz", num_workers=1), tmp_path / "own")
    drawn = Manifest.load(tmp_path / "own").splits["validation"].num_examples
    assert f"] validation {drawn / 400:.1%} (" in capsys.readouterr().err

"""Claims about the format of records and their readers, judged by TensorFlow."""

import itertools
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pictures import encode_picture, encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples.artifacts import Manifest, Shard, Split, file_crc32c
from tpu_components.core.examples.images import read_image
from tpu_components.core.examples.interface import ImageRule, TextInput
from tpu_components.core.examples.records import (
    decode_image,
    decoded_bytes,
    encode_example,
    frame_record,
    load_split,
    pick_inputs,
    read_batches,
    shard_paths,
    spread_inputs,
)
from tpu_components.create_tfrecords import WriteParams, write_records

ROOT = Path(__file__).parents[4]
CIFAR = ROOT.parent / "shared" / "data" / "cifar10.tar.xz"


def _difference(content: bytes, channels: int) -> int:
    """Levels between what the writer stores and what the reader (and a served model) decodes."""
    stored = read_image(content, ImageRule(None, channels)).pixels
    return int(np.abs(decode_image(content, stored.shape).numpy().astype(int) - stored).max())


# The format


@pytest.mark.parametrize("label", [0, 127, 128, -1, 2**40, 2**63 - 1, [0, 300, -5], [1.5, -0.0, 2.0], [0.0]])
@pytest.mark.parametrize("num_bytes", [0, 1, 127, 128, 40_000])
def test_encode_example_gives_protobufs_bytes(label, num_bytes):
    fields = {"image": bytes(num_bytes), "label": label, "key": "ä.png".encode(), "text": b"t"}
    example = tf.train.Example()
    for name, value in fields.items():
        kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        values = value if isinstance(value, list) else [value]
        getattr(example.features.feature[name], kinds[type(values[0])]).value.extend(values)
    assert encode_example(fields) == example.SerializeToString(deterministic=True)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(100_000)])
def test_frame_record_gives_the_bytes_of_tensorflows_writer(tmp_path, payload):
    with tf.io.TFRecordWriter(str(tmp_path / "x")) as writer:
        writer.write(payload)
    assert frame_record(payload) == (tmp_path / "x").read_bytes()


def test_importing_records_imports_neither_tensorflow_nor_protobuf():
    code = (
        "import sys, tpu_components.core.examples.records; "
        "print([m for m in ('tensorflow', 'google.protobuf') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"


# Decoding: what is stored is what a served model sees


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("size", "subsampling", "quality", "progressive"),
    [
        ((32, 32), 0, 75, False),
        ((33, 47), 2, 95, False),
        ((64, 30), 1, 30, True),
        ((7, 5), 2, 75, True),
        ((1, 1), 2, 75, False),
    ],
)
def test_stored_and_served_pixels_of_a_jpeg_are_equal(channels, mode, size, subsampling, quality, progressive):
    options = {"subsampling": subsampling, "quality": quality, "progressive": progressive}
    assert _difference(encode_picture(size=size, mode=mode, kind="JPEG", **options), channels) == 0


def test_the_writer_stores_what_libjpegs_accurate_transform_gives():
    content = encode_picture(size=(40, 50), kind="JPEG")
    expected = tf.io.decode_jpeg(content, dct_method="INTEGER_ACCURATE").numpy()
    np.testing.assert_array_equal(read_image(content, ImageRule(None, 0)).pixels, expected)


@pytest.mark.skipif(not CIFAR.exists(), reason="needs cifar10.tar.xz in ../shared/data")
def test_stored_and_served_pixels_of_real_photographs_are_equal():
    with tarfile.open(CIFAR) as archive:
        photographs = (archive.extractfile(member).read() for member in archive if member.name.endswith(".jpg"))
        assert {_difference(photograph, 3) for photograph in itertools.islice(photographs, 200)} == {0}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "I;16"])
def test_stored_and_served_pixels_of_a_png_are_equal(channels, mode):
    if mode == "I;16":
        content = encoded(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    else:
        content = encode_picture(mode=mode)
    assert _difference(content, channels) == 0


@pytest.mark.parametrize(
    ("kind", "mode", "channels"),
    [("GIF", "RGB", 1), ("GIF", "RGB", 3), ("BMP", "RGB", 1), ("BMP", "RGB", 3), ("JPEG", "CMYK", 3)],
)
def test_stored_and_served_pixels_of_gif_bmp_and_cmyk_are_equal(kind, mode, channels):
    assert _difference(encode_picture(kind=kind, mode=mode), channels) == 0


@pytest.mark.parametrize("reduced", [False, True], ids=["resized alone", "shrunk by libjpeg first"])
@pytest.mark.parametrize("size", [(100, 80), (65, 140), (16, 16), (33, 31), (32, 64), (300, 257), (63, 64), (64, 62)])
def test_stored_and_served_pixels_differ_by_one_level_at_most_where_resized(size, reduced):
    content = encode_picture(size=size, kind="JPEG")
    stored = read_image(content, ImageRule((32, 32), 3, reduced=reduced)).pixels.astype(int)
    assert np.abs(decode_image(content, (32, 32, 3), reduced=reduced).numpy() - stored).max() <= 1


def test_decode_image_runs_in_a_graph_that_knows_no_sizes():
    decode = tf.function(lambda x: decode_image(x, (8, 8, 3)), input_signature=[tf.TensorSpec((), tf.string)])
    for content in (
        encode_picture(kind="JPEG"),
        encode_picture(kind="PNG"),
        encode_picture(size=(20, 30), kind="JPEG"),
    ):
        assert decode(content).shape == (8, 8, 3)


def test_decode_image_refuses_truncated_jpeg():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"jpeg|JPEG"):
        decode_image(encode_picture(size=(64, 64), kind="JPEG")[:-300], (64, 64, 3))


# Readers


@pytest.fixture(params=["raw", "resized", "encoded"])
def records(request, tmp_path) -> tuple[Path, Manifest, dict[str, np.ndarray]]:
    """A written data set, and the picture of every key."""
    pictures = {}
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            content = encode_picture(seed=i + 100 * ord(name[0]), kind="JPEG")
            (tmp_path / "data" / name / f"{i}.jpeg").write_bytes(content)
            pictures[f"{name}/{i}.jpeg"] = read_image(content, ImageRule(None, 0)).pixels
    params = WriteParams(f"images:{tmp_path}/data", encoding=request.param, test_fraction=0, seed=3)
    write_records(params, tmp_path / "out")
    return tmp_path / "out", Manifest.load(tmp_path / "out"), pictures


def test_load_split_gives_every_image_label_and_key_in_stored_order(records):
    directory, manifest, pictures = records
    examples = load_split(directory, manifest, "train", with_keys=True)
    assert examples.inputs.dtype == np.uint8
    assert examples.labels.dtype == np.int32
    assert len(examples.keys) == manifest.split("train").num_examples == 18
    for image, label, key in zip(examples.inputs, examples.labels, examples.keys, strict=True):
        assert manifest.class_names[label] == key.split("/")[0]
        np.testing.assert_array_equal(image, pictures[key])


def test_load_split_has_keys_only_when_asked(records):
    directory, manifest, _ = records
    assert load_split(directory, manifest, "validation").keys == ()


def test_load_split_refuses_a_split_that_is_not_there(records):
    directory, manifest, _ = records
    with pytest.raises(InputError, match="no 'test' split"):
        load_split(directory, manifest, "test")


def test_read_batches_keeps_the_order_and_the_last_short_batch(records):
    directory, manifest, _ = records
    examples = load_split(directory, manifest, "train", with_keys=True)
    batches = list(read_batches(directory, manifest, "train", batch_size=7, with_keys=True).as_numpy_iterator())
    assert [batch["image"].shape for batch in batches] == [(7, 8, 8, 3), (7, 8, 8, 3), (4, 8, 8, 3)]
    assert [key.decode() for batch in batches for key in batch["key"]] == list(examples.keys)
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in batches]), examples.inputs)
    np.testing.assert_array_equal(np.concatenate([batch["label"] for batch in batches]), examples.labels)
    assert set(next(read_batches(directory, manifest, "train").as_numpy_iterator())) == {"image", "label", "weight"}


def test_pick_inputs_gives_images_by_place(records):
    directory, manifest, _ = records
    images = load_split(directory, manifest, "train").inputs
    picked = pick_inputs(directory, manifest, "train", [17, 0, 5, 5])
    assert sorted(picked) == [0, 5, 17]
    for place, image in picked.items():
        np.testing.assert_array_equal(image, images[place])


def test_decoded_bytes_counts_pixels(records):
    directory, manifest, _ = records
    assert decoded_bytes(manifest, "train") == load_split(directory, manifest, "train").inputs.nbytes


def test_a_flipped_byte_in_a_record_is_noticed_when_read(records):
    directory, manifest, _ = records
    (path,) = map(Path, shard_paths(directory, manifest, "train"))
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    content[12 + length // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        load_split(directory, manifest, "train")


def test_spread_inputs_are_the_first_the_last_and_those_evenly_between(records):
    directory, manifest = records[:2]
    inputs = load_split(directory, manifest, "train").inputs
    indices, picked = spread_inputs(directory, manifest, "train", 3)
    assert indices == [0, (len(inputs) - 1) // 2, len(inputs) - 1]
    np.testing.assert_array_equal(picked, inputs[indices])
    assert spread_inputs(directory, manifest, "train", 10_000)[0] == list(range(len(inputs)))


def _write_tokens(folder: Path, inputs: TextInput, features: dict[str, str], *records: dict[str, Any]) -> Manifest:
    """Write a training split of these records; its manifest names these features beside the usual ones."""
    frames = b"".join(frame_record(encode_example({"label": 0, "key": b"k"} | fields)) for fields in records)
    (folder / "train.tfrecord").write_bytes(frames)
    shard = Shard("train.tfrecord", len(records), len(frames), file_crc32c(folder / "train.tfrecord"))
    return Manifest(
        fingerprint="f" * 64,
        source="text:data",
        split_rule="",
        input=inputs,
        task="classification",
        features={"tokens": "bytes", "label": "int64", "key": "bytes"} | features,
        class_names=("a", "b"),
        splits={"train": Split(len(records), (len(records), 0), (shard,))},
    )


@pytest.mark.parametrize(("vocabulary_size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<i4")])
def test_ids_of_a_text_come_back_as_int32_in_batches(tmp_path, vocabulary_size, dtype):
    ids = np.array([[0, 1, vocabulary_size - 1], [2, 3, 4]])
    stored = [{"tokens": row.astype(dtype).tobytes(), "label": i} for i, row in enumerate(ids)]
    inputs = TextInput(3, vocabulary_size, "f" * 64, "words", "start")
    examples = load_split(tmp_path, _write_tokens(tmp_path, inputs, {}, *stored), "train")
    assert examples.inputs.dtype == np.int32
    np.testing.assert_array_equal(examples.inputs, ids)
    np.testing.assert_array_equal(examples.labels, [0, 1])


ONE_TOKEN = TextInput(1, 100, "f" * 64, "words", "start")
WEIGHED = [{"tokens": b"\2\0", "weight": [0.5]}, {"tokens": b"\3\0", "weight": [2.0]}]


def test_records_are_searched_for_weights_only_if_their_manifest_names_weights(tmp_path):
    """The search would cost every reader of records without weights."""
    named = _write_tokens(tmp_path, ONE_TOKEN, {"weight": "float32"}, *WEIGHED)
    assert load_split(tmp_path, named, "train").weights.tolist() == [0.5, 2.0]
    unnamed = _write_tokens(tmp_path, ONE_TOKEN, {}, *WEIGHED)
    examples = load_split(tmp_path, unnamed, "train")
    assert examples.weights.tolist() == [1.0, 1.0]
    assert examples.inputs.tolist() == [[2], [3]]


def test_a_record_without_the_weight_that_its_manifest_names_is_an_error_and_not_a_weight_of_1(tmp_path):
    manifest = _write_tokens(tmp_path, ONE_TOKEN, {"weight": "float32"}, *WEIGHED, {"tokens": b"\4\0"})
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight"):
        load_split(tmp_path, manifest, "train")

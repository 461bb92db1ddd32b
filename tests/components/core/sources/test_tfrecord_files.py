"""Images in TFRecords of other programs: image files, raw pixels, and what is neither."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS, Manifest
from tpu_components.core.examples.records import read_fields, read_frames
from tpu_components.core.sources.kinds import list_unlabelled
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.writer import write_records


def _feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _write(path, rows) -> WriteParams:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i, row in enumerate(rows):
            features = {name: _feature(value) for name, value in {"label": i % 2, **row}.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return WriteParams(f"tfrecords:{path}")


def _pixels(count, shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def _stored(directory):
    """The stored images by key."""
    found = {}
    for shard in (shard for split in SPLITS for shard in directory.glob(f"{split}-*.tfrecord")):
        with open(shard, "rb") as file:
            for frame, _ in read_frames(file):
                fields = read_fields(frame)
                found[fields["key"][0].decode()] = fields["image"][0]
    return found


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((28, 20, 1), ("image_raw", "height", "width", "depth")),
        ((6, 9, 3), ("image_raw", "height", "width", "depth")),
        ((6, 9, 3), ("image", "image/height", "image/width", "image/channels")),
        ((6, 9, 1), ("image", "rows", "cols", None)),
        ((6, 9, 3), ("image", "height", "width", None)),
    ],
)
def test_raw_pixels_are_read_if_their_size_is_stored_beside_them(tmp_path, capsys, shape, names):
    pixels = _pixels(40, shape)
    sizes = {name: size for name, size in zip(names[1:], shape, strict=True) if name}
    params = _write(tmp_path / "a.tfrecord", [{names[0]: each.tobytes(), **sizes} for each in pixels])
    write_records(params, tmp_path / "out")
    assert Manifest.load(tmp_path / "out").input.shape == shape
    assert f"{names[0]!r} contains raw pixels" in " ".join(capsys.readouterr().err.split())
    assert _stored(tmp_path / "out") == {f"a.tfrecord[{i}]": each.tobytes() for i, each in enumerate(pixels)}
    listing = list_unlabelled(params)
    assert np.asarray(Image.open(io.BytesIO(listing.read(7)))).tobytes() == pixels[7].tobytes()


def test_raw_pixels_of_a_wrong_length_are_set_aside(tmp_path):
    rows = [{"image": each.tobytes(), "height": 8, "width": 8} for each in _pixels(40, (8, 8, 1))]
    rows[5]["image"] = rows[5]["image"][:-1]
    params = _write(tmp_path / "a.tfrecord", rows)
    write_records(WriteParams(params.source, max_bad_fraction=0.1), tmp_path / "out")
    assert [item.key for item in Manifest.load(tmp_path / "out").quarantined] == ["a.tfrecord[5]"]


def test_image_files_stay_files_whatever_sizes_are_stored_beside_them(tmp_path):
    rows = []
    for each in _pixels(40, (8, 8, 1)):
        content = tf.io.encode_png(each).numpy()
        rows.append({"image": content, "height": 1, "width": len(content), "depth": 1})
    write_records(_write(tmp_path / "a.tfrecord", rows), tmp_path / "out")
    assert Manifest.load(tmp_path / "out").input.shape == (8, 8, 1)


@pytest.mark.parametrize(
    ("image", "received"),
    [
        (bytes(784), "784 bytes, which may be raw pixels"),
        (bytes(3072), "3,072 bytes, which may be raw pixels"),
        (tf.io.serialize_tensor(np.zeros((5, 7, 3), np.uint8)).numpy(), "a serialized tensor"),
        (tf.io.serialize_tensor(np.zeros((5, 7, 3), np.float32)).numpy(), "a serialized tensor"),
        ([0.5] * 784, "784 numbers"),
        ([7] * 784, "784 numbers"),
    ],
)
def test_what_is_no_image_file_is_named_with_what_to_store(tmp_path, image, received):
    params = _write(tmp_path / "a.tfrecord", [{"image": image}] * 40)
    with pytest.raises(InputError, match=rf"expected the bytes of an image file, received {received}\. Store encoded"):
        plan_dataset(params)


@pytest.mark.parametrize(
    ("dtype", "channels", "received"),
    [
        (np.uint8, 4, "480 bytes, 4 for each of 120 pixels"),
        (np.uint16, 1, "240 bytes, 2 for each of 120 pixels"),
        (np.float32, 3, "1,440 bytes, 12 for each of 120 pixels"),
    ],
)
def test_raw_pixels_of_another_type_are_named(tmp_path, dtype, channels, received):
    pixels = np.full((12, 10, channels), 3, dtype)
    params = _write(tmp_path / "a.tfrecord", [{"image": pixels.tobytes(), "height": 12, "width": 10}] * 40)
    with pytest.raises(InputError, match=rf"received {received}\. Store encoded files .* with 1 or 3 channels"):
        plan_dataset(params)

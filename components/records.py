"""The format of a record, and readers that parse whole batches at once.

Writing needs no TensorFlow: a TFRecord is a framed tf.train.Example, and workers start in a fraction of a second.
Reading runs in tf.data. Importing this module imports neither TensorFlow nor protobuf.
Formats: https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow/core/example/example.proto.
"""

import dataclasses
import functools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from components.artifacts import IMAGE_FEATURE, KEY_FEATURE, LABEL_FEATURE, Manifest

RAW, ENCODED = "raw", "encoded"
_READ_BUFFER_BYTES = 8 << 20
_PARSE_BATCH = 512  # Examples parsed by one op; enough to hide the cost of the op, little enough to stay in cache.
_DECODE_THREADS = 8
_GREY_WEIGHTS = (19595, 38470, 7471)  # ITU-R 601 luma of red, green and blue, in 1/65536.


@functools.cache
def _example_class() -> Any:
    """The message class of tf.train.Example, built from its descriptor so that writers need no TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    label, kind = descriptor_pb2.FieldDescriptorProto.Label, descriptor_pb2.FieldDescriptorProto.Type

    def message(name: str) -> Any:
        return file.message_type.add(name=name)

    message("BytesList").field.add(name="value", number=1, label=label.LABEL_REPEATED, type=kind.TYPE_BYTES)
    message("Int64List").field.add(name="value", number=1, label=label.LABEL_REPEATED, type=kind.TYPE_INT64)
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for name, number, type_name in (("bytes_list", 1, "BytesList"), ("int64_list", 3, "Int64List")):
        feature.field.add(
            name=name,
            number=number,
            label=label.LABEL_OPTIONAL,
            type=kind.TYPE_MESSAGE,
            type_name=f".tensorflow.{type_name}",
            oneof_index=0,
        )
    features = message("Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=label.LABEL_OPTIONAL, type=kind.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=label.LABEL_OPTIONAL,
        type=kind.TYPE_MESSAGE,
        type_name=".tensorflow.Feature",
    )
    features.field.add(
        name="feature",
        number=1,
        label=label.LABEL_REPEATED,
        type=kind.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )
    message("Example").field.add(
        name="features",
        number=1,
        label=label.LABEL_OPTIONAL,
        type=kind.TYPE_MESSAGE,
        type_name=".tensorflow.Features",
    )
    # A pool of our own: TensorFlow registers the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def encode_example(image: bytes, label: int, key: str) -> bytes:
    """A serialized tf.train.Example; equal arguments give equal bytes."""
    example = _example_class()()
    feature = example.features.feature
    feature[IMAGE_FEATURE].bytes_list.value.append(image)
    feature[LABEL_FEATURE].int64_list.value.append(label)
    feature[KEY_FEATURE].bytes_list.value.append(key.encode())
    return example.SerializeToString(deterministic=True)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame_record(payload: bytes) -> bytes:
    """`payload` as one TFRecord: its length, the length's checksum, the payload, the payload's checksum."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _masked_crc(length), payload, _masked_crc(payload)))


def tensorflow() -> Any:
    """TensorFlow, imported when first needed (5 s), told to stay off the GPU's memory and quiet about it."""
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf


def static_options() -> Any:
    """tf.data options for pipelines that are rebuilt every epoch.

    Autotuning is off: its thread sleeps for up to a minute between rounds, and an iterator that ends waits for it.
    """
    tf = tensorflow()
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    return options


def decode_image(encoded: Any, image_shape: tuple[int, int, int]) -> Any:
    """uint8[height, width, channels] from an encoded image: the one rule for training and for serving.

    The same pixels, to the bit, as create_tfrecords stores for a JPEG, PNG or GIF file of the right size. Where it
    resizes, Pillow and TensorFlow round differently: up to one level (of 255) apart.

    Args:
        encoded: A scalar string tensor with the bytes of a JPEG, PNG, GIF or BMP (24 bits) file.
        image_shape: The shape wanted; an image of another size is resized (bilinear, antialiased).
    """
    tf = tensorflow()
    height, width, channels = image_shape

    def decode_jpeg() -> Any:
        # TensorFlow's default is a faster transform, up to 4 levels off what libjpeg and all other readers give.
        return tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE")

    def decode_other() -> Any:
        colour = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        colour.set_shape((None, None, 3))
        if channels == 3:
            return colour
        # Pillow's weights and rounding; TensorFlow's own are one level off, and unknown for BMP and GIF.
        weighted = tf.reduce_sum(tf.cast(colour, tf.int32) * _GREY_WEIGHTS, axis=-1, keepdims=True)
        return tf.cast(tf.bitwise.right_shift(weighted + (1 << 15), 16), tf.uint8)

    image = tf.cond(tf.io.is_jpeg(encoded), decode_jpeg, decode_other)
    image.set_shape((None, None, channels))

    def resized() -> Any:
        scaled = tf.image.resize(image, (height, width), antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(scaled), 0.0, 255.0), tf.uint8)

    same = tf.reduce_all(tf.equal(tf.shape(image)[:2], (height, width)))
    return tf.ensure_shape(tf.cond(same, lambda: image, resized), image_shape)


def shard_paths(directory: Path, manifest: Manifest, split: str) -> list[str]:
    """The files of one split, in order."""
    return [str(directory / shard.name) for shard in manifest.split(split).shards]


def parse_batches(serialized: Any, manifest: Manifest, with_keys: bool = False) -> Any:
    """Turn a tf.data.Dataset of batches of serialized examples into one of batches of tensors.

    Returns:
        A dataset of dictionaries: `image` uint8[batch, height, width, channels], `label` int32[batch], and with
        `with_keys` also `key` string[batch].
    """
    tf = tensorflow()
    shape = manifest.image_shape
    spec = {
        IMAGE_FEATURE: tf.io.FixedLenFeature([], tf.string),
        LABEL_FEATURE: tf.io.FixedLenFeature([], tf.int64),
    }
    if with_keys:
        spec[KEY_FEATURE] = tf.io.FixedLenFeature([], tf.string)

    def parse(batch: Any) -> Any:
        fields = tf.io.parse_example(batch, spec)
        if manifest.encoding == RAW:
            pixels = tf.io.decode_raw(fields[IMAGE_FEATURE], tf.uint8, fixed_length=int(np.prod(shape)))
            fields[IMAGE_FEATURE] = tf.reshape(pixels, (-1, *shape))
        else:
            fields[IMAGE_FEATURE] = tf.map_fn(
                lambda encoded: decode_image(encoded, shape),
                fields[IMAGE_FEATURE],
                fn_output_signature=tf.TensorSpec(shape, tf.uint8),
                parallel_iterations=_DECODE_THREADS,
            )
        fields[LABEL_FEATURE] = tf.cast(fields[LABEL_FEATURE], tf.int32)
        return fields

    return serialized.map(parse, num_parallel_calls=2, deterministic=True)


def read_batches(
    directory: Path, manifest: Manifest, split: str, batch_size: int = _PARSE_BATCH, with_keys: bool = False
) -> Any:
    """One pass over a split in its stored order, as a tf.data.Dataset of batches; see `parse_batches`.

    The batch comes first and the parsing second: one op parses hundreds of examples.
    """
    tf = tensorflow()
    files = shard_paths(directory, manifest, split)
    serialized = tf.data.TFRecordDataset(files, buffer_size=_READ_BUFFER_BYTES).batch(batch_size)
    return parse_batches(serialized, manifest, with_keys).prefetch(2).with_options(static_options())


@dataclasses.dataclass(frozen=True)
class Examples:
    """A whole split in memory, in its stored order.

    Attributes:
        images: uint8[num_examples, height, width, channels].
        labels: int32[num_examples].
        keys: Where each example came from; empty unless asked for.
    """

    images: np.ndarray
    labels: np.ndarray
    keys: tuple[str, ...] = ()


def load_split(directory: Path, manifest: Manifest, split: str, with_keys: bool = False) -> Examples:
    """Read a whole split into memory.

    Raises:
        InputError: If the split has no examples.
    """
    num_examples = manifest.split(split).num_examples
    images = np.empty((num_examples, *manifest.image_shape), np.uint8)
    labels = np.empty(num_examples, np.int32)
    keys: list[str] = []
    start = 0
    for batch in read_batches(directory, manifest, split, with_keys=with_keys).as_numpy_iterator():
        end = start + len(batch[LABEL_FEATURE])
        images[start:end] = batch[IMAGE_FEATURE]
        labels[start:end] = batch[LABEL_FEATURE]
        keys.extend(key.decode() for key in batch.get(KEY_FEATURE, ()))
        start = end
    return Examples(images, labels, tuple(keys))


def decoded_bytes(manifest: Manifest, split: str) -> int:
    """The size of a split in memory, decoded, in bytes."""
    return manifest.split(split).num_examples * int(np.prod(manifest.image_shape))


def pick_images(directory: Path, manifest: Manifest, split: str, indices: Sequence[int]) -> dict[int, np.ndarray]:
    """Some images of a split, uint8[height, width, channels], by their place in its stored order."""
    wanted = sorted(set(indices))
    found: dict[int, np.ndarray] = {}
    start = 0
    for batch in read_batches(directory, manifest, split).as_numpy_iterator():
        end = start + len(batch[LABEL_FEATURE])
        found |= {index: batch[IMAGE_FEATURE][index - start] for index in wanted if start <= index < end}
        start = end
    return found

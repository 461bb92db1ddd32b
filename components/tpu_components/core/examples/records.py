"""Functions that write TFRecords, and that read TFRecord files in batches.

Each record is a framed tf.train.Example. Writing does not need TensorFlow, so worker processes start in a fraction of a
second. Reading in batches uses tf.data. Importing this module imports neither TensorFlow nor protobuf. Formats:
https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow/core/example/example.proto.
"""

import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import math
import struct
import typing
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from tpu_components.core.base.frameworks import tf
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples import images, orientation
from tpu_components.core.examples.artifacts import (
    KEY_FEATURE,
    LABEL_FEATURE,
    TEXT_FEATURE,
    TRAIN,
    WEIGHT_FEATURE,
    Manifest,
    Shard,
)
from tpu_components.core.examples.images import REDUCTIONS
from tpu_components.core.examples.interface import (
    PADDING,
    AnyInput,
    CorpusInput,
    ImageInput,
    TextInput,
    UnreadableError,
)
from tpu_components.core.files import storage

RAW, RESIZED, ENCODED = "raw", "resized", "encoded"
_READ_BUFFER_BYTES = 8 << 20
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # Bytes before and after the payload of a record.
_GZIP_MAGIC = b"\x1f\x8b\x08"  # https://www.rfc-editor.org/rfc/rfc1952
_MOST_RECORD_BYTES = 512 << 20  # The largest image that is decoded, 2**27 pixels, takes 384 MiB.
_PARSE_BATCH = 512  # Examples parsed by one op; enough to hide the cost of the op, few enough to stay in cache.
_GREY_WEIGHTS = (19595, 38470, 7471)  # ITU-R 601 luma of red, green and blue, in 1/65536.


class DamagedRecordError(UnreadableError):
    """A TFRecord file or one of its records is damaged. The message is the reason, without the file name."""


# tensorflow/core/example/example.proto and feature.proto as a FileDescriptorProto, in protobuf's text format.
_DESCRIPTOR = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".tensorflow.Feature" }
  }
  field {
    name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry"
  }
}
message_type {
  name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
}
"""


@functools.cache
def _example_class() -> Any:
    """Return the protobuf message class of tf.train.Example, which is built without TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    # A pool of our own: TensorFlow registers the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_DESCRIPTOR, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def encode_example(fields: Mapping[str, bytes | int | Sequence[int] | Sequence[float]]) -> bytes:
    """Serialize fields as a tf.train.Example. Equal fields give equal bytes.

    A sequence of numbers is stored as float32 if it contains a float, otherwise as int64.
    """
    example = _example_class()()
    features = example.features.feature
    for name, value in fields.items():
        feature = features[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif isinstance(value, int):
            feature.int64_list.value.append(value)
        elif any(isinstance(item, float) for item in value):
            feature.float_list.value.extend(value)
        else:
            feature.int64_list.value.extend(value)
    return example.SerializeToString(deterministic=True)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame_record(payload: bytes) -> bytes:
    """Return a payload framed as a TFRecord: length, checksum of the length, payload, checksum of the payload."""
    return b"".join((_frame_header(len(payload)), payload, _masked_crc(payload)))


@functools.lru_cache(1 << 12)
def _frame_header(num_bytes: int) -> bytes:
    length = struct.pack("<Q", num_bytes)
    return length + _masked_crc(length)


def find_records(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield (offset, framed size) of every record in a TFRecord file, in bytes. Only the record headers are read.

    Raises:
        DamagedRecordError: If a length does not match its checksum or is above 512 MiB, or the file ends within a
            record.
    """
    end = file.seek(0, io.SEEK_END)
    offset = 0
    while offset < end:
        file.seek(offset)
        num_bytes = _framed_bytes(file.read(_HEADER_BYTES), offset)
        if offset + num_bytes > end:
            raise DamagedRecordError(f"a truncated record at byte {offset:,}")
        yield offset, num_bytes
        offset += num_bytes


def _framed_bytes(header: bytes, offset: int) -> int:
    """Return the size in bytes of a framed record, from its header. `offset` is only for error messages."""
    if len(header) < _HEADER_BYTES or _masked_crc(header[:8]) != header[8:]:
        raise DamagedRecordError(f"no valid record at byte {offset:,}")
    num_bytes: int = _HEADER_BYTES + struct.unpack("<Q", header[:8])[0] + _FOOTER_BYTES
    if num_bytes > _MOST_RECORD_BYTES:
        raise DamagedRecordError(
            f"a record of {num_bytes >> 20:,} MiB at byte {offset:,}, expected at most {_MOST_RECORD_BYTES >> 20} MiB"
        )
    return num_bytes


def read_frames(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield (framed record, byte offset) for every record in a TFRecord file.

    The checksums of the payloads are not verified.

    Raises:
        DamagedRecordError: See `find_records`.
    """
    if isinstance(file, gzip.GzipFile):
        yield from _stream_frames(file)
        return
    for offset, num_bytes in find_records(file):
        file.seek(offset)
        yield file.read(num_bytes), offset


@contextlib.contextmanager
def open_records(path: str) -> Iterator[BinaryIO]:
    """Open a TFRecord file, local or in a bucket, for reading. A GZIP file is decompressed while it is read.

    Raises:
        InputError: If the file does not exist or cannot be read.
    """
    with storage.open_file(path) as file:
        if not is_gzip(file):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as content:
            yield typing.cast(BinaryIO, content)


def is_gzip(file: BinaryIO) -> bool:
    """Return whether a TFRecord file is compressed with GZIP. The position in the file must be 0, and is 0 afterwards.

    An uncompressed file may begin with the same bytes as GZIP, so the checksum in its first record header is tested,
    too.
    """
    header = file.read(_HEADER_BYTES)
    file.seek(0)
    return header.startswith(_GZIP_MAGIC) and _masked_crc(header[:8]) != header[8:]


def _stream_frames(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield (framed record, byte offset) for every record in a file of unknown size, such as a decompressed file."""
    offset = 0
    try:
        while header := file.read(_HEADER_BYTES):
            num_bytes = _framed_bytes(header, offset)
            frame = header + file.read(num_bytes - _HEADER_BYTES)
            if len(frame) < num_bytes:
                raise DamagedRecordError(f"a truncated record at byte {offset:,}")
            yield frame, offset
            offset += num_bytes
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedRecordError(f"damaged GZIP data after byte {offset:,} ({error})") from error


def read_fields(frame: bytes) -> dict[str, list[Any]]:
    """Return the features of a framed record, as {name: list of values}.

    Raises:
        DamagedRecordError: If the checksum does not match, or the record is not a tf.train.Example.
    """
    payload = frame[_HEADER_BYTES:-_FOOTER_BYTES]
    if _masked_crc(payload) != frame[-_FOOTER_BYTES:]:
        raise DamagedRecordError("a damaged record, whose checksum does not match")
    from google.protobuf.message import DecodeError  # Not a ValueError.

    try:
        features = _example_class().FromString(payload).features.feature
    except DecodeError as error:
        raise DamagedRecordError(f"a record that is not a tf.train.Example ({error})") from error
    kinds = {name: features[name].WhichOneof("kind") for name in features}
    return {name: list(getattr(features[name], kind).value) if kind else [] for name, kind in kinds.items()}


def static_options() -> Any:
    """Return tf.data options for pipelines that are rebuilt every epoch.

    The order of elements is deterministic. Autotuning is off, because the end of an iterator waits for the autotuning
    thread, which sleeps for up to a minute at a time.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    return options


def decode_image(encoded: Any, image_shape: tuple[int, int, int], reduced: bool = False, upright: bool = False) -> Any:
    """Decode an image to uint8[height, width, channels] with TensorFlow operations that a SavedModel can contain.

    For a JPEG, PNG or GIF file that already has this shape, the pixels are exactly those that create_tfrecords stores.
    Pixels of resized images differ by at most one level (of 255), because Pillow and TensorFlow round differently.

    Args:
        encoded: A scalar string tensor with the bytes of a JPEG, PNG, GIF or BMP (24 bits) file.
        image_shape: Shape of the result. An image of another size is resized (bilinear, antialiased).
        reduced: Whether a larger JPEG file is decoded at a reduced scale; see `images.reduction`.
        upright: Whether a photo is rotated according to its EXIF orientation; see `orientation.read_orientation`.
    """
    height, width, channels = image_shape
    turned_by = orientation.read_orientation(encoded) if upright else tf.constant(1, tf.int64)

    def decode_at(ratio: int) -> Any:
        # TensorFlow's default is a faster transform, which differs by up to 4 levels from libjpeg and other decoders.
        return tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio, dct_method="INTEGER_ACCURATE")

    def decode_jpeg() -> Any:
        if not reduced:
            return decode_at(1)
        size = tf.image.extract_jpeg_shape(encoded)[:2]
        size = tf.where(turned_by >= 5, size[::-1], size)
        fitting = [
            (tf.reduce_all((size + ratio - 1) // ratio >= (height, width)), functools.partial(decode_at, ratio))
            for ratio in REDUCTIONS
        ]
        return tf.case(fitting, functools.partial(decode_at, 1))

    def decode_other() -> Any:
        colour = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        colour.set_shape((None, None, 3))
        if channels == 3:
            return colour
        # Pillow's weights and rounding; TensorFlow's own are one level off, and unknown for BMP and GIF.
        weighted = tf.reduce_sum(tf.cast(colour, tf.int32) * _GREY_WEIGHTS, axis=-1, keepdims=True)
        return tf.cast(tf.bitwise.right_shift(weighted + (1 << 15), 16), tf.uint8)

    image = tf.cond(tf.io.is_jpeg(encoded), decode_jpeg, decode_other)
    if upright:
        image = orientation.turn(image, turned_by)
    image.set_shape((None, None, channels))

    def resized() -> Any:
        scaled = tf.image.resize(image, (height, width), antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(scaled), 0.0, 255.0), tf.uint8)

    same = tf.reduce_all(tf.equal(tf.shape(image)[:2], (height, width)))
    return tf.ensure_shape(tf.cond(same, lambda: image, resized), image_shape)


def shard_paths(directory: Path, manifest: Manifest, split: str) -> list[str]:
    """Return the paths of a split's TFRecord files, in the order of the manifest."""
    return [shard.path(directory) for shard in manifest.split(split).shards]


def open_shards(files: Any, manifest: Manifest, buffer_bytes: int | None = None) -> Any:
    """Return a tf.data.Dataset of the serialized examples in some shards.

    Args:
        files: Paths of the shards.
        manifest: Manifest of the records, which says how the shards are compressed.
        buffer_bytes: Size of the read buffer, in bytes, or None for TensorFlow's default.
    """
    return tf.data.TFRecordDataset(files, manifest.compression, buffer_bytes)


def read_shard(directory: Path, manifest: Manifest, shard: Shard) -> Generator[dict[str, list[Any]], None, None]:
    """Yield the features of every record in a shard, as {name: list of values}.

    If another program wrote the records, their features are also included under this project's names. A record without
    a key gets the key `FILE[NUMBER]`.

    Raises:
        DamagedRecordError: If a record is damaged.
    """
    with open_records(shard.path(directory)) as file:
        for number, (frame, _) in enumerate(read_frames(file)):
            fields = read_fields(frame)
            fields |= {ours: fields[theirs] for ours, theirs in manifest.feature_names.items() if theirs in fields}
            yield {KEY_FEATURE: [f"{Path(shard.name).name}[{number}]".encode()], **fields}


def parts_of_shards(counts: Sequence[int], share: Share) -> np.ndarray:
    """Return the ranges of records that make up one reader's share of a split, int64[ranges, 3].

    Each row has the index of a shard, the number of records to skip, and the number of records to read.

    Args:
        counts: Number of examples in each shard of the split.
        share: The reader's share of the split's examples.

    Example:
        >>> parts_of_shards([4, 4, 4], Share(1, 2)).tolist()
        [[1, 2, 2], [2, 0, 4]]
    """
    ends = np.cumsum([0, *counts])
    wanted = share.within(int(ends[-1]))
    parts = [
        (shard, max(wanted.start - start, 0), min(end, wanted.stop) - max(start, wanted.start))
        for shard, (start, end) in enumerate(itertools.pairwise(ends.tolist()))
        if start < wanted.stop and wanted.start < end
    ]
    return np.array(parts, np.int64).reshape(-1, 3)


def parse_batches(serialized: Any, manifest: Manifest, with_keys: bool = False, with_margin: bool = False) -> Any:
    """Parse batches of serialized examples, and return a tf.data.Dataset of batches of tensors.

    Args:
        serialized: A tf.data.Dataset of batches, string[batch]. Each string is a serialized tf.train.Example.
        manifest: Manifest of the records.
        with_keys: Whether to add the keys of the examples and, for text inputs, the original texts.
        with_margin: Whether images keep their margin, from which training takes random crops. Otherwise, images are
            cropped to the center.

    Returns:
        A dataset of dictionaries with these items:

        - the input: `image` uint8[batch, height, width, channels], or `tokens` int32[batch, num_tokens];
        - the target `label`: int32[batch] for classes, int32[batch, num_tokens] for a language model, otherwise
          float32[batch, num_classes or num_targets];
        - `weight` float32[batch], the example's weight in the training loss: 1 if the records have no weights;
        - with `with_keys`: `key` string[batch], and for texts `text` string[batch].
    """
    inputs, interface = manifest.input, manifest.interface
    feature = inputs.feature
    task = interface.task
    is_corpus = isinstance(inputs, CorpusInput)
    is_cut = inputs.fed_shape != inputs.shape and not with_margin
    names = [feature]
    if with_keys:
        names += [KEY_FEATURE, TEXT_FEATURE] if isinstance(inputs, TextInput) else [KEY_FEATURE]
    stored_as = {name: manifest.feature_names.get(name, name) for name in (*names, LABEL_FEATURE, WEIGHT_FEATURE)}
    spec = {stored_as[name]: tf.io.FixedLenFeature([], tf.string) for name in names}
    # The label in a record of a corpus is the number of targets that count.
    spec[stored_as[LABEL_FEATURE]] = tf.io.FixedLenFeature(
        () if is_corpus else interface.target_shape, task.stored_dtype
    )
    if WEIGHT_FEATURE in manifest.features:
        spec[stored_as[WEIGHT_FEATURE]] = tf.io.FixedLenFeature((), tf.float32)

    @tf.autograph.experimental.do_not_convert  # Nothing to convert, and the search for it takes 0.1 s.
    def parse(batch: Any) -> Any:
        stored = tf.io.parse_example(batch, spec)
        fields = {name: stored[feature] for name, feature in stored_as.items() if feature in stored}
        if WEIGHT_FEATURE not in manifest.features:  # A default would cost a search in every record.
            fields[WEIGHT_FEATURE] = tf.ones(tf.shape(batch))
        fields[LABEL_FEATURE] = tf.cast(fields[LABEL_FEATURE], task.target_dtype)
        if isinstance(inputs, ImageInput):
            whole = _parse_images(inputs, fields[feature])
            fields[feature] = images.middle(whole, inputs.shape) if is_cut else whole
            return fields
        ids = _parse_tokens(inputs, fields[feature])
        if not is_corpus:
            return fields | {feature: ids}
        counts = tf.range(inputs.num_tokens) >= inputs.num_tokens - fields[LABEL_FEATURE][:, None]
        return fields | {feature: ids[:, :-1], LABEL_FEATURE: tf.where(counts, ids[:, 1:], PADDING)}

    return serialized.map(parse, num_parallel_calls=2, deterministic=True)


def _parse_images(inputs: ImageInput, stored: Any) -> Any:
    """Parse stored images, string[batch], to uint8[batch, *fed_shape]."""
    shape = inputs.fed_shape
    if inputs.encoding == RAW:
        return tf.reshape(tf.io.decode_raw(stored, tf.uint8, fixed_length=math.prod(shape)), (-1, *shape))
    from tpu_components.core.examples.decoding import decode_batch

    decoded = tf.numpy_function(lambda files: decode_batch(files, inputs), [stored], tf.uint8)
    return tf.ensure_shape(decoded, (None, *shape))


def _parse_tokens(inputs: TextInput | CorpusInput, stored: Any) -> Any:
    """Parse stored IDs, string[batch], to int32[batch, stored_tokens]."""
    num_bytes = inputs.stored_tokens * np.dtype(inputs.stored_dtype).itemsize
    ids = tf.io.decode_raw(stored, inputs.stored_dtype, little_endian=True, fixed_length=num_bytes)
    return tf.cast(tf.reshape(ids, (-1, inputs.stored_tokens)), inputs.dtype)


def read_batches(
    directory: Path,
    manifest: Manifest,
    split: str,
    batch_size: int = _PARSE_BATCH,
    with_keys: bool = False,
    with_margin: bool = False,
    share: Share = WHOLE,
) -> Any:
    """Return a tf.data.Dataset of the batches of a split, or of a share of it, in stored order.

    See `parse_batches` for the content of a batch.

    Examples are batched before they are parsed, because one op can parse hundreds of examples.
    """
    files = shard_paths(directory, manifest, split)
    parts = parts_of_shards([shard.num_examples for shard in manifest.split(split).shards], share)
    serialized = open_shards([files[shard] for shard in parts[:, 0]], manifest, _READ_BUFFER_BYTES)
    if share != WHOLE:
        skipped = int(parts[0, 1]) if len(parts) else 0
        serialized = serialized.skip(skipped).take(int(parts[:, 2].sum()))
    serialized = serialized.batch(batch_size)
    are_named = not with_keys or KEY_FEATURE in manifest.features
    batches = parse_batches(serialized, manifest, with_keys and are_named, with_margin)
    if not are_named:
        keys = _key_batches(manifest, split, batch_size, share)
        batches = tf.data.Dataset.zip((batches, keys)).map(lambda fields, keys: fields | {KEY_FEATURE: keys})
    return batches.prefetch(2).with_options(static_options())


def _key_batches(manifest: Manifest, split: str, batch_size: int, share: Share) -> Any:
    """Return a tf.data.Dataset of batches of keys, `FILE[NUMBER]`, for records that do not contain keys."""
    shards = manifest.split(split).shards
    names = tf.constant([Path(shard.name).name for shard in shards])
    ends = np.cumsum([shard.num_examples for shard in shards])
    starts = ends - [shard.num_examples for shard in shards]
    wanted = share.within(int(ends[-1]))

    def name(places: Any) -> Any:
        shard = tf.searchsorted(ends, places, side="right")
        numbers = tf.strings.as_string(places - tf.gather(starts, shard))
        return tf.strings.join([tf.gather(names, shard), "[", numbers, "]"])

    return tf.data.Dataset.range(wanted.start, wanted.stop).batch(batch_size).map(name)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a split, or of one host's share of it, in memory and in stored order.

    Attributes:
        inputs: dtype[num_examples, *shape]; see `Manifest.input`. For images, uint8[num_examples, height, width,
            channels].
        labels: Targets: int32[num_examples] for classes, int32[num_examples, num_tokens] for a language model,
            otherwise float32[num_examples, …].
        weights: Weights in the training loss, float32[num_examples].
        keys: Keys of the examples. Empty unless keys were requested.
    """

    inputs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    keys: tuple[str, ...] = ()


def load_split(
    directory: Path,
    manifest: Manifest,
    split: str,
    with_keys: bool = False,
    with_margin: bool = False,
    share: Share = WHOLE,
) -> Examples:
    """Read a split, or a share of it, into memory. The arguments are the same as for `read_batches`.

    Raises:
        InputError: If the split has no examples.
    """
    num_examples = len(share.within(manifest.split(split).num_examples))
    shapes = manifest.interface.batch_shapes(num_examples, with_margin)
    inputs, labels, weights = (np.empty(*shape) for shape in shapes)
    keys: list[str] = []
    start = 0
    batches = read_batches(directory, manifest, split, with_keys=with_keys, with_margin=with_margin, share=share)
    for batch in batches.as_numpy_iterator():
        end = start + len(batch[LABEL_FEATURE])
        inputs[start:end] = batch[manifest.input.feature]
        labels[start:end] = batch[LABEL_FEATURE]
        weights[start:end] = batch[WEIGHT_FEATURE]
        keys.extend(key.decode() for key in batch.get(KEY_FEATURE, ()))
        start = end
    return Examples(inputs, labels, weights, tuple(keys))


def input_bytes(inputs: AnyInput, with_margin: bool = False) -> int:
    """Return the size of one example's input in memory, in bytes, with or without the margin of images."""
    return math.prod(inputs.fed_shape if with_margin else inputs.shape) * np.dtype(inputs.dtype).itemsize


def decoded_bytes(manifest: Manifest, split: str) -> int:
    """Return the size of a split's inputs in memory, in bytes. Training images include their margin."""
    return manifest.split(split).num_examples * input_bytes(manifest.input, with_margin=split == TRAIN)


def pick_inputs(directory: Path, manifest: Manifest, split: str, indices: Sequence[int]) -> dict[int, np.ndarray]:
    """Read the inputs of some examples, as {index: dtype[*shape]}. An index is a position in the stored order."""
    return _pick(directory, manifest, split, indices, manifest.input.feature)


def pick_texts(directory: Path, manifest: Manifest, split: str, indices: Sequence[int]) -> dict[int, str]:
    """Read the original texts of some examples, as {index: text}. An index is a position in the stored order."""
    texts = _pick(directory, manifest, split, indices, TEXT_FEATURE)
    return {index: text.decode() for index, text in texts.items()}


def _pick(directory: Path, manifest: Manifest, split: str, indices: Sequence[int], field: str) -> dict[int, Any]:
    wanted = sorted(set(indices))
    picked: dict[int, Any] = {}
    start = 0
    for batch in read_batches(directory, manifest, split, with_keys=field == TEXT_FEATURE).as_numpy_iterator():
        end = start + len(batch[LABEL_FEATURE])
        picked |= {index: batch[field][index - start] for index in wanted if start <= index < end}
        start = end
    return picked


def spread_inputs(directory: Path, manifest: Manifest, split: str, count: int) -> tuple[list[int], np.ndarray]:
    """Read at most `count` evenly spaced inputs of a split. Return their indices and the inputs, dtype[N, *shape]."""
    available = manifest.split(split).num_examples
    indices = np.linspace(0, available - 1, min(count, available)).astype(int).tolist()
    picked = pick_inputs(directory, manifest, split, indices)
    return indices, np.stack([picked[index] for index in indices])

"""TFRecord files from other programs, with images or texts.

The files are read in place. The names of the features determine which feature is the image, the text or the label.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.artifacts import LABEL_FEATURE, WEIGHT_FEATURE
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.example_ids import HASH_TYPE, identify
from tpu_components.core.examples.images import UnreadableImageError, open_image
from tpu_components.core.examples.interface import IMAGE, ImageRule
from tpu_components.core.examples.records import (
    ENCODED,
    RAW,
    DamagedRecordError,
    is_gzip,
    open_records,
    read_fields,
    read_frames,
)
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.sources.containers import (
    Container,
    list_containers,
    split_pattern,
    splits_of,
    stored_files,
    version_of,
)
from tpu_components.core.sources.fields import Chosen, choose_fields, list_rows
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import LaterSpans, Span, Spans, copy_contents
from tpu_components.core.sources.stored_records import REWRITE, StoredFile, StoredRecords
from tpu_components.core.work.workers import in_threads

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz")
_CLASSES_SUFFIX = ".labels.txt"  # TensorFlow Datasets writes the class names beside its records, one per line.
# Names of the features with the size of raw pixels, also with the prefix `image/`.
_SIZES = (("height", "rows"), ("width", "cols"), ("channels", "depth"))
_RAW_KINDS = {1: "P5", 3: "P6"}  # Netpbm's formats, by the number of channels.
_LEAST_PIXELS = 64  # Fewer bytes are unlikely to be pixels.
_RAW_NOTE = "{!r} contains raw pixels. They are read row by row, with the channels of each pixel together"


class _Row(NamedTuple):
    """A record of a TFRecord file.

    Attributes:
        span: Byte range of the image or text.
        identity: Hash of the image or text.
        values: Values of the other features that are read.
        header: For raw pixels, the header of a PGM or PPM file with these pixels; otherwise empty.
    """

    span: Span
    identity: bytes
    values: list[list[Any] | None]
    header: bytes = b""


def list_tfrecords(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the records of TFRecord files from other programs.

    Every record is read once, to check the record and to find the image or text in it.
    """
    files = _list_files(location)
    first = _first_record(files[0])
    are_stored = labelled and not params.rewrite
    chosen = choose_fields(sorted(first), params, files[0].path, labelled)
    if are_stored:
        chosen = _as_stored(chosen, location)
    name = chosen.names[chosen.content]
    is_raw = chosen.content == "image" and _is_raw(first, name, files[0].path)
    are_compressed = [_is_compressed(file) for file in files]
    by_file = list(in_threads(lambda file: list(_read_file(file, chosen, is_raw)), files[0].path, files))
    rows = [row for rows in by_file for row in rows]
    keys = tuple(f"{file.name}[{i}]" for file, rows in zip(files, by_file, strict=True) for i in range(len(rows)))
    values = {name: [row.values[place] for row in rows] for place, name in enumerate(chosen.wanted)}
    of_files = splits_of(files, location, params.split_files) if labelled else None
    hashes = np.frombuffer(b"".join(row.identity for row in rows), HASH_TYPE)
    spans: Spans | LaterSpans = Spans.collect([row.span for row in rows])
    if is_raw or any(are_compressed):
        num_bytes = spans.num_bytes
        spans = LaterSpans(tuple(file.path for file in files), num_bytes, len(rows), functools.partial(_unpack, rows))
    stored = None
    if are_stored:
        counts = list(map(len, by_file))
        stored = _stored_records(files, of_files, counts, chosen, is_raw, are_compressed, location)
    return list_rows(
        values,
        chosen,
        keys,
        splits=None if of_files is None else np.repeat(of_files, list(map(len, by_file))),
        identify=lambda: hashes,
        spans=spans,
        containers=stored_files(files),
        version=version_of(files),
        notes=(*chosen.notes, *([_RAW_NOTE.format(name)] if is_raw else [])),
        hashes=hashes if chosen.content == "text" else None,
        stored=stored,
    )


def _is_compressed(file: Container) -> bool:
    with storage.open_file(file.path) as content:
        return is_gzip(content)


def _as_stored(chosen: Chosen, location: Location) -> Chosen:
    """Adapt `chosen` to records that are used in place: the split field is removed, and class names are added.

    Raises:
        InputError: If the records contain texts, the location is one that training cannot read, or `target_columns` is
            set.
    """
    params = chosen.params
    if location.is_remote and location.scheme is not Scheme.GOOGLE:
        raise InputError(f"Training reads only local and gs:// files. Received: {location!r}. {REWRITE}")
    if chosen.content != "image":
        raise InputError(f"Training cannot read the texts in {location} as they are: it reads token IDs. {REWRITE}")
    if params.target_columns:
        raise InputError(
            f"Training reads the target from one feature. Received: target_columns={list(params.target_columns)}. Set "
            f"data.columns={{label: …}}. {REWRITE.replace('Set', 'Or set')}"
        )
    names = {role: name for role, name in chosen.names.items() if role != "split"}
    class_names = params.class_names or _read_class_names(location, chosen.targets[0])
    return dataclasses.replace(chosen, names=names, class_names=class_names)


def _read_class_names(location: Location, label: str) -> tuple[str, ...]:
    """Return the class names that TensorFlow Datasets has written beside its records, if there are any."""
    folder, pattern = split_pattern(location)
    if not pattern and location.lower().endswith(_SUFFIXES):
        folder = location.parent
    path = folder.child(f"{label.replace('/', '-')}{_CLASSES_SUFFIX}")
    return tuple(map(class_name, storage.read_bytes(path).decode().splitlines())) if storage.exists(path) else ()


def _stored_records(
    files: Sequence[Container],
    splits: Sequence[str] | None,
    counts: Sequence[int],
    chosen: Chosen,
    is_raw: bool,
    are_compressed: Sequence[bool],
    location: Location,
) -> StoredRecords:
    """Return the description of files whose records are used in place.

    Raises:
        InputError: If the files have no splits, are compressed differently, or one of them is empty.
    """
    if splits is None:
        raise InputError(
            f"The file names in {location} do not define splits, and records that are used in place cannot be divided. "
            f"Received: {quoted([file.name for file in files])}. Name the files of each split, as in data.split_files="
            '{"train": "train*", "test": "test*"}. To only evaluate, use {"test": "*"}. Or set data.rewrite to true.'
        )
    if empty := [file.name for file, count in zip(files, counts, strict=True) if not count]:
        raise InputError(f"Files without records in {location}: {quoted(empty)}. Remove them, or name other files.")
    if len(set(are_compressed)) > 1:
        raise InputError(
            f"Some files in {location} are compressed with GZIP and others are not. Training requires that all files "
            f"are compressed, or none. {REWRITE}"
        )
    feature_of = {IMAGE: chosen.names[IMAGE], LABEL_FEATURE: chosen.targets[0]}
    if WEIGHT_FEATURE in chosen.names:
        feature_of[WEIGHT_FEATURE] = chosen.names[WEIGHT_FEATURE]
    paths = [file.path if Location(file.path).is_remote else os.path.abspath(file.path) for file in files]
    return StoredRecords(
        tuple(map(StoredFile, paths, splits, counts)),
        {ours: theirs for ours, theirs in feature_of.items() if ours != theirs},
        "GZIP" if are_compressed[0] else "",
        RAW if is_raw else ENCODED,
    )


def _list_files(location: Location) -> list[Container]:
    try:
        return list_containers(location, _SUFFIXES)
    except InputError:
        # As TensorFlow Datasets names them: NAME-train.tfrecord-00000-of-00004.
        if split_pattern(location)[1]:
            raise
        return list_containers(location.child("*.tfrecord-*"), _SUFFIXES)


def _first_record(file: Container) -> Mapping[str, list[Any]]:
    """Return the features of the first record, by name in NFC."""
    try:
        for frame, _ in _frames(file):
            return {as_nfc(field): values for field, values in read_fields(frame).items()}
    except DamagedRecordError as error:
        raise _unreadable(file, 0, error) from error
    raise InputError(f"Cannot read {file.path}: expected TFRecords, received an empty file. Check the path.")


def _frames(file: Container) -> Iterator[tuple[bytes, int]]:
    with open_records(file.path) as content:
        yield from read_frames(content)


def _is_raw(first: Mapping[str, list[Any]], name: str, path: str) -> bool:
    """Return whether the images are raw pixels instead of image files, according to the first record.

    Raises:
        InputError: If the feature contains numbers, a serialized tensor, or raw pixels without their height and width.
    """
    values = first.get(name, [])
    received = ""
    if values and not isinstance(values[0], bytes):
        received = f"{len(values):,} numbers"
    elif len(values) == 1 and not _is_image(content := values[0]):
        if _raw_header(first, content):
            return True
        height, width, _ = _raw_size(first)
        num_pixels = height * width
        if content[:1] == b"\x08" and content[2:3] == b"\x12":  # dtype and tensor_shape of tensor.proto.
            received = "a serialized tensor"
        elif num_pixels and len(content) >= _LEAST_PIXELS and len(content) % num_pixels == 0:
            received = f"{len(content):,} bytes, {len(content) // num_pixels} for each of {num_pixels:,} pixels"
        elif len(content) >= _LEAST_PIXELS and any(
            len(content) == channels * math.isqrt(len(content) // channels) ** 2 for channels in _RAW_KINDS
        ):
            received = f"{len(content):,} bytes, which may be raw pixels"
    if received:
        raise InputError(
            f"Cannot use the feature {name!r} of {path}: expected the bytes of an image file, received {received}. "
            "Store encoded files (tf.io.encode_png), or store raw uint8 pixels with 1 or 3 channels, and add the "
            "features height, width and channels to each example."
        )
    return False


def _is_image(content: bytes) -> bool:
    try:
        open_image(content, ImageRule(None, 0))
    except UnreadableImageError:
        return False
    return True


def _raw_size(fields: Mapping[str, list[Any]]) -> tuple[int, int, int]:
    """Read the height, width and channels of raw pixels from other features. A missing value is 0."""
    height, width, channels = (_stored_size(fields, names) for names in _SIZES)
    return height, width, channels


def _stored_size(fields: Mapping[str, list[Any]], usual: Sequence[str]) -> int:
    names = [f"{prefix}{word}" for word in usual for prefix in ("", "image/")]
    values = next((fields[name] for name in names if name in fields), [])
    return max(values[0], 0) if len(values) == 1 and isinstance(values[0], int) else 0


def _raw_header(fields: Mapping[str, list[Any]], content: bytes) -> bytes:
    """Return a PGM or PPM header that makes `content` an image file.

    Return empty bytes if the content does not match the size in the other features.

    TensorFlow's converters of MNIST and CIFAR-10 wrote raw pixels and the features `height`, `width` and `depth`.
    """
    height, width, channels = _raw_size(fields)
    if not height or not width:
        return b""
    channels = channels or len(content) // (height * width)
    if channels not in _RAW_KINDS or len(content) != height * width * channels:
        return b""
    return f"{_RAW_KINDS[channels]} {width} {height} 255\n".encode()


def _unpack(rows: Sequence[_Row]) -> Spans:
    """Copy the images or texts of records to a temporary file. Raw pixels become PGM or PPM images."""

    def contents() -> Iterator[bytes]:
        for path, of_file in itertools.groupby(rows, key=lambda row: row.span.path):
            with open_records(path) as file:
                for row in of_file:
                    file.seek(row.span.offset)
                    yield row.header + file.read(row.span.num_bytes)

    return copy_contents(contents(), sum(len(row.header) + row.span.num_bytes for row in rows))


def _read_file(file: Container, chosen: Chosen, is_raw: bool) -> Iterator[_Row]:
    """Yield the records of a file.

    Raises:
        InputError: If a record is damaged, or has no image or text.
    """
    name = chosen.names[chosen.content]
    number = 0
    are_ascii = all(map(str.isascii, (name, *chosen.wanted)))
    try:
        for frame, offset in _frames(file):
            fields = read_fields(frame)
            if not are_ascii:
                fields = {as_nfc(field): values for field, values in fields.items()}
            values = fields.get(name, [])
            if len(values) != 1 or not isinstance(values[0], bytes):
                raise DamagedRecordError(f"expected one value of bytes in {name!r}, received {str(values)[:60]}")
            # A record stores bytes unchanged, so they can be read in place. Any equal bytes in the frame will do.
            span = Span(file.path, offset + frame.index(values[0]), len(values[0]))
            header = _raw_header(fields, values[0]) if is_raw else b""
            yield _Row(span, identify(values[0]), [fields.get(other) for other in chosen.wanted], header)
            number += 1
    except DamagedRecordError as error:
        raise _unreadable(file, number, error) from error


def _unreadable(file: Container, number: int, error: DamagedRecordError) -> InputError:
    return InputError(
        f"Cannot read {file.path}, at record {number}: {error}. Expected TFRecords of tf.train.Example, not compressed "
        "or compressed with GZIP. Write the file again."
    )


SOURCE = Source(
    "tfrecords:GLOB",
    list_tfrecords,
    suffixes=(".tfrecord", ".tfrecords"),
    takes=("task", "columns", "split_files", "rewrite"),
)

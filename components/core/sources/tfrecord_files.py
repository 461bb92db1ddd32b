"""TFRecords of other programs, with images or texts, read in place by the names of the features."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.example_ids import IDENTITY_TYPE, identify
from tpu_components.core.examples.records import DamagedRecordError, read_fields, read_frames
from tpu_components.core.files import storage
from tpu_components.core.sources.containers import Container, list_containers, splits_of, version_of
from tpu_components.core.sources.fields import Chosen, choose_fields, list_rows
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import Span, Spans
from tpu_components.core.work.workers import in_threads

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")


class _Row(NamedTuple):
    """A record: the byte range and the hash of its image or text, and the values of its other features."""

    span: Span
    identity: bytes
    values: list[list[Any] | None]


def list_tfrecords(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List the records of files; every record is read once, to check it and to find the image or text in it."""
    files = _list_files(location)
    chosen = choose_fields(_fields_of(files[0]), params, files[0].path, labelled)
    by_file = list(in_threads(lambda file: list(_read_file(file, chosen)), files[0].path, files))
    rows = [row for rows in by_file for row in rows]
    keys = tuple(f"{file.name}[{i}]" for file, rows in zip(files, by_file, strict=True) for i in range(len(rows)))
    values = {name: [row.values[place] for row in rows] for place, name in enumerate(chosen.wanted)}
    of_files = splits_of(files, location) if labelled else None
    hashes = np.frombuffer(b"".join(row.identity for row in rows), IDENTITY_TYPE)
    return list_rows(
        values,
        chosen,
        keys,
        splits=None if of_files is None else np.repeat(of_files, list(map(len, by_file))),
        identify=lambda: hashes,
        spans=Spans.collect([row.span for row in rows]),
        version=version_of(files),
        notes=chosen.notes,
        hashes=hashes if chosen.content == "text" else None,
    )


def _list_files(location: str) -> list[Container]:
    try:
        return list_containers(location, _SUFFIXES)
    except InputError:
        # As TensorFlow Datasets names them: NAME-train.tfrecord-00000-of-00004.
        if any(sign in location for sign in "*?["):
            raise
        return list_containers(f"{location.rstrip('/')}/*.tfrecord-*", _SUFFIXES)


def _fields_of(file: Container) -> list[str]:
    """Return the names of the first record's features."""
    try:
        for frame, _ in _frames(file):
            return sorted(map(as_nfc, read_fields(frame)))
    except DamagedRecordError as error:
        raise _unreadable(file, 0, error) from error
    raise InputError(f"Cannot read {file.path}: it holds no record. Expected TFRecords. Check the path.")


def _frames(file: Container) -> Iterator[tuple[bytes, int]]:
    with storage.open_file(file.path) as content:
        yield from read_frames(content)


def _read_file(file: Container, chosen: Chosen) -> Iterator[_Row]:
    """Yield the records of a file.

    Raises:
        InputError: If a record is damaged, or has no image or text.
    """
    name, number = chosen.names[chosen.content], 0
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
            yield _Row(span, identify(values[0]), [fields.get(other) for other in chosen.wanted])
            number += 1
    except DamagedRecordError as error:
        raise _unreadable(file, number, error) from error


def _unreadable(file: Container, number: int, error: DamagedRecordError) -> InputError:
    return InputError(
        f"Cannot read {file.path}, at record {number}: {error}. Expected TFRecords of tf.train.Example that are not "
        "compressed. Write the file again."
    )


SOURCE = Source(
    "tfrecords:GLOB",
    list_tfrecords,
    takes=("task", "columns"),
)

"""A part as one file, here or in a bucket: what one process wrote, and any other can read."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import KEY_FEATURE, LABEL_FEATURE, Quarantined
from tpu_components.core.examples.records import DamagedRecordError, read_fields
from tpu_components.core.files import storage, typed_json
from tpu_components.core.sources.columns import pick
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.unpacking import read_arrays
from tpu_components.create_tfrecords.parts import BOOKS, Part

_COLUMNS = ("kept", *BOOKS)


def save_part(uri: str, key: str, part: Part, content: bytes) -> None:
    """Write a part whole or not at all.

    Args:
        uri: The file.
        key: Digest of the facts that the part follows from.
        part: Its books.
        content: Its framed records.
    """
    bad = [dataclasses.asdict(item) for item in part.bad]
    arrays = {name: array for name in _COLUMNS if (array := getattr(part, name)) is not None}
    file = io.BytesIO()
    np.savez(
        file,
        key=np.array(key),
        bad=np.frombuffer(json.dumps(bad).encode(), np.uint8),
        digests=np.frombuffer(part.digests, np.uint8),
        content=np.frombuffer(content, np.uint8),
        **arrays,
    )
    storage.write_file(uri, file.getvalue())


def is_saved(uri: str, key: str) -> bool:
    """Return whether a file is the part that follows from `key`, and whole."""
    try:
        load_part(uri, key)
    except InputError:
        return False
    return True


def load_part(uri: str, key: str) -> tuple[Part, bytes]:
    """Read a part: its books, and its framed records, each of which has the digest that the books say.

    Raises:
        InputError: If it is missing or damaged, or does not follow from `key`.
    """
    try:
        stored = read_arrays(uri, storage.read_bytes(uri))
        received, content = str(stored["key"]), stored["content"].tobytes()
        bad = typed_values.read(typed_json.decode(stored["bad"].tobytes()), tuple[Quarantined, ...])
        books: dict[str, Any] = {name: stored[name] for name in _COLUMNS if name in stored}
        part = Part(uri, digests=stored["digests"].tobytes(), bad=bad, **books)
        _check_books(part, content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"Cannot read the part {uri}: expected a file that a task has written whole, received {error!r}. Run that "
            "task again."
        ) from error
    if received != key:
        raise InputError(
            f"The part {uri} was written from other data, parameters or code: expected {key[:12]}, received "
            f"{received[:12]}. Run all tasks again."
        )
    return part, content


def _check_books(part: Part, content: bytes) -> None:
    """Check that the books and the records of a part are of each other.

    Raises:
        ValueError: If they are not.
    """
    count = len(part.kept)
    if odd := [name for name in BOOKS if (rows := getattr(part, name)) is not None and len(rows) != count]:
        raise ValueError(f"{odd[0]} of another number of records than {count:,}")
    if part.kept.ndim != 1 or part.sizes.ndim != 1:
        raise ValueError("tables where columns are expected")
    if part.sizes.sum() != len(content):
        raise ValueError(f"{len(content):,} bytes of records, expected {part.sizes.sum():,}")
    digests = b"".join(hashlib.sha256(frame).digest() for frame in _frames(part, content))
    if digests != part.digests:
        raise ValueError("records of other digests than those that were written")


def _frames(part: Part, content: bytes) -> Iterator[memoryview]:
    ends = np.cumsum(part.sizes).tolist()
    return (memoryview(content)[start:end] for start, end in zip([0, *ends], ends, strict=False))


def check_part(part: Part, content: bytes, listing: Listing, indices: np.ndarray) -> None:
    """Check that a part holds the examples of its task, each with its name and its label, or has set it aside.

    What a picture or a text has become is not written again to be compared.

    Args:
        part: Its books.
        content: Its records.
        listing: The examples of the plan.
        indices: int[…], those of the task.

    Raises:
        InputError: If it holds anything else.
    """
    left = np.ones(len(indices), bool)
    try:
        left[part.kept] = False
        if np.any(np.diff(part.kept) <= 0) or np.any(part.kept < 0):
            raise ValueError("examples in another order")
        if (keys := [item.key for item in part.bad]) != pick(listing.keys, indices[left]):
            raise ValueError(f"{len(part.kept):,} examples and {len(keys):,} set aside, of {len(indices):,} others")
        kept = indices[part.kept]
        rows = zip(pick(listing.keys, kept), listing.labels[kept].tolist(), _frames(part, content), strict=True)
        for key, label, frame in rows:
            fields = read_fields(bytes(frame))
            wanted = [key.encode()], label if isinstance(label, list) else [label]
            if (fields.get(KEY_FEATURE), fields.get(LABEL_FEATURE)) != wanted:
                raise ValueError(f"another name or label than those of {key!r}")
    except (ValueError, TypeError, IndexError, DamagedRecordError) as error:
        raise InputError(
            f"The part {part.path} does not hold what the plan has for its task: received {error}. Remove it, and run "
            "that task again."
        ) from error

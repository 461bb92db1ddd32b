"""A part as one file: what one process wrote, and any other can read and check."""

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
from tpu_components.core.files import typed_json
from tpu_components.core.sources.columns import pick
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.unpacking import read_arrays
from tpu_components.create_tfrecords.parts import BOOKS, Part

_COLUMNS = ("kept", *BOOKS)


def part_bytes(part: Part, content: bytes) -> bytes:
    """Return the file of a part, by its books and its framed records."""
    bad = [dataclasses.asdict(item) for item in part.bad]
    arrays = {name: array for name in _COLUMNS if (array := getattr(part, name)) is not None}
    file = io.BytesIO()
    np.savez(
        file,
        bad=np.frombuffer(json.dumps(bad).encode(), np.uint8),
        content=np.frombuffer(content, np.uint8),
        **arrays,
    )
    return file.getvalue()


def read_part(uri: str, file: bytes) -> tuple[Part, bytes]:
    """Return the books and the framed records that a part's file holds; the records' digests are computed anew.

    Raises:
        InputError: If it is no part.
    """
    try:
        stored = read_arrays(uri, file)
        content = stored["content"].tobytes()
        bad = typed_values.read(typed_json.decode(stored["bad"].tobytes()), tuple[Quarantined, ...])
        books: dict[str, Any] = {name: stored[name] for name in _COLUMNS if name in stored}
        part = Part(uri, digests=b"", bad=bad, **books)
        digests = b"".join(hashlib.sha256(frame).digest() for frame in _frames(part, content))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"Cannot read the part {uri}: expected what a task has written, received {error!r}. Remove it, and run "
            "that task again."
        ) from error
    return dataclasses.replace(part, digests=digests), content


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
        odd = [name for name in BOOKS if (rows := getattr(part, name)) is not None and len(rows) != len(part.kept)]
        if odd or sum(part.sizes.tolist()) != len(content):
            raise ValueError(f"{len(content):,} bytes of records, and books of others")
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

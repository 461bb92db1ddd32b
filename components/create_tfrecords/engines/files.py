"""A part as one file, here or in a bucket: what one process wrote, and any other can read."""

import dataclasses
import io
import json
import zipfile
from collections import Counter

import numpy as np

from components import storage
from components.artifacts import Quarantined
from components.create_tfrecords.parts import Part
from components.errors import InputError

_ARRAYS = ("looks", "figures")  # Where a part has them.


def save_part(uri: str, key: str, part: Part, content: bytes) -> None:
    """Write a part whole or not at all.

    Args:
        uri: The file.
        key: Digest of the facts that the part follows from.
        part: Its books.
        content: Its framed records.
    """
    books = {
        "kept": part.kept,
        "sizes": part.sizes,
        "labels": part.labels,
        "bad": [dataclasses.asdict(item) for item in part.bad],
        "counts": dict(part.counts),
    }
    arrays = {name: array for name in _ARRAYS if (array := getattr(part, name)) is not None}
    file = io.BytesIO()
    np.savez(
        file,
        key=np.array(key),
        books=np.frombuffer(json.dumps(books).encode(), np.uint8),
        digests=np.frombuffer(part.digests, np.uint8),
        identities=np.frombuffer(part.identities, np.uint8),
        content=np.frombuffer(content, np.uint8),
        **arrays,
    )
    storage.write_file(uri, file.getvalue())


def is_saved(uri: str, key: str) -> bool:
    """Return whether a file is the part that follows from `key`, and whole."""
    try:
        file = io.BytesIO(storage.read_bytes(uri))
        with zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return False
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            return str(stored["key"]) == key
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # Also an InputError: there is none.
        return False


def load_part(uri: str, key: str) -> tuple[Part, bytes]:
    """Read a part: its books, and its framed records.

    Raises:
        InputError: If it is missing or damaged, or does not follow from `key`.
    """
    try:
        with np.load(io.BytesIO(storage.read_bytes(uri)), allow_pickle=False) as arrays:
            stored = dict(arrays)
        received, books = str(stored["key"]), json.loads(stored["books"].tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Cannot read the part {uri}: expected a file that a task has written whole, received {error!r}. Run that "
            "task again."
        ) from error
    if received != key:
        raise InputError(
            f"The part {uri} was written from other data, parameters or code: expected {key[:12]}, received "
            f"{received[:12]}. Run all tasks again."
        )
    part = Part(
        uri,
        kept=books["kept"],
        sizes=books["sizes"],
        labels=books["labels"],
        digests=stored["digests"].tobytes(),
        bad=[Quarantined(**item) for item in books["bad"]],
        counts=Counter(books["counts"]),
        identities=stored["identities"].tobytes(),
        **{name: stored.get(name) for name in _ARRAYS},
    )
    return part, stored["content"].tobytes()

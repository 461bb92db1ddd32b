"""A part as one file, here or in a bucket: what one process wrote, and any other can read."""

import dataclasses
import io
import json
import zipfile

import numpy as np

from components import storage
from components.artifacts import Quarantined
from components.create_tfrecords.parts import BOOKS, Part
from components.errors import InputError

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
        received, bad = str(stored["key"]), json.loads(stored["bad"].tobytes())
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
        digests=stored["digests"].tobytes(),
        bad=tuple(Quarantined(**item) for item in bad),
        **{name: stored[name] for name in _COLUMNS if name in stored},
    )
    return part, stored["content"].tobytes()

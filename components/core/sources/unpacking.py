"""Limits the decompressed size of a compressed file, for every source, before memory or disk is used.

A file may unpack to 256 MiB, or to 100 times its own size if that is more. Typical compression ratios are 5 to 10 for
images and texts, and 50 for binary masks.
"""

import io
import lzma
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError

SMALL_BYTES = 256 << 20  # Any machine that prepares data has as much.
_MOST_TIMES = 100
# What a broken archive of arrays raises, each from another layer of it.
_DAMAGED = (
    *(OSError, EOFError, TypeError, KeyError, MemoryError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)


def require_plausible(place: str, num_bytes: int, unpacked: int) -> None:
    """Check that a file unpacks to no more than the rule allows.

    Args:
        place: The file.
        num_bytes: Its size.
        unpacked: Bytes that it holds, as its own header says or as have been counted so far.

    Raises:
        InputError: If it holds more.
    """
    most = max(SMALL_BYTES, _MOST_TIMES * num_bytes)
    if unpacked > most:
        raise InputError(
            f"Cannot read {place}: it has {num_bytes:,} bytes and unpacks to {unpacked >> 20:,} MiB or more, expected "
            f"at most {most >> 20:,}, {_MOST_TIMES} times its size or {SMALL_BYTES >> 20} MiB. Check where it comes "
            "from; if it is meant, write it without compression."
        )


def read_arrays(place: str, content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file.

    Args:
        place: The file, for messages.
        content: Bytes of the whole file.

    Raises:
        InputError: If it unpacks to more than the rule allows.
        ValueError: If it is damaged or holds something else, as pickled objects.
    """
    file = io.BytesIO(content)
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                require_plausible(place, len(content), sum(member.file_size for member in archive.infolist()))
        file.seek(0)
        loaded: Any = np.load(file, allow_pickle=False)
        if not hasattr(loaded, "files"):
            raise ValueError("a single array, as numpy.save writes it")
        with loaded:
            return {name: np.asarray(loaded[name]) for name in loaded.files}
    except _DAMAGED as error:
        raise ValueError(str(error)) from error

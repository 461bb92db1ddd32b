"""Limit for the decompressed size of a file, as a protection against decompression bombs.

All readers of users' compressed files check the limit before they use memory or disk for the content. The limit is 256
MiB, or 100 times the size of the compressed file if that is more. Typical compression ratios are 5 to 10 for images and
texts, and 50 for binary masks.
"""

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from tpu_components.core.base.errors import InputError

SMALL_BYTES = 256 << 20  # Any machine that prepares data has this much memory.
_MOST_TIMES = 100
# Exceptions of a damaged .npz or .npy file, from its several layers.
DAMAGED = (
    *(OSError, ValueError, EOFError, TypeError, KeyError, MemoryError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError),
    SystemError,  # CPython 3.13's tokenizer raises it when NumPy parses an array's header that contains a NUL byte.
)


def require_plausible(place: str, num_bytes: int, unpacked: int) -> None:
    """Reject a compressed file whose decompressed size is implausibly large, such as a decompression bomb.

    Args:
        place: Path or URI of the file, for the error message.
        num_bytes: Size of the compressed file, in bytes.
        unpacked: Decompressed size in bytes: the size in the file's header, or the size of the content read so far.

    Raises:
        InputError: If `unpacked` is above the limit.
    """
    most = max(SMALL_BYTES, _MOST_TIMES * num_bytes)
    if unpacked > most:
        raise InputError(
            f"Cannot read {place}: expected at most {most >> 20:,} MiB after decompression, received at least "
            f"{unpacked >> 20:,} MiB. The limit is {SMALL_BYTES >> 20} MiB or, if that is more, {_MOST_TIMES} times "
            f"the size of the compressed file ({num_bytes:,} bytes). Check where the file comes from. If you trust "
            "it, save it without compression."
        )


def read_arrays(
    place: str | Path, content: bytes | None = None, only: str = "", is_own: bool = False
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file, as {name: array}. The array of an .npy file has the name ''.

    Args:
        place: Path of the file.
        content: Bytes of the whole file. With None, they are read from `place`.
        only: Name of the only array to read from an .npz file. If the file has no such array, the result is empty. If
            this argument is empty, all arrays are read.
        is_own: Whether this package wrote the file. Such a file may unpack to any size.

    Raises:
        InputError: If the file unpacks to more than `require_plausible` allows.
        ValueError: If the file is missing or damaged, or contains something else, such as pickled objects.
    """
    try:
        with open(place, "rb") if content is None else io.BytesIO(content) as file:
            num_bytes = file.seek(0, io.SEEK_END)
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _read_array(file, num_bytes)}
            arrays = {}
            with zipfile.ZipFile(file) as archive:
                if not is_own:
                    require_plausible(str(place), num_bytes, sum(member.file_size for member in archive.infolist()))
                for member in archive.infolist():
                    name = member.filename.removesuffix(".npy")
                    if name != member.filename and only in ("", name):
                        with archive.open(member) as opened:
                            arrays[name] = _read_array(opened, member.file_size)
            return arrays
    except InputError:
        raise
    except DAMAGED as error:
        raise ValueError(str(error)) from error


def _read_array(file: IO[bytes], num_bytes: int) -> np.ndarray:
    """Read the array of an .npy file of `num_bytes`. Raise ValueError if its header claims a larger array."""
    version = np.lib.format.read_magic(file)
    is_first = version == (1, 0)
    shape, _, kind = (np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0)(file)
    if math.prod(shape) * kind.itemsize > num_bytes:
        raise ValueError(f"an array of {kind}{list(shape)} in only {num_bytes:,} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)

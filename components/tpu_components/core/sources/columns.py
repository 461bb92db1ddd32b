"""Compact columns of names, hashes, file sizes and file versions, for millions of examples.

Each entry of a column takes a few bytes of memory, in addition to the characters of a name.
"""

import array
import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

from tpu_components.core.examples.example_ids import identify
from tpu_components.core.files.storage import MISSING, StoredFile

_LOOKED_AT_ONCE = 1 << 16


class Column:
    """Growing array of rows in one buffer.

    Args:
        dtype: Dtype of the values.
        shape: Shape of a row.

    Example:
        >>> column = Column(np.dtype("u1"), (2,))
        >>> column.extend(np.array([[1, 2], [3, 4]], "u1"))
        >>> column.rows().tolist()
        [[1, 2], [3, 4]]
    """

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...] = ()) -> None:
        self._content = bytearray()
        self._dtype = dtype
        self._shape = shape

    def extend(self, rows: np.ndarray) -> None:
        """Append rows.

        Raises:
            BufferError: If an array returned by `rows` still exists, because it shares the buffer.
        """
        self._content += np.ascontiguousarray(rows, self._dtype).tobytes()

    def rows(self) -> np.ndarray:
        """Return all rows, without a copy."""
        count = len(self._content) // (self._dtype.itemsize * math.prod(self._shape))
        return np.frombuffer(self._content, self._dtype).reshape(count, *self._shape)


class Pieces(Sequence[bytes]):
    """Byte strings in one buffer. Each string takes 4 additional bytes, or 8 if the buffer is larger than 4 GiB.

    Args:
        content: The byte strings, concatenated.
        ends: uint32[count] or int64[count]: end of each byte string in `content`.

    Example:
        >>> pieces = Pieces.collect([b"a", b"bc"])
        >>> pieces[1], len(pieces), list(pieces), pieces.num_bytes
        (b'bc', 2, [b'a', b'bc'], 3)
    """

    def __init__(self, content: bytes | bytearray, ends: np.ndarray) -> None:
        self._content = content
        self._ends = ends

    @classmethod
    def collect(cls, pieces: Iterable[bytes]) -> "Pieces":
        """Copy byte strings into one buffer."""
        builder = PiecesBuilder()
        for piece in pieces:
            builder.add(piece)
        return builder.pieces()

    @property
    def num_bytes(self) -> int:
        """Size of the buffer, in bytes."""
        return len(self._content)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, place: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(place, slice):
            return tuple(self.at(np.arange(*place.indices(len(self)))))
        place = range(len(self))[place]
        begin = self._ends[place - 1] if place else 0
        return bytes(self._content[begin : self._ends[place]])

    def at(self, places: np.ndarray) -> list[bytes]:
        """Return the byte strings at the indices `places`, int[count]. This is three times as fast as one at a time."""
        places = np.asarray(places)
        content = memoryview(self._content)
        begins = np.where(places > 0, self._ends[places - 1], 0).tolist() if len(places) else []
        return [bytes(content[begin:end]) for begin, end in zip(begins, self._ends[places].tolist(), strict=True)]

    def take(self, places: np.ndarray) -> "Pieces":
        """Return the byte strings at the indices `places`, int[count], in this order, in a new buffer."""
        return Pieces.collect(map(self.__getitem__, places.tolist()))

    def __iter__(self) -> Iterator[bytes]:
        begin = 0
        for at in range(0, len(self), _LOOKED_AT_ONCE):
            for end in self._ends[at : at + _LOOKED_AT_ONCE].tolist():
                yield bytes(self._content[begin:end])
                begin = end


class Names(Sequence[str]):
    """Strings as UTF-8 in one buffer, with 4 or 8 bytes for the end of each string; see `Pieces`.

    Args:
        encoded: The strings in UTF-8.

    Example:
        >>> names = Names.collect(["a", "bc"])
        >>> names[1], len(names), list(names)
        ('bc', 2, ['a', 'bc'])
    """

    def __init__(self, encoded: Pieces) -> None:
        self.encoded = encoded

    @classmethod
    def collect(cls, strings: Iterable[str]) -> Self:
        """Copy strings into one buffer of UTF-8.

        Raises:
            UnicodeEncodeError: If a string cannot be encoded, such as the name of a file that is not valid UTF-8.
        """
        return cls(Pieces.collect(map(str.encode, strings)))

    @classmethod
    def of_hashes(cls, hashes: np.ndarray) -> Self:
        """Return a name for each hash, uint64[count]: the hexadecimal digits of its little-endian bytes.

        Example:
            >>> Names.of_hashes(np.array([1, 0xAB00], np.uint64))[1]
            '00ab000000000000'
        """
        width = 2 * hashes.itemsize
        return cls(
            Pieces(hashes.astype("<u8").tobytes().hex().encode(), np.arange(width, width * len(hashes) + 1, width))
        )

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(map(bytes.decode, self.encoded[place]))
        return self.encoded[place].decode()

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, self.encoded)

    def take(self, places: np.ndarray | slice) -> "Names":
        """Return the names at int[…] indices or where a bool[count] mask is true. `slice(None)` returns `self`."""
        if isinstance(places, slice):
            return self if places == slice(None) else Names(Pieces.collect(self.encoded[places]))
        chosen = np.flatnonzero(places) if places.dtype == bool else places
        return Names(self.encoded.take(chosen))


def pick(column: Sequence[Any], places: np.ndarray) -> list[Any]:
    """Return the values of a column at int[…] indices.

    Example:
        >>> pick(Names.collect(["", "a", "bc"]), np.array([2, 0])), pick(["a", "b"], np.array([1]))
        (['bc', ''], ['b'])
    """
    if isinstance(column, Names):
        return [value.decode() for value in column.encoded.at(places)]
    return column.at(places) if isinstance(column, Pieces) else [column[place] for place in places.tolist()]


@dataclasses.dataclass(frozen=True)
class Files:
    """Sizes and versions of files, in 12 bytes of memory per file, or in 16 if any file has 4 GiB or more.

    Attributes:
        sizes: uint32[count] or int64[count], in bytes.
        versions: uint64[count]: digests of `StoredFile.version`.
    """

    sizes: np.ndarray
    versions: np.ndarray

    @classmethod
    def collect(cls, files: Iterable[StoredFile]) -> Self:
        """Return the sizes and versions of files."""
        sizes = NumbersBuilder()
        versions = array.array("Q")
        for file in files:
            sizes.add(file.num_bytes)
            versions.append(_digest(file.version))
        return cls(sizes.numbers(), np.asarray(versions))

    @property
    def are_missing(self) -> np.ndarray:
        """Whether each file is missing, bool[count]."""
        return self.versions == np.uint64(_digest(MISSING))

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, places: np.ndarray | slice) -> "Files":
        """Return the files at int[…] indices, in a slice, or where a bool[count] mask is true."""
        return Files(self.sizes[places], self.versions[places])


def _digest(version: str) -> int:
    return int.from_bytes(identify(version.encode()), "little")


class NumbersBuilder:
    """Growing array of non-negative integers. Each integer takes 4 bytes, or 8 if any of them needs 8."""

    def __init__(self) -> None:
        self._numbers = array.array("I")

    def add(self, number: int) -> None:
        """Append a number."""
        try:
            self._numbers.append(number)
        except OverflowError:
            self._numbers = array.array("q", self._numbers)
            self._numbers.append(number)

    def numbers(self) -> np.ndarray:
        """Return all numbers, uint32[count] or int64[count], without a copy."""
        return np.asarray(self._numbers)


class PiecesBuilder:
    """Builder of `Pieces`, to which byte strings are appended one by one."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._ends = NumbersBuilder()

    def add(self, piece: bytes) -> None:
        """Append a byte string."""
        self._content += piece
        self._ends.add(len(self._content))

    def pieces(self) -> Pieces:
        """Return all byte strings."""
        return Pieces(self._content, self._ends.numbers())


def hash_unit(seed: int, purpose: str, keys: Sequence[str]) -> np.ndarray:
    """Return a uniformly distributed hash of each key, float64[len(keys)] in [0, 1).

    Hashes for different seeds or purposes are independent.

    Example:
        >>> hash_unit(0, "split", ["a", "a"]).tolist() == hash_unit(0, "split", ["a"]).tolist() * 2
        True
    """
    base = hashlib.blake2b(f"{seed}/{purpose}/".encode(), digest_size=8)
    result = np.empty(len(keys))
    encoded = iter(keys.encoded if isinstance(keys, Names) else map(str.encode, keys))
    for at in range(0, len(keys), _LOOKED_AT_ONCE):
        digests = bytearray()
        for key in itertools.islice(encoded, _LOOKED_AT_ONCE):
            hasher = base.copy()
            hasher.update(key)
            digests += hasher.digest()
        result[at : at + _LOOKED_AT_ONCE] = (np.frombuffer(digests, ">u8") >> np.uint64(11)) * 2.0**-53
    return result


def find_repeated(keys: Sequence[str]) -> list[str]:
    """Return the keys that occur more than once, without a table of all keys in memory."""
    hashes = hash_unit(0, "alike", keys)
    hashes.sort()
    alike = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(alike):
        return []
    candidates = np.flatnonzero(np.isin(hash_unit(0, "alike", keys), alike)).tolist()
    return [key for key, count in Counter(keys[i] for i in candidates).items() if count > 1]

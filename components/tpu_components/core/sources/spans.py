"""Byte ranges of examples in larger files, such as archives and TFRecord files.

Examples are read from the larger file by their offsets. Examples in compressed files are first copied to a temporary
file.
"""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import SMALL_BYTES


class Span(NamedTuple):
    """The byte range of one example in a file; see `Spans`."""

    path: str
    offset: int
    num_bytes: int
    is_copy: bool = False

    def read(self) -> bytes:
        """Return the content of the example.

        Raises:
            InputError: If the file no longer exists.
        """
        return storage.read_range(self.path, self.offset, self.num_bytes)


@dataclasses.dataclass(frozen=True)
class Spans:
    """The byte range of each example in a file. A byte range takes 20 bytes of memory.

    Attributes:
        paths: Paths of the files.
        files: File of each example: int32[num_examples], indices into `paths`.
        offsets: Start of each example in its file: int64[num_examples], in bytes.
        sizes: int64[num_examples], in bytes.
        are_copies: Whether the files were unpacked on this machine, so that other machines cannot read them.
    """

    paths: tuple[str, ...]
    files: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    are_copies: bool = False

    @classmethod
    def collect(cls, spans: Sequence[Span]) -> Self:
        """Collect byte ranges in arrays. `paths` lists each file once, in the order of first use."""
        paths = tuple(dict.fromkeys(span.path for span in spans))
        places = {path: place for place, path in enumerate(paths)}
        rows = np.array([(places[path], offset, size) for path, offset, size, _ in spans], np.int64).reshape(-1, 3)
        return cls(paths, rows[:, 0].astype(np.int32), rows[:, 1].copy(), rows[:, 2].copy())

    @property
    def num_bytes(self) -> int:
        """Total size of all byte ranges."""
        return int(self.sizes.sum())

    def take(self, places: np.ndarray) -> "Spans":
        """Return the byte ranges of the examples with the indices `places`, int[count], in this order."""
        rows = self.files[places], self.offsets[places], self.sizes[places]
        return Spans(self.paths, *rows, self.are_copies)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, example: int) -> Span:
        path = self.paths[self.files[example]]
        offset = int(self.offsets[example])
        size = int(self.sizes[example])
        return Span(path, offset, size, self.are_copies)


class LaterSpans:
    """Byte ranges of examples, all of which are computed when the first one is requested.

    Args:
        paths: Paths of the source's files.
        num_bytes: Estimated size of all contents, in bytes.
        count: Number of examples.
        find: Function that returns the byte ranges.
    """

    def __init__(self, paths: tuple[str, ...], num_bytes: int, count: int, find: Callable[[], Spans]) -> None:
        self.paths = paths
        self.num_bytes = num_bytes
        self._count = count
        self._find = find

    @functools.cached_property
    def _found(self) -> Spans:
        return self._find()

    def take(self, places: np.ndarray) -> "LaterSpans":
        """Return the byte ranges of the examples with the indices `places`, int[count], in this order.

        The byte ranges are computed when the first of them is requested.
        """
        num_bytes = self.num_bytes * len(places) // max(self._count, 1)
        return LaterSpans(self.paths, num_bytes, len(places), functools.partial(self._take, places))

    def _take(self, places: np.ndarray) -> Spans:
        return self._found.take(places)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, example: int) -> Span:
        return self._found[example]


def copy_contents(contents: Iterable[bytes], num_bytes: int) -> Spans:
    """Copy the contents of examples to a temporary file, and return their byte ranges in it.

    The file is removed when the returned `Spans` are garbage-collected.

    Args:
        contents: The content of each example, in order.
        num_bytes: Estimated total size, in bytes. It is often too low, because the source files are compressed.

    Raises:
        InputError: If the disk is full.
    """
    with contextlib.ExitStack() as left:
        folder = Path(tempfile.mkdtemp(prefix="contents-"))
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        storage.require_free_bytes(folder, num_bytes)
        path = folder / "contents"
        sizes: list[int] = []
        checked_bytes = SMALL_BYTES
        with storage.naming_full_disk(path), open(path, "wb") as copy:
            for content in contents:
                copy.write(content)
                if copy.tell() > checked_bytes:
                    storage.require_free_bytes(folder, SMALL_BYTES)
                    checked_bytes += SMALL_BYTES
                sizes.append(len(content))
        ends = np.cumsum([0, *sizes])
        spans = Spans((str(path),), np.zeros(len(sizes), np.int32), ends[:-1], np.diff(ends), are_copies=True)
        weakref.finalize(spans, left.pop_all().close)
        return spans

"""Checkpoints of arrays that are sharded over hosts: one file per host, and a manifest that names these files.

Host 0 publishes the manifest last, when all files are on the disk, so a published checkpoint is always complete. A
restarted host reads only the parts that its devices need. The number of hosts may change between writing and reading.

Orbax works in the same way. It is not used, because its 13 packages (mainly tensorstore) take 93 MB, and the image may
have at most 3,000 MB. Checkpoints of a single host, or of replicated weights, would still need the single-file format.
"""

import contextlib
import dataclasses
import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import DAMAGED
from tpu_components.core.machines.hosts import ProcessGroup

PARTS_DIR = "parts"
SEEN_SECONDS = 15.0  # Time until a host sees, in a mounted bucket, a file that another host wrote.
_Bounds = tuple[tuple[int, int], ...]  # Start and end along each axis.


class ArrayInParts:
    """A sharded array of which some or all parts are available.

    An array that is copied from this host's devices has only the parts on these devices. An array that is read from
    files has all parts.

    Args:
        shape: Shape of the whole array.
        dtype: Type of the values.
        pieces: Available parts by their bounds. A part is an array, or an object that reads the part from a file.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, pieces: Mapping[_Bounds, Any]) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.pieces = pieces

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return a slice of the array, assembled from the available parts.

        Raises:
            ValueError: If a part of the slice is not available.
        """
        wanted = bounds_of(index, self.shape)
        box = np.empty([end - start for start, end in wanted], self.dtype)
        missing = box.size
        for bounds, piece in self.pieces.items():
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, wanted, strict=True)]
            if all(start < end for start, end in common):
                part = np.asarray(piece)[_within(common, bounds)]
                box[_within(common, wanted)] = part
                missing -= part.size
        if missing:
            raise ValueError(
                f"Cannot read the slice {wanted} of a sharded array: expected {box.size:,} values, received "
                f"{box.size - missing:,}, because parts are missing. Request a slice of the available parts."
            )
        return box

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole array."""
        whole = self[tuple(slice(None) for _ in self.shape)]
        return whole if dtype is None else whole.astype(dtype)

    def is_finite(self) -> bool:
        """Return whether all values of the available parts are finite."""
        return all(bool(np.isfinite(piece).all()) for piece in self.pieces.values())


Array = np.ndarray | ArrayInParts


def bounds_of(index: Iterable[slice], shape: Sequence[int]) -> _Bounds:
    """Return the start and end of each slice of an index into an array.

    Args:
        index: A slice for each axis.
        shape: Shape of the array.

    Example:
        >>> bounds_of((slice(None), slice(2, 4)), (3, 8))
        ((0, 3), (2, 4))
    """
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _within(bounds: Iterable[tuple[int, int]], frame: Iterable[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(start - first, end - first) for (start, end), (first, _) in zip(bounds, frame, strict=True))


@dataclasses.dataclass(frozen=True)
class PartsManifest:
    """A list of the files and the arrays in a sharded checkpoint.

    Attributes:
        files: Size in bytes of each host's file, by file name. The files are in the folder `parts`.
        arrays: Shape and NumPy type string of each sharded array, by the array's name.
    """

    files: Mapping[str, int]
    arrays: Mapping[str, tuple[Sequence[int], str]]


class PartsWriter:
    """Writes this host's parts of each checkpoint. All hosts write at the same steps.

    Args:
        folder: Folder of the checkpoints, shared by all hosts.
        session: Unique number of the session. It must be the same on all hosts.
        group: Process group, through which the hosts report the sizes of their files to host 0.
    """

    def __init__(self, folder: Path, session: int, group: ProcessGroup) -> None:
        self._folder = folder / PARTS_DIR
        self._hosts = group.hosts
        self._session = session
        self._group = group
        self._number = 0

    def check_folder(self) -> None:
        """Check that all hosts share one folder of checkpoints.

        Raises:
            InputError: If this host cannot read a file that host 0 has written.
        """
        sign = self._folder / f"{self._session:x}-{0:06d}.shared"
        if self._hosts.is_writer:
            storage.write_bytes(sign, b"")
        self._group.wait_for_all(sign.name)
        end = time.monotonic() + SEEN_SECONDS
        while not sign.exists():
            if time.monotonic() > end:
                raise InputError(
                    "sharding=fully_sharded requires a checkpoint folder that all hosts share. Received: "
                    f"{self._folder}, where host {self._hosts.index} cannot read a file of host 0. Use a folder that "
                    "all hosts mount, for example in a bucket."
                )
            time.sleep(0.1)

    def write(self, arrays: Mapping[str, Array]) -> PartsManifest | None:
        """Write this host's parts of the sharded arrays to a file. Arrays that are not sharded are ignored.

        Host 0 waits until all hosts have written their files, and returns the manifest. Other hosts return None.
        """
        self._number += 1
        name = f"{self._session:x}-{self._number:06d}"
        sharded = {key: array for key, array in arrays.items() if isinstance(array, ArrayInParts)}
        pieces = {}
        for key, array in sharded.items():
            for bounds, piece in array.pieces.items():
                pieces[f"{key}@{','.join(f'{start}:{end}' for start, end in bounds)}"] = piece
        content = io.BytesIO()
        np.savez(content, **pieces)
        storage.write_bytes(self._folder / _file(name, self._hosts.index), content.getvalue())
        self._group.tell(f"{name}/{self._hosts.index}", str(len(content.getvalue())))
        if not self._hosts.is_writer:
            return None
        sizes = {_file(name, host): int(self._group.hear(f"{name}/{host}")) for host in range(self._hosts.count)}
        return PartsManifest(sizes, {key: (array.shape, array.dtype.str) for key, array in sharded.items()})

    def clean(self, manifests: Iterable[PartsManifest | None]) -> None:
        """Delete all part files, except those in `manifests` and those that a host may still be writing."""
        kept = {name for manifest in manifests if manifest is not None for name in manifest.files}
        own = f"{self._session:x}-"
        for path in self._folder.glob("*") if self._folder.is_dir() else ():
            name = path.name.lstrip(".")
            is_newer = name.startswith(own) and name.removeprefix(own)[:6] > f"{self._number:06d}"
            if path.name not in kept and not is_newer:
                path.unlink(missing_ok=True)


def _file(name: str, host: int) -> str:
    return f"{name}.{host}.npz"


def open_parts(folder: Path, manifest: PartsManifest) -> dict[str, ArrayInParts]:
    """Return the arrays that a manifest lists, by name. Values are read from the files only when they are used.

    Args:
        folder: Folder of the checkpoints.
        manifest: Manifest of the checkpoint to open.

    Raises:
        InputError: If a file of the manifest is missing or damaged.
    """
    pieces: dict[str, dict[_Bounds, Any]] = {name: {} for name in manifest.arrays}
    for name, size in manifest.files.items():
        path = folder / PARTS_DIR / name
        with _opened(path, size) as file:
            keys = list(file.files)
        for key in keys:
            array, _, ranges = key.partition("@")
            bounds = tuple((int(a), int(b)) for a, _, b in (part.partition(":") for part in ranges.split(",")))
            pieces[array][bounds] = _PartInFile(path, key)
    return {name: ArrayInParts(shape, kind, pieces[name]) for name, (shape, kind) in manifest.arrays.items()}


@dataclasses.dataclass(frozen=True)
class _PartInFile:
    """A part of an array. It is read from its file when it is used."""

    path: Path
    key: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with _opened(self.path) as file:
            part = np.asarray(file[self.key])  # Verifies the checksum.
        return part if dtype is None else part.astype(dtype)


@contextlib.contextmanager
def _opened(path: Path, size: int | None = None) -> Iterator[Any]:
    """Open a part file. If `size` is set, check that the file has this size in bytes.

    Raises:
        InputError: If the file is missing or damaged. This includes damage that shows only in the `with` block.
    """
    try:
        if size not in (None, path.stat().st_size):
            raise ValueError(f"a file of {path.stat().st_size:,} bytes, expected {size:,} bytes")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except DAMAGED as error:
        folder = path.parent.parent
        raise InputError(
            f"Cannot continue from {folder}: a part of the checkpoint, {path}, is missing or damaged ({error}). All "
            f"hosts must use the same checkpoint folder. To train from the start, delete {folder}."
        ) from error

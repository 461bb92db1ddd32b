"""Functions for files on this machine and in buckets (gs://, s3://).

Local writes are atomic: a file is written under a temporary name and then renamed.
"""

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

from tpu_components.core.base import extras
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.names import other_forms
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.files.object_stores import ObjectStore, in_threads, store_of
from tpu_components.core.files.object_stores import StoredFile as StoredFile

MISSING = "missing"  # Version of a file that does not exist.
BUCKETS_MOUNT = Path("/gcs")  # Where Vertex mounts every bucket.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
# Errors of a disk that cannot be written to.
_UNWRITABLE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",  # A quota is used up.
    errno.EROFS: "the disk is read-only",
    errno.EFBIG: "the file exceeds the size limit (see `ulimit -f`)",
}
_FORBIDDEN = {errno.EACCES: "permission denied", errno.EPERM: "permission denied"}
_MISNAMED = {
    errno.ENAMETOOLONG: "a file name is longer than this disk allows",
    errno.ELOOP: "its symbolic links form a loop",
}
_OUTAGES = {
    errno.ESTALE: "{} was changed in the bucket while it was open: another run of this step or another program writes "
    "to the same place. Run again when nothing else writes there.",
    errno.EIO: "Cannot read or write {}: input/output error. Check the disk or the mount, then run again.",
}
_REMOTE_PART_BYTES = 8 << 20  # Size of a request when a file in a bucket is read sequentially.
_OF_THE_SYSTEM = ("Thumbs.db", "desktop.ini")  # Files that Windows creates in folders.
# Flags for `os.open`: binary mode on Windows, which lacks the other flags, and no waiting for a pipe.
BINARY = getattr(os, "O_BINARY", 0)
_UNBLOCKED = BINARY | getattr(os, "O_NONBLOCK", 0)
NO_TRICKS = _UNBLOCKED | getattr(os, "O_NOFOLLOW", 0)  # Rejects a link, which somebody else may have created.
_LOCK_POLL_SECONDS = 0.1


def common_folder(uris: Sequence[str]) -> str | None:
    """Return the deepest folder that contains all files. The files are absolute paths or URIs.

    Return None if the files are in several buckets, or if some are in a bucket and others are local.

    Example:
        >>> common_folder(["gs://bucket/a/1.png", "gs://bucket/a/b/2.png"])
        'gs://bucket/a'
        >>> common_folder(["gs://bucket/a/1.png", "/a/1.png"])
    """
    places = list(map(Location, uris))
    buckets = {f"{place[: len(place.scheme)]}{place.bucket}" if place.scheme else "" for place in places}
    if len(buckets) > 1:
        return None
    scheme = places[0][: len(places[0].scheme or "")]  # As the user wrote it, perhaps in capitals.
    return scheme + os.path.commonpath([os.path.dirname(place[len(scheme) :]) for place in places])


def mounted(uri: str) -> Path:
    """Return the local path of a folder, for example `/gcs/BUCKET/KEY` for `gs://BUCKET/KEY`.

    Vertex AI mounts all buckets below `/gcs`. A local path is returned unchanged.
    """
    place = Location(uri)
    return BUCKETS_MOUNT / place.bucket / place.key.lstrip("/") if place.scheme is Scheme.GOOGLE else place.as_path()


def list_files(root: str) -> list[StoredFile]:
    """List the files below `root`, sorted by name.

    Hidden files, and files in hidden folders, are left out. A file or folder is hidden if its name begins with a dot,
    or is `Thumbs.db` or `desktop.ini`. Windows creates files with these two names.

    Raises:
        InputError: If `root` does not exist or contains no file.
    """
    return list(each_file(root))


def each_file(root: str) -> Iterator[StoredFile]:
    """Yield the same files as `list_files`, one by one.

    On a disk, only the names in the current folder and its parents are kept in memory.

    Raises:
        InputError: If `root` does not exist or contains no file.
    """
    files = _in_bucket(root, store) if (store := store_of(root)) else _on_disk(root)
    first = next(files, None)
    if first is None:
        raise InputError(f"Found no files in {root!r}: expected a folder with data. Check the path.")
    yield first
    yield from files


def list_known(root: str) -> list[StoredFile]:
    """Return the same files as `list_files`, or an empty list if the folder is missing or empty."""
    if store := store_of(root):
        return list(_in_bucket(root, store))
    return list(_on_disk(root)) if os.path.isdir(root) else []  # `Path.is_dir` raises OSError if the name is too long.


def _in_bucket(root: str, store: ObjectStore) -> Iterator[StoredFile]:
    with store.reach(root) as (bucket, prefix):
        prefix = prefix.rstrip("/") + "/" if prefix else ""
        below = store.objects(bucket, prefix)
        files = [StoredFile(name[len(prefix) :], num_bytes, version) for name, num_bytes, version in below]
    files = [file for file in files if not any(map(is_hidden, file.name.split("/")))]
    yield from sorted(files, key=lambda file: file.name)


def _on_disk(root: str) -> Iterator[StoredFile]:
    if not os.path.isdir(root):
        if (other := existing_form("", str(root))) is not None and os.path.isdir(other):
            yield from _on_disk(other)
            return
        raise InputError(f"Cannot list {root!r}: {os.path.abspath(root)!r} is not a folder. Check the path.")
    try:
        yield from _walk(str(root), "", frozenset())
    except PermissionError as error:
        raise InputError(
            f"Cannot list {error.filename!r}: permission denied. Change the permissions or the owner of the folder."
        ) from error


def is_hidden(name: str) -> bool:
    """Return whether listings leave out a file or folder with this name."""
    return name.startswith(".") or name in _OF_THE_SYSTEM


def hidden_folders(root: str) -> list[str]:
    """Return the names of a folder's hidden subfolders. They begin with a dot, and listings skip these folders.

    For a folder in a bucket, return an empty list.
    """
    if store_of(root) or not os.path.isdir(root):
        return []
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.name.startswith(".") and entry.is_dir())


def _walk(directory: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[StoredFile]:
    """Yield the files below a folder, sorted by relative path: "a.txt" comes before "a/b".

    Args:
        directory: The folder.
        prefix: Path of the folder below the root, with a slash at its end. Empty for the root.
        above: Device and inode of every parent folder, to detect links that form a cycle.
    """
    here = os.stat(directory)
    identity = here.st_dev, here.st_ino
    if identity in above:
        raise InputError(
            f"Cannot list {directory!r}: it is a link to one of its parent folders, so its files would be found again "
            "and again. Remove the link."
        )
    is_mounted = _is_mounted(directory)
    with os.scandir(directory) as scanned:
        entries = [entry for entry in scanned if not is_hidden(entry.name)]
    for entry in sorted(entries, key=lambda entry: f"{entry.name}/" if entry.is_dir() else entry.name):
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry.path, f"{name}/", above | {identity})
            continue
        try:
            yield _stored(name, entry.stat(), is_mounted)
        except FileNotFoundError:  # A broken link is an error only when the file is read.
            yield StoredFile(name, 0, MISSING)


def read_bytes(uri: str) -> bytes:
    """Read the content of a file.

    If the file exists only under another Unicode form of its name, that file is read; see `existing_form`.

    Raises:
        InputError: If the file does not exist or cannot be read.
    """
    if store := store_of(uri):
        try:
            with store.reach(uri) as place:
                return store.read(*place)
        except InputError:
            if (other := existing_form("", uri)) is None:
                raise
            return read_bytes(other)
    try:
        # Reading without a file object halves the time for small files, which most data sets consist of.
        file = os.open(uri, os.O_RDONLY | _UNBLOCKED)  # A pipe would block for ever.
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):  # A device such as /dev/zero has no end.
                raise InputError(
                    f"Cannot read {uri!r}: expected a file, received a folder, a pipe or a device. Check the path."
                )
            content = os.read(file, status.st_size + 1)
            while len(content) < status.st_size and (more := os.read(file, status.st_size - len(content))):
                content += more
            return content
        finally:
            os.close(file)
    except PermissionError as error:
        raise InputError(
            f"Cannot read {uri!r}: permission denied. Change the permissions or the owner of the file."
        ) from error
    except InputError:
        raise
    except ValueError as error:  # A NUL in the path.
        raise InputError(f"Cannot read {uri!r}: {error}. Check the path.") from error
    except OSError as error:
        if error.errno in _MISSING:
            if (other := existing_form("", str(uri))) is not None:
                return read_bytes(other)
            raise InputError(f"Cannot read {uri!r}: there is no such file. Check the path.") from error
        raise OSError(error.errno, error.strerror, uri) from error  # The error of a read lacks the path.


def read_range(uri: str, offset: int, length: int) -> bytes:
    """Read `length` bytes of a file, starting at `offset`. Fewer bytes are returned only if the file ends earlier.

    Raises:
        InputError: If the file does not exist or cannot be read.
    """
    if not length:
        return b""
    if store := store_of(uri):
        with store.reach(uri) as place:
            return store.read(*place, offset, offset + length)
    with open_file(uri) as file:
        file.seek(offset)
        return file.read(length)


def open_file(uri: str) -> io.BufferedReader:
    """Open a file for reading at any position. A file in a bucket is downloaded in parts.

    Raises:
        InputError: If the file does not exist or cannot be read.
    """
    if (size := _size(uri)) is None:
        raise InputError(f"Cannot read {uri!r}: there is no such file, or it is a folder. Check the path.")
    if Location(uri).is_remote:
        return io.BufferedReader(_RemoteFile(uri, size), _REMOTE_PART_BYTES)
    try:
        return open(uri, "rb")
    except PermissionError as error:
        raise InputError(
            f"Cannot read {uri!r}: permission denied. Change the permissions or the owner of the file."
        ) from error


class _RemoteFile(io.RawIOBase):
    """A file in a bucket. Every read requests a range of bytes."""

    def __init__(self, uri: str, size: int) -> None:
        self._uri = uri
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = read_range(self._uri, self._at, max(min(len(buffer), self._size - self._at), 0))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def exists(uri: str) -> bool:
    """Return whether a file exists, local or in a bucket."""
    return _size(uri) is not None


def _size(uri: str) -> int | None:
    """Return the size of a file in bytes, or None if the file does not exist."""
    if not (store := store_of(uri)):
        return os.stat(uri).st_size if Path(uri).is_file() else None
    with store.reach(uri) as place:
        return store.size(*place)


def existing_form(root: str, name: str) -> str | None:
    """Return the name of an existing file or folder that differs from `name` only in its Unicode form.

    For example, macOS writes file names in NFD, but a table that lists these files may be in NFC.

    Args:
        root: Folder, local or in a bucket. Empty if `name` is a complete path or URI.
        name: Path below the folder.

    Returns:
        The path below the folder, or None if the path exists as written or does not exist in any form. In a bucket,
        only paths whose parts all have the same form are tried.
    """
    if name.isascii():
        return None
    start = f"{root.rstrip('/')}/" if root else ""
    if Location(root or name).is_remote:
        forms = (form for form in (name, *other_forms(name)) if exists(f"{start}{form}"))
        first = next(forms, name)
        return None if first == name else first
    parts = list[str]()
    for part in name.split("/"):
        fitting = (
            form for form in (part, *other_forms(part)) if os.path.lexists(f"{start}{'/'.join([*parts, form])}" or "/")
        )
        if (form := next(fitting, None)) is None:
            return None
        parts.append(form)
    path = "/".join(parts)
    return None if path == name else path


def names_in(root: str) -> set[str]:
    """Return the names of the files in a folder, local or in a bucket.

    Return an empty set if the folder is missing.
    """
    if not Location(root).is_remote and os.path.isdir(root):
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if entry.is_file() and not is_hidden(entry.name)}
    return {file.name for file in list_known(root) if "/" not in file.name}


def localize(uri: str, into: Path) -> Path:
    """Return a local path of a file or folder: `uri` itself if it is local, otherwise a copy below `into`."""
    if not (store := store_of(uri)):
        return Path(uri)
    target = into / hashlib.sha256(uri.encode()).hexdigest()[:16]
    with store.reach(uri) as (bucket, prefix):
        prefix = prefix.rstrip("/")
        below = [blob.name for blob in store.objects(bucket, prefix)]
        objects = [name for name in below if not prefix or name == prefix or name.startswith(prefix + "/")]
        if not objects:
            raise InputError(f"Cannot read {uri!r}: there is no such file or folder. Check the path.")
        with staged_directory(target) as staged:
            names = (name[len(prefix) :].lstrip("/") or PurePosixPath(name).name for name in objects)
            paths = [Location(staged).child(name) for name in names]
            for folder in {os.path.dirname(path) for path in paths}:
                os.makedirs(folder, exist_ok=True)
            list(in_threads(functools.partial(store.download, bucket), objects, paths))
    return target / PurePosixPath(prefix).name if objects == [prefix] else target


def upload(path: Path, uri: str) -> None:
    """Copy a local file or folder to a bucket. Each object is written atomically.

    Raises:
        InputError: If there is no file at `path`, `uri` is not in a bucket, or the bucket is not writable.
    """
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    if not files:
        raise InputError(
            f"Cannot upload {path}: expected a file or a folder with files, received neither. Check the path."
        )

    if not (store := store_of(uri)):
        raise InputError(f"Cannot upload to {uri!r}: expected gs://BUCKET/… or s3://BUCKET/…. Check the path.")
    with store.reach(uri) as (bucket, prefix):
        below = (f"{prefix.rstrip('/')}/{file.relative_to(path).as_posix()}".lstrip("/") for file in files)
        names = [prefix] if path.is_file() else below
        list(in_threads(functools.partial(store.upload, bucket), names, map(str, files)))


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Raise an InputError that names `path` if a write in the `with` block fails on a full or read-only disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not (fault := _UNWRITABLE.get(_number(error), "")):
            raise
        place = _staging_dir(path) or _existing_parent(path.absolute())
        where = f" in {place}" if _staging_dir(path) else ""
        free = shutil.disk_usage(place).free
        raise InputError(
            f"Could not write {path}: {fault} ({free / 2**20:,.0f} MiB free{where}). An earlier file or folder with "
            "this name is unchanged. Free some space or choose another folder, then run again."
        ) from error


def _number(error: OSError | RuntimeError) -> int:
    """Return the errno of an error, or 0 if the error has no errno.

    Some libraries write the errno only into the message: HDF5, which raises RuntimeError, and shutil, which collects
    several errors while it copies a folder. The first errno in the message is returned.
    """
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # numpy.ndarray.tofile
        return errno.ENOSPC
    match = re.search(r"(?:\[Errno |errno = )(\d+)", str(error))
    return int(match[1]) if match else 0


@contextlib.contextmanager
def _said_once() -> Iterator[None]:
    """Suppress the stack traces that HDF5 prints when it closes a file after a disk error.

    The error itself is still raised.
    """
    ignored, printed = sys.unraisablehook, sys.excepthook  # Cython calls both.

    def is_fault(error: Any) -> bool:
        return isinstance(error, OSError | RuntimeError) and _number(error) in (*_UNWRITABLE, errno.EIO)

    sys.unraisablehook = lambda told: None if is_fault(told.exc_value) else ignored(told)
    sys.excepthook = lambda kind, error, trace: None if is_fault(error) else printed(kind, error, trace)
    try:
        yield
    finally:
        sys.unraisablehook = ignored
        sys.excepthook = printed


@contextlib.contextmanager
def naming_faults() -> Iterator[None]:
    """Convert errors of the machine in the `with` block, such as a full disk, to InputError or PlatformError.

    If a file on a mounted bucket is changed while it is open, reading the rest of the file fails. If there are several
    writers, the first one wins:
    https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/semantics.md#stale-file-handle-errors

    Raises:
        InputError: If a disk is full or read-only, a file cannot be read or written, a name is too long, memory runs
            out, or a package of one of this project's extras is not installed.
        PlatformError: If a file on a mounted bucket was changed while it was open, or the disk reports an error.
    """
    try:
        with _said_once():
            yield
    except ModuleNotFoundError as error:
        if not (advice := extras.advice_for(error.name)):
            raise
        raise InputError(advice) from error
    except MemoryError as error:
        raise InputError(
            "This process ran out of memory. Use a machine with more memory, or raise the limit of the process (see "
            "`ulimit -v`)."
        ) from error
    except (OSError, RuntimeError) as error:
        number = _number(error)
        name = getattr(error, "filename", None)
        if number in _OUTAGES:
            raise PlatformError(_OUTAGES[number].format(name or "a file")) from error
        if number in _MISNAMED:
            raise InputError(f"Cannot use {name or 'a file'}: {_MISNAMED[number]}. Use another path.") from error
        if not (fault := (_UNWRITABLE | _FORBIDDEN).get(number, "")):
            raise
        what = "use" if number in _FORBIDDEN else "write"
        raise InputError(
            f"Cannot {what} {name or 'a file or the output'}: {fault}. Free some space, change the permissions or "
            "choose another place, then run again."
        ) from error


def _staging_dir(path: Path) -> Path | None:
    """Return the local folder where files are written before they are copied to a mounted bucket.

    Return None if `path` is not in a mounted bucket.
    """
    return Path(tempfile.gettempdir()) if path.is_relative_to(BUCKETS_MOUNT) else None


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def require_output(directory: Path, marker: str) -> None:
    """Check, before a step starts work, that it can write `directory` and would replace only an earlier result.

    Args:
        directory: The folder to write.
        marker: Name of a file that every result of the step contains.

    Raises:
        InputError: If the folder cannot be written, or is not empty and does not contain `marker`.
    """
    require_writable(directory)
    if directory.is_dir() and any(directory.iterdir()) and not (directory / marker).is_file():
        raise InputError(
            f"Cannot write to {directory}: expected an empty folder, or an earlier result with {marker}. Received a "
            f"folder with other files ({next(directory.iterdir()).name!r}). Choose another folder, or remove this one."
        )


def require_writable(directory: Path) -> None:
    """Check that `directory` is a writable folder, or can be created.

    Raises:
        InputError: If the folder, or its nearest existing parent, is a file or is not writable.
    """
    try:
        existing = _existing_parent(directory.absolute())
    except PermissionError as error:  # For example a bucket that another user of this machine has mounted.
        raise InputError(
            f"Cannot write to {directory}: {error.filename} is not accessible. Run as a user with access, or choose "
            "another folder."
        ) from error
    if not existing.is_dir():
        raise InputError(f"Cannot write to {directory}: {existing} is a file, not a folder. Choose another folder.")
    if not os.access(existing, os.W_OK | os.X_OK) or existing.is_relative_to("/proc"):
        raise InputError(f"Cannot write to {directory}: {existing} is not writable. Choose another folder.")


def require_utf8(path: Path) -> None:
    """Check that a path is valid UTF-8.

    The JSON files of a run contain paths, and JSON must be UTF-8.

    Raises:
        InputError: If the path is not valid UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"Cannot write to {str(path)!r}: expected a path in UTF-8. Choose another folder.") from error


def require_file(path: Path, is_added_to: bool = False) -> None:
    """Check, before any work starts, that a local file can be written. Its parent folders need not exist.

    Args:
        path: The file.
        is_added_to: Whether the caller appends to an existing file instead of replacing it. In this case, the folder of
            an existing file may be read-only.

    Raises:
        InputError: If the path is a folder or cannot be written.
    """
    path = path.absolute()
    if path.is_dir():
        raise InputError(f"Cannot write {path}: it is a folder. Choose the path of a file.")
    if not is_added_to or not path.exists():
        require_writable(path.parent)
    elif not os.access(path, os.W_OK):
        raise InputError(f"Cannot write {path}: it is not writable. Choose another file.")


def stat_files(root: str, names: Iterable[str]) -> Iterator[StoredFile]:
    """Yield a `StoredFile` for each name below `root`.

    A missing file has a size of 0 bytes and the version `missing`.

    If a name exists only in another Unicode form, the result contains the existing name; see `existing_form`.
    """
    listed = {file.name: file for file in list_files(root)} if Location(root).is_remote else None
    is_mounted = _is_mounted(root)

    def find(name: str) -> StoredFile | None:
        try:
            return _stored(name, os.stat(f"{root}/{name}"), is_mounted) if listed is None else listed[name]
        except (OSError, ValueError, KeyError):
            return None

    for name in names:
        file = find(name)
        if file is None and not name.isascii():
            other = existing_form(root, name) if listed is None else next(filter(find, other_forms(name)), None)
            file = find(other) if other else None
        yield file or StoredFile(name, 0, MISSING)


def stat_paths(paths: Sequence[str]) -> Iterator[StoredFile]:
    """Yield a `StoredFile` for each path. The paths must be all local, or all in one bucket.

    The name of the `StoredFile` is relative to the file's folder or, in a bucket, to the common folder of all paths.
    """
    if Location(paths[0]).is_remote:  # One listing serves all paths.
        root = common_folder(paths) or ""
        yield from stat_files(root, [path.removeprefix(root).lstrip("/") for path in paths])
        return
    for path in paths:
        yield from stat_files(Location(path).parent, [os.path.basename(path)])


def _is_mounted(directory: str) -> bool:
    """Return whether a folder is in a bucket that Vertex AI mounts."""
    return f"{directory}/".startswith(f"{BUCKETS_MOUNT}/")


def _stored(name: str, status: os.stat_result, is_mounted: bool) -> StoredFile:
    # Different files may have equal sizes and modification times, as in a reproducible archive; change time and inode
    # cannot be set. In a mounted bucket, an unchanged file may have another inode at each look-up, and in each process
    # (https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/semantics.md, inodes).
    inode = 0 if is_mounted else status.st_ino
    return StoredFile(name, status.st_size, f"{status.st_mtime_ns}-{status.st_ctime_ns}-{inode}")


def require_free_bytes(path: Path, num_bytes: int) -> None:
    """Check, before a step starts work, that `num_bytes` fit on the disk of `path`.

    For a mounted bucket, the bytes must also fit in the staging folder. If the mount point and the staging folder are
    on one disk, as with a hostPath volume, this disk needs twice the size.

    Raises:
        InputError: If a disk has less free space.
    """
    places = [place for place in (_staging_dir(path), _existing_parent(path.absolute())) if place]
    devices = [os.stat(place).st_dev for place in places]
    for place, device in zip(places, devices, strict=True):
        free = shutil.disk_usage(place).free
        needed = num_bytes * devices.count(device)
        if needed > free:
            where = f" in {place}, where its files are staged" if place == _staging_dir(path) else ""
            raise InputError(
                f"Cannot write to {path}: expected at least {needed / 2**20:,.0f} MiB of free disk space{where}, "
                f"received {free / 2**20:,.0f} MiB. Free some space or choose another folder."
            )


def write_bytes(path: Path, content: bytes) -> None:
    """Write a local file atomically and flush it to the disk. Missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(path):
        handle, staged = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                os.chmod(staged, 0o644)  # mkstemp's files are private; these are for others to read.
                file.write(content)
                file.flush()
                os.fsync(handle)
            os.replace(staged, path)
        finally:
            Path(staged).unlink(missing_ok=True)


def write_file(uri: str, content: bytes) -> None:
    """Write a file, local or in a bucket, atomically.

    Raises:
        InputError: If the bucket is not writable.
    """
    if not (store := store_of(uri)):
        return write_bytes(Path(uri), content)
    with store.reach(uri) as place:
        return store.write(*place, content)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) to a local file, atomically.

    Raises:
        ValueError: If `value` contains a number that is not finite.
    """
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file during the `with` block.

    The file is created if it is missing. Its content is never changed. The system releases the lock when the process
    ends, even if it is killed.

    Raises:
        BlockingIOError: If another process holds the lock, and `wait` is false.
        InputError: If the file is a symbolic link.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_TRICKS, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InputError(f"Cannot lock {path}: expected a file, received a symbolic link. Remove it.") from error
    try:
        _lock(descriptor, wait)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> None:
    """Lock an open file; see `locked`."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt

    while True:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return
        except OSError as error:
            if not wait:
                raise BlockingIOError(error.errno, error.strerror) from error
        time.sleep(_LOCK_POLL_SECONDS)


def new_file(path: Path) -> TextIO:
    """Open an empty text file for writing. An existing file or link with this name is removed first."""
    path.unlink(missing_ok=True)
    return open(path, "x")


@contextlib.contextmanager
def staged_directory(final: Path | str) -> Iterator[Path]:
    """Yield a temporary folder that becomes `final` if the `with` block succeeds, and is deleted otherwise.

    On a disk, the folder is renamed atomically. If `final` is in a bucket, mounted or not, the files are copied. The
    JSON files at the top level are copied last, because no step reads a folder without them.

    Args:
        final: Folder to create, as a string if it may be in a bucket.

    Raises:
        InputError: If the disk fills up during the block.
    """
    path = Path(final)
    in_bucket = store_of(str(final)) is not None
    with naming_full_disk(Path(tempfile.gettempdir()) if in_bucket else path):
        if not in_bucket and not path.is_relative_to(BUCKETS_MOUNT):
            path.parent.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
            staged.chmod(0o755)
            try:
                yield staged
                replace_directory(staged, path)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            return
        with tempfile.TemporaryDirectory(prefix=f"{path.name}-") as name:
            yield (staged := Path(name))
            files = [file for file in staged.rglob("*") if file.is_file()]
            for file in sorted(files, key=lambda file: (file.parent == staged and file.suffix == ".json", file)):
                target = Location(final).child(file.relative_to(staged).as_posix())
                if in_bucket:
                    upload(file, target)
                else:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    shutil.copyfile(file, target)


def drop_half_written(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left in a folder.

    The caller must ensure that no other process writes to the folder.
    """
    for half in folder.glob(".*.tmp"):
        if half.is_dir():
            shutil.rmtree(half, ignore_errors=True)
        else:
            half.unlink(missing_ok=True)


def replace_directory(source: Path, final: Path) -> None:
    """Rename the folder `source` to `final`. An existing `final` is moved away first, and deleted afterwards."""
    if not final.exists():
        os.rename(source, final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".old", dir=final.parent))
    try:
        os.rename(final, old / "old")
        try:
            os.rename(source, final)
        except OSError:
            os.rename(old / "old", final)  # The old content is better than none.
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder atomically.

    The new folder contains hard links to the files or, if the file system does not support hard links, copies.
    """

    def link(from_path: str, to_path: str) -> None:
        try:
            os.link(from_path, to_path)
        except OSError:
            shutil.copy2(from_path, to_path)

    with staged_directory(target) as staged:
        shutil.copytree(source, staged, copy_function=link, dirs_exist_ok=True)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder atomically. The copied files are read-only.

    If the file system supports cloning (copy-on-write), the files are cloned, which takes no space at first.
    """

    def copy(from_path: str, to_path: str) -> None:
        with open(from_path, "rb", buffering=0) as source_file, open(to_path, "xb", buffering=0) as made:
            with contextlib.suppress(OSError, AttributeError):  # If the file system or the platform lacks it.
                while os.copy_file_range(source_file.fileno(), made.fileno(), 1 << 30):
                    pass
            shutil.copyfileobj(source_file, made)  # Copies the rest.
            os.chmod(to_path, 0o444)

    with staged_directory(target) as staged:
        shutil.copytree(source, staged, copy_function=copy, dirs_exist_ok=True)

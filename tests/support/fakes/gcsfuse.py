"""The rules of a folder that Cloud Storage FUSE has mounted, enforced for Python's file functions in this process.

A process that is started with `environment(folder)` enforces them from its first line, and sees the folder as `/gcs`.
Not covered: native reads and writes of libraries such as TensorFlow. Stricter than the service: the writer of a
file also sees it only once it is closed.
"""

import builtins
import errno
import fcntl
import functools
import io
import itertools
import os
import shutil
import stat as modes
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_MOUNT, _OWNER = "FAKE_GCSFUSE_MOUNT", "FAKE_GCSFUSE_OWNER"
_REPOSITORY = Path(__file__).parents[3]
_HUGE = 1 << 33  # Blocks.
_NUMBERS = itertools.count()
_STAT, _REPLACE, _UNLINK = os.stat, os.replace, os.unlink  # The original functions, before anything is mounted.


def environment(folder: Path, owner: int | None = None) -> dict[str, str]:
    """Return variables that make a process enforce the rules in a folder; `owner` has mounted it, or else this user."""
    paths = [str(Path(__file__).parent / "mounted"), str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    owned = {_OWNER: str(owner)} if owner is not None else {}
    return {_MOUNT: str(folder), "PYTHONPATH": os.pathsep.join(paths), **owned}


def mount_as_told() -> None:
    """Enforce the rules if the variables of `environment` are set."""
    if folder := os.environ.get(_MOUNT):
        mount(Path(folder), int(os.environ.get(_OWNER, os.getuid())))


def mount(folder: Path, owner: int) -> None:
    """Enforce the rules in a folder until the process ends."""
    from tpu_components.core.files import storage

    storage.BUCKETS_MOUNT = folder
    root = f"{os.path.abspath(folder)}/"

    def inside(path: Any, dir_fd: Any = None) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None and not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))
        return f"{os.path.abspath(os.fsdecode(os.fspath(path)))}/".startswith(root)

    _replace(os, ("rename", "replace"), functools.partial(_renaming, inside))
    _replace(os, ("link",), functools.partial(_refusing, inside))
    # Rule: changes of a file's mode and owner are ignored silently (gcsfuse internal/fs/fs.go: SetInodeAttributes)
    _replace(os, ("chmod", "fchmod", "lchmod", "chown", "fchown", "lchown"), functools.partial(_ignoring, inside))
    # Rule: a lock is only held on one machine, so two pods can both hold it (gcsfuse internal/fs/fs.go has none)
    _replace(fcntl, ("flock", "lockf"), functools.partial(_ignoring, inside))
    _replace(os, ("stat", "lstat", "fstat"), functools.partial(_telling, inside))
    _replace(os, ("statvfs", "fstatvfs"), functools.partial(_boundless, inside))
    _replace(builtins, ("open",), functools.partial(_opening, inside, Path(folder).parent))
    io.open = builtins.open
    _watch_descriptors(inside)
    if os.getuid() != owner:
        _deny(inside)


def _replace(module: Any, names: Iterable[str], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    for name in names:
        if original := getattr(module, name, None):
            setattr(module, name, functools.wraps(original)(wrap(original)))


def _error(code: int, path: Any) -> OSError:
    return OSError(code, os.strerror(code), path)


def _renaming(inside: Callable[..., bool], rename: Callable[..., None]) -> Callable[..., None]:
    def keep(source: Any, target: Any, **options: Any) -> None:
        # Rule: a mounted bucket is a separate file system, and files cannot be renamed into it (rename(2): EXDEV)
        if inside(source, options.get("src_dir_fd")) != inside(target, options.get("dst_dir_fd")):
            raise _error(errno.EXDEV, target)
        # Rule: a folder that is not empty is only renamed if the mount sets a limit of files, which are then renamed
        # one by one (gcsfuse internal/fs/fs.go: renameNonHierarchicalDir; cfg/params.yaml: rename-dir-limit)
        if inside(source, options.get("src_dir_fd")) and os.path.isdir(source) and os.listdir(source):
            raise _error(errno.EMFILE, source)
        rename(source, target, **options)

    return keep


def _refusing(inside: Callable[..., bool], link: Callable[..., None]) -> Callable[..., None]:
    def keep(source: Any, target: Any, **options: Any) -> None:
        # Rule: there are no hard links (gcsfuse internal/fs/fs.go has no CreateLink, which makes it ENOSYS)
        if inside(source) or inside(target):
            raise _error(errno.ENOSYS, target)
        link(source, target, **options)

    return keep


def _ignoring(inside: Callable[..., bool], change: Callable[..., Any]) -> Callable[..., Any]:
    def keep(path: Any, *arguments: Any, **options: Any) -> Any:
        descriptor = path.fileno() if hasattr(path, "fileno") else path
        return None if inside(descriptor, options.get("dir_fd")) else change(path, *arguments, **options)

    return keep


def _telling(inside: Callable[..., bool], stat: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def keep(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if not inside(path, options.get("dir_fd")):
            return found
        # Rule: every file has mode 0644 and every folder 0755 (gcsfuse docs/semantics.md: Permissions and ownership)
        mode = (found.st_mode & ~0o7777) | (0o755 if modes.S_ISDIR(found.st_mode) else 0o644)
        # Rule: an inode number is only valid within one process (gcsfuse docs/semantics.md: Identity)
        number = hash((os.getpid(), found.st_ino)) & (2**63 - 1)
        # Rule: only the modification time of files is stored, and no times of folders (gcsfuse docs/semantics.md:
        # Missing features)
        changed = found.st_mtime_ns if modes.S_ISREG(found.st_mode) else 0
        seconds = changed / 1e9
        fields = (mode, number, found.st_dev, 1, found.st_uid, found.st_gid, found.st_size, *[int(seconds)] * 3)
        times = {f"st_{kind}time{unit}": value for kind in "amc" for unit, value in (("", seconds), ("_ns", changed))}
        return os.stat_result(fields, times)

    return keep


def _version(path: str) -> tuple[int, ...]:
    """Return a value that identifies the content of a file; empty if there is no file."""
    try:
        found = _STAT(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Watched(io.FileIO):
    """An open file that is read."""

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._path, self._seen = path, _version(path)

    def readinto(self, buffer: Any) -> int:
        _require_same(self._path, self._seen)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        _require_same(self._path, self._seen)
        return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        _require_same(self._path, self._seen)
        return super().read(size)


def _require_same(path: str, seen: tuple[int, ...]) -> None:
    # Rule: reading an open file fails with ESTALE after the file was changed, replaced or deleted elsewhere (gcsfuse
    # docs/semantics.md: Stale File Handle Errors)
    if _version(path) != seen:
        raise _error(errno.ESTALE, path)


class _Unfinished(io.FileIO):
    """A file that is written: outside the bucket until it is closed."""

    def __init__(self, path: str, mode: str, beside: Path) -> None:
        self._path, self._seen = path, _version(path)
        if "x" in mode and self._seen:
            raise _error(errno.EEXIST, path)
        if not os.path.isdir(os.path.dirname(path)):
            raise _error(errno.ENOENT, path)
        self._made = str(beside / f".unfinished-{os.getpid()}-{next(_NUMBERS)}")
        if self._seen and "w" not in mode:
            shutil.copyfile(path, self._made)
        super().__init__(self._made, mode.replace("x", "w"))

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        # Rule: a file is visible to others once it is closed (gcsfuse docs/semantics.md: Write/Read consistency;
        # Writes)
        # Rule: if several processes write a file at the same time, the first to close it wins, and the others get
        # ESTALE (gcsfuse docs/semantics.md: Concurrency)
        if _version(self._path) != self._seen:
            _UNLINK(self._made)
            raise _error(errno.ESTALE, self._path)
        _REPLACE(self._made, self._path)


def _opening(inside: Callable[..., bool], beside: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    def keep(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if isinstance(file, int) or opener or not inside(file) or os.path.isdir(file):
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        path, kind = os.path.abspath(os.fsdecode(os.fspath(file))), mode.replace("b", "").replace("t", "")
        raw: Any = _Watched(path, kind) if kind == "r" else _Unfinished(path, kind, beside)
        if buffering == 0:
            return raw
        wrap = io.BufferedReader if kind == "r" else io.BufferedRandom if "+" in kind else io.BufferedWriter
        buffered = wrap(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    return keep


def _watch_descriptors(inside: Callable[..., bool]) -> None:
    """Enforce the same rules for reads through file descriptors."""
    opened: dict[int, tuple[str, tuple[int, ...]]] = {}

    def opening(call: Callable[..., int]) -> Callable[..., int]:
        def keep(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            descriptor = call(path, flags, *arguments, **options)
            if (
                flags & os.O_ACCMODE == os.O_RDONLY
                and not isinstance(path, int)
                and inside(path, options.get("dir_fd"))
            ):
                place = os.readlink(f"/proc/self/fd/{descriptor}")
                opened[descriptor] = place, _version(place)
            return descriptor

        return keep

    def reading(call: Callable[..., bytes]) -> Callable[..., bytes]:
        def keep(descriptor: int, *arguments: Any) -> bytes:
            if descriptor in opened and not os.path.isdir(opened[descriptor][0]):
                _require_same(*opened[descriptor])
            return call(descriptor, *arguments)

        return keep

    def closing(call: Callable[[int], None]) -> Callable[[int], None]:
        def keep(descriptor: int) -> None:
            opened.pop(descriptor, None)
            call(descriptor)

        return keep

    _replace(os, ("open",), opening)
    _replace(os, ("read",), reading)
    _replace(os, ("close",), closing)


def _boundless(inside: Callable[..., bool], statvfs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def keep(path: Any) -> Any:
        found = statvfs(path)
        if not inside(path):
            return found
        # Rule: a bucket reports unlimited free space (gcsfuse internal/fs/fs.go: StatFS)
        return os.statvfs_result((found.f_bsize, found.f_frsize, *[_HUGE] * 6, found.f_flag, found.f_namemax))

    return keep


def _deny(inside: Callable[..., bool]) -> None:
    """Make every access fail."""

    def deny(call: Callable[..., Any]) -> Callable[..., Any]:
        def keep(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            # Rule: access is denied to all users except the one who mounted the bucket, even to root (gcsfuse
            # docs/semantics.md: Fuse)
            if inside(path, options.get("dir_fd")):
                raise _error(errno.EACCES, path)
            return call(path, *arguments, **options)

        return keep

    _replace(os, ("open", "stat", "lstat", "listdir", "scandir", "mkdir", "unlink", "remove", "rmdir"), deny)
    _replace(builtins, ("open",), deny)
    io.open = builtins.open
    _replace(
        os, ("access",), lambda access: lambda path, *mode, **more: not inside(path) and access(path, *mode, **more)
    )

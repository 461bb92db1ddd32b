"""What compilations and measurements gave, kept for this user's next time: JSON files that are checked before use.

A file that is damaged, under another name, or that somebody else may have written is none: its result is found anew.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tpu_components.core.base.digest import digest_of
from tpu_components.core.files import storage, typed_json

_MAX_BYTES = 64 * 2**20  # The largest outcome, of a program of a thousand layers, has a hundredth of that.
# Also a home that is a file, or a file in the way.
_MAY_NOT = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
T = TypeVar("T")


def recall(path: Path, read: Callable[[Any], T]) -> T | None:
    """Return what is kept under a path, or None.

    Args:
        path: The file; its name is its key.
        read: Makes a value of the JSON, or raises LookupError, TypeError, ValueError or AttributeError.
    """
    try:
        kept = typed_json.decode(_read_own(path))
        return read(kept["content"]) if kept["sha256"] == digest_of([path.name, kept["content"]]) else None
    except (OSError, LookupError, TypeError, ValueError, AttributeError):
        return None


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Keep JSON under a path, in a folder that is private to this user; nothing happens where there can be none."""
    try:
        _write_own(path, content)
    except OSError as error:  # As in a pod, whose user has no home: the next time, it is found anew.
        if error.errno not in _MAY_NOT:
            raise


def _write_own(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if is_own(path.parent):
        path.parent.chmod(0o700)
        plain = json.loads(json.dumps(content))  # As it will be read.
        storage.write_json(path, {"sha256": digest_of([path.name, plain]), "content": plain})


def user_id() -> int:
    """Return the number of this process's user; on Windows 0, which it also says of every file."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def is_own(directory: Path) -> bool:
    """Return whether a folder is this user's, or not there yet."""
    try:
        return directory.stat().st_uid == user_id()
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _read_own(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | storage.NO_TRICKS)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != user_id() or others_may_write:
            raise ValueError("a file that somebody else may have written")
        return file.read(_MAX_BYTES)

"""A cache for the results of compilations and measurements: JSON files of this user, which are checked before use.

A file is ignored if it is damaged, was renamed, or may have been written by another user.
"""

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.files import storage, typed_json

_MAX_BYTES = 64 * 2**20  # A hundred times the size of the result for a program of a thousand layers.
# They include the errors that occur if the home directory, or a folder of the cache, is a file.
_MAY_NOT = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


def recall(path: Path, kind: Any) -> Any:
    """Return the value in a cache file, or None if the file is missing or must be ignored.

    Args:
        path: The file. Its name is the key of the value.
        kind: Type of the value; see `typed_values.read`.
    """
    try:
        kept = typed_json.decode(_read_own(path))
        is_whole = kept["sha256"] == digest_of([path.name, kept["content"]])
        return typed_values.read(kept["content"], kind) if is_whole else None
    except (OSError, LookupError, TypeError, ValueError):
        return None


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a cache file, in a folder that is private to this user.

    If the folder cannot be written, nothing is cached.
    """
    try:
        _write_own(path, content)
    except OSError as error:  # For example in a pod, whose user has no home.
        if error.errno not in _MAY_NOT:
            raise


def _write_own(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if is_own(path.parent):
        path.parent.chmod(0o700)
        plain = json.loads(json.dumps(content))  # The value that `json.loads` will return.
        storage.write_json(path, {"sha256": digest_of([path.name, plain]), "content": plain})


def user_id() -> int:
    """Return the user ID of this process. It is 0 on Windows, where all files have the user ID 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def is_own(directory: Path) -> bool:
    """Return whether a folder belongs to this user, or does not exist yet."""
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
            raise ValueError("a file that another user may have written")
        return file.read(_MAX_BYTES)

"""Files that contain many examples each, found by path, pattern or folder. Their names define the splits."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.listing import split_named

_WILDCARDS = "*?["


class Container(NamedTuple):
    """A file with many examples: its path, its name relative to the listed folder, and its size and version."""

    path: str
    name: str
    num_bytes: int
    version: str


def list_containers(location: Location, suffixes: Sequence[str]) -> list[Container]:
    """List the files of a location, sorted by name.

    Args:
        location: A file, a folder, or a pattern with `*`, `?` or `[…]`.
        suffixes: Suffixes of the files. Other files in a folder are ignored.

    Raises:
        InputError: If no file is found.
    """
    folder, pattern = split_pattern(location)
    if pattern:
        files = [file for file in storage.list_files(folder) if fnmatch.fnmatchcase(file.name, pattern)]
    elif location.lower().endswith(tuple(suffixes)):
        folder = location.parent
        files = list(storage.stat_files(folder, [location.name]))
        if files[0].version == storage.MISSING:
            raise InputError(f"Cannot read {location!r}: there is no such file. Check the path.")
    else:
        files = [file for file in storage.list_files(folder) if file.name.lower().endswith(tuple(suffixes))]
    if not files:
        raise InputError(
            f"Found no files for {location!r}: expected names that end in {' or '.join(suffixes)}. Give a folder, a "
            "file or a pattern such as FOLDER/train-*."
        )
    return [Container(folder.child(file.name), *file) for file in files]


def split_pattern(location: Location) -> tuple[Location, str]:
    """Return the folder before the first wildcard, and the pattern of the names below this folder.

    Without a wildcard, both are empty.

    Example:
        >>> split_pattern(Location("gs://bucket/data/train-*")), split_pattern(Location("data"))
        (('gs://bucket/data', 'train-*'), ('data', ''))
    """
    if not any(sign in location for sign in _WILDCARDS):
        return location.folder, ""
    fixed = re.split(rf"[{re.escape(_WILDCARDS)}]", location)[0]
    below = len(fixed) - len(os.path.basename(fixed))
    return Location(f"{fixed}*").parent, location[below:]


def stored_files(containers: Sequence[Container]) -> tuple[storage.StoredFile, ...]:
    """Return the files with their paths as names, for a `Listing`."""
    return tuple(storage.StoredFile(path, num_bytes, version) for path, _, num_bytes, version in containers)


def version_of(containers: Sequence[Container]) -> str:
    """Return a digest of the files' names, sizes and versions."""
    return hashlib.sha256(repr([tuple(container)[1:] for container in containers]).encode()).hexdigest()


def splits_of(containers: Sequence[Container], location: str) -> list[str] | None:
    """Return the split of each file, from a folder of its path or the first word of its name.

    Return None if the files have no splits.

    Raises:
        InputError: If only some files have a split.

    Example:
        >>> splits_of([Container("", name, 0, "") for name in ("train-00.tar", "val/0.tar")], "data")
        ['train', 'validation']
    """
    splits = [_split_in(container.name) for container in containers]
    if not any(splits):
        return None
    if strange := [container.name for container, split in zip(containers, splits, strict=True) if not split]:
        raise InputError(
            f"Some files in {location} belong to no split: {quoted(strange)}. Expected train, validation or test at "
            "the start of every file name or as its folder, or in none of the names. Rename or move the files."
        )
    return [split for split in splits if split]


def _split_in(name: str) -> str | None:
    *folders, file = name.split("/")
    words = [*folders, re.split(r"[-_.0-9]", file)[0]]
    return next((split for word in words if (split := split_named(word))), None)

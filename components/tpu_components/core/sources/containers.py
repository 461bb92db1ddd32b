"""Finds files that contain many examples each, given a path, a pattern or a folder. File names define the splits."""

import fnmatch
import hashlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.listing import split_in_words, split_named

_WILDCARDS = "*?["


class Container(NamedTuple):
    """A file with many examples: its path, its name relative to the listed folder, and its size and version."""

    path: str
    name: str
    num_bytes: int
    version: str


def list_containers(location: Location, suffixes: Sequence[str]) -> list[Container]:
    """List the files at a location, sorted by name.

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
            f"Found no files for {location!r}: expected names that end in {' or '.join(suffixes)}. Name a folder, a "
            "file or a pattern such as FOLDER/train-*."
        )
    return [Container(folder.child(file.name), *file) for file in files]


def split_pattern(location: Location) -> tuple[Location, str]:
    """Return the folder before the first wildcard, and the pattern of the names below this folder.

    Without a wildcard, return the location without trailing slashes, and an empty pattern.

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
    """Return `StoredFile` objects for `Listing.containers`. Each file's path is used as its name."""
    return tuple(storage.StoredFile(path, num_bytes, version) for path, _, num_bytes, version in containers)


def version_of(containers: Sequence[Container]) -> str:
    """Return a digest of the files' names, sizes and versions."""
    return hashlib.sha256(repr([tuple(container)[1:] for container in containers]).encode()).hexdigest()


def splits_of(containers: Sequence[Container], location: str, patterns: Mapping[str, str] = {}) -> list[str] | None:
    """Return the split of each file, from the name of a folder in its path or the first word of its file name.

    A folder name may have the form `split=NAME`. If no folder and no first word names a split, all words of the file
    names are searched, as in `reviews_train.parquet`. The splits that these words name are used only if they include
    the training split and at least one other split. Return None if the files have no splits.

    Args:
        containers: The files.
        location: Path or URI of the source, for messages.
        patterns: Pattern of the file names of each split. If it is not empty, only the patterns decide.

    Raises:
        InputError: If only some files have a split, a file does not match exactly one pattern, or a pattern matches no
            file.

    Example:
        >>> splits_of([Container("", name, 0, "") for name in ("train-00.tar", "val/0.tar")], "data")
        ['train', 'validation']
        >>> splits_of([Container("", name, 0, "") for name in ("a_train.parquet", "a_test.parquet")], "data")
        ['train', 'test']
    """
    if patterns:
        return _match(containers, location, patterns)
    splits = [_split_in(container.name) for container in containers]
    if not any(splits):
        splits = [split_in_words(PurePosixPath(container.name).name) for container in containers]
        if TRAIN not in splits or len({*splits} - {None}) == 1:
            return None
    if strange := [container.name for container, split in zip(containers, splits, strict=True) if not split]:
        raise InputError(
            f"Some files in {location} do not belong to a split: {quoted(strange)}. Either every file must name "
            "a split (train, validation or test), in its file name or a folder name, or no file may name one. Rename "
            "or move these files."
        )
    return [split for split in splits if split]


def _match(containers: Sequence[Container], location: str, patterns: Mapping[str, str]) -> list[str]:
    """Return the split of each file: the split whose pattern matches the file name or the path below the source."""
    matching = [[split for split, pattern in patterns.items() if _matches(file.name, pattern)] for file in containers]
    with_files = set(itertools.chain.from_iterable(matching))
    if unmatched := [split for split in patterns if split not in with_files]:
        raise InputError(
            f"No file in {location} matches {patterns[unmatched[0]]!r}, the pattern of the {unmatched[0]!r} split. "
            f"Received: {quoted([file.name for file in containers])}. Correct data.split_files."
        )
    if odd := [(file.name, splits) for file, splits in zip(containers, matching, strict=True) if len(splits) != 1]:
        name, splits = odd[0]
        belongs = f"matches the patterns of {' and '.join(splits)}" if splits else "matches no pattern"
        raise InputError(
            f"The file {name!r} in {location} {belongs}: expected every file in exactly one split. Correct "
            "data.split_files, or leave this file out of the source."
        )
    return [split for (split,) in matching]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(os.path.basename(name), pattern)


def _split_in(name: str) -> str | None:
    *folders, file = name.split("/")
    return split_in_folders(folders) or split_named(re.split(r"[-_.0-9]", file)[0])


def split_in_folders(folders: Sequence[str]) -> str | None:
    """Return the split that a folder name such as `test` or `split=test` names, or None if no folder names a split.

    If several folders name a split, the first one counts.
    """
    names = (folder.rpartition("=")[2] for folder in folders)
    return next((split for name in names if (split := split_named(name))), None)

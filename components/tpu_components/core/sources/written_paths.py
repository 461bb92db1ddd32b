"""Finds the image files that a table lists, even if some paths differ slightly from those of the files."""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.columns import Files, Names

_SEARCHED_FILES = 10_000  # Files that are searched for the nearest file, for a message.
_SHOWN = 3


def find_files(root: Location, keys: Names, folder: str) -> tuple[Names, Files, list[str]]:
    """Find image files by the paths in a table.

    If a path does not exist, these variants are tried. A variant is used if it matches exactly one existing file:

    - with slashes in place of backslashes,
    - with codes such as `%20` decoded,
    - with a file name that differs only in case,
    - with an image extension added, if the path has no extension.

    Args:
        root: Folder of the files.
        keys: Paths below the folder.
        folder: Folder of the table, which is searched for the nearest files if `root` has no images.

    Returns:
        Three values: the paths, with matching variants in place of paths that do not exist; the sizes and versions of
        the files; and notes on replaced paths and on missing files that are similar to an existing file.
    """
    files = Files.collect(storage.stat_files(root, keys))
    missing = [keys[place] for place in np.flatnonzero(files.are_missing).tolist()]
    if not missing:
        return keys, files, []
    notes = []
    others = _find_others(root, missing)
    if others:
        path, existing = next(iter(others.items()))
        notes.append(
            f"{len(others):,} of {len(keys):,} paths do not exist as written. For example, {existing!r} is read for "
            f"{path!r}"
        )
        keys = Names.collect(others.get(key, key) for key in keys)
        files = Files.collect(storage.stat_files(root, keys))
        missing = [name for name in missing if name not in others]
    if nearest := _nearest_files(root, folder, missing[:_SHOWN]):
        similar = ", ".join(f"{name!r} (the nearest existing file is {near!r})" for name, near in nearest.items())
        notes.append(f"{len(missing):,} of {len(keys):,} files do not exist, for example {similar}")
    return keys, files, notes


def _find_others(root: Location, names: Sequence[str]) -> dict[str, str]:
    """Return {path that does not exist: the only existing file that matches it}."""
    others: dict[str, str] = {}
    folders: dict[str, _Folder] = {}
    for name in names:
        for reading in _readings(root, name):
            parent, _, file = reading.rpartition("/")
            if parent not in folders:
                folders[parent] = _Folder(storage.names_in(f"{root}/{parent}" if parent else root))
            if candidates := folders[parent].find(file):
                if len(candidates) == 1:
                    others[name] = f"{parent}/{candidates[0]}" if parent else candidates[0]
                break
    return others


def _readings(root: Location, name: str) -> Iterator[str]:
    """Yield a path and its variants, except for variants outside `root`.

    In the variants, backslashes are replaced by slashes, and codes such as `%20` are decoded.
    """
    slashed = name.replace("\\", "/")
    for reading in dict.fromkeys((name, slashed, unquote(name), unquote(slashed))):
        with contextlib.suppress(InputError):
            root.child(reading)
            yield str(PurePosixPath(reading))


class _Folder:
    """File names in a folder, indexed by lower-case name with and without extension.

    Args:
        names: The names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._by_name = defaultdict[str, list[str]](list)
        self._by_stem = defaultdict[str, list[str]](list)
        for name in sorted(self._names):
            self._by_name[name.casefold()].append(name)
            if has_image_suffix(name):
                self._by_stem[PurePosixPath(name).stem.casefold()].append(name)

    def find(self, name: str) -> list[str]:
        """Return the file with exactly this name or, if it does not exist, the files with similar names.

        Two names are similar if they differ only in case. If no name is similar, and `name` has no image extension, the
        extensions of images are ignored as well: the name `a` finds the images `A.png` and `a.jpg`.
        """
        if name in self._names:
            return [name]
        key = name.casefold()
        return self._by_name.get(key) or ([] if has_image_suffix(name) else self._by_stem.get(key, []))


def _nearest_files(root: str, folder: str, names: Sequence[str]) -> dict[str, str]:
    """Return {path that does not exist: the nearest existing image}.

    This is the image with the most similar path. Images with the same file name, apart from case and extension, take
    precedence over all others.
    """
    known: list[str] = []
    for place in (root, folder):
        with contextlib.suppress(InputError):
            files = itertools.islice(storage.each_file(place), _SEARCHED_FILES) if names and not known else ()
            known += [file.name for file in files if has_image_suffix(file.name)]
    nearest = {}
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        alike = [other for other in known if PurePosixPath(other).stem.casefold() == path.stem.casefold()]
        closest = get_close_matches(str(path), alike, n=1, cutoff=0) or get_close_matches(str(path), known, n=1)
        if closest:
            nearest[name] = closest[0]
    return nearest

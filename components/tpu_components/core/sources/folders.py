"""Images or texts in one folder per class."""

import array
import dataclasses
import functools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import SPLITS, TEST, TRAIN
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.examples.interface import IMAGE, TEXT
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.columns import Files, Names, PiecesBuilder
from tpu_components.core.sources.listing import Listing, Source, split_in_words, split_named, without_labels
from tpu_components.core.sources.pairs import check_class_folders, check_inner_folders, find_masks
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import index_labels


def list_folders(kind: str, location: Location, params: WriteParams, labelled: bool = True) -> Listing:
    """List files in one folder per class, possibly below split folders.

    If `labelled` is false, list every image or text in any folder instead.

    Files above the class folders, such as a README, are left out with a note. Images above them raise InputError. To
    use only some of the folders, list their names in `params.class_names`. For example, aclImdb also has a folder of
    reviews without a class.
    """
    location = location.folder
    if not labelled:
        return _list_loose(kind, location, params)
    listed = _list(location, storage.each_file(location))
    # There are few folders and many files, so each folder's name is parsed once.
    folders = {folder: folder.split("/") if folder else [] for folder in listed.folders}
    top = sorted({parts[0] for parts in folders.values() if parts})
    split_of = {name: split for name in top if (split := split_named(name))}
    has_splits = not {TRAIN, TEST}.isdisjoint(split_of.values())
    if has_splits and (strange := [name for name in top if name not in split_of]):
        raise InputError(
            f"The folders {quoted(strange)} are next to split folders in {location}. Expected only "
            f"{', '.join(SPLITS)}. Move them into a split folder, or out of the source."
        )
    if has_splits and len(set(split_of.values())) < len(split_of):
        raise InputError(
            f"Several folders in {location} belong to the same split: {split_of}. Expected one folder for each split. "
            "Merge or rename them."
        )
    if not has_splits and not params.class_names:
        _check_no_splits(folders.values(), location)
    depth = 3 if has_splits else 2
    class_of = {folder: class_name(parts[depth - 2]) for folder, parts in folders.items() if len(parts) >= depth - 1}
    misplaced = listed.names.take(~listed.are_in(class_of))
    listed = listed.in_folders(class_of)
    _check_misplaced(misplaced, len(listed.names) > 0, kind, location, has_splits)
    notes = [f"left out {len(misplaced)} files that are not in a class folder"] if misplaced else []
    notes += [
        f"left out the folder {name!r}, because its name begins with a dot" for name in storage.hidden_folders(location)
    ]
    inner: dict[str, set[str]] = {}
    written: dict[str, set[str]] = {}
    for folder in listed.folders:
        inner.setdefault(class_of[folder], set()).update(folders[folder][depth - 1 : depth])
        written.setdefault(class_of[folder], set()).add(folders[folder][depth - 2])
    notes += [
        f"the folders {', '.join(map(ascii, sorted(names)))} contain the same class, {name!r}"
        for name, names in sorted(written.items())
        if len(names) > 1
    ]
    notes += [
        (
            f"the folders in {name!r}, {quoted(sorted(names))}, are not used as classes: their files have the class "
            f"{name!r}"
        )
        for name, names in sorted(inner.items())
        if len(names) > 1
    ]
    if not params.class_names:
        check_inner_folders(inner, location)

        def files_of(name: str) -> Iterator[str]:
            inside = listed.are_in([folder for folder in listed.folders if folders[folder][depth - 2] == name])
            return (listed.names[place] for place in np.flatnonzero(inside).tolist())

        names = sorted({folders[folder][depth - 2] for folder in listed.folders})
        read = functools.partial(_read_below, location)
        check_class_folders(names, files_of, depth - 2, kind, location, read)
    if kind == IMAGE and (masks := find_masks(listed.names)):
        notes.append(
            f"{len(masks):,} files are named like masks of other files, {quoted(masks)}, but are used as examples of "
            "their folder's class. If they are masks, move them out of the source"
        )
    if params.class_names:
        counts = Counter[str]()
        for folder, count in zip(listed.folders, np.bincount(listed.folder_of).tolist(), strict=True):
            counts[class_of[folder]] += count
        if absent := [name for name in params.class_names if name not in counts]:
            raise InputError(
                f"{location} has no folder for the classes {quoted(absent)}. Received: {quoted(sorted(counts))}. "
                "Correct data.class_names, or add the folders."
            )
        listed = listed.in_folders({folder for folder, name in class_of.items() if name in params.class_names})
        notes += [
            f"left out {count:,} files in {name!r}, which is not in data.class_names"
            for name, count in sorted(counts.items())
            if name not in params.class_names
        ]
    of_folders = [class_of[folder] for folder in listed.folders]
    labels, classes, unusable = index_labels(of_folders, params.class_names, listed.folders)
    splits = np.array([split_of[folders[folder][0]] for folder in listed.folders]) if has_splits else None
    listing = Listing(
        keys=listed.names,
        labels=labels[listed.folder_of],
        class_names=classes,
        splits=None if splits is None else splits[listed.folder_of],
        root=location,
        files=listed.files,
        kind=kind,
        notes=tuple(notes),
    )
    return listing.without(
        {
            i: unusable[folder]
            for i, folder in enumerate(listed.folder_of.tolist() if unusable else ())
            if folder in unusable
        }
    )


@dataclasses.dataclass(frozen=True)
class _Listed:
    """The files below a folder, sorted by name.

    Attributes:
        names: Paths of the files relative to the folder.
        files: Sizes and versions of the files.
        folders: Folders of the files, each once.
        folder_of: Folder of each file, int32[count], indices into `folders`.
    """

    names: Names
    files: Files
    folders: tuple[str, ...]
    folder_of: np.ndarray

    def are_in(self, folders: Container[str]) -> np.ndarray:
        """Return whether each file is in one of `folders`, bool[count]."""
        return np.array([folder in folders for folder in self.folders], bool)[self.folder_of]

    def in_folders(self, folders: Container[str]) -> "_Listed":
        """Return only the files that are in one of `folders`."""
        if (chosen := self.are_in(folders)).all():
            return self
        kept, folder_of = np.unique(self.folder_of[chosen], return_inverse=True)
        names = tuple(self.folders[number] for number in kept.tolist())
        return _Listed(self.names.take(chosen), self.files.take(chosen), names, folder_of.astype(np.int32))


def _list(location: str, files: Iterable[storage.StoredFile]) -> _Listed:
    """Collect the names, folders, sizes and versions of files.

    Raises:
        InputError: If a name is not UTF-8.
    """
    names = PiecesBuilder()
    numbers = dict[str, int]()
    folder_of = array.array("i")
    garbled = list[str]()

    def each_named() -> Iterator[storage.StoredFile]:
        for file in files:
            try:
                names.add(file.name.encode())
            except UnicodeEncodeError:  # Python reads the bytes of such a name as lone surrogates.
                garbled.append(file.name)
                continue
            folder_of.append(numbers.setdefault(file.name.rpartition("/")[0], len(numbers)))
            yield file

    known = Files.collect(each_named())
    if garbled:
        raise InputError(f"Some file names in {location} are not UTF-8: {quoted(garbled)}. Rename the files.")
    return _Listed(Names(names.pieces()), known, tuple(numbers), np.asarray(folder_of))


def _check_no_splits(folders: Iterable[Sequence[str]], location: str) -> None:
    """Reject class folders that look like splits, such as `seg_train` and `seg_test`.

    Raises:
        InputError: If every folder name contains the name of a different split, one of these splits is the training
            split, and all folders have at least two subfolder names in common.
    """
    inner: dict[str, set[str]] = {}
    for parts in folders:
        inner.setdefault("".join(parts[:1]), set()).update(parts[1:2])
    inner.pop("", None)  # Files above all folders.
    split_of = {name: split for name in sorted(inner) if (split := split_in_words(name))}
    splits = set(split_of.values())
    if not len(inner) == len(split_of) == len(splits) > 1 or TRAIN not in splits:
        return
    pairs = [(repr(name), repr(split)) for name, split in split_of.items()]
    if len(shared := set.intersection(*inner.values())) > 1:
        raise InputError(
            f"The folders {quoted(sorted(inner))} in {location} look like splits, not classes: each contains "
            f"{quoted(sorted(shared))}. Rename {' and '.join(map(' to '.join, pairs))}. If they are classes, list them "
            "in data.class_names."
        )


def _read_below(location: str, name: str) -> bytes:
    return storage.read_bytes(f"{location}/{name}")


def _list_loose(kind: str, location: str, params: WriteParams) -> Listing:
    """List every image or text below a folder, in any subfolder."""
    chosen = (file for file in storage.each_file(location) if kind == TEXT or has_image_suffix(file.name))
    listed = _list(location, chosen)
    if not len(listed.names):
        others = [file.name for file in storage.list_files(location)]
        raise InputError(f"Found no images in {location}: expected .jpg or .png files, received {quoted(others)}.")
    labels, classes = without_labels(len(listed.names))
    return Listing(listed.names, labels, classes, root=location, files=listed.files, kind=kind)


def _check_misplaced(names: Sequence[str], has_others: bool, kind: str, location: str, has_splits: bool) -> None:
    """Check that at least one file is in a class folder, and that no image is above the class folders.

    Other files, such as a README, may be above the class folders.
    """
    examples = [name for name in names if kind == IMAGE and has_image_suffix(name)]
    if not examples and has_others:
        return
    advice = "Move the files into the folder of their class, or out of the source."
    if table := next((name for name in names if name.endswith(".csv")), ""):
        advice = f"Move the files into the folder of their class. If {table} lists them, use csv:{location}/{table}."
    raise InputError(
        f"Files without a class in {location}: {quoted(examples or list(names))}. Expected "
        f"{'SPLIT/CLASS/FILE' if has_splits else 'CLASS/FILE'}. {advice}"
    )


IMAGES, TEXTS = (
    Source(form, functools.partial(list_folders, kind), has_class_folders=True)
    for form, kind in (("images:DIR", IMAGE), ("text:DIR", TEXT))
)

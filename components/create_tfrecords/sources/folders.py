"""A folder for each class, of images or of texts."""

import functools
import itertools
from collections import Counter
from collections.abc import Container, Sequence

import numpy as np

from components import storage
from components.artifacts import SPLITS, TEST, TRAIN
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.listing import Listing, Source, split_named, without_labels
from components.create_tfrecords.targets import index_labels, shown
from components.errors import InputError
from components.images import has_image_suffix
from components.interface import IMAGE, TEXT


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # Python reads the bytes of such a name as lone surrogates.
        return False
    return True


def list_folders(kind: str, location: str, params: WriteParams) -> Listing:
    """List a folder per class, perhaps below folders of the splits. Files above the classes are left out, and said.

    So `class_names` may choose among the folders: aclImdb has one of reviews without a class.
    """
    location = location.rstrip("/") or "/"  # On gs://, a//b is not a/b.
    files = storage.list_files(location)
    if not _is_utf8("".join(file.name for file in files)):
        garbled = [file.name for file in files if not _is_utf8(file.name)]
        raise InputError(f"File names in {location} that are not UTF-8: {shown(garbled)}. Rename them.")
    # Of folders there are few, and of files many: what a folder's name says is found once.
    folder_of = [file.name.rpartition("/")[0] for file in files]
    folders = {folder: folder.split("/") if folder else [] for folder in set(folder_of)}
    top = sorted({parts[0] for parts in folders.values() if parts})
    split_of = {name: split for name in top if (split := split_named(name))}
    has_splits = not {TRAIN, TEST}.isdisjoint(split_of.values())
    if has_splits and (strange := [name for name in top if name not in split_of]):
        raise InputError(
            f"Folders {shown(strange)} stand beside split folders in {location}. Expected only {', '.join(SPLITS)}. "
            "Move them into one of these, or out of the source."
        )
    if has_splits and len(set(split_of.values())) < len(split_of):
        raise InputError(
            f"Several folders in {location} are for one split: {split_of}. Expected one for each. Join or rename them."
        )
    depth = 3 if has_splits else 2
    class_of = {folder: parts[depth - 2] for folder, parts in folders.items() if len(parts) >= depth - 1}
    misplaced = [file.name for file, folder in zip(files, folder_of, strict=True) if folder not in class_of]
    files, folder_of = _those_in(class_of, files, folder_of)
    _check_misplaced(misplaced, bool(files), kind, location, has_splits)
    notes = [f"left out {len(misplaced)} files that are in no class's folder"] if misplaced else []
    if params.class_names:
        counts = Counter(class_of[folder] for folder in folder_of)
        if absent := [name for name in params.class_names if name not in counts]:
            raise InputError(
                f"No folder in {location} for the classes {shown(absent)}. Received: {shown(sorted(counts))}. Correct "
                "data.class_names, or add the folders."
            )
        wanted = {folder for folder, name in class_of.items() if name in params.class_names}
        files, folder_of = _those_in(wanted, files, folder_of)
        notes += [
            f"left out {count:,} files in {name!r}, which data.class_names lacks"
            for name, count in sorted(counts.items())
            if name not in params.class_names
        ]
    keys = tuple(file.name for file in files)
    splits = np.array([split_of[folders[folder][0]] for folder in folder_of]) if has_splits else None
    labels, classes = index_labels([class_of[folder] for folder in folder_of], params.class_names, keys)
    return Listing(
        source=params.source,
        keys=keys,
        labels=labels,
        class_names=classes,
        splits=splits,
        root=location,
        files=dict(zip(keys, files, strict=True)),
        kind=kind,
        notes=tuple(notes),
    )


def list_loose(kind: str, location: str, params: WriteParams) -> Listing:
    """List every image or text below a folder, whatever folders they are in."""
    location = location.rstrip("/") or "/"
    files = storage.list_files(location)
    chosen = [file for file in files if kind == TEXT or has_image_suffix(file.name)]
    if not chosen:
        raise InputError(
            f"Found no images in {location}: expected files as .jpg or .png, received {shown([f.name for f in files])}."
        )
    keys = tuple(file.name for file in chosen)
    labels, classes = without_labels(len(keys))
    by_name = dict(zip(keys, chosen, strict=True))
    return Listing(params.source, keys, labels, classes, root=location, files=by_name, kind=kind)


def _those_in(
    folders: Container[str], files: Sequence[storage.StoredFile], folder_of: Sequence[str]
) -> tuple[list[storage.StoredFile], list[str]]:
    """Return the files in some folders, and the folder of each."""
    are_in = [folder in folders for folder in folder_of]
    return list(itertools.compress(files, are_in)), list(itertools.compress(folder_of, are_in))


def _check_misplaced(names: Sequence[str], has_others: bool, kind: str, location: str, has_splits: bool) -> None:
    """Check that no example stands above the classes' folders; a README may, or a list of the files."""
    examples = [name for name in names if kind == IMAGE and has_image_suffix(name)]
    if not examples and has_others:
        return
    advice = "Move them into the folder of their class, or out of the source."
    if table := next((name for name in names if name.endswith(".csv")), ""):
        advice = f"Move them into the folder of their class, or give the list of them: csv:{location}/{table}."
    raise InputError(
        f"Files without a class in {location}: {shown(examples or list(names))}. Expected "
        f"{'SPLIT/CLASS/FILE' if has_splits else 'CLASS/FILE'}. {advice}"
    )


IMAGES, TEXTS = (
    Source(
        form,
        functools.partial(list_folders, kind),
        has_class_folders=True,
        read_unlabelled=functools.partial(list_loose, kind),
    )
    for form, kind in (("images:DIR", IMAGE), ("text:DIR", TEXT))
)

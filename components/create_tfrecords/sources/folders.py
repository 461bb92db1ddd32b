"""A folder for each class, of images or of texts."""

import functools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from components import storage
from components.artifacts import SPLITS, TEST, TRAIN
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.listing import Listing, Source, split_named
from components.create_tfrecords.targets import index_labels, shown
from components.errors import InputError
from components.images import has_image_suffix
from components.interface import IMAGE, TEXT


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python reads the bytes of such a name as lone surrogates.
        return False
    return True


def list_folders(kind: str, location: str, params: WriteParams) -> Listing:
    """List a folder per class, perhaps below folders of the splits. Files above the classes are left out, and said.

    So `class_names` may choose among the folders: aclImdb has one of reviews without a class.
    """
    location = location.rstrip("/") or "/"  # On gs://, a//b is not a/b.
    files = storage.list_files(location)
    if garbled := [file.name for file in files if not _is_utf8(file.name)]:
        raise InputError(f"File names in {location} that are not UTF-8: {shown(garbled)}. Rename them.")
    top = sorted({file.name.split("/")[0] for file in files if "/" in file.name})
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
    placed = [file for file in files if file.name.count("/") >= depth - 1]
    misplaced = [file.name for file in files if file.name.count("/") < depth - 1]
    _check_misplaced(misplaced, bool(placed), kind, location, has_splits)
    notes = [f"left out {len(misplaced)} files that are in no class's folder"] if misplaced else []

    def class_of(file: storage.StoredFile) -> str:
        return file.name.split("/")[depth - 2]

    counts = Counter(map(class_of, placed))
    if params.class_names:
        if absent := [name for name in params.class_names if name not in counts]:
            raise InputError(
                f"No folder in {location} for the classes {shown(absent)}. Received: {shown(sorted(counts))}. Correct "
                "data.class_names, or add the folders."
            )
        placed = [file for file in placed if class_of(file) in params.class_names]
        notes += [
            f"left out {count:,} files in {name!r}, which data.class_names lacks"
            for name, count in sorted(counts.items())
            if name not in params.class_names
        ]
    names = list(map(class_of, placed))
    splits = np.array([split_of[file.name.split("/")[0]] for file in placed]) if has_splits else None
    labels, classes = index_labels(names, params.class_names, [file.name for file in placed])
    return Listing(
        source=params.source,
        keys=tuple(file.name for file in placed),
        labels=labels,
        class_names=classes,
        splits=splits,
        root=location,
        files={file.name: file for file in placed},
        kind=kind,
        notes=tuple(notes),
    )


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


IMAGES = Source("images:DIR", functools.partial(list_folders, IMAGE), has_class_folders=True)
TEXTS = Source("text:DIR", functools.partial(list_folders, TEXT), has_class_folders=True)

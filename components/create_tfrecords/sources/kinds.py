"""The kinds of source by name, and the examples of any of them."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from components.artifacts import TEST, TRAIN
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.corpus import list_corpus
from components.create_tfrecords.sources.csv_file import list_csv
from components.create_tfrecords.sources.folders import list_folders
from components.create_tfrecords.sources.idx import list_idx
from components.create_tfrecords.sources.keras_datasets import list_keras
from components.create_tfrecords.sources.listing import Listing
from components.create_tfrecords.sources.npz import list_npz
from components.create_tfrecords.sources.sklearn_digits import list_sklearn
from components.create_tfrecords.targets import shown
from components.errors import InputError, did_you_mean
from components.interface import CLASSIFICATION, IMAGE, MULTI_LABEL, REGRESSION, TEXT


def list_examples(params: WriteParams) -> Listing:
    """Every labelled example that `params.source` names.

    Raises:
        InputError: If the source is unknown, empty or malformed, does not hold what the task needs, or does not fit
            `params.class_names`.
    """
    kind, separator, location = params.source.partition(":")
    if not separator or kind not in _SOURCES:
        raise InputError(
            f"Unknown source {params.source!r}: expected one of {', '.join(f'{name}:…' for name in _SOURCES)}."
            + did_you_mean(kind, _SOURCES)
        )
    if not location:
        raise InputError(f"Source {params.source!r} names no place: expected {kind}:PATH or {kind}:NAME.")
    if params.group_column and kind != "csv":
        raise InputError(
            f"group_column={params.group_column!r} needs a csv: source. Received: {params.source!r}. Remove it."
        )
    if params.task != CLASSIFICATION and kind not in _WITH_ANY_TARGET:
        raise InputError(
            f"task={params.task!r} needs a {' or '.join(f'{name}:' for name in _WITH_ANY_TARGET)} source. Received: "
            f"{params.source!r}, which has one class per example. List the files with their labels in a CSV file."
        )
    if params.context_tokens and kind != "corpus":
        raise InputError(
            f"context_tokens={params.context_tokens} needs a corpus: source. Received: {params.source!r}. Remove it."
        )
    listing = _SOURCES[kind](location, params)
    if listing.corpus is not None:
        return listing
    _check_kind(listing, params)
    if params.task == MULTI_LABEL:
        if not listing.labels.any():
            raise InputError(f"No example of {params.source!r} has a label. Expected some, as in cat|dog.")
        return listing
    if params.task == REGRESSION:
        return listing
    if listing.splits is not None and not params.class_names:
        listing = _check_classes_of_splits(listing, kind in _FOLDERS)
    present = np.unique(listing.labels)
    if len(present) < 2:
        name = listing.class_names[present[0]] if len(present) else "none"
        raise InputError(
            f"A classifier needs at least two classes. Received: one class ({name!r}) in {params.source!r}. "
            "Give every class its own folder or label."
            + (f" If {name!r} holds their folders: {kind}:{location}/{name}." if kind in _FOLDERS else "")
        )
    return listing


def source_version(params: WriteParams) -> str:
    """Return a digest of what a source holds now: its files' names, sizes and versions.

    Of data that come with a library it is their name. On gs:// a file's version is its checksum, so that the same data
    written again have the same digest.

    Raises:
        InputError: If the source cannot be listed.
    """
    return list_examples(params).stat_digest() if params.location else params.source


_FOLDERS = ("images", "text")


def _check_classes_of_splits(listing: Listing, is_of_folders: bool) -> Listing:
    """Refuse classes that are judged and never trained. Those never judged are noted; of folders they are refused."""
    assert listing.splits is not None
    classes = np.array(listing.class_names)

    def found(where: np.ndarray) -> set[str]:
        return set(classes[np.unique(listing.labels[where])].tolist())

    trained, judged = found(listing.splits == TRAIN), found(listing.splits != TRAIN)
    lacking = {"training": judged - trained if trained else set()}
    if is_of_folders:
        lacking["test"] = trained - judged if judged else set()
    for where, names in lacking.items():
        if names:
            raise InputError(
                f"Classes without {where} examples in {listing.source}: {shown(sorted(names))}. Expected every class "
                "in every split. Add them there, or name the classes to use in data.class_names."
            )
    tested = found(listing.splits == TEST)
    unjudged = [name for name in listing.class_names if name not in tested]
    if tested and unjudged and not is_of_folders:
        return dataclasses.replace(listing, notes=(*listing.notes, f"no test examples of {shown(unjudged)}"))
    return listing


def _check_kind(listing: Listing, params: WriteParams) -> None:
    of_images = ("image_size", "channels", "encoding")
    of_texts = ("vocabulary_size", "num_tokens", "truncate")
    default = WriteParams(params.source)
    for name in of_images if listing.kind == TEXT else of_texts:
        if getattr(params, name) != getattr(default, name):
            raise InputError(
                f"{name} is for {'images' if listing.kind == TEXT else 'texts'}. Received: "
                f"{name}={getattr(params, name)!r} with {'texts' if listing.kind == TEXT else 'images'} in "
                f"{params.source!r}. Remove it."
            )


_WITH_ANY_TARGET = ("csv", "npz")
_SOURCES: dict[str, Callable[[str, WriteParams], Listing]] = {
    "images": partial(list_folders, IMAGE),
    "csv": list_csv,
    "corpus": list_corpus,
    "npz": list_npz,
    "idx": list_idx,
    "sklearn": list_sklearn,
    "keras": list_keras,
    "text": partial(list_folders, TEXT),
}

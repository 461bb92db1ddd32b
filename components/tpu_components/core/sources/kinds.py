"""All kinds of source by name, and functions that list or check a source of any kind."""

import dataclasses
import re
from pathlib import PurePath

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import TEST, TRAIN
from tpu_components.core.examples.class_names import notes_on
from tpu_components.core.examples.images import has_image_suffix
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION
from tpu_components.core.files.location import Location
from tpu_components.core.sources import (
    annotations,
    corpus,
    csv_file,
    folders,
    idx,
    keras_datasets,
    npz,
    parquet,
    sklearn_digits,
    tfrecord_files,
    webdataset,
)
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.pairs import NOT_SUPPORTED
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef

_ALL = (
    folders.IMAGES,
    folders.TEXTS,
    csv_file.SOURCE,
    annotations.LABEL_STUDIO,
    annotations.CVAT,
    corpus.SOURCE,
    npz.SOURCE,
    idx.SOURCE,
    webdataset.SOURCE,
    parquet.SOURCE,
    parquet.HUB,
    tfrecord_files.SOURCE,
    sklearn_digits.SOURCE,
    keras_datasets.SOURCE,
)
RECORDS = "records"  # Kind of a source of predict_batch: records that create_tfrecords wrote.
SOURCES = {SourceRef.parse(source.form).kind: source for source in _ALL}
_FEWEST_UNIQUE = 10  # With fewer examples, each may have a unique label in a first try.
KIND_OF_SUFFIX = {suffix: kind for kind, source in SOURCES.items() for suffix in source.suffixes}
# Fields of WriteParams that only some kinds support. `check_source` checks `task` and `rewrite` separately, because the
# defaults of these two are not empty, and every kind supports them.
_OPTIONAL = tuple(dict.fromkeys(field for source in _ALL for field in source.takes if field not in ("task", "rewrite")))
_SINGLE_SLASH = re.compile(r"(gs|s3):/(?!/)")
_NOT_FOR = {
    "images": ("vocabulary_size", "num_tokens", "tokenization", "truncate"),
    "texts": ("image_size", "channels", "encoding", "jpeg_quality", "crop_margin"),
    "a corpus": (
        *("image_size", "channels", "encoding", "crop_margin", "class_names", "vocabulary_size", "tokenization"),
        "truncate",
    ),
}


def find_source(ref: SourceRef) -> Source:
    """Return the description of a source's kind.

    Raises:
        InputError: If the kind is unknown, or the location is empty or has only one slash after `gs:` or `s3:`.
    """
    text = str(ref)
    if ref.kind not in SOURCES:
        hint = did_you_mean(ref.kind, SOURCES) if ref.kind else _kinds_hint(text)
        raise InputError(f"Unknown source {text!r}: expected one of {', '.join(source.form for source in _ALL)}.{hint}")
    if match := _SINGLE_SLASH.match(ref.place):
        raise InputError(f"Unknown location in {text!r}: {match[0]!r} has only one slash. Write {match[0]}/.")
    if not ref.place:
        raise InputError(f"The source {text!r} has no location: expected {SOURCES[ref.kind].form}.")
    return SOURCES[ref.kind]


def _kinds_hint(text: str) -> str:
    """Return the end of an error message: a suggestion of a kind for `text`, which does not begin with a kind."""
    if near := did_you_mean(text, SOURCES):
        return near
    kind = KIND_OF_SUFFIX.get(PurePath(text).suffix.lower())
    return f" Did you mean {kind}:{text}?" if kind else f" Did you mean images:{text}, or text:{text}?"


def find_location(ref: SourceRef) -> Location:
    """Return the path or URI of a source's data, or an empty location for a data set from a library."""
    source = find_source(ref)
    if source is parquet.HUB:
        return parquet.HubDataSet.parse(ref.place).folder
    return ref.place if source.is_place else Location()


def location_of(source: SourceRef) -> Location:
    """Return the path or URI of a source's data, or an empty location for a data set from a library.

    Unlike `find_location`, this function also accepts the kind `records:` of predict_batch.

    Raises:
        InputError: If the kind of the source is unknown.
    """
    return source.place if source.kind == RECORDS else find_location(source)


def list_examples(params: WriteParams) -> Listing:
    """List the labelled examples of a source.

    Raises:
        InputError: If the source is unknown, empty or malformed, or does not fit the task or `params.class_names`.
    """
    source = check_source(params)
    listing = source.read(params.source_ref.place, params, True)
    if not len(listing.keys) and listing.bad:
        raise InputError(
            f"No example in {params.source!r} can be used. For example, {listing.bad[0].key}: "
            f"{listing.bad[0].reason}. Correct the source, or name another field in data.columns."
        )
    _check_kind(listing, params)
    if listing.corpus is not None:
        return listing
    if listing.bad and params.task != REGRESSION and not params.class_names:
        listing = _without_empty_classes(listing)
    if params.task != REGRESSION:
        _check_labels(listing, source, params)
        listing = dataclasses.replace(listing, notes=(*listing.notes, *notes_on(listing.class_names)))
    if params.task == MULTI_LABEL:
        if not listing.labels.any():
            raise InputError(
                f"No example in {params.source!r} has a label. Expected labels such as cat|dog. Add labels."
            )
        return listing
    if params.task == REGRESSION:
        return listing
    if listing.splits is not None and not params.class_names:
        listing = _check_classes_of_splits(params.source, listing, source.has_class_folders)
    present = np.unique(listing.labels)
    if len(present) == len(listing.labels) >= _FEWEST_UNIQUE:
        name = listing.class_names[present[0]]
        note = f"every example has a different label, such as {name!r}. A model needs several examples of each class"
        listing = dataclasses.replace(listing, notes=(*listing.notes, note))
    if len(present) < 2:
        received = "no classes"
        advice = "Give every class a separate folder or label."
        if listing.bad:
            lost = listing.bad[0]
            advice = (
                f"{len(listing.bad)} of {listing.num_inputs} inputs cannot be used, such as {lost.key!r} "
                f"({lost.reason}). Repair them."
            )
        if len(present):
            name = listing.class_names[present[0]]
            received = f"one class ({name!r})"
            if source.has_class_folders:
                advice += f" If {name!r} contains the class folders, use {params.source}/{name}."
        raise InputError(
            f"A classifier needs at least two classes. Received: {received} in {params.source!r}. {advice}"
        )
    return listing


def list_unlabelled(params: WriteParams) -> Listing:
    """List the examples of a source for predictions.

    Labels may be missing if the kind of source allows it.

    Raises:
        InputError: If the source is unknown, empty or malformed.
    """
    return find_source(params.source_ref).read(params.source_ref.place, params, False)


def _without_empty_classes(listing: Listing) -> Listing:
    """Return the listing without the classes whose examples were all quarantined."""
    labels = listing.labels
    used = np.unique(labels) if labels.ndim == 1 else np.flatnonzero(labels.any(axis=0))
    if len(used) == len(listing.class_names):
        return listing
    kept = np.searchsorted(used, labels).astype(labels.dtype) if labels.ndim == 1 else labels[:, used]
    return dataclasses.replace(listing, labels=kept, class_names=tuple(listing.class_names[i] for i in used.tolist()))


def _check_labels(listing: Listing, source: Source, params: WriteParams) -> None:
    """Check that the labels are not paths of images, such as masks.

    Raises:
        InputError: If there are several labels, all are image paths, and `params.class_names` is empty.
    """
    names = listing.class_names
    if not params.class_names and not source.has_class_folders and len(names) > 1 and all(map(has_image_suffix, names)):
        raise InputError(
            f"The labels of {params.source!r} are paths of images: {quoted(names)}. {NOT_SUPPORTED} Name the column "
            "with the class: data.columns={label: …}. If these paths are the classes, list them in data.class_names."
        )


def source_version(params: WriteParams, listing: Listing | None = None) -> str:
    """Return a digest of the current names, sizes and versions of a source's files.

    For a data set from a library, such as `keras:mnist`, return `params.source`. On gs://, a file's version is its
    checksum, so writing the same data again does not change the digest.

    Args:
        params: Source, and how to read it.
        listing: Listing of the source. With None, the source is listed.

    Raises:
        InputError: If the source cannot be listed.
    """
    return (listing or list_examples(params)).stat_digest() if find_location(params.source_ref) else params.source


def require_version(params: WriteParams, listing: Listing, expected: str) -> None:
    """Check that the data of a source have not changed since the run began.

    Args:
        params: Source, and how to read it.
        listing: Listing of the source.
        expected: Result of `source_version` at the start of the run. If empty, any version is accepted.

    Raises:
        InputError: If the source has changed since the start of the run.
    """
    if expected and (received := source_version(params, listing)) != expected:
        raise InputError(
            f"The data of {params.source!r} have changed since this run began: expected version {expected[:12]}, "
            f"received {received[:12]}. Wait until no other program is writing to the source, then run again."
        )


def check_source(params: WriteParams) -> Source:
    """Check that the kind of a source supports all parameters, without reading the source. Return the kind's `Source`.

    Raises:
        InputError: If the kind is unknown, the location is empty, or the kind does not support a parameter.
    """
    source = find_source(params.source_ref)

    def needed(name: str) -> str:
        *others, last = (f"{kind}:" for kind, other in SOURCES.items() if name in other.takes)
        kinds = f"{', '.join(others)} or {last}" if others else last
        return f"{name}={getattr(params, name)!r} requires a {kinds} source. Received: {params.source!r}"

    for name in _OPTIONAL:
        if getattr(params, name) and name not in source.takes:
            raise InputError(f"{needed(name)}. Remove {name}.")
    if not params.rewrite and "rewrite" not in source.takes:
        raise InputError(f"{needed('rewrite')}. Set rewrite to true.")
    if params.task != CLASSIFICATION and "task" not in source.takes:
        raise InputError(
            f"{needed('task')}, which allows only one class per example. List the files with their labels in a CSV "
            "file."
        )
    return source


def _check_classes_of_splits(source: str, listing: Listing, is_of_folders: bool) -> Listing:
    """Check that every class has training examples, and examples in the validation or test split.

    Classes without training examples raise InputError. If the classes are folders, classes without validation and test
    examples also raise InputError. For other sources, the returned listing has a note on classes without test examples.
    """
    assert listing.splits is not None
    classes = np.array(listing.class_names)

    def classes_where(where: np.ndarray) -> set[str]:
        return set(classes[np.unique(listing.labels[where])].tolist())

    trained = classes_where(listing.splits == TRAIN)
    judged = classes_where(listing.splits != TRAIN)
    lacking = {"training": judged - trained if trained else set()}
    if is_of_folders:
        lacking["test"] = trained - judged if judged else set()
    for where, names in lacking.items():
        if names:
            raise InputError(
                f"Classes without {where} examples in {source}: {quoted(sorted(names))}. Expected every class in "
                "every split. Add examples of these classes, or name the classes to use in data.class_names."
            )
    tested = classes_where(listing.splits == TEST)
    unjudged = [name for name in listing.class_names if name not in tested]
    if tested and unjudged and not is_of_folders:
        return dataclasses.replace(listing, notes=(*listing.notes, f"there are no test examples of {quoted(unjudged)}"))
    return listing


def _check_kind(listing: Listing, params: WriteParams) -> None:
    """Raise InputError if a parameter is set that has no effect on this kind of example."""
    kind = "a corpus" if listing.corpus else f"{listing.kind}s"
    default = WriteParams(params.source)
    for name in _NOT_FOR[kind]:
        if getattr(params, name) != getattr(default, name):
            raise InputError(
                f"{name} does not apply to {kind}. Received: {name}={getattr(params, name)!r} with {params.source!r}. "
                f"Remove {name}."
            )

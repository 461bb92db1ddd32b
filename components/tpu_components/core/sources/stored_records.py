"""Labels and files of records that another program has written and that training reads in place (rewrite=false)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import Targets, parse_numbers, without_label

REWRITE = "Set data.rewrite to true, so that create_tfrecords writes new records."


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A TFRecord file: its path or URI, its split, and its number of records."""

    path: str
    split: str
    num_examples: int


@dataclasses.dataclass(frozen=True)
class StoredRecords:
    """Files whose records are used in place, and how the records are stored.

    Attributes:
        files: The files, in the order of the listing.
        feature_names: See `Manifest`.
        compression: See `Manifest`.
        encoding: Format of the images: `raw` or `encoded`.
    """

    files: tuple[StoredFile, ...]
    feature_names: Mapping[str, str]
    compression: str
    encoding: str


def read_stored_targets(
    values: Sequence[list[Any] | None], name: str, params: WriteParams, class_names: Sequence[str], keys: Sequence[str]
) -> Targets:
    """Check the targets of records that are used in place, and return them as `Targets`.

    Args:
        values: Values of the feature `name` in each record. None or empty for a record without this feature.
        name: The feature with the target.
        params: Parameters of the records.
        class_names: Names of the labels 0, 1 and so on. If empty, the numbers are the names.
        keys: Name of each record in messages.

    Returns:
        The targets. Records without a target, or with a target that is not valid for the classes, are in `unusable`.

    Raises:
        InputError: If training cannot read the feature as it is stored.
    """
    kind = int if params.task in (CLASSIFICATION, MULTI_LABEL) else float
    rows = [value or [] for value in values]
    length = 1 if params.task == CLASSIFICATION else max(map(len, rows), default=0)
    if params.task == MULTI_LABEL and class_names:
        length = len(class_names)
    wanted = {
        CLASSIFICATION: "one whole number, the index of the class",
        MULTI_LABEL: f"{length} whole numbers, 0 or 1 for each class",
    }.get(params.task, f"{length} numbers stored as float32")
    for key, row in zip(keys, rows, strict=True):
        if row and (len(row) != length or not all(type(item) is kind for item in row)):
            received = f"{str(row[:5])[:60]}{' …' if len(row) > 5 else ''}, {len(row):,} in all"
            raise InputError(
                f"Training cannot read the label of {key} as it is stored: expected {wanted} in {name!r}, received "
                f"{received}. Name another feature (data.columns={{label: …}}), set another data.task, or set "
                "data.rewrite to true, so that create_tfrecords writes new records."
            )
    lacking = {i: without_label(None) for i, row in enumerate(rows) if not row}
    if kind is float:
        names = (name,) if length == 1 else tuple(f"{name}_{number}" for number in range(length))
        filled = np.array([row or [np.nan] * length for row in rows], np.float64).reshape(-1, length)
        targets = parse_numbers(list(filled.T), names, keys)
        return targets._replace(unusable={**targets.unusable, **lacking})
    stored = np.array([row or [0] * length for row in rows], np.int64).reshape(-1, length)
    if params.task == MULTI_LABEL:
        classes = tuple(class_names) or tuple(map(str, range(length)))
        strange = np.flatnonzero(((stored != 0) & (stored != 1)).any(axis=1)).tolist()
        odd = {i: f"its labels are {stored[i].tolist()}, expected 0 or 1 for each class" for i in strange}
        return Targets(stored.astype(np.uint8), classes, {**odd, **lacking})
    labels = stored[:, 0]
    classes = tuple(class_names) or tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
    is_outside = (labels < 0) | (labels >= len(classes))
    outside = np.flatnonzero(is_outside).tolist()
    if outside and labels.min() >= 1 and labels.max() == len(classes):
        raise InputError(
            f"The labels in {params.source!r} are 1 to {len(classes)}, but training counts classes from 0. Put a name "
            "for 0 at the start of data.class_names. Or set data.rewrite to true, so that create_tfrecords writes new "
            "records."
        )
    which = f"0 to {len(classes) - 1}, the indices of the class names"
    odd = {i: f"its label is {labels[i]}, expected {which}" for i in outside}
    return Targets(np.where(is_outside, 0, labels).astype(np.int32), classes, {**odd, **lacking})

"""Converts the targets of a source to stored numbers, with class names or statistics for the manifest.

`labels` are int32[num_examples] class indices, uint8[num_examples, num_classes] of 0 and 1 for multi-label data, or
float32[num_examples, num_targets] for regression.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TargetStatistics

SEPARATOR = "|"  # Between the labels in a CSV cell.
_SHOWN = 5
TARGETS = "Targets must be finite numbers"
WEIGHTS = "Weights must be finite numbers of at least 0"


def index_labels(
    names: Sequence[str], class_names: Sequence[str], where: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Convert class names to indices, int32[num_examples]; also returns the list of classes.

    Args:
        names: The class of every example.
        class_names: The classes in order; empty for all that occur, sorted.
        where: Name of each example in messages.

    Raises:
        InputError: If a name is not among the classes.
    """
    classes = _classes(set(names), class_names, lambda unknown: where[_first(name in unknown for name in names)])
    index = {name: i for i, name in enumerate(classes)}
    return np.fromiter((index[name] for name in names), np.int32, len(names)), classes


def split_labels(
    cells: Sequence[str | Sequence[str]], class_names: Sequence[str], where: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Convert cells such as `cat|dog` to 0 and 1, uint8[num_examples, num_classes]; also returns the class names.

    Args:
        cells: The labels of every example: a list, or a text such as `cat|dog`. If either is empty, there are none.
        class_names: See `index_labels`.
        where: See `index_labels`.

    Raises:
        InputError: If a label is not among the classes, or labels seem to be separated by another character.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not class_names and not any(SEPARATOR in cell for cell in texts):
        joined = next((cell for cell in texts if re.search("[,;]", cell)), None)
        if joined is not None:
            raise InputError(
                f"Labels in a cell are separated by {SEPARATOR!r}. Received: {joined!r}. Write {SEPARATOR!r} between "
                "them, or, if it is one label, name all of them in data.class_names."
            )
    parts = (cell.split(SEPARATOR) if isinstance(cell, str) else cell for cell in cells)
    labels = [{name for part in of_one if (name := part.strip())} for of_one in parts]
    occurring = set().union(*labels)
    classes = _classes(occurring, class_names, lambda unknown: where[_first(bool(own & unknown) for own in labels)])
    index = {name: i for i, name in enumerate(classes)}
    hot = np.zeros((len(cells), len(classes)), np.uint8)
    for row, of_one in zip(hot, labels, strict=True):
        row[[index[name] for name in of_one]] = 1
    return hot, classes


def check_hot(array: np.ndarray, num_examples: int, source: str) -> np.ndarray:
    """Check an array of booleans or of 0 and 1; returns uint8[num_examples, num_classes].

    Raises:
        InputError: If the array has other values or another shape.
    """
    fits = array.ndim == 2 and len(array) == num_examples and array.shape[1] and array.dtype.kind in "biu"
    if not fits or array.min(initial=0) < 0 or array.max(initial=0) > 1:
        raise InputError(
            f"Labels do not fit in {source}: expected uint8 or bool [{num_examples}, classes] of 0 and 1, one column "
            f"per class, received {array.dtype}{list(array.shape)}"
            + (f" between {array.min()} and {array.max()}." if fits else ".")
        )
    return array.astype(np.uint8)


def parse_numbers(
    columns: Sequence[Iterable[Any]], names: Sequence[str], where: Sequence[str], what: str = TARGETS
) -> np.ndarray:
    """Read columns of numbers, or of texts with numbers, as float32[num_examples, num_targets].

    Raises:
        InputError: If a cell holds something else, or `check_finite` refuses a number.
    """
    values = np.empty((len(where), len(names)))
    for name, column, numbers in zip(names, columns, values.T, strict=True):
        for i, cell in enumerate(column):
            try:
                numbers[i] = float(cell)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"Cannot use {where[i]}: expected a number in {name!r}, received {cell!r}. Correct it."
                ) from error
    return check_finite(values, names, where, what)


def check_finite(values: np.ndarray, names: Sequence[str], where: Sequence[str], what: str = TARGETS) -> np.ndarray:
    """Check that numbers are finite; returns them as float32[num_examples, num_targets].

    Raises:
        InputError: If a number is not finite as float32, or a weight is negative.
    """
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(stored) | ((stored < 0) & (what == WEIGHTS)))
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{what}. Received: {values[row, column]} in {names[column]!r} at {where[row]}, one of "
            f"{len(bad)}. Correct or remove these examples."
        )
    return stored


def check_variation(values: np.ndarray, names: Sequence[str]) -> None:
    """Check that no regression target is constant.

    Raises:
        InputError: If a column of float32[num_examples, num_targets] has a single value.
    """
    for name, column in zip(names, values.T, strict=True):
        if not np.ptp(column):
            raise InputError(
                f"The target {name!r} is {column[0]:g} in all {len(column)} training examples: there is nothing to "
                "learn. Expected numbers that differ. Remove it from data.target_columns, or add data."
            )


def describe_targets(values: np.ndarray) -> tuple[TargetStatistics, ...]:
    """Return the statistics of every column of float32[num_examples, num_targets]."""
    values = values.astype(np.float64)
    columns = (values.mean(0), values.std(0), values.min(0), values.max(0))
    return tuple(TargetStatistics(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def shown(items: Sequence[str]) -> str:
    """Return the first five items, quoted, and the number of further ones, as text for messages."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(repr(item) for item in items[:_SHOWN]) + more


def _first(flags: Iterable[bool]) -> int:
    return next(i for i, flag in enumerate(flags) if flag)


def _classes(occurring: set[str], class_names: Sequence[str], example: Callable[[set[str]], str]) -> tuple[str, ...]:
    """Return `class_names`, checked to contain all that occur, or if it is empty all that occur, sorted."""
    if class_names:
        if unknown := occurring - set(class_names):
            raise InputError(
                f"Labels outside the class list: {shown(sorted(unknown))} (first at {example(unknown)}). Expected one "
                f"of {list(class_names)}. Correct the labels, or add them to data.class_names."
            )
        return tuple(class_names)
    # Python refuses to parse thousands of digits; 18 fit an int64.
    numeric = all(name.isdecimal() and len(name) <= 18 for name in occurring)
    return tuple(sorted(occurring, key=(lambda name: (int(name), name)) if numeric else None))

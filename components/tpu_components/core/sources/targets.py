"""Conversion of a source's labels and numbers to targets as they are stored, with class names and statistics.

Stored targets are int32[num_examples] class indices, uint8[num_examples, num_classes] of 0 and 1 for multi-label data,
or float32[num_examples, num_targets] for regression.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import TargetStatistics
from tpu_components.core.examples.class_names import MISSING, class_name, missing_labels

SEPARATOR = "|"  # Between the labels in a CSV cell.
_SEPARATORS_IN_NAMES = (r"\s+", r"\s*/\s*", r"\s*[&+]\s*")
# Commas and semicolons, also of Chinese, Japanese and Arabic, and the wide form of `|`.
_SEPARATORS_ALWAYS = re.compile("[,;\uff0c\uff1b\u3001\u060c\u061b\uff5c]")
_ANY_SEPARATOR = re.compile(rf"\s*(?:{_SEPARATORS_ALWAYS.pattern}|[/&+])\s*")
_BRACKETS = ("[]", "{}", "()")  # Around a list, as Python, JSON and PostgreSQL write it.
_NO_CLASS = -1
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|" + _FRACTION.pattern)
_MOST_ROUNDING = 0.01  # Of the standard deviation.
TARGETS = "Targets must be finite numbers"
WEIGHTS = "Weights must be finite numbers of at least 0"


class Targets(NamedTuple):
    """Targets of examples, with class names and unusable examples.

    Attributes:
        labels: The targets in their stored form; see the module's docstring. Values of missing targets are arbitrary.
        class_names: The classes; for a regression, the names of the targets.
        unusable: Examples without a usable target, as {index: reason}. They are quarantined.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]
    unusable: Mapping[int, str]


def index_labels(names: Sequence[str | None], class_names: Sequence[str], where: Sequence[str]) -> Targets:
    """Convert labels to indices of classes, int32[num_examples].

    Args:
        names: The label of every example, or None. `class_name` converts a label to the name of its class;
            `missing_labels` returns the texts that stand for a missing label.
        class_names: The classes in order. Empty means all classes that occur, sorted.
        where: Name of each example in messages.

    Raises:
        InputError: If a label is not among the classes, or the labels are numbers with a fraction.
    """
    missing = missing_labels(class_names)
    # Many examples share few names, so convert each name once.
    class_of = {name: None if name is None or name.strip() in missing else class_name(name) for name in set(names)}
    occurring = {name for name in class_of.values() if name is not None}
    classes = _classes(
        occurring, class_names, lambda unknown: where[_first(class_of[name] in unknown for name in names)]
    )
    index = {name: i for i, name in enumerate(classes)}
    label_of = {name: _NO_CLASS if named is None else index[named] for name, named in class_of.items()}
    labels = np.fromiter((label_of[name] for name in names), np.int32, len(names))
    lacking = np.flatnonzero(labels == _NO_CLASS).tolist()
    return Targets(labels, classes, {i: without_label(names[i]) for i in lacking})


def without_label(label: str | None) -> str:
    """Return the reason for quarantining an example without a label.

    `label` is the text in place of the label, for example `nan`, or None.
    """
    return f"its label is missing: {label!r}" if label else "its label is missing"


def split_labels(
    cells: Sequence[str | Sequence[str] | None], class_names: Sequence[str], where: Sequence[str]
) -> Targets:
    """Convert any number of labels per example to 0 and 1, uint8[num_examples, num_classes].

    Args:
        cells: The labels of every example: a list, or a text such as `cat|dog`. An empty list or text means that no
            label applies to the example. None or `nan` means that its labels are missing.
        class_names: See `index_labels`.
        where: See `index_labels`.

    Raises:
        InputError: If a label is not among the classes, or labels seem to be separated by a character other than `|`.
    """
    label_sets = [cell if cell is None or isinstance(cell, str) else tuple(cell) for cell in cells]
    different = set(label_sets)
    texts = [cell for cell in different if isinstance(cell, str)]
    parts = [cell.split(SEPARATOR) for cell in texts]
    find = find_joined if all(len(labels) == 1 for labels in parts) else _find_joined_beside
    if not class_names and (joined := find(itertools.chain.from_iterable(parts))):
        raise InputError(
            f"Expected {SEPARATOR!r} between the labels in a cell, received {joined!r}. Write {SEPARATOR!r} between "
            "the labels. If this is one label, list all classes in data.class_names."
        )
    missing = missing_labels(class_names) - {""}
    # Many examples share few cells, so read each cell once.
    names_in = {cell: _names_in(cell, missing) for cell in different}
    occurring = {name for names in names_in.values() for name in names or ()}
    classes = _classes(
        occurring,
        class_names,
        lambda unknown: where[_first(bool(unknown & set(names_in[cell] or ())) for cell in label_sets)],
    )
    index = {name: i for i, name in enumerate(classes)}
    places = {cell: [index[name] for name in names or ()] for cell, names in names_in.items()}
    hot = np.zeros((len(label_sets), len(classes)), np.uint8)
    for row, cell in zip(hot, label_sets, strict=True):
        row[places[cell]] = 1
    lacking = ((i, cell) for i, cell in enumerate(label_sets) if names_in[cell] is None)
    return Targets(hot, classes, {i: without_label(cell if isinstance(cell, str) else None) for i, cell in lacking})


def _names_in(cell: str | tuple[str, ...] | None, missing: Container[str]) -> list[str] | None:
    """Return the distinct class names in a cell, or None if its labels are missing."""
    if cell is None or (isinstance(cell, str) and cell.strip() in missing):
        return None
    parts = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    return list(dict.fromkeys(name for part in parts if (name := class_name(part))))


def _find_joined_beside(labels: Iterable[str]) -> str | None:
    """Return a label that consists of other labels joined by a separator, or None.

    Example:
        >>> _find_joined_beside(["cat, dog", "dog", "cat"]), _find_joined_beside(["home, garden", "home", "cat"])
        ('cat, dog', None)
    """
    names = {label.strip() for label in labels}
    parts = {name: _ANY_SEPARATOR.split(name) for name in sorted(names)}
    return next((name for name, several in parts.items() if len(several) > 1 and names.issuperset(several)), None)


def find_joined(cells: Iterable[str]) -> str | None:
    """Return a cell that seems to contain several labels without `|` between them, or None if no cell does.

    A comma or semicolon always counts as a separator, and brackets around a cell always enclose a list. A space, slash,
    `&` or `+` can be part of a name, as in `polar bear`. To decide, all different cells are split at this character. It
    counts as a separator only if there are fewer different parts than different cells, or if every part of every split
    cell also occurs in another cell.

    Example:
        >>> find_joined(["cat dog", "dog", "cat"]), find_joined(["polar bear", "black cat", "cat"])
        ('cat dog', None)
        >>> find_joined(["['cat']"]), find_joined(["cat;dog"]), find_joined(["cat/dog", "cat/cow", "cow/dog"])
        ("['cat']", 'cat;dog', 'cat/cow')
    """
    different = sorted({cell.strip() for cell in cells} - {""})
    for cell in different:
        if _SEPARATORS_ALWAYS.search(cell) or (cell[0] + cell[-1] in _BRACKETS and len(cell) > 1):
            return cell
    for separator in _SEPARATORS_IN_NAMES:
        parts = [{part for part in re.split(separator, cell) if part} for cell in different]
        several = [(cell, labels) for cell, labels in zip(different, parts, strict=True) if len(labels) > 1]
        counts = Counter(label for labels in parts for label in labels)
        are_shared = all(counts[label] > 1 for _, labels in several for label in labels)
        if several and (len(counts) < len(different) or are_shared):
            return several[0][0]
    return None


def check_hot(array: np.ndarray, num_examples: int, source: str) -> np.ndarray:
    """Check an array of booleans or of 0 and 1. Return it as uint8[num_examples, num_classes].

    Raises:
        InputError: If the array has other values or another shape.
    """
    fits = array.ndim == 2 and len(array) == num_examples and array.shape[1] and array.dtype.kind in "biuf"
    if not fits or not np.isin(array, (0, 1)).all():
        raise InputError(
            (
                f"Cannot use the labels in {source}: expected uint8 or bool [{num_examples}, classes] of 0 and 1, "
                f"with one column per class, received {array.dtype}{list(array.shape)}"
            )
            + (f" between {array.min()} and {array.max()}." if fits else ".")
        )
    return array.astype(np.uint8)


def parse_numbers(
    columns: Sequence[Iterable[Any]], names: Sequence[str], where: Sequence[str], what: str = TARGETS
) -> Targets:
    """Read columns of numbers, or of texts with numbers, as float32[num_examples, num_targets].

    A number is missing if it is None, NaN, or a text in `MISSING`. `what` says what the numbers are, `TARGETS` or
    `WEIGHTS`; see `read_numbers`.

    Raises:
        InputError: If a cell does not contain a number, or `read_numbers` rejects a number.
    """
    values = np.empty((len(where), len(names)))
    for name, column, numbers in zip(names, columns, values.T, strict=True):
        for i, cell in enumerate(column):
            try:
                numbers[i] = float(cell)
            except (TypeError, ValueError) as error:
                if cell is not None and not (isinstance(cell, str) and cell.strip() in MISSING):
                    raise InputError(
                        f"Cannot use {where[i]}: expected a number in {name!r}, received {cell!r}. Correct this value."
                    ) from error
                numbers[i] = np.nan
    return read_numbers(values, names, where, what)


def read_numbers(values: np.ndarray, names: Sequence[str], where: Sequence[str], what: str = TARGETS) -> Targets:
    """Check numbers, float64[num_examples, num_targets], and convert them to float32.

    An example with a NaN is in `unusable`. `what` is the first sentence of the error message: `TARGETS` or `WEIGHTS`.

    Raises:
        InputError: If a number is not finite as float32, a weight is negative, or rounding to float32 changes
            targets by more than a hundredth of their standard deviation.
    """
    is_missing = np.isnan(values)
    with np.errstate(over="ignore"):
        stored = np.where(is_missing, 0, values).astype(np.float32)
    bad = np.argwhere(~np.isfinite(stored) | ((stored < 0) & (what == WEIGHTS)))
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{what}. Received: {values[row, column]} in {names[column]!r} at {where[row]}, which is the first of "
            f"{len(bad)} such values. Correct or remove these examples."
        )
    for name, exact, rounded in zip(names, values.T, stored.T, strict=True) if what == TARGETS else ():
        known = ~np.isnan(exact)
        lost = np.abs(exact - rounded)[known].max(initial=0)
        if lost and lost > _MOST_ROUNDING * exact[known].std():
            raise InputError(
                f"The values of {name!r} are too close together for float32, which rounds them by up to {lost:g}. "
                "Subtract their mean, or another constant, from the column."
            )
    unusable = {
        row: " and ".join(f"{names[column]!r} is missing" for column in np.flatnonzero(is_missing[row]).tolist())
        for row in np.flatnonzero(is_missing.any(axis=1)).tolist()
    }
    return Targets(stored, tuple(names), unusable)


def check_variation(values: np.ndarray, names: Sequence[str]) -> None:
    """Check that no regression target is constant.

    Raises:
        InputError: If all values in a column of `values`, float32[num_examples, num_targets], are the same.
    """
    for name, column in zip(names, values.T, strict=True):
        if not np.ptp(column):
            raise InputError(
                f"The target {name!r} is {column[0]:g} in all {len(column)} training examples, so there is nothing to "
                "learn. Remove it from data.target_columns, or add examples with other values."
            )


def describe_targets(values: np.ndarray) -> tuple[TargetStatistics, ...]:
    """Return the mean, standard deviation, minimum and maximum of every column of `values`.

    `values` is float32[num_examples, num_targets].
    """
    values = values.astype(np.float64)
    columns = (values.mean(0), values.std(0), values.min(0), values.max(0))
    return tuple(TargetStatistics(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _first(flags: Iterable[bool]) -> int:
    return next(i for i, flag in enumerate(flags) if flag)


def _classes(occurring: set[str], class_names: Sequence[str], example: Callable[[set[str]], str]) -> tuple[str, ...]:
    """Return the classes: `class_names` or, if it is empty, all names that occur, sorted.

    Raises:
        InputError: If a name that occurs is not in `class_names`, or if `class_names` is empty and all names are
            numbers, some with a fraction.
    """
    if class_names:
        if unknown := occurring - set(class_names):
            raise InputError(
                f"Labels outside the class list: {quoted(sorted(unknown))} (first at {example(unknown)}). Expected one "
                f"of {list(class_names)}. Correct the labels, or add them to data.class_names."
            )
        return tuple(class_names)
    fractions = sorted(name for name in occurring if _FRACTION.fullmatch(name))
    if fractions and all(map(_NUMBER.fullmatch, occurring)):
        raise InputError(
            f"Some labels are numbers with a fraction: {quoted(fractions)} (first at {example({fractions[0]})}). "
            "Expected class names or whole numbers. To predict numbers, set data.task to regression. To use each "
            "number as a class, list all of them in data.class_names."
        )
    # Python refuses to parse thousands of digits; 18 fit an int64.
    numeric = all(name.isdecimal() and len(name) <= 18 for name in occurring)
    return tuple(sorted(occurring, key=(lambda name: (int(name), name)) if numeric else None))

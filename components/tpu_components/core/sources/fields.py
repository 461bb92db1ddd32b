"""Reads labels, splits and IDs from the fields of examples: columns of a table, or features of a record."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import SPLITS, TRAIN
from tpu_components.core.examples.class_names import MISSING, text_of
from tpu_components.core.examples.interface import IMAGE, MULTI_LABEL, REGRESSION, TEXT
from tpu_components.core.files.csv_files import ALIASES, shortened
from tpu_components.core.sources.columns import Names
from tpu_components.core.sources.listing import Listing, split_named, without_labels
from tpu_components.core.sources.pairs import NOT_SUPPORTED, is_picture
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.stored_records import read_stored_targets
from tpu_components.core.sources.targets import (
    SEPARATOR,
    WEIGHTS,
    Targets,
    find_joined,
    index_labels,
    parse_numbers,
    split_labels,
)

# Common names of each field, best first.
_NAMES: Mapping[str, Sequence[str]] = {
    "image": ("image", "image/encoded", "img", "jpg", "jpeg", "png", "picture", "photo", "image_bytes", "image_raw"),
    "label": ("image/class/label", *ALIASES["label"], "cls", "fine_label"),
    "text": ALIASES["text"],
    "split": ("split",),
    "id": ("id",),
}


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Names of a source's fields by their role.

    Attributes:
        params: Parameters of the records.
        labelled: Whether labels, splits and weights are used. If false, only these fields are used: the image or text,
            and the fields that are copied to the output next to each prediction.
        content: `image` or `text`.
        names: Name of the field for each role that the source has: `image` or `text`, `label`, `split`, `id` and
            `weight`.
        notes: Messages to the user about fields whose role was guessed from their names.
        class_names: Names of the classes 0, 1 and so on, if the labels are stored as indices. Empty if unknown.
    """

    params: WriteParams
    labelled: bool
    content: str
    names: Mapping[str, str]
    notes: tuple[str, ...]
    class_names: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the fields with the target."""
        return (self.params.target_columns or (self.names.get("label", "label"),)) if self.labelled else ()

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the fields to store with predictions, besides the ID."""
        return () if self.labelled else self.params.slice_columns

    @property
    def wanted(self) -> list[str]:
        """Names of the fields to read in addition to the image or text."""
        others = (self.names[name] for name in ("split", "id", "weight") if name in self.names)
        return list(dict.fromkeys([*self.targets, *others, *self.kept]))


def choose_fields(fields: Sequence[str], params: WriteParams, location: str, labelled: bool = True) -> Chosen:
    """Choose the fields of the image or text, the target, the split and the ID.

    A field is chosen because `params.columns` names it, or because it has a common name such as `label`.

    Args:
        fields: Names of the fields, in NFC.
        params: Parameters of the records.
        location: Place of the source, for messages.
        labelled: See `Chosen`.

    Raises:
        InputError: If the image or text, a target or a field that a parameter names is missing, or if two fields have
            the same name.
    """
    if len(set(fields)) < len(fields):
        raise InputError(
            f"Some fields in {location} have the same name. Received: {quoted(list(fields))}. Rename the fields so "
            "that each name is unique."
        )
    params = params if labelled else params.without_columns_beyond(fields)
    if strange := sorted(set(params.columns.values()) - set(fields)):
        raise InputError(
            f"Missing fields in {location}: {quoted(strange)}. The setting data.columns names them. Received: "
            f"{quoted(list(fields))}. Correct data.columns."
        )
    by_lower = {name.lower(): name for name in reversed(fields)}
    names = dict(params.columns)
    notes = []
    for what, usual in _NAMES.items():
        field = next((by_lower[name] for name in usual if name in by_lower), None)
        if what in names or field is None or (what == "label" and params.target_columns):
            continue
        names[what] = field
        if field != what:
            notes.append(f"{field!r} is used as the {what}. Set data.columns to use another field")
    named = params.columns if {"image", "text"} & set(params.columns) else names
    content = next((what for what in ("image", "text") if what in named), "")
    chosen = Chosen(params, labelled, content, names, tuple(notes))
    missing = [name for name in (*chosen.targets, *chosen.kept) if name not in fields]
    if not content:
        missing.insert(0, "image (or text)")
    if missing:
        raise InputError(
            f"Missing fields in {location}: {quoted(missing)}. Received: {quoted(list(fields))}. If the fields have "
            "other names, set data.columns={image: …, label: …}."
        )
    return chosen


def read_targets(values: Mapping[str, Sequence[Any]], chosen: Chosen, keys: Sequence[str]) -> Targets:
    """Convert the values of fields, {field: values}, to the targets of a `Listing`.

    Examples without a target, or whose label is not UTF-8, are in `unusable`.

    Raises:
        InputError: If an example has several labels although the task allows one, if a label is a structure or not
            among the classes, or if a target of a regression is not a finite number.
    """
    if not chosen.targets:
        return Targets(*without_labels(len(keys)), {})
    params = chosen.params
    if not params.rewrite:
        name = chosen.targets[0]
        return read_stored_targets(values[name], name, params, chosen.class_names, keys)
    if params.task == REGRESSION:
        for name in chosen.targets:
            _check_single(values[name], name, keys)
        return parse_numbers([map(_only, values[name]) for name in chosen.targets], chosen.targets, keys)
    return read_labels(values[chosen.targets[0]], chosen.targets[0], params, keys)


def read_labels(values: Sequence[Any], name: str, params: WriteParams, keys: Sequence[str]) -> Targets:
    """Convert the values of the field `name` to the targets of a classification or of multi-label data."""
    if params.task == MULTI_LABEL:
        _check_not_hot(values, name, keys)
    else:
        _check_single(values, name, keys)
    labels: list[Any] = []
    garbled: dict[int, str] = {}
    for i, value in enumerate(values):
        try:
            if isinstance(value, list) and params.task == MULTI_LABEL:
                labels.append(None if None in value else [text_of(label) or "" for label in value])
            else:
                labels.append(text_of(_only(value)))
        except UnicodeDecodeError:
            labels.append(None)
            garbled[i] = f"its label is not UTF-8: {_only(value)!r}"
        except TypeError as error:
            raise InputError(
                f"Cannot use {keys[i]}: expected a name or a number in {name!r}, received {shortened(str(value))}. "
                "Store the class in this field, or name another field: data.columns={label: …}."
            ) from error
    if params.task == MULTI_LABEL and not params.class_names:
        _check_not_joined(labels, name)
    read = split_labels if params.task == MULTI_LABEL else index_labels
    targets = read(labels, params.class_names, keys)
    return targets._replace(unusable={**targets.unusable, **garbled})


def _check_not_joined(labels: Sequence[Any], name: str) -> None:
    """Raise InputError if a list with one text seems to contain several labels, such as `["cat|dog"]`.

    TFRecords store every text in a list.
    """
    lists = [label for label in labels if isinstance(label, list)]
    if not lists or any(len(each) > 1 for each in lists):
        return
    texts = {text for each in lists for text in each}
    if joined := next((text for text in sorted(texts) if SEPARATOR in text), None) or find_joined(texts):
        raise InputError(
            f"Expected each label of an example as a separate value of {name!r}. Received: {joined!r}. Store a list "
            "of labels. If this is one label, list all classes in data.class_names."
        )


def _check_not_hot(values: Sequence[Any], name: str, keys: Sequence[str]) -> None:
    """Raise InputError if the lists of labels seem to be rows with a 0 or 1 for each class.

    Such rows would be read as labels of the classes 0 and 1.
    """
    lists = [value for value in values if isinstance(value, list)]
    if len(set(map(len, lists))) != 1:
        return
    # Labels do not repeat, and their order has no meaning.
    is_repeated = any(len(set(each)) < len(each) for each in lists)
    if not is_repeated and (len(set(map(tuple, lists))) == 1 or len(set(map(frozenset, lists))) > 1):
        return
    if all(part in (0, 1, b"0", b"1", "0", "1") for each in lists for part in each):
        place = next(i for i, value in enumerate(values) if isinstance(value, list))
        raise InputError(
            f"Cannot use {keys[place]}: expected the labels of the example in {name!r}, received "
            f"{shortened(str(values[place]))}. This looks like a 0 or 1 for each class. Store the numbers or names of "
            "the classes that apply, such as [0, 2] for [1, 0, 1]."
        )


def _check_single(values: Sequence[Any], name: str, keys: Sequence[str]) -> None:
    several = next((i for i, value in enumerate(values) if _has_several(value)), None)
    if several is not None:
        _check_not_hot(values, name, keys)
        raise InputError(
            f"Cannot use {keys[several]}: expected one value of {name!r}, received {values[several]!r}. Correct the "
            "example. If examples have several labels, set data.task to multi_label."
        )


def read_weights(values: Sequence[Any], name: str, keys: Sequence[str]) -> Targets:
    """Convert the values of the field `name` to weights of examples, float32[num_examples, 1].

    Raises:
        InputError: If a weight is negative, infinite or not a number.
    """
    return parse_numbers([map(_only, values)], (name,), keys, WEIGHTS)


def _has_several(value: Any) -> bool:
    """Return whether a field has several values. A TFRecord feature is a list even if it has one value or none."""
    return isinstance(value, list) and len(value) > 1


def _only(value: Any) -> Any:
    """Return the value of a field: the value itself, the only element of a list, or None for an empty list."""
    return (value[0] if value else None) if isinstance(value, list) else value


def _name(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).strip()


def read_splits(values: Sequence[Any], location: str) -> tuple[np.ndarray, dict[int, str]]:
    """Return the split of every example, str[num_examples], and {index: reason} for examples without a split.

    Raises:
        InputError: If a value is not the name of a split, or no example has a split.
    """
    names = ["" if (text := _only(value)) is None else _name(text) for value in values]
    split_of = {name: split_named(name) for name in set(names) - MISSING}
    if strange := sorted(name for name, split in split_of.items() if not split):
        raise InputError(
            f"Unknown splits in {location}: {quoted(strange)}. Expected only {', '.join(SPLITS)}. Rename the splits."
        )
    if not split_of:
        raise InputError(
            f"The split field is empty in every example of {location}. Expected one of {', '.join(SPLITS)} in each "
            "example. Fill in this field, or remove it."
        )
    lacking = {i: "its split is missing" for i, name in enumerate(names) if name not in split_of}
    return np.array([split_of.get(name) or TRAIN for name in names]), lacking


def read_kept(values: Mapping[str, Sequence[Any]], chosen: Chosen) -> dict[str, list[Any]]:
    """Return the values to store with predictions, by name: `id` and `chosen.kept`.

    Return an empty mapping for labelled examples.
    """
    if chosen.labelled:
        return {}
    fields = {**({"id": chosen.names["id"]} if "id" in chosen.names else {}), **{name: name for name in chosen.kept}}
    return {
        name: [value if _has_several(value) else _only(value) for value in values[field]]
        for name, field in fields.items()
    }


def read_ids(values: Mapping[str, Sequence[Any]], chosen: Chosen) -> list[str] | None:
    """Return the ID of every example, or '' for an example without an ID.

    Return None if there is no ID field.
    """
    if "id" not in chosen.names:
        return None
    return [_name(_only(value)) if value not in (None, []) else "" for value in values[chosen.names["id"]]]


def known_by(ids: Sequence[str] | None, otherwise: Names | None) -> Names | None:
    """Return the names that identify examples: their IDs, or `otherwise` for examples without an ID.

    The name of an example does not depend on other examples. Examples with the same ID stay in one split.
    """
    if ids is None or otherwise is None:
        return otherwise if ids is None else Names.collect(ids)
    return Names.collect(own or other for own, other in zip(ids, otherwise, strict=True))


def list_rows(
    values: Mapping[str, Sequence[Any]],
    chosen: Chosen,
    keys: Sequence[str],
    splits: np.ndarray | None,
    identify: Callable[[], np.ndarray] | None,
    **content: Any,
) -> Listing:
    """List examples that have fields. Examples without a target, split or weight are quarantined.

    Args:
        values: Values of the fields `chosen.wanted`, by field name.
        chosen: Names of the fields by role.
        keys: Keys of the examples.
        splits: Split of every example according to its file, or None if the files have no splits. A split field takes
            precedence.
        identify: Function that returns hashes that identify examples without an ID, uint64[num_examples]. The function
            is called after the fields have been checked. None if all examples are identified by their keys or IDs.
        content: Other attributes of the `Listing`.

    Raises:
        InputError: If a value is not valid; see `read_targets`, `read_splits` and `read_weights`.
    """
    for name in chosen.targets:
        if is_picture(_only(next((value for value in values[name] if value not in (None, [])), None))):
            raise InputError(
                f"Cannot use {name!r} of {chosen.params.source} as the label: it contains images. {NOT_SUPPORTED} "
                "Name another field: data.columns={label: …}."
            )
    labels, classes, unusable = read_targets(values, chosen, keys)
    reasons = [unusable]
    names = chosen.names
    weights = None
    if chosen.labelled and "split" in names:
        splits, without_split = read_splits(values[names["split"]], chosen.params.source)
        reasons.append(without_split)
    if chosen.labelled and "weight" in names:
        column, _, without_weight = read_weights(values[names["weight"]], names["weight"], keys)
        weights = column[:, 0]
        reasons.append(without_weight)
    hashed = identify() if identify else None
    listing = Listing(
        keys=keys,
        labels=labels,
        class_names=classes,
        splits=splits,
        slices=read_kept(values, chosen),
        kind=TEXT if chosen.content == "text" else IMAGE,
        identities=known_by(read_ids(values, chosen), None if hashed is None else Names.of_hashes(hashed)),
        has_ids="id" in chosen.names,
        weights=weights,
        **content,
    )
    return listing.without(*reasons)

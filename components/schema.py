"""JSON as typed values: what a file holds is checked against the dataclass that says what it should."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any


def read(raw: Any, kind: Any, where: str = "it") -> Any:
    """Turn parsed JSON into a value of a type, refusing what only looks like one.

    Args:
        raw: What `json.loads` gave.
        kind: A dataclass, `int` (not negative), `float`, `str`, `bool`, `tuple[T, ...]`, `tuple[T, T]`,
            `Mapping[str, T]` or `Any`. A dataclass checks further what it wants to in its `__post_init__`.
        where: The place in the file, for the message.

    Raises:
        TypeError: If a value is of another type, a field is missing or unknown; names its place.

    Example:
        >>> read([1, 2], tuple[int, ...])
        (1, 2)
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass(_of(raw, dict, where), typing.cast(type, kind), where)
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        values = _of(raw, list, where)
        if items[-1] is not ... and len(values) != len(items):
            raise TypeError(f"{where} has {len(values)} values, expected {len(items)}")
        return tuple(read(value, items[0], f"{where}[{i}]") for i, value in enumerate(values))
    if origin is Mapping:
        return {name: read(value, items[1], f"{where}.{name}") for name, value in _of(raw, dict, where).items()}
    if kind is Any:
        return raw
    if kind is float and type(raw) is int:
        return float(raw)
    value = _of(raw, kind, where)
    if kind is int and value < 0:
        raise TypeError(f"{where} is {value}, expected no negative number")
    return value


def _of(raw: Any, kind: type, where: str) -> Any:
    if type(raw) is not kind:
        raise TypeError(f"{where} is {raw!r}, expected {_NAMES[kind]}")
    return raw


_NAMES = {
    dict: "a mapping",
    list: "a list",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def _dataclass(raw: Mapping[str, Any], kind: type, where: str) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    if unknown := raw.keys() - fields:
        raise TypeError(f"{where} has the unknown field {min(unknown)!r}")
    if missing := fields - raw.keys():
        raise TypeError(f"{where} lacks the field {min(missing)!r}")
    return kind(**{name: read(value, hints[name], f"{where}.{name}") for name, value in raw.items()})

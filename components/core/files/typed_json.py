"""JSON as typed values: what a file holds is checked against the dataclass that says what it should."""

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage

T = TypeVar("T")
_LARGEST = 2**63 - 1  # What 64 bits hold.
_DEEPEST = 100  # Levels of lists and mappings; more than ten times those of any file that is written here.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from the least to the most, both included."""

    least: float
    most: float = math.inf

    def __contains__(self, number: Any) -> bool:
        return self.least <= number <= self.most

    def __str__(self) -> str:
        return f"at least {self.least:g}" if self.most == math.inf else f"from {self.least:g} to {self.most:g}"


Share = Annotated[float, Range(0, 1)]
Amount = Annotated[float, Range(0)]


def decode(content: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON that somebody else may have written: whatever is wrong with it is a ValueError.

    Args:
        content: The text, or its bytes in UTF-8.
        constant: Makes a value of NaN, Infinity and -Infinity, which are no JSON; a float if not given.

    Raises:
        ValueError: If it is not valid JSON, is nested more than 100 levels deep, where functions that call themselves
            end, or holds half of a surrogate pair, which no file or terminal takes.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_constant=constant)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep") from error
    level: list[dict[str, Any] | list[Any]] = [[value]]
    for _ in range(_DEEPEST + 1):
        held = (node.values() if isinstance(node, dict) else node for node in level)
        level = [item for items in held for item in items if isinstance(item, dict | list)]
    if level:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # Raises a UnicodeEncodeError, which is a ValueError.
    return value


def load(path: Path | str, what: str, step: str, parse: Callable[[Any], T]) -> T:
    """Read a JSON file that a step wrote.

    Args:
        path: The file; text where it may lie in a bucket.
        what: Name of what it should be, for the message.
        step: Who writes it.
        parse: Turns parsed JSON into a value, or raises KeyError, TypeError or ValueError.

    Raises:
        InputError: If it is missing or malformed; names the file and the field.
    """
    try:
        raw = decode(path.read_bytes() if isinstance(path, Path) else storage.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(
            f"Cannot read {path}: there is no such file. Expected a folder written by {step}; check the path."
        ) from error
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. Check its mode and its owner.") from error
    except ValueError as error:
        raise InputError(f"Cannot read {path}: it is not valid JSON ({error}). Run {step} again.") from error
    try:
        return parse(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"Cannot use {path}: it is not {what} of this version ({error!r}). Run {step} again."
        ) from error


def read(raw: Any, kind: Any, where: str = "it", any_version: bool = False) -> Any:
    """Turn parsed JSON into a value of a type, refusing what only looks like one.

    Args:
        raw: Value that `json.loads` gave.
        kind: A dataclass, `int` (not negative, of 64 bits), `float` (finite), `str`, `bool`, `tuple[T, ...]`,
            `tuple[T, T]`, `list[T]`, `Mapping[str, T]`, `T | None`, `int | float`, dataclasses that differ in a field
            `kind`, or `Any`; `Annotated[T, Container]` holds the values that are allowed. A dataclass checks further
            what it wants to in its `__post_init__`.
        where: The place in the file, for the message.
        any_version: Whether a field that has a default may be missing, as older files have it, and unknown ones are
            passed over, as newer files have them. A dataclass whose older form differs more has a static method
            `upgrade`.

    Raises:
        TypeError: If a value is of another type or range, a field is missing or unknown; names its place.

    Example:
        >>> read([1, 2], tuple[int, ...])
        (1, 2)
    """
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value, allowed = read(raw, items[0], where, any_version), items[1]
        if value not in allowed:
            raise TypeError(f"{where} is {raw!r}, expected {_describe(allowed)}")
        return value
    if origin in (types.UnionType, typing.Union):
        return (
            None
            if raw is None and types.NoneType in items
            else read(raw, _choose(raw, items, where), where, any_version)
        )
    if dataclasses.is_dataclass(kind):
        return _dataclass(_of(raw, dict, where), typing.cast(type, kind), where, any_version)
    if origin in (tuple, list):
        values = _of(raw, list, where)
        if origin is tuple and items[-1] is not ... and len(values) != len(items):
            raise TypeError(f"{where} has {len(values)} values, expected {len(items)}")
        return origin(read(value, items[0], f"{where}[{i}]", any_version) for i, value in enumerate(values))
    if origin is Mapping:
        pairs = _of(raw, dict, where).items()
        return {name: read(value, items[1], f"{where}.{name}", any_version) for name, value in pairs}
    if kind is Any:
        return raw
    if type(raw) is int and abs(raw) > _LARGEST:
        raise TypeError(f"{where} is beyond {_LARGEST}, the largest number of 64 bits")
    if kind is float and type(raw) is int:
        return float(raw)
    value = _of(raw, kind, where)
    if kind is int and value < 0:
        raise TypeError(f"{where} is {value}, expected no negative number")
    if kind is float and not math.isfinite(value):
        raise TypeError(f"{where} is {value}, expected a finite number")
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


def _describe(allowed: Container[Any]) -> str:
    return f"one of {', '.join(allowed)}" if isinstance(allowed, tuple) else str(allowed)


def _choose(raw: Any, kinds: Sequence[Any], where: str) -> Any:
    """Return the kind of several that a value is of: by its type, or by the field `kind` of dataclasses."""
    known = [kind for kind in kinds if kind is not types.NoneType]
    if len(known) > 1 and all(map(dataclasses.is_dataclass, known)):
        by_name = {kind.kind: kind for kind in known}
        name = _of(raw, dict, where).get("kind")
        if not isinstance(name, str) or name not in by_name:
            raise TypeError(f"{where} is of the kind {name!r}, expected {_describe(tuple(by_name))}")
        return by_name[name]
    return next((kind for kind in known if type(raw) is kind), known[0])


def _dataclass(raw: Mapping[str, Any], kind: type, where: str, any_version: bool) -> Any:
    if hasattr(kind, "upgrade") and any_version:
        raw = kind.upgrade(raw)
    hints, fields = _fields_of(kind)
    fixed = {name for name in raw if name in fields and not fields[name].init and raw[name] == fields[name].default}
    wanted = {name: field for name, field in fields.items() if field.init}
    if not any_version and (unknown := raw.keys() - wanted - fixed):
        raise TypeError(f"{where} has the unknown field {min(unknown)!r}")
    needed = {name for name, field in wanted.items() if not (any_version and _has_default(field))}
    if missing := needed - raw.keys():
        raise TypeError(f"{where} lacks the field {min(missing)!r}")
    present = [name for name in wanted if name in raw]
    return kind(**{name: read(raw[name], hints[name], f"{where}.{name}", any_version) for name in present})


@functools.cache
def _fields_of(kind: Any) -> "tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]":
    return typing.get_type_hints(kind, include_extras=True), {field.name: field for field in dataclasses.fields(kind)}


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


class JsonFile:
    """A dataclass that is a JSON file in a folder: `class Facts(JsonFile, name="facts.json", what="…", step="…")`.

    It is read from any version of the file; see `read`.
    """

    _name: ClassVar[str]
    _what: ClassVar[str]
    _step: ClassVar[str]

    def __init_subclass__(cls, *, name: str, what: str, step: str) -> None:
        cls._name, cls._what, cls._step = name, what, step

    def as_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        return dataclasses.asdict(typing.cast(Any, self))

    def save(self, directory: Path) -> None:
        """Write the file into a folder.

        Raises:
            ValueError: If a figure is not finite.
        """
        storage.write_json(directory / self._name, self.as_dict())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file from a folder.

        Raises:
            InputError: If it is missing or malformed; names it and the field.
        """
        return load(directory / cls._name, cls._what, cls._step, cls.parse)

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Turn what the file holds into the value.

        Raises:
            KeyError, TypeError: If it is malformed.
        """
        value: Self = read(raw, cls, any_version=True)
        return value

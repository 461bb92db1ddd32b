"""Typed values from JSON, YAML, flags and environment variables. Dataclasses define the types."""

import contextlib
import dataclasses
import datetime
import difflib
import enum
import functools
import inspect
import json
import math
import re
import types
import typing
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError, did_you_mean

_SHOWN_KEYS = 12  # Largest number of known keys in an error message.

_LARGEST = 2**63 - 1  # Largest signed integer of 64 bits.


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of numbers: `least` and `most` are inclusive limits, `above` and `below` are exclusive limits."""

    least: float = -math.inf
    most: float = math.inf
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: Any) -> bool:
        is_inside = self.above is None or self.above < number
        return self.least <= number <= self.most and is_inside and (self.below is None or number < self.below)

    def __str__(self) -> str:
        if math.isfinite(self.most - self.least):
            return f"from {_number(self.least)} to {_number(self.most)}"
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        finite = {word: bound for word, bound in bounds.items() if bound is not None and math.isfinite(bound)}
        named = [f"{word} {_number(bound)}" for word, bound in finite.items()]
        if self.below == math.inf:
            named.append("finite")
        return " and ".join(named) or "a number"


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Texts that match a regular expression.

    Attributes:
        regex: The expression, which must match the whole text.
        words: Description of the texts for messages, such as "like 16Gi".
    """

    regex: str
    words: str

    def __contains__(self, text: Any) -> bool:
        return re.fullmatch(self.regex, text) is not None

    def __str__(self) -> str:
        return self.words


Share = Annotated[float, Range(0, 1)]
Amount = Annotated[float, Range(0, below=math.inf)]
Positive = Annotated[int, Range(1)]
NotNegative = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, below=2**32)]


class Role(enum.Enum):
    """Base class of enums whose members mark fields of dataclasses.

    For example, if `Part` is a subclass, a field of the type `Annotated[int, Part.HOST]` has the role `Part.HOST`.
    """


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def allowed_by(kind: Any) -> Container[Any] | None:
    """Return `values` if a type is `Annotated[T, values]` or `tuple[Annotated[T, values], ...]`.

    Return None for other types, which allow all values.
    """
    if typing.get_origin(kind) is Annotated:
        return typing.cast(Container[Any], typing.get_args(kind)[1])
    return allowed_by(typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else None


def describe(allowed: Container[Any]) -> str:
    """Describe the allowed values: "one of a, b" or "at least 1"."""
    if isinstance(allowed, Iterable):
        return f"one of {', '.join(str(item) for item in allowed if item != '')}"
    return str(allowed)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a dataclass.

    Attributes:
        name: Name of the field.
        kind: Type of the value; see `read`.
        meaning: Description from the docstring of the dataclass, or an empty string.
        declared: The field as `dataclasses.fields` returns it, with its default.
        roles: Roles that the field's type is marked with; see `Role`.
    """

    name: str
    kind: Any
    meaning: str
    declared: "dataclasses.Field[Any]"
    roles: frozenset[Role] = frozenset()

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.declared.default is self.declared.default_factory is dataclasses.MISSING

    @property
    def default(self) -> Any:
        """Default value, or None if the field is required."""
        if self.is_required:
            return None
        make = self.declared.default_factory
        return self.declared.default if make is dataclasses.MISSING else make()


@functools.cache
def fields_of(kind: Any) -> Mapping[str, Field]:
    """Return the fields of a dataclass by name.

    Their descriptions come from the `Attributes:` section of its docstring.
    """
    # Python 3.13 removes the indentation of docstrings when it compiles; earlier versions keep it.
    section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", section, re.MULTILINE)
    meanings = {name: re.sub(r"\s+", " ", text) for name, text in entries}
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {}
    for field in dataclasses.fields(kind):
        own, roles = _without_roles(hints[field.name])
        fields[field.name] = Field(field.name, own, meanings.get(field.name, ""), field, roles)
    return fields


def _without_roles(kind: Any) -> tuple[Any, frozenset[Role]]:
    """Return the type of a field without the roles, and the roles."""
    if typing.get_origin(kind) is not Annotated:
        return kind, frozenset()
    own, *added = typing.get_args(kind)
    roles = frozenset(item for item in added if isinstance(item, Role))
    values = tuple(item for item in added if item not in roles)
    return (Annotated[(own, *values)] if values else own), roles


def with_role(kind: Any, role: Role) -> list[str]:
    """Return the names of the fields of a dataclass that have a role."""
    return [name for name, field in fields_of(kind).items() if role in field.roles]


def check_fields(value: Any) -> None:
    """Check that each field of a dataclass instance has a value that its type allows; see `allowed_by`.

    Raises:
        InputError: If some values are not allowed. The message names all of them.
    """
    mistakes = Mistakes()
    for name, field in fields_of(value.__class__).items():
        kind = field.kind
        held = getattr(value, name)
        is_mapping = typing.get_origin(kind) is Mapping
        if (allowed := allowed_by(typing.get_args(kind)[1] if is_mapping else kind)) is None:
            continue
        if is_mapping:
            items = [(f"{name}.{key}", item) for key, item in held.items()]
        else:
            items = [(name, item) for item in (held if isinstance(held, tuple) else [held])]
        for place, item in items:
            if item not in allowed:
                mistakes.add(_not_allowed(item, allowed, place))
    mistakes.raise_all()


def _not_allowed(value: Any, allowed: Container[Any], place: str) -> str:
    return f"{place} must be {describe(allowed)}. Received: {place}={value!r}.{_nearest(value, allowed)}"


def check_together(*rules: tuple[object, str]) -> None:
    """Raise a single error that lists all broken rules. Each rule can involve several values.

    Args:
        rules: A pair for each rule: whether the rule is broken, and its error message.

    Raises:
        InputError: If any rule is broken. The message lists all broken rules.
    """
    mistakes = Mistakes()
    for is_broken, mistake in rules:
        if is_broken:
            mistakes.add(mistake)
    mistakes.raise_all()


def _nearest(word: Any, known: Container[Any]) -> str:
    names = [name for name in known if isinstance(name, str)] if isinstance(known, Iterable) else []
    return did_you_mean(word, names) if isinstance(word, str) else ""


def removed_fields(kind: Any) -> Mapping[str, str]:
    """Return advice for each removed field or value of a dataclass, from its attribute `REMOVED`.

    The key is `NAME` for a field and `NAME=VALUE` for a value. The advice says what replaces the field or value. A
    removed field is still accepted if it is empty, because configurations and compiled pipelines of earlier versions
    contain the empty default.
    """
    return getattr(kind, "REMOVED", {})


def renamed_fields(kind: Any) -> Mapping[str, str]:
    """Return the new names of the renamed fields of a dataclass, by old name, from its attribute `RENAMED`."""
    return getattr(kind, "RENAMED", {})


def with_new_names(raw: Mapping[str, Any], kind: Any, where: str = "") -> Mapping[str, Any]:
    """Return `raw` with the old names of renamed fields replaced by the new names.

    Each old name causes a FutureWarning.

    Args:
        raw: Values by field name.
        kind: Dataclass to which the fields belong.
        where: Name that precedes the field's name in messages, for example `training` for `training.epochs`.

    Raises:
        InputError: If a field has both its old and its new name.
    """
    values = dict(raw)
    for old, new in renamed_fields(kind).items():
        if old not in values:
            continue
        if new in values:
            raise InputError(
                f"{_within(where, old)} is the old name of {new}. Received: both. Remove {_within(where, old)}."
            )
        warnings.warn(
            f"{_within(where, old)} is now called {new}. A later minor version rejects the old name. Use {new}.",
            FutureWarning,
            stacklevel=2,
        )
        values[new] = values.pop(old)
    return values


def unknown_key(key: Any, known: Container[Any], where: str) -> str:
    """Return an error message for an unknown key.

    The message lists at most 12 known keys. If there are more, it lists the most similar keys.
    """
    names = sorted(map(str, known)) if isinstance(known, Iterable) else []
    if len(names) > _SHOWN_KEYS:
        near = difflib.get_close_matches(str(key), names, _SHOWN_KEYS, 0.5) or names[:_SHOWN_KEYS]
        known = [*near, f"… ({len(names)} in total)"]
    return f"Unknown key {key!r} in {where}: expected {describe(known)}.{_nearest(key, names)}"


class Mistakes:
    """Collection of users' mistakes, so that all are reported at once.

    Args:
        is_first_enough: Whether to raise the first mistake immediately instead. This suits files that a program wrote,
            which a user does not correct by hand.
    """

    def __init__(self, is_first_enough: bool = False) -> None:
        self._is_first_enough = is_first_enough
        self._sentences: list[str] = []

    def add(self, mistake: str) -> None:
        """Add a mistake to the collection.

        Raises:
            InputError: If `is_first_enough` is set.
        """
        if self._is_first_enough:
            raise InputError(mistake)
        self._sentences.append(mistake if mistake.endswith((".", "?")) else f"{mistake}.")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Return a context that collects an InputError of its `with` block instead of raising it."""
        try:
            yield
        except InputError as error:
            self.add(str(error))

    def raise_all(self) -> None:
        """Raise one error with all collected mistakes, each on its own line.

        Raises:
            InputError: If there are mistakes.
        """
        if self._sentences:
            raise InputError("\n".join(self._sentences))


def read(raw: Any, kind: Any, where: str = "it", any_version: bool = False, fixed: Mapping[str, Any] = {}) -> Any:
    """Convert parsed JSON to a value of the type `kind`.

    A value of another type is an error, except that an integer is accepted as a `float`.

    Args:
        raw: Result of `json.loads`.
        kind: A dataclass, an enum, `int` (not negative, 64 bits), `float` (finite), `str`, `bool`, `tuple[T, ...]`,
            `tuple[T, T]`, `list[T]`, `Mapping[str, T]`, `T | None`, `int | float`, a union of dataclasses that differ
            in a field `kind`, or `Any`. `Annotated[T, values]` accepts only values that the container `values`
            contains. A dataclass may check more in its `__post_init__`.
        where: Location of the value in the file, for messages.
        any_version: Whether to accept files of other versions: fields with a default may be missing, and unknown fields
            are ignored. If older files differ more, a static method `upgrade` of the dataclass converts the JSON.
        fixed: Fields of the dataclass that are not read from `raw`, as {name: value}.

    Raises:
        InputError: If a value has the wrong type or is out of range, or if a field is missing or unknown. The message
            names its location.

    Example:
        >>> read([1, 2], tuple[int, ...])
        (1, 2)
    """
    return _read(raw, kind, where, _Form(any_version=any_version, fixed=fixed))


def read_by_hand(raw: Any, kind: Any, where: str, fixed: Mapping[str, Any] = {}) -> Any:
    """Convert a value that a user wrote, or that a platform passed on, to a value of the type `kind`.

    Numbers may be strings: YAML reads 1e-4 as a string, and flags and environment variables are always strings. An
    integer may be a float, because KFP turns 32 into 32.0. A tuple may be a single value, or a string of values
    separated by commas. A mapping may be a string of JSON. Fields with a default may be missing. All mistakes are
    reported at once.

    Args:
        raw: The value.
        kind: Type; see `read`.
        where: Name of the value in messages, for example `training`. If empty, messages contain no name.
        fixed: Fields of the dataclass that are not read from `raw`, as {name: value}.

    Raises:
        InputError: If values have the wrong type or are out of range, or if fields are missing or unknown. The message
            names the location of each mistake and, for an unknown field, the most similar known field.

    Example:
        >>> read_by_hand("64,64", tuple[int, ...], "data.image_size")
        (64, 64)
    """
    return _read(raw, kind, where, _Form(is_by_hand=True, fixed=fixed))


def read_some(raw: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Convert the values of some fields of a dataclass in the same way as `read_by_hand`.

    Rules that involve several fields are not checked.

    Args:
        raw: Values by the name of their field; other names are ignored.
        kind: The dataclass.

    Raises:
        InputError: If values have the wrong type or are out of range. The message names all of them.
    """
    form = _Form(is_by_hand=True)
    mistakes = Mistakes()
    values = {}
    for name, field in fields_of(kind).items():
        if name in raw:
            with mistakes.kept():
                values[name] = _read(raw[name], field.kind, name, form)
    mistakes.raise_all()
    return values


@dataclasses.dataclass(frozen=True)
class _Form:
    """Accepted forms of values; see `read` and `read_by_hand`."""

    any_version: bool = False
    is_by_hand: bool = False
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _read(raw: Any, kind: Any, where: str, form: _Form) -> Any:
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = _read(raw, items[0], where, form)
        if value not in items[1]:
            mistake = f"{where} is {raw!r}, expected {describe(items[1])}"
            raise InputError(_not_allowed(value, items[1], where) if form.is_by_hand else mistake)
        return value
    if origin in (types.UnionType, typing.Union):
        no_value = raw is None and types.NoneType in items
        return None if no_value else _read(raw, _choose(raw, items, where), where, form)
    if isinstance(kind, enum.EnumType):
        known = [member.value for member in typing.cast(type[enum.Enum], kind)]
        if raw not in known:
            raise InputError(f"{where} is {raw!r}, expected {describe(known)}")
        return kind(raw)
    if form.is_by_hand:
        raw = _in_json(raw, kind)
    if dataclasses.is_dataclass(kind):
        known = [name for name in fields_of(typing.cast(Any, kind)) if name not in form.fixed]
        names = f" of {', '.join(known)}" if form.is_by_hand else ""
        return _dataclass(_of(raw, dict, where, names), typing.cast(type, kind), where, form)
    if origin in (tuple, list):
        is_simple = form.is_by_hand and not dataclasses.is_dataclass(items[0])
        values = _of(raw, list, where, ", or values separated by commas" if is_simple else "")
        if origin is tuple and items[-1] is not ... and len(values) != len(items):
            raise InputError(f"{where} must have {len(items)} values. Received: {len(values)} values.")
        return origin(_read(value, items[0], f"{where}[{i}]", form) for i, value in enumerate(values))
    if origin is Mapping:
        return _mapping(_of(raw, dict, where, _example(items[1]) if form.is_by_hand else ""), items, where, form)
    return raw if kind is Any else _plain(raw, kind, where, form)


def _plain(raw: Any, kind: type, where: str, form: _Form) -> Any:
    if type(raw) is int and abs(raw) > _LARGEST:
        raise InputError(f"{where} is {raw}, expected a 64-bit integer, from -{_LARGEST} to {_LARGEST}")
    advice = ""
    if kind is str and form.is_by_hand and isinstance(raw, bool | datetime.date):
        advice = ": in YAML, write yes, no, on, off and dates in quotation marks"
    value = float(raw) if kind is float and type(raw) is int else _of(raw, kind, where, advice)
    if kind is int and value < 0 and not form.is_by_hand:
        raise InputError(f"{where} is {value}, expected at least 0")
    if kind is float and not math.isfinite(value):
        raise InputError(f"{where} is {value}, expected a finite number")
    return value


def _example(kind: Any) -> str:
    """Return an example of a mapping from names to values of type `kind`, as the end of a message.

    Return an empty string if there is no example for the type.
    """
    plain = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return f", such as {json.dumps({'NAME': _EXAMPLES[plain]})}" if plain in _EXAMPLES else ""


def _mapping(raw: Mapping[Any, Any], items: Sequence[Any], where: str, form: _Form) -> dict[str, Any]:
    mistakes = Mistakes(is_first_enough=not form.is_by_hand)
    values = {}
    for name, value in raw.items():
        if (allowed := allowed_by(items[0])) is not None and name not in allowed:
            mistakes.add(unknown_key(name, allowed, where))
            continue
        with mistakes.kept():
            values[str(name)] = _read(value, items[1], f"{where}.{name}", form)
    mistakes.raise_all()
    return values


def _in_json(raw: Any, kind: Any) -> Any:
    """Convert a value that a user or KFP wrote to the JSON type that `kind` is read from, if possible."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return whole_numbers(raw)
    if origin is tuple and isinstance(raw, tuple):
        return list(raw)
    if origin is tuple and not dataclasses.is_dataclass(typing.get_args(kind)[0]):
        if isinstance(raw, str):
            with contextlib.suppress(ValueError):  # KFP writes a list like this inside a text.
                if isinstance(listed := json.loads(raw), list):
                    return listed
            if raw.strip().startswith("["):
                return raw  # Not split at commas: its first item would begin with a bracket.
            return [item.strip() for item in raw.split(",")] if raw.strip() else []
        return [raw] if type(raw) in (int, float) else raw
    is_mapping = origin is Mapping or dataclasses.is_dataclass(kind)
    if isinstance(raw, str) and (is_mapping or kind in (int, float)):
        with contextlib.suppress(ValueError):
            return json.loads(raw) if is_mapping else kind(raw)
    if kind is bool and isinstance(raw, str):
        return _TRUTHS.get(raw, raw)
    if kind is int and isinstance(raw, str | float):
        with contextlib.suppress(ValueError):  # KFP writes 3 as 3.0, even inside a text.
            number = float(raw)
            return int(number) if number.is_integer() else raw
    return str(raw) if kind is str and type(raw) in (int, float) else raw


def as_json(value: Any) -> Any:
    """Convert a value to JSON's types, the inverse of `read`.

    A dataclass becomes a dict, and a tuple becomes a list.
    """
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(typing.cast(Any, value))
    return json.loads(json.dumps(value))


def changed_values(params: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as {name: value in JSON's types}."""
    return {
        name: as_json(getattr(params, name))
        for name, field in fields_of(params.__class__).items()
        if getattr(params, name) != field.default
    }


def whole_numbers(value: Any) -> Any:
    """Convert floats such as 32.0 back to integers, also in nested values.

    Some platforms pass all numbers as floating point.

    Example:
        >>> whole_numbers({"filters": [8.0, 0.5]})
        {'filters': [8, 0.5]}
    """
    if isinstance(value, Mapping):
        return {name: whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of(raw: Any, kind: type, where: str, more: str = "") -> Any:
    if type(raw) is not kind:
        if kind is dict and isinstance(raw, str) and re.fullmatch(r"\w+:\S+", raw):
            more += f". Write a space after the colon: {raw.replace(':', ': ', 1)}"
        raise InputError(f"{where} is {raw!r}, expected {_NAMES[kind]}{more}")
    return raw


# Truth values in texts, as KFP and Python write them.
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}
_EXAMPLES = {float: 0.5, int: 1, str: "TEXT"}
_NAMES = {
    dict: "a mapping",
    list: "a list",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def _choose(raw: Any, kinds: Sequence[Any], where: str) -> Any:
    """Return the member of the union `kinds` to which a value is converted.

    In a union of dataclasses, the field `kind` of the value selects the dataclass.
    """
    known = [kind for kind in kinds if kind is not types.NoneType]
    if len(known) > 1 and all(map(dataclasses.is_dataclass, known)):
        by_name = {kind.kind: kind for kind in known}
        name = _of(raw, dict, where).get("kind")
        if not isinstance(name, str) or name not in by_name:
            raise InputError(f"{where} has the kind {name!r}, expected {describe(tuple(by_name))}")
        return by_name[name]
    return next((kind for kind in known if type(raw) is kind), known[0])


def _within(where: str, name: str) -> str:
    """Return the full name of a field for messages, such as `training.epochs`."""
    return name if where in ("", "it") else f"{where}.{name}"


def _dataclass(raw: Mapping[str, Any], kind: type, where: str, form: _Form) -> Any:
    if hasattr(kind, "upgrade") and form.any_version:
        raw = kind.upgrade(raw)
    fields = fields_of(kind)
    nested = dataclasses.replace(form, fixed={})
    wanted = [name for name, field in fields.items() if field.declared.init and name not in form.fixed]
    constant = [name for name, field in fields.items() if not field.declared.init and raw.get(name) == field.default]
    needs_all = not (form.any_version or form.is_by_hand)
    mistakes = Mistakes(is_first_enough=not form.is_by_hand)
    values = {}
    if form.is_by_hand and renamed_fields(kind):
        raw = with_new_names(raw, kind, where)
    removed = removed_fields(kind)
    for name in [] if form.any_version else [name for name in raw if name not in (*wanted, *constant)]:
        if name not in removed:
            mistakes.add(unknown_key(name, wanted, where))
        elif raw[name]:
            mistakes.add(f"{_within(where, name)} was removed. {removed[name]}")
    for name in wanted:
        if name in raw and f"{name}={raw[name]}" in removed:
            mistakes.add(f"{_within(where, name)}={raw[name]} was removed. {removed[f'{name}={raw[name]}']}")
        elif name in raw:
            with mistakes.kept():
                values[name] = _read(raw[name], fields[name].kind, _within(where, name), nested)
        elif needs_all or fields[name].is_required:
            mistakes.add(f"{where or 'it'} lacks the field {name!r}")
    mistakes.raise_all()
    try:
        return kind(**values, **form.fixed)
    except InputError as error:
        if form.is_by_hand and where:
            raise InputError(f"Cannot use {where}: {error}") from error
        raise

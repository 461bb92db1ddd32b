"""The Params of a step from a component's inputs or a command's flags, and a component's inputs from the Params."""

import dataclasses
import inspect
import linecache
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

from tpu_components.core.base.typed_values import default_of, fields_of, has_default, read_by_hand

P = TypeVar("P")
_OF_TYPING = {name: getattr(typing, name) for name in ("Any", "Dict", "List")}


def params_from(inputs: Mapping[str, Any], params: type[P]) -> P:
    """Build a Params dataclass from those inputs that are named like its fields.

    Args:
        inputs: A component's arguments by name; what is no field (its artifacts) is left alone.
        params: The dataclass; a field that is a dataclass itself is built from a mapping, or from `inputs` where none
            has its name.

    Raises:
        InputError: If a value is of another type, or `params` refuses it.

    Example:
        >>> from tpu_components.export_model import ExportParams
        >>> params_from({"records": ..., "calibration_examples": 50.0}, ExportParams).calibration_examples
        50
    """
    return cast(P, read_by_hand(_named_like(inputs, params), params, ""))


def _named_like(inputs: Mapping[str, Any], params: Any) -> dict[str, Any]:
    values = {}
    for name, (kind, _) in fields_of(params).items():
        if name in inputs:
            values[name] = inputs[name]
        elif dataclasses.is_dataclass(kind):
            values[name] = _named_like(inputs, kind)
    return values


def with_inputs(params: type) -> Callable[[Any], Any]:
    """Return a decorator that writes an input for every field of a Params dataclass in place of `**inputs: Any`.

    KFP takes a component's inputs from the signature of its function, and the container runs the function's source: so
    the signature is written into the source, which is what KFP finds.
    """

    def write(function: Any) -> Any:
        before, _, source = inspect.getsource(function).partition("\ndef ")
        assert before, "with_inputs stands above a function"
        written = f"def {source}".replace("**inputs: Any", ",\n    ".join(["*", *_inputs(params)]))
        place = f"<{function.__module__}.{function.__name__}>"
        linecache.cache[place] = (len(written), None, written.splitlines(keepends=True), place)
        names = {**_OF_TYPING, **function.__globals__}
        exec(compile(written, place, "exec"), names)
        return names[function.__name__]

    return write


def _inputs(params: type) -> list[str]:
    """Return the inputs as Python writes them in a signature, with their types and defaults."""
    texts = []
    for name, (kind, field) in fields_of(params).items():
        text = f"{name}: {_type(kind)}"
        if has_default(field):
            default: Any = default_of(field)
            if dataclasses.is_dataclass(default):
                default = dataclasses.asdict(cast(Any, default))
            text += f" = {list(default) if isinstance(default, tuple) else default!r}"
        texts.append(text)
    return texts


def _type(kind: Any) -> str:
    """Return a type by a name that KFP knows."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type(items[0])
    if origin is tuple:
        return f"List[{_type(items[0])}]"
    if origin is Mapping or dataclasses.is_dataclass(kind):
        return f"Dict[str, {_type(items[1]) if items else 'Any'}]"
    return "Any" if kind is Any else str(kind.__name__)

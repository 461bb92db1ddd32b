"""Builds a step's Params from a component's inputs or a command's flags; makes a component's inputs from Params."""

import dataclasses
import inspect
import linecache
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from tpu_components.core.base.typed_values import as_json, fields_of, read_by_hand

P = TypeVar("P")
_OF_TYPING = {name: getattr(typing, name) for name in ("Any", "Dict", "List")}


def params_from(inputs: Mapping[str, Any], params: type[P]) -> P:
    """Build a Params dataclass from the inputs that have the names of its fields.

    Args:
        inputs: Arguments of a component by name; other names, for example of artifacts, are ignored.
        params: The dataclass. A field that is a dataclass is built from the mapping of its name, or from `inputs` if
            there is no such mapping.

    Raises:
        InputError: If a value is of another type, or `params` refuses it.

    Example:
        >>> from tpu_components.export_model import ExportParams
        >>> params_from({"records": ..., "calibration_examples": 50.0}, ExportParams).calibration_examples
        50
    """
    return read_by_hand(_named_like(inputs, params), params, "")


def _named_like(inputs: Mapping[str, Any], params: Any) -> dict[str, Any]:
    values = {}
    for name, field in fields_of(params).items():
        if name in inputs:
            values[name] = inputs[name]
        elif dataclasses.is_dataclass(field.kind):
            values[name] = _named_like(inputs, field.kind)
    return values


def with_inputs(params: type) -> Callable[[Any], Any]:
    """Return a decorator that replaces `**inputs: Any` by an input for every field of a Params dataclass.

    KFP reads the inputs of a component from the signature of its function, and the container runs the source of the
    function. So the decorator writes the signature into the source that KFP finds.
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
    """Return the inputs as source code of a signature, with types and defaults."""
    texts = []
    for name, field in fields_of(params).items():
        text = f"{name}: {_type(field.kind)}"
        texts.append(text if field.is_required else f"{text} = {as_json(field.default)!r}")
    return texts


def _type(kind: Any) -> str:
    """Return the name of the KFP type for a Python type."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type(items[0])
    if origin is tuple:
        return f"List[{_type(items[0])}]"
    if origin is Mapping or dataclasses.is_dataclass(kind):
        return f"Dict[str, {_type(items[1]) if items else 'Any'}]"
    return "Any" if kind is Any else str(kind.__name__)

"""The inputs of a KFP component, made from the Params dataclass of its step."""

import dataclasses
import inspect
import linecache
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import default_of, fields_of, has_default

_OF_TYPING = {name: getattr(typing, name) for name in ("Any", "Dict", "List")}


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
        default = f" = {_plain(default_of(field))!r}" if has_default(field) else ""
        texts.append(f"{name}: {_type(kind)}{default}")
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


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, tuple) else value

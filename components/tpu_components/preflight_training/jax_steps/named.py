"""Finds the step and the inputs that a command line names, such as `mymodule:step` and `float32[1024,784]`."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError, describe, did_you_mean
from tpu_components.core.base.frameworks import jax, jnp
from tpu_components.core.base.import_path import with_folders

STABLEHLO_ENDINGS = (".mlir", ".mlirbc", ".bc", ".bin", ".stablehlo")
_OBJECT = re.compile(r"(?P<module>[\w./\\-]+):(?P<name>[A-Za-z_][\w.]*)")
_ARRAY = re.compile(r"\s*([a-z]+\w*)\[\s*((?:\d+\s*(?:,\s*|(?=\])))*)\]\s*(?:,|$)")
_SHORT = {"f": "float", "bf": "bfloat", "s": "int", "i": "int", "u": "uint"}  # `f32` of XLA is float32.


def is_step(name: str) -> bool:
    """Return whether a text has the form `MODULE:FUNCTION` or is the name of a StableHLO file."""
    return bool(_OBJECT.fullmatch(name)) or name.endswith(STABLEHLO_ENDINGS)


def find_step(name: str) -> Any:
    """Return the function with a name of the form `MODULE:FUNCTION`. Return the name of a StableHLO file unchanged.

    Raises:
        InputError: If the module or the function does not exist.
    """
    return name if name.endswith(STABLEHLO_ENDINGS) else find_object(name)


def find_object(name: str) -> Any:
    """Return an object from a Python file, or from a module in the current folder or an installed package.

    Args:
        name: `MODULE:NAME` or `FILE.py:NAME`, for example `models.cnn:train_step`.

    Raises:
        InputError: If the module cannot be imported or has no such object.
    """
    match = _OBJECT.fullmatch(name)
    if match is None:
        raise InputError(f"Cannot find {name!r}: expected MODULE:FUNCTION, for example models:train_step.")
    path = Path(match["module"])
    if re.search(r"[/\\]", match["module"]) and path.suffix != ".py":
        raise InputError(
            f"Cannot import {match['module']} for {name}: expected a module, such as models.cnn, or the path of a .py "
            "file."
        )
    folder = path.parent.resolve() if path.suffix == ".py" else Path.cwd()
    module_name = path.stem if path.suffix == ".py" else match["module"]
    try:
        with with_folders(folder):
            value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # Any error of the user's code.
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        advice = "Run the command in the folder of the module, or give the path of a .py file." if is_missing else ""
        raise InputError(f"Cannot import {match['module']} for {name}: {describe(error)}. {advice}".rstrip()) from error
    for part in match["name"].split("."):
        if not hasattr(value, part):
            raise InputError(f"{match['module']} has no {match['name']!r}.{did_you_mean(part, public_names(value))}")
        value = getattr(value, part)
    return value


def public_names(module: Any) -> list[str]:
    """Return the names in a module that do not begin with an underscore."""
    return [name for name in vars(module) if not name.startswith("_")]


def parse_inputs(text: str) -> Sequence[Any]:
    """Parse the positional arguments of a step.

    Args:
        text: Either types and shapes, such as `float32[1024,784], int32[1024]` (or XLA's `f32[1024,784]`), or
            `MODULE:NAME`, where NAME is a tuple of arguments or a function without parameters that returns the tuple.

    Raises:
        InputError: If the text has neither form, or the tuple cannot be imported.

    Example:
        >>> [str(each.dtype) for each in parse_inputs("float32[8,4], s32[8]")]
        ['float32', 'int32']
    """
    if _OBJECT.fullmatch(text.strip()):
        value = find_object(text.strip())
        try:
            value = value() if callable(value) else value
        except (Exception, SystemExit) as error:
            raise InputError(
                f"Cannot get inputs from {text}: {describe(error)}. Expected a function without parameters that "
                "returns a tuple."
            ) from error
        if not isinstance(value, tuple | list):
            raise InputError(
                f"Cannot use {text} as inputs: expected a tuple with one value for each parameter of the step, "
                f"received {type(value).__name__}. Write `return (params, batch)`."
            )
        return value
    arrays = []
    at = 0
    while at < len(text):
        match = _ARRAY.match(text, at)
        if match is None:
            raise InputError(
                f"Cannot read the inputs {text!r} at {text[at:]!r}: expected either types and shapes separated by "
                "commas, such as float32[1024,784],int32[1024], or MODULE:FUNCTION, the name of a function that "
                "returns the inputs."
            )
        arrays.append(jax.ShapeDtypeStruct(_shape(match[2]), _dtype(match[1])))
        at = match.end()
    return arrays


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size.strip())


def _dtype(name: str) -> Any:
    short = re.fullmatch(r"(bf|[fsiu])(\d+)", name)
    full = f"{_SHORT[short[1]]}{short[2]}" if short else {"pred": "bool"}.get(name, name)
    try:
        return jnp.dtype(full)
    except TypeError as error:
        raise InputError(
            f"Unknown type {name!r} of an input: expected a type of JAX, such as float32, bfloat16, int32 or bool."
        ) from error

"""A component's inputs as the Params of its step: KFP hands 32 over as 32.0 or 0.0 as 0, and tuples as lists."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

P = TypeVar("P")


def params_from(inputs: Mapping[str, Any], params: type[P]) -> P:
    """Build a Params dataclass from those inputs that are named like its fields.

    Args:
        inputs: A component's arguments by name; what is no field (its artifacts) is left alone.
        params: The dataclass; a field that is a dataclass itself is built from a mapping, or from `inputs` where none
            has its name.

    Raises:
        InputError: If `params` refuses a value.

    Example:
        >>> from tpu_components.export_model import ExportParams
        >>> params_from({"records": ..., "calibration_examples": 50.0}, ExportParams).calibration_examples
        50
    """
    hints = typing.get_type_hints(params)
    values = {}
    for field in dataclasses.fields(params):  # type: ignore[arg-type]
        if field.name in inputs:
            values[field.name] = _typed(inputs[field.name], hints[field.name])
        elif dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = params_from(inputs, typing.cast(type, hints[field.name]))
    return params(**values)


def _typed(value: Any, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return params_from(value, typing.cast(type, kind))
    if typing.get_origin(kind) is tuple:
        (item, *_) = typing.get_args(kind)
        return tuple(_typed(element, item) for element in value)
    if typing.get_origin(kind) is Mapping:
        (_, item) = typing.get_args(kind)
        return whole_numbers(value) if item is Any else {name: _typed(element, item) for name, element in value.items()}
    if kind is float and type(value) is int:  # KFP's driver writes 60.0 as 60, and a record would say so.
        return float(value)
    return int(value) if kind is int else value


def whole_numbers(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters, nested or not, as they were before they travelled as JSON, whose 32.0 was a 32."""

    def whole(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: whole(item) for name, item in value.items()}
        if isinstance(value, list):
            return [whole(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return {name: whole(value) for name, value in parameters.items()}

"""Conversion of a component's inputs, or of a command's flags, to a step's Params dataclass."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from tpu_components.core.base.typed_values import fields_of, read_by_hand, removed_fields, renamed_fields

P = TypeVar("P")


def params_from(inputs: Mapping[str, Any], params: type[P]) -> P:
    """Build a Params dataclass from the inputs that have the names of its fields.

    Args:
        inputs: Arguments of a component by name. Other names, such as those of artifacts, are ignored. An input
            with the name of a removed field must be empty. An input can also have the old name of a renamed field.
        params: The dataclass. A field that is a dataclass is built from the input with its name or, if there is no
            input with its name, from all of `inputs`.

    Raises:
        InputError: If a value has the wrong type, or `params` rejects it.

    Example:
        >>> from tpu_components.export_model import ExportParams
        >>> params_from({"records": ..., "calibration_examples": 50.0}, ExportParams).calibration_examples
        50
    """
    return read_by_hand(_named_like(inputs, params), params, "")


def _named_like(inputs: Mapping[str, Any], params: Any) -> dict[str, Any]:
    earlier = (*removed_fields(params), *renamed_fields(params))
    values = {name: inputs[name] for name in earlier if name in inputs}
    for name, field in fields_of(params).items():
        if name in inputs:
            values[name] = inputs[name]
        elif dataclasses.is_dataclass(field.kind):
            values[name] = _named_like(inputs, field.kind)
    return values

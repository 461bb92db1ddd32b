"""A component's inputs, or a command's flags, as the Params of its step."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from tpu_components.core.base.typed_values import fields_of, read_by_hand

P = TypeVar("P")


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

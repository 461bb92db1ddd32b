"""Requests and responses of KServe's protocols.

V1: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol (same bodies as Vertex AI).
V2, the Open Inference Protocol over REST, without model versions, which are optional:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION, ImageInput
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.instances import (
    PredictRequest,
    check_count,
    flatten_numbers,
    known_keys,
    load_json,
    open_instances,
    request_of_pixels,
)
from tpu_components.serving.params import ServeParams

_REQUEST_KEYS = ("id", "parameters", "inputs", "outputs")
_INPUT_KEYS = ("name", "shape", "datatype", "parameters", "data")
_CLASS = "class"
_BYTES = "BYTES"
_MOST_DIMENSIONS, _MOST_SIZE = 8, 2**31 - 1


def describe(name: str, model: ExportedModel) -> dict[str, Any]:
    """Return the V2 metadata of a model."""
    of_images = isinstance(model.input, ImageInput)
    shape = [-1, *model.input.shape] if of_images else [-1]
    tensor = {"name": model.input.noun, "datatype": "UINT8" if of_images else _BYTES, "shape": shape}
    answers = [{"name": _answer(model), "datatype": "FP32", "shape": [-1, len(model.class_names)]}]
    if model.task == CLASSIFICATION:
        answers.append({"name": _CLASS, "datatype": _BYTES, "shape": [-1]})
    return {"name": name, "platform": "litert", "inputs": [tensor], "outputs": answers}


def _answer(model: ExportedModel) -> str:
    return "values" if model.task == "regression" else "probabilities"


def parse_infer(body: bytes | bytearray, model: ExportedModel, limits: ServeParams) -> tuple[PredictRequest, str]:
    """Parse a V2 inference request with one tensor: UINT8 pixels, or BYTES of texts or base64 image files.

    Returns:
        The request, and its id; empty if it has none.

    Raises:
        InputError: If the body has another form.
        TooLargeError: If the number of instances exceeds `limits`.
    """
    request = known_keys(load_json(body), "The body", _REQUEST_KEYS)
    inputs, given_id = request.get("inputs"), request.get("id", "")
    if not isinstance(given_id, str):
        raise InputError('"id" must be a text.')
    if not isinstance(inputs, list) or len(inputs) != 1:
        count = len(inputs) if isinstance(inputs, list) else "none"
        raise InputError(f'"inputs" must be a list of one tensor, the {model.input.plural}. Received: {count}.')
    tensor = known_keys(inputs[0], "inputs[0]", _INPUT_KEYS)
    shape, data = tensor.get("shape"), tensor.get("data")
    # Check this first: the product of 500,000 sizes takes half a minute.
    if not isinstance(shape, list) or not 0 < len(shape) <= _MOST_DIMENSIONS or not all(map(_is_size, shape)):
        raise InputError(
            f'inputs[0]: "shape" must be a list of whole numbers, the number of instances first: at most '
            f"{_MOST_DIMENSIONS} of them, none above {_MOST_SIZE:,}."
        )
    if not isinstance(data, list) or not math.prod(shape):
        raise InputError('inputs[0]: "data" must be a list of the values of at least one instance.')
    kind = tensor.get("datatype")
    check_count(math.prod(shape) if kind == _BYTES else shape[0], limits)
    if kind == _BYTES:
        return open_instances(_texts(data, shape, model), model.reader, None, limits), given_id
    if kind == "UINT8" and isinstance(model.input, ImageInput):
        return request_of_pixels(_pixels(data, shape, model.input), limits), given_id
    expected = "UINT8 or BYTES" if isinstance(model.input, ImageInput) else _BYTES
    raise InputError(f'inputs[0]: "datatype" must be {expected}. Received: {str(kind)[:40]!r}.')


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_SIZE


def _texts(data: list[Any], shape: Sequence[int], model: ExportedModel) -> list[Any]:
    if math.prod(shape) != len(data) or not all(isinstance(item, str) for item in data):
        raise InputError(f"inputs[0]: expected {math.prod(shape)} texts, by its shape. Received: {len(data)} values.")
    return [{"b64": text} for text in data] if isinstance(model.input, ImageInput) else data


def _pixels(data: list[Any], shape: Sequence[int], wanted: ImageInput) -> np.ndarray:
    """Return uint8[N, height, width, channels] from flat or nested values."""
    expected = (shape[0], *wanted.image_shape)
    try:
        values, _ = flatten_numbers(data, len(expected))
    except ValueError:
        values = np.empty(0)
    fits = tuple(shape) in (expected, expected[:3] if expected[3] == 1 else expected)
    if not fits or values.size != math.prod(expected) or values.dtype.kind not in "iu":
        raise InputError(
            f"inputs[0]: expected {math.prod(expected)} whole numbers, and the shape {list(expected)}. Received: the "
            f"shape {list(shape)} and {values.size} values."
        )
    if values.min() < 0 or values.max() > 255:
        raise InputError("inputs[0]: pixels are from 0 to 255. Received: others.")
    return values.astype(np.uint8).reshape(expected)


def render_infer(name: str, model: ExportedModel, outputs: np.ndarray, given_id: str) -> bytes:
    """Return a V2 inference response."""
    answers = [
        {"name": _answer(model), "datatype": "FP32", "shape": list(outputs.shape), "data": outputs.ravel().tolist()}
    ]
    if model.task == CLASSIFICATION:
        names = [model.class_names[i] for i in outputs.argmax(1).tolist()]
        answers.append({"name": _CLASS, "datatype": _BYTES, "shape": [len(names)], "data": names})
    response: Mapping[str, Any] = {"model_name": name, **({"id": given_id} if given_id else {}), "outputs": answers}
    return json.dumps(response, ensure_ascii=False, allow_nan=False).encode()

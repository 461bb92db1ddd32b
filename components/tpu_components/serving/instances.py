"""Converts request bodies (JSON or an image file) to model inputs, and model outputs to response bodies.

Two protocols are supported:

- KServe's V1 protocol, which has the same bodies as Vertex AI:
  https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
- KServe's V2 protocol, the Open Inference Protocol over REST, without the optional model versions:
  https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

import base64
import contextlib
import dataclasses
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic_core import from_json

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.examples.images import (
    MOST_SCANS,
    SERVED_FORMATS,
    OpenImage,
    UnreadableImageError,
    count_scans,
    open_image,
)
from tpu_components.core.examples.interface import CLASSIFICATION, REGRESSION, TASKS, ImageInput
from tpu_components.core.examples.text import Tokenizer
from tpu_components.serving.exported import ExportedModel, PromptReader
from tpu_components.serving.params import ServeParams

Reader = ImageInput | Tokenizer | PromptReader

_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF|GIF8|BM")  # curl --data-binary does not send the image's media type.
_TOP, _CLASS, _BYTES = "top", "class", "BYTES"
_V2_REQUEST_KEYS = ("id", "model_name", "parameters", "inputs", "outputs")  # KServe's client sends `model_name`.
_V2_TENSOR_KEYS = ("name", "shape", "datatype", "parameters", "data")
# With these, clients request Triton's binary tensors, or announce that they send them.
BINARY_HEADER = "Inference-Header-Content-Length"
_BINARY_KEYS = ("binary_data_size", "binary_data", "binary_data_output")
_MOST_DIMENSIONS = 8
_MOST_SIZE = 2**31 - 1
_MOST_DIGITS = 18
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}

# Images of at most this many pixels in all are decoded while the request is parsed, in some 10 ms.
SMALL_PIXELS = 1_048_576


class TooLargeError(Exception):
    """A request exceeds a limit of the server. The response is 413."""


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """Parsed content of a request.

    Attributes:
        inputs: Inputs of the model for N >= 1 instances; for images uint8[N, height, width, channels].
        waiting: Images that are not decoded yet, by their index in `inputs`.
        top: Number of probabilities in the response, or None for all.
        id: ID that the client sent. Empty if it sent none.
        outputs: Names of the V2 outputs that the client requested.
    """

    inputs: np.ndarray
    waiting: dict[int, OpenImage] = dataclasses.field(default_factory=dict)
    top: int | None = None
    id: str = ""
    outputs: Sequence[str] = ()

    @property
    def num_bytes(self) -> int:
        """Memory in bytes that the request takes until the response is sent."""
        return self.inputs.nbytes + sum(image.num_bytes for image in self.waiting.values())

    def decode(self, number: int) -> None:
        """Decode the waiting image with the index `number`, and store its pixels in `inputs`.

        Raises:
            InputError: If the image cannot be decoded. The message names the instance.
        """
        with _naming(number), _reading_image():
            self.inputs[number] = self.waiting.pop(number).decode().pixels


@contextlib.contextmanager
def _reading_image() -> Iterator[None]:
    try:
        yield
    except UnreadableImageError as error:
        raise InputError(f"expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM file. Received: {error}.") from error


def _cost(image: OpenImage, shape: tuple[int, ...]) -> int:
    """Return the number of pixels that an image counts towards the limit of a request.

    It is the number of pixels of the file or of the model's input, whichever is larger.
    """
    return max(image.num_pixels, shape[1] * shape[2])


def parse_request(
    body: bytes | bytearray, wanted: Reader, limits: ServeParams, content_type: str = "", top: str | None = None
) -> PredictRequest:
    """Parse a request in the protocol of Vertex AI, which is KServe's V1 protocol.

    The request is one image file, or `{"instances": [IMAGE, …], "parameters": {"top": K}}`. `parameters` is optional.

    An IMAGE is an image file in Base64, `{"b64": "…"}`, or pixels. An image file is resized if necessary. Pixels are
    nested lists [height][width][channels] of whole numbers in [0, 255], or [height][width] for a grey image. Files and
    pixels may be wrapped as `{"image": IMAGE}` or `{"encoded": IMAGE}`. For a text model, an instance is a string
    or `{"text": "…"}`. A language model predicts the next character.

    Args:
        body: The request.
        wanted: Object that converts an instance to an input of the model.
        limits: Limits of the server.
        content_type: Media type of the body. Images of most formats are recognised without it.
        top: Text of the query parameter `top`, for an image file.

    Raises:
        InputError: If the body has another form. The message names the instance.
        TooLargeError: If the instances or their pixels exceed `limits`.
    """
    if content_type.startswith("image/") or _PICTURE.match(body):
        return _parse_image(body, wanted, limits, top)
    request = _known_keys(load_json(body), "The body", ("instances", "parameters"))
    instances = request.get("instances")
    if not isinstance(instances, list) or not instances:
        raise InputError(
            f'"instances" must be a list of at least one {wanted.noun}. Received: '
            f"{'an empty list' if instances == [] else _describe(instances)}."
        )
    _check_count(len(instances), limits)
    parameters = request.get("parameters")
    number = None if parameters is None else _known_keys(parameters, '"parameters"', (_TOP,)).get(_TOP)
    return _open_instances(instances, wanted, limits, top=_read_top(number))


def _check_count(count: int, limits: ServeParams) -> None:
    if count > limits.max_instances:
        raise TooLargeError(
            f"A request may contain at most {limits.max_instances} instances (--max-instances). Received: {count}. "
            "Send them in several requests."
        )


def parse_line(line: bytes, wanted: ImageInput) -> np.ndarray:
    """Parse a line of JSON with one image instance, without limits. Return uint8[1, height, width, channels].

    See `parse_request` for the form of an instance.

    Raises:
        InputError: If the line is not an image instance.
    """
    no_limits = ServeParams(max_image_pixels=sys.maxsize, max_request_pixels=sys.maxsize)
    request = _open_instances([load_json(line)], wanted, no_limits)
    for number in list(request.waiting):
        request.decode(number)
    return request.inputs


def _parse_image(body: bytes | bytearray, wanted: Reader, limits: ServeParams, top: str | None) -> PredictRequest:
    if not isinstance(wanted, ImageInput):
        raise InputError(f"The model takes a {wanted.noun}. Received: an image. Send JSON with a {wanted.noun}.")
    is_number = top is not None and top.isdecimal() and len(top) <= _MOST_DIGITS
    return _open_instances([bytes(body)], wanted, limits, top=_read_top(int(top or 0) if is_number else top))


def _open_instances(instances: Sequence[Any], wanted: Reader, limits: ServeParams, **asked: Any) -> PredictRequest:
    """Parse instances in the form that `parse_request` describes. `asked` contains further fields of the result."""
    inputs = np.empty((len(instances), *wanted.shape), wanted.dtype)
    request = PredictRequest(inputs, **asked)
    num_pixels = 0
    for number, instance in enumerate(instances):
        with _naming(number):
            parsed = _parse_instance(wanted, instance, limits)
        if not isinstance(parsed, OpenImage):
            inputs[number] = parsed
            continue
        request.waiting[number] = parsed
        num_pixels += _cost(parsed, inputs.shape)
        if num_pixels > limits.max_request_pixels:
            raise TooLargeError(
                f"The images of a request may have at most {limits.max_request_pixels:,} pixels together "
                "(--max-request-pixels). Each image counts at least as many as the model's input. Received: more "
                "pixels. Send the images in several requests, or send smaller images."
            )
    if num_pixels <= SMALL_PIXELS:
        for number in list(request.waiting):
            request.decode(number)
    return request


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"instances[{number}]: {error}") from error


def render_predictions(model: ExportedModel, outputs: np.ndarray, top: int | None) -> bytes:
    """Return the body of a V1 response, `{"predictions": [PREDICTION, …]}`.

    For a classification, a PREDICTION is `{"class": …, "confidence": …, "probabilities": {class: probability, best
    first}}`. For multi-label data, it is `{"labels": [labels above 0.5, best first], "probabilities": {…}}`. For a
    regression, it is `{"values": {target: number}}`.

    Args:
        model: Model with the names of classes or targets.
        outputs: float32[N, classes or targets].
        top: Number of probabilities to return, or None for all.

    Raises:
        InputError: If `top` is set and the outputs are not probabilities.
    """
    if top is not None and model.task == REGRESSION:
        raise InputError(
            f'"top" applies only to classes. Received: "top": {top} for a model that predicts numbers. Remove "top".'
        )
    ranked = [None if model.task == REGRESSION else dict(model.rank(output, top)) for output in outputs]
    predictions = [model.describe(output, names) for output, names in zip(outputs, ranked, strict=True)]
    return json.dumps({"predictions": predictions}, ensure_ascii=False, allow_nan=False).encode()


def load_json(body: bytes | bytearray) -> Any:
    """Parse a body as JSON.

    Raises:
        InputError: If the body is not JSON.
    """
    try:
        return from_json(body.decode(json.detect_encoding(body)), allow_inf_nan=False)
    except ValueError as error:
        raise InputError(
            f'The body must be JSON, such as {{"instances": […]}}, but it cannot be parsed: {error}.'
        ) from error


def _known_keys(value: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} must be a JSON object. Received: {_describe(value)}.")
    for key in value:
        if key not in known:
            raise InputError(
                f"{name} may contain only {' and '.join(known)}. Received: {key[:40]!r}.{did_you_mean(key[:40], known)}"
            )
    return value


def _read_top(top: Any) -> int | None:
    if top is None:
        return None
    # Vertex's client libraries pass parameters as protocol buffers, whose numbers are all floating point.
    is_whole = type(top) is int or (isinstance(top, float) and top.is_integer())  # Excludes True.
    if not is_whole or top < 1:
        raise InputError(f'"top" must be a whole number of at least 1. Received: {str(top)[:40]}.')
    return int(top)


def _parse_instance(wanted: Reader, instance: Any, limits: ServeParams) -> np.ndarray | OpenImage:
    """Parse an instance to a model input, or to an image that is not decoded yet."""
    if not isinstance(wanted, ImageInput):
        is_wrapped = isinstance(instance, dict) and instance.keys() == {"text"}
        text = instance["text"] if is_wrapped else instance
        if not isinstance(text, str):
            raise InputError(f'expected a string, or {{"text": "…"}}. Received: {_describe(instance)}.')
        return wanted.read(text)
    image = instance
    if isinstance(instance, dict) and len(instance) == 1:
        # TensorFlow Serving's clients wrap an image in an object with the name of the SavedModel's input.
        image = instance.get("image", instance.get("encoded", instance))
    if isinstance(image, list):
        return _check_pixels(image, wanted.image_shape)
    if isinstance(image, dict) and image.keys() == {"b64"} and isinstance(image["b64"], str):
        try:
            image = base64.b64decode(image["b64"], validate=True)
        except ValueError as error:
            raise InputError(f'expected Base64 in "b64". The received text is not valid: {error}.') from error
    if not isinstance(image, bytes):
        raise InputError(
            f'expected {{"b64": "…"}} with the bytes of an image file, or pixels {_lists(wanted.image_shape)}. '
            f"Received: {_describe(instance)}."
        )
    rule = dataclasses.replace(wanted.rule, max_pixels=limits.max_image_pixels, formats=SERVED_FORMATS)
    with _reading_image():
        opened = open_image(image, rule)
        if image.startswith(b"\xff\xd8") and (num_scans := count_scans(image)) > MOST_SCANS:
            raise UnreadableImageError(f"a JPEG file of {num_scans:,} scans: expected at most {MOST_SCANS}")
        return opened


def _check_pixels(nested: list[Any], image_shape: tuple[int, int, int]) -> np.ndarray:
    expected = f"expected pixels {_lists(image_shape)}, whole numbers in [0, 255]"
    try:
        numbers, shape = _flatten_numbers(nested, len(image_shape))
    except ValueError as error:
        raise InputError(f"{expected}. Received: {error}.") from error
    if shape != image_shape and not (image_shape[2] == 1 and shape == image_shape[:2]):
        raise InputError(f"{expected}. Received: {_lists(shape)}.")
    # Accept 12.0: protocol buffers have only floating-point numbers.
    odd = numbers[(numbers < 0) | (numbers > 255) | (numbers != np.trunc(numbers))]
    if odd.size:
        raise InputError(f"{expected}. Received: {odd[0]}. Do not scale the pixels, because the model scales them.")
    if numbers.dtype.kind == "f" and numbers.max() == 1:  # Probably black and white, scaled to [0, 1].
        raise InputError(
            f"{expected}. Received: only 0.0 and 1.0. If the pixels are scaled, multiply them by 255. Otherwise, send "
            "them as the whole numbers 0 and 1."
        )
    return numbers.astype(np.uint8).reshape(image_shape)


def _flatten_numbers(nested: list[Any], most_nested: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the numbers in nested lists as an int or float array [count], and the shape of the lists.

    The lists are checked before they are converted to an array, because in an array of strings, every element takes as
    much memory as the longest one.

    Raises:
        ValueError: If the lists differ in length, have more than `most_nested` levels, or contain other values than
            numbers. The message says what was received.
    """
    values = nested
    shape: tuple[int, ...] = (len(nested),)
    while (kinds := set(map(type, values))) == {list}:
        if len(set(map(len, values))) > 1 or len(shape) == most_nested:
            break
        shape = (*shape, len(values[0]))
        values = list(itertools.chain.from_iterable(values))
    if list in kinds:
        raise ValueError("lists of different lengths, or lists that are nested too deeply")
    if kinds <= {int, float}:
        numbers = np.array(values)
        if numbers.dtype.kind in "iuf":  # Numbers of more than 64 bits become objects.
            return numbers, shape
    raise ValueError("values that are not numbers")


def _lists(shape: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in shape)


def _describe(value: Any) -> str:
    """Return a description of a JSON value without its content, which may be private, for an error message."""
    if isinstance(value, dict):
        return f"an object with {', '.join(repr(key[:40]) for key in list(value)[:5]) or 'nothing in it'}"
    return _KINDS.get(type(value), "a number")


def describe_model(name: str, model: ExportedModel) -> dict[str, Any]:
    """Return the metadata of a model in KServe's V2 protocol."""
    of_images = isinstance(model.input, ImageInput)
    shape = [-1, *model.input.shape] if of_images else [-1]
    tensor = {"name": model.input.noun, "datatype": "UINT8" if of_images else _BYTES, "shape": shape}
    answers = [{"name": TASKS[model.task].answer, "datatype": "FP32", "shape": [-1, len(model.class_names)]}]
    if model.task == CLASSIFICATION:
        answers.append({"name": _CLASS, "datatype": _BYTES, "shape": [-1]})
    return {"name": name, "platform": "litert", "inputs": [tensor], "outputs": answers}


def parse_infer(
    body: bytes | bytearray, model: ExportedModel, limits: ServeParams, binary_length: str | None = None
) -> PredictRequest:
    """Parse a V2 inference request with one tensor.

    A tensor with the datatype UINT8 contains pixels. A tensor with the datatype BYTES contains texts, or image files in
    Base64.

    Args:
        body: The request, in JSON.
        model: The model.
        limits: Limits of the server.
        binary_length: Value of the HTTP header for Triton's binary tensors, which are not supported, or None if the
            request does not have this header.

    Raises:
        InputError: If the body has another form.
        TooLargeError: If the number of instances exceeds `limits`.
    """
    if binary_length is not None:
        raise _no_binary(f"the header {BINARY_HEADER}")
    request = _known_keys(load_json(body), "The body", _V2_REQUEST_KEYS)
    _check_parameters(request)
    inputs = request.get("inputs")
    given_id = request.get("id") or ""
    if not isinstance(given_id, str):
        raise InputError('"id" must be a string.')
    if not isinstance(inputs, list) or len(inputs) != 1:
        count = len(inputs) if isinstance(inputs, list) else "none"
        raise InputError(
            f'"inputs" must be a list of one tensor that contains the {model.input.plural}. Received: {count}.'
        )
    tensor = _known_keys(inputs[0], "inputs[0]", _V2_TENSOR_KEYS)
    _check_parameters(tensor)
    shape, kind, data = tensor.get("shape"), tensor.get("datatype"), tensor.get("data")
    # Check this first: the product of 500,000 sizes takes half a minute.
    if (
        not isinstance(shape, list)
        or not 0 < len(shape) <= _MOST_DIMENSIONS
        or not all(type(size) is int and 0 <= size <= _MOST_SIZE for size in shape)
    ):
        raise InputError(
            'inputs[0]: "shape" must be a list of whole numbers that begins with the number of instances. It may have '
            f"at most {_MOST_DIMENSIONS} numbers, none of them above {_MOST_SIZE:,}."
        )
    size = math.prod(shape)
    if not isinstance(data, list) or not size:
        raise InputError('inputs[0]: "data" must be a list with the values of at least one instance.')
    _check_count(size if kind == _BYTES else shape[0], limits)
    asked: dict[str, Any] = {"id": given_id, "outputs": _read_outputs(request, model)}
    if kind == "UINT8" and isinstance(model.reader, ImageInput):
        return PredictRequest(_check_tensor(data, shape, model.reader), **asked)
    of_images = isinstance(model.reader, ImageInput)
    if kind != _BYTES:
        expected = f"UINT8 or {_BYTES}" if of_images else _BYTES
        raise InputError(f'inputs[0]: "datatype" must be {expected}. Received: {str(kind)[:40]!r}.')
    if all(isinstance(item, list) and len(item) == 1 for item in data):  # A column, of the shape [N, 1].
        data = [item[0] for item in data]
    others = [item for item in data if not isinstance(item, str)]
    if size != len(data) or others:
        received = f"{_describe(others[0])} in the list" if others else f"{len(data)} strings"
        raise InputError(f'inputs[0]: expected {size} strings, according to "shape". Received: {received}.')
    instances = [{"b64": text} for text in data] if of_images else data
    return _open_instances(instances, model.reader, limits, **asked)


def _no_binary(received: str) -> InputError:
    return InputError(
        f'Binary tensors are not supported. Received: {received}. Send and request V2 JSON: "data" as a list, and '
        "binary_data=False in KServe's and Triton's clients."
    )


def _check_parameters(described: Mapping[str, Any]) -> None:
    """Check the "parameters" of a request, tensor or output. They must not request binary data."""
    parameters = described.get("parameters")
    for key in _BINARY_KEYS:
        if isinstance(parameters, dict) and parameters.get(key):
            raise _no_binary(f'"{key}"')


def _read_outputs(request: Mapping[str, Any], model: ExportedModel) -> Sequence[str]:
    """Return the names of the outputs that a V2 request asks for, or of all outputs if the request names none."""
    outputs = request.get("outputs")
    known = [TASKS[model.task].answer, *([_CLASS] if model.task == CLASSIFICATION else [])]
    if not outputs:
        return known
    if not isinstance(outputs, list):
        raise InputError(f'"outputs" must be a list. Received: {_describe(outputs)}.')
    names = []
    for output in outputs:
        name = _known_keys(output, "An output", ("name", "parameters")).get("name")
        if name not in known:
            raise InputError(f'"outputs" may contain only {" and ".join(known)}. Received: {str(name)[:40]!r}.')
        _check_parameters(output)
        _known_keys(output.get("parameters") or {}, "Parameters of an output", ("binary_data",))
        names.append(name)
    return list(dict.fromkeys(names))


def _check_tensor(data: list[Any], shape: Sequence[int], wanted: ImageInput) -> np.ndarray:
    """Convert a tensor of flat or nested pixel values to uint8[N, height, width, channels]."""
    expected = (shape[0], *wanted.image_shape)
    try:
        values, _ = _flatten_numbers(data, len(expected))
    except ValueError:
        values = np.empty(0)
    fits = tuple(shape) in (expected, expected[:3] if expected[3] == 1 else expected)
    if not fits or values.size != math.prod(expected) or values.dtype.kind not in "iu":
        raise InputError(
            f"inputs[0]: expected {math.prod(expected)} whole numbers and the shape {list(expected)}. Received: the "
            f"shape {list(shape)} and {values.size} values."
        )
    if values.min() < 0 or values.max() > 255:
        raise InputError("inputs[0]: pixels must be from 0 to 255. Received: values outside of this range.")
    return values.astype(np.uint8).reshape(expected)


def render_infer(name: str, model: ExportedModel, outputs: np.ndarray, asked: PredictRequest) -> bytes:
    """Return the body of a V2 inference response.

    Args:
        name: Name of the model in the response.
        model: Model with the names of classes or targets.
        outputs: Outputs of the model, float32[N, classes or targets].
        asked: The parsed request, with its ID and the names of the requested outputs.
    """
    answers: list[dict[str, Any]] = []
    for output in asked.outputs:
        if output == _CLASS:
            names = [model.class_names[i] for i in outputs.argmax(1).tolist()]
            answers.append({"name": _CLASS, "datatype": _BYTES, "shape": [len(names)], "data": names})
        else:
            values = outputs.ravel().tolist()
            answers.append({"name": output, "datatype": "FP32", "shape": list(outputs.shape), "data": values})
    response = {"model_name": name, **({"id": asked.id} if asked.id else {}), "outputs": answers}
    return json.dumps(response, ensure_ascii=False, allow_nan=False).encode()

"""Converts request bodies (JSON or an image file) to the model's inputs, and the model's outputs to response bodies.

V1: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol (same bodies as Vertex AI).
V2, the Open Inference Protocol over REST, without model versions, which are optional:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
Triton's extensions for binary tensors, whose bytes follow the JSON, and for the model configuration:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
"""

import base64
import contextlib
import dataclasses
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic_core import from_json

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.examples.images import SERVED_FORMATS, OpenImage, UnreadableImageError, open_image
from tpu_components.core.examples.interface import CLASSIFICATION, REGRESSION, TASKS, ImageInput
from tpu_components.core.examples.text import Tokenizer
from tpu_components.serving.exported import ExportedModel, PromptReader
from tpu_components.serving.params import ServeParams

Reader = ImageInput | Tokenizer | PromptReader

# With a binary tensor, the header of this name says how many bytes of the body are JSON.
JSON_LENGTH = "Inference-Header-Content-Length"
_TOP, _CLASS, _BYTES = "top", "class", "BYTES"
_CONFIG_TYPES = {_BYTES: "TYPE_STRING", "UINT8": "TYPE_UINT8", "FP32": "TYPE_FP32"}
_V2_REQUEST_KEYS = ("id", "parameters", "inputs", "outputs")
_V2_TENSOR_KEYS = ("name", "shape", "datatype", "parameters", "data")
_MOST_DIMENSIONS = 8
_MOST_SIZE = 2**31 - 1
_MOST_DIGITS = 18
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}


# Images of a request are decoded in parts of about this number of pixels, each in some 10 ms.
PART_PIXELS = 1_048_576


class TooLargeError(Exception):
    """A request exceeds a limit of the server; the response is 413."""


class _ProcessorTime:
    """Budget of processor time for a request's images, summed over threads."""

    def __init__(self, seconds: float) -> None:
        self._limit = self._left = seconds
        self._end = 0.0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count the time of the block, which reads an image; raise InputError if it is damaged or takes too long."""
        start = time.thread_time()
        self._end = start + self._left
        try:
            self.check()
            yield
        except UnreadableImageError as error:
            raise InputError(f"expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM file. Received: {error}.") from error
        finally:
            self._left -= time.thread_time() - start

    def check(self) -> None:
        """Raise UnreadableImageError if the budget is spent."""
        if time.thread_time() > self._end:
            raise UnreadableImageError(
                f"a file that takes too long: expected a request's images to take {self._limit:g} s "
                "(--max-decode-seconds)"
            )


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """Parsed content of a request.

    Attributes:
        inputs: Inputs of the model, N from 1; for images uint8[N, height, width, channels].
        waiting: Images that are not decoded yet, by their index in `inputs`.
        top: Number of probabilities in the response; None is all.
        id: Id that the client gave; empty if it gave none.
        outputs: V2 outputs that the client asked for, and whether each is returned as binary data.
    """

    inputs: np.ndarray
    waiting: dict[int, OpenImage]
    _time: _ProcessorTime
    top: int | None = None
    id: str = ""
    outputs: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Memory that the request holds until the response, in bytes."""
        return self.inputs.nbytes + sum(image.num_bytes for image in self.waiting.values())

    def parts(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield groups of waiting images, each as (number of pixels, indices)."""
        numbers: list[int] = []
        cost = 0
        for number, image in [*self.waiting.items()]:
            numbers.append(number)
            cost += _cost(image, self.inputs.shape)
            if cost >= PART_PIXELS:
                yield cost, numbers
                numbers = []
                cost = 0
        if numbers:
            yield cost, numbers

    def decode(self, numbers: Sequence[int]) -> None:
        """Decode the waiting images of these indices into `inputs`.

        Raises:
            InputError: If an image cannot be decoded, or takes too long; the message names the instance.
        """
        for number in numbers:
            with _naming(number), self._time.reading():
                self.inputs[number] = self.waiting.pop(number).decode().pixels


def _cost(image: OpenImage, shape: tuple[int, ...]) -> int:
    """Return the cost of an image: pixels of the file or of the model's input, whichever has more."""
    return max(image.num_pixels, shape[1] * shape[2])


def parse_request(body: bytes | bytearray, wanted: Reader, limits: ServeParams) -> PredictRequest:
    """Parse `{"instances": [IMAGE, …], "parameters": {"top": K}}`; `parameters` is optional.

    An IMAGE is either `{"b64": "…"}`, the bytes of an image file, which is resized if necessary, or its pixels: nested
    lists [height][width][channels] of whole numbers in [0, 255]; [height][width] is allowed for a grey image. Both may
    be wrapped as `{"image": IMAGE}` or `{"encoded": IMAGE}`. For a model of texts an instance is a string or
    `{"text": "…"}`; a language model predicts the next character.

    Raises:
        InputError: If the body has another form; the message names the instance.
        TooLargeError: If the instances or their pixels exceed `limits`.
    """
    request = _known_keys(load_json(body), "The body", ("instances", "parameters"))
    instances = request.get("instances")
    if not isinstance(instances, list) or not instances:
        raise InputError(
            f'"instances" must be a list of at least one {wanted.noun}. Received: '
            f"{'an empty list' if instances == [] else _describe(instances)}."
        )
    _check_count(len(instances), limits)
    parameters = request.get("parameters")
    top = None if parameters is None else _known_keys(parameters, '"parameters"', (_TOP,)).get(_TOP)
    return _open_instances(instances, wanted, limits, top=_read_top(top))


def _check_count(count: int, limits: ServeParams) -> None:
    if count > limits.max_instances:
        raise TooLargeError(
            f"A request may hold {limits.max_instances} instances (--max-instances). Received: {count}. Send them in "
            "several requests."
        )


def parse_line(line: bytes, wanted: ImageInput) -> np.ndarray:
    """Parse one image instance (see `parse_request`), without limits, to uint8[1, height, width, channels].

    Raises:
        InputError: If the line is not an image instance.
    """
    no_limits = ServeParams(max_image_pixels=sys.maxsize, max_request_pixels=sys.maxsize, max_decode_seconds=math.inf)
    request = _open_instances([load_json(line)], wanted, no_limits)
    request.decode(list(request.waiting))
    return request.inputs


def parse_image(body: bytes | bytearray, wanted: Reader, top: str | None, limits: ServeParams) -> PredictRequest:
    """Parse a body that is one image file. `top` is the text of the query parameter.

    Raises:
        InputError: If the body is no image, or the model does not take images.
        TooLargeError: If the image is too large, as in `parse_request`.
    """
    if not isinstance(wanted, ImageInput):
        raise InputError(f"The model takes a {wanted.noun}. Received: an image. Send JSON.")
    is_number = top is not None and top.isdecimal() and len(top) <= _MOST_DIGITS
    return _open_instances([bytes(body)], wanted, limits, top=_read_top(int(top or 0) if is_number else top))


def _open_instances(instances: Sequence[Any], wanted: Reader, limits: ServeParams, **asked: Any) -> PredictRequest:
    """Parse instances, see `parse_request`; `asked` are further fields of the `PredictRequest`."""
    inputs = np.empty((len(instances), *wanted.shape), wanted.dtype)
    request = PredictRequest(inputs, {}, _ProcessorTime(limits.max_decode_seconds), **asked)
    num_pixels = 0
    for number, instance in enumerate(instances):
        with _naming(number):
            parsed = _parse_instance(wanted, instance, limits, request._time)
        if not isinstance(parsed, OpenImage):
            inputs[number] = parsed
            continue
        request.waiting[number] = parsed
        num_pixels += _cost(parsed, inputs.shape)
        if num_pixels > limits.max_request_pixels:
            raise TooLargeError(
                f"A request's images may have {limits.max_request_pixels:,} pixels in all (--max-request-pixels), each "
                "at least those that the model takes. Received: more. Send them in several requests, or smaller."
            )
    if num_pixels <= PART_PIXELS:
        request.decode(list(request.waiting))
    return request


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"instances[{number}]: {error}") from error


def render_predictions(model: ExportedModel, outputs: np.ndarray, top: int | None) -> bytes:
    """Render `{"predictions": [{"class": …, "confidence": …, "probabilities": {class: probability, best first}}, …]}`.

    For multi-label data a prediction is `{"labels": [those above 0.5, best first], "probabilities": {…}}`, for a
    regression `{"values": {target: number}}`.

    Args:
        model: Model with the names of classes or targets.
        outputs: float32[N, classes or targets].
        top: Number of probabilities to return; None is all.

    Raises:
        InputError: If `top` is set and the outputs are not probabilities.
    """
    if top is not None and model.task == REGRESSION:
        raise InputError(f'"top" chooses among classes. Received: {top}, for a model that gives numbers. Leave it out.')
    ranked = [None if model.task == REGRESSION else dict(model.rank(output, top)) for output in outputs]
    predictions = [model.describe(output, names) for output, names in zip(outputs, ranked, strict=True)]
    return json.dumps({"predictions": predictions}, ensure_ascii=False, allow_nan=False).encode()


def load_json(body: bytes | bytearray) -> Any:
    """Parse a body as JSON.

    Raises:
        InputError: If it is not JSON.
    """
    try:
        return from_json(body.decode(json.detect_encoding(body)), allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f'The body must be JSON, as {{"instances": […]}}. Received another body: {error}.') from error


def _known_keys(value: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} must be a JSON object. Received: {_describe(value)}.")
    for key in value:
        if key not in known:
            raise InputError(
                f"{name} may hold {' and '.join(known)}. Received: {key[:40]!r}.{did_you_mean(key[:40], known)}"
            )
    return value


def _read_top(top: Any) -> int | None:
    if top is None:
        return None
    # Vertex's client libraries pass parameters as protocol buffers, whose numbers are all floating point.
    is_whole = type(top) is int or (isinstance(top, float) and top.is_integer())  # Excludes True.
    if not is_whole or top < 1:
        raise InputError(f'"top" must be a whole number from 1. Received: {str(top)[:40]}.')
    return int(top)


def _parse_instance(wanted: Reader, instance: Any, limits: ServeParams, time: _ProcessorTime) -> np.ndarray | OpenImage:
    """Parse an instance to an input of the model, or to an image that is not decoded yet."""
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
            raise InputError(f'expected Base64 in "b64". Received another text: {error}.') from error
    if not isinstance(image, bytes):
        raise InputError(
            f'expected {{"b64": "…"}} with the bytes of an image file, or pixels {_lists(wanted.image_shape)}. '
            f"Received: {_describe(instance)}."
        )
    rule = dataclasses.replace(wanted.rule, max_pixels=limits.max_image_pixels, formats=SERVED_FORMATS)
    with time.reading():
        return open_image(image, rule, time.check)


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
        raise InputError(f"{expected}. Received: {odd[0]}. The model scales pixels itself.")
    return numbers.astype(np.uint8).reshape(image_shape)


def _flatten_numbers(nested: list[Any], most_nested: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Flatten nested lists of at most `most_nested` levels to int or float [count]; returns their shape too.

    The lists are checked before they become an array: in an array of strings every element takes the memory of the
    longest one.

    Raises:
        ValueError: If the lists differ in length, are nested deeper, or contain other values than numbers. The message
            says what was received.
    """
    values = nested
    shape: tuple[int, ...] = (len(nested),)
    while (kinds := set(map(type, values))) == {list}:
        if len(set(map(len, values))) > 1 or len(shape) == most_nested:
            break
        shape = (*shape, len(values[0]))
        values = list(itertools.chain.from_iterable(values))
    if list in kinds:
        raise ValueError("lists of different lengths, or nested too deep")
    if kinds <= {int, float}:
        numbers = np.array(values)
        if numbers.dtype.kind in "iuf":  # Numbers of more than 64 bits become objects.
            return numbers, shape
    raise ValueError("something else among them")


def _lists(shape: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in shape)


def _describe(value: Any) -> str:
    """Describe a value without its content, which may be private."""
    if isinstance(value, dict):
        return f"an object with {', '.join(repr(key[:40]) for key in list(value)[:5]) or 'nothing in it'}"
    return _KINDS.get(type(value), "a number")


def describe_model(name: str, model: ExportedModel) -> dict[str, Any]:
    """Return the V2 metadata of a model."""
    of_images = isinstance(model.input, ImageInput)
    shape = [-1, *model.input.shape] if of_images else [-1]
    tensor = {"name": model.input.noun, "datatype": "UINT8" if of_images else _BYTES, "shape": shape}
    answers = [{"name": TASKS[model.task].answer, "datatype": "FP32", "shape": [-1, len(model.class_names)]}]
    if model.task == CLASSIFICATION:
        answers.append({"name": _CLASS, "datatype": _BYTES, "shape": [-1]})
    return {"name": name, "platform": "litert", "inputs": [tensor], "outputs": answers}


def configure_model(name: str, model: ExportedModel) -> dict[str, Any]:
    """Return Triton's configuration of a model; `max_batch_size` is 0, so `dims` include the batch dimension."""
    described = describe_model(name, model)
    tensors = {
        side: [
            {"name": tensor["name"], "data_type": _CONFIG_TYPES[tensor["datatype"]], "dims": tensor["shape"]}
            for tensor in described[f"{side}s"]
        ]
        for side in ("input", "output")
    }
    return {"name": name, "platform": described["platform"], "backend": "litert", "max_batch_size": 0, **tensors}


def parse_infer(
    body: bytes | bytearray, model: ExportedModel, limits: ServeParams, num_json_bytes: int | None = None
) -> PredictRequest:
    """Parse a V2 inference request with one tensor: UINT8 pixels, or BYTES of texts or image files.

    Args:
        body: The request. JSON has image files in Base64; a binary tensor has their bytes.
        model: The model.
        limits: Limits of the server.
        num_json_bytes: Length of the JSON before a binary tensor; None if all of the body is JSON.

    Raises:
        InputError: If the body has another form.
        TooLargeError: If the number of instances exceeds `limits`.
    """
    request = _known_keys(
        load_json(body if num_json_bytes is None else body[:num_json_bytes]), "The body", _V2_REQUEST_KEYS
    )
    inputs = request.get("inputs")
    given_id = request.get("id", "")
    if not isinstance(given_id, str):
        raise InputError('"id" must be a text.')
    if not isinstance(inputs, list) or len(inputs) != 1:
        count = len(inputs) if isinstance(inputs, list) else "none"
        raise InputError(f'"inputs" must be a list of one tensor, the {model.input.plural}. Received: {count}.')
    tensor = _known_keys(inputs[0], "inputs[0]", _V2_TENSOR_KEYS)
    shape, kind = tensor.get("shape"), tensor.get("datatype")
    # Check this first: the product of 500,000 sizes takes half a minute.
    if (
        not isinstance(shape, list)
        or not 0 < len(shape) <= _MOST_DIMENSIONS
        or not all(type(size) is int and 0 <= size <= _MOST_SIZE for size in shape)
    ):
        raise InputError(
            f'inputs[0]: "shape" must be a list of whole numbers, the number of instances first: at most '
            f"{_MOST_DIMENSIONS} of them, none above {_MOST_SIZE:,}."
        )
    size = math.prod(shape)
    data: Any = tensor.get("data")
    if data is None:
        data = _binary_data(tensor, body, num_json_bytes)
    if not isinstance(data, list | bytes) or not size:
        raise InputError('inputs[0]: "data" must be a list of the values of at least one instance.')
    _check_count(size if kind == _BYTES else shape[0], limits)
    asked: dict[str, Any] = {"id": given_id, "outputs": _read_outputs(request, model)}
    of_images = isinstance(model.reader, ImageInput)
    if kind == "UINT8" and isinstance(model.reader, ImageInput):
        pixels = _check_tensor(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data, shape, model.reader)
        return PredictRequest(pixels, {}, _ProcessorTime(limits.max_decode_seconds), **asked)
    if kind != _BYTES:
        expected = f"UINT8 or {_BYTES}" if of_images else _BYTES
        raise InputError(f'inputs[0]: "datatype" must be {expected}. Received: {str(kind)[:40]!r}.')
    if is_binary := isinstance(data, bytes):
        data = _split_elements(data, size, as_text=not of_images)
    if size != len(data) or not (is_binary or all(isinstance(item, str) for item in data)):
        raise InputError(f"inputs[0]: expected {size} texts, by its shape. Received: {len(data)} values.")
    instances = [{"b64": text} for text in data] if of_images and not is_binary else data
    return _open_instances(instances, model.reader, limits, **asked)


def _binary_data(tensor: Mapping[str, Any], body: bytes | bytearray, num_json_bytes: int | None) -> Any:
    """Return the data of a binary tensor, the bytes after the JSON; None if the data are in the JSON."""
    parameters = tensor.get("parameters")
    expected = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if expected is None:
        return None
    content = b"" if num_json_bytes is None else bytes(body[num_json_bytes:])
    if expected != len(content):
        raise InputError(
            f'inputs[0]: expected as many bytes after the JSON as "binary_data_size" says, and the number of bytes '
            f"before them in the header {JSON_LENGTH}. Received: {str(expected)[:40]}, and {len(content)} bytes after "
            f"{'a body without that header' if num_json_bytes is None else 'the JSON'}."
        )
    return content


def _split_elements(content: bytes, count: int, as_text: bool) -> list[bytes] | list[str]:
    """Return the elements of a binary BYTES tensor: each follows its length, 4 bytes in little-endian order."""
    elements: list[bytes] = []
    start = 0
    while start < len(content) and len(elements) < count:
        end = start + 4 + int.from_bytes(content[start : start + 4], "little")
        elements.append(content[start + 4 : end])
        start = end
    if start != len(content):
        raise InputError(
            f"inputs[0]: expected {count} elements, each after its length as 4 bytes in little-endian order. Received: "
            f"{len(content):,} bytes that end elsewhere."
        )
    try:
        return [element.decode() for element in elements] if as_text else elements
    except UnicodeDecodeError as error:
        raise InputError(f"inputs[0]: expected texts in UTF-8. Received other bytes: {error.reason}.") from error


def _read_outputs(request: Mapping[str, Any], model: ExportedModel) -> dict[str, bool]:
    """Return the outputs that a V2 request asks for, all by default, and whether each is returned as binary data."""
    parameters, outputs = request.get("parameters"), request.get("outputs")
    by_default = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    known = [TASKS[model.task].answer, *([_CLASS] if model.task == CLASSIFICATION else [])]
    if not outputs:
        return dict.fromkeys(known, by_default)
    if not isinstance(outputs, list):
        raise InputError(f'"outputs" must be a list. Received: {_describe(outputs)}.')
    asked = {}
    for output in outputs:
        name = _known_keys(output, "An output", ("name", "parameters")).get("name")
        if name not in known:
            raise InputError(f"The outputs are {' and '.join(known)}. Received: {str(name)[:40]!r}.")
        chosen = _known_keys(output.get("parameters") or {}, "Parameters of an output", ("binary_data",))
        asked[name] = chosen.get("binary_data", by_default) is True
    return asked


def _check_tensor(data: list[Any] | np.ndarray, shape: Sequence[int], wanted: ImageInput) -> np.ndarray:
    """Return uint8[N, height, width, channels] from flat or nested values."""
    expected = (shape[0], *wanted.image_shape)
    try:
        values = data if isinstance(data, np.ndarray) else _flatten_numbers(data, len(expected))[0]
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


def render_infer(name: str, model: ExportedModel, outputs: np.ndarray, asked: PredictRequest) -> tuple[bytes, int]:
    """Render a V2 inference response: JSON, then binary tensors if any. Returns the body and the JSON's length."""
    answers, binary = [], []
    for output, is_binary in asked.outputs.items():
        if output == _CLASS:
            names = [model.class_names[i] for i in outputs.argmax(1).tolist()]
            answer: dict[str, Any] = {"name": _CLASS, "datatype": _BYTES, "shape": [len(names)], "data": names}
        else:
            values = [] if is_binary else outputs.ravel().tolist()
            answer = {"name": output, "datatype": "FP32", "shape": list(outputs.shape), "data": values}
        if is_binary:
            content = outputs.astype("<f4").tobytes()
            if output == _CLASS:
                content = b"".join(len(raw := text.encode()).to_bytes(4, "little") + raw for text in names)
            del answer["data"]
            answer["parameters"] = {"binary_data_size": len(content)}
            binary.append(content)
        answers.append(answer)
    response = {"model_name": name, **({"id": asked.id} if asked.id else {}), "outputs": answers}
    rendered = json.dumps(response, ensure_ascii=False, allow_nan=False).encode()
    return b"".join([rendered, *binary]), len(rendered)

"""Bodies of requests and responses: JSON or an image file to pixels, probabilities to JSON."""

import base64
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.examples.images import SERVED_FORMATS, OpenImage, UnreadableImageError, open_image
from tpu_components.core.examples.interface import MULTI_LABEL, REGRESSION, ImageInput
from tpu_components.core.examples.text import Tokenizer
from tpu_components.serving.exported import ExportedModel, PromptReader
from tpu_components.serving.params import ServeParams

ImageShape = tuple[int, int, int]

_INSTANCES, _PARAMETERS, _TOP = "instances", "parameters", "top"
_ENCODED, _TEXT = "b64", "text"
# TensorFlow Serving's clients wrap an image in an object with the name of the SavedModel's input.
_INPUT_NAMES = ("image", "encoded")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
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
    def spending(self) -> Iterator[None]:
        start = time.thread_time()
        self._end = start + self._left
        try:
            yield
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
        inputs: Inputs of the model, N from 1; of images uint8[N, height, width, channels].
        top: Number of probabilities in the response; None is all.
        waiting: Images that are not decoded yet, by their index in `inputs`.
    """

    inputs: np.ndarray
    top: int | None
    waiting: dict[int, OpenImage]
    _time: _ProcessorTime

    @property
    def num_bytes(self) -> int:
        """Memory of the request in bytes, until its response."""
        return self.inputs.nbytes + sum(image.num_bytes for image in self.waiting.values())

    def parts(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield groups of waiting images: their number of pixels and their indices."""
        numbers: list[int] = []
        cost = 0
        for number, of_one in [(number, _cost(image, self.inputs.shape)) for number, image in self.waiting.items()]:
            numbers.append(number)
            cost += of_one
            if cost >= PART_PIXELS:
                yield cost, numbers
                numbers, cost = [], 0
        if numbers:
            yield cost, numbers

    def decode(self, numbers: Sequence[int]) -> None:
        """Decode the waiting images of these indices into `inputs`.

        Raises:
            InputError: If an image cannot be decoded, or takes too long; the message names the instance.
        """
        for number in numbers:
            with _naming(number), self._time.spending(), _naming_what_is_expected():
                self._time.check()
                self.inputs[number] = self.waiting.pop(number).decode().pixels


def _cost(image: OpenImage, shape: tuple[int, ...]) -> int:
    """Return the cost of an image in pixels: of the file or of the model's input, whichever has more."""
    return max(image.num_pixels, shape[1] * shape[2])


def parse_request(
    body: bytes | bytearray, wanted: ImageInput | Tokenizer | PromptReader, limits: ServeParams
) -> PredictRequest:
    """Parse `{"instances": [IMAGE, …], "parameters": {"top": K}}`; `parameters` is optional.

    An IMAGE is either `{"b64": "…"}`, the bytes of an image file, which is resized if necessary, or its pixels: nested
    lists [height][width][channels] of whole numbers in [0, 255]; [height][width] is allowed for a grey image. Both may
    be wrapped as `{"image": IMAGE}` or `{"encoded": IMAGE}`. For a model of texts an instance is a string or
    `{"text": "…"}`; a language model predicts the next character.

    Raises:
        InputError: If the body has another form; the message names the instance.
        TooLargeError: If the instances or their pixels exceed `limits`.
    """
    request = known_keys(load_json(body), "The body", (_INSTANCES, _PARAMETERS))
    instances = request.get(_INSTANCES)
    if not isinstance(instances, list) or not instances:
        raise InputError(
            f'"instances" must be a list of at least one {wanted.noun}. Received: '
            f"{'an empty list' if instances == [] else _describe(instances)}."
        )
    check_count(len(instances), limits)
    return open_instances(instances, wanted, _parse_top(request.get(_PARAMETERS)), limits)


def check_count(count: int, limits: ServeParams) -> None:
    """Check the number of instances of a request.

    Raises:
        TooLargeError: If it exceeds `limits.max_instances`.
    """
    if count > limits.max_instances:
        raise TooLargeError(
            f"A request may hold {limits.max_instances} instances (--max-instances). Received: {count}. Send them in "
            "several requests."
        )


def request_of_pixels(pixels: np.ndarray, limits: ServeParams) -> PredictRequest:
    """Return a request for pixels of the model's size, uint8[N, height, width, channels]."""
    return PredictRequest(pixels, None, {}, _ProcessorTime(limits.max_decode_seconds))


def parse_line(line: bytes, wanted: ImageInput) -> np.ndarray:
    """Parse one IMAGE (see `parse_request`) of any size to uint8[1, height, width, channels].

    Raises:
        InputError: If the line is no IMAGE.
    """
    no_limits = ServeParams(max_image_pixels=sys.maxsize, max_request_pixels=sys.maxsize, max_decode_seconds=math.inf)
    request = open_instances([load_json(line)], wanted, None, no_limits)
    request.decode(list(request.waiting))
    return request.inputs


def parse_image(body: bytes | bytearray, wanted: Any, top: str | None, limits: ServeParams) -> PredictRequest:
    """Parse a body that is one image file. `top` is the text of the query parameter.

    Raises:
        InputError: If the body is no image, or the model does not take images.
        TooLargeError: If the image is too large, as in `parse_request`.
    """
    if not isinstance(wanted, ImageInput):
        raise InputError(f"The model takes a {wanted.noun}. Received: an image. Send JSON.")
    asked = int(top) if top is not None and top.isdecimal() and len(top) <= _MOST_DIGITS else top
    number = _parse_top({_TOP: asked})
    return open_instances([bytes(body)], wanted, number, limits)


def open_instances(instances: Sequence[Any], wanted: Any, top: int | None, limits: ServeParams) -> PredictRequest:
    """Parse instances; see `parse_request`.

    Raises:
        InputError: If an instance has another form; the message names it.
        TooLargeError: If the images have too many pixels.
    """
    inputs = np.empty((len(instances), *wanted.shape), wanted.dtype)
    processor_time, waiting = _ProcessorTime(limits.max_decode_seconds), {}
    num_pixels = 0
    for number, instance in enumerate(instances):
        with _naming(number):
            parsed = _parse_instance(wanted, instance, limits, processor_time)
        if not isinstance(parsed, OpenImage):
            inputs[number] = parsed
            continue
        waiting[number] = parsed
        num_pixels += _cost(parsed, inputs.shape)
        if num_pixels > limits.max_request_pixels:
            raise TooLargeError(
                f"A request's images may have {limits.max_request_pixels:,} pixels in all (--max-request-pixels), each "
                "at least those that the model takes. Received: more. Send them in several requests, or smaller."
            )
    request = PredictRequest(inputs, top, waiting, processor_time)
    if num_pixels <= PART_PIXELS:
        request.decode(list(waiting))
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
    predictions: list[dict[str, Any]] = []
    for output in outputs:
        answer = model.answer(output)
        if model.task == REGRESSION:
            predictions.append({"values": dict(answer)})
            continue
        probabilities = dict(model.rank(output, top))
        if model.task == MULTI_LABEL:
            predictions.append({"labels": [name for name, _ in answer], "probabilities": probabilities})
        else:
            name, confidence = answer[0]
            predictions.append({"class": name, "confidence": confidence, "probabilities": probabilities})
    return json.dumps({"predictions": predictions}, ensure_ascii=False, allow_nan=False).encode()


def load_json(body: bytes | bytearray) -> Any:
    """Parse a body as JSON.

    Raises:
        InputError: If it is not JSON.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        text = body.decode(json.detect_encoding(body))
        parsed = json.loads(text, parse_constant=refuse)
        if _SURROGATE.search(text):  # A lone surrogate cannot be encoded for response or log.
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except (ValueError, RecursionError) as error:  # Lists nested too deeply raise RecursionError.
        raise InputError(f'The body must be JSON, as {{"instances": […]}}. Received another body: {error}.') from error


def known_keys(value: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Return `value`; raises InputError unless it is an object with only the known keys."""
    if not isinstance(value, dict):
        raise InputError(f"{name} must be a JSON object. Received: {_describe(value)}.")
    for key in value:
        if key not in known:
            raise InputError(
                f"{name} may hold {' and '.join(known)}. Received: {key[:40]!r}.{did_you_mean(key[:40], known)}"
            )
    return value


def _parse_top(parameters: Any) -> int | None:
    if parameters is None:
        return None
    top = known_keys(parameters, '"parameters"', (_TOP,)).get(_TOP)
    if top is None:
        return None
    # Vertex's client libraries pass parameters as protocol buffers, whose numbers are all floating point.
    is_whole = type(top) is int or (isinstance(top, float) and top.is_integer())  # Excludes True.
    if not is_whole or top < 1:
        raise InputError(f'"top" must be a whole number from 1. Received: {str(top)[:40]}.')
    return int(top)


@functools.singledispatch
def _parse_instance(wanted: Any, instance: Any, limits: ServeParams, time: _ProcessorTime) -> np.ndarray | OpenImage:
    """Parse an instance to an input of the model, or to an image that is not decoded yet."""
    raise TypeError(f"No reader for instances of {type(wanted)}.")


@_parse_instance.register
def _(wanted: ImageInput, instance: Any, limits: ServeParams, time: _ProcessorTime) -> np.ndarray | OpenImage:
    image = instance
    if isinstance(instance, dict) and len(instance) == 1:
        image = next((instance[name] for name in _INPUT_NAMES if name in instance), instance)
    if isinstance(image, list):
        return _check_pixels(image, wanted.image_shape)
    if isinstance(image, bytes):
        return _open_file(image, wanted, limits, time)
    if isinstance(image, dict) and image.keys() == {_ENCODED} and isinstance(image[_ENCODED], str):
        try:
            content = base64.b64decode(image[_ENCODED], validate=True)
        except ValueError as error:
            raise InputError(f'expected Base64 in "b64". Received another text: {error}.') from error
        return _open_file(content, wanted, limits, time)
    raise InputError(
        f'expected {{"b64": "…"}} with the bytes of an image file, or pixels {_lists(wanted.image_shape)}. '
        f"Received: {_describe(instance)}."
    )


@_parse_instance.register
def _(wanted: PromptReader | Tokenizer, instance: Any, limits: ServeParams, time: _ProcessorTime) -> np.ndarray:
    text = instance
    if isinstance(instance, dict) and instance.keys() == {_TEXT}:
        text = instance[_TEXT]
    if not isinstance(text, str):
        raise InputError(f'expected a string, or {{"text": "…"}}. Received: {_describe(instance)}.')
    return wanted.read(text)


def _open_file(content: bytes, wanted: ImageInput, limits: ServeParams, time: _ProcessorTime) -> OpenImage:
    rule = dataclasses.replace(wanted.rule, max_pixels=limits.max_image_pixels, formats=SERVED_FORMATS)
    with time.spending(), _naming_what_is_expected():
        time.check()
        return open_image(content, rule, time.check)


@contextlib.contextmanager
def _naming_what_is_expected() -> Iterator[None]:
    try:
        yield
    except UnreadableImageError as error:
        raise InputError(f"expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM file. Received: {error}.") from error


def _check_pixels(nested: list[Any], image_shape: ImageShape) -> np.ndarray:
    expected = f"expected pixels {_lists(image_shape)}, whole numbers in [0, 255]"
    try:
        numbers, shape = flatten_numbers(nested, len(image_shape))
    except ValueError as error:
        raise InputError(f"{expected}. Received: {error}.") from error
    if shape != image_shape and not (image_shape[2] == 1 and shape == image_shape[:2]):
        raise InputError(f"{expected}. Received: {_lists(shape)}.")
    # Accept 12.0: protocol buffers have only floating-point numbers.
    odd = numbers[(numbers < 0) | (numbers > 255) | (numbers != np.trunc(numbers))]
    if odd.size:
        raise InputError(f"{expected}. Received: {odd[0]}. The model scales pixels itself.")
    return numbers.astype(np.uint8).reshape(image_shape)


def flatten_numbers(nested: list[Any], most_nested: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Flatten nested lists to int or float [count]; returns the shape of the lists too.

    The lists are checked before they become an array: in an array of strings every element takes the memory of the
    longest one.

    Args:
        nested: Nested lists from JSON.
        most_nested: Largest number of dimensions.

    Raises:
        ValueError: If the lists differ in length, are nested deeper, or contain other values than numbers. The message
            says what was received.

    Example:
        >>> flatten_numbers([[1, 2], [3, 4]], 3)
        (array([1, 2, 3, 4]), (2, 2))
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

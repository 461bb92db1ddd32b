"""The bodies of requests and answers: JSON to pixels, probabilities to JSON."""

import base64
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from components.errors import InputError, did_you_mean
from components.images import ImageRule, UnreadableImageError, decode_pixels
from components.interface import MULTI_LABEL, REGRESSION, ImageInput
from components.prediction import ExportedModel, PromptReader
from components.text import Tokenizer

ImageShape = tuple[int, int, int]

_INSTANCES, _PARAMETERS, _TOP = "instances", "parameters", "top"
_ENCODED, _TEXT = "b64", "text"
# An image may be wrapped as TensorFlow Serving wants it: by the name of the SavedModel's input.
_INPUT_NAMES = ("image", "encoded")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}


class TooManyInstancesError(Exception):
    """A request holds more instances than the server takes."""


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """What a request asks for.

    Attributes:
        inputs: As the model takes them, of images uint8[N, height, width, channels]; N from 1.
        top: How many probabilities to give; None is all of them.
    """

    inputs: np.ndarray
    top: int | None


def parse_request(
    body: bytes, wanted: ImageInput | Tokenizer | PromptReader, max_instances: int, max_image_pixels: int
) -> PredictRequest:
    """Read `{"instances": [IMAGE, …], "parameters": {"top": K}}`, where `parameters` may be left out.

    An IMAGE is either `{"b64": "…"}`, the bytes of an image file, which is resized if need be, or its pixels: nested
    lists [height][width][channels] of whole numbers in [0, 255], of a grey image also [height][width]. Either may be
    wrapped as `{"image": IMAGE}` or `{"encoded": IMAGE}`. For a model of texts an instance is a string, or
    `{"text": "…"}`; of a language model, what comes after it is predicted.

    Raises:
        InputError: If it is anything else; the message names the instance.
        TooManyInstancesError: If there are more than `max_instances`.
    """
    request = _known_keys(_load_json(body), "The body", (_INSTANCES, _PARAMETERS))
    instances = request.get(_INSTANCES)
    if not isinstance(instances, list) or not instances:
        raise InputError(
            f'"instances" must be a list of at least one {wanted.noun}. Received: '
            f"{'an empty list' if instances == [] else _describe(instances)}."
        )
    if len(instances) > max_instances:
        raise TooManyInstancesError(
            f"A request may hold {max_instances} instances. Received: {len(instances)}. Send them in several requests."
        )
    top = _parse_top(request.get(_PARAMETERS))
    inputs = np.empty((len(instances), *wanted.shape), wanted.dtype)
    for index, instance in enumerate(instances):
        try:
            inputs[index] = _parse_instance(wanted, instance, max_image_pixels)
        except InputError as error:
            raise InputError(f"instances[{index}]: {error}") from error
    return PredictRequest(inputs, top)


def render_predictions(model: ExportedModel, outputs: np.ndarray, top: int | None) -> bytes:
    """`{"predictions": [{"class": …, "confidence": …, "probabilities": {class: probability, best first}}, …]}`.

    Of multi-label data a prediction is `{"labels": [those above 0.5, best first], "probabilities": {…}}`, of a
    regression `{"values": {target: number}}`.

    Args:
        model: Names the classes or targets.
        outputs: float32[N, classes or targets].
        top: How many probabilities to give; None is all of them.

    Raises:
        InputError: If `top` is given and the answers are no probabilities.
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


def _load_json(body: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # Lists nested a thousand deep end in a RecursionError.
        raise InputError(f'The body must be JSON, as {{"instances": […]}}. Received what is not: {error}.') from error


def _known_keys(value: Any, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """`value`, if it is an object without other keys."""
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
    top = _known_keys(parameters, '"parameters"', (_TOP,)).get(_TOP)
    if top is None:
        return None
    # Protocol buffers, through which Vertex's client libraries pass parameters, know only floating point.
    is_whole = type(top) is int or (isinstance(top, float) and top.is_integer())  # True is an int as well.
    if not is_whole or top < 1:
        raise InputError(f'"top" must be a whole number from 1. Received: {str(top)[:40]}.')
    return int(top)


@functools.singledispatch
def _parse_instance(wanted: Any, instance: Any, max_image_pixels: int) -> np.ndarray:
    """One instance as the model takes it."""
    raise TypeError(f"No reader for instances of {type(wanted)}.")


@_parse_instance.register
def _(wanted: ImageInput, instance: Any, max_image_pixels: int) -> np.ndarray:
    image_shape = wanted.image_shape
    image = instance
    if isinstance(instance, dict) and len(instance) == 1:
        image = next((instance[name] for name in _INPUT_NAMES if name in instance), instance)
    if isinstance(image, list):
        return _check_pixels(image, image_shape)
    if isinstance(image, dict) and image.keys() == {_ENCODED} and isinstance(image[_ENCODED], str):
        return _decode_file(image[_ENCODED], image_shape, max_image_pixels)
    raise InputError(
        f'expected {{"b64": "…"}} with the bytes of an image file, or pixels {_lists(image_shape)}. '
        f"Received: {_describe(instance)}."
    )


@_parse_instance.register
def _(wanted: PromptReader | Tokenizer, instance: Any, max_image_pixels: int) -> np.ndarray:
    text = instance
    if isinstance(instance, dict) and instance.keys() == {_TEXT}:
        text = instance[_TEXT]
    if not isinstance(text, str):
        raise InputError(f'expected a string, or {{"text": "…"}}. Received: {_describe(instance)}.')
    return wanted.read(text)


def _decode_file(encoded: str, image_shape: ImageShape, max_pixels: int) -> np.ndarray:
    height, width, channels = image_shape
    rule = ImageRule((height, width), channels, max_pixels)
    try:
        return decode_pixels(base64.b64decode(encoded, validate=True), rule)
    except ValueError as error:
        raise InputError(f'expected Base64 in "b64". Received what is not: {error}.') from error
    except UnreadableImageError as error:
        raise InputError(
            f'expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM file in "b64". Received: {error}.'
        ) from error


def _check_pixels(nested: list[Any], image_shape: ImageShape) -> np.ndarray:
    expected = f"expected pixels {_lists(image_shape)}, whole numbers in [0, 255]"
    try:
        pixels = np.array(nested)
    except ValueError as error:
        raise InputError(f"{expected}. Received: lists of different lengths, or nested too deep.") from error
    if image_shape[2] == 1 and pixels.shape == image_shape[:2]:
        pixels = pixels[..., None]
    if pixels.shape != image_shape:
        raise InputError(f"{expected}. Received: {_lists(pixels.shape)}.")
    if pixels.dtype.kind not in "iuf":
        raise InputError(f"{expected}. Received: something else among them.")
    # Whole numbers may come as 12.0: protocol buffers know no others.
    odd = pixels[(pixels < 0) | (pixels > 255) | (pixels != np.trunc(pixels))]
    if odd.size:
        raise InputError(f"{expected}. Received: {odd.flat[0]}. The model scales pixels itself.")
    return pixels.astype(np.uint8)


def _lists(shape: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in shape)


def _describe(value: Any) -> str:
    """A value without its content, which has no place in a log."""
    if isinstance(value, dict):
        return f"an object with {', '.join(repr(key[:40]) for key in list(value)[:5]) or 'nothing in it'}"
    return _KINDS.get(type(value), "a number")

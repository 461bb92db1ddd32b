"""Classes for images, on CPU, from an export folder: no TensorFlow, no Keras, no training code."""

import dataclasses
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components import storage
from components.artifacts import EXPORT_FILE, FLOAT_TFLITE_FILE, INT8_TFLITE_FILE
from components.errors import InputError
from components.export_model.verification import lite_predictor
from components.images import ImageRule, UnreadableImageError, decode_pixels

_BATCH_SIZE = 64
_ARRAY_SUFFIXES = (".npy", ".npz")


@dataclasses.dataclass(frozen=True)
class ImagePrediction:
    """One image's name and its likeliest classes with their probabilities, best first."""

    name: str
    classes: tuple[tuple[str, float], ...]


def predict_inputs(
    export_dir: Path, inputs: Sequence[str], top: int = 3, use_int8: bool = False
) -> Iterator[ImagePrediction]:
    """Classify images, however many.

    Args:
        export_dir: What export_model wrote.
        inputs: Image files, folders of them, or .npy/.npz files of uint8[N, height, width(, channels)] arrays.
            Images of another size are resized.
        top: Classes to name.
        use_int8: Use the int8 model.

    Raises:
        InputError: If the export or an input cannot be read, or an array is of the wrong shape or type.
    """
    if top < 1:
        raise InputError(f"--top must be at least 1. Received: {top}.")
    path = export_dir / EXPORT_FILE
    if not path.is_file():
        raise InputError(
            f"Cannot predict with {export_dir}: there is no {EXPORT_FILE} in it. Expected the export folder of a run."
        )
    try:
        facts = json.loads(path.read_bytes())
        shape, class_names = tuple(facts["input"]["shape"][1:]), facts["class_names"]
        model = lite_predictor(export_dir / (INT8_TFLITE_FILE if use_int8 else FLOAT_TFLITE_FILE))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"Cannot predict with {export_dir}: it is damaged ({error!r}). Export the model again."
        ) from error
    for name, images in _read_inputs(inputs, shape):
        answers = np.concatenate([model(images[i : i + _BATCH_SIZE]) for i in range(0, len(images), _BATCH_SIZE)])
        for position, probabilities in enumerate(answers):
            best = np.argsort(-probabilities, kind="stable")[:top]
            yield ImagePrediction(
                name if len(images) == 1 else f"{name}[{position}]",
                tuple((class_names[i], float(probabilities[i])) for i in best),
            )


def _read_inputs(inputs: Sequence[str], shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    for given in inputs:
        if not storage.is_remote(given) and Path(given).is_dir():
            for file in storage.list_files(given):
                yield f"{given}/{file.name}", _read_image(f"{given}/{file.name}", shape)
        elif given.endswith(_ARRAY_SUFFIXES):
            for key, array in _read_arrays(given).items():
                yield f"{given}{key}", _check_array(f"{given}{key}", array, shape)
        else:
            yield given, _read_image(given, shape)


def _read_image(path: str, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return decode_pixels(storage.read_bytes(path), ImageRule((shape[0], shape[1]), shape[2]))[None]
    except UnreadableImageError as error:
        raise InputError(
            f"Cannot read {path}: {error}. Expected an image file, a folder of them, or .npy/.npz."
        ) from error


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        arrays = {f":{name}": loaded[name] for name in loaded.files} if hasattr(loaded, "files") else {"": loaded}
        if not arrays:
            raise ValueError("it is empty")
        return arrays
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"Cannot read {path}: {error}. Expected an array file without pickled objects.") from error


def _check_array(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if shape[2] == 1 and array.shape[-2:] == shape[:2]:
        array = array[..., None]
    if array.ndim == 3:
        array = array[None]
    if array.dtype != np.uint8 or array.shape[1:] != shape or not len(array):
        raise InputError(
            f"Cannot use {name}: expected uint8[N, {', '.join(map(str, shape))}] in [0, 255], received "
            f"{array.dtype}{list(array.shape)}."
        )
    return array

"""Classes, labels or numbers for images, on CPU, from an export folder: no TensorFlow, no Keras, no training code."""

import dataclasses
import functools
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components import storage
from components.artifacts import EXPORT_FILE, FLOAT_TFLITE_FILE, INT8_TFLITE_FILE
from components.errors import InputError
from components.images import ImageRule, UnreadableImageError, decode_pixels
from components.interface import CLASSIFICATION, MULTI_LABEL, TASKS, THRESHOLD, ImageInput, TextInput, read_input

_BATCH_SIZE = 64
_ARRAY_SUFFIXES = (".npy", ".npz")

Predict = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A model that answers on CPU.

    Attributes:
        name: Its name in the registry, or where it was imported from.
        class_names: Class names, in the order of its outputs; of a regression, the names of the targets.
        input: What it takes.
        predict: Answers to images: uint8[N, height, width, channels] → float32[N, outputs], any N from 1: probabilities
            of classes, or numbers in the targets' units. An image's answer does not depend on its company. One thread
            at a time may call it.
        task: What it was asked; a key of `interface.TASKS`.
    """

    name: str
    class_names: tuple[str, ...]
    input: ImageInput | TextInput
    predict: Predict
    task: str = CLASSIFICATION

    def answer(self, output: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """What float32[outputs] says of one image.

        The `top` likeliest classes (all by default), or all labels above a probability of 0.5, best first, each with
        its probability; or the numbers with their names.
        """
        if self.task == CLASSIFICATION:
            return self.rank(output, top)
        if self.task == MULTI_LABEL:
            return tuple((name, probability) for name, probability in self.rank(output) if probability > THRESHOLD)
        return tuple(zip(self.class_names, output.astype(float).tolist(), strict=True))

    def rank(self, probabilities: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """The `top` likeliest classes (all by default) of one image, best first, from its float32[classes]."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((self.class_names[i], float(probabilities[i])) for i in best)


def load_model(export_dir: Path, use_int8: bool = False, num_threads: int = 0) -> ExportedModel:
    """Load a model from an export folder and try it on a blank image.

    Args:
        export_dir: What export_model wrote.
        use_int8: Take the int8 model.
        num_threads: Threads for one call of `predict`; 0 is one per core.

    Raises:
        InputError: If it is no export folder, or damaged.
    """
    path = export_dir / EXPORT_FILE
    if not path.is_file():
        raise InputError(
            f"Cannot predict with {export_dir}: there is no {EXPORT_FILE} in it. Expected the export folder of a run."
        )
    try:
        facts = json.loads(path.read_bytes())
        if facts["task"] not in TASKS:
            raise KeyError(facts["task"])
        file = export_dir / (INT8_TFLITE_FILE if use_int8 else FLOAT_TFLITE_FILE)
        scale, offset = facts["output"].get("scale", 1.0), facts["output"].get("offset", 0.0)
        model = ExportedModel(
            facts["model"],
            tuple(facts["class_names"]),
            read_input(facts["input"]),
            _lite_predictor(file, num_threads, np.float32(scale), np.float32(offset)),
            facts["task"],
        )
        answer = model.predict(np.zeros((1, *model.input.shape), model.input.dtype))
        if answer.shape != (1, len(model.class_names)):
            raise ValueError(f"{len(model.class_names)} names for outputs of shape {answer.shape}")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # LiteRT's own are RuntimeErrors.
        raise InputError(
            f"Cannot predict with {export_dir}: it is damaged ({error!r}). Export the model again."
        ) from error
    return model


def _lite_predictor(path: Path, num_threads: int, factor: Any, addend: Any) -> Predict:
    """A LiteRT file as a function, its answers multiplied by `factor` and moved by `addend`.

    export_model/verification.py has its own: a judge shares no code with the judged.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=num_threads or os.cpu_count())
    given, answer = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero_point = given["quantization"]
    size = 0

    def predict(images: np.ndarray) -> np.ndarray:
        nonlocal size
        if len(images) != size:  # Costs next to nothing: 5 µs for the digits' model, 0.1 ms for one of 1.7 M weights.
            interpreter.resize_tensor_input(given["index"], images.shape)
            interpreter.allocate_tensors()
            size = len(images)
        # An int8 model takes uint8 on the scale that calibration found, as a rule 1 with zero at 0.
        if given["dtype"] == np.uint8 and (scale, zero_point) != (1.0, 0):
            images = np.clip(np.round(images / scale) + zero_point, 0, 255)
        interpreter.set_tensor(given["index"], images.astype(given["dtype"]))
        interpreter.invoke()
        return interpreter.get_tensor(answer["index"]) * factor + addend

    return predict


@dataclasses.dataclass(frozen=True)
class ImagePrediction:
    """One image's name and what is said of it; see `ExportedModel.answer`."""

    name: str
    classes: tuple[tuple[str, float], ...]
    task: str = CLASSIFICATION


def predict_inputs(
    export_dir: Path, inputs: Sequence[str], top: int = 3, use_int8: bool = False
) -> Iterator[ImagePrediction]:
    """Answer images, however many.

    Args:
        export_dir: What export_model wrote.
        inputs: Image files, folders of them, or .npy/.npz files of uint8[N, height, width(, channels)] arrays.
            Images of another size are resized.
        top: Classes to name; labels and numbers are named all.
        use_int8: Use the int8 model.

    Raises:
        InputError: If the export or an input cannot be read, or an array is of the wrong shape or type.
    """
    if top < 1:
        raise InputError(f"--top must be at least 1. Received: {top}.")
    model = load_model(export_dir, use_int8)
    for name, images in _read_inputs(model.input, inputs):
        answers = np.concatenate(
            [model.predict(images[i : i + _BATCH_SIZE]) for i in range(0, len(images), _BATCH_SIZE)]
        )
        for position, output in enumerate(answers):
            place = name if len(images) == 1 else f"{name}[{position}]"
            yield ImagePrediction(place, model.answer(output, top), model.task)


@functools.singledispatch
def _read_inputs(wanted: Any, inputs: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Names, and batches of what the model takes."""
    raise TypeError(f"No reader for inputs of {type(wanted)}.")


@_read_inputs.register
def _(wanted: ImageInput, inputs: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    shape = wanted.image_shape
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

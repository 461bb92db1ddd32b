"""Loads an exported model, in any of its formats, as one prediction function."""

import contextlib
import dataclasses
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import EXPORT_FILE, FLOAT_TFLITE_FILE, INT8_TFLITE_FILE, SAVED_MODEL_DIR
from tpu_components.core.examples.generation import Alphabet, Step
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    AnyInput,
    CorpusInput,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.text import Tokenizer, load_vocabulary
from tpu_components.core.registry.versions import check_folder
from tpu_components.core.results.export_info import ExportInfo

BATCH_SIZE = 64
FLOAT, _SAVED_MODEL = "float", "saved_model"

Predict = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A loaded model that predicts on CPU.

    Attributes:
        name: Name of the model in the registry, or the file it was imported from.
        class_names: Class names in the order of the outputs; of a regression, names of the targets.
        input: Input of the model.
        predict: Prediction function, uint8[N, height, width, channels] → float32[N, outputs], any N from 1: class
            probabilities, or numbers in the targets' units. A prediction does not depend on the rest of its batch. Not
            thread-safe. Of a language model: int32[N, num_tokens] ids → probabilities of the character after the last
            non-zero id.
        reader: Converts a user's input to an input of the model.
        task: Task of the model; a key of `interface.TASKS`.
        format: Loaded format: `float`, `int8` or `saved_model`.
        step: Function of a language model that processes one more character of each text.
        state_size: Size of the language model's state.
        columns: `ExportInfo.columns`.
    """

    name: str
    class_names: tuple[str, ...]
    input: AnyInput
    predict: Predict
    reader: "ImageInput | Tokenizer | PromptReader"
    task: str = CLASSIFICATION
    format: str = FLOAT
    step: Step | None = None
    state_size: int = 0
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def answer(self, output: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """Interpret the output of one example, float32[outputs], by the model's task.

        Returns pairs: the `top` most probable classes or characters (default: all), or all labels above 0.5, with
        probabilities in descending order; of a regression, the names and values of the targets.
        """
        if self.task == MULTI_LABEL:
            return tuple((name, probability) for name, probability in self.rank(output) if probability > THRESHOLD)
        if self.task == REGRESSION:
            return tuple(zip(self.class_names, output.astype(float).tolist(), strict=True))
        return self.rank(output, top)

    def summarize(self, output: np.ndarray) -> dict[str, Any]:
        """Return the answer to one example by name, for JSON: `class` and `confidence`, `labels` or `values`."""
        answer = self.answer(output)
        if self.task == REGRESSION:
            return {"values": dict(answer)}
        if self.task == MULTI_LABEL:
            return {"labels": dict(answer)}
        name, confidence = answer[0]
        return {"class": name, "confidence": confidence}

    def rank(self, probabilities: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """Return the `top` most probable classes (default: all) of float32[classes], with probabilities, best first."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((self.class_names[i], float(probabilities[i])) for i in best)


class PromptReader:
    """Converts prompts to the token ids of a language model."""

    def __init__(self, inputs: CorpusInput, class_names: Sequence[str]) -> None:
        self.shape, self.dtype, self.noun = inputs.shape, inputs.dtype, "text"
        self._alphabet = Alphabet(class_names)

    def read(self, text: str) -> np.ndarray:
        """Return int32[num_tokens]: ids of the last characters, padded with 0 at the end.

        Raises:
            InputError: If the text is empty.
        """
        if not text:
            raise InputError("expected a text of at least one character. Received: an empty one.")
        ids = np.zeros(self.shape, self.dtype)
        known = self._alphabet.encode(text[-self.shape[0] :])
        ids[: len(known)] = known
        return ids


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Suppress LiteRT's INFO lines on stderr; LiteRT has no setting for them and does not use Python's logging."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            kept = [line for line in said if not line.startswith(b"INFO:")]
            os.write(2, b"".join(kept))


@_without_chatter()
def load_model(export_dir: Path, use_int8: bool = False, num_threads: int = 0) -> ExportedModel:
    """Load a model from an export folder and run it once on a blank input.

    Without a float LiteRT file, the SavedModel is loaded, which needs TensorFlow.

    Args:
        export_dir: Folder that export_model wrote.
        use_int8: Load the int8 model.
        num_threads: Threads for one call of `predict`; 0 is one per core.

    Raises:
        InputError: If the folder is no export, is damaged or part of a damaged version, or lacks the format.
    """
    check_folder(export_dir)
    path = export_dir / EXPORT_FILE
    if not path.is_file():
        raise InputError(
            f"Cannot predict with {export_dir}: there is no {EXPORT_FILE} in it. Expected the export folder of a run."
        )
    info = ExportInfo.load(export_dir)
    try:
        form, file = _choose_format(export_dir, info.left_out, use_int8)
        name, task, inputs, class_names = info.model, info.task, info.input, info.class_names
        scale = np.asarray(info.output.scale or 1.0, np.float32)
        offset = np.asarray(info.output.offset or 0.0, np.float32)
        if isinstance(inputs, CorpusInput):
            load_step = _saved_step if form == _SAVED_MODEL else _lite_step
            step, state_size = load_step(file, num_threads, len(class_names))
            predict = _last_answers(step, state_size, len(class_names))
            prompts = PromptReader(inputs, class_names)
            model = ExportedModel(name, class_names, inputs, predict, prompts, task, form, step, state_size)
        else:
            reader = Tokenizer(inputs, load_vocabulary(export_dir, inputs)) if isinstance(inputs, TextInput) else inputs
            if form == _SAVED_MODEL:
                predict = _saved_predictor(file, inputs, info.output.name)
            else:
                predict = _lite_predictor(file, num_threads, scale, offset)
            model = ExportedModel(name, class_names, inputs, predict, reader, task, form, columns=info.columns)
        answer = model.predict(np.zeros((1, *model.input.shape), model.input.dtype))
        if answer.shape != (1, len(model.class_names)):
            raise ValueError(f"{len(model.class_names)} names for outputs of shape {answer.shape}")
    except InputError:  # InputError is a ValueError.
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # LiteRT raises RuntimeError.
        raise InputError(
            f"Cannot predict with {export_dir}: it is damaged ({error!r}). Export the model again."
        ) from error
    return model


def _choose_format(export_dir: Path, left_out: Mapping[str, str], use_int8: bool) -> tuple[str, Path]:
    """Return the format to load, and its file or folder."""
    if use_int8 and "int8" in left_out:
        raise InputError(
            f"Cannot predict with int8 of {export_dir}: the export left it out, since {left_out['int8']}. Use "
            "the float model."
        )
    if use_int8 or "float" not in left_out:
        return ("int8", export_dir / INT8_TFLITE_FILE) if use_int8 else (FLOAT, export_dir / FLOAT_TFLITE_FILE)
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            f"Cannot predict with {export_dir} here: it holds a SavedModel alone, and TensorFlow, which that needs, is "
            f"not installed. The LiteRT file was left out, since {left_out['float']}."
        )
    return _SAVED_MODEL, export_dir / SAVED_MODEL_DIR


def _signature(path: Path, name: str) -> tuple[Callable[..., dict[str, np.ndarray]], Any]:
    """Load a signature of a SavedModel; returns it as a function of arrays, and as TensorFlow's object."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[name]

    def call(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        _ = loaded  # TensorFlow frees the variables with the object.
        answer = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in answer.items()}

    return call, signature


def _saved_predictor(path: Path, kind: ImageInput | TextInput, answer: str) -> Predict:
    """Return a SavedModel as a function of pixels or ids; a regression's outputs are in the targets' units."""
    name, argument = ("tokens", "tokens") if isinstance(kind, TextInput) else ("serving_default", "image")
    call, _ = _signature(path, name)
    return lambda inputs: call(**{argument: inputs})[answer]


def _saved_step(path: Path, num_threads: int, num_classes: int) -> tuple[Step, int]:
    """Load the step function of a language model from its SavedModel; returns it and the size of the state."""
    call, signature = _signature(path, "step")

    def step(ids: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answer = call(tokens=np.asarray(ids, np.int32), state=np.asarray(state, np.float32))
        return answer["probabilities"], answer["state"]

    return step, int(signature.structured_input_signature[1]["state"].shape[1])


def _interpreter(path: Path, num_threads: int) -> Any:
    """Load a LiteRT file; 0 threads are one per core."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_path=str(path), num_threads=num_threads or os.cpu_count())


def _lite_predictor(path: Path, num_threads: int, factor: Any, addend: Any) -> Predict:
    """Return a LiteRT file as a function, whose outputs are `factor * output + addend`.

    export_model/verification.py has a copy on purpose: a verification should not share code with what it verifies.
    """
    interpreter = _interpreter(path, num_threads)
    details, answer = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero_point = details["quantization"]
    size = 0

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal size
        if len(inputs) != size:  # Cheap: 5 µs for the digits' model, 0.1 ms for 1.7 M weights.
            interpreter.resize_tensor_input(details["index"], inputs.shape)
            interpreter.allocate_tensors()
            size = len(inputs)
        # An int8 model takes uint8 with the scale and zero point of its calibration, usually 1 and 0.
        if details["dtype"] == np.uint8 and (scale, zero_point) != (1.0, 0):
            inputs = np.clip(np.round(inputs / scale) + zero_point, 0, 255)
        interpreter.set_tensor(details["index"], inputs.astype(details["dtype"]))
        interpreter.invoke()
        return interpreter.get_tensor(answer["index"])

    holds_one = details["shape_signature"][0] == 1
    answers: Predict = _one_at_a_time(path, num_threads or os.cpu_count() or 1) if holds_one else predict
    return lambda inputs: answers(inputs) * factor + addend


def _one_at_a_time(path: Path, num_threads: int) -> Predict:
    """Return a predictor for a model with loops, whose batch size is fixed at 1; uses one interpreter per thread."""
    own = threading.local()

    def start() -> None:
        own.interpreter = _interpreter(path, 1)
        own.interpreter.allocate_tensors()

    def predict_one(row: np.ndarray) -> np.ndarray:
        details = own.interpreter.get_input_details()[0]
        own.interpreter.set_tensor(details["index"], row[None].astype(details["dtype"]))
        own.interpreter.invoke()
        return own.interpreter.get_tensor(own.interpreter.get_output_details()[0]["index"])

    pool = ThreadPoolExecutor(num_threads, initializer=start)
    return lambda inputs: np.concatenate(list(pool.map(predict_one, inputs)))


def _lite_step(path: Path, num_threads: int, num_classes: int) -> tuple[Step, int]:
    """Load the step function of a language model from its LiteRT file; returns it and the size of the state."""
    interpreter = _interpreter(path, num_threads)
    inputs = {details["dtype"]: details for details in interpreter.get_input_details()}
    tokens, states, answer = inputs[np.int32], inputs[np.float32], interpreter.get_output_details()[0]
    size = 0

    def step(ids: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal size
        if len(ids) != size:
            interpreter.resize_tensor_input(tokens["index"], ids.shape)
            interpreter.resize_tensor_input(states["index"], state.shape)
            interpreter.allocate_tensors()
            size = len(ids)
        interpreter.set_tensor(tokens["index"], np.ascontiguousarray(ids, np.int32))
        interpreter.set_tensor(states["index"], state)
        interpreter.invoke()
        both = interpreter.get_tensor(answer["index"])
        return both[:, :num_classes], both[:, num_classes:]

    return step, int(states["shape_signature"][1])


def _last_answers(step: Step, state_size: int, num_classes: int) -> Predict:
    """Return a predictor of the next character: int32[N, length] ids, padded with 0 → float32[N, classes]."""

    def predict(texts: np.ndarray) -> np.ndarray:
        known = texts != PADDING
        last = np.where(known.any(1), texts.shape[1] - 1 - known[:, ::-1].argmax(1), 0)
        answers = np.empty((len(texts), num_classes), np.float32)
        state = np.zeros((len(texts), state_size), np.float32)
        for position in range(int(last.max()) + 1):
            probabilities, state = step(texts[:, position], state)
            answers[last == position] = probabilities[last == position]
        return answers

    return predict

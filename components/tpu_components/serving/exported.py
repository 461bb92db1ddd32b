"""Loads an exported model, in any of its formats, as one prediction function."""

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.base.terminal import filter_stderr
from tpu_components.core.examples.artifacts import EXPORT_FILE, FLOAT_TFLITE_FILE, INT8_TFLITE_FILE, SAVED_MODEL_DIR
from tpu_components.core.examples.generation import Alphabet, StepFunction
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
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.serving import lite
from tpu_components.serving.lite import Predict

BATCH_SIZE = 64
FLOAT, _SAVED_MODEL = "float", "saved_model"


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A loaded model that predicts on a CPU.

    Attributes:
        name: Name of the model in the configuration, for example `digits_cnn`, or the name under which it was imported.
        class_names: Class names in the order of the outputs. For a regression, names of the targets.
        input: Kind and shape of the model's inputs.
        predict: Prediction function for a batch of N >= 1 inputs. It returns float32[N, outputs]: class probabilities,
            or numbers in the targets' units. Images are uint8[N, height, width, channels]. Texts are int32[N,
            num_tokens] IDs. A language model returns the probabilities of the character after the last non-zero ID. A
            prediction does not depend on the rest of its batch. The function is not thread-safe.
        reader: Object that converts a user's input to an input of the model.
        task: Task of the model, a key of `interface.TASKS`.
        format: Loaded format: `float`, `int8` or `saved_model`.
        step: Function of a language model that processes one more character of each text, or None for other models.
        state_size: Number of float32 values in the state that a language model keeps for each text, or 0 for other
            models.
        columns: Column names in the data set's source, by this project's column names; see `Manifest.columns`.
    """

    name: str
    class_names: tuple[str, ...]
    input: AnyInput
    predict: Predict
    reader: "ImageInput | Tokenizer | PromptReader"
    task: str = CLASSIFICATION
    format: str = FLOAT
    step: StepFunction | None = None
    state_size: int = 0
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def decode(self, output: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """Return the prediction for one example as pairs of a name and a number.

        For a multi-label task, the pairs are all labels with a probability above 0.5, and their probabilities. For a
        regression, they are the names and values of the targets. For other tasks, they are the most probable classes or
        characters, and their probabilities. Probabilities are in descending order.

        Args:
            output: Output of the model for the example, float32[outputs].
            top: Number of classes or characters to return (default: all).
        """
        if self.task == MULTI_LABEL:
            return tuple((name, probability) for name, probability in self.rank(output) if probability > THRESHOLD)
        if self.task == REGRESSION:
            return tuple(zip(self.class_names, output.astype(float).tolist(), strict=True))
        return self.rank(output, top)

    def describe(self, output: np.ndarray, probabilities: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return the prediction for one example as a JSON object, whose keys depend on the task.

        The key is `labels` for a multi-label task, and `values` for a regression. Other tasks have the keys `class` and
        `confidence`.

        Args:
            output: Output of the model for the example, float32[outputs].
            probabilities: Probabilities by name, to return under the additional key `probabilities`. If they are set,
                `labels` is a list of names. If None, `labels` maps the names to their probabilities. Ignored for a
                regression.
        """
        prediction = dict(self.decode(output, 1))
        if self.task == REGRESSION:
            return {"values": prediction}
        further = {} if probabilities is None else {"probabilities": probabilities}
        if self.task == MULTI_LABEL:
            return {"labels": [*prediction] if further else prediction, **further}
        (name,) = prediction
        return {"class": name, "confidence": (probabilities or prediction)[name], **further}

    def rank(self, probabilities: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """Return the `top` most probable classes (default: all) with their probabilities, the most probable first."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((self.class_names[i], float(probabilities[i])) for i in best)


class PromptReader:
    """Converts prompts to the token IDs of a language model."""

    def __init__(self, inputs: CorpusInput, class_names: Sequence[str]) -> None:
        self.shape = inputs.shape
        self.dtype = inputs.dtype
        self.noun = "text"
        self._alphabet = Alphabet(class_names)

    def read(self, text: str) -> np.ndarray:
        """Return the IDs of the last `num_tokens` characters of a text, int32[num_tokens], padded with 0 at the end.

        Raises:
            InputError: If the text is empty.
        """
        if not text:
            raise InputError("expected a text with at least one character. Received: an empty text.")
        ids = np.zeros(self.shape, self.dtype)
        known = self._alphabet.encode(text[-self.shape[0] :])
        ids[: len(known)] = known
        return ids


# LiteRT has no setting for its INFO lines, and does not use Python's logging.
@filter_stderr(lambda line: not line.startswith(b"INFO:"))
def load_model(export_dir: Path, use_int8: bool = False, num_threads: int = 0) -> ExportedModel:
    """Load a model from an export folder and run it once on a blank input.

    If the export has no float LiteRT file, the SavedModel is loaded, which needs TensorFlow. The checksums of a
    registered version are not verified, because `fetch_folder` has verified them.

    Args:
        export_dir: Folder that export_model wrote.
        use_int8: Load the int8 model instead of the float model.
        num_threads: Threads for one call of `predict`. 0 means one per available CPU.

    Raises:
        InputError: If the folder is not an export, is damaged, or lacks the requested format.
    """
    path = export_dir / EXPORT_FILE
    if not path.is_file():
        raise InputError(
            f"Cannot predict with {export_dir}: it does not contain {EXPORT_FILE}. Expected the export folder of a "
            "run. Check the path."
        )
    info = ExportInfo.load(export_dir)
    num_threads = num_threads or available_cpus()
    try:
        form, file = _choose_format(export_dir, info.left_out, use_int8)
        name, task, inputs, class_names = info.model, info.task, info.input, info.class_names
        if isinstance(inputs, CorpusInput):
            load_step = _saved_step if form == _SAVED_MODEL else lite.load_step
            step, state_size = load_step(file, num_threads, len(class_names))
            predict = _last_outputs(step, state_size, len(class_names))
            prompts = PromptReader(inputs, class_names)
            model = ExportedModel(name, class_names, inputs, predict, prompts, task, form, step, state_size)
        else:
            reader = Tokenizer(inputs, load_vocabulary(export_dir, inputs)) if isinstance(inputs, TextInput) else inputs
            if form == _SAVED_MODEL:
                predict = _saved_predictor(file, inputs, info.output.name)
            else:
                predict = lite.load_predictor(file, num_threads, info.output.scale or 1.0, info.output.offset or 0.0)
            model = ExportedModel(name, class_names, inputs, predict, reader, task, form, columns=info.columns)
        outputs = model.predict(np.zeros((1, *model.input.shape), model.input.dtype))
        if outputs.shape != (1, len(model.class_names)):
            raise ValueError(
                f"expected {len(model.class_names)} outputs, one for each class or target, received {outputs.shape[1:]}"
            )
    except InputError:  # InputError is a ValueError.
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # LiteRT raises RuntimeError.
        raise InputError(
            f"Cannot predict with {export_dir}: it is damaged ({error!r}). Export the model again."
        ) from error
    return model


def _choose_format(export_dir: Path, left_out: Mapping[str, str], use_int8: bool) -> tuple[str, Path]:
    """Return the format to load, and its file or folder. `left_out` says why formats were not exported."""
    if use_int8 and "int8" in left_out:
        raise InputError(
            f"Cannot predict with the int8 model of {export_dir}: it was not exported, because {left_out['int8']}. Use "
            "the float model."
        )
    if use_int8 or "float" not in left_out:
        return ("int8", export_dir / INT8_TFLITE_FILE) if use_int8 else (FLOAT, export_dir / FLOAT_TFLITE_FILE)
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            f"Cannot predict with {export_dir} on this machine: it contains only a SavedModel, which needs "
            "TensorFlow, and TensorFlow is not installed. The LiteRT file was not exported, because "
            f"{left_out['float']}. Install TensorFlow."
        )
    return _SAVED_MODEL, export_dir / SAVED_MODEL_DIR


def _signature(path: Path, name: str) -> tuple[Callable[..., dict[str, np.ndarray]], Any]:
    """Load a signature of a SavedModel. Return it as a function of arrays, and as TensorFlow's object."""
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[name]

    def call(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        _ = loaded  # Kept, because TensorFlow frees the variables together with this object.
        outputs = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    return call, signature


def _saved_predictor(path: Path, kind: ImageInput | TextInput, output: str) -> Predict:
    """Return a SavedModel as a function of pixels or IDs. The outputs of a regression are in the targets' units."""
    name, argument = ("tokens", "tokens") if isinstance(kind, TextInput) else ("serving_default", "image")
    call, _ = _signature(path, name)
    return lambda inputs: call(**{argument: inputs})[output]


def _saved_step(path: Path, num_threads: int, num_classes: int) -> tuple[StepFunction, int]:
    """Load a language model's step function from its SavedModel.

    Return the function and the number of floats in a state.

    The parameters are those of `lite.load_step`. Only `path` is used.
    """
    call, signature = _signature(path, "step")

    def step(ids: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = call(tokens=np.asarray(ids, np.int32), state=np.asarray(state, np.float32))
        return outputs["probabilities"], outputs["state"]

    return step, int(signature.structured_input_signature[1]["state"].shape[1])


def _last_outputs(step: StepFunction, state_size: int, num_classes: int) -> Predict:
    """Return a predictor of the next character: int32[N, length] IDs, padded with 0 → float32[N, classes]."""

    def predict(texts: np.ndarray) -> np.ndarray:
        known = texts != PADDING
        last = np.where(known.any(1), texts.shape[1] - 1 - known[:, ::-1].argmax(1), 0)
        outputs = np.empty((len(texts), num_classes), np.float32)
        state = np.zeros((len(texts), state_size), np.float32)
        for position in range(int(last.max()) + 1):
            probabilities, state = step(texts[:, position], state)
            outputs[last == position] = probabilities[last == position]
        return outputs

    return predict

"""Classes, labels or numbers for images and texts, and what a text goes on with, on CPU from an export folder.

No TensorFlow, no Keras, no training code.
"""

import contextlib
import csv
import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import math
import os
import queue
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from components import storage
from components.artifacts import EXPORT_FILE, FLOAT_TFLITE_FILE, INT8_TFLITE_FILE, SAVED_MODEL_DIR
from components.errors import InputError
from components.generation import Alphabet, Step, generate
from components.images import ImageRule, UnreadableImageError, decode_pixels
from components.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    TASKS,
    THRESHOLD,
    AnyInput,
    CorpusInput,
    ImageInput,
    TextInput,
    read_input,
)
from components.registry import check_folder
from components.table import printable
from components.text import MAX_CSV_FIELD_CHARACTERS, Tokenizer, load_vocabulary

_BATCH_SIZE = 64
_T = TypeVar("_T")
_SAVED_MODEL = "saved_model"
_ARRAY_SUFFIXES = (".npy", ".npz")
_TEXT_SUFFIXES = (".txt", ".csv")
_STDIN = "-"

Predict = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A model that answers on CPU.

    Attributes:
        name: Its name in the registry, or where it was imported from.
        class_names: Class names, in the order of its outputs; of a regression, the names of the targets.
        input: What it takes.
        predict: Answers to what it takes, as uint8[N, height, width, channels] → float32[N, outputs], any N from 1:
            probabilities of classes, or numbers in the targets' units. An answer does not depend on its company. One
            thread at a time may call it. Of a language model: int32[N, num_tokens] ids → probabilities of the character
            after the last one that is not 0.
        reader: What says how an input as a user has it becomes one that the model takes.
        task: What it was asked; a key of `interface.TASKS`.
        step: Of a language model: how it takes one character of each text.
        state_size: Of its state.
    """

    name: str
    class_names: tuple[str, ...]
    input: AnyInput
    predict: Predict
    reader: "ImageInput | Tokenizer | PromptReader"
    task: str = CLASSIFICATION
    step: Step | None = None
    state_size: int = 0

    def answer(self, output: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """What float32[outputs] says of one example.

        The `top` likeliest classes or characters (all by default), or all labels above a probability of 0.5, best
        first, each with its probability; or the numbers with their names.
        """
        if self.task == MULTI_LABEL:
            return tuple((name, probability) for name, probability in self.rank(output) if probability > THRESHOLD)
        if self.task == REGRESSION:
            return tuple(zip(self.class_names, output.astype(float).tolist(), strict=True))
        return self.rank(output, top)

    def rank(self, probabilities: np.ndarray, top: int | None = None) -> tuple[tuple[str, float], ...]:
        """The `top` likeliest classes (all by default) of one example, best first, from its float32[classes]."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((self.class_names[i], float(probabilities[i])) for i in best)


@dataclasses.dataclass(frozen=True)
class PromptReader:
    """Turns texts into what a language model takes."""

    given: CorpusInput
    class_names: tuple[str, ...]

    noun = "text"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one text."""
        return self.given.shape

    @property
    def dtype(self) -> str:
        """Of its ids."""
        return self.given.dtype

    def read(self, text: str) -> np.ndarray:
        """int32[num_tokens]: the last characters, and 0 behind them.

        Raises:
            InputError: If there are none.
        """
        if not text:
            raise InputError("expected a text of at least one character. Received: an empty one.")
        ids = np.zeros(self.shape, self.dtype)
        known = Alphabet(self.class_names).encode(text[-self.shape[0] :])
        ids[: len(known)] = known
        return ids


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Keep back LiteRT's lines of severity INFO, which go to stderr past Python and past every setting of it."""
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


def load_model(export_dir: Path, use_int8: bool = False, num_threads: int = 0) -> ExportedModel:
    """Load a model from an export folder and try it on a blank input.

    Args:
        export_dir: What export_model wrote.
        use_int8: Take the int8 model.
        num_threads: Threads for one call of `predict`; 0 is one per core.

    Raises:
        InputError: If it is no export folder, damaged, part of a damaged version, or does not hold the format: without
            a float LiteRT file the SavedModel answers, which needs TensorFlow.
    """
    check_folder(export_dir)
    with _without_chatter():
        return _load_model(export_dir, use_int8, num_threads)


def _load_model(export_dir: Path, use_int8: bool, num_threads: int) -> ExportedModel:
    path = export_dir / EXPORT_FILE
    if not path.is_file():
        raise InputError(
            f"Cannot predict with {export_dir}: there is no {EXPORT_FILE} in it. Expected the export folder of a run."
        )
    try:
        facts = json.loads(path.read_bytes())
        if facts["task"] not in TASKS:
            raise KeyError(facts["task"])
        form, file = _choose_format(export_dir, facts.get("left_out", {}), use_int8)
        name, task, given = facts["model"], facts["task"], read_input(facts["input"])
        class_names = tuple(facts["class_names"])
        if tuple(facts["input"]["shape"][1:]) != given.shape:
            raise ValueError(f"a shape of {facts['input']['shape']} for {given}")
        scale, offset = facts["output"].get("scale", 1.0), facts["output"].get("offset", 0.0)
        if isinstance(given, CorpusInput):
            load_step = _saved_step if form == _SAVED_MODEL else _lite_step
            step, state_size = load_step(file, num_threads, len(class_names))
            predict = _last_answers(step, state_size, len(class_names))
            prompts = PromptReader(given, class_names)
            model = ExportedModel(name, class_names, given, predict, prompts, task, step, state_size)
        else:
            reader = Tokenizer(given, load_vocabulary(export_dir, given)) if isinstance(given, TextInput) else given
            if form == _SAVED_MODEL:
                predict = _saved_predictor(file, given, facts["output"]["name"])
            else:
                predict = _lite_predictor(file, num_threads, np.float32(scale), np.float32(offset))
            model = ExportedModel(name, class_names, given, predict, reader, task)
        answer = model.predict(np.zeros((1, *model.input.shape), model.input.dtype))
        if answer.shape != (1, len(model.class_names)):
            raise ValueError(f"{len(model.class_names)} names for outputs of shape {answer.shape}")
    except InputError:  # A ValueError, too.
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # LiteRT's own are RuntimeErrors.
        raise InputError(
            f"Cannot predict with {export_dir}: it is damaged ({error!r}). Export the model again."
        ) from error
    return model


def _choose_format(export_dir: Path, left_out: Mapping[str, str], use_int8: bool) -> tuple[str, Path]:
    """The format that answers, and its file or folder."""
    if use_int8 and "int8" in left_out:
        raise InputError(
            f"Cannot predict with int8 of {export_dir}: the export left it out, since {left_out['int8']}. Use "
            "the float model."
        )
    if use_int8 or "float" not in left_out:
        return ("int8", export_dir / INT8_TFLITE_FILE) if use_int8 else ("float", export_dir / FLOAT_TFLITE_FILE)
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            f"Cannot predict with {export_dir} here: it holds a SavedModel alone, and TensorFlow, which that needs, is "
            f"not installed. The LiteRT file was left out, since {left_out['float']}."
        )
    return _SAVED_MODEL, export_dir / SAVED_MODEL_DIR


def _signature(path: Path, name: str) -> tuple[Callable[..., dict[str, np.ndarray]], Any]:
    """A signature of a SavedModel as a function of arrays, and what TensorFlow tells of it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[name]

    def call(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        _ = loaded  # Its variables live as long as somebody holds it.
        answer = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in answer.items()}

    return call, signature


def _saved_predictor(path: Path, given: ImageInput | TextInput, answer: str) -> Predict:
    """A SavedModel as a function of pixels or ids; its answers are in the targets' own units."""
    name, argument = ("tokens", "tokens") if isinstance(given, TextInput) else ("serving_default", "image")
    call, _ = _signature(path, name)
    return lambda inputs: call(**{argument: inputs})[answer]


def _saved_step(path: Path, num_threads: int, num_classes: int) -> tuple[Step, int]:
    """One step of a language model from its SavedModel, and the size of its state."""
    call, signature = _signature(path, "step")

    def step(ids: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answer = call(tokens=np.asarray(ids, np.int32), state=np.asarray(state, np.float32))
        return answer["probabilities"], answer["state"]

    return step, int(signature.structured_input_signature[1]["state"].shape[1])


def _lite_predictor(path: Path, num_threads: int, factor: Any, addend: Any) -> Predict:
    """A LiteRT file as a function, its answers multiplied by `factor` and moved by `addend`.

    export_model/verification.py has its own: a judge shares no code with the judged.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=num_threads or os.cpu_count())
    given, answer = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero_point = given["quantization"]
    size = 0

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal size
        if len(inputs) != size:  # Costs next to nothing: 5 µs for the digits' model, 0.1 ms for one of 1.7 M weights.
            interpreter.resize_tensor_input(given["index"], inputs.shape)
            interpreter.allocate_tensors()
            size = len(inputs)
        # An int8 model takes uint8 on the scale that calibration found, as a rule 1 with zero at 0.
        if given["dtype"] == np.uint8 and (scale, zero_point) != (1.0, 0):
            inputs = np.clip(np.round(inputs / scale) + zero_point, 0, 255)
        interpreter.set_tensor(given["index"], inputs.astype(given["dtype"]))
        interpreter.invoke()
        return interpreter.get_tensor(answer["index"])

    holds_one = given["shape_signature"][0] == 1
    answers: Predict = _one_at_a_time(path, num_threads or os.cpu_count() or 1) if holds_one else predict
    return lambda inputs: answers(inputs) * factor + addend


def _one_at_a_time(path: Path, num_threads: int) -> Predict:
    """For a model with loops, whose batch is fixed at 1. Its steps are small: an interpreter per thread is faster."""
    from ai_edge_litert.interpreter import Interpreter

    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(num_threads):
        interpreter = Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
        free.put(interpreter)
    pool = ThreadPoolExecutor(num_threads)

    def predict_one(row: np.ndarray) -> np.ndarray:
        interpreter = free.get()
        try:
            given = interpreter.get_input_details()[0]
            interpreter.set_tensor(given["index"], row[None].astype(given["dtype"]))
            interpreter.invoke()
            return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        finally:
            free.put(interpreter)

    return lambda inputs: np.concatenate(list(pool.map(predict_one, inputs)))


def _lite_step(path: Path, num_threads: int, num_classes: int) -> tuple[Step, int]:
    """A LiteRT file of one step of a language model as a function, and the size of its state."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=num_threads or os.cpu_count())
    inputs = {given["dtype"]: given for given in interpreter.get_input_details()}
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
    """What comes after each text: int32[N, length] ids, 0 behind the last → float32[N, classes]."""

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


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A prompt, and what a language model writes after it."""

    prompt: str
    text: str


def is_language_model(export_dir: Path) -> bool:
    """Whether an export continues texts; False also for what is no export."""
    try:
        return json.loads((export_dir / EXPORT_FILE).read_bytes())["task"] == LANGUAGE_MODEL
    except (OSError, ValueError, KeyError, TypeError):
        return False


def continue_texts(
    export_dir: Path,
    prompts: Sequence[str],
    length: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    use_int8: bool = False,
) -> Iterator[Continuation]:
    """Let a language model write on.

    Args:
        export_dir: What export_model wrote.
        prompts: Texts to continue; a character that the training text has none of is read as unknown. `-` is stdin, a
            text a line, or JSON as the server takes it.
        length: Characters to add.
        temperature: 1 draws by the probabilities, less prefers the likely ones, 0 always takes the likeliest.
        seed: Equal ones give equal texts, on the same kind of machine.
        use_int8: Use the int8 model.

    Raises:
        InputError: If the export cannot be read, a prompt is empty, or a number is out of range.
    """
    if length < 1:
        raise InputError(f"--length must be at least 1. Received: {length}.")
    if not 0 <= temperature < math.inf:
        raise InputError(f"--temperature must not be negative, and finite. Received: {temperature}.")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must be at least 0 and below 2**32. Received: {seed}.")
    model = load_model(export_dir, use_int8)
    if model.step is None:
        raise InputError(f"Cannot continue texts with {export_dir}: it takes {model.input}.")
    alphabet = Alphabet(model.class_names)
    for prompt in itertools.chain.from_iterable(_piped_texts() if one == _STDIN else [one] for one in prompts):
        if not prompt:
            raise InputError("Cannot continue an empty prompt: expected at least one character.")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"Cannot continue {prompt!r}: {error}. Expected text in UTF-8.") from error
        ids = alphabet.encode(prompt)[None]
        added = generate(model.step, model.state_size, ids, length, [temperature], seed)
        yield Continuation(prompt, alphabet.decode(added[0].tolist()))


@dataclasses.dataclass(frozen=True)
class ExamplePrediction:
    """One input's name, or text, and what is said of it; see `ExportedModel.answer`."""

    name: str
    classes: tuple[tuple[str, float], ...]
    task: str = CLASSIFICATION


def predict_inputs(
    export_dir: Path,
    inputs: Sequence[str],
    top: int = 3,
    use_int8: bool = False,
    lines: bool = False,
    column: str = "text",
) -> Iterator[ExamplePrediction]:
    """Answer images or texts, however many.

    Args:
        export_dir: What export_model wrote.
        inputs: For a model of images: image files, folders of them, or .npy/.npz files of uint8[N, height, width(,
            channels)] arrays, whose labels (`y_test` beside `x_test`) are left out; images of another size are
            resized. For one of texts: files, folders of them, .csv files, .npy/.npz files of str[N], or texts
            themselves.
        top: Classes to name; labels and numbers are named all.
        use_int8: Use the int8 model.
        lines: A file holds a text a line.
        column: Of a .csv file.

    Raises:
        InputError: If the export or an input cannot be read, or an array is of the wrong shape or type; of files in
            folders in the end, once all others are answered.
    """
    if top < 1:
        raise InputError(f"--top must be at least 1. Received: {top}.")
    model = load_model(export_dir, use_int8)
    unread: list[str] = []
    for names, batch in _read_inputs(model.reader, inputs, lines, column, unread):
        for start in range(0, len(batch), _BATCH_SIZE):
            answers = model.predict(batch[start : start + _BATCH_SIZE])
            for name, output in zip(names[start : start + _BATCH_SIZE], answers, strict=True):
                yield ExamplePrediction(name, model.answer(output, top), model.task)
    if unread:
        raise InputError(
            f"{len(unread)} files cannot be read, the first one {unread[0]}; the lines above say why. All others were "
            "answered. Repair or remove these."
        )


_Named = Iterator[tuple[Sequence[str], np.ndarray]]


@functools.singledispatch
def _read_inputs(reader: Any, inputs: Sequence[str], lines: bool, column: str, unread: list[str]) -> _Named:
    """Names, and as many of what the model takes; files of folders that cannot be read are added to `unread`."""
    raise TypeError(f"No reader for inputs of {type(reader)}.")


def _of_folder(folder: str, read: Callable[[str], _T], unread: list[str]) -> Iterator[_T]:
    """What is read from each file of a folder; what cannot be read is told of on stderr."""
    for file in storage.list_files(folder):
        path = f"{folder}/{file.name}"
        try:
            content = read(path)
        except InputError as error:
            unread.append(path)
            print(printable(f"left out: {error}"), file=sys.stderr)
            continue
        yield content


@_read_inputs.register
def _(reader: ImageInput, inputs: Sequence[str], lines: bool, column: str, unread: list[str]) -> _Named:
    shape = reader.image_shape
    for given in inputs:
        if given == _STDIN:
            yield from _piped_images(reader)
        elif not storage.is_remote(given) and Path(given).is_dir():
            for path, image in _of_folder(given, lambda path: (path, _read_image(path, shape)), unread):
                yield [path], image
        elif given.lower().endswith(_ARRAY_SUFFIXES):
            for key, array in _read_arrays(given).items():
                images = _check_array(f"{given}{key}", array, shape)
                many = [f"{given}{key}[{i}]" for i in range(len(images))]
                yield many if len(many) > 1 else [f"{given}{key}"], images
        else:
            yield [given], _read_image(given, shape)


@_read_inputs.register
def _(reader: Tokenizer, inputs: Sequence[str], lines: bool, column: str, unread: list[str]) -> _Named:
    for given in inputs:
        if given == _STDIN:
            for text in _piped_texts():
                yield [text], reader.encode_all([text])
        elif not _names_a_file(given):
            yield [given], reader.encode_all([given])
        elif not storage.is_remote(given) and Path(given).is_dir():
            for texts in _of_folder(given, lambda path: _read_texts(path, lines, column), unread):
                yield list(texts), reader.encode_all(list(texts.values()))
        else:
            texts = _read_texts(given, lines, column)
            yield list(texts), reader.encode_all(list(texts.values()))


def _piped_images(reader: ImageInput) -> _Named:
    """The image that stdin is, or those that its lines describe in JSON, as the server takes them."""
    stdin: Any = sys.stdin.buffer  # A BufferedReader, whatever the annotations say.
    if stdin.peek(1).lstrip()[:1] not in (b"{", b"["):
        content = stdin.read()
        if not content:
            raise InputError(
                "Cannot read stdin: it is empty. Expected an image file, or a line of JSON for each image."
            )
        yield [_STDIN], _decode_image("stdin", content, reader.image_shape)
        return
    from components.serving.instances import parse_line  # It builds on this module.

    for number, line in enumerate(stdin, 1):
        if line.strip():
            try:
                yield [f"{_STDIN}:{number}"], parse_line(line, reader)
            except InputError as error:
                raise InputError(f"Cannot read line {number} of stdin: {error}") from error


def _piped_texts() -> Iterator[str]:
    """The texts that stdin has, a line each: as it stands, or as `{"text": "…"}`."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"Cannot read line {number} of stdin: {error}. Expected text in UTF-8.") from error
        yield _text_of(text)


def _text_of(line: str) -> str:
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            instance = json.loads(line)
            if isinstance(instance, dict) and instance.keys() == {"text"} and isinstance(instance["text"], str):
                return instance["text"]
    return line


def _names_a_file(given: str) -> bool:
    """Whether it is a path and no text: it exists, or looks like one that should."""
    if storage.is_remote(given) or given.lower().endswith((*_TEXT_SUFFIXES, *_ARRAY_SUFFIXES)):
        return True
    if "/" in given and not any(map(str.isspace, given)):
        return True
    try:
        return bool(given) and Path(given).exists()
    except (OSError, ValueError):  # A text may be too long for a path, or hold what no path can.
        return False


def _read_texts(path: str, lines: bool, column: str) -> dict[str, str]:
    """The texts of a file, by name."""
    if path.lower().endswith(".csv"):
        texts = _read_column(path, column)
    elif path.lower().endswith(_ARRAY_SUFFIXES):
        texts = [text for key, array in _read_arrays(path).items() for text in _check_texts(f"{path}{key}", array)]
    elif lines:
        # Not splitlines, which also divides at characters that stand within a text.
        texts = [line.removesuffix("\r") for line in _read_text(path).removesuffix("\n").split("\n")]
    else:
        return {path: _read_text(path)}
    if not texts:
        raise InputError(f"Cannot read {path}: it holds no text. Expected at least one.")
    return {f"{path}[{i}]": text for i, text in enumerate(texts)}


def _check_texts(name: str, array: np.ndarray) -> list[str]:
    if array.dtype.kind != "U" or array.ndim != 1:
        raise InputError(f"Cannot use {name}: expected str[N], received {array.dtype}{list(array.shape)}.")
    return array.tolist()


def _read_text(path: str) -> str:
    try:
        return storage.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Cannot read {path}: {error}. Expected text in UTF-8.") from error


def _read_column(path: str, column: str) -> list[str]:
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    try:
        reader = csv.DictReader(io.StringIO(_read_text(path), newline=""))
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"Cannot read {path}: {error}. Expected a CSV file.") from error
    columns = list(reader.fieldnames or ())
    if column not in columns or any(row[column] is None for row in rows):
        raise InputError(
            f"Cannot read {path}: expected the column {column!r} in every line, received {columns}. Name it with "
            "--column."
        )
    return [row[column] for row in rows]


def _read_image(path: str, shape: tuple[int, ...]) -> np.ndarray:
    return _decode_image(path, storage.read_bytes(path), shape)


def _decode_image(path: str, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return decode_pixels(content, ImageRule((shape[0], shape[1]), shape[2]))[None]
    except UnreadableImageError as error:
        raise InputError(
            f"Cannot read {path}: {error}. Expected an image file, a folder of them, or .npy/.npz."
        ) from error


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    try:
        loaded: Any = np.load(io.BytesIO(storage.read_bytes(path)), allow_pickle=False)
        arrays = {"": loaded}
        if hasattr(loaded, "files"):
            arrays = {f":{name}": loaded[name] for name in loaded.files if not _are_labels(name, loaded.files)}
        if not arrays:
            raise ValueError("it is empty")
        return arrays
    # zipfile raises RuntimeError where a file is encrypted, and NotImplementedError, which is one, for odd methods.
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"Cannot read {path}: {error}. Expected an array file without pickled objects.") from error


def _are_labels(name: str, names: Sequence[str]) -> bool:
    """Whether an array holds the labels of images beside it, as create_tfrecords reads both."""
    images = {"y": "x", "labels": "images"}.get(name, f"x_{name[2:]}" if name.startswith("y_") else "")
    return images in names


def _check_array(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    received = f"{array.dtype}{list(array.shape)}"
    if shape[2] == 1 and array.shape[-2:] == shape[:2]:
        array = array[..., None]
    if array.ndim == 3:
        array = array[None]
    if array.dtype != np.uint8 or array.shape[1:] != shape or not len(array):
        raise InputError(
            f"Cannot use {name}: expected uint8[N, {', '.join(map(str, shape))}] in [0, 255], received {received}."
        )
    return array

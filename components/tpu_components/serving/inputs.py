"""Runs an exported model on a user's files, folders, arrays and texts."""

import dataclasses
import io
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import paragraph
from tpu_components.core.examples.generation import Alphabet, generate
from tpu_components.core.examples.images import (
    UnreadableImageError,
    are_other_pixels,
    describe_losses,
    read_image,
    to_pixels,
)
from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, MULTI_LABEL, REGRESSION, ImageInput
from tpu_components.core.examples.text import Tokenizer
from tpu_components.core.files import storage
from tpu_components.core.files.csv_files import find_column, open_csv, shortened
from tpu_components.core.files.location import Location
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.serving.exported import BATCH_SIZE, PromptReader, load_model
from tpu_components.serving.instances import parse_line

_ARRAY_SUFFIXES = (".npy", ".npz")
_TABLE_SUFFIXES = (".csv", ".tsv")
_JSON_LINES_SUFFIX = ".jsonl"
_JSON_SUFFIX = ".json"
_PARQUET_SUFFIX = ".parquet"
_FILE_SUFFIXES = (".txt", *_TABLE_SUFFIXES, *_ARRAY_SUFFIXES, _JSON_LINES_SUFFIX, _JSON_SUFFIX, _PARQUET_SUFFIX)
_STDIN = "-"
_PREDICTED = {CLASSIFICATION: "classes", MULTI_LABEL: "labels", REGRESSION: "values"}

_Named = tuple[Sequence[str], np.ndarray]  # Names of examples, and the examples as the model takes them.


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A prompt and the continuation that a language model generated."""

    prompt: str
    text: str


def is_language_model(export_dir: Path) -> bool:
    """Return whether an export is a language model. Return False for a folder that is not an export."""
    try:
        return ExportInfo.load(export_dir).task == LANGUAGE_MODEL
    except InputError:
        return False


def continue_texts(
    export_dir: Path,
    prompts: Sequence[str],
    length: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    use_int8: bool = False,
) -> Iterator[Continuation]:
    """Generate a continuation of each prompt with a language model. Yield one `Continuation` at a time.

    Args:
        export_dir: Folder that export_model wrote.
        prompts: Texts to continue. Characters that are not in the training text become the unknown token. `-` reads
            stdin: one text per line, or JSON in the format of the server.
        length: Number of characters to generate for each prompt, at least 1.
        temperature: Sampling temperature. 1 samples from the probabilities, a lower value prefers probable characters,
            and 0 always takes the most probable character.
        seed: Seed of the sampling. Equal seeds give equal texts on the same kind of machine.
        use_int8: Use the int8 model.

    Raises:
        InputError: If the export cannot be read, or a prompt is empty.
    """
    model = load_model(export_dir, use_int8)
    if model.step is None:
        raise InputError(
            f"Cannot continue texts with {export_dir}: it is not a language model. It takes {model.input}. Use an "
            "export of a language model."
        )
    alphabet = Alphabet(model.class_names)
    for prompt in itertools.chain.from_iterable(
        _texts_in(sys.stdin.buffer, "stdin") if text == _STDIN else [text] for text in prompts
    ):
        if not prompt:
            raise InputError(
                "Cannot continue an empty prompt: expected at least one character. Add text to the prompt."
            )
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"Cannot read the text {prompt!r}, which is to be continued: {error}. Expected text in UTF-8."
            ) from error
        ids = alphabet.encode(prompt)[None]
        added = generate(model.step, model.state_size, ids, length, [temperature], seed)
        yield Continuation(prompt, alphabet.decode(added[0].tolist()))


@dataclasses.dataclass(frozen=True)
class ExamplePrediction:
    """A prediction for one input.

    Attributes:
        name: Name of the input's file, or the text.
        classes: Pairs (name, number) from `ExportedModel.decode`: names of classes or labels with their probabilities,
            or names of targets with their values.
        task: Task of the model.
    """

    name: str
    classes: tuple[tuple[str, float], ...]
    task: str = CLASSIFICATION

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as a JSON object with two keys.

        `input` is the name of the input. The other key is `classes`, `labels` or `values`, depending on the task, and
        contains {name: number}.
        """
        return {"input": self.name, _PREDICTED[self.task]: dict(self.classes)}


def predict_inputs(
    export_dir: Path,
    inputs: Sequence[str],
    top: int = 3,
    use_int8: bool = False,
    lines: bool = False,
    column: str = "text",
) -> Iterator[ExamplePrediction]:
    """Yield the predictions of an exported model for any number of images or texts, one at a time.

    Args:
        export_dir: Folder that export_model wrote.
        inputs: For an image model: image files, which are resized if necessary, folders of them, or .npy/.npz files
            with arrays uint8[N, height, width(, channels)]. Arrays of labels, such as `y_test` next to `x_test`, are
            ignored. For a text model: text files, folders of them, .csv, .tsv and .jsonl files, .npy/.npz files
            with arrays str[N], or the texts themselves. `-` reads stdin. A line of a .jsonl file, or of stdin, is a
            text or `{"text": "…"}`.
        top: Number of classes to return. It does not limit labels or regression values.
        use_int8: Use the int8 model instead of the float model.
        lines: Whether a text file contains one text per line, instead of a single text.
        column: Text column of .csv and .tsv files.

    Raises:
        InputError: If the export or an input cannot be read, or an array has the wrong shape or type. Unreadable files
            in a folder, and texts without a word, are reported after all other inputs are predicted.
    """
    if top < 1:
        raise InputError(f"top must be at least 1. Received: {top}.")
    model = load_model(export_dir, use_int8)
    if isinstance(model.reader, PromptReader):
        raise InputError(
            f"Cannot predict classes with {export_dir}: it is a language model, which can only continue texts. Use the "
            "command `tpu-pipelines predict` with texts."
        )
    unread: list[str] = []
    losses: list[Mapping[str, int]] = []
    for names, batch in _read_inputs(model.reader, inputs, lines, column, unread, losses):
        for start in range(0, len(batch), BATCH_SIZE):
            outputs = model.predict(batch[start : start + BATCH_SIZE])
            for name, output in zip(names[start : start + BATCH_SIZE], outputs, strict=True):
                yield ExamplePrediction(name, model.decode(output, top), model.task)
    for message in describe_losses(sum(map(Counter, losses), Counter[str]()), len(losses)):
        print(paragraph(message), file=sys.stderr)
    if unread:
        raise InputError(
            f"{len(unread)} inputs cannot be predicted; the first is {unread[0]}. The lines above give the "
            "reasons. All other inputs were predicted. Repair or remove these inputs."
        )


def _read_inputs(
    reader: ImageInput | Tokenizer,
    inputs: Sequence[str],
    lines: bool,
    column: str,
    unread: list[str],
    losses: list[Mapping[str, int]],
) -> Iterator[_Named]:
    """Yield batches of names and inputs.

    Unreadable files of folders, and texts without a word, are reported on stderr and in `unread`. `Picture.losses`
    (content that an image loses in conversion) of each image file is appended to `losses`.
    """

    def read_file(path: str) -> _Named:
        if path.lower().endswith(_PARQUET_SUFFIX):
            raise InputError(
                f"Cannot predict {path} without an output file. Pass the source parquet:{path} and an output file to "
                "the command `tpu-pipelines predict`, or use the step predict_batch with this source."
            )
        if isinstance(reader, Tokenizer):
            return _encode(*_read_texts(path, lines, column), reader, unread)
        return [path], _decode_image(path, storage.read_bytes(path), reader, losses)

    for argument in inputs:
        if argument == _STDIN:
            yield from _piped(reader, unread, losses)
        elif isinstance(reader, Tokenizer) and not _names_a_file(argument):
            yield _encode([argument], [argument], reader, unread)
        elif isinstance(reader, Tokenizer) and not Location(argument).is_remote and not os.path.exists(argument):
            raise InputError(
                f"Cannot read {argument!r}: there is no such file or folder. Check the path. If this is the text "
                "itself and not a path, pass - and write the text to stdin."
            )
        elif not Location(argument).is_remote and Path(argument).is_dir():
            for file in storage.list_files(argument):
                path = f"{argument}/{file.name}"
                try:
                    content = read_file(path)
                except InputError as error:
                    _leave_out(path, error, unread)
                else:
                    yield content
        elif isinstance(reader, ImageInput) and argument.lower().endswith(_ARRAY_SUFFIXES):
            for key, array in read_input_arrays(argument).items():
                images = _check_array(f"{argument}{key}", array, reader.image_shape)
                many = [f"{argument}{key}[{i}]" for i in range(len(images))]
                yield many if len(many) > 1 else [f"{argument}{key}"], images
        else:
            yield read_file(argument)


def _leave_out(name: str, reason: Any, unread: list[str]) -> None:
    unread.append(name)
    print(paragraph(f"left out: {reason}"), file=sys.stderr)


def _encode(names: Sequence[str], texts: Sequence[str], reader: Tokenizer, unread: list[str]) -> _Named:
    """Return the names and token IDs of texts, without the texts that the model cannot read."""
    kept: list[str] = []
    ids = np.empty((len(texts), *reader.shape), reader.dtype)
    for name, text in zip(names, texts, strict=True):
        try:
            ids[len(kept)] = reader.read(text)
        except InputError as error:
            _leave_out(repr(name), f"{name!r}: {error}", unread)
        else:
            kept.append(name)
    return kept, ids[: len(kept)]


def _piped(reader: ImageInput | Tokenizer, unread: list[str], losses: list[Mapping[str, int]]) -> Iterator[_Named]:
    """Yield names and inputs from stdin: texts, one image file, or lines of JSON in the server's format."""
    if isinstance(reader, Tokenizer):
        for text in _texts_in(sys.stdin.buffer, "stdin"):
            yield _encode([text], [text], reader, unread)
        return
    stdin: Any = sys.stdin.buffer  # A BufferedReader at run time.
    if stdin.peek(1).lstrip()[:1] not in (b"{", b"["):
        content = stdin.read()
        if not content:
            raise InputError(
                "Cannot read stdin: it is empty. Expected an image file, or a line of JSON for each image."
            )
        yield [_STDIN], _decode_image("stdin", content, reader, losses)
        return
    for number, line in enumerate(stdin, 1):
        if line.strip():
            try:
                yield [f"{_STDIN}:{number}"], parse_line(line, reader)
            except InputError as error:
                raise InputError(f"Cannot read line {number} of stdin: {error}") from error


def _texts_in(lines: Iterable[bytes], place: str) -> Iterator[str]:
    """Yield the texts of lines, one per line, as plain text or as `{"text": "…"}`.

    Args:
        lines: The lines, with or without line breaks.
        place: Name of the file, or `stdin`, for error messages.
    """
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"Cannot read line {number} of {place}: {error}. Expected text in UTF-8.") from error
        try:
            yield _text_of(text)
        except InputError as error:
            raise InputError(f"Cannot read line {number} of {place}: {error}") from error


def _text_of(line: str) -> str:
    """Return the text of a line: the line itself, or the text in a JSON object `{"text": "…"}`.

    Raises:
        InputError: If the object also has other fields, or its `text` is not a string.
    """
    try:
        instance = json.loads(line) if line.startswith("{") else None
    except ValueError:  # A text that begins with a brace.
        return line
    if instance is None or "text" not in instance:
        return line
    if instance.keys() != {"text"} or not isinstance(instance["text"], str):
        raise InputError(
            f'expected only the field "text" with a string, received {shortened(line)!r}. Remove the other fields, or '
            "save the examples as a CSV file."
        )
    return str(instance["text"])


def _names_a_file(argument: str) -> bool:
    """Return whether an argument is a path rather than a text.

    It is a path if a file or folder with this path exists, or if it looks like a path, for example by its suffix.
    """
    if Location(argument).is_remote or argument.lower().endswith(_FILE_SUFFIXES):
        return True
    if "/" in argument and not any(map(str.isspace, argument)):
        return True
    try:
        return bool(argument) and Path(argument).exists()
    except (OSError, ValueError):  # A text may be too long for a path, or contain invalid characters.
        return False


def _read_texts(path: str, lines: bool, column: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return names and texts of a file.

    A name is the path, with an index if a file has several texts.
    """
    if path.lower().endswith(_TABLE_SUFFIXES):
        texts = _read_column(path, column)
    elif path.lower().endswith(_ARRAY_SUFFIXES):
        texts = []
        for key, array in read_input_arrays(path).items():
            if array.dtype.kind != "U" or array.ndim != 1:
                received = f"{array.dtype}{list(array.shape)}"
                raise InputError(
                    f"Cannot use {path}{key}: expected str[N], received {received}. Save the texts as an array of "
                    "strings."
                )
            texts += array.tolist()
    elif path.lower().endswith(_JSON_LINES_SUFFIX):
        texts = [*_texts_in(io.BytesIO(storage.read_bytes(path)), path)]
    else:
        text = _read_text(path)
        if path.lower().endswith(_JSON_SUFFIX):
            _refuse_json(path, text)
        if not lines:
            return [path], [text]
        # Not splitlines, which also splits at characters other than line feeds.
        texts = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not texts:
        raise InputError(f"Cannot read {path}: it contains no text. Expected at least one text.")
    return [f"{path}[{i}]" for i in range(len(texts))], texts


def _read_text(path: str) -> str:
    try:
        return storage.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Cannot read {path}: {error}. Expected text in UTF-8.") from error


def _refuse_json(path: str, text: str) -> None:
    """Raise InputError if the text of a file begins with a JSON array or object."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError:
        return
    if isinstance(value, list | dict):
        raise InputError(
            f"Cannot read {path}: expected a text, received JSON. Save the texts as a CSV file, or as a .jsonl file "
            'with one {"text": "…"} per line.'
        )


def _read_column(path: str, column: str) -> list[str]:
    file = open_csv(path, storage.read_bytes(path))
    columns = [name for name in file.columns if name]
    column = find_column(column, columns)
    if column not in columns:
        raise InputError(
            f"Cannot read {path}: expected the column {column!r} in every line, received {columns}. Set column to the "
            "name of the text column."
        )
    place = file.columns.index(column)
    return [cells[place] for _, cells in file.rows()]


def _decode_image(path: str, content: bytes, wanted: ImageInput, losses: list[Mapping[str, int]]) -> np.ndarray:
    try:
        picture = read_image(content, wanted.rule)
    except UnreadableImageError as error:
        raise InputError(
            f"Cannot read {path}: {error}. Expected an image file, a folder of image files, or .npy/.npz."
        ) from error
    losses.append(picture.losses)
    return picture.pixels[None]


def read_input_arrays(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npy or .npz file as a mapping. Arrays of labels are left out.

    The key of an array is `:NAME` for an .npz file, and an empty string for an .npy file. `y_test` next to `x_test` is
    an example of an array of labels.

    Raises:
        InputError: If the file is missing or damaged, or contains no array.
    """
    try:
        loaded = read_arrays(path, storage.read_bytes(path))
        names = [name for name in loaded if not name or not _are_labels(name, [*loaded])]
        if not names:
            raise ValueError("the file is empty")
        return {f":{name}" if name else "": loaded[name] for name in names}
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"Cannot read {path}: {error}. Expected an array file without pickled objects.") from error


def _are_labels(name: str, names: Sequence[str]) -> bool:
    """Return whether the array `name` contains the labels of another array, by the naming rules of create_tfrecords."""
    images = {"y": "x", "labels": "images"}.get(name, f"x_{name[2:]}" if name.startswith("y_") else "")
    return images in names


def _check_array(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    received = f"{array.dtype}{list(array.shape)}"
    # Like create_tfrecords: channels may come first.
    if array.shape[-3:] == (shape[2], *shape[:2]) != shape:
        array = np.moveaxis(array, -3, -1)
    if are_other_pixels(array):
        array = to_pixels(array)
    if shape[2] == 1 and array.shape[-2:] == shape[:2]:
        array = array[..., None]
    if array.ndim == 3:
        array = array[None]
    if array.dtype != np.uint8 or array.shape[1:] != shape or not len(array):
        raise InputError(
            f"Cannot use {name}: expected uint8[N, {', '.join(map(str, shape))}] in [0, 255], received {received}. "
            "Convert the array."
        )
    return array

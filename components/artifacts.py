"""Names and schemas of the files that cross a step boundary."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import google_crc32c

from components import schema, storage
from components.errors import InputError
from components.interface import REGRESSION, TASKS, AnyInput, Interface, TextInput, read_input

MANIFEST_FILE = "dataset.json"
COPIES_FILE = "copies.json"
PREFLIGHT_FILE = "preflight.json"
PREFLIGHT_REPORT_FILE = "preflight.html"
MODEL_FILE = "model.json"
ARCHITECTURE_FILE = "architecture.json"
CODE_FILE = "code.zip"
BEST_WEIGHTS_FILE = "best.weights.h5"
LAST_WEIGHTS_FILE = "last.weights.h5"
HISTORY_FILE = "history.jsonl"
EVALUATION_FILE = "evaluation.json"
REPORT_FILE = "report.html"
PREDICTIONS_FILE = "predictions.npz"
EXPORT_FILE = "export.json"
SAVED_MODEL_DIR = "saved_model"
FLOAT_TFLITE_FILE = "model.tflite"
INT8_TFLITE_FILE = "model_int8.tflite"
DEPLOYMENT_FILE = "deployment.json"

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)

# The input's own field has the name that its `Input` gives it.
LABEL_FEATURE, KEY_FEATURE, TEXT_FEATURE = "label", "key", "text"
A = TypeVar("A")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name, its number of examples, its size, and its checksum as eight hex digits."""

    name: str
    num_examples: int
    num_bytes: int
    crc32c: str


@dataclasses.dataclass(frozen=True)
class TargetStatistics:
    """One target of a regression over a split, in its own unit; `std` is the population's."""

    mean: float
    std: float
    minimum: float
    maximum: float


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, in order.

    Attributes:
        num_examples: Examples in all shards.
        class_counts: Examples per class, in the order of the class names; of several labels each counts. Of a
            regression empty; of a corpus how often each character is predicted.
        shards: The files.
        statistics: What was done to the examples: of photos `num_turned`, as EXIF says, where there are some; of texts
            `num_truncated`, `num_padded`, `num_tokens` (of those kept) and `num_unknown` (of these); outside the
            training split `num_also_in_train`, exact copies; of a corpus `num_characters`, all that are predicted, and
            `num_unknown` of these.
        targets: Of a regression, one entry per target; otherwise empty.
    """

    num_examples: int
    class_counts: tuple[int, ...]
    shards: tuple[Shard, ...]
    statistics: Mapping[str, int] = dataclasses.field(default_factory=dict)
    targets: tuple[TargetStatistics, ...] = ()


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """One input that was set aside, and why."""

    key: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """`dataset.json`: what a folder of TFRecords holds.

    Attributes:
        fingerprint: SHA-256 of the content: the same examples in the same order give the same one.
        source: Where the examples came from.
        split_rule: How they were divided, in words.
        split_rule_version: Of the rule that divides; equal examples are divided alike by equal versions.
        input: What an example is. Its fields stand among the others in the file, and `input` there is its kind.
        task: What a model is asked about it; a key of `interface.TASKS`.
        features: The type of each field of a tf.train.Example.
        class_names: Class names; a label is an index into them. Of a regression, the names of the targets.
        splits: Splits by name; one that has no examples is left out.
        quarantined: Inputs that were set aside.
    """

    fingerprint: str
    source: str
    split_rule: str
    input: AnyInput
    task: str
    features: Mapping[str, str]
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    quarantined: tuple[Quarantined, ...] = ()
    split_rule_version: int = 1

    def save(self, directory: Path) -> None:
        """Write `dataset.json` into `directory`."""
        storage.write_json(directory / MANIFEST_FILE, _with_flat_input(self))

    @property
    def interface(self) -> Interface:
        """What a model of this data set takes and gives."""
        targets = self.splits[TRAIN].targets if self.task == REGRESSION else ()
        mean, std = tuple(target.mean for target in targets), tuple(target.std for target in targets)
        return Interface(self.input, len(self.class_names), self.task, mean, std)

    @classmethod
    def load(cls, directory: Path, verify: bool = True) -> Self:
        """Read `dataset.json`, and check that every shard is there, whole and unchanged.

        Args:
            directory: The folder that create_tfrecords wrote.
            verify: Whether to read every shard and compare its checksum (about 1 GB/s).

        Raises:
            InputError: If the manifest is missing or malformed, or a shard does not match it.
        """
        raw = _read_json(directory / MANIFEST_FILE, "create_tfrecords")
        try:
            manifest = _read_flat({"split_rule_version": 1, **raw}, cls)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"Cannot use {directory / MANIFEST_FILE}: it is not a data set manifest of this version ({error!r}). "
                "Write the records again with create_tfrecords."
            ) from error
        for split in manifest.splits.values():
            for shard in split.shards:
                _check_shard(directory / shard.name, shard, verify)
        return manifest

    def split(self, name: str) -> Split:
        """One split by name.

        Raises:
            InputError: If it holds no examples.
        """
        if name not in self.splits:
            raise InputError(
                f"The data set has no {name!r} split: expected at least one example, received splits "
                f"{sorted(self.splits)} from {self.source!r}. Set data.{name}_fraction, or add a {name}/ folder."
            )
        return self.splits[name]


def _read_json(path: Path, step: str) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(
            f"Cannot read {path}: there is no such file. Expected a folder written by {step}; check the path."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: it is not valid JSON ({error}). Run {step} again.") from error


def _with_flat_input(artifact: Any) -> dict[str, Any]:
    """A dataclass as JSON, the fields of its input among its own."""
    raw = dataclasses.asdict(artifact)
    given = raw.pop("input")
    return {**raw, "input": given.pop("kind"), **given}


def _read_flat(raw: Any, kind: type[A]) -> A:
    """Read what `_with_flat_input` wrote, and check every field."""
    if not isinstance(raw, dict):
        raise TypeError(f"it is {raw!r}, expected a mapping")
    given = read_input({**raw, "kind": schema.read(raw["input"], str, "input")})
    if schema.read(raw["task"], str, "task") not in TASKS:
        raise KeyError(raw["task"])
    of_input = {"input", *(field.name for field in dataclasses.fields(given))}
    hints = typing.get_type_hints(kind)
    values = {name: value for name, value in raw.items() if name not in of_input}
    if differing := values.keys() ^ (hints.keys() - {"input"}):
        raise TypeError(f"the field {min(differing)!r} is unknown, or missing")
    read: Any = kind
    return read(input=given, **{name: schema.read(value, hints[name], name) for name, value in values.items()})


def _check_shard(path: Path, shard: Shard, verify: bool) -> None:
    advice = "The records changed after they were written: write them again with create_tfrecords."
    if not path.is_file():
        raise InputError(f"Shard {path} is missing: the manifest lists it. {advice}")
    if path.stat().st_size != shard.num_bytes:
        raise InputError(
            f"Shard {path} does not match its manifest: expected {shard.num_bytes} bytes, "
            f"received {path.stat().st_size}. {advice}"
        )
    if verify and (received := file_crc32c(path)) != shard.crc32c:
        raise InputError(
            f"Shard {path} does not match its manifest: expected checksum {shard.crc32c}, received {received}. {advice}"
        )


def file_crc32c(path: Path) -> str:
    """The CRC32C of a file, as eight hex digits."""
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            crc = google_crc32c.extend(crc, chunk)
    return f"{crc:08x}"


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """`model.json`: what a trained model is and how it came to be.

    Attributes:
        name: The model's name in the registry, or where it was imported from.
        parameters: Its hyper-parameters.
        class_names: Class names, in the order of its outputs; of a regression, the names of the targets.
        input: What it takes; see `Manifest`.
        task: What it was asked; see `Manifest`.
        dataset_fingerprint: The data set it was trained on.
        training: Parameters and facts of the training, among them examples seen, epochs and the best epoch.
    """

    name: str
    parameters: Mapping[str, Any]
    class_names: tuple[str, ...]
    input: AnyInput
    task: str
    dataset_fingerprint: str
    training: Mapping[str, Any]

    def save(self, directory: Path) -> None:
        """Write `model.json` into `directory`."""
        storage.write_json(directory / MODEL_FILE, _with_flat_input(self))

    @property
    def interface(self) -> Interface:
        """What it takes and gives, without the scale of a regression, which is in the model itself."""
        return Interface(self.input, len(self.class_names), self.task)

    def fits(self, manifest: Manifest) -> bool:
        """Whether it can answer the examples of a data set, and its answers mean the same there."""
        return (self.class_names, self.input, self.task) == (manifest.class_names, manifest.input, manifest.task)

    def understands(self, manifest: Manifest) -> bool:
        """Whether it could answer them if each text were cut into tokens anew, by its own rule and vocabulary."""
        both_texts = isinstance(self.input, TextInput) and isinstance(manifest.input, TextInput)
        same_answers = (self.class_names, self.task) == (manifest.class_names, manifest.task)
        return self.fits(manifest) or (both_texts and same_answers)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read `model.json`.

        Raises:
            InputError: If it is missing or malformed.
        """
        raw = _read_json(directory / MODEL_FILE, "train_model")
        try:
            return _read_flat(raw, cls)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"Cannot use {directory / MODEL_FILE}: it does not describe a model of this version ({error!r}). "
                "Train the model again with train_model."
            ) from error

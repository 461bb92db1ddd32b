"""Names and schemas of the files that cross a step boundary."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import google_crc32c

from components import storage
from components.errors import InputError

MANIFEST_FILE = "dataset.json"
PREFLIGHT_FILE = "preflight.json"
PREFLIGHT_REPORT_FILE = "preflight.html"
MODEL_FILE = "model.json"
ARCHITECTURE_FILE = "architecture.json"
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

IMAGE_FEATURE, LABEL_FEATURE, KEY_FEATURE = "image", "label", "key"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name, its number of examples, its size, and its checksum as eight hex digits."""

    name: str
    num_examples: int
    num_bytes: int
    crc32c: str


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, in order, and its number of examples per class, in the order of the class names."""

    num_examples: int
    class_counts: tuple[int, ...]
    shards: tuple[Shard, ...]


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
        encoding: `raw` (uint8 pixels, row by row) or `encoded` (the image file's own bytes, decoded when read).
        image_shape: (height, width, channels) of an image as the model gets it.
        features: The type of each field of a tf.train.Example.
        class_names: Class names; a label is an index into them.
        splits: Splits by name; one that has no examples is left out.
        quarantined: Inputs that were set aside.
    """

    fingerprint: str
    source: str
    split_rule: str
    encoding: str
    image_shape: tuple[int, int, int]
    features: Mapping[str, str]
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    quarantined: tuple[Quarantined, ...] = ()

    def save(self, directory: Path) -> None:
        """Write `dataset.json` into `directory`."""
        storage.write_json(directory / MANIFEST_FILE, dataclasses.asdict(self))

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
            splits = {
                name: Split(
                    split["num_examples"],
                    tuple(split["class_counts"]),
                    tuple(Shard(**shard) for shard in split["shards"]),
                )
                for name, split in raw.pop("splits").items()
            }
            manifest = cls(
                **{
                    **raw,
                    "image_shape": tuple(raw["image_shape"]),
                    "class_names": tuple(raw["class_names"]),
                    "quarantined": tuple(Quarantined(**item) for item in raw["quarantined"]),
                    "splits": splits,
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"Cannot use {directory / MANIFEST_FILE}: it is not a data set manifest of this version ({error!r}). "
                "Write the records again with create_tfrecords."
            ) from error
        for split in splits.values():
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
        class_names: Class names, in the order of its outputs.
        image_shape: (height, width, channels) of its input, uint8 pixels in [0, 255].
        encoding: How the data set stored its images; see `Manifest`.
        dataset_fingerprint: The data set it was trained on.
        training: Parameters and facts of the training, among them examples seen, epochs and the best epoch.
    """

    name: str
    parameters: Mapping[str, Any]
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    encoding: str
    dataset_fingerprint: str
    training: Mapping[str, Any]

    def save(self, directory: Path) -> None:
        """Write `model.json` into `directory`."""
        storage.write_json(directory / MODEL_FILE, dataclasses.asdict(self))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read `model.json`.

        Raises:
            InputError: If it is missing or malformed.
        """
        raw = _read_json(directory / MODEL_FILE, "train_model")
        try:
            return cls(
                **{**raw, "class_names": tuple(raw["class_names"]), "image_shape": tuple(raw["image_shape"])},
            )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"Cannot use {directory / MODEL_FILE}: it does not describe a model of this version ({error!r}). "
                "Train the model again with train_model."
            ) from error

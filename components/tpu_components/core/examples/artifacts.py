"""Names and schemas of the files that one step writes and another reads."""

import base64
import dataclasses
import hashlib
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import google_crc32c

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples.class_names import advise_on_order, are_same
from tpu_components.core.examples.interface import REGRESSION, TASKS, AnyInput, Interface, TextInput, as_fields
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.files.typed_json import JsonFile

MANIFEST_FILE = "dataset.json"
COPIES_FILE = "copies.json"
DATA_PAGE_FILE = "data.html"
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

COMPRESSIONS = ("", "GZIP")  # As tf.data.TFRecordDataset names them.

# Features of a tf.train.Example. The name of the input's feature is `AnyInput.feature`.
LABEL_FEATURE, KEY_FEATURE, TEXT_FEATURE, WEIGHT_FEATURE = "label", "key", "text", "weight"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file.

    Attributes:
        name: File name in the folder of the manifest. For records of another program that are used in place, an
            absolute path or a gs:// URI.
        num_examples: Number of examples.
        num_bytes: Size in bytes.
        crc32c: Checksum as eight hex digits.
    """

    name: str
    num_examples: int
    num_bytes: int
    crc32c: str

    def path(self, directory: Path | str) -> str:
        """Return the path or URI of the shard. `directory` is the folder of the manifest."""
        return self.name if Location(self.name).is_remote else os.path.join(directory, self.name)


@dataclasses.dataclass(frozen=True)
class TargetStatistics:
    """Statistics of a regression target on a split, in the target's unit.

    `std` is the population standard deviation.
    """

    mean: float
    std: float
    minimum: float
    maximum: float


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Distribution of a measurement (called a figure), such as brightness, over the examples of a split.

    Attributes:
        num_examples: Number of measured examples. In a large data set, only a part of the examples is measured. This
            part is selected by a hash.
        mean: Mean of the values.
        std: Population standard deviation of the values.
        minimum: Smallest value.
        maximum: Largest value.
        edges: Edges of the bins. In files from older versions, every data set has the same bins.
        counts: Number of examples in each bin. A bin includes its lower edge. In files from older versions, the first
            and last bins also count the values outside of the edges.
    """

    num_examples: int
    mean: float
    std: float
    minimum: float
    maximum: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.counts) == len(self.edges) - 1:
            raise TypeError("distributions must have one more edge than counts")


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, with counts and statistics of its examples.

    Attributes:
        num_examples: Number of examples in all shards.
        class_counts: Number of examples per class, in the order of the class names. In multi-label data, an example
            counts for each of its labels. In a corpus, the count is how often a character is a target. Empty for a
            regression.
        shards: The TFRecord files, in order.
        statistics: Counts by name. For images, if not 0: `num_turned` (photos that were rotated according to EXIF),
            `num_few_levels` and `num_only_alpha` (see `images.LOSSES`). For texts: `num_truncated`, `num_padded`,
            `num_tokens` (after truncation) and `num_unknown` (tokens). For a corpus: `num_characters` (predicted
            characters) and `num_unknown`. For validation and test: `num_also_in_train` (exact copies of training
            examples).
        targets: Statistics of each target of a regression; otherwise empty.
        distributions: Distribution of each figure, by name. For images: `brightness`, `contrast` and `sharpness` (in
            grey levels, of stored images subsampled to at most 127 pixels a side), `red` and `blue` (shares of the
            light), `height` and `width` (pixels of the file). For texts: `words`, `unknown_share` (share of words
            outside the vocabulary) and `word_length` (bytes). For multi-label data: `labels` per example. Empty in
            older files.
        independence: For each figure, by name, the effective sample size divided by the number of examples. The entry
            `classes` is for the class shares. A value is below 1 if the examples of a group are alike. Empty without
            `data.group_column`.
    """

    num_examples: int
    class_counts: tuple[int, ...]
    shards: tuple[Shard, ...]
    statistics: Mapping[str, int] = dataclasses.field(default_factory=dict)
    targets: tuple[TargetStatistics, ...] = ()
    distributions: Mapping[str, Distribution] = dataclasses.field(default_factory=dict)
    independence: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A quarantined input: its key and the reason."""

    key: str
    reason: str


class _FlatInput:
    """Base class for JSON files that have the fields of the model's input at the top level.

    In the file, `input` is the kind of the input, such as `image`.
    """

    input: AnyInput

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file; see `JsonFile`."""
        fields = as_fields(self.input)
        return {**dataclasses.asdict(typing.cast(Any, self)), "input": fields.pop("kind"), **fields}

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a file with a mapping `input`, which contains the fields of the model's input.

        In the file, these fields are at the top level.
        """
        return {**raw, "input": {**raw, "kind": raw["input"]}}


@dataclasses.dataclass(frozen=True)
class Manifest(_FlatInput, JsonFile, name=MANIFEST_FILE, what="a data set manifest", step="create_tfrecords"):
    """`dataset.json`, the description of a folder of TFRecords.

    Attributes:
        fingerprint: SHA-256 of the content. It is equal for the same examples in the same order.
        source: Source of the examples, as in `data.source`.
        split_rule: Description of the rule that assigned the splits.
        split_rule_version: Version of the split rule. The same version assigns equal examples to the same split.
        input: Input of a model that is trained on the data set. In the file, the fields of this object are at the top
            level, and `input` is only the kind of input, such as `image`.
        task: Task of a model that is trained on the data set; a key of `interface.TASKS`.
        features: Type of each feature of a tf.train.Example, by name.
        class_names: Class names. A label is the index of a class name. For a regression, the names of the targets.
        splits: Splits by name, without empty splits.
        quarantined: Inputs that were quarantined.
        common_words: Counts of the most frequent words in the training split. The entry for the empty word is the
            count of all other words. Empty for images and in older files.
        num_left_out: Number of examples that are in no split because they are copies of held-out examples.
        columns: For each of this project's column names, the name in the source, as in `data.columns`. Empty in older
            files.
        feature_names: For records that another program wrote: for each of this project's feature names, the name in
            the records. Names that are equal are left out.
        compression: Compression of the shards, `GZIP` or empty.
    """

    fingerprint: str
    source: str
    split_rule: str
    input: AnyInput
    task: Annotated[str, tuple(TASKS)]
    features: Mapping[str, str]
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    quarantined: tuple[Quarantined, ...] = ()
    split_rule_version: int = 1
    common_words: Mapping[str, int] = dataclasses.field(default_factory=dict)
    num_left_out: int = 0
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    feature_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    compression: Annotated[str, COMPRESSIONS] = ""

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Convert parsed JSON to a manifest, and check that its fields are consistent; see `JsonFile`."""
        manifest = super().parse(raw)
        if not (splits := manifest.splits.values()):
            raise TypeError("splits must have at least one split")
        if len({len(split.class_counts) for split in splits}) > 1:
            raise TypeError("class_counts must have a number for each class, in every split")
        num_targets = len(manifest.class_names) if manifest.task == REGRESSION else 0
        if any(len(split.targets) != num_targets for split in splits):
            raise TypeError("targets must contain the statistics of every regression target, in every split")
        return manifest

    @property
    def interface(self) -> Interface:
        """Input and output of a model that is trained on the data set."""
        targets = self.splits[TRAIN].targets if self.task == REGRESSION and TRAIN in self.splits else ()
        mean, std = tuple(target.mean for target in targets), tuple(target.std for target in targets)
        return Interface(self.input, len(self.class_names), self.task, mean, std)

    @classmethod
    def load(cls, directory: Path | str, verify: bool = True) -> Self:
        """Read `dataset.json` and check that every shard exists and is unchanged.

        Args:
            directory: The folder that create_tfrecords wrote.
            verify: Whether to read every shard and compare its checksum (about 1 GB/s).

        Raises:
            InputError: If the manifest is missing or malformed, or a shard does not match it.
        """
        try:
            manifest = super().load(directory)
        except InputError as error:
            names = storage.names_in(str(directory))
            if MANIFEST_FILE in names or not any(".tfrec" in name for name in names):
                raise
            raise InputError(
                f"Cannot use {directory}: it contains TFRecord files from another program, but no {MANIFEST_FILE}. To "
                f"check and describe these files, run create_tfrecords with source=tfrecords:{directory} and "
                "rewrite=false, and use its output folder instead."
            ) from error
        manifest.check_shards(Path(directory), verify)
        return manifest

    @classmethod
    def read_from(cls, place: str) -> Self:
        """Read `dataset.json` from a folder, local or in a bucket, without checking the shards.

        Raises:
            InputError: If the file is missing or malformed.
        """
        return super().load(Location(place).folder)

    def check_shards(self, directory: Path, verify: bool = True, share: Share = WHOLE) -> None:
        """Check the size of every shard. With `verify`, also check the checksums of the shards in this host's share.

        The checksums of shards in a bucket are always checked, because the bucket stores them.

        Raises:
            InputError: If a shard does not match the manifest.
        """
        shards = [shard for split in self.splits.values() for shard in split.shards]
        remote = stat_remote([shard.name for shard in shards if Location(shard.name).is_remote])
        for split in self.splits.values():
            own = share.within(split.num_examples)
            start = 0
            for shard in split.shards:
                is_own = start < own.stop and own.start < start + shard.num_examples
                _check_shard(shard.path(directory), shard, verify and is_own, remote)
                start += shard.num_examples

    def split(self, name: str) -> Split:
        """Return the split called `name`.

        Raises:
            InputError: If the split has no examples.
        """
        if name not in self.splits:
            fraction = "Lower data.test_fraction" if name == TRAIN else f"Set data.{name}_fraction"
            raise InputError(
                f"The data set has no {name!r} split: expected at least one example, received the splits "
                f"{sorted(self.splits)} from {self.source!r}. {fraction}, add a {name}/ folder, or name the files of "
                "this split in data.split_files."
            )
        return self.splits[name]


def stat_remote(uris: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return {URI: (size in bytes, CRC32C as hex digits)} of files in one bucket, without reading the files.

    Missing files are left out.

    Cloud Storage has the CRC32C of every object: https://cloud.google.com/storage/docs/data-validation
    """
    stored = zip(uris, storage.stat_paths(uris) if uris else (), strict=True)
    return {
        uri: (file.num_bytes, base64.b64decode(file.version).hex())
        for uri, file in stored
        if file.version != storage.MISSING
    }


def stat_shards(paths: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return {path: (size in bytes, CRC32C as hex digits)} of files.

    All files must be local, or all in one bucket. Local files are read.
    """
    if paths and Location(paths[0]).is_remote:
        return stat_remote(paths)
    return {path: (os.stat(path).st_size, file_crc32c(path)) for path in paths}


def _check_shard(path: str, shard: Shard, verify: bool, remote: Mapping[str, tuple[int, str]]) -> None:
    advice = "The records have been changed: write them again with create_tfrecords."
    is_remote = Location(path).is_remote
    if path not in remote if is_remote else not os.path.isfile(path):
        raise InputError(f"Shard {path} is missing, although the manifest lists it. {advice}")
    num_bytes = remote[path][0] if is_remote else os.stat(path).st_size
    if num_bytes != shard.num_bytes:
        raise InputError(
            f"Shard {path} does not match its manifest: expected {shard.num_bytes} bytes, received {num_bytes}. "
            f"{advice}"
        )
    if not verify and not is_remote:
        return
    received = remote[path][1] if is_remote else file_crc32c(path)
    if received != shard.crc32c:
        raise InputError(
            f"Shard {path} does not match its manifest: expected checksum {shard.crc32c}, received {received}. {advice}"
        )


def file_crc32c(path: Path | str) -> str:
    """Return the CRC32C of a file, as eight hex digits."""
    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        for _ in checksum.consume(file, 1 << 22):
            pass
    return checksum.hexdigest().decode()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def learning_rates(training: Mapping[str, Any]) -> str:
    """Return the peak learning rates of the training stages as text, before they are scaled by the number of replicas.

    Consecutive stages with the same rate are not repeated. Return an empty string if `training` has no learning rate.

    Args:
        training: Section `training` of a `model.json` or a configuration, written by any version of this project.

    Example:
        >>> learning_rates({"learning_rate": 0.001, "stages": [{"learning_rate": 0.0}, {"learning_rate": 1e-05}]})
        '0.001 then 1e-05'
    """
    common = training.get("learning_rate")
    stages = training.get("stages") or ()
    rates = [stage.get("learning_rate") or common for stage in stages] or [common]
    return " then ".join(dict.fromkeys(f"{rate:g}" for rate in rates if isinstance(rate, int | float)))


@dataclasses.dataclass(frozen=True)
class ModelInfo(_FlatInput, JsonFile, name=MODEL_FILE, what="the description of a model", step="train_model"):
    """`model.json`, the description of a trained model and its training.

    Attributes:
        name: Name of the model in the configuration; see `TrainParams.model`.
        parameters: Hyper-parameters of the model.
        class_names: Class names, in the order of the model's outputs; for a regression, the names of the targets.
        input: Input of the model; see `Manifest`.
        task: Task of the model; see `Manifest`.
        dataset_fingerprint: Fingerprint of the data set that the model was trained on.
        training: Facts about the training, such as the number of examples and the best epoch. Also contains the
            training hyper-parameters, which come from the model and the configuration.
        digests: SHA-256 of the architecture and of the best weights, by file name. Empty in older files.
    """

    name: str
    parameters: Mapping[str, Any]
    class_names: tuple[str, ...]
    input: AnyInput
    task: Annotated[str, tuple(TASKS)]
    dataset_fingerprint: str
    training: Mapping[str, Any]
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check_files(self, directory: Path) -> None:
        """Check the digests of the architecture and the weights. Models from older versions have no digests to check.

        Raises:
            InputError: If a file is missing or has been changed.
        """
        for name, expected in self.digests.items():
            received = file_sha256(directory / name) if (directory / name).is_file() else "no such file"
            if received != expected:
                raise InputError(
                    f"The model in {directory} is damaged: {MODEL_FILE} expects SHA-256 {expected[:16]}… for {name}, "
                    f"received {received[:16]}. Restore the model from a backup, or train it again."
                )

    @property
    def interface(self) -> Interface:
        """Input and output of the model.

        Mean and std of a regression are left out, because the model's last layer applies them.
        """
        return Interface(self.input, len(self.class_names), self.task)

    def fits(self, manifest: Manifest) -> bool:
        """Return whether the model has the same input, task and class names as a data set."""
        return self.input == manifest.input and self._answers_as(manifest)

    def _answers_as(self, manifest: Manifest) -> bool:
        return self.task == manifest.task and are_same(self.task, self.class_names, manifest.class_names)

    def compare_with(self, manifest: Manifest) -> str:
        """Return the part of an error message that compares a data set with the model: task, classes and input."""
        message = (
            f"expected {manifest.task} with the classes {list(manifest.class_names)} and {manifest.input}, received "
            f"{self.task} with the classes {list(self.class_names)} and {self.input}"
        )
        return f"{message}{advise_on_order(self.task, self.class_names, manifest.class_names)}"

    def understands(self, manifest: Manifest) -> bool:
        """Return whether the model can be used with a data set.

        Texts may have to be tokenized again first, with the vocabulary of the model.
        """
        both_texts = isinstance(self.input, TextInput) and isinstance(manifest.input, TextInput)
        return self._answers_as(manifest) and (both_texts or self.input == manifest.input)


def load_history(model_dir: Path) -> tuple[Mapping[str, float | None], ...]:
    """Read `history.jsonl`: one mapping of metrics per epoch, with None for values that are not finite.

    Return an empty tuple if there is no file.

    Raises:
        InputError: If the file is malformed.
    """
    path = model_dir / HISTORY_FILE
    if not path.is_file():
        return ()
    with reading(path, "the history of a training run", "Run train_model again."):
        lines = [typed_json.decode(line, lambda _: None) for line in path.read_text().splitlines()]
        history = typed_values.read(lines, tuple[Mapping[str, int | float | None], ...], "line")
        for epoch in history:
            typed_values.read(epoch.get("epoch"), int, "epoch")
    return history

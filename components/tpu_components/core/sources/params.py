"""Parameters and result of create_tfrecords."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.names import as_nfc
from tpu_components.core.base.typed_values import NotNegative, Positive, Range, Share, check_fields, check_together
from tpu_components.core.examples.artifacts import SPLITS
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    ImageRule,
)
from tpu_components.core.examples.text import END, START, TOKENIZATIONS, WORDS_AND_CHARACTERS
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.core.work.beam.options import require_names

_COLUMNS = ("path", "image", "text", "label", "split", "id", "weight")
LOCAL, FAN_OUT, BEAM = ENGINES = ("local", "fan_out", "beam")
_MOST_ENGINE_TASKS = 1000
ENCODINGS = ("auto", "raw", "resized", "encoded")
SETTABLE_TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION)


@dataclasses.dataclass(frozen=True)
class WriteParams:
    """Source of the examples, and how to split, convert and store them. Each field is an input of the component.

    Attributes:
        source: Kind and place of the data, for example `images:DIR`, `csv:FILE` or `sklearn:digits`. The README of
            create_tfrecords lists all kinds. Paths may be gs:// or s3://.
        task: Task of the model: `classification` (one class of several), `multi_label` (any number of several) or
            `regression` (one number or several). `multi_label` and `regression` require a csv:, npz:, parquet:,
            huggingface: or tfrecords: source; labelstudio: and cvat: also support `multi_label`. The task of a corpus:
            source is `language_model`.
        target_columns: Columns that contain the target numbers of a regression. Empty means the column `label`. The
            targets in an npz: source have no names, so they get these names; empty then means `target` or, for several
            targets, `target_0`, `target_1` and so on.
        validation_fraction: Share of the examples to hold out for validation, if the source has no validation split.
        test_fraction: Share of the examples to hold out for testing, if the source has no test split.
        stratify: Put every class in every split. If a split has no example of a class, one example of this class moves
            there from another split: the one whose hash is nearest to that split's range of hashes. When you add data,
            examples of these small classes may move again, but all other examples keep their splits. Applies only to
            classification, and has no effect with `group_column`.
        group_column: A CSV column or a data field of Label Studio. Examples with the same value form a group, and stay
            in one split. If there are few groups, they are assigned so that the sizes of the splits are as close as
            possible to the fractions.
        slice_columns: CSV columns or data fields of Label Studio that define slices, for example `site`. With
            `gate.slices`, the gate judges the examples of each value separately. Models do not get these columns.
        columns: The names in your data, if they differ from the standard names `path` (for tables of image files),
            `image`, `text`, `label`, `split` and `id`. For example, {"path": "filename"} means that the column
            `filename` contains the paths. Applies to columns of CSV and Parquet files, features of TFRecord files, and
            JSON fields of WebDataset and Label Studio. Common names such as `review` and `sentiment` are detected. An
            entry such as {"weight": "confidence"} multiplies the training loss of each example by its value in the
            column `confidence`. Metrics are not weighted.
        split_files: Pattern of the file names of each split, such as {"train": "mnist-train*", "test": "mnist-test*"},
            if the file names do not begin with the name of the split. Only for TFRecord, Parquet and WebDataset files.
        rewrite: Write the examples as new records. If false, the records of a tfrecords: source are checked and used in
            place, and `dataset.json` refers to them. In this case, labels must already be stored in the form that
            training reads, and `class_names` contains the names of the labels 0, 1 and so on.
        join_copies: In splits that are drawn by hash, treat exact and near copies as one example: copies of test
            examples are left out of training and validation, and copies of validation examples out of training.
        retired_tests: Files `REGISTRY/MODEL/tests/…/examples.npy` of test sets that were used for too many gate
            decisions. The gate prints these paths. The examples of these test sets are left out of every split, so the
            new test set has only newer examples.
        seed: Seed of the split and of the order in which examples are stored.
        image_size: Size to which images are resized: [height, width], or one number for both. Empty means that all
            images must already have the same size.
        channels: Number of channels. 1 converts all images to grey, and 3 converts them to colour. 0 means the number
            of channels of the first image, which all other images must have as well.
        apply_rotation: Rotate photos by their EXIF orientation, in the records and for predictions.
        convert_arrays: Also accept arrays with channels first, floats in [0, 1] or one-hot classes, and convert them.
            The log names each conversion.
        encoding: `raw` stores pixels, `resized` stores JPEG files of image_size, and `encoded` stores the original
            image files. `auto` is `raw` for arrays and for images up to 64×64×3, `resized` if photos are more than a
            tenth larger than image_size, and otherwise `encoded`.
        jpeg_quality: Quality of `resized` images, from 1 to 100.
        crop_margin: Fraction by which stored `resized` images are larger than `image_size`, so that random crops in
            training contain only real pixels. Evaluation and serving use the centre of the images.
        vocabulary_size: Number of token IDs for texts, including the IDs for padding and unknown words. The other IDs
            are for the most frequent words of the training split.
        num_tokens: Length in words to which all texts are cut or padded. For a corpus: source, the number of characters
            in a passage.
        tokenization: Rule that splits texts into words. `words_and_characters`: Unicode spaces and punctuation separate
            words, and each letter of a script without spaces, such as Chinese or Thai, counts as a word.
            `unicode_words`: like `words_and_characters`, but letters of these scripts also form words, for texts whose
            words are already separated by spaces. `words`: the rule from earlier versions, in which only ASCII
            characters separate words and only ASCII capitals become lower case.
        truncate: Side on which texts are cut and padded, `start` or `end`. `start` keeps the last words.
        context_tokens: Number of characters by which validation and test passages of a corpus overlap: a passage begins
            with the last characters of the preceding passage. These characters are context, and are scored only in the
            preceding passage. With 0, nothing precedes a passage, so its first characters have little context.
        class_names: The classes, in order. Empty means all classes in the data, sorted. Names are compared in Unicode
            NFC, and `1.0` is the class `1`. With folders, only the folders that are listed here are used. With integer
            labels in arrays, entry i is the name of label i, unless the list contains every number that occurs as a
            label. With a multi-label npz: source, entry i is the name of column i, and empty means that the column
            numbers are the names.
        target_shard_mib: Target size of a shard, in MiB.
        max_bad_fraction: Largest share of inputs that may be unreadable or lack a label, split or weight. These inputs
            are quarantined and listed in the manifest.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: How a pipeline writes records: `local` in one step, `fan_out` in `engine_tasks` parallel steps and a
            merge step, or `beam` in an Apache Beam job. All engines write the same bytes. The command of the step
            always works like `local`; `create_tfrecords.engines` has commands for the other engines.
        engine_tasks: With `fan_out`, the number of parallel steps, at most 90 on Vertex AI. With `beam`, the number of
            work items.
        beam_options: Options of the Beam pipeline by Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option that takes no value, write "". Parts of the data
            set are stored below `temp_location`, which must be in a bucket if `runner` uses other machines.
    """

    source: str
    task: Annotated[str, SETTABLE_TASKS] = CLASSIFICATION
    target_columns: tuple[str, ...] = ()
    validation_fraction: Annotated[float, Range(0, below=1)] = 0.1
    test_fraction: Annotated[float, Range(0, below=1)] = 0.2
    stratify: bool = True
    group_column: str = ""
    slice_columns: tuple[str, ...] = ()
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rewrite: bool = True
    join_copies: bool = True
    retired_tests: tuple[str, ...] = ()
    seed: int = 0
    image_size: tuple[int, ...] = ()
    channels: Annotated[int, (0, 1, 3)] = 0
    apply_rotation: bool = True
    convert_arrays: bool = True
    encoding: Annotated[str, ENCODINGS] = "auto"
    jpeg_quality: Annotated[int, Range(1, 100)] = 92
    crop_margin: Share = 0.0
    vocabulary_size: Annotated[int, Range(3)] = 15_000
    num_tokens: Positive = 250
    tokenization: Annotated[str, tuple(TOKENIZATIONS)] = WORDS_AND_CHARACTERS
    truncate: Annotated[str, (START, END)] = START
    context_tokens: int = 0
    class_names: tuple[str, ...] = ()
    target_shard_mib: Positive = 32
    max_bad_fraction: Annotated[float, Range(0, below=1)] = 0.0
    num_workers: NotNegative = 0
    engine: Annotated[str, ENGINES] = LOCAL
    engine_tasks: Annotated[int, Range(1, _MOST_ENGINE_TASKS)] = 8
    beam_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "group_column", as_nfc(self.group_column))
        for name in ("target_columns", "slice_columns"):
            object.__setattr__(self, name, tuple(map(as_nfc, getattr(self, name))))
        object.__setattr__(self, "columns", {name: as_nfc(column) for name, column in self.columns.items()})
        object.__setattr__(self, "class_names", tuple(map(class_name, self.class_names)))
        if len(self.image_size) == 1:
            object.__setattr__(self, "image_size", self.image_size * 2)
        check_together(
            (
                self.validation_fraction + self.test_fraction >= 1,
                "validation_fraction and test_fraction must leave examples to train on. Received: "
                f"{self.validation_fraction} + {self.test_fraction}. Make them smaller.",
            ),
            (
                self.crop_margin and (not self.image_size or self.encoding not in ("auto", "resized")),
                f"crop_margin requires image_size and resized images. Received: crop_margin={self.crop_margin} with "
                f"image_size={list(self.image_size)} and encoding={self.encoding!r}. Set image_size, and set encoding "
                "to resized or auto.",
            ),
            (
                len(self.image_size) not in (0, 2) or any(side <= 0 for side in self.image_size),
                f"image_size must be [height, width]. Received: image_size={list(self.image_size)}.",
            ),
            (
                not 0 <= self.context_tokens < self.num_tokens,
                f"context_tokens must be at least 0 and below num_tokens={self.num_tokens}. Received: "
                f"context_tokens={self.context_tokens}.",
            ),
        )
        for name, fits in (("target_columns", self.task == REGRESSION), ("class_names", self.task != REGRESSION)):
            names = getattr(self, name)
            if len(set(names)) < len(names):
                raise InputError(
                    f"{name} must not contain a name twice. Received: {name}={list(names)}. Remove the repeated name."
                )
            if names and not fits:
                raise InputError(
                    f"{name} is not supported with task={self.task!r}. Received: {name}={list(names)}. Remove {name}."
                )
        if strange := sorted(set(self.columns) - set(_COLUMNS)):
            raise InputError(
                f"The keys of columns must be among {', '.join(_COLUMNS)}. Received: {strange[0]!r}."
                + self._meant(strange[0])
            )
        if strange := sorted(set(self.split_files) - set(SPLITS)):
            raise InputError(
                f"The keys of split_files must be among {', '.join(SPLITS)}. Received: {strange[0]!r}."
                + did_you_mean(strange[0], SPLITS)
            )
        if not self.rewrite:
            self._check_not_rewritten()
        require_names(self.beam_options)
        if self.source_ref.place.is_remote:
            _ = self.source_ref.place.bucket  # Checks it.

    def _meant(self, key: str) -> str:
        """Return the hint " Did you mean …?" for an unknown key of `columns`, or "" if no known key is similar.

        If the key and its value seem to be swapped, the hint shows them in the right order.
        """
        name = self.columns[key]
        return f" Did you mean {{{name!r}: {key!r}}}?" if name in _COLUMNS else did_you_mean(key, _COLUMNS)

    def _check_not_rewritten(self) -> None:
        """Raise InputError if a parameter is set that has no effect with rewrite=false."""
        changing = {
            "engine": self.engine != LOCAL,
            "retired_tests": bool(self.retired_tests),
            "encoding": self.encoding != "auto",
            "crop_margin": bool(self.crop_margin),
            "group_column": bool(self.group_column),
            "columns.split": "split" in self.columns,
        }
        if names := [name for name, is_set in changing.items() if is_set]:
            raise InputError(
                f"rewrite=false uses the records as they are, so {names[0]} has no effect. Remove data.{names[0]}, or "
                "set data.rewrite to true."
            )

    @functools.cached_property
    def source_ref(self) -> SourceRef:
        """Kind and place in `source`."""
        return SourceRef.parse(self.source)

    @property
    def image_rule(self) -> ImageRule:
        """How to read the source's images at their original size: with which channels, and whether to rotate them."""
        return ImageRule(None, self.channels, upright=self.apply_rotation)

    @property
    def asked(self) -> str:
        """Task of a model that is trained on the data: `language_model` for a corpus: source, otherwise `task`."""
        return LANGUAGE_MODEL if self.source_ref.kind == CORPUS else self.task

    def without_columns_beyond(self, names: Sequence[str]) -> Self:
        """Return a copy in which `columns` has only entries for columns that a source has.

        `names` are the columns of the source. A source for predictions may lack the columns of labels and IDs.
        """
        there = {name: column for name, column in self.columns.items() if column in names}
        return dataclasses.replace(self, columns=there)


@dataclasses.dataclass(frozen=True)
class WriteResult:
    """Result of create_tfrecords: counts of examples, quarantined inputs and shards, and a digest of the content."""

    num_examples: int
    split_examples: dict[str, int]
    num_quarantined: int
    num_shards: int
    fingerprint: str

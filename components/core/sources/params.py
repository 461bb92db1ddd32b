"""What a user may set, and what comes back."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.typed_values import NotNegative, Positive, Range, Share, check_fields
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    ImageRule,
)
from tpu_components.core.examples.text import END, START
from tpu_components.core.work.beam.options import require_names

_COLUMNS = ("path", "image", "text", "label", "split", "id")
LOCAL, FAN_OUT, BEAM = ENGINES = ("local", "fan_out", "beam")
_MOST_ENGINE_TASKS = 1000
ENCODINGS = ("auto", "raw", "resized", "encoded")
SETTABLE_TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION)


def split_source(text: str) -> tuple[str, str]:
    """Split a source into its kind, and the place or name behind it; what names no kind is a place alone.

    Example:
        >>> split_source("csv:gs://bucket/list.csv"), split_source("flowers")
        (('csv', 'gs://bucket/list.csv'), ('', 'flowers'))
    """
    kind, separator, place = text.partition(":")
    return (kind, place) if separator else ("", text)


@dataclasses.dataclass(frozen=True)
class WriteParams:
    """The source to read and how to divide it; one field per component input.

    Attributes:
        source: Kind and place of the data, as `images:DIR`, `csv:FILE` or `sklearn:digits`; README.md lists all kinds.
            Paths may be gs:// or s3://.
        task: Task of the model: `classification` (one class of several), `multi_label` (any number of several) or
            `regression` (one number or several). The last two need a csv:, npz:, parquet:, huggingface: or tfrecords:
            source; labelstudio: and cvat: have several labels. A corpus: has a task of its own, `language_model`.
        target_columns: CSV columns with the numbers of a regression; empty means `label`. For an npz: source, the
            targets' names; empty means `target`, or `target_0` and so on.
        validation_fraction: Share of the training examples to hold out, where the source has no validation split.
        test_fraction: Share of all examples to hold out, where the source has no test split.
        stratify: Have every class in every split: one that drew no example lends its nearest, and takes it back once
            others come. Without it, an example stays in its split whatever is added. Only classification has one
            class per example; other tasks divide by hash.
        group_column: A CSV column; examples that share its value stay in one split. Few groups are filled to the
            nearest share.
        slice_columns: CSV columns, as `site`, whose values are kept beside the records, so that the gate judges the
            examples of each by themselves (`slices`); models do not see them.
        columns: Columns of a CSV or Parquet file, or features of TFRecords, that are the `path` (of a CSV file),
            `image`, `text`, `label`, `split` or `id`, as {"path": "filename"}, where they have other names; review,
            sentiment and the like are recognised.
        join_copies: Leave out of training whatever is a copy of a held-out example, also a near one, where the source
            has no splits of its own. An example that is tested stays so.
        retired_tests: Files `examples.npy` of test sets that have taken too many decisions, as the gate names them.
            Their examples are in no split any more, so that those that arrived since make a fresh test set.
        seed: Salt of the split and of the order in which examples are stored.
        image_size: (height, width) to resize to, or one number for both; empty means that all images must have one size
            already.
        channels: 1 for grey, 3 for colour, 0 for what the first image has; others are converted only if this is set.
        apply_rotation: Turn photos as their EXIF says: when they are stored, and those that the model is to answer.
        convert_arrays: Read arrays also with channels first, with floats in [0, 1], and with one-hot classes; it is
            said.
        encoding: `raw` pixels, `resized` to image_size as JPEG, image files `encoded` as they are, or `auto`: raw up to
            64×64×3 and of arrays, resized where photos are more than a tenth larger than image_size, else encoded.
        jpeg_quality: Quality of `resized` images, from 1 to 100.
        crop_margin: Share by which `resized` images are stored larger than `image_size`, so that a random crop takes
            real pixels in training; evaluation and serving take the middle.
        vocabulary_size: Number of ids for texts, padding and unknown among them; the most frequent words of the
            training split get one.
        num_tokens: Length in words that all texts are cut or padded to; in a corpus, the characters of a passage.
        truncate: Side on which texts are cut and padded, `start` or `end`; `start` keeps the last words.
        context_tokens: Characters of a corpus that a passage outside the training split only reads, since another one
            predicts them; without them, half of what is predicted has little before it.
        class_names: The classes, in order; empty means those found, sorted. Of folders, those to use; of arrays' whole
            numbers, their names. A multi-label npz: source has none to find: empty means their numbers.
        target_shard_mib: Wanted size of a shard, in MiB.
        max_bad_fraction: Share of the inputs that may be unreadable; these are set aside and listed.
        num_workers: Processes to use; 0 means one per core.
        engine: Place where a pipeline has the records written: `local`, in one step, `fan_out`, in `engine_tasks` steps
            at the same time, whose parts one more puts together, or `beam`, in a job of Apache Beam that one step
            starts and follows. The bytes are the same. The step alone is always `local`.
        engine_tasks: Steps that `fan_out` has, at most 90 on Vertex AI, and runs of parts that `beam` hands to its
            workers.
        beam_options: Options of the Beam pipeline by Beam's own names, as `runner`, `region`, `worker_machine_type` and
            `max_num_workers`; one that has no value is written as "". Parts lie below `temp_location`, which a
            `runner` on other machines needs in a bucket.
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
        if self.validation_fraction + self.test_fraction >= 1:
            raise InputError(
                "validation_fraction and test_fraction must leave something to train on. Received: "
                f"{self.validation_fraction} + {self.test_fraction}. Make them smaller."
            )
        if self.crop_margin and (not self.image_size or self.encoding not in ("auto", "resized")):
            raise InputError(
                "crop_margin needs image_size, and images that are stored resized. Received: "
                f"crop_margin={self.crop_margin} with image_size={list(self.image_size)} and "
                f"encoding={self.encoding!r}. Set data.image_size, and data.encoding to resized or auto."
            )
        if len(self.image_size) == 1:
            object.__setattr__(self, "image_size", self.image_size * 2)
        if len(self.image_size) not in (0, 2) or any(side <= 0 for side in self.image_size):
            raise InputError(f"image_size must be [height, width]. Received: image_size={list(self.image_size)}.")
        for name, fits in (("target_columns", self.task == REGRESSION), ("class_names", self.task != REGRESSION)):
            names = getattr(self, name)
            if len(set(names)) < len(names):
                raise InputError(f"{name} must differ. Received: {name}={list(names)}.")
            if names and not fits:
                raise InputError(
                    f"{name} does not go with task={self.task!r}. Received: {name}={list(names)}. Remove it."
                )
        if strange := sorted(set(self.columns) - set(_COLUMNS)):
            raise InputError(
                f"columns must name some of {', '.join(_COLUMNS)}. Received: {strange[0]!r}."
                + did_you_mean(strange[0], _COLUMNS)
            )
        if not 0 <= self.context_tokens < self.num_tokens:
            raise InputError(
                f"context_tokens must be at least 0 and below num_tokens={self.num_tokens}. Received: "
                f"context_tokens={self.context_tokens}."
            )
        require_names(self.beam_options)

    @property
    def image_rule(self) -> ImageRule:
        """Rule by which the images of the source are read at their own sizes."""
        return ImageRule(None, self.channels, upright=self.apply_rotation)

    @property
    def asked(self) -> str:
        """The task of a model of these data: `task`, or for a corpus: source the language model's."""
        return LANGUAGE_MODEL if split_source(self.source)[0] == CORPUS else self.task


@dataclasses.dataclass(frozen=True)
class WriteResult:
    """The written records: examples in all and per split, inputs set aside, and the content's fingerprint."""

    num_examples: int
    split_examples: dict[str, int]
    num_quarantined: int
    num_shards: int
    fingerprint: str

"""Gives an overview of a data set within seconds: counts, classes, sizes and damaged files."""

import contextlib
import dataclasses
import itertools
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.examples.images import (
    UnreadableImageError,
    describe_losses,
    has_image_suffix,
    read_image,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    IMAGE,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    TEXT,
    TextInput,
)
from tpu_components.core.examples.text import Tokenization, Tokenizer, build_vocabulary, find_tokenization
from tpu_components.core.files import storage
from tpu_components.core.files.csv_files import has_decimal_comma
from tpu_components.core.files.location import Location
from tpu_components.core.pages.display import Displayed
from tpu_components.core.sources.csv_file import JOIN_TABLES
from tpu_components.core.sources.kinds import KIND_OF_SUFFIX, SOURCES, find_source, list_examples
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.core.sources.targets import find_joined
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.unknown_words import warn_of_unknown

# Kinds of data for `--from`, and the sources that read them.
KINDS = {
    "images": "images",
    "csv": "csv",
    "texts": "text",
    "arrays": "npz",
    "corpus": "corpus",
    "archives": "webdataset",
    "parquet": "parquet",
    "tfrecords": "tfrecords",
}
_SUFFIXES_IN_FOLDERS = (".tar", ".parquet", ".tfrecord", ".tfrecords")
_IMBALANCE = 10  # Training balances classes if the largest has more than this many times the smallest.
_SEARCHED_FILES = 1_000
_LOOKED_AT = 500
_LEARNED_FROM = 5_000  # Training texts for the vocabulary; fewer would lack too many words of a language.
_LOOK_SECONDS = 10.0
_SHOWN = 5
_MOST_LEVELS = 20  # Numeric labels with more different values are treated as a regression.


@dataclasses.dataclass(frozen=True, repr=False)
class DataOverview(Displayed):
    """An overview of data, from the names of all files and the content of some files.

    Attributes:
        params: Parameters with which create_tfrecords reads the data.
        kind: Kind of example: `image`, `text` or `corpus`.
        split_examples: Number of examples by split.
        class_examples: Number of examples by class or label. Empty without classes.
        has_splits: Whether the source defines splits.
        notes: Messages about inputs that the source left out, and about assumptions.
        num_looked_at: Number of examples that were read.
        sizes: (height, width) of each image that was read.
        channels: Numbers of channels of the images: 1, 3 or both.
        lengths: Number of words of each text that was read.
        damaged: Damaged examples among the examples that were read: reasons by name.
        unusable: Examples that cannot be used: reasons by name. Only problems that are visible without reading files
            count: table rows without a label, texts without words, and files that are missing or empty.
        num_inputs: Number of all inputs, usable or not.
        class_splits: Number of examples by class or label, for each split.
        warnings: One warning for each split whose words are mostly unknown.
    """

    params: WriteParams
    kind: str
    split_examples: Mapping[str, int]
    class_examples: Mapping[str, int]
    has_splits: bool
    notes: tuple[str, ...]
    num_looked_at: int
    sizes: tuple[tuple[int, int], ...] = ()
    channels: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    damaged: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unusable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_inputs: int = 0
    class_splits: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def trained_classes(self) -> Mapping[str, int]:
        """Number of training examples by class, or of all examples by class if the splits are not known."""
        return self.class_splits.get(TRAIN, self.class_examples)

    @property
    def bad_share(self) -> float:
        """Expected share of bad examples: the larger of the shares of unusable and damaged examples."""
        return max(len(self.unusable) / max(1, self.num_inputs), len(self.damaged) / max(1, self.num_looked_at))

    @property
    def is_imbalanced(self) -> bool:
        """Whether the largest class has more than 10 times as many training examples as the smallest class.

        For tasks other than classification, it is false.
        """
        counts = self.trained_classes.values()
        return self.params.asked == CLASSIFICATION and max(counts, default=0) > _IMBALANCE * max(
            1, min(counts, default=0)
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a table: one row per class, with the number of examples in total and in each split.

        Without classes, return one row per split, with its number of examples.
        """
        if not self.class_examples:
            return [{"split": name, "examples": count} for name, count in self.split_examples.items()]
        by_split = self.class_splits.items()
        return [
            {"class": name, "examples": count} | {split: counts[name] for split, counts in by_split}
            for name, count in self.class_examples.items()
        ]

    def lines(self) -> list[str]:
        """Return the overview for a terminal."""
        return [*self.facts(), *self.remarks()]

    def remarks(self) -> list[str]:
        """Return messages about left-out inputs, assumptions, unknown words and unusable examples."""
        messages = [*self.notes, *self.warnings]
        parts = [(self.unusable, f"{self.num_inputs:,} inputs cannot be used")]
        parts += [(self.damaged, f"{self.num_looked_at:,} examples that were read are damaged")]
        for bad, what in parts:
            some = "; ".join(f"{name}: {reason}" for name, reason in list(bad.items())[:_SHOWN])
            messages += [f"{len(bad):,} of {what}: {some}"] if bad else []
        return messages

    def facts(self) -> list[str]:
        """Return lines for a terminal: the number of examples by split, their classes, and their sizes."""
        total = sum(self.split_examples.values())
        splits = ", ".join(f"{name} {count:,}" for name, count in self.split_examples.items())
        own = "from the source" if self.has_splits else "held out by hash"
        plural = {IMAGE: "images", TEXT: "texts"}.get(self.kind, "passages")
        lines = [f"{total:,} {plural} ({splits}; {own})", *self._class_lines()]
        if self.sizes:
            colours = " and ".join({1: "grey", 3: "colour"}[count] for count in self.channels)
            by_area = sorted(set(self.sizes), key=math.prod)
            least, most = (f"{height}×{width}" for height, width in (by_area[0], by_area[-1]))
            lines.append(f"{least if least == most else f'from {least} to {most}'} pixels, {colours}")
        if self.kind == TEXT and self.lengths:
            lines.append(f"{min(self.lengths):,} to {max(self.lengths):,} words, with a median of {self.typical:,}")
        return lines

    def _class_lines(self) -> list[str]:
        if not self.class_examples:
            return []
        by_size = sorted(self.class_examples.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {count:,}" for name, count in by_size[: 2 * _SHOWN])
        what = "labels" if self.params.task == MULTI_LABEL else "classes"
        return [f"{len(by_size):,} {what}: {shown}" + (", …" if len(by_size) > 2 * _SHOWN else "")]

    @property
    def typical(self) -> int:
        """Median number of words of the texts, or 0 without texts."""
        return int(statistics.median(self.lengths)) if self.lengths else 0


def source_of(place: str, kind: str = "") -> str:
    """Return a value for `data.source`: the kind and the path of the data, for example `images:DIR`.

    If `place` already has this form, it is returned unchanged.

    Args:
        place: A folder or file, local or on gs://, or a value that already has this form.
        kind: One of `KINDS`. If empty, the kind is detected.

    Raises:
        InputError: If the path does not exist, or the kind of its data cannot be detected.
    """
    if SourceRef.parse(place).kind in SOURCES:
        return place
    if kind:
        return f"{KINDS[kind]}:{place}"
    if by_suffix := KIND_OF_SUFFIX.get(Path(place).suffix.lower()):
        return f"{by_suffix}:{place}"
    is_remote = Location(place).is_remote
    if not is_remote and not os.path.exists(place):
        raise InputError(f"Cannot read {place!r}: there is no such file or folder. Check the path.")
    if is_remote:
        names = [file.name for file in storage.list_files(place)]
    else:
        there = (name for _, _, files in os.walk(place) for name in files)
        names = list(itertools.islice(there, _SEARCHED_FILES))
    if any(map(has_image_suffix, names)):
        return f"images:{place}"
    if any("-ubyte" in name for name in names):
        return f"idx:{place}"
    for suffix in _SUFFIXES_IN_FOLDERS:
        if any(name.lower().endswith(suffix) for name in names):
            return f"{KIND_OF_SUFFIX[suffix]}:{place}"
    if any(name.lower().endswith(".txt") for name in names):
        return f"text:{place}"
    tables = [name for name in names if name.lower().endswith(".csv")]
    if tables:
        raise InputError(
            f"Cannot tell which file of {place!r} lists the examples: it contains {quoted(tables)}. Name one of them, "
            f"for example csv:{os.path.join(place, tables[0])}. If the examples and their labels are in two files, "
            f"{JOIN_TABLES}."
        )
    raise InputError(
        f"Cannot detect the kind of data in {place!r}: expected a folder of images, texts, .tar, .parquet or "
        ".tfrecord files, or a .csv, .npz or .txt file, or an export of Label Studio (.json) or CVAT (.xml). If the "
        f"data have one of these forms, name their kind: {', '.join(KINDS)}. Audio, video and tables of "
        "numbers are not supported: convert them first."
    )


class Guess(NamedTuple):
    """A task that was guessed from the labels of the data.

    Attributes:
        params: Parameters to read the data, with the task.
        listing: The examples, or None if they must still be listed with `params`.
        reason: Message to the user that says why the task was chosen. Empty if the labels were not examined.
    """

    params: WriteParams
    listing: Listing | None
    reason: str


def guess_task(params: WriteParams) -> Guess:
    """Guess the task from the labels.

    Labels such as `cat|dog` mean multi-label classification, and numbers with a fraction mean regression. If there are
    only a few different whole numbers, they are classes, even if they are written as `1.0`.

    Raises:
        InputError: If the source cannot be listed.
    """
    if params.task != CLASSIFICATION or "task" not in find_source(params.source_ref).takes:
        return Guess(params, None, "")
    several = dataclasses.replace(params, task=MULTI_LABEL)
    numbers = dataclasses.replace(params, task=REGRESSION, class_names=())
    numeric = Guess(numbers, None, "the task is regression, because the labels are numbers with a fraction")
    try:
        listing = list_examples(params)
    except InputError:
        if _has_several_labels(several):
            return Guess(several, None, "the task is multi_label, because some examples have several labels")
        if not params.class_names and _has_fractions(numbers):
            return numeric
        raise
    names = listing.class_names
    # Exports of annotation tools have lists for several labels, so `|` is part of a name there.
    if params.source_ref.kind == "csv" and any("|" in name for name in names):
        return Guess(several, None, "the task is multi_label, because '|' separates the labels in a cell")
    if not params.class_names and _have_decimal_commas(numbers, names):
        return numeric
    advice = ". data.task=classification makes each number a class"
    if not params.class_names and len(names) > _MOST_LEVELS and _are_numbers(names):
        return Guess(
            numbers, None, f"the task is regression, because the labels are {len(names):,} different numbers{advice}"
        )
    reason = f"the task is classification, because the labels are {len(names):,} different names"
    if _are_numbers(names):
        reason = (
            f"the task is classification, because the labels are {len(names):,} different whole numbers. "
            "data.task=regression predicts them as numbers"
        )
    if joined := find_joined(names):
        reason += (
            f". If a label such as {joined!r} means several labels, write '|' between them, and set "
            "data.task=multi_label"
        )
    return Guess(params, listing, reason)


def _has_several_labels(params: WriteParams) -> bool:
    """Return True if an example has more than one label. If the data cannot be listed with `params`, return False."""
    with contextlib.suppress(InputError):
        return bool((list_examples(params).labels.sum(axis=1) > 1).any())
    return False


def _are_numbers(names: tuple[str, ...]) -> bool:
    try:
        return all(np.isfinite(float(name)) for name in names)
    except ValueError:
        return False


def _has_fractions(params: WriteParams) -> bool:
    """Return True if the labels can be read as regression targets, and some of them have a fraction."""
    with contextlib.suppress(InputError):
        labels = list_examples(params).labels
        return bool((labels != np.floor(labels)).any())
    return False


def _have_decimal_commas(params: WriteParams, names: tuple[str, ...]) -> bool:
    """Return True if labels such as `80,50` are numbers with a decimal comma, and not several labels."""
    return any(map(has_decimal_comma, names)) and _has_fractions(params)


def look_at(params: WriteParams, overrides: Sequence[str] = ()) -> DataOverview:
    """Return an overview of data: list the data, guess their task, divide them into splits, and read some examples.

    Args:
        params: Parameters to read the data.
        overrides: Overrides, as `section.key=value`, that `params` already contains. If they set `data.task`, the task
            is not guessed.

    Raises:
        InputError: If the source cannot be used.
    """
    is_task_set = any(override.startswith("data.task=") for override in overrides)
    params, listing, reason = Guess(params, None, "") if is_task_set else guess_task(params)
    # Bad examples are reported, not refused.
    overview = overview_of(plan_dataset(dataclasses.replace(params, max_bad_fraction=0.99), listing))
    if overview.damaged and len(overview.damaged) == overview.num_looked_at:
        key, problem = next(iter(overview.damaged.items()))
        raise InputError(
            f"Cannot use any of the {overview.num_looked_at:,} examples that were read from {params.source}, for "
            f"example {key!r}: {problem}. Expected images or texts. Audio and video are not supported; convert "
            "them to images first, as spectrograms or frames."
        )
    notes = (reason, *overview.notes) if reason else overview.notes
    return dataclasses.replace(overview, params=params, notes=notes)


def overview_of(plan: DatasetPlan) -> DataOverview:
    """Return an overview of the data in a plan, with the plan's task and splits. Some examples are read."""
    listing, params = plan.listing, plan.params
    overview = DataOverview(
        params=params,
        kind=listing.example_kind,
        split_examples=plan.split_examples,
        class_examples=_count_classes(listing, params),
        class_splits={split: _count_classes(listing, params, some) for split, some in plan.order.items()},
        has_splits=listing.splits is not None and listing.corpus is None,
        notes=listing.notes,
        num_looked_at=0,
        unusable=dict(_find_unusable(listing, find_tokenization(params.tokenization))),
        num_inputs=listing.num_inputs,
    )
    if listing.images is not None:
        count, height, width, channels = listing.images.shape
        return dataclasses.replace(overview, num_looked_at=count, sizes=((height, width),), channels=(channels,))
    if listing.corpus is not None:
        return overview
    return _read_some(overview, plan)


def _find_unusable(listing: Listing, rule: Tokenization) -> Iterator[tuple[str, str]]:
    """Yield the names of unusable examples, with the reasons. No files are read."""
    yield from ((item.key, item.reason) for item in listing.bad)
    if listing.texts is not None:
        without = (listing.keys[i] for i, text in enumerate(listing.texts) if not rule.has_words(text))
        yield from ((key, "no word in it") for key in without)
    if listing.files is not None:
        yield from ((listing.keys[i], "missing or empty") for i in np.flatnonzero(listing.files.sizes == 0).tolist())


def _count_classes(listing: Listing, params: WriteParams, some: Any = slice(None)) -> dict[str, int]:
    if params.asked in (REGRESSION, LANGUAGE_MODEL):
        return {}
    labels = listing.labels[some]
    is_hot = params.task == MULTI_LABEL
    counts = labels.sum(0) if is_hot else np.bincount(labels, minlength=len(listing.class_names))
    return dict(zip(listing.class_names, counts.tolist(), strict=True))


def _read_some(overview: DataOverview, plan: DatasetPlan) -> DataOverview:
    """Add sizes, lengths, damaged examples and warnings from random examples of every split, within 10 seconds."""
    rule = find_tokenization(plan.params.tokenization)
    until = time.monotonic() + _LOOK_SECONDS
    listing = plan.listing
    examples = np.concatenate([indices[:: max(1, len(indices) // _LOOKED_AT)] for indices in plan.order.values()])
    sizes = []
    channels = set()
    lengths = []
    damaged = {}
    looked_at = 0
    lost = Counter[str]()
    for index in np.random.default_rng(0).permutation(examples)[:_LOOKED_AT].tolist():
        if listing.keys[index] in overview.unusable:
            continue
        if time.monotonic() > until:
            break
        looked_at += 1
        try:
            content = listing.read(index)
            if overview.kind == TEXT:
                lengths.append(len(rule.split(content)))
            else:
                picture = read_image(content, overview.params.image_rule)
                height, width, depth = picture.pixels.shape
                lost.update(picture.losses)
                sizes.append((height, width))
                channels.add(depth)
        except (InputError, UnreadableImageError) as error:
            damaged[listing.keys[index]] = str(error)
    return dataclasses.replace(
        overview,
        notes=(*overview.notes, *describe_losses(lost, len(sizes))),
        num_looked_at=looked_at,
        sizes=tuple(sizes),
        channels=tuple(sorted(channels)),
        lengths=tuple(lengths),
        damaged=damaged,
        warnings=tuple(_warn_of_unknown(plan, until)) if overview.kind == TEXT else (),
    )


def _warn_of_unknown(plan: DatasetPlan, until: float) -> Iterator[str]:
    """Yield a warning for each held-out split whose words are mostly unknown. A sample of its texts is examined.

    The vocabulary comes from the first training texts.

    Args:
        plan: Plan of a data set of texts.
        until: Time of `time.monotonic` after which no more texts are read.
    """
    params = plan.params
    rule = find_tokenization(params.tokenization)
    counts = Counter[bytes]()
    for text in _read_texts(plan.listing, plan.order[TRAIN][:_LEARNED_FROM], until):
        counts.update(rule.split(text))
    vocabulary = build_vocabulary(rule.unite(counts), params.vocabulary_size)
    inputs = TextInput(params.num_tokens, params.vocabulary_size, "", rule.name, params.truncate)
    tokenizer = Tokenizer(inputs, vocabulary)
    for name, examples in plan.order.items():
        if name != TRAIN:
            encoded = [tokenizer.encode(text) for text in _read_texts(plan.listing, examples[:_LOOKED_AT], until)]
            num_words = sum(min(text.num_tokens, params.num_tokens) for text in encoded)
            num_unknown = sum(text.num_unknown for text in encoded)
            warning = warn_of_unknown(name, num_unknown, num_words, len(encoded), inputs, vocabulary)
            yield from [warning] if warning else []


def _read_texts(listing: Listing, examples: np.ndarray, until: float) -> Iterator[bytes]:
    """Yield texts until `until`, a time of `time.monotonic`. Texts that cannot be read are left out."""
    for index in examples.tolist():
        if time.monotonic() > until:
            return
        with contextlib.suppress(InputError):
            yield listing.read(index)

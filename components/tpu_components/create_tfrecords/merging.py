"""Builds shards from the parts that workers have encoded, and collects the metadata of the examples."""

import dataclasses
import hashlib
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.measuring import COUNTS, count_independent, count_labels, distributions
from tpu_components.core.examples.artifacts import TRAIN, Quarantined, Shard, Split, stat_shards
from tpu_components.core.examples.example_ids import are_among, identify_each
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, TEXT, UNKNOWN, AnyInput
from tpu_components.core.examples.slice_values import number_groups
from tpu_components.core.sources.columns import Column
from tpu_components.core.sources.listing import Corpus
from tpu_components.core.sources.spans import Spans
from tpu_components.core.sources.targets import check_variation, describe_targets
from tpu_components.create_tfrecords.copies import Copies, find_alike, pairs_of_equal
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import METADATA, Part, WorkerTask, count_per_task, cut_into_tasks
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.create_tfrecords.splitting import LEFT_OUT, require_examples


def regroup(plan: DatasetPlan, before: "Merger", bytes_each: int, staged: Path) -> "Merger":
    """Write existing records again, in the splits and order of another plan. Return the new records' `Merger`.

    The records are copied and not encoded again, because a record does not contain its split.

    Args:
        plan: The new plan.
        before: `Merger` that wrote the existing records.
        bytes_each: Estimated size of a record, in bytes.
        staged: Folder to write to.
    """
    after = Merger(plan, staged)
    task_examples = count_per_task(bytes_each)
    after.bad = before.bad
    place = np.empty(len(plan.whole), plan.whole.dtype)
    place[before.examples] = np.arange(len(before.examples))
    with tempfile.TemporaryDirectory(prefix=".before.", dir=staged) as folder:
        records = before.move_records(Path(folder))
        for task in cut_into_tasks(plan.order, bytes_each, plan.params.target_shard_mib, task_examples):
            frames = _frames_at(records, places := place[task.examples])
            digests = b"".join(hashlib.sha256(frame).digest() for frame in frames)
            after.add(task, dataclasses.replace(before.metadata(places), digests=digests, content=b"".join(frames)))
    return after


def _frames_at(records: Spans, numbers: np.ndarray) -> list[memoryview]:
    """Return the framed records with the indices `numbers`, as views of memory-mapped files.

    The files are closed when all views are deleted.
    """
    files = records.files[numbers]
    maps = {file: np.memmap(records.paths[file], np.uint8, "r").data for file in np.unique(files).tolist()}
    rows = zip(files.tolist(), records.offsets[numbers].tolist(), records.sizes[numbers].tolist(), strict=True)
    return [maps[file][offset : offset + size] for file, offset, size in rows]


@dataclasses.dataclass
class _Shard:
    """A shard that is being written: split, name, number of examples, and CRC32C of its content."""

    split: str
    name: str
    num_examples: int = 0
    crc: int = 0


class Merger:
    """Appends parts to their shards in order, and keeps the metadata of the stored examples in columns.

    Args:
        plan: The plan of the data set.
        directory: Folder to write the shards to.
    """

    def __init__(self, plan: DatasetPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._digest = hashlib.sha256()
        self._shards: list[_Shard] = []
        self._columns: dict[str, Column] = {}
        self.bad: list[Quarantined] = []

    def add(self, task: WorkerTask, part: Part) -> None:
        """Append the encoded examples of a task to the task's shard, and collect their metadata.

        No shard is written if the examples stay in the files of another program.
        """
        if self._plan.listing.stored is None:
            with open(self._directory / task.shard, "ab") as file:
                file.write(part.content)
        if not self._shards or self._shards[-1].split != task.split:
            self._digest.update(f"{task.split}\0".encode())
        if not self._shards or self._shards[-1].name != task.shard:
            self._shards.append(_Shard(task.split, task.shard))
        shard = self._shards[-1]
        shard.num_examples += len(part.kept)
        shard.crc = google_crc32c.extend(shard.crc, part.content)
        # One digest per record, so that the fingerprint does not depend on the size of shards and tasks.
        self._digest.update(part.digests)
        self.bad.extend(part.bad)
        metadata = {name: getattr(part, name) for name in METADATA}
        for name, rows in {"examples": task.examples[part.kept], **metadata}.items():
            if rows is not None:
                self._columns.setdefault(name, Column(rows.dtype, rows.shape[1:])).extend(rows)

    def metadata(self, places: np.ndarray) -> Part:
        """Return the metadata of some examples, as a part without records and digests.

        Args:
            places: Positions of the examples in storage order, int[…].
        """
        own = {name: self._columns[name].rows()[places] for name in METADATA if name in self._columns}
        return Part("", kept=np.arange(len(places), dtype=np.int32), digests=b"", **own)

    def move_records(self, folder: Path) -> Spans:
        """Move the shards to another folder.

        Return the file, offset and size of each framed record, in storage order.
        """
        for shard in self._shards:
            os.rename(self._directory / shard.name, folder / shard.name)
        paths = tuple(str(folder / shard.name) for shard in self._shards)
        files = np.repeat(np.arange(len(paths), dtype=np.int32), [shard.num_examples for shard in self._shards])
        sizes = self._columns["sizes"].rows()
        starts = np.cumsum([0, *map(os.path.getsize, paths)])
        return Spans(paths, files, np.cumsum(sizes, dtype=np.int64) - sizes - starts[files], sizes)

    @property
    def examples(self) -> np.ndarray:
        """The stored examples in storage order: int[kept], indices into the listing."""
        return self._columns["examples"].rows()

    @property
    def totals(self) -> dict[str, int]:
        """Sum of each count over all stored examples, by name, in the order of `measuring.COUNTS`."""
        totals = self._columns["counts"].rows().sum(axis=0, dtype=np.int64).tolist()
        return dict(zip(COUNTS[self._plan.listing.kind], totals, strict=True))

    def by_split(self, column: str) -> dict[str, np.ndarray]:
        """Return a column of the metadata as {split name: values in storage order}, or {} without this column.

        Args:
            column: `examples` (indices into the listing), or a name in `METADATA`. Texts, for example, lack
                `num_pixels`.
        """
        if column not in self._columns:
            return {}
        sizes = Counter[str]()
        for shard in self._shards:
            sizes[shard.split] += shard.num_examples
        rows = np.split(self._columns[column].rows(), np.cumsum([*sizes.values()])[:-1])
        return dict(zip(sizes, rows, strict=True))

    def find_copies(self, words: np.ndarray | None) -> Copies:
        """Find the copies among the stored examples and the texts that the plan leaves out.

        These texts were not written, because they are copies of texts in other splits. The perceptual hashes are
        deleted afterwards, because they take most of the memory.

        Args:
            words: Hash of the words of each text: uint64[num_examples], or None for images.
        """
        listing, left_out = self._plan.listing, self._plan.left_out
        # IDs of scheme 1 show which records are equal; those of scheme 2 show only which originals are equal.
        identities = self._columns["identities"].rows()["scheme1"]
        examples = self.examples
        looks = self._columns.pop("looks", None)
        near = find_alike(looks.rows()) if looks else np.empty((0, 2), int)
        if len(left_out):
            examples = np.concatenate([examples, left_out])
            identities = np.concatenate([identities, identify_each(map(listing.read, left_out.tolist()))])
        if words is not None:
            near = pairs_of_equal(words[examples])
        return Copies.find(listing, self._plan.splits_of(self.by_split("examples")), examples, identities, near)

    def without_retired(self, splits: np.ndarray, retired: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the splits, int8[num_examples], with `LEFT_OUT` for the examples of retired test sets.

        Args:
            splits: Split of every example of the listing: int8[num_examples], indices into `SPLITS`, or LEFT_OUT.
            retired: Example IDs of each retired test set, ID_TYPE[…], by the path of its file.

        Raises:
            InputError: If a split has no examples left, or a test set from an earlier version, whose IDs have scheme 1
                (see `example_ids`), matches no example.
        """
        result = splits.copy()
        identities = self._columns["identities"].rows()
        for place, ids in retired.items():
            is_retired = are_among(identities, ids)
            _check_scheme(place, ids, int(are_among(ids, identities).sum()))
            result[self.examples[is_retired]] = LEFT_OUT
        reason = "in the test sets of data.retired_tests. Wait for new examples, or raise data.test_fraction."
        require_examples(splits, result, reason)
        return result

    def fingerprint(self, inputs: AnyInput) -> str:
        """Return the SHA-256 of all records, the split and class names and `inputs`, as hexadecimal digits."""
        self._digest.update(repr((self._plan.listing.class_names, inputs)).encode())
        return self._digest.hexdigest()

    def splits(self) -> dict[str, Split]:
        """Return the manifest's entries by split name. An entry contains counts, shards and statistics."""
        corpus = self._plan.listing.corpus
        stored = self.by_split("examples")
        if corpus is not None:
            return {split: self._count_characters(corpus, split, passages) for split, passages in stored.items()}
        counts, figures = self.by_split("counts"), self.by_split("figures")
        return {
            split: self._describe(split, examples, counts[split], figures[split]) for split, examples in stored.items()
        }

    def _count_characters(self, corpus: Corpus, split: str, passages: np.ndarray) -> Split:
        # A plan may hold only the first passages, for example in preflight's sample.
        predicted = corpus.ids[split][: int(self._plan.listing.labels[passages].sum())]
        counts = np.bincount(predicted, minlength=corpus.input.vocabulary_size).tolist()
        statistics = {"num_characters": len(predicted), "num_unknown": counts[UNKNOWN]}
        return Split(len(passages), tuple(counts), self._shards_of(split), statistics)

    def _shards_of(self, split: str) -> tuple[Shard, ...]:
        own = [shard for shard in self._shards if shard.split == split]
        if self._plan.listing.stored is None:
            sizes = [os.path.getsize(self._directory / shard.name) for shard in own]
            checksums = [f"{shard.crc:08x}" for shard in own]
        else:
            files = stat_shards([shard.name for shard in own])
            sizes = [files[shard.name][0] for shard in own]
            checksums = [files[shard.name][1] for shard in own]
        rows = zip(own, sizes, checksums, strict=True)
        return tuple(Shard(shard.name, shard.num_examples, num_bytes, crc) for shard, num_bytes, crc in rows)

    def _describe(self, split: str, examples: np.ndarray, counts: np.ndarray, figures: np.ndarray) -> Split:
        task = self._plan.params.task
        listing = self._plan.listing
        # If all inputs of a split were quarantined, there is nothing to count.
        labels = listing.labels[examples]
        class_names = listing.class_names
        is_regression = task == REGRESSION and len(labels)
        if is_regression and split == TRAIN:
            check_variation(labels, class_names)
        totals = zip(COUNTS[listing.kind], counts.sum(axis=0, dtype=np.int64).tolist(), strict=True)
        return Split(
            num_examples=len(labels),
            class_counts=() if task == REGRESSION else _count(task, labels, len(class_names)),
            targets=describe_targets(labels) if is_regression else (),
            shards=self._shards_of(split),
            # A count of 0 is left out for images, of which few are rotated; for texts every count is stored.
            statistics={
                **{name: total for name, total in totals if total or listing.kind == TEXT},
                **self._count_also_in_train(split),
            },
            distributions={
                **(distributions(listing.kind, figures) if len(labels) else {}),
                **(count_labels(labels) if task == MULTI_LABEL and len(labels) else {}),
            },
            independence={}
            if listing.groups is None or not len(labels)
            else count_independent(listing.kind, figures, labels, number_groups(listing.groups)[examples]),
        )

    def _count_also_in_train(self, split: str) -> dict[str, int]:
        if split == TRAIN:
            return {}
        by_split = {name: ids["scheme1"] for name, ids in self.by_split("identities").items()}
        trained = by_split.get(TRAIN, np.empty(0, np.uint64))
        return {"num_also_in_train": int(np.isin(by_split[split], trained).sum())}


def _check_scheme(place: str, retired: np.ndarray, num_known: int) -> None:
    """Warn if examples of a retired test set seem to be missing from the data.

    IDs of scheme 2 cause a warning only if no example is in the data. IDs of scheme 1, from earlier versions, depend on
    the settings of the records. They cause a warning if some examples are not in the data, and an error if none is.

    Args:
        place: File of the retired test set.
        retired: IDs of its examples, ID_TYPE[…].
        num_known: Number of the examples in `retired` that are in the data.

    Raises:
        InputError: If the IDs of the test set are of scheme 1, and none of its examples is in the data.
    """
    is_old = len(retired) and not retired["scheme2"].any()
    num_missing = len(retired) - num_known
    cause = (
        "An earlier version wrote this file, with IDs that depend on the settings of the records (image_size, "
        "channels, encoding, crop_margin, apply_rotation). If the settings have changed since then, write the records "
        "once with the original settings and without data.retired_tests, and convert "
        f"the file: python -m tpu_components.create_tfrecords.convert_ids RECORDS {shlex.quote(str(place))}"
    )
    if is_old and not num_known:
        raise InputError(
            f"Cannot leave out the retired test set {place}: none of its {len(retired):,} examples is in this data "
            f"set. {cause}. If the examples were deleted, remove this test set from data.retired_tests."
        )
    if is_old and num_missing:
        progress.say(
            STEP,
            f"Warning: {num_missing:,} of the {len(retired):,} examples of the retired test set {place} are not in "
            f"this data set, or were not recognized and may be in a split again. {cause}",
        )
    elif not num_known:
        progress.say(
            STEP, f"Warning: no example of this data set is in the retired test set {place}. Check data.retired_tests"
        )


def _count(task: str, labels: np.ndarray, num_classes: int) -> tuple[int, ...]:
    if task == CLASSIFICATION:
        return tuple(np.bincount(labels.astype(int), minlength=num_classes).tolist())
    return tuple(labels.reshape(-1, num_classes).astype(int).sum(axis=0).tolist())

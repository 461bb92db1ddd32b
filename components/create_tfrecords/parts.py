"""Runs of examples, the unit of work: cut, encoded by worker processes, each into a file."""

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from components.artifacts import KEY_FEATURE, LABEL_FEATURE, Quarantined
from components.create_tfrecords.copies import LOOKED_AT_ONCE, look_at
from components.create_tfrecords.encoders import EncodedExample, Encoder, OddShapeError, UnusableError
from components.create_tfrecords.measuring import FIGURES, NOT_MEASURED, measure_pictures
from components.create_tfrecords.sharding import plan_shards
from components.create_tfrecords.sources.listing import Listing
from components.create_tfrecords.sources.spans import read_content
from components.errors import InputError
from components.records import encode_example, frame_record

# What a worker takes at a time: little enough to keep all busy to the end, and the progress moving.
TASK_EXAMPLES, _TASK_BYTES = 1024, 16 << 20
_TASKS_PER_WORKER = 8
_WRITTEN_AT_ONCE = 1 << 18  # Bytes that stay in a processor's cache.
DIGEST_BYTES = 32

Task = tuple[str, str, np.ndarray]  # Split, name of the shard, and examples: indices into the listing.


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of examples as a worker wrote it.

    Attributes:
        path: A file of framed records.
        kept: Places of the kept examples in the run.
        sizes: Bytes of each record.
        labels: The label of each.
        digests: The SHA-256 of each record, one after the other.
        bad: Examples that were set aside.
        odd: The name and shape of an image unlike the others, which ends the writing.
        counts: Counts that the split's statistics add up.
        identities: Eight bytes of each.
        looks: Looks of images, uint8[kept, 8, 9]; None for texts.
        figures: Figures of each as `measuring.FIGURES` has them, int16[kept, figures]; -1 where it is not measured.
    """

    path: str
    kept: list[int] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    digests: bytes = b""
    bad: list[Quarantined] = dataclasses.field(default_factory=list)
    odd: tuple[str, tuple[int, ...]] | None = None
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    identities: bytes = b""
    looks: np.ndarray | None = None
    figures: np.ndarray | None = None


Written = Generator[tuple[Part, bytes], None, None]  # Of tasks, in order: their books, and their framed records.


def content_of(listing: Listing, indices: np.ndarray) -> tuple[list[str], Any]:
    """Return the keys of examples, and their content where the listing has it; see `read_content`."""
    keys = [listing.keys[i] for i in indices]
    if listing.spans is not None:
        return keys, [listing.spans[i] for i in indices.tolist()]
    if listing.texts is not None:
        return keys, [listing.texts[i] for i in indices]
    return keys, None if listing.images is None else listing.images[indices]


def count_per_task(bytes_each: int) -> int:
    """Return how many examples of a size a worker takes at a time."""
    return min(max(_TASK_BYTES // bytes_each, 1), TASK_EXAMPLES)


def share_out(num_examples: int, most: int, num_workers: int) -> int:
    """Return how many examples each worker takes at a time, at most `most`: several times, so that none waits long.

    Example:
        >>> share_out(1000, 400, 2), share_out(1000, 10, 2)
        (63, 10)
    """
    return min(most, -(-num_examples // (_TASKS_PER_WORKER * num_workers)))


def cut_into_tasks(
    order: Mapping[str, np.ndarray], bytes_each: int, target_shard_mib: int, task_examples: int
) -> Iterator[Task]:
    """Yield every task, in order; a shard is one or more of them."""
    for split, indices in order.items():
        shards = plan_shards(split, len(indices), len(indices) * bytes_each, target_shard_mib)
        for name, (start, end) in zip(shards.names, shards.boundaries, strict=True):
            for at in range(start, end, task_examples):
                yield split, name, indices[at : min(at + task_examples, end)]


def write_part(
    encoder: Encoder,
    path: str,
    labels: Sequence[Any],
    keys: Sequence[str],
    contents: Any,
    hashes: Sequence[bytes] | None,
) -> Part:
    """Check and encode a run of examples, from their files where `contents` is None; runs in a worker process.

    A file that is at `path` is written over, since the pages of a new one cost more than what is written to them: its
    records are the first of it.
    """
    digests, identities, seen = bytearray(), bytearray(), _Seen(encoder.input.kind)
    part = Part(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT), "wb", _WRITTEN_AT_ONCE) as file:
        for position, (key, label) in enumerate(zip(keys, labels, strict=True)):
            try:
                content = read_content(encoder.root, key, None if contents is None else contents[position])
                stored = encoder.store(content, hashes[position] if hashes else None)
            except (UnusableError, InputError) as error:
                part.bad.append(Quarantined(key, str(error)))
                continue
            except OddShapeError as error:
                return Part(path, odd=(key, error.shape))
            frame = frame_record(encode_example({**stored.fields, LABEL_FEATURE: label, KEY_FEATURE: key.encode()}))
            file.write(frame)
            digests += hashlib.sha256(frame).digest()
            identities += stored.identity
            part.kept.append(position)
            part.sizes.append(len(frame))
            part.labels.append(label)
            if stored.counts:
                part.counts.update(stored.counts)
            seen.add(stored)
    return dataclasses.replace(
        part,
        digests=bytes(digests),
        identities=bytes(identities),
        looks=seen.looks(),
        figures=seen.figures(),
    )


class _Seen:
    """Collects looks and figures of examples; of pictures some at a time, for which arrays pay."""

    def __init__(self, kind: str) -> None:
        self._looks: list[np.ndarray] = []
        self._rows: list[tuple[int, ...]] = []
        self._measured: list[np.ndarray] = []
        self._waiting: list[tuple[np.ndarray, bool]] = []
        self._num_figures = len(FIGURES[kind])

    def add(self, stored: EncodedExample) -> None:
        """Add an example."""
        self._rows.append(stored.figures or (NOT_MEASURED,))
        if stored.picture is not None:
            self._waiting.append((stored.picture, stored.figures is not None))
            if len(self._waiting) == LOOKED_AT_ONCE:
                self._look()

    def _look(self) -> None:
        self._looks.append(look_at([picture for picture, _ in self._waiting]))
        if pictures := [picture for picture, is_measured in self._waiting if is_measured]:
            self._measured.append(measure_pictures(pictures))
        self._waiting = []

    def looks(self) -> np.ndarray | None:
        """Return the looks of all pictures; None where there are none."""
        if self._waiting:
            self._look()
        return np.concatenate(self._looks) if self._looks else None

    def figures(self) -> np.ndarray:
        """Return the figures of all examples, once their looks are taken."""
        table = np.full((len(self._rows), self._num_figures), NOT_MEASURED, np.int16)
        places = [place for place, row in enumerate(self._rows) if row[0] != NOT_MEASURED]
        if places:
            own = np.array([self._rows[place] for place in places], np.int16)
            table[places] = np.hstack([*([np.concatenate(self._measured)] if self._measured else []), own])
        return table

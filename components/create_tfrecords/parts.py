"""Runs of examples, the unit of work: cut, encoded by worker processes, each into a file."""

import array
import dataclasses
import functools
import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import KEY_FEATURE, LABEL_FEATURE, Quarantined
from tpu_components.core.examples.example_ids import IDENTITY_TYPE
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.examples.records import encode_example, frame_record
from tpu_components.core.sources.spans import place_of, read_content
from tpu_components.core.work.workers import ahead
from tpu_components.create_tfrecords.copies import LOOKED_AT_ONCE, look_at
from tpu_components.create_tfrecords.encoders import EncodedExample, Encoder, OddShapeError, UnusableError
from tpu_components.create_tfrecords.measuring import COUNTS, FIGURES, NOT_MEASURED, measure_pictures
from tpu_components.create_tfrecords.sharding import plan_shards

# What a worker takes at a time: little enough to keep all busy to the end, and the progress moving.
TASK_EXAMPLES, _TASK_BYTES = 1024, 16 << 20
_TASKS_PER_WORKER = 8
_WRITTEN_AT_ONCE = 1 << 18  # Bytes that stay in a processor's cache.

Task = tuple[str, str, np.ndarray]  # Split, name of the shard, and examples: indices into the listing.


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of examples as a worker wrote it.

    Attributes:
        path: A file whose first records, framed, are these.
        kept: Places of the kept examples in the run, int32[kept].
        sizes: Bytes of each record, int32[kept].
        digests: The SHA-256 of each record, one after the other.
        identities: Eight bytes of each, uint64[kept].
        counts: Counts of each that the split's statistics add up, int32[kept, …]: those of `measuring.COUNTS`.
        figures: Figures of each as `measuring.FIGURES` has them, int16[kept, …]; -1 where it is not measured.
        looks: Looks of images, uint8[kept, 8, 9]; None for texts.
        num_pixels: Pixels of each image's file, int32[kept]; None for texts.
        bad: Examples that were set aside.
        odd: The name and shape of an image unlike the others, which ends the writing.
    """

    path: str
    kept: np.ndarray
    sizes: np.ndarray
    digests: bytes
    identities: np.ndarray
    counts: np.ndarray
    figures: np.ndarray
    looks: np.ndarray | None = None
    num_pixels: np.ndarray | None = None
    bad: tuple[Quarantined, ...] = ()
    odd: tuple[str, tuple[int, ...]] | None = None


# What a part has of each example that it kept, beside its place in the run.
BOOKS = ("sizes", "identities", "counts", "figures", "looks", "num_pixels")
Written = Generator[tuple[Part, bytes], None, None]  # Of tasks, in order: their books, and their framed records.


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
    hashes: np.ndarray | None,
) -> Part:
    """Check and encode a run of examples, from their files where `contents` is None; runs in a worker process.

    A file that is at `path` is written over, since the pages of a new one cost more than what is written to them: its
    records are the first of it.
    """
    kind, digests = encoder.input.kind, bytearray()
    kept, sizes, identities, counts = array.array("i"), array.array("i"), bytearray(), array.array("i")
    num_pixels = array.array("i")
    bad, odd, seen = [], None, _Seen(kind)
    held = [None] * len(keys) if contents is None else contents
    read = ahead(functools.partial(_try_to_read, encoder.root), place_of(encoder.root, held), keys, held)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT), "wb", _WRITTEN_AT_ONCE) as file:
        for position, (key, label, content) in enumerate(zip(keys, labels, read, strict=True)):
            try:
                if isinstance(content, InputError):
                    raise content
                stored = encoder.store(content, None if hashes is None else hashes[position].tobytes())
            except (UnusableError, InputError) as error:
                bad.append(Quarantined(key, str(error)))
                continue
            except OddShapeError as error:
                odd = key, error.shape
                break
            frame = frame_record(encode_example({**stored.fields, LABEL_FEATURE: label, KEY_FEATURE: key.encode()}))
            file.write(frame)
            digests += hashlib.sha256(frame).digest()
            identities += stored.identity
            kept.append(position)
            sizes.append(len(frame))
            counts.extend(stored.counts)
            num_pixels.append(stored.num_pixels)
            seen.add(stored)
    return Part(
        path,
        kept=np.array(kept),
        sizes=np.array(sizes),
        digests=bytes(digests),
        identities=np.frombuffer(identities, IDENTITY_TYPE),
        counts=np.array(counts).reshape(-1, len(COUNTS[kind])),
        figures=seen.figures(),
        looks=seen.looks(),
        num_pixels=np.array(num_pixels) if kind == IMAGE else None,
        bad=tuple(bad),
        odd=odd,
    )


def _try_to_read(root: str, key: str, held: Any) -> Any:
    """Return an example's content, or the error of reading it, which is its own alone."""
    try:
        return read_content(root, key, held)
    except InputError as error:
        return error


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
        if not self._waiting:
            return
        self._looks.append(look_at([picture for picture, _ in self._waiting]))
        if pictures := [picture for picture, is_measured in self._waiting if is_measured]:
            self._measured.append(measure_pictures(pictures))
        self._waiting = []

    def looks(self) -> np.ndarray | None:
        """Return the looks of all pictures; None where there are none."""
        self._look()
        return np.concatenate(self._looks) if self._looks else None

    def figures(self) -> np.ndarray:
        """Return the figures of all examples."""
        self._look()
        table = np.full((len(self._rows), self._num_figures), NOT_MEASURED, np.int16)
        places = [place for place, row in enumerate(self._rows) if row[0] != NOT_MEASURED]
        if places:
            own = np.array([self._rows[place] for place in places], np.int16)
            table[places] = np.hstack([*([np.concatenate(self._measured)] if self._measured else []), own])
        return table

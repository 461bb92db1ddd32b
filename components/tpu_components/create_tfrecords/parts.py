"""Divides a data set into tasks, and encodes each task as a part.

A task is a range of a shard's examples. A part is the file into which a worker encodes these examples.
"""

import array
import dataclasses
import hashlib
import io
import itertools
import json
import os
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.drift.measuring import COUNTS, FIGURES, NOT_MEASURED, measure_pictures
from tpu_components.core.examples.artifacts import KEY_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE, Quarantined
from tpu_components.core.examples.example_ids import ID_TYPE
from tpu_components.core.examples.interface import IMAGE, UnreadableError
from tpu_components.core.examples.records import DamagedRecordError, encode_example, frame_record, read_fields
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.sources.columns import Pieces, pick
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.stored_records import StoredRecords
from tpu_components.core.sources.tasks import Selection
from tpu_components.create_tfrecords.copies import LOOKED_AT_ONCE, look_at
from tpu_components.create_tfrecords.encoders import EncodedExample, Encoder

# Largest size of a task: small, so that all workers are busy until the end and progress is reported often.
TASK_EXAMPLES = 1024
_TASK_BYTES = 16 << 20
_TASKS_PER_WORKER = 8
_WRITTEN_AT_ONCE = 1 << 18  # Bytes that stay in a processor's cache.


class WorkerTask(NamedTuple):
    """Examples that a worker encodes in one call: their split, the name of their shard, and their listing indices."""

    split: str
    shard: str
    examples: np.ndarray


@dataclasses.dataclass(frozen=True)
class Part:
    """The encoded examples of a task, and their metadata.

    Attributes:
        path: File that a worker wrote. It begins with the framed records. Bytes after the records are ignored.
        kept: Indices of the kept examples in the task, int32[kept].
        sizes: Size of each record in bytes, int32[kept].
        digests: SHA-256 digests of the records, concatenated.
        identities: Example IDs, ID_TYPE[kept]; see `example_ids`.
        counts: Counts of each example that are summed over the split, int32[kept, …], in the order of
            `measuring.COUNTS`. None for passages of a corpus.
        figures: Measurements of each example, int16[kept, …], in the order of `measuring.FIGURES`, or -1 if the example
            is not measured. None for passages of a corpus.
        looks: Perceptual hashes of images, uint8[kept, 8, 9], or None for texts.
        num_pixels: Number of pixels in each image's file, int32[kept], or None for texts.
        bad: Examples that were quarantined.
        content: Framed records. Empty until `read_records` has read them from `path`.
    """

    path: str
    kept: np.ndarray
    sizes: np.ndarray
    digests: bytes
    identities: np.ndarray
    counts: np.ndarray | None = None
    figures: np.ndarray | None = None
    looks: np.ndarray | None = None
    num_pixels: np.ndarray | None = None
    bad: tuple[Quarantined, ...] = ()
    content: bytes = b""


# Fields of `Part` with metadata of each kept example.
METADATA = ("sizes", "identities", "counts", "figures", "looks", "num_pixels")
Written = Generator[tuple[WorkerTask, Part], None, None]  # The tasks in order, each with its part.


def plan_shards(
    split: str, num_examples: int, total_bytes: int, target_shard_mib: int = 32
) -> dict[str, tuple[int, int]]:
    """Split examples into shards of roughly equal size.

    Args:
        split: Name of the split. The file names begin with it.
        num_examples: Examples to write. Must be positive.
        total_bytes: Serialized size of the examples, in bytes. It may be an estimate.
        target_shard_mib: Target size of a shard, in MiB.

    Returns:
        Half-open ranges by shard file name. They cover [0, num_examples) once, and their sizes differ by at most one.

    Example:
        >>> list(plan_shards("train", num_examples=5, total_bytes=80 * 2**20).values())
        [(0, 1), (1, 3), (3, 5)]
    """
    target_bytes = target_shard_mib << 20
    count = min(num_examples, max(1, -(-total_bytes // target_bytes)))
    edges = [i * num_examples // count for i in range(count + 1)]
    names = (f"{split}-{i:05d}-of-{count:05d}.tfrecord" for i in range(count))
    return dict(zip(names, itertools.pairwise(edges), strict=True))


def count_per_task(bytes_each: int) -> int:
    """Return the largest number of examples in a task if each example has `bytes_each` bytes.

    A task has at least one example, and is limited to `TASK_EXAMPLES` examples and `_TASK_BYTES` bytes.
    """
    return min(max(_TASK_BYTES // bytes_each, 1), TASK_EXAMPLES)


def share_out(num_examples: int, most: int, num_workers: int) -> int:
    """Return the number of examples in a task: at most `most`, and few enough that each worker gets several tasks.

    With several small tasks per worker, no worker waits long for other workers at the end.

    Example:
        >>> share_out(1000, 400, 2), share_out(1000, 10, 2)
        (63, 10)
    """
    return min(most, -(-num_examples // (_TASKS_PER_WORKER * num_workers)))


def cut_into_tasks(
    order: Mapping[str, np.ndarray], bytes_each: int, target_shard_mib: int, task_examples: int
) -> Iterator[WorkerTask]:
    """Divide all examples into shards, and each shard into one or more tasks. Yield the tasks in storage order.

    Args:
        order: Examples of each split in storage order: int[…], indices into the listing.
        bytes_each: Estimated size of a record, in bytes.
        target_shard_mib: Target size of a shard, in MiB.
        task_examples: Largest number of examples in a task.
    """
    for split, indices in order.items():
        for name, (start, end) in plan_shards(split, len(indices), len(indices) * bytes_each, target_shard_mib).items():
            for at in range(start, end, task_examples):
                yield WorkerTask(split, name, indices[at : min(at + task_examples, end)])


def cut_files(stored: StoredRecords, order: Mapping[str, np.ndarray], task_examples: int) -> Iterator[WorkerTask]:
    """Divide the examples of existing TFRecord files, which are not rewritten, into tasks.

    The tasks are yielded in storage order. The shard name of a task is the path of its file.
    """
    starts = dict.fromkeys(order, 0)
    for split, indices in order.items():
        for file in (file for file in stored.files if file.split == split):
            end = starts[split] + file.num_examples
            for at in range(starts[split], end, task_examples):
                yield WorkerTask(split, file.path, indices[at : min(at + task_examples, end)])
            starts[split] = end


def write_part(encoder: Encoder, path: str, examples: Selection) -> Part:
    """Check and encode the examples of a task, and write their records to a file. Return their metadata.

    Worker processes call this function. An existing file at `path` is overwritten from its start and not truncated,
    because allocating the pages of a new file costs more than writing them.

    Args:
        encoder: Encoder of the examples.
        path: File to write.
        examples: The examples, with their labels.

    Raises:
        InputError: If images differ in shape.
    """
    kind = encoder.input.kind
    digests = bytearray()
    hashes = examples.hashes
    weights = examples.weights
    kept = array.array("i")
    sizes = array.array("i")
    identities = bytearray()
    counts = array.array("i")
    num_pixels = array.array("i")
    bad = []
    seen = _Seen(kind)
    rows = zip(examples.keys, examples.values, examples.read_each(), strict=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | storage.BINARY), "wb", _WRITTEN_AT_ONCE) as file:
        for position, (key, label, content) in enumerate(rows):
            try:
                if isinstance(content, InputError):
                    raise UnreadableError(str(content))
                stored = encoder.store(key, content, None if hashes is None else hashes[position].tobytes())
            except UnreadableError as error:
                bad.append(Quarantined(key, str(error)))
                continue
            fields = {**stored.fields, LABEL_FEATURE: label, KEY_FEATURE: key.encode()}
            if weights is not None:
                fields[WEIGHT_FEATURE] = weights[position : position + 1].tolist()
            frame = frame_record(encode_example(fields))
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
        identities=np.frombuffer(identities, ID_TYPE),
        counts=np.array(counts).reshape(-1, len(COUNTS[kind])) if kind in COUNTS else None,
        figures=seen.figures() if kind in FIGURES else None,
        looks=seen.looks(),
        num_pixels=np.array(num_pixels) if kind == IMAGE else None,
        bad=tuple(bad),
    )


class _Seen:
    """Collects perceptual hashes and measurements of examples. They are computed in batches, which is faster."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._waiting: list[tuple[np.ndarray | None, tuple[int, ...] | None]] = []
        self._looks: list[np.ndarray] = []
        self._figures: list[np.ndarray] = []

    def add(self, stored: EncodedExample) -> None:
        """Collect the perceptual hash and the measurements of an example."""
        self._waiting.append((stored.picture, stored.figures))
        if len(self._waiting) == LOOKED_AT_ONCE:
            self._look()

    def _look(self) -> None:
        seen = self._waiting
        self._waiting = []
        if pictures := [picture for picture, _ in seen if picture is not None]:
            self._looks.append(look_at(pictures))
        rows = np.full((len(seen), len(FIGURES.get(self._kind, ()))), NOT_MEASURED, np.int16)
        if places := [place for place, (_, figures) in enumerate(seen) if figures is not None]:
            own = np.array([seen[place][1] for place in places], np.int16)
            measured = [picture for picture, figures in seen if figures is not None and picture is not None]
            rows[places] = np.hstack([measure_pictures(measured), own]) if measured else own
        self._figures.append(rows)

    def looks(self) -> np.ndarray | None:
        """Return the perceptual hashes of all images, or None if there are no images."""
        self._look()
        return np.concatenate(self._looks) if self._looks else None

    def figures(self) -> np.ndarray:
        """Return the measurements of all examples. See `Part.figures`."""
        self._look()
        return np.concatenate(self._figures)


def read_records(part: Part) -> Part:
    """Read the framed records that a worker on this machine wrote to `part.path`. Return the part with its records."""
    with open(part.path, "rb") as file:
        return dataclasses.replace(part, content=file.read(sum(part.sizes)))


def part_bytes(part: Part) -> bytes:
    """Serialize the metadata and the framed records of a part, as the content of an .npz file."""
    bad = [dataclasses.asdict(item) for item in part.bad]
    arrays = {name: array for name in ("kept", *METADATA) if (array := getattr(part, name)) is not None}
    file = io.BytesIO()
    np.savez(
        file,
        bad=np.frombuffer(json.dumps(bad).encode(), np.uint8),
        content=np.frombuffer(part.content, np.uint8),
        **arrays,
    )
    return file.getvalue()


def read_part(uri: str, file: bytes) -> Part:
    """Parse a part that `part_bytes` serialized. The digests of its records are not stored, but computed again.

    Args:
        uri: Path or URI of the file, for messages.
        file: Content of the file.

    Raises:
        InputError: If the file is not a part.
    """
    with reading(uri, "the part that a task has written", "Remove the file, and run that task again."):
        stored = read_arrays(uri, file)
        content = stored["content"].tobytes()
        bad = typed_values.read(typed_json.decode(stored["bad"].tobytes()), tuple[Quarantined, ...])
        metadata: dict[str, Any] = {name: stored[name] for name in ("kept", *METADATA) if name in stored}
        digests = b"".join(hashlib.sha256(frame).digest() for frame in Pieces(content, np.cumsum(metadata["sizes"])))
        return Part(uri, digests=digests, bad=bad, content=content, **metadata)


def check_part(part: Part, listing: Listing, indices: np.ndarray) -> None:
    """Check that each example of a task is in its part, with its key, label and weight, or was quarantined.

    The encoded images and texts are not checked, because they would have to be encoded again.

    Args:
        part: The part.
        listing: The examples of the plan.
        indices: Examples of the task: int[…], indices into the listing.

    Raises:
        InputError: If the part does not match the task.
    """
    left = np.ones(len(indices), bool)
    content = part.content
    try:
        odd = [name for name in METADATA if (rows := getattr(part, name)) is not None and len(rows) != len(part.kept)]
        if odd or sum(part.sizes.tolist()) != len(content):
            raise ValueError(f"{len(content):,} bytes of records, and metadata that describes different records")
        left[part.kept] = False
        if np.any(np.diff(part.kept) <= 0) or np.any(part.kept < 0):
            raise ValueError("examples in another order")
        if (keys := [item.key for item in part.bad]) != pick(listing.keys, indices[left]):
            raise ValueError(
                f"{len(part.kept):,} examples and {len(keys):,} quarantined inputs, but the task has "
                f"{len(indices):,} other examples"
            )
        kept = indices[part.kept]
        weights = [None] * len(kept) if listing.weights is None else listing.weights[kept, None].tolist()
        labels = listing.labels[kept].tolist()
        frames = Pieces(content, np.cumsum(part.sizes))
        for key, label, weight, frame in zip(pick(listing.keys, kept), labels, weights, frames, strict=True):
            fields = read_fields(frame)
            wanted = [[key.encode()], label if isinstance(label, list) else [label], weight]
            if [fields.get(name) for name in (KEY_FEATURE, LABEL_FEATURE, WEIGHT_FEATURE)] != wanted:
                raise ValueError(f"a name, label or weight that differs from that of {key!r}")
    except (ValueError, TypeError, IndexError, DamagedRecordError) as error:
        raise InputError(
            f"The part {part.path} does not match its task in the plan ({error}). Remove the file, and run that task "
            "again."
        ) from error

"""The parts that workers wrote, appended to their shards and counted."""

import dataclasses
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from components.artifacts import TRAIN, Quarantined, Shard, Split
from components.create_tfrecords.copies import Copies, find_alike, pairs_of_equal
from components.create_tfrecords.encoders import Encoder
from components.create_tfrecords.measuring import distributions
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.parts import DIGEST_BYTES, Part, count_per_task, cut_into_tasks
from components.create_tfrecords.planning import DatasetPlan
from components.create_tfrecords.sources.listing import Listing
from components.create_tfrecords.targets import check_variation, describe_targets
from components.identities import IDENTITY_BYTES
from components.interface import CLASSIFICATION, REGRESSION


def regroup(params: WriteParams, plan: DatasetPlan, before: "Merger", bytes_each: int, staged: Path) -> "Merger":
    """Write the records of a merger again, now as a plan has it: copied, since a record does not say its split."""
    after = Merger(staged)
    after.bad = before.bad
    with tempfile.TemporaryDirectory(prefix=".before.", dir=staged) as folder:
        places: dict[int, tuple[memoryview, int, Part, int]] = {}
        shards: dict[str, tuple[memoryview, int]] = {}
        for _, name, examples, part in before.written:
            if name not in shards:
                os.rename(staged / name, os.path.join(folder, name))
                shards[name] = np.memmap(os.path.join(folder, name), np.uint8, "r").data, 0
            shard, offset = shards[name]
            for number, (example, size) in enumerate(zip(examples.tolist(), part.sizes, strict=True)):
                places[example] = shard, offset, part, number
                offset += size
            shards[name] = shard, offset
        task_examples = count_per_task(bytes_each)
        for split, name, indices in cut_into_tasks(plan.order, bytes_each, params.target_shard_mib, task_examples):
            moved = Part("", kept=list(range(len(indices))))
            digests, identities, frames, figures = bytearray(), bytearray(), [], []
            for shard, offset, part, number in (places[example] for example in indices.tolist()):
                moved.sizes.append(size := part.sizes[number])
                moved.labels.append(part.labels[number])
                if part.figures is not None:
                    figures.append(part.figures[number])
                digests += part.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
                identities += part.identities[number * IDENTITY_BYTES : (number + 1) * IDENTITY_BYTES]
                frames.append(shard[offset : offset + size])
            table = np.stack(figures) if figures else None
            part = dataclasses.replace(moved, digests=bytes(digests), identities=bytes(identities), figures=table)
            after.add(split, name, indices, part, b"".join(frames))
    return after


class Merger:
    """Appends parts to their shards, in order, and keeps the books."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digest = hashlib.sha256()
        self._split = ""
        self._labels: dict[tuple[str, str], list[Any]] = {}
        self._crc: dict[tuple[str, str], int] = {}
        self._counts: dict[str, Counter[str]] = {}
        self.identities: dict[str, bytearray] = {}
        self.written: list[tuple[str, str, np.ndarray, Part]] = []  # Split, shard, examples, what they became.
        self.bad: list[Quarantined] = []

    def add(self, split: str, name: str, indices: np.ndarray, part: Part, content: bytes) -> None:
        """Append a run of examples to a shard: `content` is what the part's file holds."""
        with open(self._directory / name, "ab") as file:
            file.write(content)
        shard = split, name
        self._crc[shard] = google_crc32c.extend(self._crc.get(shard, 0), content)
        self._labels.setdefault(shard, []).extend(part.labels)
        if split != self._split:
            self._split = split
            self._digest.update(f"{split}\0".encode())
        # Record by record, so that the size of shards and tasks does not show.
        self._digest.update(part.digests)
        self.bad.extend(part.bad)
        self._counts.setdefault(split, Counter()).update(part.counts)
        self.identities.setdefault(split, bytearray()).extend(part.identities)
        self.written.append((split, name, indices[part.kept], part))

    @property
    def examples(self) -> np.ndarray:
        """int[kept]: the listing's examples in the order in which they are stored."""
        return np.concatenate([examples for _, _, examples, _ in self.written])

    def stored(self) -> dict[str, np.ndarray]:
        """Return the same for each split."""
        names = dict.fromkeys(split for split, *_ in self.written)
        return {
            name: np.concatenate([examples for split, _, examples, _ in self.written if split == name])
            for name in names
        }

    def find_copies(self, listing: Listing, words: np.ndarray | None) -> tuple[Copies, np.ndarray]:
        """Find the copies, of texts by uint64[num_examples] of words; returns the splits too, str[num_examples]."""
        splits = np.full(len(listing.keys), "", "<U10")
        for split, _, examples, _ in self.written:
            splits[examples] = split
        kept = self.examples
        identities = np.frombuffer(b"".join(part.identities for *_, part in self.written), "<u8")
        looks = [part.looks for *_, part in self.written if part.looks is not None]
        near = find_alike(np.concatenate(looks)) if looks else np.empty((0, 2), int)
        if words is not None:
            near = pairs_of_equal(words[kept])
        return Copies.find(listing, kept, identities, near), splits

    def fingerprint(self, class_names: Sequence[str], encoder: Encoder) -> str:
        """Return the SHA-256 of everything added."""
        self._digest.update(repr((class_names, encoder.input)).encode())
        return self._digest.hexdigest()

    def splits(self, task: str, class_names: Sequence[str], kind: str) -> dict[str, Split]:
        """Return what the manifest says of each split of a kind of examples."""
        result: dict[str, Split] = {}
        for split in dict.fromkeys(split for split, _ in self._labels):
            members = {name: labels for (owner, name), labels in self._labels.items() if owner == split}
            # Of a split whose every input was set aside nothing is left to count.
            labels = np.array([label for of_shard in members.values() for label in of_shard])
            is_regression = task == REGRESSION and len(labels)
            if is_regression and split == TRAIN:
                check_variation(labels, class_names)
            result[split] = Split(
                num_examples=len(labels),
                class_counts=() if task == REGRESSION else _count(task, labels, len(class_names)),
                targets=describe_targets(labels) if is_regression else (),
                shards=tuple(
                    Shard(name, len(labels), (self._directory / name).stat().st_size, f"{self._crc[split, name]:08x}")
                    for name, labels in members.items()
                ),
                statistics={**self._counts[split], **self._count_also_in_train(split)},
                distributions=distributions(kind, self._figures(split)) if len(labels) else {},
            )
        return result

    def _figures(self, split: str) -> np.ndarray:
        """Return the figures of a split's examples, int16[num_examples, figures]."""
        return np.concatenate([part.figures for owner, *_, part in self.written if owner == split])

    def _count_also_in_train(self, split: str) -> dict[str, int]:
        if split == TRAIN:
            return {}
        ours, trained = (np.frombuffer(self.identities.get(name, b""), "<u8") for name in (split, TRAIN))
        return {"num_also_in_train": int(np.isin(ours, trained).sum())}


def _count(task: str, labels: np.ndarray, num_classes: int) -> tuple[int, ...]:
    """Count the examples of every class."""
    if task == CLASSIFICATION:
        return tuple(np.bincount(labels.astype(int), minlength=num_classes).tolist())
    return tuple(labels.reshape(-1, num_classes).astype(int).sum(axis=0).tolist())

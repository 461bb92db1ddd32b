"""The passages of a corpus, written in their order, without shuffling."""

import hashlib
from pathlib import Path

import google_crc32c
import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.examples.artifacts import KEY_FEATURE, LABEL_FEATURE, Shard, Split
from tpu_components.core.examples.interface import UNKNOWN, CorpusInput
from tpu_components.core.examples.records import encode_example, frame_record
from tpu_components.core.sources.passages import Corpus
from tpu_components.create_tfrecords.sharding import plan_shards

_RECORD_OVERHEAD_BYTES = 100


class CorpusWriter:
    """Writes passages, each in its place. One process does it: encoding an id costs next to nothing."""

    def __init__(self, corpus: Corpus, target_shard_mib: int) -> None:
        self.corpus, self._target_shard_mib = corpus, target_shard_mib
        self._digest = hashlib.sha256()

    @property
    def bytes_each(self) -> int:
        """The estimated size of a record."""
        width = self.corpus.input.num_tokens + 1
        return width * np.dtype(self.corpus.input.stored_dtype).itemsize + _RECORD_OVERHEAD_BYTES

    def write(self, split: str, keys: list[str], spans: list[tuple[int, int]], directory: Path) -> Split:
        """Write one split's shards.

        Args:
            split: Its name.
            keys: Keys of its passages.
            spans: From where to where each predicts.
            directory: Folder to write to.
        """
        plan = plan_shards(split, len(keys), len(keys) * self.bytes_each, self._target_shard_mib)
        self._digest.update(f"{split}\0".encode())
        shards = []
        for name, (first, last) in zip(plan.names, plan.boundaries, strict=True):
            frames = [self._frame(split, keys[i], *spans[i]) for i in range(first, last)]
            for frame in frames:
                self._digest.update(hashlib.sha256(frame).digest())
            content = b"".join(frames)
            (directory / name).write_bytes(content)
            shards.append(Shard(name, len(frames), len(content), f"{google_crc32c.value(content):08x}"))
        # A plan may hold the first passages only, as preflight's sample does.
        predicted = self.corpus.ids[split][: spans[-1][1]]
        counts = np.bincount(predicted, minlength=self.corpus.input.vocabulary_size).tolist()
        statistics = {"num_characters": len(predicted), "num_unknown": counts[UNKNOWN]}
        progress.say(
            "create_tfrecords",
            f"{split}: {len(predicted):,} characters, each predicted once, in {len(keys):,} passages of "
            f"{self.corpus.input.num_tokens}; {counts[UNKNOWN]:,} are not in the training split",
        )
        return Split(len(keys), tuple(counts), tuple(shards), statistics)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything written so far."""
        self._digest.update(repr((self.corpus.class_names, self.corpus.input)).encode())
        return self._digest.hexdigest()

    def _frame(self, split: str, key: str, start: int, end: int) -> bytes:
        fields: dict[str, bytes | int] = {
            CorpusInput.feature: self.corpus.passage(split, start, end).tobytes(),
            LABEL_FEATURE: end - start,
            KEY_FEATURE: key.encode(),
        }
        return frame_record(encode_example(fields))

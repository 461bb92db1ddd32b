"""Prepares a data set before anything is written.

To prepare a data set, this module reads all texts to count their words, chooses the encoder that turns an example into
a record, and divides the examples into tasks for worker processes.
"""

import dataclasses
import heapq
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS, TRAIN
from tpu_components.core.examples.example_ids import identify
from tpu_components.core.examples.interface import TEXT
from tpu_components.core.examples.text import Tokenization, find_tokenization, split_words
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.tasks import Selection
from tpu_components.core.work.workers import in_processes
from tpu_components.create_tfrecords.copies import Copies, same_words
from tpu_components.create_tfrecords.encoders import Encoder, choose_encoder
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import (
    TASK_EXAMPLES,
    WorkerTask,
    Written,
    count_per_task,
    cut_files,
    cut_into_tasks,
    read_records,
    share_out,
    write_part,
)
from tpu_components.create_tfrecords.planning import DatasetPlan

_MOST_COMMON = 200  # Number of frequent words; they are about half of the words of a text.


def count_workers(params: WriteParams) -> int:
    """Return the largest number of processes to use on this machine."""
    return params.num_workers or available_cpus()


@dataclasses.dataclass(frozen=True)
class Survey:
    """Word statistics of a text data set.

    Attributes:
        words: Hash of each text's words, uint64[num_examples]. Texts with the same words in the same order have the
            same hash. To find the words, the tokenization `words` is used, whatever the tokenization of the data set.
        counts: Number of occurrences of each token in the training split, with the tokenization of the data set.
    """

    words: np.ndarray
    counts: Counter[bytes]


def list_common(counts: Counter[bytes]) -> dict[str, int]:
    """Return the counts of the `_MOST_COMMON` most frequent words, by word.

    The value for the key `""` is the sum of the counts of all other words.
    """
    ranked = heapq.nsmallest(_MOST_COMMON, counts.items(), key=lambda item: (-item[1], item[0]))
    common = {word.decode(): count for word, count in ranked}
    return {**common, "": counts.total() - sum(common.values())}


def survey_texts(plan: DatasetPlan) -> tuple[DatasetPlan, Survey]:
    """Read all texts, and count the words of the training split.

    The vocabulary is made from these words.

    Returns:
        The plan without the duplicate texts that `divide_by_words` leaves out, and the word statistics.
    """
    planned = np.concatenate(list(plan.order.values()))
    splits = plan.splits
    train = SPLITS.index(TRAIN)
    hashes, counts = _read_texts(plan, planned, splits == train)
    words = np.zeros(len(splits), "<u8")
    words[planned] = np.frombuffer(hashes, "<u8")
    plan = divide_by_words(plan, words)
    if len(left := plan.left_out[splits[plan.left_out] == train]):
        counts.subtract(_read_texts(plan, left, splits == train)[1])
    return plan, Survey(words, find_tokenization(plan.params.tokenization).unite(+counts))


def divide_by_words(plan: DatasetPlan, words: np.ndarray) -> DatasetPlan:
    """Leave out duplicate texts so that no two splits contain texts with the same words. Return the resulting plan.

    If the parameter `join_copies` is false, return the plan unchanged. `Copies.without_leaks` decides which texts are
    left out.

    Args:
        plan: Examples of each split.
        words: Hash of each text's words; see `Survey.words`.
    """
    if not plan.params.join_copies:
        return plan
    splits = plan.splits
    planned = np.sort(np.concatenate(list(plan.order.values())))
    kept = Copies.find(plan.listing, splits, planned, words[planned], np.empty((0, 2), int)).without_leaks()
    return plan if np.array_equal(splits, kept) else plan.redivided(planned, kept[planned])


def _read_texts(plan: DatasetPlan, examples: np.ndarray, are_counted: np.ndarray) -> tuple[bytes, Counter[bytes]]:
    """Read texts in worker processes. Return their hashes and word counts, as `_read_words` computes them."""
    hashes = bytearray()
    counts = Counter[bytes]()
    chunks = [examples[i : i + TASK_EXAMPLES] for i in range(0, len(examples), TASK_EXAMPLES)]
    if not chunks:
        return b"", counts
    with progress.track(f"{STEP} vocabulary", len(examples), "texts") as bar:
        rule = find_tokenization(plan.params.tokenization)
        calls = ((plan.listing.select(chunk), are_counted[chunk].tolist(), rule) for chunk in chunks)
        with in_processes(_read_words, calls, min(count_workers(plan.params), len(chunks))) as results:
            for chunk, (hashed, counted) in zip(chunks, results, strict=True):
                hashes += hashed
                counts.update(counted)
                bar.update(len(chunk))
    return bytes(hashes), counts


def _read_words(texts: Selection, are_counted: Sequence[bool], rule: Tokenization) -> tuple[bytes, Counter[bytes]]:
    """Return a hash of 8 bytes for the words of each text, and the word counts of the texts with `are_counted`.

    The hashes always use the tokenization `words`, so that the splits of copies do not depend on the tokenization of
    the data set. A text that cannot be read, is not UTF-8 or has no words gets the hash of its key. The encoder
    quarantines this text later.
    """
    hashes = bytearray()
    counts = Counter[bytes]()
    for key, text, is_counted in zip(texts.keys, texts.read_each(), are_counted, strict=True):
        try:
            if isinstance(text, InputError):
                raise text
            text.decode()
            words = split_words(text)
        except (InputError, UnicodeDecodeError):
            words = []
        hashes += same_words(words) if words else identify(key.encode())
        if is_counted and words:
            counts.update(words if text.isascii() else rule.split(text))
    return bytes(hashes), counts


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A data set that is ready to be written.

    It is equal in all processes that prepare it with the same parameters.

    Attributes:
        plan: Examples of each split. With `join_copies`, texts with the same words are in the same split.
        encoder: Encoder of the examples.
        bytes_each: Estimated size of a record, in bytes.
        survey: Word counts of the texts, from `survey_texts`, or None for images.
    """

    plan: DatasetPlan
    encoder: Encoder
    bytes_each: int
    survey: Survey | None = None

    @property
    def _most_per_task(self) -> int:
        listing = self.plan.listing
        return count_per_task(max(self.bytes_each, listing.num_bytes // len(listing.keys)))

    @property
    def _num_useful_workers(self) -> int:
        """Largest useful number of workers.

        It is 1 for a corpus, because encoding a passage costs less than sending it to a worker.
        """
        return 1 if self.plan.listing.corpus is not None else -(-self.plan.num_examples // self._most_per_task)

    def cut(self, num_workers: int) -> list[WorkerTask]:
        """Divide the examples into tasks, several for each worker.

        Return the tasks in the order in which their records are stored.
        """
        task_examples = share_out(
            self.plan.num_examples, self._most_per_task, min(num_workers, self._num_useful_workers)
        )
        if self.plan.listing.stored is not None:
            return list(cut_files(self.plan.listing.stored, self.plan.order, task_examples))
        return list(cut_into_tasks(self.plan.order, self.bytes_each, self.plan.params.target_shard_mib, task_examples))

    def write(self, tasks: Sequence[WorkerTask], folder: Path) -> Written:
        """Encode the examples of each task in worker processes on this machine.

        Yield each task with the records that were encoded for it, in the order of `tasks`.

        Args:
            tasks: All tasks that `cut` returned, or some of them.
            folder: Folder for temporary files.

        Raises:
            InputError: If images differ in shape.
        """
        num_workers = max(min(count_workers(self.plan.params), len(tasks), self._num_useful_workers), 1)
        with tempfile.TemporaryDirectory(prefix=".parts.", dir=folder, ignore_cleanup_errors=True) as parts:
            free: list[str] = []  # Files whose content has been read: overwriting a file costs less than creating one.
            calls = (
                (
                    self.encoder,
                    free.pop() if free else os.path.join(parts, f"{number:06d}"),
                    self.plan.listing.select(task.examples),
                )
                for number, task in enumerate(tasks)
            )
            with in_processes(write_part, calls, num_workers) as written:
                for task, part in zip(tasks, map(read_records, written), strict=True):
                    free.append(part.path)
                    yield task, part


def prepare(plan: DatasetPlan, survey: Survey | None = None) -> Prepared:
    """Prepare a plan for writing: count the words of texts, and choose the encoder.

    Args:
        plan: The plan.
        survey: Word counts of the texts, or None to read the texts now.

    Raises:
        InputError: If no example can be encoded with the plan's parameters.
    """
    if survey is not None:
        plan = divide_by_words(plan, survey.words)
    elif plan.listing.kind == TEXT:
        plan, survey = survey_texts(plan)
    return Prepared(plan, *choose_encoder(plan, survey.counts if survey else None), survey)

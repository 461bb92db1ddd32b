"""The words of all texts, counted before the vocabulary is made of them."""

import dataclasses
import heapq
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS, TRAIN
from tpu_components.core.examples.example_ids import identify
from tpu_components.core.examples.text import split_words
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import Span, read_content
from tpu_components.core.work.workers import in_processes
from tpu_components.create_tfrecords.copies import Copies, same_words
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import TASK_EXAMPLES
from tpu_components.create_tfrecords.planning import DatasetPlan

_MOST_COMMON = 200  # Words, which are half of what is written.


@dataclasses.dataclass(frozen=True)
class Survey:
    """The words of the texts of a plan.

    Attributes:
        words: uint64[num_examples]: equal for texts of the same words.
        counts: Number of times that each word stands in the texts that train.
    """

    words: np.ndarray
    counts: Counter[bytes]


def list_common(counts: Counter[bytes]) -> dict[str, int]:
    """Return how often each of the most frequent words stands in the texts, and under the empty name all others."""
    ranked = heapq.nsmallest(_MOST_COMMON, counts.items(), key=lambda item: (-item[1], item[0]))
    common = {word.decode(): count for word, count in ranked}
    return {**common, "": counts.total() - sum(common.values())}


def survey_texts(params: WriteParams, plan: DatasetPlan) -> tuple[DatasetPlan, Survey]:
    """Read every text once, before the vocabulary is made of those that train.

    Returns:
        The plan, as `divide_by_words` makes it, and the words.
    """
    listing, planned = plan.listing, np.concatenate(list(plan.order.values()))
    splits, train = plan.splits, SPLITS.index(TRAIN)
    hashes, counts = _read_texts(params, listing, planned, splits == train)
    words = np.zeros(len(splits), "<u8")
    words[planned] = np.frombuffer(hashes, "<u8")
    plan = divide_by_words(params, plan, words)
    if len(left := plan.left_out[splits[plan.left_out] == train]):
        counts.subtract(_read_texts(params, listing, left, splits == train)[1])
    return plan, Survey(words, +counts)


def divide_by_words(params: WriteParams, plan: DatasetPlan, words: np.ndarray) -> DatasetPlan:
    """Return the plan without texts of the same words, uint64[num_examples], as a tested one, if `join_copies` says so.

    See `Copies.without_leaks`.
    """
    if not params.join_copies:
        return plan
    splits, planned = plan.splits, np.sort(np.concatenate(list(plan.order.values())))
    kept = Copies.find(plan.listing, planned, words[planned], np.empty((0, 2), int)).without_leaks(splits)
    return plan if np.array_equal(splits, kept) else plan.redivided(planned, kept[planned])


def _read_texts(
    params: WriteParams, listing: Listing, examples: np.ndarray, are_counted: np.ndarray
) -> tuple[bytes, Counter[bytes]]:
    """Read the words of some texts in worker processes, and count them where bool[num_examples] says so."""
    hashes, counts = bytearray(), Counter[bytes]()
    chunks = [examples[i : i + TASK_EXAMPLES] for i in range(0, len(examples), TASK_EXAMPLES)]
    num_workers = min(params.num_workers or os.cpu_count() or 1, len(chunks))
    if not chunks:
        return b"", counts
    with progress.track(f"{STEP} vocabulary", len(examples), "texts") as bar:
        calls = ((listing.root, *listing.held(chunk), are_counted[chunk].tolist()) for chunk in chunks)
        with in_processes(_read_words, calls, num_workers) as results:
            for chunk, (hashed, counted) in zip(chunks, results, strict=True):
                hashes += hashed
                counts.update(counted)
                bar.update(len(chunk))
    return bytes(hashes), counts


def _read_words(
    root: str, keys: Sequence[str], texts: Sequence[bytes | Span] | None, are_counted: Sequence[bool]
) -> tuple[bytes, Counter[bytes]]:
    """Return eight bytes of each text's words, and how often each word occurs in those to count.

    A text that cannot be read, is not UTF-8 or has no word has no words in common with another: `store` sets it aside.
    """
    hashes, counts = bytearray(), Counter[bytes]()
    for position, (key, is_counted) in enumerate(zip(keys, are_counted, strict=True)):
        try:
            text = read_content(root, key, None if texts is None else texts[position])
        except InputError:
            text = b""
        words = split_words(text) if _is_utf8(text) else []
        hashes += same_words(words) if words else identify(key.encode())
        if is_counted:
            counts.update(words)
    return bytes(hashes), counts


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True

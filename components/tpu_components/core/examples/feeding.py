"""Readers of training batches, from memory or from shards.

A batch depends only on the seed, the epoch and the step, so that a job that was killed can be resumed. Every epoch
contains every example exactly once. The last batch is filled with real examples of weight zero, so that shapes stay
static and batch normalisation gets no blank images. If there are several hosts, each host reads its share of the
examples and produces its part of every batch.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, TRAIN, WEIGHT_FEATURE, Manifest
from tpu_components.core.examples.records import static_options

AUTO, HOST, DEVICE = "auto", "host", "device"
RESIDENCIES = (AUTO, HOST, DEVICE)  # Places of the training split during training.
_READ_AT_ONCE = 4  # Number of shards that are read in parallel while streaming.


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Return the number of batches in an epoch, including an incomplete last batch.

    Example:
        >>> steps_per_epoch(10, 4)
        3
    """
    return -(-num_examples // batch_size)


class EpochReader(Protocol):
    """Interface of readers, which return one host's part of the batches of an epoch."""

    def batches(self, epoch: int, start_step: int) -> Any:
        """Return a tf.data.Dataset of the batches of an epoch, from batch `start_step` on.

        A batch is (inputs, targets, weights); see `Interface.batch_shapes` for the shapes.
        """


@dataclasses.dataclass(frozen=True)
class Cut:
    """Division of a split into batches, and of batches between hosts.

    Attributes:
        num_examples: Number of examples in the split.
        batch_size: Number of examples in a batch, for all hosts together.
        share: This host's share of the split and of each batch.
    """

    num_examples: int
    batch_size: int
    share: Share = WHOLE

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return steps_per_epoch(self.num_examples, self.batch_size)

    @property
    def own_examples(self) -> int:
        """Number of examples in this host's share."""
        return len(self.share.within(self.num_examples))

    @property
    def own_batch(self) -> int:
        """Number of examples in this host's part of a batch."""
        return self.batch_size // self.share.count

    @property
    def filling(self) -> int:
        """Number of examples of weight zero that this host adds to fill its part of the last batch."""
        return self.steps * self.own_batch - self.own_examples

    def own_seed(self, seed: int, epoch: int) -> tuple[int, ...]:
        """Return the random seed for an epoch. With several hosts, each host has a different seed."""
        return (seed, epoch) if self.share == WHOLE else (seed, epoch, self.share.index)

    def draw_order(self, seed: int, epoch: int) -> np.ndarray:
        """Draw a random order of this host's examples for an epoch, int32[steps, own_batch].

        Each row has the indices of the examples in this host's part of a batch. Every example of the share occurs once,
        except that the examples at the start of the order are repeated to fill the last batch.

        Args:
            seed: Seed of the training run.
            epoch: Epoch, from 0.

        Returns:
            Indices within this host's share, from 0.
        """
        order = np.random.default_rng(self.own_seed(seed, epoch)).permutation(self.own_examples)
        return np.resize(order, (self.steps, self.own_batch)).astype(np.int32)


class InMemoryReader:
    """Reader of a split that is in memory. Every epoch has a new random order."""

    def __init__(self, examples: records.Examples, cut: Cut, seed: int) -> None:
        with tf.device("CPU"):
            # Tensors, not arrays: an array would be copied into the graph of every epoch.
            self._inputs = tf.constant(examples.inputs)
            self._labels = tf.constant(examples.labels)
        self._weights = examples.weights
        self._cut = cut
        self._seed = seed

    def batches(self, epoch: int, start_step: int) -> Any:
        """Return a tf.data.Dataset of the batches of an epoch; see `EpochReader.batches`."""
        cut = self._cut
        order = cut.draw_order(self._seed, epoch)
        weights = self._weights[order] * (np.arange(order.size) < cut.own_examples).reshape(order.shape)
        dataset = tf.data.Dataset.from_tensor_slices((order[start_step:], weights[start_step:]))

        @tf.autograph.experimental.do_not_convert  # Nothing to convert, and the search for it takes 0.1 s.
        def gather(indices: Any, weight: Any) -> Any:
            return tf.gather(self._inputs, indices), tf.gather(self._labels, indices), weight

        batches = dataset.map(gather, num_parallel_calls=1, deterministic=True)
        return batches.prefetch(2).with_options(static_options())


class StreamingReader:
    """Reader that streams a split from its shards. Examples are shuffled within a buffer.

    Every epoch has a new random order of the shards, which are then divided between the hosts. So no host reads the
    same shards in every epoch.
    """

    def __init__(self, directory: Path, manifest: Manifest, cut: Cut, seed: int, shuffle_buffer: int) -> None:
        self._directory = directory
        self._manifest = manifest
        self._cut = cut
        self._seed = seed
        self._shuffle_buffer = max(shuffle_buffer // cut.share.count, 1)

    def batches(self, epoch: int, start_step: int) -> Any:
        """Return a tf.data.Dataset of the batches of an epoch; see `EpochReader.batches`."""
        cut = self._cut
        files = np.array(records.shard_paths(self._directory, self._manifest, TRAIN))
        counts = np.array([shard.num_examples for shard in self._manifest.split(TRAIN).shards])
        order = np.random.default_rng((self._seed, epoch)).permutation(len(files))
        parts = records.parts_of_shards(counts[order].tolist(), cut.share)
        parts[:, 0] = order[parts[:, 0]]
        named = "/".join(map(str, cut.own_seed(self._seed, epoch)))
        draw = int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "little")
        with tf.device("CPU"):
            read, parse = self._stages
            serialized = read(tf.constant(files[parts[:, 0]]), tf.constant(parts[:, 1:]))
            serialized = serialized.shuffle(self._shuffle_buffer, seed=draw, reshuffle_each_iteration=False)
            stored = records.open_shards(files[np.sort(parts[:, 0])], self._manifest)
            serialized = serialized.concatenate(stored.take(cut.filling))
            batches = serialized.batch(cut.own_batch, drop_remainder=True).skip(start_step)
            return parse(batches, tf.constant(start_step, tf.int64)).with_options(static_options())

    @functools.cached_property
    def _stages(self) -> tuple[Any, Any]:
        """The tf.functions that read and parse an epoch.

        They are built once, because tracing takes 60 ms.
        """

        def read(files: Any, ranges: Any) -> Any:
            if self._cut.share == WHOLE:
                shards = tf.data.Dataset.from_tensor_slices(files)
                return shards.interleave(opened, **at_once)
            shards = tf.data.Dataset.from_tensor_slices((files, ranges))
            return shards.interleave(lambda file, part: opened(file).skip(part[0]).take(part[1]), **at_once)

        opened = functools.partial(records.open_shards, manifest=self._manifest)
        at_once = {"cycle_length": _READ_AT_ONCE, "num_parallel_calls": 2, "deterministic": True}
        return tf.function(read, autograph=False), tf.function(self._parse, autograph=False)

    def _parse(self, batches: Any, start_step: Any) -> Any:
        """Parse batches of serialized examples to (inputs, targets, weights). The first batch is batch `start_step`."""
        cut = self._cut

        def weigh(step: Any, fields: Any) -> Any:
            position = step * cut.own_batch + tf.range(cut.own_batch, dtype=tf.int64)
            weight = fields[WEIGHT_FEATURE] * tf.cast(position < cut.own_examples, tf.float32)
            return fields[self._manifest.input.feature], fields[LABEL_FEATURE], weight

        parsed = records.parse_batches(batches, self._manifest, with_margin=True)
        numbered = parsed.enumerate(start=start_step).map(weigh)
        return numbered.apply(tf.data.experimental.assert_cardinality(cut.steps - start_step)).prefetch(2)


def is_held_in_memory(decoded_bytes: int, in_memory_mib: int) -> bool:
    """Return whether a split of `decoded_bytes` is kept in RAM. Otherwise, it is read from files in every epoch."""
    return decoded_bytes <= in_memory_mib << 20


def is_resident(residency: str, backend: str, decoded_bytes: int, in_memory_mib: int) -> bool:
    """Return whether to keep the training split in device memory. The size of this memory is not checked.

    The result is True if `residency` is not `host`, the backend is JAX, and the split fits in `in_memory_mib` of RAM.

    Raises:
        InputError: If `residency` is `device`, but the backend is not JAX or the split does not fit in RAM.
    """
    is_held = is_held_in_memory(decoded_bytes, in_memory_mib)
    if residency == DEVICE and backend != "jax":
        raise InputError(f"residency=device requires backend=jax. Received: backend={backend}. Set residency to auto.")
    if residency == DEVICE and not is_held:
        raise InputError(
            "residency=device requires the decoded training split to be in RAM: expected in_memory_mib of at least "
            f"{-(-decoded_bytes // 2**20)}, received in_memory_mib={in_memory_mib}. Raise in_memory_mib, or set "
            "residency to auto."
        )
    return residency != HOST and backend == "jax" and is_held


def open_training_split(
    directory: Path,
    manifest: Manifest,
    batch_size: int,
    seed: int,
    in_memory_mib: int,
    shuffle_buffer: int,
    share: Share = WHOLE,
) -> EpochReader:
    """Return a reader of the training split: in memory if the host's decoded share fits, otherwise streaming.

    Raises:
        InputError: If there is no training split.
    """
    cut = Cut(manifest.split(TRAIN).num_examples, batch_size, share)
    if is_held_in_memory(records.decoded_bytes(manifest, TRAIN) // share.count, in_memory_mib):
        examples = records.load_split(directory, manifest, TRAIN, with_margin=True, share=share)
        return InMemoryReader(examples, cut, seed)
    return StreamingReader(directory, manifest, cut, seed, shuffle_buffer)

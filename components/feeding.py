"""Training batches, as a device is fed with them.

An epoch is a pure function of seed, epoch and step, so that a killed job can take it up again. It holds every example
exactly once. The last batch is filled up with examples of weight zero, real ones, so that shapes are static and batch
normalisation sees no blank images.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from components import records
from components.artifacts import LABEL_FEATURE, TRAIN, Manifest
from components.errors import InputError
from components.records import static_options, tensorflow

AUTO, HOST, DEVICE = "auto", "host", "device"
RESIDENCIES = (AUTO, HOST, DEVICE)  # Where a split may lie while it is trained on.
_READ_AT_ONCE = 4  # Shards read side by side while streaming.


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Return how many batches hold every example once.

    Example:
        >>> steps_per_epoch(10, 4)
        3
    """
    return -(-num_examples // batch_size)


def draw_order(num_examples: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Return which examples an epoch's batches hold, int32[steps, batch]: every one once, then the first ones again."""
    order = np.random.default_rng((seed, epoch)).permutation(num_examples)
    steps = steps_per_epoch(num_examples, batch_size)
    return np.resize(order, (steps, batch_size)).astype(np.int32)


class EpochReader(Protocol):
    """Gives the batches of an epoch."""

    def batches(self, epoch: int, start_step: int) -> Any:
        """Return a tf.data.Dataset of (inputs, targets, float32[batch] weights); see `Interface.batch_shapes`."""


class InMemoryReader:
    """Batches gathered from a split held in RAM, in an order drawn anew for every epoch."""

    def __init__(self, examples: records.Examples, batch_size: int, seed: int) -> None:
        tf = tensorflow()
        with tf.device("CPU"):
            # Tensors, not arrays: an array would be copied into the graph of every epoch.
            self._inputs, self._labels = tf.constant(examples.inputs), tf.constant(examples.labels)
        self._num_examples, self._batch_size, self._seed = len(examples.labels), batch_size, seed

    def batches(self, epoch: int, start_step: int) -> Any:
        """See `EpochReader`."""
        tf = tensorflow()
        order = draw_order(self._num_examples, self._batch_size, self._seed, epoch)
        weights = (np.arange(order.size) < self._num_examples).astype(np.float32).reshape(order.shape)
        dataset = tf.data.Dataset.from_tensor_slices((order[start_step:], weights[start_step:]))
        return (
            dataset.map(
                lambda indices, weight: (tf.gather(self._inputs, indices), tf.gather(self._labels, indices), weight),
                num_parallel_calls=1,
                deterministic=True,
            )
            .prefetch(2)
            .with_options(static_options())
        )


class StreamingReader:
    """Batches read from shards in an order drawn anew for every epoch, shuffled within a buffer."""

    def __init__(self, directory: Path, manifest: Manifest, batch_size: int, seed: int, shuffle_buffer: int) -> None:
        self._directory, self._manifest = directory, manifest
        self._batch_size, self._seed, self._shuffle_buffer = batch_size, seed, shuffle_buffer

    def batches(self, epoch: int, start_step: int) -> Any:
        """See `EpochReader`."""
        tf = tensorflow()
        files = np.array(records.shard_paths(self._directory, self._manifest, TRAIN))
        num_examples = self._manifest.split(TRAIN).num_examples
        order = np.random.default_rng((self._seed, epoch)).permutation(len(files))
        draw = int.from_bytes(hashlib.sha256(f"{self._seed}/{epoch}".encode()).digest()[:4], "little")
        with tf.device("CPU"):
            read, stored, parse = self._stages
            serialized = read(tf.constant(files[order]))
            serialized = serialized.shuffle(self._shuffle_buffer, seed=draw, reshuffle_each_iteration=False)
            filling = steps_per_epoch(num_examples, self._batch_size) * self._batch_size - num_examples
            serialized = serialized.concatenate(stored.take(filling))
            batches = serialized.batch(self._batch_size, drop_remainder=True).skip(start_step)
            return parse(batches, tf.constant(start_step, tf.int64)).with_options(static_options())

    @functools.cached_property
    def _stages(self) -> tuple[Any, Any, Any]:
        """The stages of an epoch that take 60 ms to build, built once: two functions, and the records as stored."""
        tf = tensorflow()
        stored = tf.data.TFRecordDataset(records.shard_paths(self._directory, self._manifest, TRAIN))

        def read(files: Any) -> Any:
            return tf.data.Dataset.from_tensor_slices(files).interleave(
                tf.data.TFRecordDataset, cycle_length=_READ_AT_ONCE, num_parallel_calls=2, deterministic=True
            )

        return tf.function(read, autograph=False), stored, tf.function(self._parse, autograph=False)

    def _parse(self, batches: Any, start_step: Any) -> Any:
        """Turn batches of serialized examples, from a step on, into batches as `EpochReader` says."""
        tf = tensorflow()
        num_examples = self._manifest.split(TRAIN).num_examples
        steps = steps_per_epoch(num_examples, self._batch_size)

        def weigh(step: Any, fields: Any) -> Any:
            position = step * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
            weight = tf.cast(position < num_examples, tf.float32)
            return fields[self._manifest.input.feature], fields[LABEL_FEATURE], weight

        numbered = (
            records.parse_batches(batches, self._manifest, with_margin=True).enumerate(start=start_step).map(weigh)
        )
        return numbered.apply(tf.data.experimental.assert_cardinality(steps - start_step)).prefetch(2)


def is_held_in_memory(decoded_bytes: int, in_memory_mib: int) -> bool:
    """Return whether a split of this size is read once, and not again every epoch."""
    return decoded_bytes <= in_memory_mib << 20


def is_resident(residency: str, backend: str, decoded_bytes: int, in_memory_mib: int) -> bool:
    """Return whether a split is to lie in the device's memory, if that is large enough.

    Raises:
        InputError: If it must and cannot: only JAX's program takes indices for batches, and the host has to hold a
            split to hand it over.
    """
    is_held = is_held_in_memory(decoded_bytes, in_memory_mib)
    if residency == DEVICE and backend != "jax":
        raise InputError(f"residency=device needs backend=jax. Received: backend={backend}. Set residency to auto.")
    if residency == DEVICE and not is_held:
        raise InputError(
            f"residency=device needs the decoded training split in RAM first: expected in_memory_mib of at least "
            f"{-(-decoded_bytes // 2**20)}, received in_memory_mib={in_memory_mib}. Raise it, or set residency to auto."
        )
    return residency != HOST and backend == "jax" and is_held


def open_training_split(
    directory: Path, manifest: Manifest, batch_size: int, seed: int, in_memory_mib: int, shuffle_buffer: int
) -> EpochReader:
    """Return the reader that fits: in memory where the decoded split is small enough, else streaming.

    Raises:
        InputError: If there is no training split.
    """
    if is_held_in_memory(records.decoded_bytes(manifest, TRAIN), in_memory_mib):
        return InMemoryReader(records.load_split(directory, manifest, TRAIN, with_margin=True), batch_size, seed)
    return StreamingReader(directory, manifest, batch_size, seed, shuffle_buffer)

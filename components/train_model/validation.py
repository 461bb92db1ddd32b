"""Reads the validation split in parts, and predicts on several devices and hosts."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.frameworks import jax, keras
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, VALIDATION, WEIGHT_FEATURE, Manifest
from tpu_components.core.examples.feeding import is_held_in_memory
from tpu_components.core.examples.records import Examples
from tpu_components.core.models.step.sharding import shared
from tpu_components.train_model.loop import put_part

PART_BYTES = 256 << 20  # Bytes of inputs, or of predictions, in memory at a time.


class Validation:
    """A host's share of the validation split: held in RAM if it is small enough, otherwise read again every epoch.

    Args:
        directory: Folder of the records.
        manifest: Manifest of the records; must contain the split.
        batch_size: Examples per step, of all hosts together.
        in_memory_mib: Largest decoded size to hold in RAM, in MiB.
        share: This host's share of the examples and of each batch.

    Attributes:
        most: Largest number of examples that a host has.
        held: Examples of this host; None if they are not held in RAM.
    """

    def __init__(
        self, directory: Path, manifest: Manifest, batch_size: int, in_memory_mib: int, share: Share = WHOLE
    ) -> None:
        self._directory, self._manifest, self._share = directory, manifest, share
        self.most = -(-manifest.split(VALIDATION).num_examples // share.count)
        self.held: Examples | None = None
        if is_held_in_memory(records.decoded_bytes(manifest, VALIDATION) // share.count, in_memory_mib):
            self.held = records.load_split(directory, manifest, VALIDATION, share=share)
        # A language model outputs a distribution for every character: gigabytes for a long text.
        each = max(4 * math.prod(manifest.interface.output_shape), records.input_bytes(manifest.input))
        own_batch = batch_size // share.count
        self._part = -(-PART_BYTES // (each * own_batch)) * own_batch

    @property
    def held_bytes(self) -> int:
        """Decoded size of the split in bytes, all hosts together; 0 if it is not held."""
        return records.decoded_bytes(self._manifest, VALIDATION) if self.held is not None else 0

    def parts(self) -> Iterator[tuple[range, Examples]]:
        """Yield ranges of positions in the host's share, each with the examples at these positions.

        All hosts get the same ranges; a host may have one example fewer. Each range starts at a batch.
        """
        read = self._read()
        for start in range(0, self.most, self._part):
            yield range(start, min(start + self._part, self.most)), next(read)

    def _read(self) -> Iterator[Examples]:
        if self.held is not None:
            for start in range(0, len(self.held.labels), self._part):
                part = slice(start, start + self._part)
                yield Examples(self.held.inputs[part], self.held.labels[part], self.held.weights[part])
        else:
            batches = records.read_batches(
                self._directory, self._manifest, VALIDATION, batch_size=self._part, share=self._share
            )
            for fields in batches.as_numpy_iterator():
                yield Examples(
                    *(fields[name] for name in (self._manifest.input.feature, LABEL_FEATURE, WEIGHT_FEATURE))
                )
        inputs, labels, weights = (np.empty(*shape) for shape in self._manifest.interface.batch_shapes(0))
        yield Examples(inputs, labels, weights)  # Empty: another host may have one example more.


class SharedModel:
    """Predicts with a Keras model on the JAX backend; each batch is sharded over the devices.

    Args:
        model: A keras.Model.
        batch_shape: Shape of a batch of inputs, of all hosts together.
        mesh: Devices that share a batch; None for a single device.
        share: This host's share of each batch.
    """

    def __init__(self, model: Any, batch_shape: Sequence[int], mesh: Any, share: Share = WHOLE) -> None:
        self._model, self._batch_shape, self._mesh = model, tuple(batch_shape), mesh
        self._own_batch = batch_shape[0] // share.count
        self._held: Any = None
        whole = None if jax.process_count() == 1 else shared(mesh, 0)
        self._answer = jax.jit(self._answer_batch, out_shardings=whole)

    def hold(self, inputs: np.ndarray, most: int) -> None:
        """Keep this host's inputs in device memory, padded to `most`, the largest number of inputs of a host."""
        self._held = put_part(self._cut(inputs, -(-most // self._own_batch)), self._mesh, 1)

    def _cut(self, inputs: np.ndarray, count: int) -> np.ndarray:
        """Return dtype[count, own_batch, size]: flat batches, padded with repeated inputs."""
        filled = np.resize(inputs, (count * self._own_batch, *self._batch_shape[1:]))
        return filled.reshape(count, self._own_batch, -1)

    def _answer_batch(self, values: Any, inputs: Any, number: Any) -> Any:
        """Return the model's outputs for a batch; `values` are those of all variables, frozen or not."""
        batch = jax.lax.dynamic_index_in_dim(inputs, number, keepdims=False).reshape(self._batch_shape)
        with keras.StatelessScope(state_mapping=list(zip(self._model.variables, values, strict=True))):
            return self._model(batch, training=False)

    def answers(self, places: range, inputs: np.ndarray) -> np.ndarray:
        """Return predictions for this host's inputs: float32[examples, …].

        Args:
            places: Positions from `Validation.parts`; must start at a batch.
            inputs: Inputs at these positions.
        """
        values = [variable.value for variable in self._model.variables]
        first, count = places.start // self._own_batch, -(-len(places) // self._own_batch)
        if self._held is not None:
            outputs = [self._answer(values, self._held, np.int32(first + number)) for number in range(count)]
        else:
            batches = self._cut(inputs, count)[:, None]
            outputs = [self._answer(values, put_part(batch, self._mesh, 1), np.int32(0)) for batch in batches]
        return np.concatenate(_own_parts(outputs))[: len(inputs)].astype(np.float32)


def _own_parts(arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    """Return this host's rows of arrays that are sharded along their first axis."""
    if jax.process_count() == 1:
        return jax.device_get(arrays)
    in_rows = [sorted(array.addressable_shards, key=lambda part: part.index[0].start) for array in arrays]
    return [np.concatenate([part.data for part in parts]) for parts in in_rows]

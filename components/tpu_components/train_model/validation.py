"""Validates a model after each epoch: reads the validation split, predicts on all devices, and computes metrics."""

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
from tpu_components.core.metrics.keras_metrics import measure
from tpu_components.core.models.trained import predict
from tpu_components.core.models.training_step.losses import validation_loss
from tpu_components.core.models.training_step.sharding import array_sharding
from tpu_components.train_model.loop import put_part
from tpu_components.train_model.session import Session

PART_BYTES = 256 << 20  # Bytes of inputs, or of predictions, in memory at a time.


class ValidationSplit:
    """A host's share of the validation split.

    The share is held in RAM if it is small enough. Otherwise, it is read again in every epoch.

    Args:
        directory: Folder of the records.
        manifest: Manifest of the records. It must contain the split.
        batch_size: Examples per step, summed over all hosts.
        in_memory_mib: Largest decoded size to hold in RAM, in MiB.
        share: This host's share of the examples and of each batch.

    Attributes:
        most: Largest number of examples in the share of any host.
        held: Examples in this host's share, or None if they are not held in RAM.
    """

    def __init__(
        self, directory: Path, manifest: Manifest, batch_size: int, in_memory_mib: int, share: Share = WHOLE
    ) -> None:
        self._directory = directory
        self._manifest = manifest
        self._share = share
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
        """Decoded size of the whole split (of all hosts), in bytes, or 0 if the split is not held in RAM."""
        return records.decoded_bytes(self._manifest, VALIDATION) if self.held is not None else 0

    def parts(self) -> Iterator[tuple[range, Examples]]:
        """Yield ranges of positions in the host's share, each with the examples at these positions.

        All hosts get the same ranges, but a host may have one example fewer. Each range begins where a batch begins.
        """
        read = self._read()
        inputs, labels, weights = (np.empty(*shape) for shape in self._manifest.interface.batch_shapes(0))
        nothing = Examples(inputs, labels, weights)  # Another host may have one example more.
        for start in range(0, self.most, self._part):
            yield range(start, min(start + self._part, self.most)), next(read, nothing)

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


class ShardedPredictor:
    """Predicts with a Keras model on the JAX backend. Each batch is sharded over the devices.

    Args:
        model: A keras.Model.
        batch_shape: Shape of a global batch of inputs. The first size is the number of inputs on all hosts.
        mesh: Devices that share a batch, or None for a single device.
        share: This host's share of each batch.
    """

    def __init__(self, model: Any, batch_shape: Sequence[int], mesh: Any, share: Share = WHOLE) -> None:
        self._model = model
        self._batch_shape = tuple(batch_shape)
        self._mesh = mesh
        self._own_batch = batch_shape[0] // share.count
        self._held: Any = None
        whole = None if jax.process_count() == 1 else array_sharding(mesh, 0)
        self._predict = jax.jit(self._predict_batch, out_shardings=whole)

    def hold(self, inputs: np.ndarray, most: int) -> None:
        """Keep this host's inputs in device memory. All hosts pad their inputs to the same number of batches.

        Args:
            inputs: Inputs of this host.
            most: Largest number of inputs that any host has.
        """
        self._held = put_part(self._cut(inputs, -(-most // self._own_batch)), self._mesh, 1)

    def _cut(self, inputs: np.ndarray, count: int) -> np.ndarray:
        """Return `count` batches of flattened inputs: dtype[count, own_batch, size].

        If there are fewer inputs, they are repeated as padding.
        """
        filled = np.resize(inputs, (count * self._own_batch, *self._batch_shape[1:]))
        return filled.reshape(count, self._own_batch, -1)

    def _predict_batch(self, values: Any, inputs: Any, number: Any) -> Any:
        """Return the model's outputs for one of several batches.

        Args:
            values: Values of all variables of the model, including frozen variables.
            inputs: Batches of flattened inputs.
            number: Index of the batch.
        """
        batch = jax.lax.dynamic_index_in_dim(inputs, number, keepdims=False).reshape(self._batch_shape)
        with keras.StatelessScope(state_mapping=list(zip(self._model.variables, values, strict=True))):
            return self._model(batch, training=False)

    def predict(self, positions: range, inputs: np.ndarray) -> np.ndarray:
        """Return predictions for this host's inputs: float32[examples, …].

        Args:
            positions: Positions from `ValidationSplit.parts`. The first position must begin a batch.
            inputs: Inputs at these positions.
        """
        values = [variable.value for variable in self._model.variables]
        first = positions.start // self._own_batch
        count = -(-len(positions) // self._own_batch)
        if self._held is not None:
            outputs = [self._predict(values, self._held, np.int32(first + number)) for number in range(count)]
        else:
            batches = self._cut(inputs, count)[:, None]
            outputs = [self._predict(values, put_part(batch, self._mesh, 1), np.int32(0)) for batch in batches]
        return np.concatenate(_own_parts(outputs))[: len(inputs)].astype(np.float32)


def _own_parts(arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    """Return this host's rows of arrays that are sharded along their first axis."""
    if jax.process_count() == 1:
        return jax.device_get(arrays)
    in_rows = [sorted(array.addressable_shards, key=lambda part: part.index[0].start) for array in arrays]
    return [np.concatenate([part.data for part in parts]) for parts in in_rows]


class Validation:
    """Measures loss and metrics of a session's model on the validation split. Every host measures its share.

    Args:
        session: The session.
        split: This host's share of the validation split.
        metrics: Additional Keras metrics.
        is_resident: Whether the training split stays in device memory. If it does, `split` is copied to device memory
            too, provided that it is small enough to be held in RAM.
    """

    def __init__(self, session: Session, split: ValidationSplit, metrics: Sequence[Any], is_resident: bool) -> None:
        self._session = session
        self._split = split
        self._metrics = metrics
        self._loss = validation_loss(session.params, session.manifest.interface, session.model)
        self._predictor: ShardedPredictor | None = None
        share = session.group.hosts.share
        if is_resident or share.count > 1:
            shape, _ = session.manifest.interface.batch_shapes(session.batch_size, with_margin=False)[0]
            self._predictor = ShardedPredictor(session.model, shape, session.device.mesh, share)
            if is_resident and split.held is not None:
                self._predictor.hold(split.held.inputs, split.most)

    def measure(self) -> dict[str, float]:
        """Return loss and metrics of the whole split, by name."""
        session = self._session
        losses = []
        scores = []
        answers: list[list[np.ndarray]] = []
        task = session.manifest.interface.task
        for positions, examples in self._split.parts():
            if self._predictor is not None:
                outputs = self._predictor.predict(positions, examples.inputs)
            else:
                batch_size = session.params.batch_size_per_replica
                outputs = predict(session.model, examples.inputs, batch_size, session.device.num_replicas)
            losses.append(self._loss(examples.labels, outputs))
            scores.append(task.scores(examples.labels, outputs))
            if self._metrics:
                answers.append([session.group.gather(array) for array in (examples.labels, outputs)])
        whole = [np.concatenate(parts) for parts in zip(*answers, strict=True)]
        return {
            **{f"validation_{metric.name}": measure(metric, *whole) for metric in self._metrics},
            "validation_loss": float(session.group.gather(np.concatenate(losses)).mean()),
            f"validation_{task.metric}": float(session.group.gather(np.concatenate(scores)).mean()),
        }

"""Training program of the JAX backend: one step, or a loop of steps that runs on the device.

Training runs the program, and preflight compiles it. The program is Keras's `train_step` with three additions: the
selection of a batch, the loop, and values that the host can monitor. When Keras has a scan for `steps_per_execution`,
which is planned (https://github.com/keras-team/keras/pull/23527), the scan can replace the loop.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tpu_components.core.base.frameworks import jax, jnp, lax
from tpu_components.core.examples.feeding import steps_per_epoch
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.sharding import (
    FULLY_SHARDED,
    array_sharding,
    gathering_weights,
    variable_sharding,
)

LOOP_NAME = "jit(train_block)/while"  # Name of the loop over steps in compiled programs.
_BLOCK_BYTES = 64 << 20  # Size of a block of streamed batches; a second block is read while the device computes.
_MAX_BLOCK_STEPS = 100


Batch: TypeAlias = Sequence[tuple[tuple[int, ...], str]]


class Watch(NamedTuple):
    """Values that the host can read without stopping the device.

    Attributes:
        finite_steps: int32[], number of steps of the epoch before the first loss that is not finite.
        loss: float32[], mean loss of the epoch so far.
    """

    finite_steps: Any
    loss: Any


class Array(NamedTuple):
    """Shape and type of an input array, and the axis along which it is sharded, or None if it is replicated."""

    shape: tuple[int, ...]
    dtype: str
    sharded_axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """A training program for a model and a type of accelerator.

    Attributes:
        model: Model after `compile_model`. Its variables may have shapes but no values.
        batch: Shape and type of a global batch's inputs, targets and weights.
        num_examples: Number of examples in the training split.
        params: Hyper-parameters. The program uses only `steps_per_execution` and `sharding`.
        is_resident: Whether the split stays in device memory. If it does, the program gets the order of an epoch as
            indices of examples, otherwise it gets batches.
        accelerator: `cpu`, `gpu` or `tpu`.
        mesh: `jax.sharding.Mesh` of the devices that share a batch, or None if there is only one device.
    """

    model: Any
    batch: Batch
    num_examples: int
    params: TrainParams
    is_resident: bool
    accelerator: str
    mesh: Any = None

    @property
    def batch_size(self) -> int:
        """Examples per step."""
        return self.batch[0][0][0]

    @property
    def loops(self) -> bool:
        """Whether a call of the program runs several steps. Otherwise it runs one step.

        On a CPU there is no loop unless `steps_per_execution` is set, because XLA runs a convolution in a loop on a
        single thread, which is 15 times slower than outside of a loop.
        """
        steps = self.params.steps_per_execution
        return steps > 1 or (steps == 0 and self.accelerator != "cpu")

    @functools.cached_property
    def block_steps(self) -> int:
        """Largest number of streamed batches per call of a program that loops."""
        batch_bytes = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in self.batch)
        fitting = max(1, min(_MAX_BLOCK_STEPS, _BLOCK_BYTES // batch_bytes))
        return self.params.steps_per_execution or fitting

    @property
    def source(self) -> tuple[Array, ...]:
        """Input arrays of the program: inputs, targets, weights and, for a resident split, the order of an epoch."""
        if self.is_resident:
            (inputs, kind), *others = ((shape[1:], kind) for shape, kind in self.batch)
            steps = steps_per_epoch(self.num_examples, self.batch_size)
            return (
                # Flat, because a TPU pads a last axis of three channels to 128.
                Array((self.num_examples, math.prod(inputs)), kind),
                *(Array((self.num_examples, *shape), kind) for shape, kind in others),
                Array((steps, self.batch_size), "int32", 1),
            )
        if not self.loops:
            return tuple(Array(shape, kind, 0) for shape, kind in self.batch)
        return tuple(Array((self.block_steps, *shape), kind, 1) for shape, kind in self.batch)

    def _batch_at(self, source: Any, place: Any, index: Any) -> Any:
        """Return the batch of a step.

        For a resident split, `place` (position in the epoch) selects the batch. For a streamed split, `index` (position
        in the block) selects it.
        """
        if self.is_resident:
            inputs, targets, weights, order = source
            chosen = lax.dynamic_index_in_dim(order, place, keepdims=False)
            images = jnp.take(inputs, chosen, axis=0, mode="clip").reshape(self.batch[0][0])
            # The same weights as in `InMemoryReader`: the padding of the last batch has weight zero.
            position = place * self.batch_size + jnp.arange(self.batch_size, dtype=jnp.int32)
            targets, weights = (jnp.take(array, chosen, axis=0, mode="clip") for array in (targets, weights))
            return images, targets, weights * (position < self.num_examples)
        if not self.loops:
            return source
        return tuple(lax.dynamic_index_in_dim(array, index, keepdims=False) for array in source)

    def _step(self, carry: Any, watch: Watch, source: Any, index: Any) -> tuple[Any, Watch]:
        state, place = carry
        logs, state = self.model.train_step(state, self._batch_at(source, place, index))
        loss = logs["loss"].astype(jnp.float32)
        # The mean loss of the epoch stays infinite or NaN from then on.
        finite = watch.finite_steps + jnp.isfinite(loss).astype(jnp.int32)
        return (state, place + 1), Watch(finite, loss)

    def function(self) -> Callable[..., tuple[Any, Watch]]:
        """Return the function that `jit` compiles: (carry, watch, source[, number of steps]) → (carry, watch).

        The function trains for one step or, if the program `loops`, for a number of steps. The carry is the state of
        Keras's `train_step` and the position in the epoch, int32[].
        """

        def train_step(carry: Any, watch: Watch, source: Any) -> tuple[Any, Watch]:
            return self._step(carry, watch, source, 0)

        def train_block(carry: Any, watch: Watch, source: Any, count: Any) -> tuple[Any, Watch]:
            # The number of steps is an argument, so that one program handles blocks of any length.
            return lax.fori_loop(0, count, lambda i, kept: self._step(kept[0], kept[1], source, i), (carry, watch))

        return train_block if self.loops else train_step

    def _sharding_of(self, variable: Any) -> Any:
        return variable_sharding(self.mesh, variable.shape, self.params.sharding)

    def jit(self) -> Any:
        """Return the jitted program. On several devices, the new state has the sharding of the mesh."""
        if self.mesh is None or self.mesh.size == 1:
            return jax.jit(self.function(), donate_argnums=0)
        whole = array_sharding(self.mesh, None)
        state = tuple([self._sharding_of(variable) for variable in kind] for kind in state_of(self.model))
        function = self.function()
        if self.params.sharding == FULLY_SHARDED:
            function = gathering_weights(self.model, self.mesh)(function)  # Keeps the program's name.
        return jax.jit(function, donate_argnums=0, out_shardings=((state, whole), whole))

    def trace(self) -> Any:
        """Trace the program and return a `jax.stages.Traced`. The devices of the mesh need not exist."""
        abstract = jax.ShapeDtypeStruct
        whole = array_sharding(self.mesh, None)
        state = tuple(
            [abstract(variable.shape, variable.dtype, sharding=self._sharding_of(variable)) for variable in kind]
            for kind in state_of(self.model)
        )
        place, finite, loss = (abstract((), kind, sharding=whole) for kind in (np.int32, np.int32, np.float32))
        source = tuple(
            abstract(array.shape, array.dtype, sharding=array_sharding(self.mesh, array.sharded_axis))
            for array in self.source
        )
        count = (abstract((), np.int32),) if self.loops else ()
        return self.jit().trace((state, place), Watch(finite, loss), source, *count)


def fits(program: Program, beside_bytes: int = 0) -> bool:
    """Return whether a program, its inputs and `beside_bytes` of other data fit in the memory of a device.

    Return True if the size of the memory is unknown. The program is compiled for this check, and training then reads
    the compiled program from JAX's compilation cache.
    """
    try:
        memory = program.trace().lower().compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return False
        raise
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit is None or held_bytes(memory) + beside_bytes <= limit


def held_bytes(memory: Any) -> int:
    """Return the device memory that a program and its inputs need, in bytes, from the compiler's statistics."""
    needed: int = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return needed + memory.output_size_in_bytes - memory.alias_size_in_bytes


def state_of(model: Any) -> tuple[Sequence[Any], ...]:
    """Return the state of Keras's `train_step`: trainable, non-trainable, optimizer and metrics variables."""
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )

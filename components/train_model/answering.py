"""A model's answers to inputs that the devices of the JAX backend share, and every host its part of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from components.share import WHOLE, Share
from components.train_model.loop import put_part
from components.training_step.sharding import shared


class SharedInputs:
    """Inputs for the devices of the JAX backend, in batches of one size.

    Args:
        model: A keras.Model on the JAX backend.
        inputs: This host's share of the inputs, as the model takes them.
        batch_size: Examples of a step, of all replicas together.
        mesh: Devices that share a batch; None is one.
        share: This host's share of them.
        num_examples: Examples of all hosts.
        is_resident: Whether they stay in the devices' memory; else each batch is handed over.
    """

    def __init__(
        self,
        model: Any,
        inputs: np.ndarray,
        batch_size: int,
        mesh: Any,
        share: Share = WHOLE,
        num_examples: int = 0,
        is_resident: bool = True,
    ) -> None:
        self._model, self._num_examples, self._mesh = model, len(inputs), mesh
        self._batch = (batch_size, *inputs.shape[1:])
        self._own_batch = batch_size // share.count
        # As many for every host, though one has an example more than another.
        most = -(-(num_examples or len(inputs)) // share.count)
        num_batches = -(-most // self._own_batch)
        # Flat, as training's; what fills the last batch up is cut off its answers.
        filled = np.resize(inputs, (num_batches * self._own_batch, *inputs.shape[1:]))
        self._inputs = filled.reshape(num_batches, self._own_batch, -1)
        self._resident = put_part(self._inputs, mesh, 1) if is_resident else None
        self.take_up_model()

    def take_up_model(self) -> None:
        """Go on with the model as it is compiled now."""
        import jax
        from jax import lax

        def answer(state: Any, inputs: Any, number: Any) -> Any:
            chosen = lax.dynamic_index_in_dim(inputs, number, keepdims=False).reshape(self._batch)
            return self._model.predict_step(state, (chosen,))[0]

        sharing = None if jax.process_count() == 1 else shared(self._mesh, 0)
        self._answer = jax.jit(answer, out_shardings=sharing)

    def answers(self, start: int, count: int) -> np.ndarray:
        """Return float32[count, …], the answers to this host's examples from `start` on, which begins a batch."""
        state = tuple(
            [variable.value for variable in kind]
            for kind in (self._model.trainable_variables, self._model.non_trainable_variables)
        )
        first, last = start // self._own_batch, -(-(start + count) // self._own_batch)
        outputs = []
        for number in range(first, min(last, len(self._inputs))):
            if self._resident is not None:
                outputs.append(self._answer(state, self._resident, np.int32(number)))
            else:
                batch = put_part(self._inputs[number : number + 1], self._mesh, 1)
                outputs.append(self._answer(state, batch, np.int32(0)))
        end = min(start + count, self._num_examples)
        return np.concatenate(_own_parts(outputs))[: max(end - start, 0)].astype(np.float32)


def _own_parts(arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    """Return of arrays that devices share along their first axis what this host has."""
    import jax

    if jax.process_count() == 1:
        return jax.device_get(arrays)
    in_rows = [sorted(array.addressable_shards, key=lambda part: part.index[0].start) for array in arrays]
    return [np.concatenate([part.data for part in parts]) for parts in in_rows]

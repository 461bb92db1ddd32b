"""A model's answers to inputs that stay in the device's memory: what an epoch is judged by, without a feed."""

from typing import Any

import numpy as np

from components.train_model.loop import put


class ResidentInputs:
    """Inputs on the devices of the JAX backend, in batches of one size.

    Args:
        model: A keras.Model on the JAX backend.
        inputs: Inputs as the model takes them.
        batch_size: Examples of a step, of all replicas together.
        mesh: Devices that share a batch; None is one.
    """

    def __init__(self, model: Any, inputs: np.ndarray, batch_size: int, mesh: Any) -> None:
        self._model, self._num_examples, self._batch_size = model, len(inputs), batch_size
        self._batch = (batch_size, *inputs.shape[1:])
        num_batches = -(-len(inputs) // batch_size)
        # Flat, as training's; what fills the last batch up is cut off its answers.
        self._inputs = put(
            np.resize(inputs, (num_batches * batch_size, *inputs.shape[1:])).reshape(num_batches, batch_size, -1),
            mesh,
            1,
        )

        self.take_up_model()

    def take_up_model(self) -> None:
        """Go on with the model as it is compiled now."""
        import jax
        from jax import lax

        def answer(state: Any, inputs: Any, number: Any) -> Any:
            chosen = lax.dynamic_index_in_dim(inputs, number, keepdims=False).reshape(self._batch)
            return self._model.predict_step(state, (chosen,))[0]

        self._answer = jax.jit(answer)

    def answers(self, start: int, count: int) -> np.ndarray:
        """Return float32[count, …], the answers to examples from `start` on, which begins a batch."""
        import jax

        state = tuple(
            [variable.value for variable in kind]
            for kind in (self._model.trainable_variables, self._model.non_trainable_variables)
        )
        end = min(start + count, self._num_examples)
        numbers = range(start // self._batch_size, -(-end // self._batch_size))
        outputs = jax.device_get([self._answer(state, self._inputs, np.int32(number)) for number in numbers])
        return np.concatenate(outputs)[: end - start].astype(np.float32)

"""Language models as step functions.

A step processes one more character of each text. From this character and the text's state, the step computes the
probabilities of the following character, and the new state.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, keras, ops, tf

_RECURRENT = ("LSTM", "GRU", "SimpleRNN")
# Layers that treat each position separately, so that a single position gives the same output.
_POSITION_WISE = ("Embedding", "Dense", "Dropout", "SpatialDropout1D", "LayerNormalization", "Activation", "ReLU")


class StepModel:
    """One step of a language model: `step(tokens, state) → probabilities, state`.

    Attributes:
        state_size: Length of the state of one text, summed over all layers. The initial state is all zeros.
    """

    def __init__(self, model: Any) -> None:
        """Check that a model can predict one character at a time, and prepare its layers.

        Args:
            model: A keras.Sequential of forward recurrent layers with `return_sequences`, and layers that treat each
                position separately.

        Raises:
            InputError: If the model is not a Sequential, has no recurrent layer, or has a layer of another type.
        """
        self._layers = model.layers if isinstance(model, keras.Sequential) else [model]
        self._sizes: list[int] = []
        for layer in self._layers:
            kind = type(layer).__name__
            if kind in _RECURRENT and layer.return_sequences and not layer.go_backwards:
                self._sizes += _state_sizes(layer)
            elif kind not in _POSITION_WISE or getattr(layer, "mask_zero", False):
                raise InputError(
                    f"The language model {model.name!r} cannot predict one character at a time, because of the {kind} "
                    f"{layer.name!r}. Expected a Sequential with only these layers: "
                    f"{', '.join((*_RECURRENT, *_POSITION_WISE))}. Recurrent layers need return_sequences=True and "
                    "go_backwards=False, and embeddings need mask_zero=False. Replace this layer."
                )
        if not self._sizes:
            raise InputError(
                f"The language model {model.name!r} has no memory: expected at least one layer of type "
                f"{', '.join(_RECURRENT)}, received none. Add one of these layers."
            )
        self.state_size = sum(self._sizes)

    def step(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        """Process one more character of each text.

        Args:
            tokens: int32[batch] character IDs.
            state: float32[batch, state_size].

        Returns:
            float32[batch, classes] probabilities of the next character, and the new state.
        """
        # TensorFlow cannot split into a single part.
        states = ops.split(state, np.cumsum(self._sizes)[:-1].tolist(), axis=-1) if self._sizes[1:] else [state]
        values = tokens
        after = list[Any]()
        for layer in self._layers:
            if type(layer).__name__ in _RECURRENT:
                count = len(_state_sizes(layer))
                values, new = layer.cell(values, states[:count], training=False)
                states = states[count:]
                after += new if isinstance(new, list | tuple) else [new]
            elif "Dropout" not in type(layer).__name__:
                values = layer(values)
        return values, ops.concatenate(after, axis=-1)

    def compiled(self) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return a compiled version of `step` for NumPy arrays. It is compiled once for each batch size."""
        step = jax.jit(self.step) if keras.backend.backend() == "jax" else tf.function(self.step)

        def run(tokens: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            probabilities, after = step(keras.ops.convert_to_tensor(tokens), keras.ops.convert_to_tensor(state))
            return keras.ops.convert_to_numpy(probabilities), keras.ops.convert_to_numpy(after)

        return run


def _state_sizes(layer: Any) -> list[int]:
    sizes = layer.cell.state_size
    return list(sizes) if isinstance(sizes, list | tuple) else [sizes]

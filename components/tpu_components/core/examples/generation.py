"""Text generation with a language model, character by character.

The caller passes the step function of a Keras model or of an exported model.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tpu_components.core.examples.interface import PADDING, UNKNOWN

StepFunction = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function that predicts the next characters of N texts.

Its arguments are the IDs of the current characters, int32[N], and the states, float32[N, state_size]. It returns the
probabilities of the next characters, float32[N, classes], and the new states.
"""


class Alphabet:
    """Conversion of characters to IDs and back.

    Args:
        class_names: The character of each ID. IDs 0 (padding) and 1 (unknown) do not stand for characters.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        self._names = class_names
        self._ids = {name: id_ for id_, name in enumerate(class_names) if id_ not in (PADDING, UNKNOWN)}

    def encode(self, text: str) -> np.ndarray:
        """Return the ID of every character of a text, int32[len(text)]. An unknown character has the ID 1."""
        return np.array([self._ids.get(character, UNKNOWN) for character in text], np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert character IDs to text. ID 0 (padding) is left out, and ID 1 (unknown) becomes U+FFFD."""
        return "".join(
            "" if id_ == PADDING else "\N{REPLACEMENT CHARACTER}" if id_ == UNKNOWN else self._names[id_] for id_ in ids
        )


def draw(probabilities: np.ndarray, temperatures: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw the next character of N texts, as IDs int32[N]. IDs 0 (padding) and 1 (unknown) are never drawn.

    Args:
        probabilities: Probabilities of the characters, float[N, classes].
        temperatures: float[N]. 1 uses the probabilities as they are, smaller values prefer likely characters, and 0
            always returns the most likely character.
        random: Random generator. One number per text is drawn from it.

    Example:
        >>> draw(np.array([[0.5, 0.3, 0.15, 0.05]]), np.array([0.0]), np.random.default_rng(0)).tolist()
        [2]
    """
    uniform = random.random(len(probabilities))
    logits = np.log(np.maximum(probabilities.astype(np.float64), 1e-30))
    logits[:, [PADDING, UNKNOWN]] = -np.inf
    scaled = (logits - logits.max(1, keepdims=True)) / np.maximum(temperatures, 1e-6)[:, None]
    shares = np.cumsum(np.exp(scaled), axis=1)
    return (shares < (uniform * shares[:, -1])[:, None]).sum(1).astype(np.int32)


def generate(
    step: StepFunction, state_size: int, prompts: np.ndarray, length: int, temperatures: Sequence[float], seed: int
) -> np.ndarray:
    """Continue texts character by character. Equal arguments give equal texts if `step` is deterministic.

    Args:
        step: Step function of the model.
        state_size: Size of the model's state.
        prompts: Character IDs of the starts of the texts, int32[N, characters], with at least one character.
        length: Number of characters to add to each text.
        temperatures: One temperature per text; see `draw`.
        seed: Seed of the random generator.

    Returns:
        The added character IDs, int32[N, length].
    """
    state = np.zeros((len(prompts), state_size), np.float32)
    for position in range(prompts.shape[1]):
        probabilities, state = step(prompts[:, position], state)
    random = np.random.default_rng(seed)
    heat = np.array(temperatures, np.float64)
    added = np.empty((len(prompts), length), np.int32)
    for position in range(length):
        added[:, position] = draw(probabilities, heat, random)
        if position + 1 < length:
            probabilities, state = step(added[:, position], state)
    return added

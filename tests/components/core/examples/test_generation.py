import numpy as np
import pytest

from tpu_components.core.examples.generation import Alphabet, draw, generate

CLASSES = ("[PAD]", "[UNK]", "a", "b", "c")


def test_characters_become_ids_and_return():
    alphabet = Alphabet(CLASSES)
    assert alphabet.encode("cab?").tolist() == [4, 2, 3, 1]
    assert alphabet.decode([4, 2, 0, 1, 3]) == "ca\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities_at_a_temperature(temperature):
    probabilities = np.array([0.2, 0.2, 0.3, 0.2, 0.1])
    many = np.repeat(probabilities[None], 40_000, axis=0)
    drawn = draw(many, np.full(len(many), temperature), np.random.default_rng(1))
    expected = probabilities ** (1 / temperature)
    expected[:2] = 0
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / len(many), expected / expected.sum(), atol=0.01)


def test_at_temperature_zero_the_likeliest_character_comes_even_where_padding_is_likelier():
    rows = np.array([[0.9, 0.0, 0.02, 0.05, 0.03], [0.0, 0.6, 0.3, 0.1, 0.0]])
    assert draw(rows, np.zeros(2), np.random.default_rng(0)).tolist() == [3, 2]


def test_each_step_gets_the_character_before_and_the_state_of_its_own_text():
    def step(ids, state):
        probabilities = np.zeros((len(ids), 5))
        probabilities[np.arange(len(ids)), 2 + (ids - 2 + 1) % 3] = 1  # After a comes b, then c, then a.
        return probabilities, state + ids[:, None]

    added = generate(step, 1, np.array([[2, 3], [4, 4]], np.int32), 4, (1.0, 0.0), seed=0)
    assert [Alphabet(CLASSES).decode(row) for row in added.tolist()] == ["cabc", "abca"]


def test_equal_seeds_write_equal_texts_and_others_other_ones():
    def step(ids, state):
        return np.tile([0, 0, 0.4, 0.3, 0.3], (len(ids), 1)), state

    def write(seed):
        return generate(step, 1, np.array([[2]], np.int32), 50, (1.0,), seed).tolist()

    assert write(5) == write(5) != write(6)

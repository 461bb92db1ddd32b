import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import LANGUAGE_MODEL, CorpusInput, Interface
from tpu_components.core.machines import device
from tpu_components.core.models.lookup import build_model


@pytest.fixture(autouse=True)
def _tensorflow():
    device.prepare("tensorflow", "cpu", 1, "float32")


def build(*layers):
    import keras

    return keras.Sequential([keras.Input((12,), dtype="int32"), keras.layers.Embedding(9, 4), *layers])


def answers_by_step(model, passages):
    from tpu_components.core.models.language_model import StepModel

    steps = StepModel(model)
    state, answers = np.zeros((len(passages), steps.state_size), np.float32), []
    for position in range(passages.shape[1]):
        probabilities, state = steps.step(passages[:, position], state)
        answers.append(np.asarray(probabilities))
    return np.stack(answers, axis=1), steps.state_size


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_steps_answer_like_the_whole_passage(kind):
    from keras import layers

    recurrent = getattr(layers, kind)
    model = build(
        recurrent(6, return_sequences=True),
        layers.LayerNormalization(),
        layers.Dropout(0.5),
        recurrent(5, return_sequences=True, dropout=0.3, recurrent_dropout=0.3),
        layers.Dense(9, activation="softmax"),
    )
    passages = np.random.default_rng(0).integers(0, 9, (3, 12)).astype(np.int32)
    answers, state_size = answers_by_step(model, passages)
    assert state_size == (6 + 5) * (2 if kind == "LSTM" else 1)
    np.testing.assert_allclose(answers, model.predict(passages, verbose=0), atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_one_recurrent_layer_is_enough_and_one_is_needed(kind):
    from keras import layers

    from tpu_components.core.models.language_model import StepModel

    model = build(getattr(layers, kind)(6, return_sequences=True), layers.Dense(9, activation="softmax"))
    passages = np.random.default_rng(0).integers(0, 9, (3, 12)).astype(np.int32)
    answers, _ = answers_by_step(model, passages)
    np.testing.assert_allclose(answers, model.predict(passages, verbose=0), atol=1e-6)
    with pytest.raises(InputError, match=r"has no memory: expected at least one layer of type LSTM, GRU, SimpleRNN"):
        StepModel(build(layers.Dense(9, activation="softmax")))


def test_a_model_that_skips_padding_is_refused_since_a_step_cannot():
    import keras
    from keras import layers

    from tpu_components.core.models.language_model import StepModel

    embedding = layers.Embedding(9, 4, mask_zero=True, name="masked")
    recurrent = layers.LSTM(4, return_sequences=True)
    with pytest.raises(InputError, match=r"because of the Embedding 'masked'.*mask_zero=False"):
        StepModel(keras.Sequential([keras.Input((12,), dtype="int32"), embedding, recurrent]))


def test_shakespeare_lstm_is_as_large_as_its_docstring_says_and_takes_steps():
    model = build_model("shakespeare_lstm", Interface(CorpusInput(12, 67), 67, LANGUAGE_MODEL), {})
    assert model.count_params() == 875_523
    answers, state_size = answers_by_step(model, np.full((1, 12), 5, np.int32))
    assert (answers.shape, state_size) == ((1, 12, 67), 4 * 256)
    np.testing.assert_allclose(answers.sum(-1), 1, rtol=1e-5)


def test_a_model_that_looks_ahead_is_refused_by_the_layer_that_does():
    from keras import layers

    from tpu_components.core.models.language_model import StepModel

    model = build(layers.Bidirectional(layers.LSTM(4, return_sequences=True), name="both_ways"), layers.Dense(9))
    with pytest.raises(InputError, match=r"because of the Bidirectional 'both_ways'"):
        StepModel(model)
    backwards = build(layers.LSTM(4, return_sequences=True, go_backwards=True, name="from_the_end"))
    with pytest.raises(InputError, match=r"because of the LSTM 'from_the_end'"):
        StepModel(backwards)

"""The step around Keras's own: what is averaged, what decays, what is saved."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.components.conftest import EVERYTHING
from tests.components.ready_data import READY_DATA, everything_for
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import ARCHITECTURE_FILE, Manifest
from tpu_components.core.examples.records import load_split
from tpu_components.core.machines import device
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.ready import REGISTRY
from tpu_components.core.models.training_step.compiling import compile_model
from tpu_components.core.models.training_step.optimizers import exempt_from_decay
from tpu_components.train_model import train_model

_DIGITS, _ = READY_DATA["digits_cnn"]

_NORMALISED = """
import keras
from keras import layers

def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), layers.Rescaling(1 / 255), layers.Conv2D(4, 3),
        layers.BatchNormalization(momentum=0.5), layers.Dropout(0.1), layers.Flatten(),
        layers.Dense(num_classes, activation="softmax", dtype="float32")])
"""


@pytest.fixture
def normalised(tmp_path):
    """A model with batch normalisation and dropout."""
    path = tmp_path / "normalised.py"
    path.write_text(_NORMALISED)
    return str(path)


def _batch(interface, size=8):
    rng = np.random.default_rng(0)
    (shape, dtype), (target_shape, target_dtype), _ = interface.batch_shapes(size)
    targets = rng.integers(0, interface.num_classes, target_shape).astype(target_dtype)
    return rng.integers(0, min(256, interface.facts.get("vocabulary_size", 256)), shape, dtype), targets


def _compiled(model, quick, interface=_DIGITS, **changes):
    device.prepare("tensorflow", "cpu", 1, "float32")
    built = build_model(model, interface, {})
    return built, compile_model(built, interface, replace(quick, **changes), 1, 10, jit_compile=False)


# The largest take as long as all others together, and those between differ from the smallest in size alone.
_QUICK = ("digits_cnn", "imdb_lstm")
_MODELS = [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in REGISTRY]


@pytest.mark.parametrize("model", _MODELS)
def test_every_model_takes_a_step_with_everything_on(model, quick):
    interface, _ = READY_DATA[model]
    built, judged = _compiled(model, quick, interface, **everything_for(interface))
    before = [np.array(v) for v in built.trainable_variables]
    logs = built.train_on_batch(*_batch(interface), np.ones(8, np.float32), return_dict=True)
    assert 0 < logs["loss"] < 20
    assert any(np.any(np.array(v) != old) for v, old in zip(built.trainable_variables, before, strict=True))
    assert len(judged) == len(built.variables)


_STEP_WITH_JAX = """
import json
from tpu_components.core.machines import device
device.prepare("jax", "cpu", 1, "float32")
from tests.components.conftest import QUICK
from tests.components.core.models.training_step import test_wrapping as tests
device.prepare = lambda *arguments: None
for model in tests.REGISTRY:
    tests.test_every_model_takes_a_step_with_everything_on(model, QUICK)
print("all do")
"""


@pytest.mark.slow  # JAX compiles every model's step: a minute.
def test_every_model_takes_a_step_with_jax(run_python):
    assert run_python(_STEP_WITH_JAX).strip() == "all do"


def test_averages_are_of_weights_and_of_batch_normalisations_statistics(normalised, quick):
    built, judged = _compiled(normalised, quick, ema_decay=0.6)
    images, labels = _batch(_DIGITS)
    names = [variable.path for variable in built.variables]
    assert sum("moving" in name for name in names) == 2
    expected = [np.zeros(variable.shape) for variable in built.variables]
    for step in range(20):
        built.train_on_batch(images, labels, np.ones(8, np.float32))
        kept = min(0.6, step / (step + 9))
        values = [np.array(variable, np.float64) for variable in built.variables]
        expected = [kept * old + (1 - kept) * new for old, new in zip(expected, values, strict=True)]
    for name, average, one, variable in zip(names, judged, expected, built.variables, strict=True):
        if "seed" in name:
            assert average is variable
        else:
            np.testing.assert_allclose(np.array(average), one, rtol=1e-4, atol=1e-5, err_msg=name)
            assert np.any(np.array(average) != np.array(variable)), name


def test_classes_are_weighted_once_in_every_stage(normalised, quick):
    losses = []
    for num_stages in (1, 2):
        built, _ = _compiled(normalised, quick)
        built.set_weights([np.zeros(weight.shape, weight.dtype) for weight in built.get_weights()])
        for _ in range(num_stages):
            compile_model(built, _DIGITS, quick, 1, 10, jit_compile=False, class_weights=(3.0,) * 10)
        losses.append(built.train_on_batch(*_batch(_DIGITS), np.ones(8, np.float32)))
    assert losses[0][0] == losses[1][0] == pytest.approx(3 * np.log(10), rel=1e-5)


def test_without_averaging_the_weights_themselves_are_judged(normalised, quick):
    built, judged = _compiled(normalised, quick)
    assert all(one is variable for one, variable in zip(judged, built.variables, strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_takes_its_share_of_kernels_alone(normalised, quick, optimizer):
    """Against the same step without it: nothing else differs."""

    def after(weight_decay):
        import keras

        keras.utils.set_random_seed(3)
        built, _ = _compiled(normalised, quick, optimizer=optimizer, weight_decay=weight_decay, learning_rate=0.1)
        for variable in built.trainable_variables:
            variable.assign(variable + 0.5)  # Biases start at zero, which no decay would change.
        before = [np.array(v) for v in built.trainable_variables]
        built.train_on_batch(*_batch(_DIGITS), np.ones(8, np.float32))
        return before, [np.array(v) for v in built.trainable_variables]

    before, plain = after(0.0)
    _, decayed = after(0.2)
    assert {array.ndim for array in before} == {1, 2, 4}
    for start, one, other in zip(before, plain, decayed, strict=True):
        np.testing.assert_allclose(one - other, 0.1 * 0.2 * start * (start.ndim > 1), atol=1e-6)


def test_weight_decay_spares_by_role_and_not_by_shape():
    """A GRU's bias has two axes, as has an attention's; so may have what normalises or bends."""
    device.prepare("tensorflow", "cpu", 1, "float32")
    import keras
    from keras import layers

    tokens = keras.Input((4,), dtype="int32")
    values = layers.Embedding(9, 6, name="words")(tokens)
    values = layers.LayerNormalization(axis=[1, 2], name="norm")(values)
    values = layers.Bidirectional(layers.GRU(3), merge_mode="concat", name="gru")(values)
    values = layers.Reshape((3, 2))(values)
    values = layers.MultiHeadAttention(2, 5, name="attention")(values, values)
    values = layers.PReLU(name="bend")(values)
    values = layers.EinsumDense("abc,cd->abd", (None, 2), name="product")(values)
    model = keras.Model(tokens, layers.Dense(1, name="end")(values))

    spared = exempt_from_decay(model)
    decayed = [variable.path for variable in model.trainable_variables if all(variable is not v for v in spared)]
    assert decayed == [
        "words/embeddings",
        *(
            f"gru/{way}_gru/gru_cell/{kind}"
            for way in ("forward", "backward")
            for kind in ("kernel", "recurrent_kernel")
        ),
        *(f"attention/{part}/kernel" for part in ("query", "key", "value", "attention_output")),
        "product/kernel",
        "end/kernel",
    ]
    assert sorted(len(variable.shape) for variable in spared) == [1, 1, 2, 2, 2, 2, 2, 2, 2, 2]


def test_the_program_is_the_same_for_every_seed(normalised, quick):
    import keras
    import tensorflow as tf

    constants = []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        built, _ = _compiled(normalised, quick, **EVERYTHING)
        batch = (*_batch(_DIGITS), np.ones(8, np.float32))
        graph = tf.function(built.train_step).get_concrete_function(batch).graph
        constants.append([op.get_attr("value") for op in graph.get_operations() if op.type == "Const"])
    assert len(constants[0]) > 50
    assert constants[0] == constants[1]


@pytest.mark.heavy  # Four trainings: 4 s.
def test_averaged_weights_are_those_validated_and_saved(normalised, quick, digits_records, tmp_path):
    from tpu_components.core.models.trained import load_trained_model, predict

    params = replace(quick, model=normalised, model_parameters={}, ema_decay=0.95)
    train_model(params, digits_records, tmp_path / "model")
    train_model(replace(params, ema_decay=0.0), digits_records, tmp_path / "plain")
    architectures = [json.loads((tmp_path / name / ARCHITECTURE_FILE).read_text()) for name in ("model", "plain")]
    kinds = [[layer["class_name"] for layer in saved["config"]["layers"]] for saved in architectures]
    assert kinds[0] == kinds[1], "the saved model knows nothing of the training step"
    examples = load_split(digits_records, Manifest.load(digits_records), "validation")

    def answers(folder, weights):
        return predict(load_trained_model(tmp_path / folder, weights), examples.inputs, 64)

    for folder in ("model", "plain"):
        history = [json.loads(line) for line in (tmp_path / folder / "history.jsonl").read_text().splitlines()]
        last = answers(folder, "last.weights.h5")
        assert history[-1]["validation_accuracy"] == pytest.approx((last.argmax(1) == examples.labels).mean())
        best = answers(folder, "best.weights.h5")
        chosen = best[np.arange(len(examples.labels)), examples.labels].astype(np.float64)
        lowest = min(entry["validation_loss"] for entry in history)
        assert -np.log(chosen).mean() == pytest.approx(lowest, rel=1e-4)
    # What is trained is the same with and without: the averages only look on.
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / folder / "history.jsonl").read_text().splitlines()]
        for folder in ("model", "plain")
    ]
    assert losses[0] == losses[1]
    assert not np.allclose(answers("model", "last.weights.h5"), answers("plain", "last.weights.h5"), atol=1e-3)


def test_a_crop_larger_than_the_images_is_refused_before_training(quick, digits_records, tmp_path):
    with pytest.raises(InputError, match="random_crop_pixels=8 for images of 8×8 pixels"):
        train_model(replace(quick, random_crop_pixels=8), digits_records, tmp_path / "model")

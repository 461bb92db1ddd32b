"""Replicas share a batch; what is learned does not depend on how many share it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.components.corpora import QUICK_LANGUAGE_MODEL, corpus_params
from tests.components.train_model.weights import assert_close_models, weights_of
from tpu_components.create_tfrecords import write_records
from tpu_components.train_model import train_model


def _train(run_step, params, digits_records, output):
    done = run_step("train_model", params, records=digits_records, output=output)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_NORMALISED = """
import keras
from keras import layers

def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), layers.Rescaling(1 / 16), layers.BatchNormalization(),
        layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(),
        layers.Dense(16, activation="relu"), layers.BatchNormalization(),
        layers.Dense(num_classes, activation="softmax")])
"""


@pytest.fixture
def plain(quick, tmp_path):
    """Batch normalisation; no dropout, which is each replica's own; plain gradients, which amplify no rounding."""
    path = tmp_path / "normalised.py"
    path.write_text(_NORMALISED)
    return replace(
        quick,
        model=str(path),
        epochs=2,
        batch_size_per_replica=64,
        optimizer="sgd",
        learning_rate=0.02,
        learning_rate_scaling="none",
        model_parameters={},
    )


@pytest.mark.heavy  # Two processes that import and compile: 10 s.
@pytest.mark.parametrize("clipping", [{}, {"global_clipnorm": 0.05}, {"clipnorm": 0.02}, {"clipvalue": 0.001}])
def test_two_replicas_learn_what_one_learns(plain, digits_records, tmp_path, run_step, clipping):
    """Gradients were clipped before they were summed, so that the limit doubled."""
    plain = replace(plain, optimizer_parameters=clipping)
    whole = train_model(plain, digits_records, tmp_path / "one")
    halves = _train(
        run_step, replace(plain, batch_size_per_replica=32, num_replicas=2), digits_records, tmp_path / "two"
    )
    assert (halves["num_replicas"], halves["steps"]) == (2, whole.steps)
    assert (halves["num_synchronized_layers"], whole.num_synchronized_layers) == (3, 0)
    assert halves["examples_seen"] == whole.examples_seen == 2 * 1259
    assert halves["metrics"]["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-4)
    assert halves["metrics"]["accuracy"] == pytest.approx(whole.metrics["accuracy"], abs=2 / 1259)
    assert_close_models(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow  # A process of two replicas: 15 s.
def test_two_replicas_of_a_language_model_learn_what_one_learns(tmp_path, run_step):
    write_records(corpus_params(tmp_path), tmp_path / "records")
    params = replace(
        QUICK_LANGUAGE_MODEL,
        optimizer="sgd",
        learning_rate_scaling="none",
        model_parameters={**QUICK_LANGUAGE_MODEL.model_parameters, "dropout": 0.0},
    )
    whole = train_model(params, tmp_path / "records", tmp_path / "one")
    halves = _train(
        run_step, replace(params, batch_size_per_replica=4, num_replicas=2), tmp_path / "records", tmp_path / "two"
    )
    assert (halves["num_replicas"], halves["steps"]) == (2, whole.steps)
    for name in ("loss", "bits_per_character"):
        assert halves["metrics"][name] == pytest.approx(whole.metrics[name], rel=1e-4)
    assert_close_models(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow  # Two processes, one with eight simulated devices: 15 s, with JAX 30 s.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_learn_what_one_learns(plain, digits_records, tmp_path, run_step, backend):
    plain = replace(plain, backend=backend)
    whole = _train(run_step, plain, digits_records, tmp_path / "one")
    shared = replace(plain, batch_size_per_replica=8, num_replicas=8)
    eighths = _train(run_step, shared, digits_records, tmp_path / "eight")
    assert eighths["num_synchronized_layers"] == 3
    assert eighths["metrics"]["loss"] == pytest.approx(whole["metrics"]["loss"], rel=1e-4)
    assert_close_models(tmp_path / "one", tmp_path / "eight")


_MASKED = """
import numpy as np
import tensorflow as tf
from tpu_components.core.machines import device

two = device.prepare("tensorflow", "cpu", 2, "float32")
import keras
from tpu_components.core.models.training_step.wrapping import synchronize_normalization

def trained(scope, num_replicas):
    with scope:
        inputs = keras.Input((5, 3))
        mask = keras.layers.Masking(0.0)
        model = keras.Model(inputs, keras.layers.BatchNormalization(momentum=0.0)(mask(inputs)))
        model.compile("sgd", "mse", weighted_metrics=[])
    synchronize_normalization(model, num_replicas)
    values = 100 + np.random.default_rng(0).normal(size=(8, 5, 3)).astype("float32")
    values[:3, 2:], values[5, 1:] = 0, 0  # Left out; more of the first replica's than of the second's.
    model.fit(values, values, batch_size=8, verbose=0, shuffle=False)
    kept = values[(values != 0).any(-1)].astype("float64")
    norm = model.layers[-1]
    print(abs(np.array(norm.moving_mean) - kept.mean(0)).max(), abs(np.array(norm.moving_variance) - kept.var(0)).max())

trained(two.scope(), 2)
"""


@pytest.mark.slow  # A process of its own: 10 s.
def test_masked_places_are_left_out_of_what_replicas_normalise_by(run_python):
    mean_error, variance_error = map(float, run_python(_MASKED).split())
    assert mean_error < 1e-4  # Of 100.
    assert variance_error < 1e-4  # Of 1: the difference of two squares near 10,000 would be out by 1e-3.


@pytest.mark.slow  # Two processes with eight simulated devices and one with one: 40 s, with JAX a minute.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_learn_from_augmented_images_as_one_does(quick, digits_records, tmp_path, run_step, backend):
    """Each replica draws numbers of its own: other images, the same training. Once more gives the same, to the bit."""
    params = replace(
        quick,
        backend=backend,
        epochs=12,  # After 5, the accuracy of two trainings with other images differs by as much as 0.06.
        batch_size_per_replica=128,
        random_crop_pixels=1,
        mixup_alpha=0.2,
        label_smoothing=0.1,
        ema_decay=0.9,
    )
    whole = _train(run_step, params, digits_records, tmp_path / "one")
    shared = replace(params, num_replicas=8, batch_size_per_replica=16, learning_rate_scaling="none")
    eighths = _train(run_step, shared, digits_records, tmp_path / "eight")
    assert eighths["metrics"]["loss"] == pytest.approx(whole["metrics"]["loss"], abs=0.1)
    assert eighths["metrics"]["accuracy"] == pytest.approx(whole["metrics"]["accuracy"], abs=0.05)
    _train(run_step, shared, digits_records, tmp_path / "again")
    one, other = weights_of(tmp_path / "eight"), weights_of(tmp_path / "again")
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow  # One process with eight simulated devices: 10 s, with JAX 20 s.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_see_every_example_once(quick, digits_records, tmp_path, run_step, backend):
    params = replace(quick, backend=backend, num_replicas=8, batch_size_per_replica=32, epochs=2)
    result = _train(run_step, params, digits_records, tmp_path / "model")
    assert (result["num_replicas"], result["examples_seen"]) == (8, 2 * 1259)
    assert result["steps"] == 2 * 5  # ⌈1259 / 256⌉.
    assert result["metrics"]["loss"] < 2.3

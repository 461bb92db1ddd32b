"""Replicas share a batch; what is learned does not depend on how many share it."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from components.create_tfrecords import write_records
from components.train_model import train_model
from tests.components.corpora import QUICK_LANGUAGE_MODEL, corpus_params


def _weights(path):
    found = {}
    with h5py.File(path / "last.weights.h5") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def _train(run_step, params, digits_records, output):
    done = run_step("train_model", params, records=digits_records, output=output)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _assert_same(one_dir, other_dir):
    """Equal but for the order in which float32 sums gradients over examples: 1e-4 after 40 steps."""
    one, other = _weights(one_dir), _weights(other_dir)
    assert one.keys() == other.keys()
    for name, expected in one.items():
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(other[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.fixture
def plain(quick):
    """No dropout, whose draws depend on the replica; no scaling; plain gradients, which amplify no rounding."""
    return replace(
        quick,
        epochs=2,
        batch_size_per_replica=64,
        optimizer="sgd",
        learning_rate=0.02,
        learning_rate_scaling="none",
        model_parameters={"filters": 4, "units": 16, "dropout": 0.0},
    )


def test_two_replicas_learn_what_one_learns(plain, digits_records, tmp_path, run_step):
    whole = train_model(plain, digits_records, tmp_path / "one")
    halves = _train(
        run_step, replace(plain, batch_size_per_replica=32, num_replicas=2), digits_records, tmp_path / "two"
    )
    assert (halves["num_replicas"], halves["steps"]) == (2, whole.steps)
    assert halves["examples_seen"] == whole.examples_seen == 2 * 1259
    assert halves["metrics"]["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-4)
    assert halves["metrics"]["accuracy"] == pytest.approx(whole.metrics["accuracy"], abs=2 / 1259)
    _assert_same(tmp_path / "one", tmp_path / "two")


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
    _assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow  # Two processes, and JAX compiles in each: 25 s.
def test_two_jax_replicas_learn_what_one_learns(plain, digits_records, tmp_path, run_step):
    plain = replace(plain, backend="jax")
    whole = _train(run_step, plain, digits_records, tmp_path / "one")
    halves = _train(
        run_step, replace(plain, batch_size_per_replica=32, num_replicas=2), digits_records, tmp_path / "two"
    )
    assert halves["metrics"]["loss"] == pytest.approx(whole["metrics"]["loss"], rel=1e-4)
    _assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow  # Two processes with eight simulated devices and one with one: 40 s, with JAX a minute.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_learn_from_augmented_images_as_one_does(quick, digits_records, tmp_path, run_step, backend):
    """Each replica draws numbers of its own: other images, the same training. Once more gives the same, to the bit."""
    params = replace(
        quick,
        backend=backend,
        epochs=5,
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
    one, other = _weights(tmp_path / "eight"), _weights(tmp_path / "again")
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow  # One process with eight simulated devices: 10 s, with JAX 20 s.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_eight_replicas_see_every_example_once(quick, digits_records, tmp_path, run_step, backend):
    params = replace(quick, backend=backend, num_replicas=8, batch_size_per_replica=32, epochs=2)
    result = _train(run_step, params, digits_records, tmp_path / "model")
    assert (result["num_replicas"], result["examples_seen"]) == (8, 2 * 1259)
    assert result["steps"] == 2 * 5  # ⌈1259 / 256⌉.
    assert result["metrics"]["loss"] < 2.3

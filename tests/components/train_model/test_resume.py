"""A killed training continues to the same weights: it is killed for real, in the middle of an epoch."""

import json
import signal
import subprocess
import time
from dataclasses import asdict, replace

import keras
import pytest

from tests.components.conftest import EVERYTHING, QUICK
from tests.components.corpora import QUICK_LANGUAGE_MODEL, corpus_params
from tests.components.train_model.interrupting import continue_training, train_until_sigterm
from tests.components.train_model.weights import assert_equal_models, history_of
from tests.support.sharing import made_once
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_components.core.results.receipt import Receipt
from tpu_components.create_tfrecords import write_records
from tpu_components.train_model import train_model
from tpu_components.train_model.checkpoints.checkpoint import load_arrays

_WATCHED_SECONDS = 120


def _metrics(model_dir):
    """The history without what a clock says."""
    entries = history_of(model_dir)
    return [{name: value for name, value in entry.items() if "second" not in name} for entry in entries]


def _kill_in_mid_epoch(command, checkpoint):
    """Start, wait for a checkpoint inside the second epoch, kill; returns where training stood then."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + _WATCHED_SECONDS
        while time.monotonic() < end and process.poll() is None:
            if checkpoint.is_file():
                _, progress = load_arrays(checkpoint)
                if progress.epoch == 1 and progress.step > 3:
                    break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return load_arrays(checkpoint)[1]


def _assert_killed_training_continues(params, digits_records, reference, tmp_path, run_step, step_command, **changes):
    params = replace(params, checkpoint_seconds=0.0, **changes)
    paths = {"records": digits_records, "output": tmp_path / "killed"}
    checkpoint = tmp_path / "killed-checkpoints" / "checkpoint.npz"
    stood = _kill_in_mid_epoch(step_command("train_model", asdict(params), **paths), checkpoint)
    assert stood.epoch >= 1
    assert not (tmp_path / "killed").exists()
    done = run_step("train_model", params, **paths)
    assert done.returncode == 0, done.stderr
    assert f"continuing at epoch {stood.epoch + 1}, step {stood.step} of" in done.stderr
    assert_equal_models(reference, tmp_path / "killed")
    assert _metrics(tmp_path / "killed") == _metrics(reference)
    result = json.loads(done.stdout)
    num_examples = Manifest.load(digits_records).splits["train"].num_examples
    assert (result["epochs"], result["examples_seen"]) == (params.epochs, params.epochs * num_examples)
    _assert_each_step_was_timed_once(tmp_path / "killed", params.epochs)


def _assert_each_step_was_timed_once(model_dir, epochs):
    """The first step of a session compiles, and with TensorFlow the first of each epoch includes set-up."""
    receipt = Receipt.load(model_dir)
    assert receipt.sessions == 2
    assert receipt.all_steps - epochs - 1 <= receipt.steps <= receipt.all_steps - 2


_PARAMS = replace(QUICK, warmup_epochs=1, learning_rate_schedule="cosine", **EVERYTHING)


@pytest.fixture(scope="module")
def whole(digits_records, tmp_path_factory):
    """The model of a training that nothing has ended. Not to be written to."""
    return (
        made_once(tmp_path_factory, "whole", lambda folder: train_model(_PARAMS, digits_records, folder / "model"))
        / "model"
    )


@pytest.mark.heavy  # Trainings in processes of their own: 10 s.
def test_killed_training_continues_to_the_same_weights(whole, digits_records, tmp_path, run_step_here, step_command):
    keras.utils.clear_session()  # Layers are called as in a process of its own.
    _assert_killed_training_continues(_PARAMS, digits_records, whole, tmp_path, run_step_here, step_command)


@pytest.mark.heavy  # A training in a process of its own: 6 s.
def test_training_that_sigterm_ends_saves_at_once_and_continues_to_the_same_weights(
    whole, digits_records, tmp_path, capfd
):
    """A minute lies between two checkpoints: none would be due."""
    stood = train_until_sigterm(_PARAMS, digits_records, tmp_path / "ended", looks=40 + 5)
    assert stood == (1, 5), "40 steps an epoch; whether a checkpoint is due is asked after each"
    continue_training(_PARAMS, digits_records, tmp_path / "ended", capfd)
    assert_equal_models(whole, tmp_path / "ended")
    _assert_each_step_was_timed_once(tmp_path / "ended", _PARAMS.epochs)


_IN_STAGES = (Stage(1, ("conv*",), 0.01), Stage(2))


@pytest.mark.slow  # Three processes: 30 s, and JAX compiles anew in each.
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_training_killed_in_its_second_stage_continues_to_the_same_weights(
    quick, digits_records, tmp_path, run_step, step_command, backend
):
    params = replace(
        quick, backend=backend, stages=_IN_STAGES, learning_rate_schedule="cosine", warmup_epochs=0.5, **EVERYTHING
    )
    whole = run_step("train_model", params, records=digits_records, output=tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    _assert_killed_training_continues(params, digits_records, tmp_path / "whole", tmp_path, run_step, step_command)


@pytest.mark.slow  # Two processes, one of them killed: 20 s.
def test_killed_language_model_continues_to_the_same_weights(tmp_path, run_step, step_command):
    write_records(corpus_params(tmp_path), tmp_path / "records")
    params = replace(QUICK_LANGUAGE_MODEL, batch_size_per_replica=2)  # 46 steps an epoch: time to be killed in.
    train_model(params, tmp_path / "records", tmp_path / "whole")
    _assert_killed_training_continues(
        params, tmp_path / "records", tmp_path / "whole", tmp_path, run_step, step_command
    )


@pytest.mark.slow  # Two more processes (15 s): the streaming reader must find its place again too.
def test_killed_streamed_training_continues_to_the_same_weights(
    quick, digits_records, tmp_path, run_step, step_command
):
    params = replace(quick, in_memory_mib=0, shuffle_buffer=300, precision="mixed_bfloat16")
    train_model(params, digits_records, tmp_path / "whole")
    _assert_killed_training_continues(params, digits_records, tmp_path / "whole", tmp_path, run_step, step_command)


@pytest.mark.slow  # Three processes: 30 s, and 40 s with JAX, which compiles anew in each.
@pytest.mark.parametrize(("backend", "num_replicas"), [("jax", 1), ("jax", 2), ("tensorflow", 2)])
def test_killed_training_with_jax_or_on_replicas_continues_to_the_same_weights(
    quick, digits_records, tmp_path, run_step, step_command, backend, num_replicas
):
    params = replace(quick, backend=backend, num_replicas=num_replicas, **EVERYTHING)
    whole = run_step("train_model", params, records=digits_records, output=tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    _assert_killed_training_continues(params, digits_records, tmp_path / "whole", tmp_path, run_step, step_command)

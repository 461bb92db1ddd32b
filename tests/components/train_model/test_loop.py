"""The loop of the JAX backend: the same weights however data come to the device, and however many steps it takes."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.components.conftest import EVERYTHING
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.feeding import is_resident
from tpu_components.train_model.checkpoints.checkpoint import load_arrays

# Dropout, and products of matrices: on a CPU XLA sums a convolution in another order within a loop than outside.
_DENSE = """
import keras
from keras import layers

def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), layers.Rescaling(1 / 16), layers.Flatten(),
        layers.Dense(16, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2),
        layers.Dense(num_classes, activation="softmax")])
"""
_TRAIN_ALL = """
import hashlib, json, pathlib, sys
import keras
from tpu_components.train_model import TrainParams, train_model
from tpu_components.train_model.checkpoints.checkpoint import load_arrays

base, several, records, output = json.loads(sys.argv[1]), json.loads(sys.argv[2]), *map(pathlib.Path, sys.argv[3:])
for number, changes in enumerate(several):
    keras.utils.clear_session()
    train_model(TrainParams(**base | changes), records, output / str(number))
    arrays, _ = load_arrays(output / f"{number}-checkpoints" / "checkpoint.npz")
    print(hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest())
"""


@pytest.fixture
def dense(quick, tmp_path):
    """A training of two epochs on JAX."""
    (tmp_path / "dense.py").write_text(_DENSE)
    return replace(quick, model=str(tmp_path / "dense.py"), model_parameters={}, epochs=2, backend="jax")


def _train(run_with_jax, params, several, records, output):
    """What the last checkpoint of each training holds, in a word."""
    return run_with_jax(_TRAIN_ALL, json.dumps(asdict(params)), json.dumps(several), records, output).split()


def _ways(*steps):
    return [{"residency": where, "steps_per_execution": count} for where in ("device", "host") for count in steps]


@pytest.mark.parametrize("records", ["digits_records", "weighted_digits"])
@pytest.mark.parametrize(
    ("changes", "several"),
    [
        pytest.param(
            {},
            [*_ways(0), {"residency": "device", "steps_per_execution": 7}],
            marks=pytest.mark.heavy,  # Compiles anew for each: 10 s.
        ),
        pytest.param(EVERYTHING, _ways(0, 1, 7, 100), marks=pytest.mark.slow),  # A minute: each compiles anew.
    ],
)
def test_weights_are_the_same_however_data_come_and_however_many_steps_the_device_takes(
    dense, records, request, tmp_path, run_with_jax, changes, several
):
    records = request.getfixturevalue(records)
    digests = _train(run_with_jax, replace(dense, **changes), several, records, tmp_path)
    assert len(digests) == len(several)
    assert len(set(digests)) == 1, list(zip(several, digests, strict=True))


def test_a_split_that_can_not_lie_on_the_device_is_refused_where_it_must():
    assert is_resident("auto", "jax", 100 << 20, 100)
    assert not is_resident("auto", "jax", 101 << 20, 100)
    assert not is_resident("host", "jax", 1, 100)
    assert not is_resident("auto", "tensorflow", 1, 100)
    with pytest.raises(InputError, match=r"residency=device requires backend=jax\. Received: backend=tensorflow"):
        is_resident("device", "tensorflow", 1, 100)
    with pytest.raises(InputError, match="in_memory_mib of at least 101, received in_memory_mib=100"):
        is_resident("device", "jax", 101 << 20, 100)


_DIVERGE = """
import json, pathlib, sys
import keras
from tpu_components.core.base.errors import InputError
from tpu_components.train_model import TrainParams, train_model

params, records, output = json.loads(sys.argv[1]), *map(pathlib.Path, sys.argv[2:])
for steps in (0, 7):
    keras.utils.clear_session()
    try:
        train_model(TrainParams(**params, steps_per_execution=steps), records, output / str(steps))
    except InputError as error:
        print(error)
"""


@pytest.mark.heavy  # A process that imports JAX and TensorFlow: 5 s.
def test_divergence_names_its_step_and_keeps_the_last_good_checkpoint(dense, digits_records, tmp_path, run_with_jax):
    """The loss is looked at when a block ends: none that diverged within one is kept."""
    params = asdict(replace(dense, learning_rate=1e30, checkpoint_seconds=0.0))
    del params["steps_per_execution"]
    said = run_with_jax(_DIVERGE, json.dumps(params), digits_records, tmp_path).splitlines()
    single, block = (int(re.search(r"diverged: .* is not finite at step (\d+) of epoch 1", words)[1]) for words in said)
    path = tmp_path / "0-checkpoints" / "checkpoint.npz"
    assert f"The last good checkpoint is kept in {path}" in said[0]
    arrays, progress = load_arrays(path)
    assert progress.step == single - 1
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert single <= block <= 7
    assert "There was no checkpoint yet" in said[1]


_TERMINATE = """
import json, pathlib, sys
from tpu_components.train_model import TrainParams
from tests.components.train_model.interrupting import train_until_sigterm

params, records, output = TrainParams(**json.loads(sys.argv[1])), *map(pathlib.Path, sys.argv[2:])
print(train_until_sigterm(params, records, output, looks=7 + 3))
"""


@pytest.mark.heavy  # A process that imports JAX and TensorFlow: 5 s.
def test_sigterm_ends_a_training_at_the_end_of_its_block_of_steps_with_a_checkpoint(
    dense, digits_records, tmp_path, run_with_jax
):
    """That one killed at a checkpoint comes to the same weights, the tests of kills show."""
    params = json.dumps(asdict(replace(dense, steps_per_execution=6)))
    assert run_with_jax(_TERMINATE, params, digits_records, tmp_path / "ended") == "(1, 18)\n"


_KILL = """
import json, os, pathlib, random, signal, sys, time
from tpu_components.train_model import TrainParams, train_model
from tpu_components.train_model.checkpoints.checkpoint import load_arrays

params, records, output = TrainParams(**json.loads(sys.argv[1])), *map(pathlib.Path, sys.argv[2:4])
checkpoint, draw, stood = output.with_name(f"{output.name}-checkpoints") / "checkpoint.npz", random.Random(0), []

def written():
    return checkpoint.stat().st_mtime_ns if checkpoint.is_file() else 0

def start():
    child = os.fork()
    if child == 0:
        train_model(params, records, output)
        os._exit(0)
    return child

for _ in range(int(sys.argv[4])):
    before, child = written(), start()
    while written() == before:  # It has come as far as a checkpoint; from there on it dies anywhere.
        time.sleep(0.002)
    time.sleep(draw.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    _, progress = load_arrays(checkpoint)
    stood.append((progress.epoch, progress.step))
assert os.waitstatus_to_exitcode(os.waitpid(start(), 0)[1]) == 0
print(json.dumps(stood))
"""


@pytest.mark.slow  # Twenty-two trainings, most of them short: two minutes, and many more on a busy machine.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("residency", ["device", "host"])
def test_killed_twenty_times_in_the_middle_of_blocks_it_comes_to_the_same_weights(
    dense, digits_records, tmp_path, run_with_jax, residency
):
    params = replace(dense, epochs=120, checkpoint_seconds=0.0, steps_per_execution=7, residency=residency)
    words = [json.dumps(asdict(params)), digits_records]
    stood = json.loads(run_with_jax(_KILL, *words, tmp_path / "killed", 20))
    assert len(stood) == 20
    assert stood == sorted(stood)
    assert any(step for _, step in stood), "some within an epoch"
    assert all(step % 7 == 0 for _, step in stood)
    run_with_jax(_KILL, *words, tmp_path / "whole", 0)
    killed, whole = (
        load_arrays(tmp_path / f"{name}-checkpoints" / "checkpoint.npz")[0] for name in ("killed", "whole")
    )
    assert killed.keys() == whole.keys()
    assert all(np.array_equal(killed[name], whole[name]) for name in whole)

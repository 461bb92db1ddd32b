"""Weights that lie in parts on eight simulated devices learn what whole ones learn."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.core.models.training_step.sharding import compute_dtypes, shard_axis
from tpu_components.preflight_training import PreflightParams
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.examining import Examination
from tpu_components.train_model import TrainParams


@pytest.mark.parametrize(
    ("shape", "num_devices", "axis"),
    [
        ((512, 1024), 8, 1),
        ((1024, 512), 8, 0),
        ((3, 3, 64, 128), 8, 3),
        ((3, 3, 64, 130), 8, 2),
        ((511, 1023), 8, None),
        ((64,), 8, None),
        ((), 8, None),
        ((8192,), 256, 0),
        ((512, 1024), 1, 1),
    ],
)
def test_large_variables_are_cut_along_the_longest_axis_that_divides(shape, num_devices, axis):
    assert shard_axis(shape, num_devices) == axis


def test_the_tensorflow_backend_shards_no_weights():
    with pytest.raises(InputError, match=r"sharding=fully_sharded requires backend=jax\. Received: backend=tensorflow"):
        TrainParams("digits_cnn", backend="tensorflow", sharding="fully_sharded")


def test_weights_are_put_together_in_the_type_in_which_their_layers_compute():
    import keras

    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(2, dtype="mixed_bfloat16", name="plain"),
            keras.layers.Dense(2, dtype="mixed_bfloat16", kernel_regularizer="l2", name="penalized"),
            keras.layers.Dense(2, dtype="float32", name="exact"),
        ]
    )
    names = ["/".join(variable.path.split("/")[-2:]) for variable in model.trainable_variables]
    assert dict(zip(names, compute_dtypes(model), strict=True)) == {
        "plain/kernel": "bfloat16",
        "plain/bias": "bfloat16",
        "penalized/kernel": "float32",  # The penalty is of the weight itself.
        "penalized/bias": "bfloat16",
        "exact/kernel": "float32",
        "exact/bias": "float32",
    }


_BYTES = """
import sys
from pathlib import Path
import jax
from tpu_components.train_model import TrainParams, training

def held(self, output, result):
    of_device = {}
    for kind in ("weight", "optimizer"):
        for name, variable in self._session.variables().items():
            if name.startswith(kind):
                for part in variable.value.addressable_shards:
                    of_device[part.device.id] = of_device.get(part.device.id, 0) + part.data.nbytes
    print(sorted(of_device.values()))
    save(self, output, result)

save, training._Training.save = training._Training.save, held
from tpu_components.train_model import __main__
sys.exit(__main__.main())
"""


@pytest.mark.slow  # Two processes with eight simulated devices: 25 s.
@pytest.mark.parametrize(("precision", "first", "later"), [("float32", 1e-3, 1e-3), ("mixed_bfloat16", 1e-2, 0.1)])
def test_weights_in_parts_learn_what_whole_ones_learn(
    quick, digits_records, tmp_path, step_command, precision, first, later
):
    """Sums in another order: what bfloat16 rounds in the first epoch moves the losses of the third by some per cent."""
    (tmp_path / "held.py").write_text(_BYTES)
    params = replace(quick, backend="jax", num_replicas=8, batch_size_per_replica=8, ema_decay=0.9, precision=precision)
    curves, held = [], []
    for sharding in ("replicated", "fully_sharded"):
        words = step_command(
            "train_model",
            {**vars(replace(params, sharding=sharding))},
            records=digits_records,
            output=tmp_path / sharding,
        )
        words[1:3] = [str(tmp_path / "held.py")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        held.append(json.loads(done.stdout.splitlines()[0]))
        lines = (tmp_path / sharding / "history.jsonl").read_text().splitlines()
        curves.append([(json.loads(line)["loss"], json.loads(line)["validation_loss"]) for line in lines])
    assert curves[1][0] == pytest.approx(curves[0][0], rel=first)
    assert np.array(curves[1]) == pytest.approx(np.array(curves[0]), rel=later)
    assert max(held[1]) < 0.2 * min(held[0]), "an eighth of all large ones, and the small ones whole"


_LARGE = """
import keras
from keras import layers


def build_model(image_shape, num_classes):
    inputs = keras.Input(image_shape, dtype="uint8")
    x = layers.Flatten()(layers.Rescaling(1 / 16)(inputs))
    for _ in range(25):
        x = layers.Dense(8192, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(num_classes, activation="softmax")(x))
"""


@pytest.mark.slow  # The TPU's compiler, twice: a minute.
def test_a_model_too_large_for_a_chip_fits_eight_in_parts_by_the_compilers_verdict(tmp_path):
    """1.6 billion parameters with Adam: 12 bytes of each are more than the 16 GB of a v5e chip."""
    (tmp_path / "large.py").write_text(_LARGE)
    data = DataFacts(Interface(ImageInput((8, 8, 1), "raw"), 10), 1259, 1259 * 64, HostRate(5e4, 1e5, True, 24))
    reports = []
    for sharding in ("replicated", "fully_sharded"):
        training = TrainParams(str(tmp_path / "large.py"), batch_size_per_replica=1, sharding=sharding)
        machine = PaidMachine("v5e-8")
        reports += (
            Examination(PreflightParams(training, paid=machine), [machine], tmp_path / sharding).report(data).machines
        )
    assert [report.verdict for report in reports] == ["does_not_fit", "fits"]
    assert reports[1].parameters > 1.6e9
    assert reports[1].peak_bytes < 0.4 * reports[1].capacity_bytes

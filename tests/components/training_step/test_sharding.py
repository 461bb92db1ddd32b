"""Weights that lie in parts on eight simulated devices learn what whole ones learn."""

import json
import subprocess
from dataclasses import replace

import pytest

from components.errors import InputError
from components.train_model import TrainParams
from components.training_step.sharding import cut_axis


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
    assert cut_axis(shape, num_devices) == axis


def test_the_tensorflow_backend_shards_no_weights():
    with pytest.raises(InputError, match=r"sharding=fully_sharded needs backend=jax\. Received: backend=tensorflow"):
        TrainParams("digits_cnn", backend="tensorflow", sharding="fully_sharded")


_BYTES = """
import sys
from pathlib import Path
import jax
from components.train_model import TrainParams, training

def held(self, output, result):
    of_device = {}
    for kind in ("weight", "optimizer"):
        for name, variable in self.variables().items():
            if name.startswith(kind):
                for part in variable.value.addressable_shards:
                    of_device[part.device.id] = of_device.get(part.device.id, 0) + part.data.nbytes
    print(sorted(of_device.values()))
    save(self, output, result)

save, training._Session.save = training._Session.save, held
from components.train_model import __main__
sys.exit(__main__.main())
"""


@pytest.mark.slow  # Two processes with eight simulated devices: 25 s.
def test_weights_in_parts_learn_what_whole_ones_learn(quick, digits_records, tmp_path, step_command):
    (tmp_path / "held.py").write_text(_BYTES)
    params = replace(quick, backend="jax", num_replicas=8, batch_size_per_replica=8, ema_decay=0.9, precision="float32")
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
    assert [value for entry in curves[1] for value in entry] == pytest.approx(
        [value for entry in curves[0] for value in entry], rel=1e-3
    )
    assert max(held[1]) < 0.2 * min(held[0]), "an eighth of all large ones, and the small ones whole"

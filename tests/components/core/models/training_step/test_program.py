import json
from types import SimpleNamespace

import pytest

from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.program import Program, held_bytes


def test_an_output_that_takes_the_place_of_an_input_is_held_once():
    sizes = {"argument": 3, "temp": 5, "output": 7, "alias": 2}
    assert held_bytes(SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})) == 13


@pytest.mark.parametrize(
    ("asked", "accelerator", "batch_bytes", "steps"),
    [(0, "cpu", 1, None), (0, "tpu", 1 << 20, 64), (0, "gpu", 1 << 30, 1), (1, "tpu", 1, None), (7, "cpu", 1, 7)],
)
def test_blocks_are_for_accelerators_unless_they_are_asked_for(asked, accelerator, batch_bytes, steps):
    params = TrainParams("m", steps_per_execution=asked)
    streamed, resident = (
        Program(None, [((batch_bytes,), "uint8")], 1, params, is_resident, accelerator) for is_resident in (False, True)
    )
    assert streamed.loops == resident.loops == (steps is not None)
    if streamed.loops:
        assert streamed.block_steps == steps


_FITS = """
import json
import jax, keras
from tpu_components.core.machines import device
device.prepare("jax", "cpu", 1, "float32")
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.program import Program, fits
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.training_step.compiling import compile_model

params = TrainParams("tests.components.preflight_training.dense:build_model", epochs=1, backend="jax")
digits = Interface(ImageInput((8, 8, 1), "raw"), 10)
model = build_model(params.model, digits, {})
compile_model(model, digits, params, 1, 40, True)
planned = Program(model, digits.batch_shapes(32), 1259, params, True, "tpu")

class Chip:
    def __init__(self, limit):
        self.limit = limit
    def memory_stats(self):
        return {"bytes_limit": self.limit}

def verdict(limit):
    jax.local_devices = lambda: [Chip(limit)]
    return fits(planned)

print(json.dumps([verdict(1 << 30), verdict(1259 * 64), [list(array.shape) for array in planned.source]]))
"""


def test_what_is_resident_must_fit_beside_the_model_as_the_device_tells(run_with_jax):
    enough, as_much_as_the_data, shapes = json.loads(run_with_jax(_FITS))
    assert shapes == [[1259, 64], [1259], [1259], [40, 32]]
    assert enough
    assert not as_much_as_the_data

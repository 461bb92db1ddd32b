"""The user's models that fail, each in its own way, what training runs, and every model for every chip."""

import dataclasses
import json
import re

import pytest

from tests.components.conftest import EVERYTHING
from tests.components.preflight_training.conftest import (
    DENSE,
    TRAINING,
    compile_all,
    compile_one,
    make_compilation,
)
from tests.components.ready_data import READY_DATA, everything_for
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import LANGUAGE_MODEL, CorpusInput, Interface
from tpu_components.core.machines.device import choose_precision
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_components.preflight_training.compiling.compiler import Compilation
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT, FITS, MAY_FIT
from tpu_components.preflight_training.estimate import time_step
from tpu_pipelines.config.configuration import load_config, ready_examples

pytestmark = pytest.mark.usefixtures("warm_compiler")

_TENSORFLOW = pytest.param("tensorflow", marks=pytest.mark.slow)  # A process of its own: 5 to 10 s.

_MODEL = """
import keras
from keras import layers


class Special(layers.Layer):
    def call(self, x):
        {call}

    def compute_output_spec(self, x):
        return keras.KerasTensor({shape}, x.dtype)


def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"),
        layers.Rescaling(1 / 255),
        layers.Conv2D(1, 3, padding="same"),
        layers.Reshape(image_shape[:2]),
        Special(name="special"),
        layers.Flatten(),
        layers.Dense(num_classes, activation="softmax", dtype="float32"),
    ])
"""


@pytest.fixture
def special_model(tmp_path):
    """A model whose layer `special` does something of the user's own; its code starts in line 8."""

    def write(*lines, shape="x.shape"):
        path = tmp_path / "my_model.py"
        path.write_text(_MODEL.replace("{call}", "\n        ".join(lines)).replace("{shape}", shape))
        return str(path)

    return write


@pytest.mark.parametrize(("changes", "expected"), [({}, 0.05), ({"learning_rate": 0.02}, 0.02)])
def test_the_peak_learning_rate_is_that_of_the_optimizer_that_trains(changes, expected, tmp_path, cache_dir):
    """On a GPU, which needs no compilation."""
    (path := tmp_path / "compiled.py").write_text(
        "import keras\n\n\n"
        "def build_model(image_shape, num_classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten()]\n"
        "    model = keras.Sequential([*layers, keras.layers.Dense(num_classes, activation='softmax')])\n"
        "    model.compile(keras.optimizers.SGD(0.05), 'sparse_categorical_crossentropy')\n"
        "    return model\n"
    )
    outcome = compile_one(make_compilation(str(path), machine="l4-1", **changes), cache_dir)
    assert (outcome.verdict, outcome.learning_rate) == (MAY_FIT, pytest.approx(expected))


def test_operation_that_no_tpu_has_is_named_with_its_line(special_model, cache_dir):
    model = special_model(
        "import jax",
        "import jax.numpy as jnp",
        "values, _ = jnp.linalg.eig(jax.lax.stop_gradient(x.astype('float32')))",
        "return values.real.astype(x.dtype)",
        shape="x.shape[:2]",
    )
    outcome = compile_one(make_compilation(model), cache_dir)
    assert outcome.verdict == DOES_NOT_COMPILE
    assert outcome.reason == "the operation 'eig' is not implemented on TPU"
    assert outcome.source == "my_model.py:10"
    assert (outcome.held_bytes, outcome.cost) == (0, None)


@pytest.mark.parametrize(
    ("lines", "line", "advice"),
    [
        (["bright = x[x > 0.5]", "return x * bright.mean()"], 8, ""),
        (["factor = 1", "if x.mean() > 0.5:", "    factor = 2", "return factor * x"], 9, ""),
        (["return x * len(keras.ops.nonzero(x)[0])"], 8, "ops.nonzero needs the values of an array."),
    ],
)
def test_shape_or_branch_that_depends_on_the_data_is_explained(special_model, cache_dir, lines, line, advice):
    outcome = compile_one(make_compilation(special_model(*lines)), cache_dir)
    assert outcome.verdict == DOES_NOT_COMPILE
    told = "a shape or a branch depends on the data, but a TPU program is fixed when it is compiled: "
    assert outcome.reason.startswith(told + advice)
    assert (outcome.layer, outcome.source) == ("special", f"my_model.py:{line}")


_TAKES = "def build_model(image_shape, num_classes{more}):\n    "


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("layers = kears.layers", "Cannot import the model .*NameError: name 'kears' is not defined"),
        (_TAKES.format(more="") + "return kears.Sequential()", "Cannot build the model .*NameError: name 'kears'"),
        (_TAKES.format(more=", depth") + "pass", "missing a required argument: 'depth'"),
        (
            _TAKES.format(more="") + "raise ValueError('too few layers')",
            "Cannot build the model .*ValueError: too few layers",
        ),
    ],
)
def test_a_mistake_in_the_models_file_is_no_verdict_on_the_tpu(tmp_path, cache_dir, code, message):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(InputError, match=message):
        compile_one(make_compilation(str(tmp_path / "mine.py")), cache_dir)


def test_a_damaged_keras_file_is_no_verdict_on_the_tpu(tmp_path, cache_dir):
    (tmp_path / "mine.keras").write_bytes(b"no zip file")
    with pytest.raises(InputError, match="Cannot load the model file"):
        compile_one(make_compilation(str(tmp_path / "mine.keras")), cache_dir)


@pytest.mark.parametrize("backend", ["jax", _TENSORFLOW])
def test_nothing_speaks_against_a_language_model_whose_learning_rate_changes(cache_dir, backend):
    compilation = dataclasses.replace(
        make_compilation(
            "shakespeare_lstm",
            {"embedding": 4, "units": 8, "num_layers": 1},
            backend=backend,
            learning_rate_schedule="cosine",
        ),
        interface=Interface(CorpusInput(8, 20), 20, LANGUAGE_MODEL),
    )
    outcome = compile_one(compilation, cache_dir)
    assert (outcome.verdict, outcome.objection) == (FITS, "")


def test_calls_of_the_host_compile_and_are_listed(special_model, cache_dir):
    model = special_model(
        "import jax",
        "shape = jax.ShapeDtypeStruct(x.shape, x.dtype)",
        "same = jax.pure_callback(lambda v: v, shape, jax.lax.stop_gradient(x), vmap_method='sequential')",
        "return x + jax.lax.stop_gradient(same)",
    )
    outcome = compile_one(make_compilation(model), cache_dir)
    assert outcome.verdict == FITS
    (call,) = outcome.cost.host_calls
    assert "special" in call
    assert "callback" in call
    assert "Evaluation and export cannot rebuild the model" in outcome.objection


@pytest.mark.slow  # A process of its own, with TensorFlow: 6 s.
def test_tensorflow_operation_that_xla_lacks_is_named_with_its_layer_and_line(special_model, cache_dir):
    model = special_model(
        "import tensorflow as tf",
        "same = tf.numpy_function(lambda v: v, [x], x.dtype)",
        "same.set_shape(x.shape)",
        "return x + tf.stop_gradient(same)",
    )
    outcome = compile_one(make_compilation(model, backend="tensorflow"), cache_dir)
    assert outcome.verdict == DOES_NOT_COMPILE
    assert outcome.reason.startswith("tf.numpy_function runs Python on the host, which a TPU program cannot call")
    assert (outcome.layer, outcome.source) == ("special", "my_model.py:9")


@pytest.mark.parametrize("machine", ["v2-8", "v5e-1"])
def test_batch_that_is_too_large_tells_what_it_needs_and_what_there_is(cache_dir, machine):
    outcome = compile_one(make_compilation(parameters={}, machine=machine, batch_size=4_000_000), cache_dir)
    capacity = load_catalogue().find(machine).generation.hbm_usable_bytes
    assert outcome.verdict == DOES_NOT_FIT
    # The catalogue's capacity is the very one that the compiler names.
    said = re.search(r"exceeds available HBM \(([\d.]+)G\)|of ([\d.]+)G hbm", outcome.reason)
    assert float(said[1] or said[2]) == pytest.approx(capacity / 2**30, abs=0.01)
    assert outcome.peak_bytes > capacity


def test_what_fits_has_memory_and_every_layers_cost(cache_dir):
    outcome = compile_one(make_compilation(), cache_dir)
    # (3·3·1·4 + 4) + (3·3·4·8 + 8) + (4·4·8·8 + 8) + (8·10 + 10)
    assert outcome.parameters == 40 + 296 + 1032 + 90
    assert (outcome.verdict, outcome.objection) == (FITS, "")
    assert 4 * outcome.parameters < min(outcome.peak_bytes, outcome.held_bytes)
    assert {"conv2d", "conv2d_1", "dense", "dense_1"} <= outcome.cost.layers.keys()
    assert outcome.cost.host_calls == ()
    assert outcome.cost.unknown_loops == 0
    assert outcome.cost.collectives == ()  # One chip.


@pytest.mark.slow  # Programs are compiled for TPUs: 10 s.
def test_of_several_stages_the_largest_is_compiled(cache_dir):
    staged = make_compilation(stages=(Stage(1, ("conv*",), 0.1), Stage(1, ("dense",)), Stage(1)))
    compiled, alone = (compile_one(one, cache_dir) for one in (staged, make_compilation(epochs=1)))
    assert (compiled.stage, alone.stage) == (3, 0)
    assert compiled.parameters == alone.parameters
    with pytest.raises(InputError, match=r"Cannot freeze 'convolution'.*no layer with this name"):
        compile_one(make_compilation(epochs=1, stages=(Stage(1, ("convolution",)),)), cache_dir)


@pytest.mark.slow  # Programs are compiled for TPUs: 10 s.
def test_names_and_precision_are_the_same_for_the_second_of_several(tmp_path):
    """Keras numbers layers through a process, and forgets its settings when the numbers are reset."""
    some = [make_compilation(batch_size=size) for size in (8, 16)]
    _, second = compile_all(some, tmp_path / "one")
    alone = compile_one(some[1], tmp_path / "other")
    assert second.cost == alone.cost
    assert (second.peak_bytes, second.held_bytes) == (alone.peak_bytes, alone.held_bytes)


@pytest.mark.slow  # Programs are compiled for TPUs: 10 s.
def test_tensorflows_step_is_that_of_one_replica(cache_dir):
    outcome = compile_one(make_compilation(machine="v2-8", backend="tensorflow"), cache_dir)
    assert outcome.verdict == FITS
    assert outcome.cost.collectives == ()
    assert {"conv2d", "conv2d_1", "dense", "dense_1"} <= outcome.cost.layers.keys()


_TRAIN = """
import sys
import jax
jax.config.update("jax_dump_ir_to", sys.argv.pop(1))
from tpu_components.train_model.__main__ import main
assert main() == 0
"""
_LOWER = """
import dataclasses, json, os, pathlib, sys
from tpu_components.core.machines import device
device.prepare("jax", "cpu", 2, "mixed_bfloat16")
import jax, keras
keras.distribution.set_distribution(None)  # The compiler's process knows of no devices.
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training.compiling import compiler
from tests.components.preflight_training.conftest import DIGITS, TRAINING
from tests.components.preflight_training.compiling.test_compiler import without_places
changes = json.loads(sys.argv[2])
training = dataclasses.replace(TRAINING, batch_size_per_replica=32, **changes)
is_resident = changes["residency"] == "device"
here = dataclasses.replace(load_catalogue().find("v5e-1"), devices=2)
compilation = compiler.Compilation(training, DIGITS, 1259, here, is_resident)
model, _ = compiler._without_values(lambda: compiler._build(compilation))
text = compiler.trace_program(model, compilation, jax.devices(), "cpu").lower().as_text()
(trained,) = pathlib.Path(sys.argv[1]).glob("*jit_train_*.mlir")
print(without_places(text) == without_places(trained.read_text()), len(text))
"""


def without_places(text):
    """A StableHLO program without the places in Python code that its operations come from."""
    from jax.extend.mlir import ir
    from jax.interpreters.mlir import make_ir_context

    with make_ir_context():
        return ir.Module.parse(text).operation.get_asm(enable_debug_info=False)


@pytest.mark.slow  # Programs are compiled for TPUs: 10 s.
def test_augmentation_moves_no_image_between_devices_and_has_no_loop(cache_dir):
    plain, augmented = (
        compile_one(make_compilation(machine="v5e-8", **of_training), cache_dir) for of_training in ({}, EVERYTHING)
    )
    assert augmented.cost.collectives == plain.cost.collectives
    assert augmented.cost.cycles > plain.cost.cycles
    assert augmented.cost.unknown_loops == 0
    assert time_step(augmented.cost, load_catalogue().find("v5e-8")).guessed_share < 0.1
    assert augmented.cost.host_calls == ()


@pytest.mark.slow  # TensorFlow lowers a step for ten seconds.
def test_augmentation_compiles_on_tensorflow_too(cache_dir):
    outcome = compile_one(make_compilation(backend="tensorflow", **EVERYTHING), cache_dir)
    assert (outcome.verdict, outcome.reason) == (FITS, "")
    assert outcome.cost.unknown_loops == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"residency": "host"}, marks=pytest.mark.slow, id="plain"),  # 20 s each.
        pytest.param({"residency": "host", "steps_per_execution": 3}, marks=pytest.mark.slow, id="blocks"),
        pytest.param(
            {"model": DENSE, "model_parameters": {}, "residency": "device", "steps_per_execution": 3, **EVERYTHING},
            id="everything",
            marks=pytest.mark.heavy,  # Compiles the largest step of all: 5 s.
        ),
    ],
)
def test_the_program_compiled_is_the_very_one_that_training_runs(
    digits_records, tmp_path, run_with_jax, step_command, changes
):
    """Both lowered for two simulated CPU devices, one in a real training: the texts are the same."""

    command = step_command(
        "train_model",
        {
            **dataclasses.asdict(TRAINING),
            "batch_size_per_replica": 32,
            "num_replicas": 2,
            "accelerator": "cpu",
            **changes,
            "seed": 7,
            "epochs": 1,
        },
        records=digits_records,
        output=tmp_path / "model",
    )
    run_with_jax(_TRAIN, tmp_path / "dumped", *command[3:])
    is_same, length = run_with_jax(_LOWER, tmp_path / "dumped", json.dumps(changes)).split()
    assert int(length) > 10_000
    assert is_same == "True"


_MACHINES = ["v2-8", "v3-8", "v5e-4", "v5e-8", "v6e-8", "7x-4"]


@pytest.mark.slow  # 15 s for the digits, two to six minutes for CIFAR-10, a third of them for v6e; ten for Shakespeare.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("example", ready_examples())
def test_every_example_fits_every_chip(example, tmp_path):
    training = load_config(example).training
    interface, num_examples = READY_DATA[training.model]
    precision = choose_precision("tpu", "jax", ()) if training.precision == "auto" else training.precision
    parameters = {
        name: value for name, value in training.model_parameters.items() if name != "weights"
    }  # Nowhere here.
    model = {"model": training.model, "model_parameters": parameters, "precision": precision}
    model["batch_size_per_replica"] = training.batch_size_per_replica
    training = dataclasses.replace(TRAINING, **model, **everything_for(interface))
    machines = map(load_catalogue().find, _MACHINES)
    compilations = [Compilation(training, interface, num_examples, machine) for machine in machines]
    outcomes = compile_all(compilations, tmp_path, timeout_seconds=300)
    for machine, outcome in zip(_MACHINES, outcomes, strict=True):
        assert (outcome.verdict, outcome.objection) == (FITS, ""), (machine, outcome.reason)
        assert outcome.cost.unknown_loops == 0
        assert outcome.peak_bytes < load_catalogue().find(machine).generation.hbm_usable_bytes
        assert sum(one.num_bytes for one in outcome.cost.collectives) >= 2 * outcome.parameters
        assert time_step(outcome.cost, load_catalogue().find(machine)).guessed_share < 0.1


@pytest.mark.parametrize("backend", ["jax", _TENSORFLOW])
def test_a_call_of_python_on_the_host_is_named_with_its_line(special_model, cache_dir, backend):
    model = special_model("import tensorflow as tf", "return tf.py_function(lambda y: y.numpy(), [x], x.dtype)")
    outcome = compile_one(make_compilation(model, backend=backend), cache_dir)
    assert outcome.verdict == DOES_NOT_COMPILE
    assert outcome.reason.startswith("tf.py_function runs Python on the host, which a TPU program cannot call")
    assert outcome.source == "my_model.py:9"


def test_a_model_is_built_and_checked_without_tensorflow(warm):
    """Its import takes as long as all other imports together."""
    code = """
import sys
from keras.src.utils import module_utils
from tpu_components.preflight_training.compiling import compiler
from tests.components.preflight_training.conftest import make_compilation

sys.modules.pop("tensorflow", None)  # Of the process that was warmed up.
module_utils.tensorflow._available = module_utils.tensorflow.module = None
print(repr(compiler._objection(make_compilation())), "tensorflow" in sys.modules)
"""
    assert warm.run(code) == "'' False\n"

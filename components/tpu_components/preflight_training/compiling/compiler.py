"""Builds a model's training step from abstract shapes, and compiles it for a machine.

This code runs in a process of its own, because an internal compiler error aborts the process, and because a compilation
can take gigabytes of memory. `sandbox` starts the process, sends one `Compilation` after another, and receives each
`Outcome` through a pipe.
"""

import ast
import dataclasses
import functools
import math
import os
import re
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError, chain_of
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.base.frameworks import import_keras_alone, jax, keras, tf
from tpu_components.core.examples.feeding import steps_per_epoch
from tpu_components.core.examples.interface import Interface
from tpu_components.core.machines.machine_spec import GPU, TPU, Slice
from tpu_components.core.models.lookup import build_model, model_code, source_files
from tpu_components.core.models.trained import check_rebuilds
from tpu_components.core.models.training_step.compiling import compile_model, used_hyperparameters
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.identity import step_digest
from tpu_components.core.models.training_step.program import Program, held_bytes
from tpu_components.core.models.training_step.sharding import BATCH_AXIS, FULLY_SHARDED
from tpu_components.core.models.training_step.stages import freeze_least
from tpu_components.preflight_training.compiling import compile_cache, hlo, kept_arrays
from tpu_components.preflight_training.compiling.failures import explain, is_data_dependent, needed_bytes, verdict_of
from tpu_components.preflight_training.compiling.hlo import layer_of, read_cost
from tpu_components.preflight_training.compiling.kernels import read_kernels
from tpu_components.preflight_training.compiling.outcome import FITS, MAY_FIT, Outcome, versions_and_flags
from tpu_components.preflight_training.compiling.stablehlo import (
    compile_module,
    devices_of,
    new_context,
    partitions_of,
)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One program to compile: the training step of a model on a machine.

    Attributes:
        training: Model and hyper-parameters, with the backend and the Keras dtype policy to compile for.
        interface: Input and output of the model.
        num_examples: Number of examples in the training split.
        machine: Slice to compile for, with a replica on each device.
        is_resident: Whether the training split is in the devices' memory.
    """

    training: TrainParams
    interface: Interface
    num_examples: int
    machine: Slice
    is_resident: bool = False

    @property
    def backend(self) -> str:
        """Keras backend of the program."""
        return self.training.backend

    def key(self) -> str:
        """Return a digest of everything on which the outcome depends."""
        model = model_code(self.training.model, self.training.model_parameters)
        return digest_of([dataclasses.asdict(self), code_of([__name__]).digest, model.digest, versions_and_flags()])

    def compile(self, cache_dir: Path) -> Outcome:
        """Compile the program in this process. Return the outcome, with a reason if train_model would reject the model.

        See `compile_step` and `Outcome.objection`.
        """
        import_keras_alone()
        keras.utils.clear_session()  # Otherwise the second model has a layer dense_2. This resets the settings below.
        keras.config.set_dtype_policy(self.training.precision)
        keras.config.disable_flash_attention()  # As in training: see device.prepare.
        keras.config.disable_traceback_filtering()  # The frames name the layer that failed.
        outcome = compile_step(self, cache_dir)
        if outcome.verdict not in (FITS, MAY_FIT):
            return outcome
        training = dataclasses.replace(self.training, batch_size_per_replica=1)
        key = digest_of([dataclasses.asdict(training), dataclasses.asdict(self.interface)])
        if key not in _objections:
            _objections[key] = _objection(self)
        return dataclasses.replace(outcome, objection=_objections[key])

    @property
    def batch_size(self) -> int:
        """Number of examples in one step, summed over all replicas."""
        return self.training.batch_size_per_replica * self.machine.devices

    @property
    def replica_shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each array in a replica's batch."""
        return self.interface.batch_shapes(self.training.batch_size_per_replica)

    def with_batch(self, size: int) -> "Compilation":
        """Return a copy of the compilation with a different number of examples per replica."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, batch_size_per_replica=size))


def _build(compilation: Compilation) -> tuple[Any, int]:
    """Return the Keras model, compiled for the stage with the most trainable parameters, and this stage's number."""
    training, interface = compilation.training, compilation.interface
    model = build_model(training.model, interface, training.model_parameters)
    steps = steps_per_epoch(compilation.num_examples, compilation.batch_size)
    replicas = compilation.machine.devices
    stage = freeze_least(model, training)
    weights = [1.0] * interface.num_classes if training.weighs_classes else []
    compile_model(model, interface, stage.params, replicas, steps, jit_compile=True, class_weights=weights)
    return model, stage.number


def _without_values(make: Callable[[], Any]) -> Any:
    """Call a function that creates variables, and return its result.

    The variables get shapes but no values, so they take no memory. If the function needs values, they get values.
    """
    made: list[Any] = []

    def run() -> tuple[()]:
        made[:] = [make()]
        return ()

    try:
        jax.eval_shape(run)
    except Exception:  # The model needs values while it is built.
        return make()
    return made[0]


_objections: dict[str, str] = {}  # By training: an objection is the same for every machine and batch.


def _objection(compilation: Compilation) -> str:
    """Return the reason why train_model would reject a model that compiles.

    Return an empty string if there is no reason.
    """
    from keras.src.utils import module_utils

    # Otherwise Keras imports TensorFlow, which takes 3 s, to check whether a part of the model is one of TensorFlow's.
    if "tensorflow" not in sys.modules:
        module_utils.tensorflow._available = False

    def check() -> None:
        training, interface = compilation.training, compilation.interface
        model = build_model(training.model, interface, training.model_parameters)
        check_rebuilds(model, training.model, interface.task.name)

    try:
        _without_values(check)
    except InputError as error:
        return str(error)
    return ""


def _lower_jax(model: Any, compilation: Compilation) -> Any:
    devices = devices_of(compilation.machine)
    return trace_program(model, compilation, devices, TPU).lower(lowering_platforms=(TPU,)).compiler_ir("stablehlo")


def trace_program(model: Any, compilation: Compilation, devices: Sequence[Any], accelerator: str) -> Any:
    """Trace the program that training runs on the JAX backend, data-parallel over devices.

    Return a `jax.stages.Traced`.

    Args:
        model: Model after `compile_model`. Its variables may be abstract.
        compilation: Parameters of training, batch size, and whether the training split is in the devices' memory.
        devices: Devices of one kind. They may be abstract.
        accelerator: Kind of the devices.
    """
    import numpy as np
    from jax.sharding import Mesh

    shapes = compilation.interface.batch_shapes(compilation.batch_size)
    num_examples, training = compilation.num_examples, compilation.training
    mesh = Mesh(np.array(devices), (BATCH_AXIS,))
    return Program(model, shapes, num_examples, training, compilation.is_resident, accelerator, mesh).trace()


def _lower_tensorflow(model: Any, compilation: Compilation) -> Any:
    """Lower the step of one replica. This step does not sum the gradients over replicas."""
    from jax.extend.mlir import hlo_to_stablehlo, ir

    @tf.function(jit_compile=True)
    def step(inputs: Any, targets: Any, weights: Any) -> Any:
        return model.train_step((inputs, targets, weights))

    specs = [tf.TensorSpec(*shape) for shape in compilation.replica_shapes]
    hlo = step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    with new_context():
        module = ir.Module.parse(hlo_to_stablehlo(hlo))
        _drop_copies(module, ir)
    return module


def _drop_copies(module: Any, ir: Any) -> None:
    """Replace every `mhlo.copy` with its operand, because the TPU compiler does not know the operation."""
    copies = []

    def collect(operation: Any) -> Any:
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def compile_step(compilation: Compilation, cache_dir: Path) -> Outcome:
    """Compile one step, or return the cached outcome of the same program, slice and compiler.

    For a GPU, nothing is compiled. The outcome then contains only a lower bound on the memory that the step needs.

    Raises:
        InputError: If the model does not exist, or does not accept its parameters or the data.
    """
    layers: list[str] = []
    start = time.monotonic()
    build = functools.partial(_build, compilation)
    is_jax = compilation.training.backend == "jax"
    try:
        model, stage = _without_values(build) if is_jax else build()
        learning_rate = _peak_learning_rate(model, compilation)
        program = _program(model, compilation)
        layers = [layer.name for layer in model._flatten_layers(include_self=False)]
        if compilation.machine.is_gpu:
            return dataclasses.replace(_least_memory(model, compilation), stage=stage, learning_rate=learning_rate)
        lower = _lower_jax if is_jax else _lower_tensorflow
        module = lower(model, compilation)
        readers = code_of([hlo.__name__, kept_arrays.__name__]).digest
        key = digest_of([str(module), layers, dataclasses.asdict(compilation.machine), versions_and_flags(), readers])
        path = cache_dir / f"program-{key}.json"
        known: Outcome | None = compile_cache.recall(path, Outcome)
        if known is not None:
            return dataclasses.replace(known, stage=stage, learning_rate=learning_rate, program=program)
        start = time.monotonic()
        compiled_text, stats = compile_module(module, devices_of(compilation.machine)[: partitions_of(module)])
    except InputError as error:
        cause = error.__cause__
        if cause is None or not (failure := _Failure(cause, compilation.training.model, layers)).is_of_the_step:
            raise
        return failure.outcome(time.monotonic() - start)
    except Exception as error:  # Any error of the model's code or the compiler is a result.
        return _Failure(error, compilation.training.model, layers).outcome(time.monotonic() - start)
    outcome = Outcome(
        FITS,
        compile_seconds=time.monotonic() - start,
        peak_bytes=stats.peak_memory_in_bytes,
        held_bytes=held_bytes(stats),
        # The state is updated in place. Other arguments are the resident split, or else batches.
        fixed_bytes=stats.argument_size_in_bytes if compilation.is_resident else stats.alias_size_in_bytes,
        example_bytes=kept_arrays.least_example_bytes(
            model, compilation.interface, compilation.training.softens_labels
        ),
        cost=read_cost(compiled_text, functools.partial(layer_of, layers=layers), read_kernels(module)),
        parameters=_count_parameters(model),
        stage=stage,
        learning_rate=learning_rate,
        program=program,
    )
    compile_cache.keep(path, dataclasses.asdict(outcome))
    return outcome


def _program(model: Any, compilation: Compilation) -> str:
    """Return the digest of the step, or an empty string for a model without a configuration."""
    training = compilation.training
    try:
        return step_digest(model, compilation.interface, training, training.backend, training.precision)
    except NotImplementedError:  # `_objection` says so.
        return ""


def _peak_learning_rate(model: Any, compilation: Compilation) -> float:
    steps = steps_per_epoch(compilation.num_examples, compilation.batch_size)
    used = used_hyperparameters(model, compilation.interface, compilation.training, steps)
    return float(max(stage["learning_rate"] for stage in (used["stages"] or [used])))


def _count_parameters(model: Any) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def _least_memory(model: Any, compilation: Compilation) -> Outcome:
    """Return a lower bound on the memory use of a GPU: weights, optimizer state and a batch, without activations.

    Nothing is compiled, because the compiler for GPUs needs a GPU. On the JAX backend, the step is traced, which finds
    mistakes in the model.
    """
    if compilation.training.backend == "jax":
        alone = dataclasses.replace(compilation, machine=dataclasses.replace(compilation.machine, devices=1))
        trace_program(model, alone, jax.devices("cpu")[:1], GPU)
    shapes = [(variable.shape, variable.dtype) for variable in (*model.variables, *model.optimizer.variables)]
    state, batch = (
        sum(math.prod(shape) * jax.numpy.dtype(kind).itemsize for shape, kind in each)
        for each in (shapes, compilation.replica_shapes)
    )
    shards = compilation.machine.devices if compilation.training.sharding == FULLY_SHARDED else 1
    return Outcome(MAY_FIT, parameters=_count_parameters(model), peak_bytes=state // shards + batch)


_HOST_CALLS = ("py_function", "numpy_function", "py_func")


class _Failure:
    """An error of a compilation, with its reason and the layer and line of the model's code that caused it.

    Args:
        error: The error.
        model: Name of the model.
        layers: Names of the model's layers. Empty if the model was not built.
    """

    def __init__(self, error: BaseException, model: str, layers: Sequence[str]) -> None:
        self._model = model
        self._layers = layers
        self._chain = chain_of(error)  # Keras wraps the errors of layers.
        self._text = "\n".join(str(link) for link in self._chain)

    @property
    def is_of_the_step(self) -> bool:
        """Whether the error comes from a layer's computation, and not from the construction of the model."""
        return bool(self._place[0]) or any(
            isinstance(link, NotImplementedError) or is_data_dependent(link) for link in self._chain
        )

    def outcome(self, seconds: float) -> Outcome:
        """Return the outcome of a compilation that failed after a number of seconds."""
        layer, source = self._place
        if not layer and (match := re.search(r'op_name="([^"]+)"|\{\{node ([^}]+)\}\}', self._text)):
            named = layer_of(match[1] or match[2], self._layers)
            layer = named if named.rpartition("/")[2] in self._layers else ""
        reason = explain(self._chain, self._text, self._operation)
        if host_call := self._called(_HOST_CALLS):
            # Independent of the error: no backend can compile a call of the host for a TPU.
            name, place = host_call
            layer = layer if place == source else ""
            source = place
            reason = f"tf.{name} runs Python on the host, which a TPU program cannot call. Write it with keras.ops"
        elif not source and (operation := self._operation()) and (called := self._called((operation,))):
            source = called[1]
        return Outcome(verdict_of(self._text), reason, layer, source, seconds, peak_bytes=needed_bytes(self._text))

    def _frames(self) -> Iterator[tuple[types.FrameType, int]]:
        """Yield the frames through which the errors passed, from the outermost, each with its line."""
        for error in self._chain:
            yield from traceback.walk_tb(error.__traceback__)

    def _operation(self) -> str:
        """Return the outermost operation of keras.ops in the traceback, such as `nonzero`.

        Return an empty string if there is no such operation.
        """
        for frame, _ in self._frames():
            itself = frame.f_locals.get("self")
            code = frame.f_code
            if isinstance(itself, keras.Operation) and not isinstance(itself, keras.Layer):
                return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(itself).__name__).lower()
            if re.search("/keras/src/(ops|backend)/", code.co_filename) and hasattr(keras.ops, code.co_name):
                return code.co_name
        return ""

    def _called(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return the name and the `file:line` of the first call of one of these functions in the model's code.

        Return None if the model's code calls none of them.
        """
        for path in source_files(self._model):
            for node in ast.walk(ast.parse(path.read_bytes())):
                called = node.func if isinstance(node, ast.Call) else None
                name = getattr(called, "attr", getattr(called, "id", ""))
                if name in names:
                    return name, f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]
        return None

    @functools.cached_property
    def _place(self) -> tuple[str, str]:
        """Innermost layer, and innermost line of the model's code, in the traceback or text of the error.

        A value is empty if it is unknown.
        """
        own = {str(path.resolve()) for path in source_files(self._model)}
        layer = source = ""
        # TensorFlow's errors list the lines that made the operation; its paths lack the first slash.
        for path, line in re.findall(r'File "/?([^"]+)", line (\d+)', self._text):
            if os.path.realpath(f"/{path}") in own:
                source = f"{os.path.basename(path)}:{line}"
        for frame, number in self._frames():
            itself = frame.f_locals.get("self")
            path = frame.f_code.co_filename
            if isinstance(itself, keras.Layer):
                layer = itself.name
            if os.path.realpath(path) in own:
                source = f"{os.path.basename(path)}:{number}"
        return layer, source

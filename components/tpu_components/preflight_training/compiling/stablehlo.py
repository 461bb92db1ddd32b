"""Compiles StableHLO modules for a TPU slice with libtpu, on a machine without a TPU."""

import functools
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.machines.machine_spec import Slice

# Without these variables, libtpu asks a metadata server which TPU it runs on, and only one process at a time can load
# libtpu.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
COMPILER_ENVIRONMENT = _LIBTPU_ENVIRONMENT | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
# JAX passes more arguments than this as one tuple: `should_tuple_args` of jax/_src/dispatch.py.
_MOST_ARGUMENTS = 2000
_PARTITIONS = "mhlo.num_partitions"
_REPLICAS = "mhlo.num_replicas"
_SHARDINGS = ("mhlo.sharding", "sdy.sharding")
_MLIR_BYTECODE = b"ML\xefR"


def set_compiler_environment() -> None:
    """Set the environment variables that let this process load libtpu on a machine without a TPU.

    On a machine with a TPU, nothing is set.
    """
    if not any(Path("/dev").glob("accel[0-9]*")) and not Path("/dev/vfio").exists():
        for name, value in _LIBTPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)


@functools.cache  # Shardings of one step must be over the same devices.
def devices_of(machine: Slice, slices: int = 1) -> tuple[Any, ...]:
    """Return abstract devices of one or several TPU slices. The TPU compiler describes their topology."""
    from jax.experimental import topologies

    options = {
        "chips_per_host_bounds": machine.chips_per_host_bounds,
        "chip_config_name": machine.generation.chip_config,
        "num_slices": slices if slices > 1 else None,
    }
    known = {name: value for name, value in options.items() if value}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=machine.libtpu_topology, **known)
    return tuple(topology.devices[: machine.devices * slices])


def new_context() -> Any:
    """Return an MLIR context that knows the dialects of JAX, and accepts those of other frameworks."""
    from jax.interpreters.mlir import make_ir_context

    context = make_ir_context()
    context.allow_unregistered_dialects = True
    return context


def parse_module(content: bytes, context: Any) -> Any:
    """Parse a StableHLO module from text, MLIR bytecode, or a portable artifact.

    Raises:
        ValueError: If the content is none of these, or the module has no function `main`.
    """
    from jax.extend.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with context:
        try:
            if content.startswith(_MLIR_BYTECODE) and b"StableHLO_v" in content[:64]:
                module: Any = stablehlo.deserialize_portable_artifact(context, content)
            else:
                module = ir.Module.parse(content)
        except ir.MLIRError as error:
            raise ValueError(str(error)) from error
        _main_of(module)
        return module


def _main_of(module: Any) -> Any:
    """Return the entry function of a module.

    Raises:
        ValueError: If the module has no function `main`.
    """
    from jax.extend.mlir import ir

    for operation in module.body.operations:
        if "sym_name" in operation.attributes and ir.StringAttr(operation.attributes["sym_name"]).value == "main":
            return operation
    raise ValueError("the module has no function named main")


def partitions_of(module: Any) -> int:
    """Return the number of devices that a module is written for: the product of its partitions and its replicas."""
    return _number(module, _PARTITIONS) * _number(module, _REPLICAS)


def _number(module: Any, name: str) -> int:
    attributes = module.operation.attributes
    return int(attributes[name].value) if name in attributes else 1


def compile_module(
    module: Any, devices: Sequence[Any], compiler_options: Mapping[str, Any] | None = None
) -> tuple[str, Any]:
    """Compile a module with the options that JAX uses. Return its scheduled HLO and its memory statistics.

    Both results are equal to those of `jax.stages.Lowered.compile`.

    Args:
        module: A StableHLO module whose entry function is `main`.
        devices: As many devices as `partitions_of` returns. The devices for the partitions of the first replica come
            first, then those of the next.
        compiler_options: Options of the compiler, as in `jax.jit`.
    """
    from jax._src.compiler import get_compile_options
    from jaxlib import xla_client

    assignment = np.arange(len(devices)) if len(devices) == 1 else np.array([device.id for device in devices])
    replicas = _number(module, _REPLICAS)
    options = get_compile_options(
        num_replicas=replicas,
        num_partitions=len(devices) // replicas,
        device_assignment=assignment.reshape(replicas, -1),
        env_options_overrides=dict(compiler_options or {}),
    )
    arguments, results = _specified(module)
    options.parameter_is_tupled_arguments = len(arguments) > _MOST_ARGUMENTS
    build = options.executable_build_options
    build.use_shardy_partitioner = _is_for_shardy(module)
    # As in `jax.jit`, the compiler chooses the shardings that the program does not specify.
    build.allow_spmd_sharding_propagation_to_parameters = [not is_specified for is_specified in arguments]
    build.allow_spmd_sharding_propagation_to_output = [not is_specified for is_specified in results]
    with module.context:
        executable = devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
    return executable.hlo_modules()[0].to_string(), executable.get_compiled_memory_stats()


def device_peak_bytes(stats: Any) -> int:
    """Return the peak memory use of a device from the statistics of `compile_module`.

    XLA's peak also includes inputs and outputs in the memory of the host, such as those in `jax.memory.Space.Host`.
    These are subtracted.
    """
    in_host = stats.host_argument_size_in_bytes + stats.host_output_size_in_bytes - stats.host_alias_size_in_bytes
    return int(stats.peak_memory_in_bytes - in_host)


def _is_for_shardy(module: Any) -> bool:
    """Return True if a module has shardings of Shardy or no shardings, and False if it has shardings of GSPMD.

    GSPMD is the earlier partitioner, whose shardings Shardy ignores. torch_xla writes shardings of GSPMD, as does JAX
    if `jax_use_shardy_partitioner` is false.
    """
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    content = written.getvalue()
    return b"sdy" in content or b"mhlo.sharding" not in content


def _specified(module: Any) -> tuple[list[bool], list[bool]]:
    """Return for each argument and each result of `main` whether the program specifies its sharding."""
    main = _main_of(module)
    arguments, results = (
        [any(kind in attributes for kind in _SHARDINGS) for attributes in main.attributes[name]]
        if name in main.attributes
        else []
        for name in ("arg_attrs", "res_attrs")
    )
    return arguments, results

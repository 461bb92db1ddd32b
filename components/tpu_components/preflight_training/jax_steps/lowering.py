"""Lowers a step to StableHLO for a TPU, in the caller's process. Lowering needs only the shapes of the inputs."""

import contextlib
import dataclasses
import importlib
import io
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError, chain_of, describe
from tpu_components.core.base.fingerprint import is_installed
from tpu_components.core.base.frameworks import jax
from tpu_components.core.machines.machine_spec import TPU, Generation, Slice, load_catalogue
from tpu_components.preflight_training.compiling.failures import explain, is_data_dependent
from tpu_components.preflight_training.compiling.stablehlo import (
    devices_of,
    new_context,
    parse_module,
    partitions_of,
    set_compiler_environment,
)

_OURS = str(Path(__file__).parents[3])


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A step that is lowered for a TPU.

    Attributes:
        content: The module as MLIR bytecode, with the names of the operations.
        digest: Digest of the module and of the names of its operations, such as `jit(step)/jvp(Dense_0)/dot_general`.
            It does not depend on line numbers in the source code.
        partitions: Number of devices that the step is written for.
        order: For each of these devices, its position in the slice.
        notes: Assumptions that were made while the step was traced, in sentences.
        compiler_options: Names and values of the `compiler_options` of `jax.jit`.
    """

    content: bytes
    digest: str
    partitions: int
    order: tuple[int, ...]
    notes: tuple[str, ...] = ()
    compiler_options: tuple[tuple[str, Any], ...] = ()


def mesh(machine: str, slices: int = 1, **axes: int) -> Any:
    """Return a mesh over the devices of a TPU slice, for shardings on a machine without a TPU.

    Args:
        machine: Name of a TPU slice, such as `v5e-8`.
        slices: Number of slices, which the data-centre network connects.
        axes: Size of each axis, by name. The product of the sizes must not exceed the number of devices.

    Returns:
        A `jax.sharding.Mesh` whose devices have no memory: shapes can be sharded over it, arrays cannot.

    Raises:
        InputError: If the machine is not a TPU slice, the mesh needs more devices than there are, or an argument is
            malformed.

    Example:
        >>> mesh("v5e-8", data=2, model=4).shape  # doctest: +SKIP
        OrderedDict({'data': 2, 'model': 4})
    """
    tpu = tpu_slice(machine)
    if not isinstance(slices, int) or slices < 1:
        raise InputError(f"Cannot make a mesh of {slices} slices: expected slices=1 or more, a whole number.")
    are_sizes = all(isinstance(size, int) and size > 0 for size in axes.values())
    needed = math.prod(axes.values()) if are_sizes else 0
    if not axes or not are_sizes or needed > tpu.devices * slices:
        raise InputError(
            f"Cannot make a mesh of {machine}: expected axes with at most {tpu.devices * slices} devices in all, "
            f"received {', '.join(f'{name}={size!r}' for name, size in axes.items()) or 'no axes'}. "
            f'For example: mesh("{machine}", data={tpu.devices * slices})'
        )
    set_compiler_environment()
    devices = devices_of(tpu, slices)[:needed]
    return jax.sharding.Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))


def tpu_slice(machine: str) -> Slice:
    """Return the catalogue's entry for a TPU slice.

    Raises:
        InputError: If no machine has this name, or the machine has GPUs.
    """
    if not isinstance(machine, str):
        raise InputError(f"Cannot compile for {machine!r}: expected the name of a TPU slice, such as v5e-8.")
    entry = load_catalogue().find(machine)
    if entry.is_gpu:
        raise InputError(
            f"Cannot compile for {machine}: expected a TPU slice, received a machine with GPUs. Compiling without the "
            "device is possible only for TPUs. Give the name of a TPU slice, such as v5e-8."
        )
    return entry


def lower_step(
    step: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    generation: Generation,
    default_backend: str,
) -> LoweredStep:
    """Trace a step on shapes, and lower it for a TPU.

    Args:
        step: A function that `jax.jit` accepts, or a function that is already jitted.
        args: Positional arguments of the step: arrays, or pytrees of `jax.ShapeDtypeStruct`.
        kwargs: Keyword arguments of the step.
        options: Options of `jax.jit`.
        generation: Generation of the TPU. Pallas uses it to choose block sizes for some kernels.
        default_backend: Value that `jax.default_backend()` returns while the step is traced.

    Raises:
        InputError: If the step cannot be traced or lowered. The message names the line of the caller's code if it is
            known.
    """
    set_compiler_environment()
    is_jitted = hasattr(step, "trace") and hasattr(step, "lower")
    if is_jitted and options:
        raise InputError(
            f"Cannot use {', '.join(options)} with {name_of(step)}, which is already jitted. Remove the options, or "
            "pass the function without `jax.jit`."
        )
    if not callable(step):
        raise InputError(f"Cannot preflight {step!r}: expected a function that `jax.jit` takes, or a StableHLO file.")
    if type(step).__module__.startswith("equinox."):
        raise InputError(
            f"Cannot preflight {name_of(step)}: its eqx.filter_jit function takes values that are not arrays. Split "
            "the model with `params, static = eqx.partition(model, eqx.is_array)`, and pass a function of params and "
            "the batch that calls `eqx.combine(params, static)`."
        )
    try:
        jitted = step if is_jitted else jax.jit(step, **options)
        with jax.sharding.use_abstract_mesh(_mesh_without_axes(generation)), _as_on_a_tpu(default_backend) as calls:
            lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=(TPU,))
    except (Exception, SystemExit) as error:
        raise InputError(_explain(error, step, args, kwargs)) from error
    lowered = getattr(lowered, "lowered", lowered)  # In the wrapper of flax.nnx.jit.
    packed = _pack(lowered.compiler_ir("stablehlo"), _order(lowered), tuple(_notes(calls, default_backend)))
    # JAX has no public access to the options.
    compiler_options = getattr(getattr(lowered, "_lowering", None), "_compiler_options_kvs", ())
    return dataclasses.replace(packed, compiler_options=tuple(sorted(compiler_options)))


def load_step(content: bytes, where: str) -> LoweredStep:
    """Return a step that another program, such as torch_xla or `jax.export`, has lowered.

    Args:
        content: A StableHLO module as text, MLIR bytecode or portable artifact, or a function that `jax.export`
            serialized.
        where: Name of the file, for messages.

    Raises:
        InputError: If the content has none of these forms, or a package that is needed to read it is missing.
    """
    set_compiler_environment()
    try:
        try:
            module = parse_module(content, new_context())
        except ValueError:
            importlib.import_module("flatbuffers")  # jax.export reads with it.
            exported = jax.export.deserialize(bytearray(content))
            module = parse_module(exported.mlir_module_serialized, new_context())
    except ModuleNotFoundError as error:
        raise InputError(f"Cannot read {where}: {error}. Run: pip install 'tpu-pipelines[compiler]'.") from error
    except Exception as error:
        raise InputError(
            f"Cannot read {where}: expected a StableHLO module (text, MLIR bytecode or a portable artifact) or a "
            "function that jax.export serialized. Write the file again, with a release of jax or torch_xla whose "
            "StableHLO version is not newer than that of the installed jaxlib."
        ) from error
    return _pack(module)


def _pack(module: Any, order: Sequence[int] = (), notes: tuple[str, ...] = ()) -> LoweredStep:
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    partitions = partitions_of(module)
    named = re.findall(r'loc\("([^"]+)"(?!:)', module.operation.get_asm(enable_debug_info=True))
    return LoweredStep(
        content=written.getvalue(),
        digest=digest_of([str(module), sorted(set(named))]),
        partitions=partitions,
        order=tuple(order) if sorted(order) == list(range(partitions)) else tuple(range(partitions)),
        notes=notes,
    )


def _order(lowered: Any) -> list[int]:
    """Return the IDs of the devices in a step's mesh, in the order of the mesh.

    Return [] if the shardings of the step name no devices.
    """
    lowering = getattr(lowered, "_lowering", None)  # JAX has no public access to the shardings.
    known = getattr(lowering, "compile_args", {})
    for sharding in (*known.get("in_shardings", ()), *known.get("out_shardings", ())):
        devices = getattr(getattr(sharding, "mesh", None), "_flat_devices_tuple", ())
        if len(devices) > 1:
            return [device.id for device in devices]
    return []


def _mesh_without_axes(generation: Generation) -> Any:
    """Return an abstract mesh that describes only the device, because `pltpu.get_tpu_info` requires it."""
    known: dict[str, Any] = {
        "device_kind": generation.device_kind,
        "num_cores": generation.cores_per_device,
        "platform": TPU,
    }
    # The fields depend on the release of JAX.
    fields = {field.name for field in dataclasses.fields(jax.sharding.AbstractDevice)}
    device = jax.sharding.AbstractDevice(**{name: value for name, value in known.items() if name in fields})
    return jax.sharding.AbstractMesh((), (), abstract_device=device)


@contextlib.contextmanager
def _as_on_a_tpu(backend: str) -> Iterator[dict[str, list[str]]]:
    """Context manager: trace steps in the `with` block as on a TPU, without their debugging output.

    `jax.default_backend` returns `backend`. `jax.debug.print` and `jax.debug.callback`, which cannot be lowered without
    a device, do nothing. JAX caches traced functions. Therefore, its caches are cleared before the block. They
    are also cleared after the block if a step called one of these three functions.

    Yields:
        A dictionary that is filled while the block runs: the places that called `default_backend`, and the places that
        called one of the other two functions, as `file:line`.
    """
    module = importlib.import_module("jax")
    module.clear_caches()
    calls: dict[str, list[str]] = {}

    def stand_in(name: str, result: Any) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            caller = sys._getframe(1)
            place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
            if place not in calls.setdefault(name, []):
                calls[name].append(place)
            return result

        return call

    replaced = [
        (module, "default_backend", stand_in(_BACKEND, backend)),
        (module.debug, "print", stand_in(_PRINT, None)),
        (module.debug, "callback", stand_in(_PRINT, None)),
    ]
    real = [getattr(place, name) for place, name, _ in replaced]
    for place, name, function in replaced:
        setattr(place, name, function)
    try:
        yield calls
    finally:
        for (place, name, _), function in zip(replaced, real, strict=True):
            setattr(place, name, function)
        if calls:
            module.clear_caches()


def _notes(calls: Mapping[str, Sequence[str]], backend: str) -> Iterator[str]:
    """Yield the assumptions that were made while a step was traced, in sentences."""
    if _BACKEND in calls:
        yield (
            f"The step called jax.default_backend() in {', '.join(calls[_BACKEND])}, which returned {backend!r}, "
            "because the step is compiled for a TPU. Set default_backend to return another value."
        )
    if _PRINT in calls:
        yield f"jax.debug.print and jax.debug.callback in {', '.join(calls[_PRINT])} are left out."


def name_of(step: Any) -> str:
    """Return the name of a function, or of the function in a `functools.partial`."""
    step = getattr(step, "func", step)
    return getattr(step, "__name__", "") or type(step).__name__


def _explain(error: BaseException, step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a message that says why and where a step cannot be lowered, and what to change, in one paragraph."""
    chain = chain_of(error)
    text = "\n".join(map(str, chain))
    place = _own_line(chain)
    reason = explain(chain, text).rstrip(".")
    if any(type(link).__name__ == "TracerArrayConversionError" for link in chain):
        change = "Use jax.numpy."
    elif _PMAP in text:
        reason = "jax.pmap needs real devices, and preflight runs without them"
        change = "Use jax.shard_map or sharded arrays with tp.mesh(MACHINE, …)."
    elif _DEVICES in text:
        reason = "it builds a mesh from this computer's devices, which are too few"
        change = "Use tp.mesh(MACHINE, …), which has the devices of the TPU slice."
    elif any(map(is_data_dependent, chain)):
        change = "Use jnp.where, jax.lax.cond or jax.lax.while_loop, or name the argument in static_argnums."
    elif _CALLS_HOST in text:
        reason = "it calls Python on the host, which cannot be compiled without a TPU"
        change = (
            "Leave out io_callback and pure_callback. Call jax.debug.print and jax.debug.callback by these full names, "
            "because preflight leaves out only these calls."
        )
    elif "is not implemented on TPU" in reason:
        change = "Replace the operation, or compute it on the host before the step."
    elif match := _NOT_AN_ARRAY.search(text):
        reason = f"its argument {match[2]} is a {match[1]}"
        change = "Pass arrays or jax.ShapeDtypeStruct(shape, dtype), and name all other arguments in static_argnames."
    elif "is not a valid JAX type" in text:
        change = "Return arrays only."
    elif isinstance(chain[0], TypeError | ValueError | IndexError):
        shapes = ", ".join(_shape(leaf) for leaf in jax.tree.leaves((args, kwargs))[:_MOST_SHAPES])
        change = f"Its inputs are: {shapes or 'none'}."
    else:
        reason = describe(chain[0]).rstrip(".")
        change = "Call the step on arrays first, to see that it works."
    return f"Cannot trace the step {name_of(step)}{f' at {place}' if place else ''}: {reason}. {change}"


_MOST_SHAPES = 8
# JAX's error for a callback without a device: https://github.com/jax-ml/jax/blob/main/jax/_src/callback.py
_CALLS_HOST = "is different from the lowering platform"
# JAX's error if the axis of jax.pmap is longer than the number of devices.
_PMAP = "axis to squeeze out which has size not equal to one"
_DEVICES = "Number of devices"  # JAX's error if a mesh is larger than the machine.
_NOT_AN_ARRAY = re.compile(r"value is of type <class '([\w.]+)'> and was passed to the function at path (\w+)")
_BACKEND, _PRINT = "default_backend", "print"


def _shape(leaf: Any) -> str:
    """Return type and shape of an array, such as `float32[8,128]`. Return the type's name for any other value."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return type(leaf).__name__


def _own_line(chain: Sequence[BaseException]) -> str:
    """Return the innermost `file:line` in the tracebacks that is neither in an installed package nor in this project.

    Return an empty string if there is no such line.
    """
    place = ""
    for link in chain:
        for frame, line in traceback.walk_tb(link.__traceback__):
            path = frame.f_code.co_filename
            if not path.startswith((_OURS, "<")) and not is_installed(Path(path)):
                place = f"{Path(path).name}:{line}"
    return place

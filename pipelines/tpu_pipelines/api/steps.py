"""Finds out, without a TPU, whether a step that `jax.jit` accepts fits a TPU, how long it takes and what it costs."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.jax_steps.comparison import StepComparison
from tpu_components.preflight_training.jax_steps.lowering import mesh
from tpu_components.preflight_training.jax_steps.preflight import StepCase, examine, load_runs
from tpu_components.preflight_training.jax_steps.step_report import StepReport
from tpu_components.preflight_training.params import PreflightParams

__all__ = ["StepCase", "StepComparison", "StepReport", "compare_steps", "mesh", "preflight_step"]


def preflight_step(
    step: Any,
    *args: Any,
    machine: str | Sequence[str],
    platform: str = PaidMachine.target,
    region: str = "",
    spot: bool = False,
    slices: int = 1,
    name: str = "",
    largest: Callable[[int], Sequence[Any]] | None = None,
    levels: int = 2,
    default_backend: str = "tpu",
    compile_timeout_seconds: float = PreflightParams.compile_timeout_seconds,
    compile_memory_mib: int = PreflightParams.compile_memory_mib,
    cache_dir: str | Path | None = None,
    receipts: str | Path = "",
    kwargs: Mapping[str, Any] | None = None,
    **jit_options: Any,
) -> StepReport | StepComparison:
    """Compile a step with the TPU compiler, without a TPU, and report its memory, time and price.

    The step is traced in this process, and compiled in a child process with limits on time and memory. The step is not
    executed, so inputs may be shapes (`jax.ShapeDtypeStruct`) or pytrees of shapes. The function needs Linux on x86-64
    and the extra `compiler`.

    Args:
        step: A function that `jax.jit` takes, such as a training or an inference step of Flax, Equinox, Haiku or
            `keras.Model.stateless_call`; a function that is already jitted; or the path of a StableHLO file from
            torch_xla or `jax.export`, which contains the shapes of its inputs.
        args: Positional arguments of the step: arrays or shapes. Shapes may have shardings over `tp.mesh`.
        machine: Name of a TPU slice, such as `v5e-8`, or a list of names to compare.
        platform: Platform whose price is shown: `vertex` or `kubeflow`.
        region: Region whose price is shown. Empty means the cheapest region.
        spot: Whether to show the price of spot machines.
        slices: Number of slices. The data-centre network connects them. Communication between slices is assumed to use
            the whole bandwidth of this network.
        name: Name of the step in the report. Empty means the name of the function.
        largest: Function that returns the positional arguments for a size of 1 or more, such as the batch size per
            device. The largest size that fits is found by compiling, and the report describes this size.
        levels: Number of nested `jax.named_scope` scopes that form the name of a layer in the report.
        default_backend: Value that `jax.default_backend()` returns while the step is traced.
        compile_timeout_seconds: Time limit of one compilation.
        compile_memory_mib: Memory limit of the process that compiles, in MiB.
        cache_dir: Folder that keeps outcomes of compilations. None means `~/.cache/tpu-pipelines/preflight`.
        receipts: Folder with receipts, local or in a bucket. A receipt is a file with the measured step times of one of
            your training runs. The interval of the estimated step time is derived from the receipts. Empty means the
            folder in TPU_PIPELINES_RECEIPTS or, if it is not set, `runs/receipts`.
        kwargs: Keyword arguments of the step.
        **jit_options: Options of `jax.jit`: `in_shardings`, `out_shardings`, `static_argnums`, `static_argnames`,
            `donate_argnums` and others.

    Returns:
        A `StepReport`, or for a list of machines a `StepComparison` with the cheapest machine first.

    Raises:
        InputError: If the step cannot be traced for these inputs, the machine is unknown or too small for the step's
            mesh, or libtpu is not installed. If the cause is in your code, the message names the line.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> images = jax.ShapeDtypeStruct((1024, 784), jnp.bfloat16)
        >>> weights = jax.ShapeDtypeStruct((784, 10), jnp.bfloat16)
        >>> report = tp.preflight_step(jnp.dot, images, weights, machine="v5e-1")  # doctest: +SKIP
        >>> report.fits, report.step_seconds  # doctest: +SKIP
        (True, 5.9e-06)
    """
    _check_options(jit_options)
    names = [machine] if isinstance(machine, str) else list(machine)
    if not names:
        raise InputError("The list of machines is empty: expected a name such as v5e-8, or a list of names.")
    case = StepCase(
        str(step) if isinstance(step, Path) else step,
        args,
        kwargs=kwargs or {},
        jit_options=jit_options,
        name=name,
        platform=platform,
        region=region,
        spot=spot,
        slices=slices,
        largest=largest,
        levels=levels,
        default_backend=default_backend,
        receipts=str(receipts),
    )
    box = _sandbox(compile_timeout_seconds, compile_memory_mib, cache_dir)
    with box:
        runs = load_runs(case.receipts)
        reports = [examine(dataclasses.replace(case, machine=each), box, runs) for each in names]
    if isinstance(machine, str):
        return reports[0]
    return StepComparison.make(reports, [1.0] * len(reports), 1e6, "steps")


def compare_steps(
    cases: Iterable[StepCase],
    *,
    items: float | Sequence[float] = 1,
    total: float = 1e6,
    unit: str = "",
    compile_timeout_seconds: float = PreflightParams.compile_timeout_seconds,
    compile_memory_mib: int = PreflightParams.compile_memory_mib,
    cache_dir: str | Path | None = None,
) -> StepComparison:
    """Compile several steps, such as one step with different layouts or on different machines, and rank them by price.

    Args:
        cases: The steps, each with its inputs, machine and options.
        items: Number of items that one step processes, such as examples or tokens: one number for all cases, or a
            number for each case.
        total: Number of items for which the price is calculated, such as the examples of an epoch.
        unit: Name of the items, in the plural. Empty means `steps`.
        compile_timeout_seconds: Time limit of one compilation.
        compile_memory_mib: Memory limit of the process that compiles, in MiB.
        cache_dir: Folder that keeps outcomes of compilations. None means `~/.cache/tpu-pipelines/preflight`.

    Returns:
        The reports of the steps, the cheapest step first. Steps that do not fit are last.

    Raises:
        InputError: If a step cannot be lowered, there are no cases, `items` does not have one positive number for each
            case, or `total` is not positive.

    Example:
        >>> cases = [tp.StepCase(step, (params, batch_of(n)), "v5e-8", name=f"batch {n}") for n in (64, 128)]
        ... # doctest: +SKIP
        >>> tp.compare_steps(cases, items=[64, 128], total=1_281_167, unit="images").show()  # doctest: +SKIP
    """
    listed = list(cases)
    counts = [float(each) for each in items] if isinstance(items, Sequence) else [float(items)] * len(listed)
    if len(counts) != len(listed) or not listed or min(counts) <= 0:
        raise InputError(
            f"Cannot compare {len(listed)} steps: expected at least one step, and a positive number of items for each "
            f"step. Received: {len(counts)} values in `items`."
        )
    if not all(isinstance(case, StepCase) for case in listed):
        raise InputError("Cannot compare these steps: expected tp.StepCase(step, (params, batch), machine) for each.")
    if total <= 0:
        raise InputError(
            f"total must be positive: it is the number of items whose price is compared. Received: {total}."
        )
    box = _sandbox(compile_timeout_seconds, compile_memory_mib, cache_dir)
    with box:
        runs = {folder: load_runs(folder) for folder in {case.receipts for case in listed}}
        reports = [examine(case, box, runs[case.receipts]) for case in listed]
    return StepComparison.make(reports, counts, total, unit or "steps")


_JIT_OPTIONS = (
    "in_shardings",
    "out_shardings",
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "keep_unused",
    "inline",
    "compiler_options",
)


def _check_options(options: Mapping[str, Any]) -> None:
    """Check that all options are options of `jax.jit`."""
    unknown = [name for name in options if name not in _JIT_OPTIONS]
    if unknown:
        raise InputError(
            f"Unknown options of preflight_step: {', '.join(unknown)}. Expected options of jax.jit: "
            f"{', '.join(_JIT_OPTIONS)}. Pass keyword arguments of the step in kwargs={{...}}."
        )


def _sandbox(seconds: float, mib: int, cache_dir: str | Path | None) -> sandbox.Sandbox:
    return sandbox.Sandbox(seconds, mib, Path(cache_dir) if cache_dir else sandbox.default_cache_dir())

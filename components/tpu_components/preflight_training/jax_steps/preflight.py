"""Preflight of a step: lowers the step, compiles it in a child process, and reports memory, time and price."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.formatting import byte_size, number, percent, time
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.hlo import Kind
from tpu_components.preflight_training.compiling.outcome import FITS, Outcome, versions
from tpu_components.preflight_training.estimate import (
    GRID_STEP_SECONDS,
    KERNEL_SHARES,
    MUCH_GUESSED,
    StepTime,
    accuracy_of,
    collective_seconds,
    kernel_share,
    time_layers,
    time_step,
)
from tpu_components.preflight_training.jax_steps.lowering import LoweredStep, load_step, lower_step, name_of, tpu_slice
from tpu_components.preflight_training.jax_steps.step_program import StepProgram
from tpu_components.preflight_training.jax_steps.step_report import HourlyPrice, Memory, StepReport
from tpu_components.preflight_training.largest_batch import LargestBatch, find_largest_batch
from tpu_components.preflight_training.receipts.calibration import Run, calibrated, runs_of
from tpu_components.preflight_training.receipts.store import ReceiptStore

EXTRA = "compiler"
_PREFLIGHT = "preflight"
_FIRST_SIZE = 128  # Where the search for the largest size begins.


@dataclasses.dataclass(frozen=True)
class StepCase:
    """A step with its inputs, and the machine to compile it for.

    Attributes:
        step: A function that `jax.jit` accepts, a function that is already jitted, or the path of a StableHLO file.
        args: Positional arguments of the step: arrays or pytrees of `jax.ShapeDtypeStruct`.
        machine: Name of a TPU slice, such as `v5e-8`.
        kwargs: Keyword arguments of the step.
        jit_options: Options of `jax.jit`, such as `in_shardings`, `static_argnums` and `donate_argnums`.
        name: Name in reports. Empty means the name of the function.
        platform: Platform whose price is shown: `vertex` or `kubeflow`.
        region: Region of the price. Empty means the cheapest region.
        spot: Whether to show the price of spot machines.
        slices: Number of slices, which the data-centre network connects.
        largest: Function that takes a size, such as a batch size, and returns the positional arguments for it. If it is
            set, preflight searches for the largest size that fits and reports on this size, and `args` must be empty.
        levels: Largest number of nested scopes (see `jax.named_scope`) in the name of a layer.
        default_backend: Value that `jax.default_backend()` returns while the step is traced.
        receipts: Folder of receipts (measured runs) from which the intervals of the step time are derived. Empty means
            the folder in TPU_PIPELINES_RECEIPTS or, if this variable is not set, `runs/receipts`.
    """

    step: Any
    args: Sequence[Any] = ()
    machine: str = "v5e-1"
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    jit_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    platform: str = PaidMachine.target
    region: str = ""
    spot: bool = False
    slices: int = 1
    largest: Callable[[int], Sequence[Any]] | None = None
    levels: int = 2
    default_backend: str = "tpu"
    receipts: str = ""

    def __post_init__(self) -> None:
        """Check the inputs, `slices` and `levels`.

        Raises:
            InputError: If a value has the wrong type or is out of range.
        """
        if not isinstance(self.args, tuple | list):
            raise InputError(
                f"Cannot use {type(self.args).__name__} as the inputs of {self.label}: expected a tuple with one value "
                "for each parameter of the step."
            )
        if not isinstance(self.kwargs, Mapping):
            raise InputError(f"Cannot use kwargs={self.kwargs!r}: expected a mapping of names to inputs.")
        if not isinstance(self.slices, int) or self.slices < 1:
            raise InputError(f"Cannot compile for {self.slices} slices: expected slices=1 or more, a whole number.")
        if not isinstance(self.levels, int) or self.levels < 0:
            raise InputError(
                f"Cannot use levels={self.levels!r}: expected the largest number of scopes in a layer's name, a whole "
                "number of at least 0."
            )

    @property
    def label(self) -> str:
        """Name of the step."""
        if self.name:
            return self.name
        return self.step if isinstance(self.step, str) else name_of(self.step)

    @functools.cached_property
    def paid(self) -> PaidMachine:
        """Machine with the settings that determine its price."""
        return PaidMachine(self.machine, self.region, self.spot, self.platform)

    def program(self, args: Sequence[Any]) -> StepProgram:
        """Return the step, lowered for these arguments.

        Raises:
            InputError: If the step cannot be lowered, or needs more devices than the machine has.
        """
        if isinstance(self.step, str | Path):
            if args or self.kwargs or self.jit_options:
                raise InputError(
                    f"Cannot give inputs to {self.step}: a StableHLO file contains their shapes. Remove the inputs and "
                    "options."
                )
            lowered = load_step(_read(Path(self.step)), str(self.step))
        else:
            lowered = lower_step(
                self.step, args, self.kwargs, self.jit_options, self.paid.slice.generation, self.default_backend
            )
        devices = self.paid.slice.devices * self.slices
        if self.slices > 1 and lowered.partitions != devices:
            raise InputError(
                f"Cannot compile {self.label} for {self.slices} slices: the step must use all {devices} devices, but "
                f'is written for {lowered.partitions}. Shard its inputs over tp.mesh("{self.machine}", '
                f"slices={self.slices}, data={devices})."
            )
        if lowered.partitions > devices:
            raise InputError(
                f"Cannot compile {self.label} for {self.machine}: the step is written for {lowered.partitions} "
                f"devices, but the machine has {devices}. Use a larger machine or a smaller mesh."
            )
        return StepProgram(lowered, self.paid.slice, self.slices, self.levels)


def load_runs(receipts: str) -> list[Run]:
    """Return the measured runs that can calibrate estimates, from a folder of receipts; see `StepCase.receipts`.

    Raises:
        InputError: If a receipt is damaged.
    """
    store = ReceiptStore(receipts) if receipts else ReceiptStore.of_workspace()
    return runs_of(store.load())


def examine(case: StepCase, box: sandbox.Sandbox, runs: Sequence[Run]) -> StepReport:
    """Lower and compile a step, and return a report on its memory, time and price.

    Args:
        case: The step with its inputs, and the machine.
        box: Sandbox that compiles it.
        runs: Measured runs, as `load_runs` returns them.

    Raises:
        InputError: If the machine is unknown or the step cannot be lowered.
    """
    machine = tpu_slice(case.machine)
    sandbox.require_compiler([machine], EXTRA)
    largest = None
    args = case.args
    if case.largest:
        if args:
            raise InputError(
                "Cannot use both inputs and `largest`: `largest` returns the inputs for a size. Remove the inputs."
            )
        largest = _search(case, case.largest, box)
        args = _inputs_of(case.largest, max(largest.size, 1) if largest else _FIRST_SIZE)
    program = case.program(args)
    progress.say(
        _PREFLIGHT, f"compiling {case.label} for {case.machine}. This may take minutes, but only the first time"
    )
    (outcome,) = box.compile_all([program])
    return _report(case, program.step, outcome, largest, runs)


def _search(case: StepCase, inputs: Callable[[int], Sequence[Any]], box: sandbox.Sandbox) -> LargestBatch | None:
    sizes: dict[str, int] = {}  # The first size of each program.

    def attempt(size: int) -> Outcome:
        progress.say(_PREFLIGHT, f"{case.machine}: compiling size {size:,}")
        args = _inputs_of(inputs, size)
        try:
            program = case.program(args)
        except InputError as error:
            raise InputError(
                f"{error} The function passed as `largest` returned these inputs for size {size}. It must work for "
                "every size of 1 or more. If the batch is sharded, multiply the size by the number of devices."
            ) from error
        first = sizes.setdefault(program.step.digest, size)
        if max(first, size) >= 2 * min(first, size):  # Inputs may be padded to a multiple, but not to twice the size.
            raise InputError(
                "Cannot find the largest size: the function passed as `largest` returns the same inputs for the sizes "
                f"{first} and {size}. Let the shapes of the inputs depend on the function's argument."
            )
        return box.compile_all([program])[0]

    return find_largest_batch(attempt, _FIRST_SIZE, case.paid.slice.generation.hbm_usable_bytes)


def _inputs_of(inputs: Callable[[int], Sequence[Any]], size: int) -> Sequence[Any]:
    try:
        args = inputs(size)
    except Exception as error:  # Any error of the user's code.
        raise InputError(
            f"Cannot get inputs of size {size} from the function passed as `largest`: {describe(error)}. The function "
            "must work for every size of 1 or more."
        ) from error
    if not isinstance(args, tuple | list):
        raise InputError(
            "Cannot use the inputs from `largest`: expected a tuple with one value for each parameter of the step, "
            f"received {type(args).__name__}. Write `return (params, batch)`."
        )
    return args


def _report(
    case: StepCase, lowered: LoweredStep, outcome: Outcome, largest: LargestBatch | None, runs: Sequence[Run]
) -> StepReport:
    paid = case.paid
    machine = paid.slice
    step = _time(outcome, case, runs)
    price = paid.price
    return StepReport(
        name=case.label,
        machine=machine.name,
        slices=case.slices,
        devices=machine.devices * case.slices,
        used_devices=lowered.partitions,
        verdict=outcome.verdict,
        reason=outcome.reason,
        memory=Memory(outcome.peak_bytes, machine.generation.hbm_usable_bytes),
        step=step,
        accuracy=accuracy_of(machine.generation, step.mxu_utilization) if step else None,
        layers=time_layers(outcome.cost, machine) if outcome.cost and step else (),
        price=HourlyPrice(price.usd_per_hour * case.slices, price.region, price.is_spot, price.target, price.date)
        if price
        else None,
        largest=largest,
        notes=(*lowered.notes, *_limits(outcome, step, case)),
        compile_seconds=outcome.compile_seconds,
        compiler={name: version for name, version in versions().items() if name != "keras"},
        is_cached=outcome.is_cached,
    )


def _time(outcome: Outcome, case: StepCase, runs: Sequence[Run]) -> StepTime | None:
    """Return the time of a step, or None if it does not fit or the compiler has no estimate for any part of it."""
    if outcome.verdict != FITS or outcome.cost is None or not outcome.cost.has_estimate:
        return None
    step = time_step(outcome.cost, case.paid.slice)
    # Receipts are of runs on one slice.
    return calibrated(step, runs, program="", machine=case.machine) if case.slices == 1 else step


def _limits(outcome: Outcome, step: StepTime | None, case: StepCase) -> list[str]:
    """Return the limitations and assumptions of a step's estimates, one sentence each."""
    cost = outcome.cost
    if outcome.verdict != FITS or cost is None:
        return []
    notes = []
    if step is None:
        notes.append("The compiler has no estimate for any part of this step, so its time is unknown.")
    elif step.guessed_share > MUCH_GUESSED:
        notes.append(
            f"{percent(step.guessed_share)} of the computation time is derived from memory traffic and from scatter "
            "updates (one row at a time), because the compiler has no estimate for it."
        )
    if step is not None and cost.unestimated:
        notes.append(
            f"The compiler has no estimate for some operations ({', '.join(cost.unestimated)}). Only their traffic in "
            "main memory is counted, so the step may take longer."
        )
    in_kernels = kernel_share(cost, case.paid.slice.generation)
    if step is not None and in_kernels > MUCH_GUESSED:
        notes.append(
            f"{percent(in_kernels)} of the computation time is in kernels, such as Pallas kernels, for which the "
            f"compiler has no estimate. Attention is assumed to use {percent(KERNEL_SHARES[Kind.KERNEL])} of the "
            f"matrix units' peak, and other products {percent(KERNEL_SHARES[Kind.PRODUCT_KERNEL])}. A step of a "
            f"kernel's grid is assumed to take at least {number(1e6 * GRID_STEP_SECONDS)} µs."
        )
    if cost.unknown_loops:
        loops = "1 loop has" if cost.unknown_loops == 1 else f"{cost.unknown_loops} loops have"
        notes.append(f"{loops} an unknown number of iterations, so only one iteration is counted.")
    if cost.early_loops:
        loops = "1 loop" if cost.early_loops == 1 else f"{cost.early_loops} loops"
        notes.append(f"{loops} may end early. The largest number of iterations is counted.")
    if cost.host_calls:
        notes.append(f"The step calls the host, which takes unknown time: {', '.join(cost.host_calls)}.")
    if cost.host_bytes:
        notes.append(
            f"The step moves {byte_size(cost.host_bytes)} between the device and the memory of its host, which takes "
            "unknown time and is left out."
        )
    if cost.has_narrow_products:
        notes.append("Products of 8 and 4 bits are timed like products of bfloat16. Some TPUs are twice as fast.")
    between = [collective for collective in cost.collectives if collective.slices > 1]
    speed = case.paid.slice.generation.dcn_bytes_per_second
    if step is not None and between:
        if speed is None:
            notes.append("The speed of the data-centre network between the slices is unknown.")
        else:
            seconds = sum(collective_seconds(collective, case.paid.slice) or 0.0 for collective in between)
            notes.append(
                f"Communication between the slices takes {time(seconds)}, if each chip reaches its "
                f"{number(speed / 1e9)} GB/s of the data-centre network. It may take longer, or overlap with the "
                "computation."
            )
    return notes


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. Give the path of a StableHLO file.") from error

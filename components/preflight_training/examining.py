"""Compile the training step for one machine or several, and say what it would take to train there."""

import dataclasses
import functools
import math
import time as clock
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.core.examples.decoding import MOST_PER_SECOND, MOST_RESIZED_PER_SECOND
from tpu_components.core.examples.feeding import DEVICE, draw_order, is_held_in_memory, is_resident
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.examples.records import ENCODED, RAW, input_bytes
from tpu_components.core.files import storage
from tpu_components.core.machines.device import choose_precision
from tpu_components.core.machines.machine_spec import PaidMachine, Slice, billed_by
from tpu_components.core.models.step.sharding import FULLY_SHARDED
from tpu_components.core.pages import page
from tpu_components.preflight_training import sandbox
from tpu_components.preflight_training.accuracy import accuracy_of
from tpu_components.preflight_training.advice import advise, compare
from tpu_components.preflight_training.compiler import DOES_NOT_FIT, FITS, Compilation, Outcome, Task, versions
from tpu_components.preflight_training.data import DataFacts, load_facts
from tpu_components.preflight_training.estimate import (
    EpochTime,
    LayerTime,
    StepTime,
    bytes_per_cycle,
    gradient_bytes,
    host_feed,
    time_epoch,
    time_layers,
    time_step,
)
from tpu_components.preflight_training.findings import Cost, MachineReport, PreflightReport, label_of
from tpu_components.preflight_training.footprint import footprint_of
from tpu_components.preflight_training.formatting import dollars, time
from tpu_components.preflight_training.largest_batch import (
    LargestBatch,
    Trial,
    estimate_largest_batch,
    find_largest_batch,
)
from tpu_components.preflight_training.params import PreflightParams, PreflightResult, timeout_seconds
from tpu_components.preflight_training.report import write_report

_STEP = "preflight_training"
_DRAWN = 4 << 20  # Examples whose order is drawn at most, to measure how fast.
FEED_BATCH = 1024  # The rate of the host hardly depends on it.


def preflight_training(
    params: PreflightParams, records_dir: Path, output: Path, cache_dir: Path | None = None
) -> PreflightResult:
    """Compile the training step for the machine, and write what it would take to train there.

    Args:
        params: Training to compile, and the machine.
        records_dir: Folder that create_tfrecords wrote.
        output: The report's folder; appears whole or not at all.
        cache_dir: Folder that keeps compilations between runs; see `sandbox.default_cache_dir`.

    Raises:
        InputError: If the model or the records cannot be used, or the TPU compiler is not installed.
    """
    storage.require_output(output, PREFLIGHT_FILE)
    cache_dir = cache_dir or sandbox.default_cache_dir()
    sandbox.require_compiler()
    training = params.training
    ahead = CompilationsAhead(params, [params.paid], cache_dir)
    data = load_facts(records_dir, FEED_BATCH, training.in_memory_mib, training.shuffle_buffer, cache_dir, ahead)
    report = ahead.examine(data)
    with storage.staged_directory(output) as staged:
        write_report(report, staged)
    machine = report.machines[0]
    progress.say(_STEP, machine.summary)
    footprint = footprint_of(report, machine)
    return PreflightResult(
        passed=machine.passed,
        machine=machine.machine,
        verdict=machine.verdict,
        reasons=machine.reasons,
        step_ms=machine.step.total_ms if machine.step else 0.0,
        epoch_seconds=machine.epoch.seconds if machine.epoch else 0.0,
        usd_per_run=machine.cost.usd_per_run if machine.cost else 0.0,
        timeout_seconds=machine.timeout_seconds,
        footprint=dataclasses.asdict(footprint) if footprint else {},
    )


def examine(
    params: PreflightParams, data: DataFacts, machines: Sequence[PaidMachine], cache_dir: Path
) -> PreflightReport:
    """Compile for every machine, and report.

    Args:
        params: Training to compile; `machines` stand for its own.
        data: Data that the step is fed with.
        machines: Each with the region and the kind of price that it is judged by.
        cache_dir: Folder that keeps compilations between runs.

    Raises:
        InputError: If the model cannot be used, or the TPU compiler is not installed.
    """
    return CompilationsAhead(params, machines, cache_dir).examine(data)


class CompilationsAhead:
    """Compilations that may begin as soon as it is known what goes into the model, before the data are measured.

    Args:
        params: Training to compile; `machines` stand for its own.
        machines: Each with the region and the kind of price that it is judged by.
        cache_dir: Folder that keeps compilations between runs.
    """

    def __init__(self, params: PreflightParams, machines: Sequence[PaidMachine], cache_dir: Path) -> None:
        self._params, self._machines, self._cache_dir = params, machines, cache_dir
        self._found: list[tuple[Outcome, bool, bool]] = []

    def __call__(self, interface: Interface, num_examples: int, num_validation: int) -> None:
        """Compile for every machine.

        Args:
            interface: Input and output of the model.
            num_examples: Number of examples in the training split.
            num_validation: Number of examples in the validation split.

        Raises:
            InputError: If the model cannot be used, or the TPU compiler is not installed.
        """
        training, names = self._params.training, ", ".join(dict.fromkeys(paid.machine for paid in self._machines))
        progress.say(_STEP, f"compiling the training step of {training.model} for {names}; minutes at worst, and kept")
        session = _Compiler(self._params, interface, num_examples, num_validation, self._cache_dir)
        self._found = session.compile_where_data_fit([paid.slice for paid in self._machines])

    def examine(self, data: DataFacts) -> PreflightReport:
        """Report, once the data are measured."""
        if not self._found:
            self(data.interface, data.num_examples, data.num_validation)
        return _report(self._params, data, self._machines, self._cache_dir, self._found)


def _report(
    params: PreflightParams,
    data: DataFacts,
    machines: Sequence[PaidMachine],
    cache_dir: Path,
    outcomes: Sequence[tuple[Outcome, bool, bool]],
) -> PreflightReport:
    session = _Examination(params, data, cache_dir)
    count = Counter((paid.machine, paid.target) for paid in machines)
    targets = {paid.target for paid in machines}
    reports = [
        session.report(paid, count[paid.machine, paid.target] > 1, paid.target if len(targets) > 1 else "", *of_machine)
        for paid, of_machine in zip(machines, outcomes, strict=True)
    ]
    return PreflightReport(
        model=params.training.model,
        model_parameters=dict(params.training.model_parameters),
        backend=session.task.training.backend,
        precision=session.task.training.precision,
        compiler=versions(),
        data=data,
        machines=tuple(reports),
        advice=compare(reports),
        run=page.run_name(),
        created=page.now(),
        learning_rate=params.training.learning_rate,
    )


@functools.cache
def order_rate(num_examples: int, global_batch: int) -> float:
    """Measure the examples per second whose order one CPU of this machine draws: all that a resident split needs.

    The best of five, since the machine may do other things too; of a large split a part is drawn, far beyond any cache.
    """
    drawn = min(num_examples, _DRAWN)

    def draw(epoch: int) -> float:
        start = clock.perf_counter()
        draw_order(drawn, global_batch, seed=0, epoch=epoch)
        return clock.perf_counter() - start

    return drawn / min(map(draw, range(5)))


def _most_fed(data: DataFacts) -> float:
    """Return the examples per second that no number of CPUs exceeds."""
    inputs = data.interface.input
    if not isinstance(inputs, ImageInput) or inputs.encoding == RAW or data.host.in_memory:
        return math.inf
    return MOST_RESIZED_PER_SECOND if inputs.encoding == ENCODED else MOST_PER_SECOND


class _Compiler:
    """The compilations of one training for some machines."""

    def __init__(
        self, params: PreflightParams, interface: Interface, num_examples: int, num_validation: int, cache_dir: Path
    ) -> None:
        self._params, self._cache_dir = params, cache_dir
        # Where the training split lies in the devices' memory, the validation split lies there too, if it is held.
        beside = num_validation * input_bytes(interface.input)
        self._beside_bytes = beside if is_held_in_memory(beside, params.training.in_memory_mib) else 0
        training = params.training.program
        backend = "jax" if training.backend == "auto" else training.backend
        precision = choose_precision("tpu", backend, ()) if training.precision == "auto" else training.precision
        training = dataclasses.replace(training, epochs=params.run_epochs, backend=backend, precision=precision)
        self.task = Task(training, interface, num_examples)
        decoded_bytes = num_examples * input_bytes(interface.input, with_margin=True)
        self._may_be_resident = is_resident(training.residency, backend, decoded_bytes, params.training.in_memory_mib)

    def compile_where_data_fit(self, machines: Sequence[Slice]) -> list[tuple[Outcome, bool, bool]]:
        """Compile with the data in the devices' memory, and where they must not or do not fit there, without.

        Returns:
            For each machine the outcome, whether it was known, and whether the data are in the devices' memory.
        """
        size, residency = self._params.training.batch_size_per_replica, self._params.training.residency
        first = self.compile([(machine, size) for machine in machines], self._may_be_resident)
        outcomes = [(*outcome, self._may_be_resident) for outcome in first]
        if self._may_be_resident and residency != DEVICE:
            too_large = [i for i, (outcome, _) in enumerate(first) if outcome.verdict == DOES_NOT_FIT]
            again = self.compile([(machines[i], size) for i in too_large], False)
            for i, outcome in zip(too_large, again, strict=True):
                outcomes[i] = (*outcome, False)
        return outcomes

    def compile(self, programs: Sequence[tuple[Slice, int]], resident: bool) -> list[tuple[Outcome, bool]]:
        """Compile batches per replica on a machine; returns what came of each."""
        compilations = [
            Compilation(
                machine=machine.name,
                topology=machine.libtpu_topology,
                chips_per_host_bounds=machine.chips_per_host_bounds or (),
                devices=machine.devices,
                bytes_per_cycle=bytes_per_cycle(machine.generation),
                batch_size_per_replica=batch_size,
                is_resident=resident,
            )
            for machine, batch_size in programs
        ]
        limits = sandbox.Limits(self._params.compile_timeout_seconds, self._params.compile_memory_mib)
        outcomes = sandbox.compile_all(self.task, compilations, limits, self._cache_dir)
        if not resident:
            return outcomes
        return [
            (self._beside_validation(outcome, machine), known)
            for (machine, _), (outcome, known) in zip(programs, outcomes, strict=True)
        ]

    def _beside_validation(self, outcome: Outcome, machine: Slice) -> Outcome:
        """Return the outcome of a program whose devices hold the validation split beside it, as in training."""
        memory, beside = outcome.memory, self._beside_bytes
        if memory is None or not beside:
            return outcome
        needed = memory.held_bytes + beside
        if needed > machine.generation.hbm_usable_bytes:
            reason = (
                f"the {beside:,} bytes that it is validated on have no room beside the program and the training split"
            )
            return Outcome(DOES_NOT_FIT, reason, compile_seconds=outcome.compile_seconds, needed_bytes=needed)
        with_validation = dataclasses.replace(
            memory,
            peak_bytes=memory.peak_bytes + beside,
            argument_bytes=memory.argument_bytes + beside,
            held_bytes=needed,
        )
        return dataclasses.replace(outcome, memory=with_validation)


class _Examination(_Compiler):
    """The compilations of one training for some machines, and what they say of its data."""

    def __init__(self, params: PreflightParams, data: DataFacts, cache_dir: Path) -> None:
        super().__init__(params, data.interface, data.num_examples, data.num_validation, cache_dir)
        self._data = data

    def report(
        self, paid: PaidMachine, has_namesakes: bool, target: str, outcome: Outcome, cached: bool, resident: bool
    ) -> MachineReport:
        """Return everything about one machine; `target` is told where several are compared."""
        params, data, machine = self._params, self._data, paid.slice
        label = label_of(paid.machine, paid.region, paid.spot, has_namesakes, target)
        batch_size = params.training.batch_size_per_replica * machine.devices
        step = epoch = cost = None
        timeout = 0
        measured = data.host.feed_per_second
        # Each of several hosts reads its share.
        feed = host_feed(measured, data.host.cpus, machine.host, _most_fed(data)) * machine.hosts
        measured *= machine.hosts
        if resident:
            measured = feed = order_rate(data.num_examples, batch_size)
        layers: tuple[LayerTime, ...] = ()
        if outcome.cost is not None:
            summed = gradient_bytes(outcome.parameters) if self.task.training.backend == "tensorflow" else 0
            step = time_step(outcome.cost, machine, summed)
            epoch = time_epoch(step, data.num_examples, batch_size, feed)
            layers = time_layers(outcome.cost, machine)
            # What is assumed of a host must not cut a training short.
            slowest = time_epoch(step, data.num_examples, batch_size, min(feed, measured))
            timeout = paid.timeout_seconds or timeout_seconds(params.run_epochs * slowest.seconds)
            if not resident:  # What the host's rate varies by widens the interval.
                slow, fast = (
                    time_epoch(step, data.num_examples, batch_size, feed * times) for times in data.host.spread
                )
                epoch = dataclasses.replace(epoch, low_seconds=fast.low_seconds, high_seconds=slow.high_seconds)
            cost = self._cost(paid, epoch, timeout)
        report = MachineReport(
            machine=machine.name,
            region=paid.region,
            spot=paid.spot,
            machine_type=machine.machine_type,
            chips=machine.chips,
            devices=machine.devices,
            hosts=machine.hosts,
            verdict=outcome.verdict,
            reason=outcome.reason,
            layer=outcome.layer,
            source=outcome.source,
            compile_seconds=outcome.compile_seconds,
            cached=cached,
            batch_size_per_replica=params.training.batch_size_per_replica,
            global_batch=batch_size,
            parameters=outcome.parameters,
            peak_bytes=outcome.memory.peak_bytes if outcome.memory else outcome.needed_bytes,
            capacity_bytes=machine.generation.hbm_usable_bytes,
            largest_batch=self._largest_batch(machine, outcome, resident),
            step=step,
            epoch=epoch,
            epochs=params.run_epochs,
            cost=cost,
            layers=layers,
            host_calls=outcome.cost.host_calls if outcome.cost else (),
            unknown_loops=outcome.cost.unknown_loops if outcome.cost else 0,
            broken=(*self._unfit(machine, batch_size, outcome), *self._broken_budgets(paid, label, step, epoch, cost)),
            accuracy=accuracy_of(machine.generation),
            has_namesakes=has_namesakes,
            timeout_seconds=timeout,
            host_cpus=machine.host.vcpus if machine.host else 0,
            feed_per_second=feed,
            stage=f"{outcome.stage} of {len(params.training.stages)}" if outcome.stage else "",
            is_resident=resident,
            target=target,
        )
        words, worth_it = advise(report, data)
        return dataclasses.replace(report, advice=words, worth_it=worth_it)

    def _cost(self, paid: PaidMachine, epoch: EpochTime, timeout: int) -> Cost | None:
        price = paid.price
        if price is None:
            return None
        per_epoch, low, high = (
            price.usd_per_hour * seconds / 3600 for seconds in (epoch.seconds, epoch.low_seconds, epoch.high_seconds)
        )
        epochs = self._params.run_epochs
        return Cost(
            usd_per_hour=price.usd_per_hour,
            usd_per_epoch=per_epoch,
            usd_per_run=per_epoch * epochs,
            low_usd_per_run=low * epochs,
            high_usd_per_run=high * epochs,
            region=price.region,
            kind=price.kind,
            source=price.source,
            date=price.date,
            target=price.target,
            factor=price.factor,
            most_usd_per_run=price.usd_per_hour * timeout * paid.attempts / 3600,
        )

    def _unfit(self, machine: Slice, global_batch: int, outcome: Outcome) -> tuple[str, ...]:
        """Say what the training itself would refuse, or hang on, once the machine is paid for."""
        unfit = [outcome.objection] if outcome.objection else []
        if machine.hosts > 1 and self.task.training.backend != "jax":
            unfit.append(
                f"{machine.name} has {machine.hosts} hosts, and the jax backend alone trains on several: take a slice "
                "of one host, or training.backend=jax"
            )
        if global_batch > self._data.num_examples:
            unfit.append(
                f"one step takes {global_batch:,} examples, and the training split has {self._data.num_examples:,}: "
                "lower training.batch_size_per_replica or take a smaller slice"
            )
        return tuple(unfit)

    def _broken_budgets(
        self, paid: PaidMachine, label: str, step: StepTime | None, epoch: EpochTime | None, cost: Cost | None
    ) -> tuple[str, ...]:
        params = self._params
        if step is None or epoch is None:
            return ()
        broken = []
        if params.max_step_ms and step.total_ms > params.max_step_ms:
            broken.append(f"a step takes {time(step.total_ms / 1e3)} on {label}, max_step_ms={params.max_step_ms:g}")
        if params.max_host_wait and epoch.host_wait > params.max_host_wait:
            broken.append(
                f"{label} would wait for data {epoch.host_wait:.0%} of the time, max_host_wait={params.max_host_wait:g}"
            )
        if params.max_price_usd and cost is None:
            how = " as a spot machine" * paid.spot + (f" in {paid.region}" if paid.region else "")
            broken.append(
                f"no trustworthy price is known for {paid.machine}{how}, so max_price_usd={params.max_price_usd:g} "
                "cannot be kept; set it to 0, or choose another machine, region or kind of price"
            )
        if params.max_price_usd and cost is not None and cost.usd_per_run > params.max_price_usd:
            broken.append(
                f"a run of {params.run_epochs} epochs on {label} is expected to cost {dollars(cost.usd_per_run)} at "
                f"{billed_by(cost.target)}, max_price_usd={params.max_price_usd:g}"
            )
        return tuple(broken)

    def _largest_batch(self, machine: Slice, outcome: Outcome, resident: bool) -> LargestBatch | None:
        asked = self._params.training.batch_size_per_replica
        if outcome.verdict == DOES_NOT_FIT or (outcome.verdict == FITS and self._params.find_largest_batch):
            attempt = partial(self._attempt, machine, resident)
            return find_largest_batch(attempt, asked, machine.generation.hbm_usable_bytes)
        if outcome.memory is None or self._params.training.sharding == FULLY_SHARDED:
            return None  # What a step puts together is as large as the weights, whatever the batch.
        capacity, attempt = machine.generation.hbm_usable_bytes, partial(self._attempt, machine, resident)
        return estimate_largest_batch(attempt, asked, outcome.memory.peak_bytes, capacity)

    def _attempt(self, machine: Slice, resident: bool, batch_size: int) -> Trial:
        progress.say(_STEP, f"{machine.name}: compiling {batch_size:,} examples per replica")
        outcome, _ = self.compile([(machine, batch_size)], resident)[0]
        if outcome.verdict not in (FITS, DOES_NOT_FIT):
            return Trial(None)
        used = outcome.memory.peak_bytes if outcome.memory else outcome.needed_bytes
        return Trial(outcome.verdict == FITS, used)

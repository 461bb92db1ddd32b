"""Preflight of a training: compiles its step for one or several machines and reports time, price and what to change."""

import dataclasses
import functools
import math
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.formatting import dollars, percent, time
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.core.examples.decoding import MOST_PER_SECOND, MOST_RESIZED_PER_SECOND
from tpu_components.core.examples.feeding import DEVICE, Cut, is_held_in_memory, is_resident
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.examples.records import ENCODED, RAW, input_bytes
from tpu_components.core.files import storage
from tpu_components.core.machines.device import choose_precision
from tpu_components.core.machines.machine_spec import PaidMachine, Slice, billed_by
from tpu_components.core.models.step.sharding import FULLY_SHARDED
from tpu_components.core.pages import page
from tpu_components.preflight_training.advice import advise, compare
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.compiler import (
    DOES_NOT_FIT,
    FITS,
    MAY_FIT,
    Compilation,
    Outcome,
    Task,
    versions,
)
from tpu_components.preflight_training.data import DataFacts, load_facts
from tpu_components.preflight_training.estimate import (
    EpochTime,
    accuracy_of,
    gradient_bytes,
    host_feed,
    time_epoch,
    time_layers,
    time_step,
)
from tpu_components.preflight_training.findings import PASSING, Cost, MachineReport, PreflightReport
from tpu_components.preflight_training.largest_batch import LargestBatch, estimate_largest_batch, find_largest_batch
from tpu_components.preflight_training.params import PreflightParams, PreflightResult, timeout_seconds
from tpu_components.preflight_training.report import write_report

_STEP = "preflight_training"
_MOST_DRAWN = 4 << 20  # Examples whose order is drawn to measure the rate; more would take long and say the same.


def preflight_training(
    params: PreflightParams, records_dir: Path, output: Path, cache_dir: Path | None = None
) -> PreflightResult:
    """Compile the training step for its machine, and write the report.

    Args:
        params: Training to compile, and the machine.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder of the report; appears whole or not at all.
        cache_dir: Folder that keeps compilations between runs; see `sandbox.default_cache_dir`.

    Raises:
        InputError: If the model or the records cannot be used, or the TPU compiler is not installed.
    """
    storage.require_output(output, PREFLIGHT_FILE)
    cache_dir = cache_dir or sandbox.default_cache_dir()
    sandbox.require_compiler([params.paid.slice])
    training = params.training
    examination = Examination(params, [params.paid], cache_dir)
    data = load_facts(records_dir, training.in_memory_mib, training.shuffle_buffer, cache_dir, examination.compile)
    report = examination.report(data)
    with storage.staged_directory(output) as staged:
        write_report(report, staged)
    machine = report.machines[0]
    progress.say(_STEP, machine.summary)
    footprint = report.footprint(machine)
    return PreflightResult(
        passed=machine.passed,
        machine=machine.machine,
        verdict=machine.verdict,
        reasons=machine.reasons,
        step_ms=machine.step.total_ms if machine.step else 0.0,
        epoch_seconds=machine.epoch.seconds if machine.epoch else 0.0,
        usd_per_run=(machine.cost.usd_per_run if machine.cost else None) or 0.0,
        timeout_seconds=machine.timeout_seconds,
        footprint=dataclasses.asdict(footprint) if footprint else {},
    )


@functools.cache
def order_rate(num_examples: int, global_batch: int) -> float:
    """Measure for how many examples per second one CPU of this machine draws the random order of an epoch.

    A split that lies in device memory needs nothing else of the host. The best of five measurements counts, because the
    machine may be busy. Of a large split only a part is drawn, which is still far larger than any cache.
    """
    drawn = min(num_examples, _MOST_DRAWN)

    def draw(epoch: int) -> float:
        start = clock.perf_counter()
        Cut(drawn, global_batch).draw_order(seed=0, epoch=epoch)
        return clock.perf_counter() - start

    return drawn / min(map(draw, range(5)))


class Examination:
    """Preflight of one training on several machines: first `compile`, then `report` with the measured data.

    Args:
        params: Training to compile; its own machine, `params.paid`, is ignored.
        machines: Machines, each with the settings that determine its price.
        cache_dir: Folder that keeps compilations between runs.
    """

    def __init__(self, params: PreflightParams, machines: Sequence[PaidMachine], cache_dir: Path) -> None:
        self._params, self._machines, self._cache_dir = params, machines, cache_dir
        training = params.training.program
        backend = "jax" if training.backend == "auto" else training.backend
        accelerator = machines[0].slice.generation.accelerator
        precision = choose_precision(accelerator, backend, ()) if training.precision == "auto" else training.precision
        self._program = dataclasses.replace(training, epochs=params.run_epochs, backend=backend, precision=precision)
        self._outcomes: list[Outcome] = []

    def compile(self, interface: Interface, num_examples: int, num_validation: int) -> None:
        """Compile for every machine, with the data in the devices' memory if they may lie there and fit.

        Args:
            interface: Input and output of the model.
            num_examples: Number of examples in the training split.
            num_validation: Number of examples in the validation split.

        Raises:
            InputError: If the model cannot be used, or the TPU compiler is not installed.
        """
        training, names = self._params.training, ", ".join(dict.fromkeys(paid.machine for paid in self._machines))
        progress.say(_STEP, f"compiling the training step of {training.model} for {names}; minutes at worst, and kept")
        self._task = Task(self._program, interface, num_examples)
        # A validation split that is held in memory lies beside a resident training split.
        num_bytes = num_validation * input_bytes(interface.input)
        self._validation_bytes = num_bytes if is_held_in_memory(num_bytes, training.in_memory_mib) else 0
        decoded_bytes = num_examples * input_bytes(interface.input, with_margin=True)
        residency = training.residency
        may_be_resident = is_resident(residency, self._program.backend, decoded_bytes, training.in_memory_mib)
        machines, batch_size = [paid.slice for paid in self._machines], training.batch_size_per_replica
        self._outcomes = self._compile(machines, batch_size, may_be_resident)
        if may_be_resident and residency != DEVICE:
            too_large = [i for i, outcome in enumerate(self._outcomes) if outcome.verdict == DOES_NOT_FIT]
            again = self._compile([machines[i] for i in too_large], batch_size, False)
            for i, outcome in zip(too_large, again, strict=True):
                self._outcomes[i] = outcome

    def report(self, data: DataFacts) -> PreflightReport:
        """Return the report for measured data; compiles first if `compile` was not called.

        Raises:
            InputError: If `compile` raises it.
        """
        if not self._outcomes:
            self.compile(data.interface, data.num_examples, data.num_validation)
        params = self._params
        reports = [self._report(*each, data) for each in zip(self._machines, self._outcomes, strict=True)]
        return PreflightReport(
            model=params.training.model,
            model_parameters=dict(params.training.model_parameters),
            backend=self._program.backend,
            precision=self._program.precision,
            compiler=versions(),
            data=data,
            machines=tuple(reports),
            advice=compare(reports),
            run=page.run_name(),
            created=page.now(),
            learning_rate=params.training.learning_rate,
        )

    def _compile(self, machines: Sequence[Slice], batch_size: int, is_resident: bool) -> list[Outcome]:
        """Compile for slices, with a batch size per replica; then check that all data fit beside the program."""
        compilations = [Compilation(machine, batch_size, is_resident and not machine.is_gpu) for machine in machines]
        limits = sandbox.Limits(self._params.compile_timeout_seconds, self._params.compile_memory_mib)
        outcomes = sandbox.compile_all(self._task, compilations, limits, self._cache_dir)
        return [self._within(*each) for each in zip(outcomes, compilations, strict=True)]

    def _within(self, outcome: Outcome, compilation: Compilation) -> Outcome:
        """Return the outcome with the memory of data outside of the program; the verdict may become DOES_NOT_FIT.

        If the training split lies in device memory, a validation split that is held in memory lies there too. On a GPU,
        the lower bound may exceed the memory.
        """
        capacity, is_resident = compilation.machine.generation.hbm_usable_bytes, compilation.is_resident
        beside = self._validation_bytes if is_resident and outcome.verdict == FITS else 0
        peak, held = outcome.peak_bytes + beside, outcome.held_bytes + beside
        outcome = dataclasses.replace(outcome, is_resident=is_resident, peak_bytes=peak, held_bytes=held)
        if outcome.verdict == MAY_FIT and peak > capacity:
            needed = f"weights, optimizer state and a batch take at least {peak:,} bytes of {capacity:,}"
            return dataclasses.replace(outcome, verdict=DOES_NOT_FIT, reason=needed)
        if beside and held > capacity:
            reason = (
                f"the {beside:,} bytes that it is validated on have no room beside the program and the training split"
            )
            seconds = outcome.compile_seconds
            return Outcome(DOES_NOT_FIT, reason, compile_seconds=seconds, peak_bytes=held, is_resident=is_resident)
        return outcome

    def _report(self, paid: PaidMachine, outcome: Outcome, data: DataFacts) -> MachineReport:
        params, machine, program = self._params, paid.slice, outcome.cost
        batch_size, timeout = params.training.batch_size_per_replica * machine.devices, paid.timeout_seconds
        step = epoch = None
        measured = data.host.feed_per_second * machine.hosts  # Each of several hosts reads its share.
        feed = host_feed(data.host.feed_per_second, data.host.cpus, machine.host, _most_fed(data)) * machine.hosts
        if outcome.is_resident:
            measured = feed = order_rate(data.num_examples, batch_size)
        if program is not None:
            summed = gradient_bytes(outcome.parameters) if self._program.backend == "tensorflow" else 0
            step = time_step(program, machine, summed)
            epoch_at = functools.partial(time_epoch, step, data.num_examples, batch_size)
            epoch = epoch_at(feed)
            # The timeout follows from the slower rate: what is assumed of a host must not stop a training early.
            timeout = timeout or timeout_seconds(params.run_epochs * epoch_at(min(feed, measured)).seconds)
            if not outcome.is_resident:  # The spread of the host's rate widens the interval.
                slow, fast = (epoch_at(feed * times) for times in data.host.spread)
                epoch = dataclasses.replace(epoch, low_seconds=fast.low_seconds, high_seconds=slow.high_seconds)
        is_known = outcome.verdict in PASSING
        places = [(each.machine, each.target) for each in self._machines]
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
            cached=outcome.is_cached,
            batch_size_per_replica=params.training.batch_size_per_replica,
            global_batch=batch_size,
            parameters=outcome.parameters,
            peak_bytes=outcome.peak_bytes,
            capacity_bytes=machine.generation.hbm_usable_bytes,
            largest_batch=self._largest_batch(machine, outcome),
            epochs=params.run_epochs,
            accuracy=accuracy_of(machine.generation),
            has_namesakes=places.count((paid.machine, paid.target)) > 1,
            target=paid.target if len({target for _, target in places}) > 1 else "",
            host_cpus=machine.host.vcpus if machine.host else 0,
            feed_per_second=feed,
            stage=f"{outcome.stage} of {len(params.training.stages)}" if outcome.stage else "",
            is_resident=outcome.is_resident,
            step=step,
            epoch=epoch,
            timeout_seconds=timeout if is_known else 0,
            cost=self._cost(paid, epoch, timeout) if is_known else None,
            layers=time_layers(program, machine) if program else (),
            host_calls=program.host_calls if program else (),
            unknown_loops=program.unknown_loops if program else 0,
        )
        broken = (*self._objections(outcome, batch_size, machine), *self._broken_budgets(paid, report))
        report = dataclasses.replace(report, broken=broken)
        advice, worth_it = advise(report, paid, data)
        return dataclasses.replace(report, advice=advice, worth_it=worth_it)

    def _cost(self, paid: PaidMachine, epoch: EpochTime | None, timeout: int) -> Cost | None:
        """Return the prices; without the time of an epoch, only those of an hour and of the time limit."""
        price, epochs = paid.price, self._params.run_epochs
        if price is None:
            return None
        usd_per_second = price.usd_per_hour / 3600
        return Cost(
            usd_per_hour=price.usd_per_hour,
            usd_per_epoch=usd_per_second * epoch.seconds if epoch else None,
            usd_per_run=usd_per_second * epoch.seconds * epochs if epoch else None,
            low_usd_per_run=usd_per_second * epoch.low_seconds * epochs if epoch else None,
            high_usd_per_run=usd_per_second * epoch.high_seconds * epochs if epoch else None,
            region=price.region,
            kind=price.kind,
            source=price.source,
            date=price.date,
            target=price.target,
            factor=price.factor,
            most_usd_per_run=usd_per_second * timeout * paid.attempts if timeout else None,
        )

    def _objections(self, outcome: Outcome, global_batch: int, machine: Slice) -> Iterator[str]:
        """Yield the reasons for which train_model would refuse the training, or hang, on the paid machine."""
        if outcome.objection:
            yield outcome.objection
        if machine.hosts > 1 and self._program.backend != "jax":
            yield (
                f"{machine.name} has {machine.hosts} hosts, and the jax backend alone trains on several: take a slice "
                "of one host, or training.backend=jax"
            )
        if global_batch > self._task.num_examples:
            yield (
                f"one step takes {global_batch:,} examples, and the training split has {self._task.num_examples:,}: "
                "lower training.batch_size_per_replica or take a smaller slice"
            )

    def _broken_budgets(self, paid: PaidMachine, report: MachineReport) -> Iterator[str]:
        params, label, step, epoch, cost = self._params, report.label, report.step, report.epoch, report.cost
        if report.verdict not in PASSING:
            return
        untimed = [name for name in ("max_step_ms", "max_host_wait") if step is None and getattr(params, name)]
        if untimed:
            yield f"no time is known of {label}, so {' and '.join(untimed)} cannot be kept: leave it out"
        if params.max_step_ms and step and step.total_ms > params.max_step_ms:
            yield f"a step takes {time(step.total_ms / 1e3)} on {label}, max_step_ms={params.max_step_ms:g}"
        if params.max_host_wait and epoch and epoch.host_wait > params.max_host_wait:
            waiting = f"{percent(epoch.host_wait)} of the time"
            yield f"{label} would wait for data {waiting}, max_host_wait={params.max_host_wait:g}"
        if params.max_price_usd and cost is None:
            how = " as a spot machine" * paid.spot + (f" in {paid.region}" if paid.region else "")
            yield (
                f"no trustworthy price is known for {paid.machine}{how}, so max_price_usd={params.max_price_usd:g} "
                "cannot be kept; set it to 0, or choose another machine, region or kind of price"
            )
        if (
            params.max_price_usd
            and cost
            and cost.usd_per_run is None
            and (cost.most_usd_per_run or 0) > params.max_price_usd
        ):
            yield (
                f"no time is known of {label}, and its time limit costs up to {dollars(cost.most_usd_per_run or 0)} at "
                f"{billed_by(cost.target)}, max_price_usd={params.max_price_usd:g}: lower machine.timeout_seconds"
            )
        if params.max_price_usd and cost and (cost.usd_per_run or 0) > params.max_price_usd:
            yield (
                f"a run of {params.run_epochs} epochs on {label} is expected to cost {dollars(cost.usd_per_run or 0)} "
                f"at {billed_by(cost.target)}, max_price_usd={params.max_price_usd:g}"
            )

    def _largest_batch(self, machine: Slice, outcome: Outcome) -> LargestBatch | None:
        asked, capacity = self._params.training.batch_size_per_replica, machine.generation.hbm_usable_bytes

        def attempt(batch_size: int) -> Outcome:
            progress.say(_STEP, f"{machine.name}: compiling {batch_size:,} examples per replica")
            return self._compile([machine], batch_size, outcome.is_resident)[0]

        if machine.is_gpu:
            return None
        if outcome.verdict == DOES_NOT_FIT or (outcome.verdict == FITS and self._params.find_largest_batch):
            return find_largest_batch(attempt, asked, capacity)
        if outcome.verdict != FITS or self._params.training.sharding == FULLY_SHARDED:
            return None  # A fully sharded step gathers all weights, whatever the batch.
        return estimate_largest_batch(attempt, asked, outcome.peak_bytes, capacity)


def _most_fed(data: DataFacts) -> float:
    """Return the highest rate at which a host decodes, in examples per second, with any number of CPUs."""
    inputs = data.interface.input
    if not isinstance(inputs, ImageInput) or inputs.encoding == RAW or data.host.in_memory:
        return math.inf
    return MOST_RESIZED_PER_SECOND if inputs.encoding == ENCODED else MOST_PER_SECOND

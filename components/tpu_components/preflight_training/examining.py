"""Preflight of a training run: compiles the training step for one or several machines, and writes a report.

The report has memory, time, price and advice for each machine.
"""

import dataclasses
import functools
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.formatting import dollars, percent, time
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE, Manifest
from tpu_components.core.examples.feeding import DEVICE, Cut, is_held_in_memory, is_resident
from tpu_components.core.examples.records import input_bytes
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines.device import choose_precision
from tpu_components.core.machines.machine_spec import PaidMachine, billed_by
from tpu_components.core.pages import page
from tpu_components.preflight_training.advice import Adviser, compare
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.compiler import Compilation
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_FIT, FITS, MAY_FIT, Outcome, versions
from tpu_components.preflight_training.data import DataFacts, MeasureHost, Measurement
from tpu_components.preflight_training.estimate import (
    EpochTime,
    StepTime,
    accuracy_of,
    gradient_bytes,
    time_epoch,
    time_layers,
    time_step,
)
from tpu_components.preflight_training.findings import PASSING, Cost, MachineReport, PreflightReport
from tpu_components.preflight_training.largest_batch import LargestBatch, bound_largest_batch, find_largest_batch
from tpu_components.preflight_training.params import (
    VERTEX_TASK_SECONDS,
    PreflightParams,
    PreflightResult,
    timeout_seconds,
)
from tpu_components.preflight_training.receipts.calibration import calibrated, runs_of
from tpu_components.preflight_training.receipts.store import ReceiptStore
from tpu_components.preflight_training.report import write_report

_STEP = "preflight_training"
_MOST_DRAWN = 4 << 20  # Examples whose order is drawn to measure the rate; more would take long and say the same.


def preflight_training(
    params: PreflightParams, records_dir: str | Path, output: str | Path, cache_dir: Path | None = None
) -> PreflightResult:
    """Compile the training step for its machine, and write a report on memory, time and price.

    Args:
        params: Training run to compile, and the machine.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder for the report. The report is written completely or not at all.
        cache_dir: Folder in which compilations are kept between runs. None means `sandbox.default_cache_dir`.

    Raises:
        InputError: If the model or the records cannot be used, or the TPU compiler is not installed.
    """
    records_dir = Location(records_dir).as_path()
    output = Location(output).as_path()
    storage.require_output(output, PREFLIGHT_FILE)
    manifest = Manifest.load(records_dir, verify=False)
    facts = DataFacts.from_manifest(manifest, {name: split.num_examples for name, split in manifest.splits.items()})
    examination = Examination(params, [params.paid], cache_dir, store=ReceiptStore.of_environment())
    report = examination.report(facts, functools.partial(examination.measurement.of_records, records_dir, manifest))
    with storage.staged_directory(output) as staged:
        write_report(report, staged)
    machine = report.machines[0]
    progress.say(_STEP, machine.summary)
    footprint = report.footprint(machine)
    prediction = report.prediction(machine)
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
        prediction=dataclasses.asdict(prediction) if prediction else {},
    )


@functools.cache
def order_rate(num_examples: int, global_batch: int) -> float:
    """Measure the rate at which one CPU of this machine draws the random order of an epoch, in examples per second.

    If a split is in device memory, this order is all that the host computes. The best of five measurements counts,
    because the machine may be busy. For a large split, only a part of the order is drawn, which is still far larger
    than any CPU cache.
    """
    drawn = min(num_examples, _MOST_DRAWN)

    def draw(epoch: int) -> float:
        start = clock.perf_counter()
        Cut(drawn, global_batch).draw_order(seed=0, epoch=epoch)
        return clock.perf_counter() - start

    return drawn / min(map(draw, range(5)))


class Examination:
    """A preflight of one training run for several candidate machines.

    Args:
        params: Training run to compile. Its machine, `params.paid`, is ignored.
        machines: Candidate machines, each with the settings that determine its price.
        cache_dir: Folder in which compilations and measurements are kept between runs. None means
            `sandbox.default_cache_dir`.
        is_timed: Whether times and prices are estimated in addition to the memory.
        store: Receipts (records of your measured runs) from which the intervals of step times are derived. With None,
            the intervals are derived from published step times.

    Raises:
        InputError: If the TPU compiler is not installed, or a receipt is damaged.
    """

    def __init__(
        self,
        params: PreflightParams,
        machines: Sequence[PaidMachine],
        cache_dir: Path | None = None,
        is_timed: bool = True,
        store: ReceiptStore | None = None,
    ) -> None:
        sandbox.require_compiler(paid.slice for paid in machines)
        self.params = params
        self.machines = machines
        self.is_timed = is_timed
        self.runs = runs_of(store.load()) if store and is_timed else []
        limits = params.compile_timeout_seconds, params.compile_memory_mib
        self.cache_dir = cache_dir or sandbox.default_cache_dir()
        self._sandbox = sandbox.Sandbox(*limits, self.cache_dir)
        training = params.training.program
        backend = "jax" if training.backend == "auto" else training.backend
        accelerator = machines[0].slice.generation.accelerator
        precision = choose_precision(accelerator, backend, ()) if training.precision == "auto" else training.precision
        self._program = dataclasses.replace(training, epochs=params.run_epochs, backend=backend, precision=precision)

    @property
    def measurement(self) -> Measurement:
        """Measurement of how fast this machine reads the data of the training run."""
        training = self.params.training
        return Measurement(training.in_memory_mib, training.shuffle_buffer, self.cache_dir)

    def report(self, data: DataFacts, measure_host: MeasureHost | None = None) -> PreflightReport:
        """Compile the training step for every machine, and return the report.

        Args:
            data: Facts about the data of the training run.
            measure_host: Function that adds this machine's rates to `data`. It is called if an estimate needs the rates
                and `data` does not have them, and only after the compilations, because these use every core.

        Raises:
            InputError: If the model or the data cannot be used.
        """
        with self._sandbox:
            compiled = self._compile(data)
            if measure_host and data.host is None and self.is_timed and any(map(_needs_host, compiled)):
                data = measure_host(data)
            reports = [MachineExamination(self, *each, data).report() for each in compiled]
        training = self.params.training
        return PreflightReport(
            model=training.model,
            model_parameters=dict(training.model_parameters),
            backend=self._program.backend,
            precision=self._program.precision,
            compiler=versions(),
            data=data,
            machines=tuple(reports),
            advice=compare(reports),
            run=page.run_name(),
            created=page.now(),
            learning_rate=max(outcome.learning_rate for _, _, outcome in compiled),
        )

    def _compile(self, data: DataFacts) -> list[tuple[PaidMachine, Compilation, Outcome]]:
        """Compile the training step for every machine.

        The training split is in device memory if `residency` allows this and the split fits.
        """
        training = self.params.training
        names = ", ".join(dict.fromkeys(paid.machine for paid in self.machines))
        progress.say(
            _STEP,
            f"compiling the training step of {training.model} for {names}. This may take minutes, but only the first "
            "time",
        )
        # A validation split that is held in memory is on the device together with a resident training split.
        num_bytes = data.num_validation * input_bytes(data.interface.input)
        self._validation_bytes = num_bytes if is_held_in_memory(num_bytes, training.in_memory_mib) else 0
        decoded_bytes = data.num_examples * input_bytes(data.interface.input, with_margin=True)
        residency = training.residency
        may_be_resident = is_resident(residency, self._program.backend, decoded_bytes, training.in_memory_mib)
        compilations = [
            Compilation(
                self._program, data.interface, data.num_examples, machine, may_be_resident and not machine.is_gpu
            )
            for machine in (paid.slice for paid in self.machines)
        ]
        outcomes = self.compile_all(compilations)
        if may_be_resident and residency != DEVICE:
            host_fed = {
                i: dataclasses.replace(compilations[i], is_resident=False)
                for i, outcome in enumerate(outcomes)
                if outcome.verdict == DOES_NOT_FIT
            }
            for i, outcome in zip(host_fed, self.compile_all([*host_fed.values()]), strict=True):
                compilations[i], outcomes[i] = host_fed[i], outcome
        return list(zip(self.machines, compilations, outcomes, strict=True))

    def compile_all(self, compilations: Sequence[Compilation]) -> list[Outcome]:
        """Compile programs. An outcome is DOES_NOT_FIT if the program and the data together exceed device memory."""
        outcomes = self._sandbox.compile_all(compilations)
        return [self._within(*each) for each in zip(outcomes, compilations, strict=True)]

    def _within(self, outcome: Outcome, compilation: Compilation) -> Outcome:
        """Add the memory of data outside of the program to an outcome.

        If the training split is in device memory, so is a validation split that is held in memory. The verdict becomes
        DOES_NOT_FIT if all of this exceeds a device's memory, or if the lower bound for a GPU does.
        """
        capacity = compilation.machine.generation.hbm_usable_bytes
        beside = self._validation_bytes if compilation.is_resident and outcome.verdict == FITS else 0
        peak, held, fixed = (each + beside for each in (outcome.peak_bytes, outcome.held_bytes, outcome.fixed_bytes))
        outcome = dataclasses.replace(outcome, peak_bytes=peak, held_bytes=held, fixed_bytes=fixed)
        if outcome.verdict == MAY_FIT and peak > capacity:
            needed = (
                f"weights, optimizer state and a batch take at least {peak:,} bytes, and {capacity:,} are available"
            )
            return dataclasses.replace(outcome, verdict=DOES_NOT_FIT, reason=needed)
        if beside and held > capacity:
            reason = (
                f"the validation split ({beside:,} bytes) does not fit in memory together with the program and "
                "the training split"
            )
            return Outcome(DOES_NOT_FIT, reason, compile_seconds=outcome.compile_seconds, peak_bytes=held)
        return outcome


def _needs_host(compiled: tuple[PaidMachine, Compilation, Outcome]) -> bool:
    """Return whether the time of an epoch depends on the host's rate."""
    _, compilation, outcome = compiled
    return not compilation.is_resident and outcome.cost is not None and outcome.cost.has_estimate


@dataclasses.dataclass(frozen=True)
class MachineExamination:
    """Examination of a training run on one machine, based on its compiled program and the facts about its data.

    Attributes:
        whole: The preflight to which this examination belongs. It covers all candidate machines.
        paid: The machine, with the settings that determine its price.
        compilation: Program of the training step.
        outcome: Outcome of the program's compilation.
        data: Sizes of the data set, and the rates at which this machine reads it.
    """

    whole: Examination
    paid: PaidMachine
    compilation: Compilation
    outcome: Outcome
    data: DataFacts

    def report(self) -> MachineReport:
        """Return the findings about the machine."""
        training = self.compilation.training
        machine = self.compilation.machine
        paid = self.paid
        outcome = self.outcome
        program = outcome.cost
        places = [(each.machine, each.target) for each in self.whole.machines]
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
            batch_size_per_replica=training.batch_size_per_replica,
            global_batch=self.compilation.batch_size,
            parameters=outcome.parameters,
            peak_bytes=outcome.peak_bytes,
            capacity_bytes=machine.generation.hbm_usable_bytes,
            largest_batch=self._largest_batch(),
            epochs=training.epochs,
            accuracy=accuracy_of(machine.generation, self._step.mxu_utilization if self._step else 0.0),
            has_namesakes=places.count((paid.machine, paid.target)) > 1,
            target=paid.target if len({target for _, target in places}) > 1 else "",
            host_cpus=machine.host_cpus,
            feed_per_second=self._fed,
            stage=f"{outcome.stage} of {len(training.stages)}" if outcome.stage else "",
            is_resident=self.compilation.is_resident,
            step=self._step,
            epoch=self._epoch,
            timeout_seconds=self._timeout_seconds,
            cost=self._cost(),
            layers=time_layers(program, machine) if program and self._step else (),
            host_calls=program.host_calls if program else (),
            unknown_loops=program.unknown_loops if program else 0,
            unestimated=program.unestimated if program else (),
            untimed=self._untimed,
            program=outcome.program,
        )
        broken = (*self._objections(), *self._broken_budgets(report))
        advice, worth_it = Adviser(report, paid, self.data).advise()
        return dataclasses.replace(report, broken=broken, advice=advice, worth_it=worth_it)

    @functools.cached_property
    def _fed(self) -> float:
        """Examples per second that all hosts together feed.

        If the data are in device memory, this is the number of examples per second whose order a host draws.
        """
        machine = self.compilation.machine
        if self.compilation.is_resident:
            return order_rate(self.data.num_examples, self.compilation.batch_size)
        return self.data.estimate_feed(machine.host_cpus) * machine.hosts

    @functools.cached_property
    def _step(self) -> StepTime | None:
        program = self.outcome.cost
        is_summed_apart = self.compilation.training.backend == "tensorflow"
        if program is None or not self.whole.is_timed or not program.has_estimate:
            return None
        summed = gradient_bytes(self.outcome.parameters) if is_summed_apart else 0
        machine = self.compilation.machine
        step = time_step(program, machine, summed)
        return calibrated(step, self.whole.runs, self.outcome.program, machine.name)

    @property
    def _untimed(self) -> str:
        """Reason why the time of a program that fits is unknown, or an empty string if the time is known."""
        if self.outcome.verdict != FITS or self._step:
            return ""
        if not self.whole.is_timed:
            return "not estimated, like the price of a run. Run preflight without --quick"
        return "unknown: the compiler has no estimate for any part of this program"

    def _epoch_at(self, step: StepTime, host_rate: float) -> EpochTime:
        return time_epoch(step, self.data.num_examples, self.compilation.batch_size, host_rate)

    @functools.cached_property
    def _epoch(self) -> EpochTime | None:
        if self._step is None:
            return None
        epoch = self._epoch_at(self._step, self._fed)
        if self.compilation.is_resident or self.data.host is None:
            return epoch
        # The spread of the host's rate widens the interval.
        slow, fast = (self._epoch_at(self._step, self._fed * times) for times in self.data.host.spread)
        return dataclasses.replace(epoch, low_seconds=fast.low_seconds, high_seconds=slow.high_seconds)

    @functools.cached_property
    def _timeout_seconds(self) -> int:
        """Time limit of the training run, in seconds.

        This is the configured limit or, if none is configured, a limit derived from the estimated time. If the compiler
        has no estimate for a TPU, it is the limit of a Vertex AI task. The result is 0 if the training step does not
        fit. It is also 0 if no limit is configured and either the machine has GPUs or times are not estimated.
        """
        if self.outcome.verdict not in PASSING:
            return 0
        if self.paid.timeout_seconds:
            return self.paid.timeout_seconds
        if self._step is None:  # Training of unknown duration on a TPU must not be stopped early.
            return VERTEX_TASK_SECONDS if self.outcome.verdict == FITS and self.whole.is_timed else 0
        # The slower rate is used, because an assumption about the host must not stop a training run early.
        slower = self._fed
        if self.data.host and not self.compilation.is_resident:
            measured = self.data.host.feed_per_second * self.compilation.machine.hosts  # Each host reads its share.
            slower = min(slower, measured)
        return timeout_seconds(self.compilation.training.epochs * self._epoch_at(self._step, slower).seconds)

    def _cost(self) -> Cost | None:
        """Return the prices, or None if no price is known.

        If the time of an epoch is unknown, only the price per hour and the highest price of a run can be known.
        """
        price = self.paid.price
        epoch = self._epoch
        timeout = self._timeout_seconds
        if price is None:
            return None
        usd_per_second = price.usd_per_hour / 3600
        epochs = self.compilation.training.epochs
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
            most_usd_per_run=usd_per_second * timeout * self.paid.attempts if timeout else None,
        )

    def _objections(self) -> Iterator[str]:
        """Yield the reasons why train_model would reject the training run, or would hang, on this machine."""
        compilation = self.compilation
        machine = compilation.machine
        if self.outcome.objection:
            yield self.outcome.objection
        if machine.hosts > 1 and compilation.training.backend != "jax":
            yield (
                f"{machine.name} has {machine.hosts} hosts, and only the jax backend trains on several hosts. Use a "
                "slice with one host, or training.backend=jax"
            )
        if compilation.batch_size > compilation.num_examples:
            yield (
                f"one step takes {compilation.batch_size:,} examples, but the training split has only "
                f"{compilation.num_examples:,}. Lower training.batch_size_per_replica or use a smaller slice"
            )

    def _broken_budgets(self, report: MachineReport) -> Iterator[str]:
        params = self.whole.params
        paid = self.paid
        label, step, epoch, cost, most_usd = report.label, report.step, report.epoch, report.cost, params.max_price_usd
        if report.verdict not in PASSING or not self.whole.is_timed:
            return
        untimed = [name for name in ("max_step_ms", "max_host_wait") if step is None and getattr(params, name)]
        if untimed:
            yield f"the time on {label} is unknown, so {' and '.join(untimed)} cannot be checked. Remove this setting"
        if params.max_step_ms and step and step.total_ms > params.max_step_ms:
            yield f"a step takes {time(step.total_ms / 1e3)} on {label}, but max_step_ms={params.max_step_ms:g}"
        if params.max_host_wait and epoch and epoch.host_wait > params.max_host_wait:
            waiting = f"{percent(epoch.host_wait)} of the time"
            yield f"{label} would wait for data {waiting}, but max_host_wait={params.max_host_wait:g}"
        if not most_usd:
            return
        if cost is None:
            how = (" as a spot machine" if paid.spot else "") + (f" in {paid.region}" if paid.region else "")
            yield (
                f"no trustworthy price is known for {paid.machine}{how}, so max_price_usd={most_usd:g} cannot be "
                "checked. Set it to 0, or choose another machine, region or kind of price"
            )
        elif cost.usd_per_run is None and (cost.most_usd_per_run or 0) > most_usd:
            yield (
                f"the time on {label} is unknown, and its time limit costs up to "
                f"{dollars(cost.most_usd_per_run or 0)} at {billed_by(cost.target)}, but max_price_usd={most_usd:g}. "
                "Lower machine.timeout_seconds"
            )
        elif cost.usd_per_run and cost.usd_per_run > most_usd:
            yield (
                f"a run of {report.epochs} epochs on {label} is expected to cost {dollars(cost.usd_per_run)} at "
                f"{billed_by(cost.target)}, but max_price_usd={most_usd:g}"
            )

    def _largest_batch(self) -> LargestBatch | None:
        training = self.compilation.training
        machine = self.compilation.machine
        outcome = self.outcome
        first_size = training.batch_size_per_replica
        capacity = machine.generation.hbm_usable_bytes

        def attempt(batch_size: int) -> Outcome:
            progress.say(_STEP, f"{machine.name}: compiling {batch_size:,} examples per replica")
            return self.whole.compile_all([self.compilation.with_batch(batch_size)])[0]

        if machine.is_gpu:
            return None
        if outcome.verdict == DOES_NOT_FIT or (outcome.verdict == FITS and self.whole.params.find_largest_batch):
            return find_largest_batch(attempt, first_size, capacity)
        if outcome.verdict != FITS or not outcome.example_bytes:
            return None
        return bound_largest_batch(first_size, outcome.fixed_bytes, outcome.example_bytes, capacity)

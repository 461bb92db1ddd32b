"""Report of a preflight: the content of `preflight.json`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.formatting import dollars, dollars_within, percent
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import billed_by, load_catalogue
from tpu_components.core.results.receipt import Prediction
from tpu_components.preflight_training.compiling.outcome import FITS, MAY_FIT
from tpu_components.preflight_training.compiling.sandbox import CRASHED, OUT_OF_MEMORY, TIMED_OUT
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import Accuracy, EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.largest_batch import LargestBatch

PASSING = (FITS, MAY_FIT)
_UNDECIDED = (TIMED_OUT, OUT_OF_MEMORY, CRASHED)
VERDICTS = {
    FITS: "fits",
    MAY_FIT: "may fit",
    "does_not_fit": "does not fit",
    "does_not_compile": "does not compile",
    TIMED_OUT: "was not compiled in time",
    OUT_OF_MEMORY: "was not compiled: the compiler exceeded its memory limit",
    CRASHED: "crashed the compiler",
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Prices of a whole slice in US dollars. See `machine_spec.Price`.

    Attributes:
        usd_per_hour: Price of an hour.
        usd_per_epoch: Price of an epoch. This price, `usd_per_run` and the ends of its interval are None if no time is
            estimated, for example on a GPU or if the training step does not fit.
        usd_per_run: Expected price of a run, which is the price of all epochs. `LEFT_OUT` lists costs that are not
            included.
        low_usd_per_run: Lower end of the 90% interval of `usd_per_run`.
        high_usd_per_run: Upper end of the 90% interval of `usd_per_run`.
        region: Region of the price.
        kind: Price list, and whether the machine is on demand or spot, in words.
        source: Where the price was published.
        date: Date of the publication; only a year if the day is unknown.
        target: Platform on which the model is trained and whose price this is: `vertex` or `kubeflow`. Empty in files
            that older releases wrote. The price in those files is Compute Engine's.
        factor: Ratio of the price to Compute Engine's price.
        most_usd_per_run: Highest price of a run: the price of the machine if each attempt at training runs until the
            time limit. None if the time limit is unknown.
    """

    usd_per_hour: float
    usd_per_epoch: float | None
    usd_per_run: float | None
    low_usd_per_run: float | None
    high_usd_per_run: float | None
    region: str
    kind: str
    source: str
    date: str
    target: str = ""
    factor: float = 1.0
    most_usd_per_run: float | None = None

    @property
    def text(self) -> str:
        """Expected price of a run with its 90% interval, or the price per hour if the time of a run is unknown."""
        if self.usd_per_run is None or self.low_usd_per_run is None or self.high_usd_per_run is None:
            return f"{dollars(self.usd_per_hour)} per hour"
        return dollars_within(self.usd_per_run, self.low_usd_per_run, self.high_usd_per_run)

    @property
    def at_most(self) -> str:
        """Highest possible price of a run, in words, or an empty string if unknown."""
        return "" if self.most_usd_per_run is None else f", at most {dollars(self.most_usd_per_run)}"

    @property
    def run(self) -> str:
        """Expected and highest price of a run, and the name of the price list, in words."""
        expected = "" if self.usd_per_run is None else " expected per run, plus start-up"
        return f"{self.text}{expected}{self.at_most}, at {billed_by(self.target)}"


LEFT_OUT = (
    "the expected price covers the epochs, without start-up, compilation, validation and checkpoints; the highest "
    "price covers the machine until training is stopped; both exclude the other steps, disks, storage and network"
)
# Fields of a 90% interval. In older files, which lack them, they get the value of the first field in each tuple.
_INTERVALS = {
    "step": ("compute_ms", "low_ms", "high_ms"),
    "epoch": ("seconds", "low_seconds", "high_seconds"),
    "cost": ("usd_per_run", "low_usd_per_run", "high_usd_per_run"),
}


@dataclasses.dataclass(frozen=True)
class MachineReport:
    """Findings about a training run on one machine.

    Attributes:
        machine: Short name of the slice.
        region: Region of the price. Empty means the cheapest region for training on the machine.
        spot: Whether the price is that of a spot machine.
        machine_type: Vertex AI's machine type of each host.
        chips: Number of chips.
        devices: Number of JAX devices, which is the number of replicas.
        hosts: Number of virtual machines.
        verdict: `fits`, `may_fit` (a GPU, for which nothing is compiled), `does_not_fit`, `does_not_compile`,
            `timed_out`, `crashed`, or `out_of_memory` if the compiler exceeded its memory limit on this machine.
        reason: Reason why the training step does not fit or compile. Empty if it fits or may fit.
        layer: Layer of the model that caused the failure. Empty if unknown.
        source: Line of the model's code that caused the failure, as `file:line`. Empty if unknown.
        compile_seconds: Time of the compilation.
        cached: Whether the compilation was taken from the cache.
        batch_size_per_replica: Examples per replica and step.
        global_batch: Batch size of all replicas together.
        parameters: Number of trainable parameters.
        peak_bytes: Peak memory use of a device. If the training step does not fit, this is the needed memory. On a GPU,
            it is a lower bound.
        capacity_bytes: Memory of a device that a program may use.
        largest_batch: Largest batch per replica, or None if unknown.
        epochs: Number of epochs of the run.
        accuracy: Accuracy of the estimates for programs of this kind.
        step: Time of a step. None if the training step does not fit, or its time is not estimated.
        epoch: Time of an epoch, or None if `step` is None.
        cost: Prices. None if no trustworthy price is known. If the training step does not fit, only the price per hour
            is known.
        layers: Times of the layers in a step, the longest first.
        host_calls: Operations that call the host in every step.
        unknown_loops: Number of loops whose number of iterations is unknown. One iteration of each is counted.
        unestimated: Kinds of operations, such as `sort`, of which only the memory traffic is counted.
        broken: Budgets that are exceeded, and other reasons for a rejection, in words.
        advice: Advice in words, the most important first.
        worth_it: Whether a TPU is worth its price for this model and data.
        timeout_seconds: Time after which training is stopped, in seconds, or 0 if it is unknown.
        host_cpus: Number of CPUs of each host, or 0 if not published.
        feed_per_second: Estimated number of examples per second that all hosts together feed. If `is_resident`, the
            number of examples per second whose random order a host can draw.
        stage: Stage whose training step was compiled, for example `2 of 2`. Empty for a training run without stages.
        is_resident: Whether the training split is in the devices' memory. If it is, the host sends only the order of
            the examples.
        has_namesakes: Whether the preflight report has another entry with the same machine and target.
        target: Platform on which the model is trained. Empty unless the preflight report compares several platforms.
        untimed: Reason why the time is unknown although the training step fits. Empty if the time is known.
        program: Digest of the step. Receipts of runs of this step contain the same digest. Empty if unknown.
    """

    machine: str
    region: str
    spot: bool
    machine_type: str
    chips: int
    devices: int
    hosts: int
    verdict: Annotated[str, tuple(VERDICTS)]
    reason: str
    layer: str
    source: str
    compile_seconds: float
    cached: bool
    batch_size_per_replica: int
    global_batch: int
    parameters: int
    peak_bytes: int
    capacity_bytes: Annotated[int, typed_values.Range(1)]
    largest_batch: LargestBatch | None
    epochs: int
    accuracy: Accuracy
    step: StepTime | None = None
    epoch: EpochTime | None = None
    cost: Cost | None = None
    layers: tuple[LayerTime, ...] = ()
    host_calls: tuple[str, ...] = ()
    unknown_loops: int = 0
    unestimated: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    worth_it: bool = True
    timeout_seconds: int = 0
    host_cpus: int = 0
    feed_per_second: float = 0.0
    stage: str = ""
    is_resident: bool = False
    has_namesakes: bool = False
    target: str = ""
    untimed: str = ""
    program: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON: every field, and the properties `passed`, `reasons` and `summary`."""
        derived = {"passed": self.passed, "reasons": self.reasons, "summary": self.summary}
        return dataclasses.asdict(self) | derived

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON of a report of any version, with values added for fields that older versions lack."""
        unknown = {"factor": 1.0, "low": 1.0, "high": 1.0, "steps": 0, "programs": 0}
        intervals = {
            part: {name: raw[part].get(expected) for name in names} | raw[part]
            for part, (expected, *names) in _INTERVALS.items()
            if isinstance(raw.get(part), dict)
        }
        return {"region": "", "spot": False, "accuracy": unknown, **raw, **intervals}

    @property
    def label(self) -> str:
        """Name that is unique in the preflight report: machine, and if needed platform, region and `spot`."""
        place = (self.region, "spot" if self.spot else "") if self.has_namesakes else ()
        return " ".join(filter(None, (self.machine, *place, self.target)))

    @property
    def usd_per_run(self) -> float:
        """Expected price of a run, or infinity if unknown."""
        return math.inf if self.cost is None or self.cost.usd_per_run is None else self.cost.usd_per_run

    @property
    def epoch_seconds(self) -> float:
        """Time of an epoch, or infinity if unknown."""
        return self.epoch.seconds if self.epoch else math.inf

    def fed_by(self, measured: HostRate | None) -> str:
        """Describe how many examples per second the hosts feed, and the measurement from which this is estimated.

        Args:
            measured: Rates of this machine, or None if they were not measured.
        """
        whose = f"its {self.hosts} hosts" if self.hosts > 1 else "its host"
        if self.is_resident or measured is None:
            return f"from the devices' memory, in an order that {whose} draws at {self.feed_per_second:,.0f} examples/s"
        where = "memory" if measured.in_memory else "files"
        low, high = (f"{times * measured.feed_per_second:,.0f}" for times in measured.spread)
        passes = f" ({low}–{high})" if low != high else ""
        load = (
            f"; measure again when this machine is idle, because other processes used {percent(measured.load)} of it"
            if measured.is_disturbed
            else ""
        )
        cpus = f"{measured.cpus} CPUs, {measured.feed_per_cpu:,.0f} each"
        here = f"{measured.feed_per_second:,.0f}{passes} here ({cpus}, from {where}{load})"
        if not self.host_cpus:
            each = f"{self.feed_per_second:,.0f} from {whose}, if each reads as fast as this machine: "
            return here if self.hosts == 1 else each + here
        each = " each" if self.hosts > 1 else ""
        vcpus = f"{self.host_cpus} vCPUs{each}"
        return f"{self.feed_per_second:,.0f} from {whose} ({vcpus}), if the rate grows with the CPUs: {here}"

    @property
    def passed(self) -> bool:
        """Whether the training step fits, or on a GPU may fit, and `broken` is empty."""
        return self.verdict in PASSING and not self.broken

    @property
    def is_undecided(self) -> bool:
        """Whether it is unknown if the training step fits, because the compiler did not finish."""
        return self.verdict in _UNDECIDED

    @property
    def verdict_text(self) -> str:
        """The verdict in words. It is `refused` if the training step fits or may fit, but `broken` is not empty."""
        return "refused" if self.verdict in PASSING and self.broken else self.verdict.replace("_", " ")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why the training run did not pass."""
        if self.verdict in PASSING:
            return self.broken
        place = ", ".join(part for part in (self.layer and f"layer {self.layer!r}", self.source) if part)
        return (
            f"the training step {VERDICTS[self.verdict]} on {self.label}: {self.reason}"
            + (f" ({place})" if place else ""),
            *self.broken,
        )

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if not self.passed:
            return "; ".join(self.reasons)
        price = f"; {self.cost.run}" if self.cost else ""
        used = percent(self.peak_bytes / self.capacity_bytes)
        if self.verdict == MAY_FIT:
            return (
                f"may fit {self.label}: weights, optimizer state and a batch take {used} of its memory; activations "
                f"and the time are unknown{price}"
            )
        if self.epoch is None:
            return f"fits {self.label} ({used} of its memory); time {self.untimed}{price}"
        return f"fits {self.label} ({used} of its memory), {self.epoch.text} per epoch{price}"


def cheapest(machines: Sequence[MachineReport]) -> MachineReport | None:
    """Return the cheapest machine that passed, or None if none did.

    If several are equally cheap, or prices are unknown, return the fastest of them.
    """
    passed = [report for report in machines if report.passed]
    return min(passed, key=lambda report: (report.usd_per_run, report.epoch_seconds), default=None)


@dataclasses.dataclass(frozen=True)
class PreflightReport(JsonFile, name=PREFLIGHT_FILE, what="a preflight report", step="preflight_training"):
    """A preflight of a training run on one or several machines, as saved in `preflight.json`.

    Attributes:
        model: Name of the model.
        model_parameters: Hyper-parameters of the model.
        backend: `jax` or `tensorflow`.
        precision: Keras dtype policy.
        compiler: Versions of libtpu, JAX and Keras.
        data: Data set of the training run.
        machines: Report of each machine, in the requested order.
        advice: Advice on which of several machines to use.
        run: Name of the run. Empty if unknown.
        created: Date and time of the report.
        learning_rate: Peak learning rate for one replica, or 0 if the model could not be compiled.
    """

    model: str
    model_parameters: Mapping[str, Any]
    backend: str
    precision: str
    compiler: Mapping[str, str]
    data: DataFacts
    machines: tuple[MachineReport, ...]
    advice: tuple[str, ...]
    run: str = ""
    created: str = ""
    learning_rate: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `preflight.json`."""
        return super().as_dict() | {"machines": [machine.as_dict() for machine in self.machines]}

    @property
    def undecided(self) -> tuple[MachineReport, ...]:
        """The machines whose compilation did not finish. If there are any, a comparison is incomplete."""
        return tuple(machine for machine in self.machines if machine.is_undecided)

    @property
    def best(self) -> MachineReport | None:
        """The `cheapest` machine that passed, or None if none did."""
        return cheapest(self.machines)

    def footprint(self, machine: MachineReport) -> Footprint | None:
        """Return memory, step time and price of the training run on a machine of the report.

        Return None if the training step does not fit, or its time is unknown.
        """
        if machine.verdict != FITS or machine.step is None:
            return None
        cost = machine.cost
        return Footprint(
            machine=machine.machine,
            region=machine.region,
            spot=machine.spot,
            num_examples=self.data.num_examples,
            num_validation=self.data.num_validation,
            epochs=machine.epochs,
            global_batch=machine.global_batch,
            parameters=machine.parameters,
            step_ms=machine.step.compiler_ms,  # Comparable with footprints from before the receipts.
            peak_bytes=machine.peak_bytes,
            capacity_bytes=machine.capacity_bytes,
            usd_per_hour=cost.usd_per_hour if cost else 0.0,
            compiler=self.compiler,
            target=cost.target if cost else "",
            price_factor=cost.factor if cost else 1.0,
        )

    def prediction(self, machine: MachineReport) -> Prediction | None:
        """Return predicted times, memory and price for a machine of the report, to compare with measurements of a run.

        Return None if the training step does not fit, or its time is unknown.
        """
        step = machine.step
        epoch = machine.epoch
        cost = machine.cost
        if machine.verdict != FITS or step is None or epoch is None:
            return None
        slice_ = load_catalogue().find(machine.machine)
        return Prediction(
            program=machine.program,
            machine=machine.machine,
            device=slice_.generation.device_kind,
            devices=slice_.devices,
            hosts=slice_.hosts,
            step_ms=step.total_ms,
            low_ms=step.low_ms,
            high_ms=step.high_ms,
            compiler_ms=step.compiler_ms,
            mxu_utilization=step.mxu_utilization,
            peak_bytes=machine.peak_bytes,
            seconds=machine.epochs * epoch.seconds,
            low_seconds=machine.epochs * epoch.low_seconds,
            high_seconds=machine.epochs * epoch.high_seconds,
            usd_per_hour=cost.usd_per_hour if cost else 0.0,
            price_source=f"{cost.kind}, in {cost.region} ({cost.date})" if cost else "",
            basis=step.basis,
        )

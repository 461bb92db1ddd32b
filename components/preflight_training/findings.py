"""What preflight finds: the content of `preflight.json`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from tpu_components.core.base import typed_values
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.preflight_training.accuracy import Accuracy
from tpu_components.preflight_training.compiler import FITS
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.formatting import (
    VERDICTS,
    dollars,
    dollars_interval,
    percent,
    time,
    time_interval,
)
from tpu_components.preflight_training.largest_batch import LargestBatch


@dataclasses.dataclass(frozen=True)
class Cost:
    """Prices, in US dollars, of a whole slice; see `machine_spec.Price`.

    Attributes:
        usd_per_hour: Price of the slice.
        usd_per_epoch: For the time of an epoch.
        usd_per_run: Expected for a run: for the time of all epochs. `LEFT_OUT` says what comes on top.
        low_usd_per_run: The same, if steps take the least that is expected of them.
        high_usd_per_run: The same, if they take the most.
        region: Region in which it is paid.
        kind: Whose price it is, and for what.
        source: Place where it is published.
        date: When it was.
        target: Platform that trains, whose price it is; empty in older files, which have Compute Engine's.
        factor: The price, as a multiple of Compute Engine's.
        most_usd_per_run: For the machine until the training is stopped; None in older files, which do not tell.
    """

    usd_per_hour: float
    usd_per_epoch: float
    usd_per_run: float
    low_usd_per_run: float
    high_usd_per_run: float
    region: str
    kind: str
    source: str
    date: str
    target: str = ""
    factor: float = 1.0
    most_usd_per_run: float | None = None

    @property
    def at_most(self) -> str:
        """The most that a run may cost, in words; empty in older files."""
        return "" if self.most_usd_per_run is None else f", at most {dollars(self.most_usd_per_run)}"

    @property
    def run(self) -> str:
        """The price of a run: what is expected, the most that it may be, and whose price that is."""
        return f"{say(self)} a run expected, plus start-up{self.at_most}, at {billed_by(self.target)}"


# What a price leaves out.
LEFT_OUT = (
    "expected is the time of the epochs: start-up, compilation, validation and checkpoints are paid for too; "
    "at most is the machine until its training is stopped; both leave out the other steps, disks, storage and network"
)
# What older files say of a figure stands for the ends of its interval too.
_INTERVALS = {
    "step": ("compute_ms", "low_ms", "high_ms"),
    "epoch": ("seconds", "low_seconds", "high_seconds"),
    "cost": ("usd_per_run", "low_usd_per_run", "high_usd_per_run"),
}


@dataclasses.dataclass(frozen=True)
class MachineReport:
    """The findings about training on one machine.

    Attributes:
        machine: Short name.
        region: Region in which it is paid for; empty is the cheapest that trains on it.
        spot: Whether as a spot machine.
        machine_type: Vertex's name of a host.
        chips: Number of chips of the slice.
        devices: Replicas.
        hosts: Virtual machines.
        verdict: `fits`, `does_not_fit`, `does_not_compile`, `timed_out`, `out_of_memory` (of this machine), `crashed`.
        reason: Why, if it does not fit.
        layer: That the reason names, if any.
        source: `file:line` of the model that the reason names, if any.
        compile_seconds: Seconds of the compilation, when it was done.
        cached: Whether it was done before.
        batch_size_per_replica: Examples per replica and step.
        global_batch: Batch of all replicas together.
        parameters: Trainable values.
        peak_bytes: The most memory in use on a device at any time, or what it would take, where it does not fit.
        capacity_bytes: Bytes that a program may use.
        largest_batch: Per replica; None where it is not known.
        step: Time of a step.
        epoch: Time of an epoch.
        epochs: Number of epochs of the run.
        timeout_seconds: When the training is to be stopped; 0 where no time is known.
        host_cpus: Number of CPUs of the host that feeds the devices; 0 where that is not published.
        feed_per_second: Examples per second that it is taken to feed.
        stage: Stage of the training whose step was compiled, as `2 of 2`; empty for a training without stages.
        is_resident: Whether the training split lies in the devices' memory, and the host gives an epoch's order alone.
        accuracy: Distance of its generation's estimates from published step times.
        cost: None where no trustworthy price is known.
        layers: Times of the layers in a step, the longest first.
        host_calls: Operations that call the host in every step.
        unknown_loops: Loops whose number of trips could not be read, counted once.
        broken: Budgets that are not kept, in words.
        advice: In words, the most important first.
        worth_it: Whether a TPU is worth its price for this model and data.
        has_namesakes: Whether others of that name are compared with it.
        target: Platform that trains, where several are compared; else empty.
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
    step: StepTime | None
    epoch: EpochTime | None
    epochs: int
    cost: Cost | None
    layers: tuple[LayerTime, ...]
    host_calls: tuple[str, ...]
    unknown_loops: int
    broken: tuple[str, ...]
    accuracy: Accuracy
    advice: tuple[str, ...] = ()
    worth_it: bool = True
    has_namesakes: bool = False
    timeout_seconds: int = 0
    host_cpus: int = 0
    feed_per_second: float = 0.0
    stage: str = ""
    is_resident: bool = False
    target: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return every field, and what follows from them: `passed`, `reasons` and `summary`."""
        derived = {"passed": self.passed, "reasons": self.reasons, "summary": self.summary}
        return dataclasses.asdict(self) | derived

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report of a machine from a file of any age, or from a summary, which leaves the layers out."""
        unknown = {"factor": 1.0, "low": 1.0, "high": 1.0, "steps": 0, "programs": 0}
        intervals = {
            part: {name: raw[part].get(expected) for name in names} | raw[part]
            for part, (expected, *names) in _INTERVALS.items()
            if isinstance(raw.get(part), dict)
        }
        return {"region": "", "spot": False, "layers": [], "accuracy": unknown, **raw, **intervals}

    @property
    def label(self) -> str:
        """Its name, and what tells it from others of that name."""
        return label_of(self.machine, self.region, self.spot, self.has_namesakes, self.target)

    def fed_by(self, measured: HostRate) -> str:
        """Say who feeds a machine how much, and what is assumed of a host that was not measured."""
        whose = f"its {self.hosts} hosts" if self.hosts > 1 else "its host"
        if self.is_resident:
            return f"from the devices' own memory, their order at {self.feed_per_second:,.0f} by {whose}"
        where = "memory" if measured.in_memory else "files"
        low, high = (f"{times * measured.feed_per_second:,.0f}" for times in measured.spread)
        passes = f" ({low}–{high})" if low != high else ""
        here = (
            f"{measured.feed_per_second:,.0f}{passes} here ({measured.cpus} CPUs of {measured.feed_per_cpu:,.0f}, from "
            f"{where})"
        )
        if not self.host_cpus:
            each = f"{self.feed_per_second:,.0f} by {whose}, if each feeds what this machine does: "
            return here if self.hosts == 1 else each + here
        each = " each" if self.hosts > 1 else ""
        cpus = f"{self.host_cpus} vCPUs{each}"
        return f"{self.feed_per_second:,.0f} by {whose} ({cpus}), if that grows with the CPUs: {here}"

    @property
    def passed(self) -> bool:
        """Whether it fits and keeps every budget."""
        return self.verdict == FITS and not self.broken

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why it did not pass."""
        if self.verdict == FITS:
            return self.broken
        place = ", ".join(part for part in (self.layer and f"layer {self.layer!r}", self.source) if part)
        return (
            f"the training step {VERDICTS[self.verdict]} on {self.label}: {self.reason}"
            + (f" ({place})" if place else ""),
            *self.broken,
        )

    @property
    def summary(self) -> str:
        """All of it in a sentence."""
        if not self.passed or self.epoch is None:
            return "; ".join(self.reasons)
        price = f"; {self.cost.run}" if self.cost else ""
        return (
            f"fits {self.label} ({percent(self.peak_bytes / self.capacity_bytes)} of its memory), "
            f"{say(self.epoch)} an epoch{price}"
        )


def interval_of(figure: StepTime | EpochTime | Cost) -> str:
    """State the 90 % interval in the figure's own unit; empty if both ends print the same.

    Example:
        >>> interval_of(EpochTime(49, 0.4, 0.41, 1000.0, 0.0, 0.3, 0.6))
        '300–600'
    """
    if isinstance(figure, Cost):
        return dollars_interval(figure.low_usd_per_run, figure.high_usd_per_run)
    if isinstance(figure, EpochTime):
        return time_interval(figure.low_seconds, figure.high_seconds, figure.seconds)
    return time_interval(figure.low_ms / 1e3, figure.high_ms / 1e3, figure.total_ms / 1e3)


def say(figure: StepTime | EpochTime | Cost) -> str:
    """Return a step's or an epoch's time, or a run's price, and the interval that is meant to hold nine of ten.

    Example:
        >>> say(EpochTime(49, 0.4, 0.41, 1000.0, 0.0, 0.3, 0.6))
        '410 ms (300–600)'
    """
    if isinstance(figure, Cost):
        words = dollars(figure.usd_per_run)
    else:
        words = time(figure.seconds if isinstance(figure, EpochTime) else figure.total_ms / 1e3)
    interval = interval_of(figure)
    return f"{words} ({interval})" if interval else words


def label_of(machine: str, region: str, spot: bool, has_namesakes: bool, target: str = "") -> str:
    """Return what to call a machine; `target` is told where several are compared."""
    place = (region, "spot" * spot) if has_namesakes else ()
    return " ".join(filter(None, (machine, *place, target)))


def cheapest(machines: Sequence[MachineReport]) -> MachineReport | None:
    """Return the cheapest machine that passed; among equals, and where no price is known, the fastest."""

    def order(report: MachineReport) -> tuple[float, float]:
        return report.cost.usd_per_run if report.cost else math.inf, report.epoch.seconds if report.epoch else math.inf

    return min((report for report in machines if report.passed), key=order, default=None)


@dataclasses.dataclass(frozen=True)
class PreflightReport(JsonFile, name=PREFLIGHT_FILE, what="a preflight report", step="preflight_training"):
    """The content of `preflight.json`.

    Attributes:
        model: Its name.
        model_parameters: Its hyper-parameters.
        backend: `jax` or `tensorflow`.
        precision: The Keras dtype policy.
        compiler: Versions of libtpu, JAX and Keras.
        data: Data that is to be trained on.
        machines: One report each, in the order asked for.
        advice: Sentences on which of several machines to take.
        run: Name of the run that it was made for; empty if unknown.
        created: When it was made.
        learning_rate: Peak learning rate of the training, for one replica.
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
        """Return what the file holds: each machine with what follows from its figures."""
        return super().as_dict() | {"machines": [machine.as_dict() for machine in self.machines]}

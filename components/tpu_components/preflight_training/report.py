"""Presents the findings of preflight as text for the terminal, as a JSON file, and as an HTML page.

The page needs no network access and no scripts.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.formatting import byte_size, decimals, dollars, number, percent, time
from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
from tpu_components.core.examples.interface import REGRESSION
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages import blocks as page_blocks
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Block, Cell, Fields, Figure, Section, Sentences, Table, cut
from tpu_components.preflight_training.compiling.outcome import FITS, MAY_FIT
from tpu_components.preflight_training.data import DataFacts
from tpu_components.preflight_training.estimate import INTERVALS, MUCH_GUESSED, EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.findings import LEFT_OUT, MachineReport, PreflightReport
from tpu_components.preflight_training.largest_batch import LargestBatch

_UNKNOWN = "?"
_WIDTH = 110
_TOP_LAYERS = 8
_NAME_WIDTH = 30
_NOTHING = "–"
_TIMES_ORIGIN = (
    "computed from the compiler's schedule and the chip's clock rate, but never shorter than the chip needs for its "
    "arithmetic and memory traffic. Communication is an upper bound. Nothing was run on a TPU. "
    f"{INTERVALS}"
)
_TENSORFLOW_ORIGIN = (
    "TensorFlow jobs use an older compiler than this one, so all values are estimates. The time to sum gradients over "
    "the replicas is computed by a formula"
)
_NO_ESTIMATE = (
    " of the computation time is derived from the bytes that are moved, because the compiler has no estimate for it"
)
_UNKNOWN_LINKS = "? communication is left out, because the speed of the links between chips is unknown"
_LARGEST_STAGE = "the stage with the most trainable parameters; the other stages are assumed to take as long"
_COMPARISON = {
    "machine": "<",
    "verdict": "<",
    "GiB": ">",
    "batch": ">",
    "step": ">",
    "comm": ">",
    "MXU": ">",
    "epoch": ">",
    "wait": ">",
    "$/hour": ">",
    "$/run": ">",
    "at most": ">",
}
_COMPARISON_NOTES = [
    ("GiB", "memory of a device: peak use / available to a program"),
    (
        "batch",
        "largest batch per replica that fits; ≤ marks an upper bound. Set preflight.find_largest_batch to find the "
        "exact number",
    ),
    ("step", "time of a step in ms; comm: upper bound of the communication between replicas in it"),
    ("MXU", "use of the matrix units while the device computes"),
    ("epoch", "time of an epoch in seconds; wait: share of it in which the device waits for data"),
    ("$/run", "expected price of a run, without start-up; at most: price if it runs until its time limit"),
]
_LAYERS = {
    "layer": "<",
    "ms": ">",
    "share": ">",
    "MXU": ">",
    "padding ms": ">",
    "dimensions that do not fill a tile": "<",
}


def write_report(report: PreflightReport, directory: Path) -> None:
    """Write `preflight.json` and `preflight.html` into a folder that exists.

    The JSON file has every field of the report, and `passed`, `reasons` and `summary` for each machine. The page shows
    names and reasons unchanged, whatever characters they contain.

    Raises:
        ValueError: If a number in the report is not finite.
    """
    report.save(directory)
    storage.write_bytes(directory / PREFLIGHT_REPORT_FILE, _render(report).encode())


def as_text(report: PreflightReport) -> str:
    """Return the report as text of at most 110 columns.

    For one machine, the text contains the findings about it. For several machines, it contains a comparison and advice.
    """
    machines = report.machines
    if len(machines) == 1:
        text = _MachineText(report, machines[0])
        verdict = machines[0].verdict_text
        on = f" on {machines[0].machine}"
        blocks = text.describe(is_short=True)
    else:
        verdict = _tally(report)
        on = ""
        blocks = [*_compare(report), Sentences(_reasons(report)), Sentences(report.advice), _advice(report)]
    size = f", {report.machines[0].batch_size_per_replica:,} examples per replica" if len(report.machines) > 1 else ""
    headline = f"{report.model}{on} ({report.backend}, {report.precision}{size}): {verdict}"
    return page_blocks.as_text([headline, *blocks, Fields(_origins(report))], _WIDTH)


def _render(report: PreflightReport) -> str:
    """Return the report as an HTML page, with a foldable section for each machine."""
    machines = report.machines
    shown = _MachineText(report, report.best or machines[0])
    title = f"Preflight: {report.model} on {', '.join(machine.machine for machine in machines)}"
    batches = dict.fromkeys(f"{machine.batch_size_per_replica:,}" for machine in machines)
    subtitle = [
        report.created,
        f"learning rate {report.learning_rate:g}" if report.learning_rate else "",
        f"batch {' and '.join(batches)} per replica",
    ]
    blocks: list[Block] = [] if len(machines) == 1 else [_advice(report), Section("Machines", _compare(report))]
    return page.render(
        f"{report.run}: {title}" if report.run else title,
        [
            *blocks,
            *(
                Section(each.label, _MachineText(report, each).describe(), is_folded=each is not shown.machine)
                for each in machines
            ),
            Section("Data", [Fields(_data(report.data))]),
            Section("How these figures were made", [Fields(_origins(report))]),
        ],
        head=[_decision(report), *shown.figures(), shown.model()],
        subtitle=", ".join(filter(None, subtitle)),
    )


def _decision(report: PreflightReport) -> Sentences:
    """Return the verdict about all machines, its reasons, and the advice on which machine to use."""
    best, (first, *others), texts = report.best, report.machines, _reasons(report)
    if others:
        title = _tally(report)
        if best and best.epoch and not report.undecided:
            title += f": take {best.label}"
        texts = [*report.advice, *texts]
    else:
        title = first.verdict_text
        compiled = f"The training step compiles for {first.machine}, fits its memory and keeps every budget."
        texts = texts or [compiled if first.verdict == FITS else f"It {first.summary}."]
    if best and not best.worth_it:
        texts.append("A TPU is hardly worth its price for this model and data. See the advice.")
    passed = None if report.undecided and best else best is not None
    return Sentences(texts, title[0].upper() + title[1:], passed)


def _reasons(report: PreflightReport) -> list[str]:
    return [reason for machine in report.machines for reason in machine.reasons]


@dataclasses.dataclass(frozen=True)
class _MachineText:
    """The parts of a report that are about one machine."""

    report: PreflightReport
    machine: MachineReport

    def figures(self) -> list[Block]:
        """Return the headline figures: step time, epoch time, price, memory, waiting and utilization.

        Return [] if no time is known.
        """
        machine = self.machine
        step = machine.step
        epoch = machine.epoch
        cost = machine.cost
        if step is None or epoch is None:
            return []
        price = ["no trustworthy price is known"]
        if cost:
            price = [f"{machine.epochs:,} epochs expected, plus start-up{cost.at_most}", billed_by(cost.target)]
        size = f"{byte_size(machine.peak_bytes)} of {byte_size(machine.capacity_bytes)} per device"
        waiting = "doubtful" if epoch.host_wait > 0.5 else ""
        figures = [
            Figure("Step", step.text, [_parts(step), *([step.basis_text] if step.basis else [])]),
            Figure("Epoch", epoch.text, [f"{epoch.steps:,} steps, {time(epoch.device_seconds)} on the device"]),
            Figure("Price of a run", cost.text if cost else _UNKNOWN, price),
            Figure("Memory", percent(machine.peak_bytes / machine.capacity_bytes), [size]),
            Figure("Device waits", percent(epoch.host_wait), ["of an epoch for data"], waiting),
            Figure("Matrix units", percent(step.mxu_utilization), ["used while the device computes"]),
        ]
        return [figures]

    def model(self) -> Fields:
        """Return fields that describe the model, and the machine for which the model was compiled."""
        report, machine = self.report, self.machine
        chips, devices, hosts = machine.chips, machine.devices, machine.hosts
        parameters = [f"{name} {value}" for name, value in report.model_parameters.items()]
        rows = [
            ("model", ", ".join([report.model, *parameters])),
            ("trainable values", f"{machine.parameters:,}" if machine.parameters else ""),
            ("backend, precision", f"{report.backend}, {report.precision}"),
            ("compiled for", f"{machine.label}: chips {chips}, replicas {devices}, hosts {hosts}"),
        ]
        return Fields(rows)

    def describe(self, is_short: bool = False) -> list[Block]:
        """Return all findings about the machine.

        The short form lists only the eight longest layers, and leaves out the table that divides the step time into
        matrix products, their padding, communication and the rest.
        """
        machine = self.machine
        return [
            *([machine.reason] if machine.reason else []),
            Sentences(machine.broken),
            Fields(self._fields()),
            *([self._step_parts(machine.step)] if machine.step and not is_short else []),
            *_layers(machine.layers, is_short),
            Sentences(machine.advice),
        ]

    def _fields(self) -> list[tuple[str, str]]:
        machine = self.machine
        step = machine.step
        epoch = machine.epoch
        size = f"{byte_size(machine.capacity_bytes)} per device"
        if machine.peak_bytes:
            bound = "at least " if machine.verdict == MAY_FIT else ""
            share = percent(machine.peak_bytes / machine.capacity_bytes)
            size = f"{bound}{byte_size(machine.peak_bytes)} of {size} ({share})"
        batch = f"{machine.batch_size_per_replica:,} per replica, {machine.global_batch:,} in total"
        return [
            ("layer", machine.layer),
            ("source", machine.source),
            ("stage", f"{machine.stage}, {_LARGEST_STAGE}" if machine.stage else ""),
            ("memory", size),
            ("batch", f"{batch}; {_most_that_fit(machine.largest_batch)}"),
            *(self._times(step, epoch) if step and epoch else self._untimed()),
            ("guessed", percent(step.guessed_share) + _NO_ESTIMATE if step else ""),
            ("host calls", ", ".join(machine.host_calls)),
            ("not counted", f"the time of {', '.join(machine.unestimated)}" if machine.unestimated else ""),
            ("loops", f"{machine.unknown_loops} of unknown length, counted once" if machine.unknown_loops else ""),
            ("compilation", f"{machine.compile_seconds:,.1f} s{', cached' if machine.cached else ''}"),
        ]

    def _untimed(self) -> list[tuple[str, str]]:
        """Return the reason why the time is unknown, and the price per hour if it is known."""
        cost = self.machine.cost
        return [
            ("time", self.machine.untimed),
            ("price", f"{cost.run}; in {cost.region} ({cost.date})" if cost else ""),
        ]

    def _times(self, step: StepTime, epoch: EpochTime) -> list[tuple[str, str]]:
        machine = self.machine
        cost = machine.cost
        price = _UNKNOWN
        fed = machine.fed_by(self.report.data.host)
        hours = machine.timeout_seconds / 3600
        if cost:
            price = (
                f"{cost.run}; {dollars(cost.usd_per_hour)} per hour in {cost.region} ({cost.date}), "
                f"{dollars(cost.usd_per_epoch or 0)} per epoch, {machine.epochs:,} epochs"
            )
        return [
            ("step", f"{step.text} = {_parts(step)}"),
            ("receipts", step.basis_text),
            ("matrix units", f"{percent(step.mxu_utilization)} used while the device computes"),
            ("epoch", f"{epoch.steps:,} steps, {time(epoch.device_seconds)} on the device, {epoch.text} with waiting"),
            (
                "data",
                f"{epoch.needed_per_second:,.0f} examples/s needed, fed {fed}: {percent(epoch.host_wait)} waiting",
            ),
            ("timeout", f"training is stopped after {hours:g} h" if hours else ""),
            ("price", price),
        ]

    def _step_parts(self, step: StepTime) -> Table:
        """Return a table of a step's time by part: matrix products, their padding, the rest, and communication."""
        layers = self.machine.layers
        padding = sum(layer.padding_ms for layer in layers)
        products = sum(layer.ms for layer in layers if layer.mxu_utilization is not None) - padding
        parts = {
            "layers with matrix products": products,
            "padding of their tiles": padding,
            "everything else": sum(layer.ms for layer in layers) - products - padding,
            "communication, at most": step.communication_ms,
        }
        whole = step.compiler_ms or 1
        rows = [
            (name, _milliseconds(ms), _UNKNOWN if ms is None else Cell(percent(ms / whole), share=ms / whole))
            for name, ms in parts.items()
        ]
        return Table({"part of a step": "<", "time": ">", "share": ">"}, rows)

    def row(self, fastest: float, longest: float) -> tuple[str | Cell, ...]:
        """Return the machine's row in the table that compares machines.

        Args:
            fastest: Shortest time of an epoch on a machine that passed, in seconds. A machine with this time is marked.
            longest: Longest time of an epoch on any machine, in seconds. The bars of epoch times are relative to it.
        """
        machine = self.machine
        step = machine.step
        epoch = machine.epoch
        cost = machine.cost
        peak = f"{machine.peak_bytes / 2**30:.2f}" if machine.peak_bytes else _UNKNOWN
        peak = f"≥{peak}" if machine.verdict == MAY_FIT else peak
        row = (
            machine.label,
            Cell(machine.verdict_text, "good" if machine.passed else "doubtful" if machine.is_undecided else "bad"),
            Cell(f"{peak}/{machine.capacity_bytes / 2**30:.2f}", share=machine.peak_bytes / machine.capacity_bytes),
            _largest(machine.largest_batch),
        )
        prices = (cost.usd_per_hour, cost.usd_per_run, cost.most_usd_per_run) if cost else (None,) * 3
        unknown = _UNKNOWN if step else _NOTHING
        hourly, run, most = (unknown if usd is None else dollars(usd, sign="") for usd in prices)
        if step is None or epoch is None:
            return (*row, *(_NOTHING,) * (len(_COMPARISON) - len(row) - len(prices)), hourly, run, most)
        is_fastest = machine.passed and epoch.seconds == fastest
        return (
            *row,
            number(step.total_ms),
            _UNKNOWN if step.communication_ms is None else number(step.communication_ms),
            percent(step.mxu_utilization),
            Cell(number(epoch.seconds), "best" if is_fastest else "", epoch.seconds / (longest or 1)),
            percent(epoch.host_wait),
            hourly,
            Cell(run, "best" if cost and machine is self.report.best else ""),
            most,
        )


def _data(data: DataFacts) -> list[tuple[str, str]]:
    host = data.host
    rates = []
    if host:
        where = "memory" if host.in_memory else "the files"
        rates = [
            ("read from the files", f"{host.read_per_second:,.0f} examples/s"),
            (f"fed to training, from {where}", f"{host.feed_per_second:,.0f} examples/s"),
            ("CPUs of this machine", f"{host.cpus}, each feeds {host.feed_per_cpu:,.0f} examples/s"),
            ("other processes used", f"{percent(host.load)} of this machine at the same time" if host.load else ""),
        ]
    return [
        ("examples", f"{data.num_examples:,}"),
        ("shape", " × ".join(map(str, data.interface.input.shape))),
        ("targets" if data.interface.task_name == REGRESSION else "classes", f"{data.interface.num_classes:,}"),
        ("decoded", byte_size(data.decoded_bytes)),
        *rates,
    ]


def _milliseconds(ms: float | None) -> str:
    return _UNKNOWN if ms is None else time(ms / 1e3)


def _most_that_fit(batch: LargestBatch | None) -> str:
    if batch is None:
        return "the largest batch that fits is unknown"
    if batch.is_upper_bound:
        return f"at most {batch.size:,} per replica fit"
    return f"largest that fits: {batch.text} per replica"


def _largest(batch: LargestBatch | None) -> str:
    return batch.text if batch else _UNKNOWN


def _tally(report: PreflightReport) -> str:
    passed = sum(machine.passed for machine in report.machines)
    undecided = len(report.undecided)
    tally = f"{passed or 'none'} of {len(report.machines)} machines {'pass' if passed > 1 else 'passes'}"
    return f"{tally}, {undecided} {'were' if undecided > 1 else 'was'} not compiled" if undecided else tally


def _advice(report: PreflightReport) -> Sentences:
    """Return the advice about the best machine, or about all machines if none passed."""
    if best := report.best:
        return Sentences(best.advice, f"On {best.label}:")
    return Sentences(tuple(dict.fromkeys(words for machine in report.machines for words in machine.advice)))


def _origins(report: PreflightReport) -> list[tuple[str, str]]:
    """Return the origin of the report's numbers, and the costs that they exclude."""
    estimated = [machine for machine in report.machines if machine.step]
    # Receipts of the project's runs replace the published step times.
    accuracies = [
        f"{machine.label}: {machine.step.basis_text}" if machine.step and machine.step.basis else machine.accuracy.text
        for machine in estimated
    ]
    prices = [
        f"{machine.cost.kind} ({machine.cost.date}); {machine.cost.source}"
        if machine.cost
        else "? no trustworthy price is known"
        for machine in report.machines
        if machine.step or machine.cost
    ]
    has_unknown = any(machine.step and machine.step.communication_ms is None for machine in estimated)
    return [
        ("compiler", ", ".join(f"{name} {version}" for name, version in report.compiler.items())),
        ("data", report.data.assumed),
        *(("prices", price) for price in dict.fromkeys(prices)),
        ("times", _TIMES_ORIGIN if estimated else ""),
        *(("", words) for words in dict.fromkeys(accuracies)),
        ("", LEFT_OUT if any(machine.cost for machine in estimated) else ""),
        ("", _UNKNOWN_LINKS if has_unknown else ""),
        ("backend", _TENSORFLOW_ORIGIN if report.backend == "tensorflow" else ""),
    ]


def _parts(step: StepTime) -> str:
    guessed = f", {percent(step.guessed_share)} guessed" if step.guessed_share > MUCH_GUESSED else ""
    parts = f"{_milliseconds(step.compute_ms)} compute{guessed} + {_milliseconds(step.communication_ms)} communication"
    return f"{number(step.factor)} × ({parts})" if step.basis else parts


def _layers(layers: Sequence[LayerTime], is_short: bool) -> list[Block]:
    """Return a table of the layers' times.

    The short form has the eight longest layers and the share of the rest.
    """
    if not layers:
        return []
    places = decimals(layers[0].ms)
    rows = [
        (
            cut(layer.name, _NAME_WIDTH) if is_short else layer.name,
            Cell(f"{layer.ms:,.{places}f}", share=layer.ms / (layers[0].ms or 1)),
            percent(layer.share),
            _NOTHING if layer.mxu_utilization is None else percent(layer.mxu_utilization),
            f"{layer.padding_ms:,.{places}f}" if layer.padding_ms else _NOTHING,
            "; ".join(layer.notes),
        )
        for layer in layers[: _TOP_LAYERS if is_short else None]
    ]
    rest = layers[len(rows) :]
    more = [f"and {len(rest)} more, {percent(sum(layer.share for layer in rest))} of the computation"] if rest else []
    return [Table(_LAYERS, rows), *more]


def _compare(report: PreflightReport) -> list[Block]:
    """Return a table of machines, and the meaning of its columns."""
    machines = report.machines
    fastest = min((machine.epoch_seconds for machine in machines if machine.passed), default=0.0)
    longest = max((machine.epoch.seconds for machine in machines if machine.epoch), default=0.0)
    rows = [_MachineText(report, machine).row(fastest, longest) for machine in machines]
    return [Table(_COMPARISON, rows), Fields(_COMPARISON_NOTES)]

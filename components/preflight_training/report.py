"""What preflight found: words for the terminal, a JSON file, and a page that needs no network and no script."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.terminal import lay_out
from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import billed_by, load_catalogue
from tpu_components.core.pages import page
from tpu_components.preflight_training.accuracy import HELD_OUT, INTERVALS
from tpu_components.preflight_training.compiler import FITS
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.findings import (
    LEFT_OUT,
    Cost,
    MachineReport,
    PreflightReport,
    cheapest,
    interval_of,
    say,
)
from tpu_components.preflight_training.formatting import UNKNOWN, decimals, dollars, memory, number, percent, time
from tpu_components.preflight_training.largest_batch import LargestBatch

_WIDTH = 110
_TOP_LAYERS = 8
_NAME_WIDTH = 30
_NOTHING = "–"
_TIMES_ORIGIN = (
    "the compiler's schedule at the chip's clock, communication as an upper bound, both corrected by published step "
    f"times; nothing was run on a TPU. {INTERVALS}"
)
_TENSORFLOW_ORIGIN = (
    "TensorFlow jobs run an older compiler than this one: figures are estimates, and the sum over replicas is added by "
    "rule"
)
_LARGEST_STAGE = "in which the most of the model learns; the others are counted as if they took as long"
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
    ("GiB", "memory of a device: the peak, of what a program may use"),
    ("batch", "the most examples per replica that fit; ≈ is estimated from two sizes"),
    ("step", "ms; comm: the part of it, at most, that is communication between replicas"),
    ("MXU", "use of the matrix units while the device computes"),
    ("epoch", "s; wait: the share of it in which the device waits for data"),
    ("$/run", "expected, plus start-up; at most: until the training is stopped"),
]
_LAYERS = {"layer": "<", "ms": ">", "share": ">", "MXU": ">", "padding ms": ">", "dimensions that fill no tile": "<"}


def write_report(report: PreflightReport, directory: Path) -> None:
    """Write `preflight.json` and `preflight.html` into a folder that exists.

    The JSON file has every field of the report, and `passed`, `reasons` and `summary` for each machine. The page shows
    names and reasons as they are, whatever characters they hold.

    Raises:
        ValueError: If a figure is not finite.
    """
    report.save(directory)
    storage.write_bytes(directory / PREFLIGHT_REPORT_FILE, _render(report).encode())


def as_text(report: PreflightReport) -> str:
    """Show one machine in full, or several side by side and advice about the best, in at most 110 columns."""
    blocks = [textwrap.wrap(_headline(report), _WIDTH)]
    if len(report.machines) == 1:
        blocks += _describe(report.machines[0], report.data)
    else:
        blocks += _compare(report)
    blocks.append(_fields(_origins(report)))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _render(report: PreflightReport) -> str:
    best = cheapest(report.machines)
    template = page.environment(Path(__file__).parent, **_FORMATS).get_template("preflight.html.jinja")
    return template.render(
        report=report,
        best=best,
        shown=best or report.machines[0],
        tally=_tally(report.machines),
        advice=_advice(report.machines),
        origins=_origins(report),
        largest_stage=_LARGEST_STAGE,
        subtitle=_subtitle(report),
    )


def _subtitle(report: PreflightReport) -> str:
    """Return what tells this report from others of the model."""
    batches = dict.fromkeys(f"{machine.batch_size_per_replica:,}" for machine in report.machines)
    facts = (
        report.created,
        f"learning rate {report.learning_rate:g}" if report.learning_rate else "",
        f"batch {' and '.join(batches)} per replica",
    )
    return ", ".join(filter(None, facts))


def _milliseconds(ms: float | None) -> str:
    return UNKNOWN if ms is None else time(ms / 1e3)


def _within(step: StepTime) -> str:
    return f"{step.low_ms / step.total_ms:.2g}–{step.high_ms / step.total_ms:.2g}"


def _verdict(machine: MachineReport) -> str:
    return "refused" if machine.verdict == FITS and machine.broken else machine.verdict.replace("_", " ")


def _largest(batch: LargestBatch | None) -> str:
    if batch is None:
        return UNKNOWN
    return f"{batch.size:,}" if batch.is_exact else f"≈{batch.size:,}"


def _headline(report: PreflightReport) -> str:
    how = f"{report.backend}, {report.precision}"
    if len(report.machines) == 1:
        return f"{report.model} on {report.machines[0].machine} ({how}): {_verdict(report.machines[0])}"
    return f"{report.model} ({how}): {_tally(report.machines)}"


def _tally(machines: Sequence[MachineReport]) -> str:
    passed = sum(machine.passed for machine in machines)
    return f"{passed or 'none'} of {len(machines)} machines {'pass' if passed > 1 else 'passes'}"


def _advice(machines: Sequence[MachineReport]) -> tuple[str, ...]:
    """Return the advice about the machine to take, or about all of them where none passed."""
    best = cheapest(machines)
    return best.advice if best else tuple(dict.fromkeys(words for machine in machines for words in machine.advice))


def _origins(report: PreflightReport) -> list[tuple[str, str]]:
    """Say what the figures rest on, and what is missing from them."""
    estimated = [machine for machine in report.machines if machine.step]
    prices = dict.fromkeys(
        f"{machine.cost.kind} ({machine.cost.date}); {machine.cost.source}"
        if machine.cost
        else "? no trustworthy price is known"
        for machine in estimated
    )
    origins = [
        ("compiler", ", ".join(f"{name} {version}" for name, version in report.compiler.items())),
        *((("data", report.data.assumed),) if report.data.assumed else ()),
        *(("prices", price) for price in prices),
        ("times", _TIMES_ORIGIN),
        *(("", words) for words in dict.fromkeys(map(_words_of_accuracy, estimated))),
    ]
    if any(machine.cost for machine in estimated):
        origins.append(("", LEFT_OUT))
    if any(machine.step and machine.step.communication_ms is None for machine in estimated):
        origins.append(("", "? communication is left out where no source says how fast the links between chips are"))
    if report.backend == "tensorflow":
        origins.append(("backend", _TENSORFLOW_ORIGIN))
    return origins


def _words_of_accuracy(machine: MachineReport) -> str:
    return machine.accuracy.words(load_catalogue().find(machine.machine).generation.name)


def _words_of_intervals(machines: Sequence[MachineReport]) -> str:
    """State the 90 % interval of each machine, or of several that have the same."""
    labels: dict[str, list[str]] = {}
    for machine in machines:
        if machine.step:
            labels.setdefault(_within(machine.step), []).append(machine.label)
    alike = "; ".join(f"{interval} ({', '.join(names)})" for interval, names in labels.items())
    held = " of ".join(map(str, HELD_OUT))
    return f"so many times step, epoch and price: meant to hold nine of ten, held out {held}: {alike}" if alike else ""


def _describe(machine: MachineReport, data: DataFacts) -> list[list[str]]:
    """Describe a machine, block by block."""
    return [
        [] if machine.verdict == FITS else textwrap.wrap(machine.reason, _WIDTH),
        _bullets(machine.broken),
        _fields(_figures(machine, data)),
        _layer_table(machine.layers),
        _bullets(machine.advice),
    ]


def _figures(machine: MachineReport, data: DataFacts) -> list[tuple[str, str]]:
    batch = f"{machine.batch_size_per_replica:,} per replica, {machine.global_batch:,} in all"
    return [
        ("layer", machine.layer),
        ("source", machine.source),
        ("stage", f"{machine.stage}, {_LARGEST_STAGE}" if machine.stage else ""),
        ("memory", _describe_memory(machine)),
        ("batch", f"{batch}; the most that fit: {_largest(machine.largest_batch)} per replica"),
        *(_times(machine, machine.step, machine.epoch, data.host) if machine.step and machine.epoch else ()),
        *([("price", _describe_cost(machine.cost, machine.epochs))] if machine.epoch else ()),
        ("compilation", f"{machine.compile_seconds:,.1f} s{' when it was done; cached' if machine.cached else ''}"),
    ]


def _times(machine: MachineReport, step: StepTime, epoch: EpochTime, host: HostRate) -> list[tuple[str, str]]:
    parts = f"{_milliseconds(step.compute_ms)} compute + {_milliseconds(step.communication_ms)} communication"
    return [
        ("step", f"{say(step)} = {parts}"),
        ("matrix units", f"{percent(step.mxu_utilization)} used while the device computes"),
        (
            "epoch",
            f"{epoch.steps:,} steps, {time(epoch.device_seconds)} on the device, {say(epoch)} with waiting",
        ),
        (
            "data",
            f"{epoch.needed_per_second:,.0f} examples/s needed, fed {machine.fed_by(host)}: "
            f"{percent(epoch.host_wait)} waiting",
        ),
        (
            "timeout",
            f"training is to be stopped after {machine.timeout_seconds / 3600:g} h" if machine.timeout_seconds else "",
        ),
    ]


def _describe_memory(machine: MachineReport) -> str:
    capacity = f"{memory(machine.capacity_bytes)} a device"
    if not machine.peak_bytes:
        return capacity
    return f"{memory(machine.peak_bytes)} of {capacity} ({percent(machine.peak_bytes / machine.capacity_bytes)})"


def _describe_cost(cost: Cost | None, epochs: int) -> str:
    if cost is None:
        return UNKNOWN
    return (
        f"{cost.run}; {dollars(cost.usd_per_hour)} an hour in {cost.region} ({cost.date}), "
        f"{dollars(cost.usd_per_epoch)} an epoch, {epochs:,} epochs"
    )


def _layer_table(layers: Sequence[LayerTime]) -> list[str]:
    if not layers:
        return []
    places = decimals(layers[0].ms)
    rows = [
        (
            _cut(layer.name, _NAME_WIDTH),
            f"{layer.ms:,.{places}f}",
            percent(layer.share),
            _NOTHING if layer.mxu_utilization is None else percent(layer.mxu_utilization),
            f"{layer.padding_ms:,.{places}f}" if layer.padding_ms else _NOTHING,
            "; ".join(layer.notes),
        )
        for layer in layers[:_TOP_LAYERS]
    ]
    rest = layers[_TOP_LAYERS:]
    more = [f"and {len(rest)} more, {percent(sum(layer.share for layer in rest))} of the computation"] if rest else []
    return _table(_LAYERS, rows) + more


def _compare(report: PreflightReport) -> list[list[str]]:
    """Compare machines, block by block."""
    best = cheapest(report.machines)
    advice = _bullets(_advice(report.machines))
    return [
        _table(_COMPARISON, [_comparison_row(machine) for machine in report.machines], _WIDTH),
        _fields([*_COMPARISON_NOTES, ("within", _words_of_intervals(report.machines))]),
        _bullets([reason for machine in report.machines for reason in machine.reasons]),
        _bullets(report.advice),
        [f"On {best.label}:", *advice] if best and advice else advice,
    ]


def _comparison_row(machine: MachineReport) -> tuple[str, ...]:
    step, epoch, cost = machine.step, machine.epoch, machine.cost
    peak = f"{machine.peak_bytes / 2**30:.2f}" if machine.peak_bytes else UNKNOWN
    row = (
        machine.label,
        _verdict(machine),
        f"{peak}/{machine.capacity_bytes / 2**30:.2f}",
        _largest(machine.largest_batch),
    )
    if step is None or epoch is None:
        return row + (_NOTHING,) * (len(_COMPARISON) - len(row))
    prices = (cost.usd_per_hour, cost.usd_per_run, cost.most_usd_per_run) if cost else (None,) * 3
    return (
        *row,
        number(step.total_ms),
        UNKNOWN if step.communication_ms is None else number(step.communication_ms),
        percent(step.mxu_utilization),
        number(epoch.seconds),
        percent(epoch.host_wait),
        *(UNKNOWN if usd is None else dollars(usd, sign="") for usd in prices),
    )


def _table(columns: Mapping[str, str], rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    return [_cut(line, _WIDTH) for line in lay_out(columns, rows, width)]  # Lines are cut where the terminal ends.


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _fields(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Align names and values; those without a value are left out."""
    width = max(len(name) for name, _ in pairs) + 2
    return [line for name, value in pairs for line in _wrap(value, f"{name:<{width}}", " " * width)]


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in _wrap(sentence, "- ", "  ")]


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


_FORMATS: dict[str, Any] = {
    "billed_by": billed_by,
    "decimals": decimals,
    "dollars": dollars,
    "interval_of": interval_of,
    "largest": _largest,
    "memory": memory,
    "milliseconds": _milliseconds,
    "percent": percent,
    "time": time,
    "verdict": _verdict,
    "within": _within,
}

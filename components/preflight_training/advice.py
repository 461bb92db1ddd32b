"""What the figures mean, in words: what to change, and whether a TPU is worth it at all."""

import math
from collections.abc import Iterator, Sequence

from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training.compiler import DOES_NOT_COMPILE, DOES_NOT_FIT, FITS
from tpu_components.preflight_training.data import DataFacts
from tpu_components.preflight_training.findings import MachineReport, cheapest, say
from tpu_components.preflight_training.hlo import SUBLANES
from tpu_components.preflight_training.params import VERTEX_TASK_SECONDS

_MUCH_WAITING = 0.5
_LITTLE_WAITING = 0.05
_MUCH_PADDING = 0.05  # Of a step, by one layer.
_LOW_UTILIZATION = 0.02
_FEW_PRODUCTS = 0.1  # Of a step's time.
_MUCH_COMMUNICATION = 0.3
_ADVISED_LAYERS = 3
_AS_FAST = 1.1
_LET_IT_BE_RESIDENT = "backend=jax, residency=auto and in_memory_mib of at least that let it lie there"


def advise(report: MachineReport, data: DataFacts) -> tuple[tuple[str, ...], bool]:
    """Give advice about a machine, the most important first, and say whether a TPU is worth its price."""
    if report.verdict != FITS or report.step is None or report.epoch is None:
        return _when_it_fails(report, data), report.verdict not in (DOES_NOT_COMPILE,)
    doubts = list(_doubts(report, data))
    words = [f"A TPU is hardly worth its price here: {'; '.join(doubts)}. Train on a GPU or on CPU."] if doubts else []
    words += [
        *_about_time(report),
        *_about_waiting(report, data),
        *_about_layers(report),
        *_about_batch(report, data),
        *_about_program(report),
    ]
    return tuple(words), not doubts


def _when_it_fails(report: MachineReport, data: DataFacts) -> tuple[str, ...]:
    if report.verdict == DOES_NOT_FIT:
        largest = report.largest_batch
        larger = _with_more_memory(report)
        if largest is None or not largest.size:
            return (f"Not one example fits: take a machine with more memory per device{larger}, or a smaller model.",)
        sure = "compiled" if largest.is_exact else "estimated"
        usable = min(largest.size, _most_of_the_data(report, data))
        if usable < largest.size:
            sure = f"all that the data set has; {largest.size:,} would fit, {sure}"
        return (
            f"Set training.batch_size_per_replica to {usable:,} or less ({sure}), or take a machine with more memory "
            f"per device{larger}.",
        )
    if report.verdict == DOES_NOT_COMPILE:
        return (
            "Replace what the reason names by operations of fixed shape that run on a TPU, or train on a GPU or CPU.",
        )
    return ("Nothing is known about this program on this machine: see the reason.",)


def _about_time(report: MachineReport) -> Iterator[str]:
    """Warn of a run that may take as long as Vertex AI lets a task run, by half of that: an estimate may be wrong."""
    if report.epoch and (seconds := report.epochs * report.epoch.high_seconds) > VERTEX_TASK_SECONDS / 2:
        yield (
            f"The run may take {seconds / 86400:,.1f} days, and Vertex AI cancels a pipeline's task after "
            f"{VERTEX_TASK_SECONDS / 86400:g}. Take a larger machine, or fewer epochs."
        )


def _most_of_the_data(report: MachineReport, data: DataFacts) -> int:
    """Return the largest batch per replica of which a step does not take more examples than there are."""
    return max(data.num_examples // report.devices, 1)


def _with_more_memory(report: MachineReport) -> str:
    """Find the nearest machine of as many devices on which the program would fit; empty if there is none."""
    slices = load_catalogue().slices
    larger = [
        entry
        for entry in slices
        if entry.devices == report.devices and entry.generation.hbm_usable_bytes > report.peak_bytes
    ]
    nearest = min(larger, key=lambda entry: entry.generation.hbm_usable_bytes, default=None)
    if nearest is None or not report.peak_bytes:
        return ""
    return f", such as {nearest.name} with {nearest.generation.hbm_usable_bytes / 2**30:.1f} GiB"


def _is_least(report: MachineReport) -> bool:
    """Return whether its generation has no smaller slice."""
    catalogue = load_catalogue()
    generation = catalogue.find(report.machine).generation
    return all(entry.devices >= report.devices for entry in catalogue.slices if entry.generation == generation)


def _doubts(report: MachineReport, data: DataFacts) -> Sequence[str]:
    step, epoch = report.step, report.epoch
    assert step is not None
    assert epoch is not None
    doubts = []
    products_share = sum(layer.ms for layer in report.layers if layer.mxu_utilization) / step.compute_ms
    if products_share < _FEW_PRODUCTS:
        doubts.append(f"matrix products take {products_share:.0%} of a step, and nothing else is faster on a TPU")
    elif step.mxu_utilization < _LOW_UTILIZATION:
        doubts.append(f"the matrix units are {step.mxu_utilization:.1%} busy while it computes")
    if report.host_calls:
        doubts.append(f"{len(report.host_calls)} operations call the host in every step ({report.host_calls[0]})")
    if epoch.host_wait > _MUCH_WAITING and _is_least(report):
        doubts.append(f"{report.machine}, the least there is, waits for data {epoch.host_wait:.0%} of the time")
    return doubts


def _about_waiting(report: MachineReport, data: DataFacts) -> Sequence[str]:
    epoch = report.epoch
    assert epoch is not None
    if epoch.host_wait < _LITTLE_WAITING:
        return ()
    words = (
        f"The device waits for data {epoch.host_wait:.0%} of the time: it takes {epoch.needed_per_second:,.0f} "
        f"examples/s, and is fed {report.fed_by(data.host)}."
    )
    if not report.is_resident and data.decoded_bytes < report.capacity_bytes // 2:
        words += (
            f" The decoded training split ({data.decoded_bytes / 2**20:,.0f} MiB) fits in the devices' memory, where "
            f"no host would be in the way: {_LET_IT_BE_RESIDENT}."
        )
    if not _is_least(report) and epoch.host_wait > _MUCH_WAITING:
        words += " A slice of half the size would be as fast."
    return (words,)


def _about_layers(report: MachineReport) -> Sequence[str]:
    step = report.step
    assert step is not None
    padded = [layer for layer in report.layers if layer.padding_ms > _MUCH_PADDING * step.compute_ms]
    padded.sort(key=lambda layer: -layer.padding_ms)
    words = []
    for layer in padded[:_ADVISED_LAYERS]:
        what = "; ".join(note for note in layer.notes if "features" in note) or "; ".join(layer.notes)
        more = "" if " groups of " in what else " More features would cost little, fewer would save nothing."
        words.append(f"{layer.name} spends {layer.padding_ms:.2g} of its {layer.ms:.2g} ms on padding: {what}.{more}")
    return words


def _about_batch(report: MachineReport, data: DataFacts) -> Sequence[str]:
    words = []
    step, largest = report.step, report.largest_batch
    assert step is not None
    if report.batch_size_per_replica % SUBLANES:
        words.append(
            f"A batch of {report.batch_size_per_replica} per replica leaves rows of the vector units empty: use a "
            f"multiple of {SUBLANES}, best of 128."
        )
    if (step.communication_ms or 0.0) > _MUCH_COMMUNICATION * step.total_ms:
        words.append(
            f"Summing gradients takes up to {step.communication_ms:.2g} of the step's {step.total_ms:.2g} ms: a larger "
            "batch per replica, or a smaller slice, would use the chips better."
        )
    if largest and largest.size >= 2 * report.batch_size_per_replica:
        about = "" if largest.is_exact else "about "
        most = _most_of_the_data(report, data)
        limit = f"; the data set has {most:,} for each" if most < largest.size else ""
        words.append(f"Up to {about}{largest.size:,} examples per replica fit{limit}.")
    return words


def _about_program(report: MachineReport) -> Sequence[str]:
    words = []
    if report.unknown_loops:
        words.append(
            f"{report.unknown_loops} loops have a length that the program does not say: each is counted once, and the "
            "step takes longer than said."
        )
    if report.cost is None:
        words.append(f"No trustworthy price is known for {report.label}.")
    return words


def compare(reports: Sequence[MachineReport]) -> tuple[str, ...]:
    """Say which of several machines to take."""
    good = [report for report in reports if report.passed]
    best = cheapest(good)
    if len(reports) < 2 or best is None:
        return ()
    fastest = min(good, key=lambda report: (_seconds(report), _price(report)))
    words = [f"Cheapest: {_describe(best)}."] if best.cost else []
    if best.cost and _seconds(best) < _AS_FAST * _seconds(fastest):
        words.append(f"None is more than {_AS_FAST - 1:.0%} faster.")
    else:
        words.append(f"Fastest: {_describe(fastest)}.")
    if all(report.epoch and report.epoch.host_wait > _MUCH_WAITING for report in good):
        words.append("All of them wait for data most of the time: the machine hardly matters before that is solved.")
    return tuple(words)


def _seconds(report: MachineReport) -> float:
    return report.epoch.seconds if report.epoch else math.inf


def _price(report: MachineReport) -> float:
    return report.cost.usd_per_run if report.cost else math.inf


def _describe(report: MachineReport) -> str:
    cost = report.cost
    price = f", {say(cost)} a run of {report.epochs} epochs expected{cost.at_most}" if cost else ""
    unknown = report.step is not None and report.step.communication_ms is None
    assert report.epoch is not None
    return f"{report.label}, {say(report.epoch)} an epoch{price}" + (", communication not counted" * unknown)

"""Advice from a preflight: changes to make, whether a TPU is worth its price, and the best machine."""

import dataclasses
from collections.abc import Iterator, Sequence

from tpu_components.core.base.formatting import byte_size, percent
from tpu_components.core.machines.machine_spec import PaidMachine, load_catalogue
from tpu_components.preflight_training.compiling.hlo import SUBLANES
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT, FITS, MAY_FIT
from tpu_components.preflight_training.data import DataFacts
from tpu_components.preflight_training.estimate import EpochTime, StepTime
from tpu_components.preflight_training.findings import MachineReport, cheapest
from tpu_components.preflight_training.params import VERTEX_TASK_SECONDS

_MUCH_WAITING = 0.5
_LITTLE_WAITING = 0.05
_MUCH_PADDING = 0.05  # Share of a step that the padding of one layer takes.
_LOW_UTILIZATION = 0.02
_FEW_PRODUCTS = 0.1  # Share of a step's time in matrix products.
_MUCH_COMMUNICATION = 0.3
_ADVISED_LAYERS = 3
_AS_FAST = 1.1
_UNTIMED = (
    "Memory and time on a GPU cannot be predicted: train for one epoch there, with a low machine.timeout_seconds."
)
_CHEAPEST_GPU = "t4-1"
_LET_IT_BE_RESIDENT = "set backend=jax, residency=auto and in_memory_mib to at least this size"


@dataclasses.dataclass(frozen=True)
class Adviser:
    """Gives advice about a training run on one machine.

    Attributes:
        report: Findings about the machine.
        paid: The machine, with the settings that determine its price.
        data: Sizes of the data set, and the rates at which this machine reads it.
    """

    report: MachineReport
    paid: PaidMachine
    data: DataFacts

    def advise(self) -> tuple[tuple[str, ...], bool]:
        """Return the advice, the most important first, and whether a TPU is worth its price."""
        verdict, step, epoch = self.report.verdict, self.report.step, self.report.epoch
        if verdict == MAY_FIT:
            return (_UNTIMED,), True
        if verdict != FITS:
            return (self._advise_failed(),), verdict != DOES_NOT_COMPILE
        if step is None or epoch is None:
            return tuple(self._advise_batch()), True
        doubts = list(self._doubts(step, epoch))
        words = []
        if doubts:
            words = [
                f"A TPU is hardly worth its price here: {'; '.join(doubts)}. Train on a GPU or on CPU{self._prices()}."
            ]
        return (*words, *self._advise_fitting(step, epoch)), not doubts

    def _advise_failed(self) -> str:
        report = self.report
        if report.verdict == DOES_NOT_COMPILE:
            return (
                "Replace the operations named above, or the calls of NumPy, with operations of keras.ops that have "
                f"static shapes, or train on a GPU or CPU{self._prices()}."
            )
        if report.verdict != DOES_NOT_FIT:
            return "Nothing is known about this program on this machine. See the reason."
        largest = report.largest_batch
        larger = self._with_more_memory()
        if largest is None or not largest.size:
            return f"Not even one example fits: use a machine with more memory per device{larger}, or a smaller model."
        sure = "the most that fit" if largest.is_exact else "these fit, and more may fit"
        usable = min(largest.size, self._most_of_the_data)
        if usable < largest.size:
            sure = f"the whole data set; {largest.size:,} would fit"
        return (
            f"Set training.batch_size_per_replica to {usable:,} or less ({sure}), or use a machine with more memory "
            f"per device{larger}."
        )

    def _prices(self) -> str:
        """Return a clause with the hourly prices of the cheapest GPU and the machine.

        Return an empty string if the price of the GPU is unknown.
        """
        cost = self.report.cost
        gpu = load_catalogue().find(_CHEAPEST_GPU).price(target=self.paid.target)
        ours = f", {self.report.label} ${cost.usd_per_hour:,.2f}" if cost else ""
        return f": {_CHEAPEST_GPU} costs ${gpu.usd_per_hour:,.2f} per hour{ours}" if gpu else ""

    def _advise_fitting(self, step: StepTime, epoch: EpochTime) -> Iterator[str]:
        report = self.report
        # Half of the limit, because the estimate may be wrong.
        if (seconds := report.epochs * epoch.high_seconds) > VERTEX_TASK_SECONDS / 2:
            yield (
                f"The run may take {seconds / 86400:,.1f} days, and Vertex AI cancels a pipeline's task after "
                f"{VERTEX_TASK_SECONDS / 86400:g}. Use a larger machine or fewer epochs."
            )
        if epoch.host_wait >= _LITTLE_WAITING:
            yield self._advise_waiting(epoch)
        padded = [layer for layer in report.layers if layer.padding_ms > _MUCH_PADDING * step.compute_ms]
        for layer in sorted(padded, key=lambda layer: -layer.padding_ms)[:_ADVISED_LAYERS]:
            what = "; ".join(note for note in layer.notes if "features" in note) or "; ".join(layer.notes)
            more = (
                "" if " groups of " in what else " More features would cost little. Fewer features would save nothing."
            )
            yield f"{layer.name} spends {layer.padding_ms:.2g} of its {layer.ms:.2g} ms on padding: {what}.{more}"
        if (step.communication_ms or 0.0) > _MUCH_COMMUNICATION * step.compiler_ms:
            yield (
                f"Summing gradients takes up to {step.communication_ms:.2g} of the step's {step.compiler_ms:.2g} ms. A "
                "larger batch per replica, or a smaller slice, would use the chips better."
            )
        yield from self._advise_batch()
        if report.unknown_loops:
            yield (
                f"{report.unknown_loops} loops have an unknown length. Each is counted once, so the step takes longer "
                "than estimated."
            )
        if report.cost is None:
            yield f"No trustworthy price is known for {report.label}."

    def _advise_batch(self) -> Iterator[str]:
        batch_size = self.report.batch_size_per_replica
        largest = self.report.largest_batch
        most = self._most_of_the_data
        if batch_size % SUBLANES:
            yield (
                f"A batch of {batch_size} per replica does not fill all rows of the vector units: use a multiple of "
                f"{SUBLANES}, preferably of 128."
            )
        if largest and largest.size >= 2 * batch_size:
            bound = "At most" if largest.is_upper_bound else "Up to"
            limit = f"; the data set has {most:,} for each replica" if most < largest.size else ""
            yield f"{bound} {largest.size:,} examples per replica fit{limit}."

    def _advise_waiting(self, epoch: EpochTime) -> str:
        report, data = self.report, self.data
        words = (
            f"The device waits for data {percent(epoch.host_wait)} of the time: it needs "
            f"{epoch.needed_per_second:,.0f} examples/s, and is fed {report.fed_by(data.host)}."
        )
        if not report.is_resident and data.decoded_bytes < report.capacity_bytes // 2:
            words += (
                f" The decoded training split ({byte_size(data.decoded_bytes)}) fits in the devices' memory, where it "
                f"needs no host: {_LET_IT_BE_RESIDENT}."
            )
        if not self._is_smallest and epoch.host_wait > _MUCH_WAITING:
            words += " A slice of half the size would be as fast."
        return words

    def _doubts(self, step: StepTime, epoch: EpochTime) -> Iterator[str]:
        """Yield the reasons why a TPU is hardly worth its price."""
        report = self.report
        products_share = sum(layer.ms for layer in report.layers if layer.mxu_utilization) / step.compute_ms
        if products_share < _FEW_PRODUCTS:
            yield f"matrix products take {percent(products_share)} of a step, and only they are faster on a TPU"
        elif step.mxu_utilization < _LOW_UTILIZATION:
            yield f"the matrix units are {percent(step.mxu_utilization, 1)} busy while the device computes"
        if report.host_calls:
            yield f"{len(report.host_calls)} operations call the host in every step ({report.host_calls[0]})"
        if epoch.host_wait > _MUCH_WAITING and self._is_smallest:
            yield f"{report.machine}, the smallest machine, waits for data {percent(epoch.host_wait)} of the time"

    @property
    def _most_of_the_data(self) -> int:
        """The largest batch per replica for which the training split has enough examples."""
        return max(self.data.num_examples // self.report.devices, 1)

    def _with_more_memory(self) -> str:
        """Return advice to use the smallest machine with the same number of devices and enough memory.

        Return an empty string if there is no such machine.
        """
        needed = self.report.peak_bytes
        larger = [
            entry
            for entry in load_catalogue().slices
            if self.paid.target in entry.targets
            and not entry.is_gpu
            and needed
            and entry.devices == self.report.devices
            and entry.generation.hbm_usable_bytes > needed
        ]
        nearest = min(larger, key=lambda entry: entry.generation.hbm_usable_bytes, default=None)
        return f", such as {nearest.name} with {byte_size(nearest.generation.hbm_usable_bytes)}" if nearest else ""

    @property
    def _is_smallest(self) -> bool:
        """Whether the machine is the smallest of its generation in the catalogue."""
        ours = self.paid.slice
        alike = (entry for entry in load_catalogue().slices if entry.generation == ours.generation)
        return all(entry.devices >= ours.devices for entry in alike)


def compare(reports: Sequence[MachineReport]) -> tuple[str, ...]:
    """Return advice on which of several machines to use, and list machines for which compilation did not finish.

    Return () for one machine.
    """
    if len(reports) < 2:
        return ()
    passed = [report for report in reports if report.passed and report.epoch]
    best = cheapest(passed)
    words = []
    if undecided := [report for report in reports if report.is_undecided]:
        hourly = ", ".join(report.label + (f" ({report.cost.text})" if report.cost else "") for report in undecided)
        words = [
            (
                f"The comparison is incomplete: nothing is known about {hourly}, because the compiler did not finish. "
                f"{'One of these' if len(undecided) > 1 else 'It'} may be cheaper or faster. See the reasons, and run "
                "the command again; the other results are cached."
            )
        ]
    if best is None:
        return tuple(words)
    fastest = min(passed, key=lambda report: (report.epoch_seconds, report.usd_per_run))
    words += [f"Cheapest: {_describe(best)}."] if best.cost else []
    if best.cost and best.epoch_seconds < _AS_FAST * fastest.epoch_seconds:
        which = "No other compiled machine" if undecided else "No other machine"
        words.append(f"{which} is more than {_AS_FAST - 1:.0%} faster.")
    else:
        words.append(f"Fastest: {_describe(fastest)}.")
    if all(report.epoch and report.epoch.host_wait > _MUCH_WAITING for report in passed):
        words.append(
            "All machines wait for data most of the time. Until the input is faster, the choice of the machine hardly "
            "matters."
        )
    return tuple(words)


def _describe(report: MachineReport) -> str:
    cost = report.cost
    epoch = f", {report.epoch.text} per epoch" if report.epoch else ""
    price = f", {cost.text} expected for a run of {report.epochs} epochs{cost.at_most}" if cost else ""
    unknown = report.step is not None and report.step.communication_ms is None
    return f"{report.label}{epoch}{price}" + (", without communication" if unknown else "")

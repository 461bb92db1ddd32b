"""How far estimated step times are from published ones, and the interval that follows.

A step counts once, however many publications time it. It is judged by steps of other programs and other publishers.
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from scipy import special

from tpu_components.core.machines.machine_spec import Generation, load_catalogue
from tpu_components.preflight_training.compiling.hlo import Collective, OperationCost
from tpu_components.preflight_training.estimate import collective_seconds, seconds_of

_TAIL = 0.05  # Share of steps that may lie on each side of the interval.


@dataclasses.dataclass(frozen=True)
class Observation:
    """A compiled step of a generation, and how long it was measured to take.

    Attributes:
        key: Program, generation and examples per device.
        program: Name of the program.
        family: Name of the programs that are variants of one another.
        kind: Kind of program, such as `decoder`.
        generation: The chip.
        sources: Who measured it.
        operations: Costs of its operations.
        beside: Seconds of communication that is added to the computation.
        hidden: Seconds of communication that overlaps the computation.
        measured: Seconds; the geometric mean of all publications.
        is_whole: Whether it is a whole training step.
    """

    key: str
    program: str
    family: str
    kind: str
    generation: Generation
    sources: frozenset[str]
    operations: Sequence[OperationCost]
    beside: float
    hidden: float
    measured: float
    is_whole: bool

    @property
    def computation(self) -> float:
        """Seconds that the operations are estimated to take."""
        return sum(seconds_of(one, self.generation) for one in self.operations)

    @property
    def utilization(self) -> float:
        """Share of the matrix units' peak that the estimated computation reaches."""
        return self.flops / self.generation.device_peak_flops / self.computation

    @property
    def flops(self) -> float:
        """Operations of all matrix products."""
        return sum(one.flops * one.times for one in self.operations)

    @property
    def ratio(self) -> float:
        """Measured time over estimated time."""
        return self._over(self.computation)

    @property
    def ratio_by_cycles(self) -> float:
        """Measured time over the compiler's cycles alone; what has none is estimated by its bytes."""
        return self._over(
            sum(
                one.times
                * max(
                    one.cycles / self.generation.clock_hz,
                    0.0 if one.cycles else one.num_bytes / self.generation.device_bytes_per_second,
                )
                for one in self.operations
            )
        )

    def _over(self, computation: float) -> float:
        return self.measured / (max(computation, self.hidden) + self.beside)


def others_of(observations: Sequence[Observation], one: Observation) -> list[Observation]:
    """Steps of other families of programs and other publishers."""
    return [other for other in observations if other.family != one.family and not other.sources & one.sources]


def hold_out_constant(observations: Sequence[Observation]) -> dict[str, float]:
    """By key, measured time over an estimate from a constant share of the peak.

    The share is the median of `others_of` the same generation, or of all if it has none.
    """

    def reached(one: Observation) -> float:
        return one.flops / one.generation.device_peak_flops / one.measured

    found = {}
    for one in observations:
        others = others_of(observations, one)
        alike = [other for other in others if other.generation == one.generation]
        found[one.key] = statistics.median(map(reached, alike or others)) / reached(one)
    return found


def interval(steps: Sequence[Observation]) -> tuple[float, float]:
    """Return the bounds of the 90% prediction interval of measured over estimated time, for a new publisher's program.

    The logarithm of the ratio is modelled as a bias of the publisher plus a bias of the program. Both are normal, with
    variances from an analysis of variance (https://doi.org/10.1002/9780470316856). If all steps are of one publisher,
    each counts as a different publisher's.
    """
    groups = defaultdict(list)
    for one in steps:
        groups[min(one.sources)].append(math.log(one.ratio))
    if len(groups) == 1:
        groups = defaultdict(list, {str(number): [value] for number, value in enumerate(*groups.values())})
    count, sizes = len(steps), {name: len(values) for name, values in groups.items()}
    means = {name: statistics.fmean(values) for name, values in groups.items()}
    freedom = len(groups) - 1
    if not freedom:
        return steps[0].ratio, steps[0].ratio
    inside = sum((value - means[name]) ** 2 for name, values in groups.items() for value in values)
    of_programs = inside / (count - len(groups)) if count > len(groups) else 0.0
    middle = sum(sizes[name] * means[name] for name in groups) / count
    between = sum(sizes[name] * (means[name] - middle) ** 2 for name in groups) / freedom
    typical = (count - sum(size**2 for size in sizes.values()) / count) / freedom
    of_publishers = max((between - of_programs) / typical, 0.0)
    if not of_programs + of_publishers:
        return math.exp(middle), math.exp(middle)
    weights = {name: 1 / (of_publishers + of_programs / size) for name, size in sizes.items()}
    whole = sum(weights.values())
    center = sum(weights[name] * means[name] for name in groups) / whole
    half = special.stdtrit(freedom, 1 - _TAIL) * math.sqrt(of_programs + of_publishers + 1 / whole)
    return math.exp(center - half), math.exp(center + half)


def hold_out_intervals(
    observations: Sequence[Observation], group_of: Callable[[Observation], bool]
) -> Mapping[str, bool]:
    """By key, whether a ratio is in the `interval` of `others_of` its group."""
    found = {}
    for one in observations:
        alike = [other for other in others_of(observations, one) if group_of(other) == group_of(one)]
        low, high = interval(alike)
        found[one.key] = low <= one.ratio <= high
    return found


def summing_seconds(num_bytes: int, chips: int, generation: Generation) -> float:
    """Seconds in which the chips of a slice sum the gradients of a replica's weights."""
    slices = [one for one in load_catalogue().slices if one.generation.name == generation.name]
    alike = next((one for one in slices if one.chips == chips), slices[0])
    machine = dataclasses.replace(
        alike, generation=generation, chips=chips, devices=chips * generation.devices_per_chip
    )
    return collective_seconds(Collective("all-reduce", num_bytes), machine) or 0.0


def errors(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median and 95th percentile of the error, and the median of estimated over measured time, less 1."""
    off = sorted(abs(1 / ratio - 1) for ratio in ratios)
    bias = statistics.median(1 / ratio - 1 for ratio in ratios)
    return statistics.median(off), off[math.ceil(0.95 * len(off)) - 1], bias

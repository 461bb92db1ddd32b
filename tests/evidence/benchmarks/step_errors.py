"""How far estimated step times are from published ones, and the interval that follows.

A step counts once, however many publications time it. It is judged by steps of other programs and other publishers.
"""

import dataclasses
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
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

    @functools.cached_property
    def computation(self) -> float:
        """Seconds that the operations are estimated to take."""
        return sum(seconds_of(one, self.generation) for one in self.operations)

    @property
    def utilization(self) -> float:
        """Share of the matrix units' peak that the estimated computation reaches."""
        return self.flops / self.generation.device_peak_flops / self.computation

    @functools.cached_property
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
    if len({one.ratio for one in steps}) == 1:
        return steps[0].ratio, steps[0].ratio
    by_publisher = defaultdict(list)
    for one in steps:
        by_publisher[min(one.sources)].append(math.log(one.ratio))
    groups = list(by_publisher.values())
    if len(groups) == 1:
        groups = [[value] for value in groups[0]]
    sizes = np.array([len(values) for values in groups])
    means = np.array([statistics.fmean(values) for values in groups])
    freedom = len(groups) - 1
    inside = sum((value - mean) ** 2 for values, mean in zip(groups, means, strict=True) for value in values)
    of_programs = inside / max(len(steps) - len(groups), 1)
    between = sizes @ (means - sizes @ means / len(steps)) ** 2 / freedom
    typical = (len(steps) - sizes @ sizes / len(steps)) / freedom
    of_publishers = max((between - of_programs) / typical, 0.0)
    weights = 1 / (of_publishers + of_programs / sizes)
    center = weights @ means / weights.sum()
    half = special.stdtrit(freedom, 1 - _TAIL) * math.sqrt(of_programs + of_publishers + 1 / weights.sum())
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


def summing_seconds(num_bytes: int, chips: int, generation: Generation, slices: int = 1) -> float:
    """Return the seconds in which the chips of a slice sum the gradients of a replica's weights.

    With `slices` above 1, return the seconds in which the slices sum the gradients of each chip over the network.
    """
    known = [one for one in load_catalogue().slices if one.generation.name == generation.name]
    alike = next((one for one in known if one.chips == chips), known[0])
    machine = dataclasses.replace(
        alike, generation=generation, chips=chips, devices=chips * generation.devices_per_chip
    )
    return collective_seconds(Collective("all-reduce", num_bytes, slices=slices), machine) or 0.0


def errors(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median and 95th percentile of the error, and the median of estimated over measured time, less 1."""
    off = sorted(abs(1 / ratio - 1) for ratio in ratios)
    bias = statistics.median(1 / ratio - 1 for ratio in ratios)
    return statistics.median(off), off[math.ceil(0.95 * len(off)) - 1], bias

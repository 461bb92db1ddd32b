"""Fits the rates that turn the work of operations into time to published step times.

A step's time is the sum over its operations of the longest of three times; see `estimate.seconds_of`. The logarithm of
a schedule's ratio is that of its kind, plus a deviation of its kind on a generation; both are drawn to what would be
expected without data, the more the fewer steps there are. A step counts once, however many publications time it.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize

from tpu_components.core.machines.machine_spec import Generation
from tpu_components.preflight_training.compiling.hlo import Kind, OperationCost
from tpu_components.preflight_training.estimate import Rates

_KINDS = tuple(Kind)
# Standard deviations of logarithms: of a kind's ratio from 1, of a generation's from its kind's, and of a step's time.
_OF_KIND, _OF_GENERATION, _OF_STEP = 0.3, 0.1, 0.1
_KERNELS = 0.5  # The share of the peak that a kernel is expected to reach without data.
_BANDWIDTH = 0.9  # The share of the published bandwidth that memory is taken to reach.


@dataclasses.dataclass(frozen=True)
class Observation:
    """A compiled step of a generation, and how long it was measured to take.

    Attributes:
        key: Program, generation and examples per device.
        program: Name of the program.
        kind: Kind of program, such as `decoder`.
        generation: The chip.
        sources: Who measured it.
        operations: Costs of its operations.
        beside: Seconds of communication that is added to the computation.
        measured: Seconds; the geometric mean of all publications.
        is_whole: Whether it is a whole training step.
    """

    key: str
    program: str
    kind: str
    generation: Generation
    sources: frozenset[str]
    operations: Sequence[OperationCost]
    beside: float
    measured: float
    is_whole: bool


class _Times:
    """The three times of each operation of a step, without rates."""

    def __init__(self, observation: Observation) -> None:
        generation = observation.generation
        table = [
            (
                _KINDS.index(one.kind),
                one.times * one.cycles / generation.clock_hz,
                one.times * one.flops / generation.device_peak_flops,
                one.times * one.num_bytes / generation.device_bytes_per_second,
            )
            for one in observation.operations
        ]
        columns = np.array(table, dtype=float).reshape(-1, 4).T
        self.kinds = columns[0].astype(int)
        self.schedule, self.flops, self.memory = columns[1:]
        self.is_kernel = self.kinds == _KINDS.index(Kind.KERNEL)

    def seconds(self, rates: Rates) -> float:
        """The time of the step's computation."""
        ratios = np.array([rates.schedule(kind) for kind in _KINDS])
        peak = np.where(self.is_kernel, 1 / rates.kernels, 1.0)
        times = np.maximum(ratios[self.kinds] * self.schedule, self.flops * peak)
        return float(np.maximum(times, self.memory / rates.bandwidth).sum())


_FIELDS = ("products", "convolutions", "others", "kernels")


def fit(observations: Sequence[Observation], generations: Collection[str]) -> dict[str, Rates]:
    """The rates of each generation; those of one without steps are what its kinds of operation have elsewhere."""
    names = sorted(generations)
    times = {one.key: _Times(one) for one in observations}
    members = {name: [one for one in observations if one.generation.name == name] for name in names}
    # Steps of one program on one generation share what is the program's own.
    alike = {
        one.key: sum(other.program == one.program and other.generation == one.generation for other in observations)
        for one in observations
    }

    def rates_from(values: np.ndarray, name: str) -> Rates:
        own = values.reshape(len(names) + 1, len(_FIELDS))
        logs = own[0] + own[1 + names.index(name)]
        products, convolutions, others, kernels = np.exp(logs)
        return Rates(products, convolutions, others, min(_KERNELS / kernels, 1.0), _BANDWIDTH)

    def residuals(values: np.ndarray) -> np.ndarray:
        own = values.reshape(len(names) + 1, len(_FIELDS))
        found = [*own[0] / _OF_KIND, *own[1:].ravel() / _OF_GENERATION]
        for name in names:
            rates = rates_from(values, name)
            found += [
                _off(one, times[one.key].seconds(rates)) / (_OF_STEP * math.sqrt(alike[one.key]))
                for one in members[name]
            ]
        return np.array(found)

    start = np.zeros((len(names) + 1) * len(_FIELDS))
    solved = scipy.optimize.least_squares(residuals, start, loss="soft_l1", f_scale=2.0)
    return {name: rates_from(solved.x, name) for name in names}


def _off(observation: Observation, computation: float) -> float:
    return math.log(observation.measured / (computation + observation.beside))


def ratio(observation: Observation, rates: Rates) -> float:
    """Measured time over estimated time."""
    return math.exp(_off(observation, _Times(observation).seconds(rates)))


def uncorrected(observation: Observation) -> float:
    """Measured time over the compiler's cycles alone; what has none is priced by its bytes."""
    rates = Rates(kernels=1e9)
    operations = [
        dataclasses.replace(one, flops=0.0, num_bytes=0.0 if one.cycles else one.num_bytes)
        for one in observation.operations
    ]
    return ratio(dataclasses.replace(observation, operations=operations), rates)


def hold_out(
    observations: Sequence[Observation],
    generations: Collection[str],
    estimate: Callable[[Sequence[Observation], Observation], float],
) -> dict[str, float]:
    """By key, measured over estimated time, where the estimate knows no step of the same program or source."""
    found = {}
    known: dict[tuple[str, ...], Any] = {}
    for one in observations:
        others = tuple(
            other.key for other in observations if other.program != one.program and not other.sources & one.sources
        )
        if others not in known:
            known[others] = [other for other in observations if other.key in set(others)]
        found[one.key] = estimate(known[others], one)
    return found


def errors(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median and 95th percentile of the error, and the median bias, as shares of what was measured."""
    off = sorted(abs(1 / ratio - 1) for ratio in ratios)
    bias = statistics.median(1 / ratio - 1 for ratio in ratios)
    return statistics.median(off), off[math.ceil(0.95 * len(off)) - 1], bias


def constant_utilization(observations: Sequence[Observation]) -> Mapping[str, float]:
    """The share of the peak that the steps of a generation reach in the median; for others, that of all steps."""
    shares: dict[str, list[float]] = {}
    for one in observations:
        flops = sum(each.flops * each.times for each in one.operations)
        shares.setdefault(one.generation.name, []).append(flops / one.generation.device_peak_flops / one.measured)
    whole = [share for group in shares.values() for share in group]
    return {name: statistics.median(group) for name, group in shares.items()} | {"": statistics.median(whole)}

"""Fits the rates that turn the work of operations into time to published step times.

A step's time is the sum over its operations of the longest of three times; see `estimate.seconds_of`. The logarithm of
a schedule's ratio is that of its kind, plus a deviation of its kind on a generation; both are drawn to what would be
expected without data, the more the fewer steps there are. A step counts once, however many publications time it.
"""

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import scipy.optimize

from tpu_components.core.machines.machine_spec import Generation, load_catalogue
from tpu_components.preflight_training.compiling.hlo import Collective, Kind, OperationCost
from tpu_components.preflight_training.estimate import Rates, collective_seconds, gradient_bytes, seconds_of

_KINDS = tuple(Kind)
# Standard deviations of logarithms: of a kind's ratio from 1, of a generation's from its kind's, and of a step's time.
_OF_KIND, _OF_GENERATION, _OF_STEP = 0.3, 0.1, 0.1
_KERNELS = 0.45  # The share of the peak that a kernel is expected to reach without data.
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
        hidden: Seconds of communication that passes beside the computation.
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
    hidden: float
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
    return math.log(observation.measured / (max(computation, observation.hidden) + observation.beside))


def ratio(observation: Observation, rates: Rates) -> float:
    """Measured time over estimated time."""
    return math.exp(_off(observation, _Times(observation).seconds(rates)))


def plain_seconds(operation: OperationCost, generation: Generation) -> float:
    """The time of an operation without any correction."""
    return seconds_of(operation, generation, Rates())


def uncorrected(observation: Observation) -> float:
    """Measured time over the compiler's cycles alone; what has none is priced by its bytes."""
    operations = [
        dataclasses.replace(one, flops=0.0, num_bytes=0.0 if one.cycles else one.num_bytes)
        for one in observation.operations
    ]
    return ratio(dataclasses.replace(observation, operations=operations), Rates())


def hold_out(observations: Sequence[Observation], generations: Collection[str]) -> dict[str, float]:
    """By key, measured over estimated time, by rates that follow from other programs and other sources alone."""
    known: dict[tuple[str, ...], Mapping[str, Rates]] = {}
    found = {}
    for one in observations:
        others = _others(observations, one)
        keys = tuple(other.key for other in others)
        if keys not in known:
            known[keys] = fit(others, generations)
        found[one.key] = ratio(one, known[keys][one.generation.name])
    return found


def hold_out_constant(observations: Sequence[Observation]) -> dict[str, float]:
    """The same with the median share of the peak that the other steps of the generation, or of all, reach."""
    found = {}
    for one in observations:
        others = _others(observations, one)
        alike = [other for other in others if other.generation == one.generation]
        share = statistics.median(_utilization(other) for other in alike or others)
        found[one.key] = share / _utilization(one)
    return found


def _others(observations: Sequence[Observation], one: Observation) -> list[Observation]:
    return [other for other in observations if other.program != one.program and not other.sources & one.sources]


def _utilization(observation: Observation) -> float:
    flops = sum(one.flops * one.times for one in observation.operations)
    return flops / observation.generation.device_peak_flops / observation.measured


def summing_seconds(parameters: int, chips: int, generation: Generation) -> float:
    """Seconds in which the chips of a slice sum the gradients of a replica's weights."""
    slices = [one for one in load_catalogue().slices if one.generation.name == generation.name]
    alike = next((one for one in slices if one.chips == chips), slices[0])
    machine = dataclasses.replace(
        alike, generation=generation, chips=chips, devices=chips * generation.devices_per_chip
    )
    return collective_seconds(Collective("all-reduce", gradient_bytes(parameters)), machine) or 0.0


def errors(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median and 95th percentile of the error, and the median bias, as shares of what was measured."""
    off = sorted(abs(1 / ratio - 1) for ratio in ratios)
    bias = statistics.median(1 / ratio - 1 for ratio in ratios)
    return statistics.median(off), off[math.ceil(0.95 * len(off)) - 1], bias


def reach(held_out: Mapping[str, float], own: Collection[str]) -> float:
    """How far nine of ten steps of a generation are from their estimate, as a logarithm.

    It is the larger of what holds nine of ten of all steps, and of the generation's own.
    """
    groups = [held_out.values(), [held_out[key] for key in own]]
    return max(_nine_of_ten([abs(math.log(ratio)) for ratio in group]) for group in groups if group)


def _nine_of_ten(distances: Sequence[float]) -> float:
    """The distance within which the next one lies with a probability of 90%, if it comes from where these do."""
    rank = math.ceil(0.9 * (len(distances) + 1))
    return sorted(distances)[min(rank, len(distances)) - 1]

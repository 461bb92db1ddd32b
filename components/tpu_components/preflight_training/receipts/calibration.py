"""Derives intervals of step times from the receipts of a project's runs.

A receipt records the measured and the predicted step time of a training run. The statistical model describes
log(measured time / compiler's estimate) as the sum of a bias of the project, a bias of the program, and the noise of
the run. The prior of the two biases comes from published step times: their sum has the mean and the standard deviation
that the published times have. With more runs, the interval depends less on the prior, and more on the runs of the
project and of the program. The standard deviations of the three terms are not known exactly, so the interval averages
over a grid of them, each weighted by how well it explains the receipts.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from tpu_components.core.results.receipt import Receipt
from tpu_components.preflight_training.estimate import Accuracy, StepTime, accuracy_at

_Z = 1.6448536269514722  # 95% quantile of the normal distribution.
# Noise of a run. Published times of one program differ by 3%.
NOISES = (0.01, 0.02, 0.035, 0.06, 0.1, 0.18)
# Share of the published variance that all programs of a project have in common, and its weight before any receipt.
# Between publishers, the share is 0.2 to 0.3.
PROJECT_SHARES = {0.1: 0.25, 0.25: 0.35, 0.5: 0.2, 0.75: 0.1, 0.9: 0.1}
# Spread of the project's programs, relative to the published spread, and its weight before any receipt.
SCALES = {0.35: 0.05, 0.5: 0.1, 0.7: 0.15, 1.0: 0.4, 1.4: 0.2, 2.0: 0.1}
_BISECTIONS = 50


@dataclasses.dataclass(frozen=True)
class Prior:
    """A normal distribution of log(measured time / estimate) for a program that has no receipts yet."""

    centre: float
    spread: float

    @classmethod
    def from_accuracy(cls, accuracy: Accuracy) -> "Prior":
        """Return the distribution whose 90% interval is that of `accuracy`, which comes from published step times."""
        low, high = math.log(accuracy.low), math.log(accuracy.high)
        return cls((low + high) / 2, (high - low) / (2 * _Z))


@dataclasses.dataclass(frozen=True)
class Run:
    """A measured run.

    Attributes:
        program: Name of the program and its machine, from `name_of`.
        ratio: Measured time of a step, relative to the compiler's estimate.
        prior: Distribution for the program before its first receipt.
    """

    program: str
    ratio: float
    prior: Prior


@dataclasses.dataclass(frozen=True)
class Interval:
    """A 90% interval for the time of a step, relative to the compiler's estimate.

    Attributes:
        factor: Median of the time of a step, relative to the compiler's estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        own_runs: Number of runs of the same program on the same machine.
        other_runs: Number of runs of other programs, or on other machines.
    """

    factor: float
    low: float
    high: float
    own_runs: int
    other_runs: int

    @property
    def basis(self) -> str:
        """The runs from which the interval is derived, in words.

        Example:
            >>> Interval(1.3, 1.2, 1.4, own_runs=3, other_runs=12).basis
            '3 runs of this program, 12 of others'
        """
        own = f"{self.own_runs or 'no'} {'run' if self.own_runs == 1 else 'runs'} of this program"
        return f"{own}, {self.other_runs or 'none'} of others"


class Calibration:
    """Derives 90% intervals of step times from the measured runs of a project.

    Args:
        runs: Measured runs. There must be at least one.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._num_runs = len(runs)
        names = list(dict.fromkeys(run.program for run in runs))
        groups = [[run for run in runs if run.program == name] for name in names]
        logs = [np.log([run.ratio for run in group]) for group in groups]
        self._programs = {name: i for i, name in enumerate(names)}
        self._priors = [group[0].prior for group in groups]
        self._counts = np.array([len(group) for group in groups])
        self._residuals = np.array([log.mean() for log in logs]) - [prior.centre for prior in self._priors]
        self._squares = sum(float(((log - log.mean()) ** 2).sum()) for log in logs)  # Within programs.

    @functools.cached_property
    def _grid(self) -> np.ndarray:
        """Noise, project's share of the variance, and scale of the prior's spread, float64[3, grid points]."""
        return np.array(list(itertools.product(NOISES, PROJECT_SHARES, SCALES))).T

    def _variances(self, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
        """Return the project bias's standard deviation and the program bias's variance at each grid point."""
        _, share, scale = self._grid
        whole = prior.spread * scale
        return whole * np.sqrt(share), whole**2 * (1 - share)

    @functools.cached_property
    def _posterior(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and precision of the project's bias (in standard deviations), and the weight of each grid point."""
        noise = self._grid[0] ** 2
        precision = np.ones_like(noise)
        weighted = np.zeros_like(noise)
        log_weight = np.log([PROJECT_SHARES[share] * SCALES[scale] for _, share, scale in self._grid.T])
        log_weight -= 0.5 * (self._num_runs - len(self._counts)) * np.log(noise) + 0.5 * self._squares / noise
        for prior, count, residual in zip(self._priors, self._counts, self._residuals, strict=True):
            loading, variance = self._variances(prior)
            variance = variance + noise / count
            precision += loading**2 / variance
            weighted += loading * residual / variance
            log_weight -= 0.5 * (np.log(variance) + residual**2 / variance)
        mean = weighted / precision
        log_weight += 0.5 * (precision * mean**2 - np.log(precision))
        weight = np.exp(log_weight - log_weight.max())
        return mean, precision, weight / weight.sum()

    def interval(self, program: str, prior: Prior) -> Interval:
        """Return the 90% interval of the step time in the next run of a program.

        Args:
            program: Name of the program, which may have no runs yet.
            prior: Distribution for the program before its first receipt.
        """
        mean, precision, weight = self._posterior
        loading, variance = self._variances(prior)
        noise = self._grid[0] ** 2
        at = self._programs.get(program)
        own_runs = 0 if at is None else int(self._counts[at])
        residual = 0.0 if at is None else self._residuals[at]
        # Share of the program's bias that its own runs determine.
        trust = variance / (variance + noise / own_runs) if own_runs else np.zeros_like(noise)
        centres = prior.centre + trust * residual + (1 - trust) * loading * mean
        spreads = np.sqrt((1 - trust) ** 2 * loading**2 / precision + variance * (1 - trust) + noise)
        low, middle, high = (math.exp(_quantile(share, centres, spreads, weight)) for share in (0.05, 0.5, 0.95))
        return Interval(middle, low, high, own_runs, self._num_runs - own_runs)


def _quantile(share: float, centres: np.ndarray, spreads: np.ndarray, weights: np.ndarray) -> float:
    """Return a quantile of a mixture of normal distributions, by bisection."""
    from scipy.special import ndtr  # Takes 0.3 s to import, which every command would pay.

    low = float((centres - 10 * spreads).min())
    high = float((centres + 10 * spreads).max())
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if float(weights @ ndtr((middle - centres) / spreads)) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def name_of(program: str, machine: str) -> str:
    """Return the name that all runs of a program on a machine have in `Run.program`."""
    return f"{program} {machine}"


def runs_of(receipts: Sequence[Receipt]) -> list[Run]:
    """Return the runs that can calibrate estimates.

    A run is used if its step time was measured on the machine that its prediction was made for, and if the run hardly
    waited for input.
    """
    runs = []
    for receipt in receipts:
        if receipt.ratio is not None and receipt.prediction is not None:
            prior = Prior.from_accuracy(accuracy_at(receipt.prediction.mxu_utilization))
            runs.append(Run(name_of(receipt.program, receipt.machine), receipt.ratio, prior))
    return runs


def calibrated(step: StepTime, runs: Sequence[Run], program: str, machine: str) -> StepTime:
    """Return the estimated time of a step, corrected with the measured step times of a project's runs.

    The correction factor and the 90% interval are derived from these runs. Without runs, the time is unchanged.

    Args:
        step: Time of the step, estimated without receipts.
        runs: Measured runs of the project.
        program: Digest of the program. Empty for a program that has no receipts.
        machine: Short name of the machine.
    """
    if not runs:
        return step
    prior = Prior.from_accuracy(accuracy_at(step.mxu_utilization))
    interval = Calibration(runs).interval(name_of(program, machine), prior)
    return dataclasses.replace(
        step,
        factor=interval.factor,
        low_ms=step.compiler_ms * interval.low,
        high_ms=step.compiler_ms * interval.high,
        basis=interval.basis,
    )

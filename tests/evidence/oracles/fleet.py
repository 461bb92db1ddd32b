"""A simulated fleet of training runs: how often the interval before a run contains the run's time.

The time of a run, relative to the compiler's estimate, is the bias of its program times the noise of the run. The
biases of the programs are between 0.9 and 1.6, evenly on a log scale. Each run is one of the programs, at random.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tpu_components.core.pages.blocks import Table
from tpu_components.preflight_training.estimate import WELL_USED, Accuracy, accuracy_at
from tpu_components.preflight_training.receipts.calibration import Calibration, Prior, Run

NUM_RUNS = 50
BIASES = (0.9, 1.6)
COVERED = 0.88
# Lines of the table: numbers of runs that were added before, as half-open ranges.
STAGES = ((0, 1), (1, 2), (2, 3), (3, 5), (5, 8), (8, 12), (12, 20), (20, 30), (30, 40), (40, 50))
_COLUMNS = ("runs before", "known program: inside", "high/low", "new program: inside", "high/low ")
_GROUPS = {"at least half of the peak": WELL_USED, "less than half": 0.0}


@dataclasses.dataclass(frozen=True)
class Fleet:
    """A project's runs.

    Attributes:
        accuracy: Accuracy of published estimates for its programs.
        programs: Number of programs.
        noise: Standard deviation of the log of a run's time.
    """

    accuracy: Accuracy
    programs: int = 10
    noise: float = 0.03


@dataclasses.dataclass
class Tally:
    """Intervals of one stage: how many there were, how many contained the time, and their log widths."""

    count: int = 0
    inside: int = 0
    log_widths: float = 0.0

    def add(self, low: float, high: float, ratio: float) -> None:
        """Count an interval."""
        self.count += 1
        self.inside += low <= ratio <= high
        self.log_widths += math.log(high / low)

    @property
    def coverage(self) -> float:
        """Share of the intervals that contained the time; NaN without intervals."""
        return self.inside / self.count if self.count else math.nan

    @property
    def width(self) -> float:
        """Geometric mean of the upper ends relative to the lower ends; NaN without intervals."""
        return math.exp(self.log_widths / self.count) if self.count else math.nan


Tallies = dict[bool, list[Tally]]  # A tally for each stage: of programs that had run before (True), and of new ones.


def simulate(fleet: Fleet, times: int, seed: int = 0) -> Tallies:
    """Return how the intervals before each run of a fleet did, over many fleets.

    At every stage, a new program is judged too, with a bias from the same distribution. It is not added.
    """
    rng = np.random.default_rng(seed)
    tallies: Tallies = {is_known: [Tally() for _ in STAGES] for is_known in (True, False)}
    stages = [stage for stage, (first, end) in enumerate(STAGES) for _ in range(first, end)]
    low, high = map(math.log, BIASES)
    for _ in range(times):
        biases = rng.uniform(low, high, fleet.programs + NUM_RUNS)  # The last ones are those of the new programs.
        programs = rng.integers(0, fleet.programs, NUM_RUNS)
        runs: list[Run] = []
        for number, program in enumerate(programs):
            known = {run.program for run in runs}
            calibration = Calibration(runs) if runs else None
            for each in (fleet.programs + number, int(program)):
                ratio = math.exp(biases[each] + rng.normal(0.0, fleet.noise))
                is_known = str(each) in known
                if is_known or each >= fleet.programs:
                    ends = _interval(calibration, str(each), fleet.accuracy)
                    tallies[is_known][stages[number]].add(*ends, ratio)
            runs.append(Run(str(program), ratio, Prior.from_accuracy(fleet.accuracy)))
    return tallies


def _interval(calibration: Calibration | None, program: str, accuracy: Accuracy) -> tuple[float, float]:
    """Without receipts, it is the published interval, as in preflight."""
    if calibration is None:
        return accuracy.low, accuracy.high
    interval = calibration.interval(program, Prior.from_accuracy(accuracy))
    return interval.low, interval.high


def covered_from(tallies: Sequence[Tally]) -> int | None:
    """Return the number of runs from which on every stage's coverage is at least 88%, or None if the last is lower."""
    start = None
    for (first, _), tally in zip(STAGES, tallies, strict=True):
        if tally.count and tally.coverage < COVERED:
            start = None
        elif tally.count and start is None:
            start = first
    return start


def table(times: int) -> list[str]:
    """Return a table for each group of programs: coverage and width by the number of runs that were added before."""
    lines = []
    for name, utilization in _GROUPS.items():
        tallies = simulate(Fleet(accuracy_at(utilization)), times)
        rows = []
        for stage, (first, end) in enumerate(STAGES):
            cells = [f"{first}" if end == first + 1 else f"{first} to {end - 1}"]
            for is_known in (True, False):
                tally = tallies[is_known][stage]
                cells += [f"{tally.coverage:.1%}", f"{tally.width:.2f}"] if tally.count else ["", ""]
            rows.append(cells)
        lines += [f"programs that use {name}", "", *Table(dict.fromkeys(_COLUMNS, ">"), rows).lines(), ""]
        for is_known, kind in ((True, "known"), (False, "new")):
            lines.append(
                f"{kind} programs: at least {COVERED:.0%} inside from {covered_from(tallies[is_known])} runs on"
            )
        lines.append("")
    return lines[:-1]

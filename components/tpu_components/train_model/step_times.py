"""Distribution of the time of steps, as counts in narrow ranges of time.

The counts are saved with each checkpoint, so steps that are lost in a kill and repeated count once.
"""

import bisect
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

# Ratio of the upper to the lower end of a range: a quantile is off by at most half a percent.
_RATIO = math.log(1.01)


class StepTimes:
    """Counts the steps of a session by their time.

    Steps that run as one block count with their mean, because the host sees only the end of a block.

    Args:
        clock: Function that returns the time, in seconds.

    Attributes:
        is_counting: Whether steps are counted. Steps of training stages with more frozen layers are not, because
            preflight compiles the stage with the most trainable parameters.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_counting = True
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._step = 0
        self._since = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Copy of the counts by range, in a form for JSON."""
        return dict(self._counts)

    def resume(self, counts: Mapping[str, int]) -> None:
        """Continue counting from the counts that a checkpoint contains."""
        self._counts = dict(counts)

    def start(self, step: int) -> None:
        """Begin to count after a step. Time before this moment counts for no step."""
        self._step = step
        self._since = self._clock()

    def reach(self, step: int) -> None:
        """Count the steps since the last call of `start` or `reach`, of which the last one has just ended."""
        num_steps = step - self._step
        if num_steps <= 0:
            return
        now = self._clock()
        seconds = (now - self._since) / num_steps
        if self.is_counting and seconds > 0:
            key = str(round(math.log(seconds) / _RATIO))
            self._counts[key] = self._counts.get(key, 0) + num_steps
        self._step = step
        self._since = now


def quantiles_ms(counts: Mapping[str, int], shares: Sequence[float]) -> list[float]:
    """Return quantiles of the time of a step, in milliseconds.

    Args:
        counts: Counts of `StepTimes`, with at least one step.
        shares: Share of the steps that take at most as long as each quantile, from 0 to 1.

    Example:
        >>> times = StepTimes(clock=iter([0.0, 0.010, 0.030]).__next__)
        >>> times.start(0), times.reach(1), times.reach(2)
        (None, None, None)
        >>> [round(ms) for ms in quantiles_ms(times.counts, (0.25, 0.75))]
        [10, 20]
    """
    places = sorted(map(int, counts))
    totals = list(itertools.accumulate(counts[str(place)] for place in places))
    return [1e3 * math.exp(places[bisect.bisect_left(totals, share * totals[-1])] * _RATIO) for share in shares]

"""Histogram of step times, with bins that are 1% wide.

The counts are saved with each checkpoint. If a killed session loses steps, and a later session repeats them, each of
these steps is counted only once.
"""

import bisect
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

# Logarithm of the ratio of a bin's upper end to its lower end. A quantile is off by at most half a percent.
_RATIO = math.log(1.01)


class StepTimes:
    """A histogram of step times: number of steps in each range of times.

    If several steps run as one block, each of them is counted with the block's mean step time, because the host sees
    only the end of a block.

    Args:
        clock: Function that returns the current time, in seconds.

    Attributes:
        is_counting: Whether steps are counted. The caller sets it to True only in the training stage with the most
            trainable parameters, because preflight predicts only that stage.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_counting = True
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._step = 0
        self._since = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Number of steps by bin, as a copy. The keys are strings, so that the mapping can be saved as JSON."""
        return dict(self._counts)

    def resume(self, counts: Mapping[str, int]) -> None:
        """Replace the counts by counts from a checkpoint, and continue to count from them."""
        self._counts = dict(counts)

    def start(self, step: int) -> None:
        """Start the clock after `step`. Time before this call is not part of any step's time."""
        self._step = step
        self._since = self._clock()

    def reach(self, step: int) -> None:
        """Count the steps from the last call of `start` or `reach` up to `step`, which has just ended."""
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
    """Return quantiles of the step time, in milliseconds, in the order of `shares`.

    Args:
        counts: `StepTimes.counts`, with at least one step.
        shares: Probability of each quantile, from 0 to 1. For example, 0.5 is the median.

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

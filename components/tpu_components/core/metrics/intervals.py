"""Confidence intervals of estimated metrics."""

from collections.abc import Callable

from tpu_components.core.base.frameworks import special
from tpu_components.core.metrics.estimates import Estimate, standard_error

FEWEST_EXAMPLES = 10  # For the interval of a metric from 0 to 1, except a share of correct predictions.
_MOST_BIAS = 0.5  # Largest bias of a metric with a confidence interval, in standard errors.
_HIGHEST_RATE = 0.999
_ANY_CONFIDENCE = 0.8  # Whether there is an interval does not depend on the confidence.


def find_interval(estimate: Estimate, confidence: float) -> tuple[float, float] | None:
    """Return the two-sided confidence interval of a metric, or None if there are too few examples.

    The method depends on the metric:

    - A share of correct predictions: the exact interval (Clopper and Pearson, 1934).
    - Other metrics from 0 to 1: the exact interval, with an effective number of examples in place of the true number
      (Korn and Graubard, Survey Methodology 24, 1998). At least ten examples are needed.
    - Unbounded metrics: the interval from Student's t distribution.
    - Metrics with a method of their own: `Estimate.interval_method`.
    """
    if confidence == 0:
        return estimate.value, estimate.value
    if estimate.interval_method:
        return estimate.interval_method(confidence)
    if estimate.hits is not None:
        return _share_interval(estimate.value, len(estimate.hits), confidence)
    error, freedom = standard_error(estimate.influence)
    if estimate.support is None and error > 0:
        half = float(special.stdtrit(freedom, (1 + confidence) / 2)) * error
        return estimate.value - half, estimate.value + half
    if estimate.support is None or estimate.support < FEWEST_EXAMPLES or abs(estimate.bias) > _MOST_BIAS * error:
        return None
    error *= estimate.correction
    value = min(max(estimate.value + estimate.bias, 0.0), 1.0)
    spread = value * (1 - value)
    number = estimate.support
    if error > 0 and spread > 0:
        freedom = min(estimate.support - 1, len(estimate.influence) - 1, estimate.freedom)
        ratio = special.ndtri((1 + confidence) / 2) / special.stdtrit(freedom, (1 + confidence) / 2)
        number = spread * (ratio / error) ** 2
    return _share_interval(value, number, confidence)


def _share_interval(share: float, number: float, confidence: float) -> tuple[float, float]:
    hits = share * number
    tail = (1 - confidence) / 2
    low = special.betaincinv(hits, number - hits + 1, tail) if hits > 0 else 0.0
    high = special.betaincinv(hits + 1, number - hits, 1 - tail) if hits < number else 1.0
    return float(low), float(high)


def find_probability(estimate: Estimate, bound: float) -> float | None:
    """Return the one-sided p-value of a metric against a bound, or None if there are too few examples.

    The p-value is the smallest error rate for which the one-sided confidence interval of the metric does not extend
    past the bound.
    """
    side = int(estimate.value < bound)
    if find_interval(estimate, _ANY_CONFIDENCE) is None:
        return None

    def excludes(rate: float) -> bool:
        interval = find_interval(estimate, 1 - 2 * rate)
        return interval is not None and (interval[1] <= bound if side else interval[0] >= bound)

    return bisect(excludes, 0.0, _HIGHEST_RATE)[1]


def bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int = 30) -> tuple[float, float]:
    """Find, by bisection, where a condition becomes true between `low` and `high`.

    The condition is assumed to be false at `low` and true at `high`. Return the ends (low, high) of the remaining
    interval, which is shorter by a factor of 2 ** `halvings`.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high

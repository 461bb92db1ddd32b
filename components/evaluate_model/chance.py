"""Confidence intervals of metrics on small test sets, and the paired comparison of two models on the same examples.

On other examples, a model that is no better may come out above. A difference is therefore reported with its one-sided
lower confidence bound, and with the smallest true difference that so many examples detect in 80 % of cases.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy import special

from tpu_components.core.results.evaluation_info import Difference
from tpu_components.core.results.metric_table import direction
from tpu_components.evaluate_model.influence import Estimate, Formulas, jackknife, standard_error
from tpu_components.evaluate_model.params import NO_CONFIDENCE

_POWER = 0.8
_TWO_SIDED = 0.95
_HALVINGS = 30
_FEWEST = 10  # Examples that have to decide a figure from 0 to 1 that is no share of right answers.


@dataclasses.dataclass(frozen=True)
class ModelFigures:
    """The figures of one model on the examples that it is judged by.

    Attributes:
        figures: Every figure that is one number, by name.
        formulas: The influence of every example on those that have a formula.
        num_examples: Number of all.
        measure: Gives a figure of the examples of which bool[examples] is true; None where it is not defined.
    """

    figures: Mapping[str, float]
    formulas: Formulas
    num_examples: int
    measure: Callable[[str, np.ndarray], float | None] = lambda metric, kept: None


def find_chance(
    models: Sequence[ModelFigures], confidence: float, asked: Collection[str]
) -> tuple[dict[str, tuple[float, float]], dict[str, Difference]]:
    """Return the confidence intervals of the model's metrics and the differences from the champion, by metric name.

    Args:
        models: The model and, if there is one, the champion.
        confidence: Confidence of the differences, see `EvaluateParams`. The intervals are always two-sided, 95 %.
        asked: Figures whose differences are wanted even if they have no formula.
    """
    intervals, differences = {}, {}
    for metric, value in models[0].figures.items():
        estimates = [model.formulas[metric]() for model in models if metric in model.formulas]
        if estimates and (interval := find_interval(estimates[0], _TWO_SIDED)):
            intervals[metric] = interval
        values = [value, *(model.figures.get(metric, math.nan) for model in models[1:])]
        if len(values) < 2 or not all(map(math.isfinite, values)):
            continue
        if estimates:
            if difference := compare(estimates[0], estimates[1], direction(metric), confidence):
                differences[metric] = difference
        elif metric in asked and (influence := _jackknife(models, metric)) is not None:
            sign = direction(metric)
            differences[metric] = compare_means(sign * (values[0] - values[1]), sign * influence, confidence)
    return intervals, differences


def find_interval(estimate: Estimate, confidence: float) -> tuple[float, float] | None:
    """Return the two-sided confidence interval of a metric; None if there are too few examples.

    A share of right answers has the exact interval (Clopper and Pearson, 1934). Other metrics from 0 to 1 use it with
    the effective number of examples (Korn and Graubard, Survey Methodology 24, 1998), and need at least ten examples.
    Unbounded metrics use Student's t. A metric with its own method uses that.
    """
    if confidence == 0:
        return estimate.value, estimate.value
    if estimate.find_interval:
        return estimate.find_interval(confidence)
    if estimate.hits is not None:
        return _share_interval(estimate.value, len(estimate.hits), confidence)
    error, freedom = standard_error(estimate.influence)
    if estimate.support is not None:
        if estimate.support < _FEWEST:
            return None
        value = min(estimate.value + estimate.bias, 1.0)
        spread = value * (1 - value)
        if not error > 0 or not spread > 0:
            return _share_interval(value, estimate.support, confidence)
        freedom = min(estimate.support - 1, len(estimate.influence) - 1, estimate.freedom)
        ratio = special.ndtri((1 + confidence) / 2) / special.stdtrit(freedom, (1 + confidence) / 2)
        return _share_interval(value, spread * (ratio / error) ** 2, confidence)
    if not error > 0:
        return None
    half = float(special.stdtrit(freedom, (1 + confidence) / 2)) * error
    return estimate.value - half, estimate.value + half


def _share_interval(share: float, number: float, confidence: float) -> tuple[float, float]:
    hits, tail = share * number, (1 - confidence) / 2
    low = special.betaincinv(hits, number - hits + 1, tail) if hits > 0 else 0.0
    high = special.betaincinv(hits + 1, number - hits, 1 - tail) if hits < number else 1.0
    return float(low), float(high)


def compare(challenger: Estimate, champion: Estimate, sign: int, confidence: float) -> Difference | None:
    """Compare the metric of two models on the same examples; None if there are too few examples.

    Args:
        challenger: The model's.
        champion: The champion's.
        sign: `HIGHER` or `LOWER`, whichever is better.
        confidence: See `EvaluateParams`.
    """
    ours, theirs = challenger.hits, champion.hits
    if ours is not None and theirs is not None:
        if sign < 0:  # Of a share of wrong answers a hit is a mistake.
            ours, theirs = theirs, ours
        return compare_shares(int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours), confidence)
    supports = [estimate.support for estimate in (challenger, champion) if estimate.support is not None]
    if confidence == NO_CONFIDENCE:
        supports = []
    if min(supports, default=_FEWEST) < _FEWEST:
        return None
    shift = challenger.influence - champion.influence
    if not supports:
        slack = 0.0
    elif np.array_equal(challenger.influence, champion.influence):
        slack = _none_of(min(supports), confidence)
    else:
        weight, number = min((challenger.smallest, champion.smallest), key=lambda pair: pair[1])
        slack = weight * _none_of(number, confidence)
    difference = compare_means(sign * (challenger.value - champion.value), sign * shift, confidence, slack)
    if not supports:
        return difference
    intervals = [find_interval(estimate, confidence) for estimate in (challenger, champion)]
    return _tighten(difference, intervals[::sign], confidence)


def _tighten(difference: Difference, intervals: Sequence[tuple[float, float] | None], confidence: float) -> Difference:
    """Return a difference with the bounds that two figures' own intervals give, where these are tighter.

    A figure near 0 or 1 is sure though its standard error rests on one or two examples.
    """
    better, worse = intervals
    if better is None or worse is None or difference.least is None or difference.most is None:
        return difference
    least, most = max(difference.least, better[0] - worse[1]), min(difference.most, better[1] - worse[0])
    luck = min(difference.luck, 1 - confidence) if least > 0 else difference.luck
    return dataclasses.replace(difference, least=least, most=most, luck=luck)


def _jackknife(models: Sequence[ModelFigures], metric: str) -> np.ndarray | None:
    def measure(kept: np.ndarray) -> float | None:
        ours, theirs = (model.measure(metric, kept) for model in models)
        return None if ours is None or theirs is None else ours - theirs

    return jackknife(measure, models[0].num_examples)


def compare_shares(num_better: int, num_worse: int, num_examples: int, confidence: float) -> Difference:
    """Return the difference of two shares of right answers.

    The bounds are those of exact tests with the likeliest share of examples that both have right, or both wrong (Lloyd,
    Australian & New Zealand Journal of Statistics 50, 2008); luck is McNemar's exact test.

    Args:
        num_better: Examples that the challenger has right and the champion wrong.
        num_worse: Examples that the champion has right and the challenger wrong.
        num_examples: All of them.
        confidence: See `EvaluateParams`.
    """
    quantile = float(special.ndtri(confidence))
    differ = num_better + num_worse
    return Difference(
        advantage=(num_better - num_worse) / num_examples,
        least=_least_share(num_better, num_worse, num_examples, confidence),
        most=-_least_share(num_worse, num_better, num_examples, confidence),
        luck=float(special.betainc(num_better, num_worse + 1, 0.5)) if num_better else 1.0,
        detectable=_detectable_share(max(differ, 1), num_examples, quantile),
        num_better=num_better,
        num_worse=num_worse,
    )


def _none_of(number: float, confidence: float) -> float:
    """Return the greatest share of which so many examples may show none."""
    return float(1 - (1 - confidence) ** (1 / number))


def compare_means(advantage: float, influences: np.ndarray, confidence: float, slack: float = 0.0) -> Difference:
    """Return the difference of two figures by what every example, or group of them, adds to it.

    Args:
        advantage: Difference; above 0 where the challenger is better.
        influences: float64[examples or groups]: influence on it.
        confidence: See `EvaluateParams`.
        slack: Distance by which the true difference may be off where no influence differs.
    """
    error, freedom = standard_error(influences)
    if not error > 0 and not slack:  # All examples have the same influence on both.
        known = 0.0 if advantage == 0 else None
        return Difference(advantage, known, known, luck=1.0)
    quantile = float(special.stdtrit(freedom, confidence)) if error else 0.0
    half = math.hypot(quantile * error, slack)
    if error:
        luck = float(special.stdtr(freedom, -advantage / error))
        detectable = half + float(special.stdtrit(freedom, _POWER)) * error
    else:
        luck, detectable = (1.0 if advantage <= half else 1 - confidence), None
    return Difference(advantage, advantage - half, advantage + half, luck, detectable)


@functools.lru_cache(maxsize=4096)
def _least_share(better: int, worse: int, num_examples: int, confidence: float) -> float:
    """Return the lower confidence bound of the difference, by bisection: the p-value rises with the difference."""
    low, high = -1.0, (better - worse) / num_examples
    if confidence == NO_CONFIDENCE:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        refuted = _probability(better, worse, num_examples, middle) <= 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _probability(better: int, worse: int, n: int, difference: float) -> float:
    """Return how often the advantage would be as great as it is, or greater, if the true difference were another."""
    # The share of examples that the champion alone has right: the root of a·x² + b·x + c.
    a = 2 * n
    b = -better - worse + (2 * n - better + worse) * difference
    c = -worse * difference * (1 - difference)
    share_worse = (math.sqrt(max(b * b - 4 * a * c, 0)) - b) / (2 * a)
    share_worse = min(max(share_worse, 0.0, -difference), 1.0)
    share_better = min(max(share_worse + difference, 0.0), 1.0 - share_worse)
    middle, reach = n * share_worse, 8 * math.sqrt(n * share_worse) + 8
    numbers = np.arange(max(0, int(middle - reach)), min(n, int(middle + reach)) + 1)
    log_shares = special.gammaln(n + 1) - special.gammaln(numbers + 1) - special.gammaln(n - numbers + 1)
    shares = np.exp(log_shares + special.xlogy(numbers, share_worse) + special.xlog1py(n - numbers, -share_worse))
    needed = better - worse + numbers  # At least so many that the challenger alone has right.
    rest = n - numbers
    share = min(share_better / (1 - share_worse), 1.0) if share_worse < 1 else 0.0
    tail = special.betainc(np.maximum(needed, 1), np.maximum(rest - needed + 1, 1), share)
    above = np.where(needed <= 0, 1.0, np.where(needed > rest, 0.0, tail))
    return float(shares @ above)


def _detectable_share(differ: int, num_examples: int, quantile: float) -> float:
    """Return the smallest difference that McNemar's test detects with the power, at this number of differing answers.

    By the normal approximation (Connor, Biometrics 43, 1987), with half an example for what an exact test costs.
    """
    power = float(special.ndtri(_POWER))

    def needed(difference: float) -> float:
        share = max(differ / num_examples, difference)
        spread = quantile * math.sqrt(share) + power * math.sqrt(max(share - difference**2, 0))
        return spread / math.sqrt(num_examples) + 1 / num_examples

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= needed(middle) else (middle, high)
    return high

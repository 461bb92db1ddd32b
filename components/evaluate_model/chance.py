"""What chance leaves of figures that few examples give, and of the difference between two models on the same examples.

With other examples, a model that is no better may well come out above. A difference is therefore given with the bound
that it exceeds with a confidence, and with the true difference that so many examples show four times in five.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from components.evaluate_model.influence import Estimate, Formulas, jackknife, standard_error
from components.evaluation_info import Difference
from components.metric_table import direction

_POWER = 0.8
_TWO_SIDED = 0.95
_HALVINGS = 60  # Halves an interval to the last digit.
_WHOLE = 1e-6  # How far a 0 or a 1 may be off by rounding.


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
    """Return the intervals of a model's figures, and its differences from the champion's, by the figures' names.

    Args:
        models: The model and, if there is one, the champion.
        confidence: See `EvaluateParams`; intervals have 95 % on either side.
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
            differences[metric] = compare(estimates[0], estimates[1], direction(metric), confidence)
        elif metric in asked and (influence := _jackknife(models, metric)) is not None:
            sign = direction(metric)
            differences[metric] = compare_means(sign * (values[0] - values[1]), sign * influence, confidence)
    return intervals, differences


def find_interval(estimate: Estimate, confidence: float) -> tuple[float, float] | None:
    """Return what a figure lies in with a confidence on either side; None where one example cannot say.

    A share of right answers gets Wilson's score interval, which does not shrink to nothing where all are right.
    """
    from scipy import stats

    hits = _as_hits(estimate)
    if hits is not None:
        shares = stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(confidence, "wilson")
        return float(shares.low), float(shares.high)
    influence = estimate.influence
    if len(influence) < 2:
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, len(influence) - 1)) * standard_error(influence)
    return estimate.value - half, estimate.value + half


def compare(challenger: Estimate, champion: Estimate, sign: int, confidence: float) -> Difference:
    """Return how one estimate stands to another on the same examples.

    Args:
        challenger: The model's.
        champion: The champion's.
        sign: `HIGHER` or `LOWER`, whichever is better.
        confidence: See `EvaluateParams`.
    """
    ours, theirs = _as_hits(challenger), _as_hits(champion)
    if ours is None or theirs is None:
        shift = challenger.influence - champion.influence
        return compare_means(sign * (challenger.value - champion.value), sign * shift, confidence)
    if sign < 0:  # Of a share of wrong answers a hit is a mistake.
        ours, theirs = theirs, ours
    return compare_shares(int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours), confidence)


def _jackknife(models: Sequence[ModelFigures], metric: str) -> np.ndarray | None:
    def measure(kept: np.ndarray) -> float | None:
        ours, theirs = (model.measure(metric, kept) for model in models)
        return None if ours is None or theirs is None else ours - theirs

    return jackknife(measure, models[0].num_examples)


def compare_shares(num_better: int, num_worse: int, num_examples: int, confidence: float) -> Difference:
    """Return the difference of two shares of right answers.

    The bounds are Tango's score interval (Statistics in Medicine 17, 1998); luck is McNemar's exact test.

    Args:
        num_better: Examples that the challenger has right and the champion wrong.
        num_worse: Examples that the champion has right and the challenger wrong.
        num_examples: All of them.
        confidence: See `EvaluateParams`.
    """
    from scipy import stats

    quantile = float(stats.norm.ppf(confidence))
    differ = num_better + num_worse
    return Difference(
        advantage=(num_better - num_worse) / num_examples,
        least=_least_share(num_better, num_worse, num_examples, quantile),
        most=-_least_share(num_worse, num_better, num_examples, quantile),
        luck=float(stats.binom.sf(num_better - 1, differ, 0.5)),
        detectable=_detectable_share(max(differ, 1), num_examples, quantile),
        num_better=num_better,
        num_worse=num_worse,
    )


def compare_means(advantage: float, influences: np.ndarray, confidence: float) -> Difference:
    """Return the difference of two figures by what every example, or group of them, adds to it.

    The bounds are Student's. What few examples decide is less sure than their standard error says: the degrees of
    freedom are n / (kurtosis - 1), half of what Satterthwaite's rule gives: k, where the answers to k alone differ.

    Args:
        advantage: Difference; above 0 where the challenger is better.
        influences: float64[examples or groups]: influence on it.
        confidence: See `EvaluateParams`.
    """
    from scipy import stats

    error = standard_error(influences)
    if not error > 0:
        known = 0.0 if advantage == 0 else None
        return Difference(advantage, known, known, luck=1.0)
    squares = np.square(influences - influences.mean())
    kurtosis = float(np.square(squares).mean() / squares.mean() ** 2)
    freedom = min(len(influences) / max(kurtosis - 1, 1e-9), len(influences) - 1)
    half = float(stats.t.ppf(confidence, freedom)) * error
    return Difference(
        advantage=advantage,
        least=advantage - half,
        most=advantage + half,
        luck=float(stats.t.sf(advantage / error, freedom)),
        detectable=half + float(stats.t.ppf(_POWER, freedom)) * error,
    )


def _least_share(better: int, worse: int, num_examples: int, quantile: float) -> float:
    """Return the difference that the score test just does not refuse; it falls as the difference grows."""
    low, high = -1.0, (better - worse) / num_examples
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _score(better, worse, num_examples, middle) > quantile else (low, middle)
    return low


def _score(better: int, worse: int, n: int, difference: float) -> float:
    """Return by how many standard errors a difference of shares is above a supposed one."""
    # The share of the second kind that is likeliest if that were the difference: the root of a·x² + b·x + c.
    a = 2 * n
    b = -better - worse + (2 * n - better + worse) * difference
    c = -worse * difference * (1 - difference)
    likeliest = (math.sqrt(max(b * b - 4 * a * c, 0)) - b) / (2 * a)
    variance = n * (2 * likeliest + difference * (1 - difference))
    above = better - worse - n * difference
    return above / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, above) if above else 0.0


def _detectable_share(differ: int, num_examples: int, quantile: float) -> float:
    """Return the difference that McNemar's test sees with the power, if so many answers differ as now, or must.

    By the normal approximation (Connor, Biometrics 43, 1987), with half an example for what an exact test costs.
    """
    from scipy import stats

    power = float(stats.norm.ppf(_POWER))

    def needed(difference: float) -> float:
        share = max(differ / num_examples, difference)
        spread = quantile * math.sqrt(share) + power * math.sqrt(max(share - difference**2, 0))
        return spread / math.sqrt(num_examples) + 1 / num_examples

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= needed(middle) else (middle, high)
    return high


def _as_hits(estimate: Estimate) -> np.ndarray | None:
    """Return bool[examples] where a figure is the mean of a 0 or a 1 per example; None where it is not."""
    values = estimate.influence + estimate.value
    hits: np.ndarray = values > 0.5
    return hits if np.abs(values - hits).max(initial=0) < _WHOLE else None

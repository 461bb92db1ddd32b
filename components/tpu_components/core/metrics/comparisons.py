"""Comparison of the metrics of two models, the challenger and the champion, on the same examples.

Because the examples are the same, the influence of an example on the difference of two metrics is the difference of
its influences on the two metrics; see `estimates`.

A model that is no better may score higher by chance. A difference is therefore reported with its one-sided lower
confidence bound, and with the smallest true difference that this number of examples detects with a power of 80%.
"""

import dataclasses
import functools
import math

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.frameworks import special
from tpu_components.core.metrics.definitions import NO_CONFIDENCE
from tpu_components.core.metrics.estimates import Estimate, standard_error
from tpu_components.core.metrics.intervals import FEWEST_EXAMPLES, bisect, find_interval
from tpu_components.core.metrics.model_metrics import ModelMetrics

_POWER = 0.8


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference between a model and the champion in one metric on the same examples, with confidence bounds.

    Attributes:
        advantage: Amount by which the model is better than the champion. Negative if the model is worse.
        least: Lower confidence bound of the true difference, at the gate's confidence, or None if there are too few
            examples.
        most: Upper confidence bound of the true difference, at the same confidence, or None if there are too few
            examples.
        luck: One-sided p-value: the probability of this advantage, or a larger one, if the model is no better.
        detectable: Smallest true difference that a test with these examples would detect with a power of 80%, or None
            if there are too few examples.
        num_better: Number of examples that only the model predicts correctly, or None if the metric is not a share of
            correct predictions.
        num_worse: Number of examples that only the champion predicts correctly, or None if `num_better` is None.
    """

    advantage: float
    least: float | None
    most: float | None
    luck: typed_values.Share
    detectable: float | None = None
    num_better: int | None = None
    num_worse: int | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """`least` and `most`, or None if there are too few examples."""
        return None if self.least is None or self.most is None else (self.least, self.most)

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant, that is, whether 0 is outside the confidence bounds."""
        return self.bounds is not None and not self.bounds[0] <= 0 <= self.bounds[1]


def compare_metrics(challenger: ModelMetrics, champion: ModelMetrics, confidence: float) -> dict[str, Difference]:
    """Return {metric: difference} for a model and the champion on the same examples, with confidence bounds.

    Metrics that are undefined, or have too few examples to compare, are left out.
    """
    differences = {
        name: compare(estimate, champion.estimates[name], sign, confidence)
        for name, estimate in challenger.estimates.items()
        if name in champion.estimates and (sign := challenger.sign_of(name))
    }
    return {name: difference for name, difference in differences.items() if difference}


def compare(challenger: Estimate, champion: Estimate, sign: int, confidence: float) -> Difference | None:
    """Return the difference between two models in one metric on the same examples.

    Return None if there are too few examples.

    Args:
        challenger: Metric of the model.
        champion: Metric of the champion.
        sign: `HIGHER` if larger values of the metric are better, otherwise `LOWER`.
        confidence: Confidence level of each of the two bounds, at least 0.5.
    """
    ours, theirs = challenger.hits, champion.hits
    if ours is not None and theirs is not None:
        return compare_shares(int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours), confidence)
    advantage = sign * (challenger.value - champion.value)
    shift = challenger.correction * challenger.influence - champion.correction * champion.influence
    if challenger.support is None or champion.support is None or confidence == NO_CONFIDENCE:
        return _compare_means(advantage, sign * shift, confidence)
    fewest = min(challenger.support, champion.support)
    if fewest < FEWEST_EXAMPLES:
        return None
    # Upper confidence bound of a share, if none of so many examples has the property.
    weight, number = min((challenger.smallest, champion.smallest), key=lambda pair: pair[1])
    weight, number = (weight, number) if shift.any() else (1.0, fewest)
    slack = weight * float(1 - (1 - confidence) ** (1 / number))
    bias = sign * (champion.bias - challenger.bias)
    difference = _compare_means(advantage, sign * shift, confidence, slack, bias)
    # A metric near 0 or 1 is reliable although its standard error rests on one or two examples.
    better, worse = (find_interval(estimate, confidence) for estimate in (challenger, champion)[::sign])
    if better is None or worse is None or difference.bounds is None:
        return difference
    least, most = max(difference.bounds[0], better[0] - worse[1]), min(difference.bounds[1], better[1] - worse[0])
    luck = min(difference.luck, 1 - confidence) if least > 0 else difference.luck
    return dataclasses.replace(difference, least=least, most=most, luck=luck)


def compare_shares(num_better: int, num_worse: int, num_examples: int, confidence: float) -> Difference:
    """Return the difference between two models' shares of correct predictions.

    The bounds come from exact tests. These tests do not know the true share of examples on which both models are right
    or both are wrong, and use its most likely value (Lloyd, Australian & New Zealand Journal of Statistics 50, 2008).
    `luck` is McNemar's exact p-value.

    Args:
        num_better: Number of examples that only the challenger predicts correctly.
        num_worse: Number of examples that only the champion predicts correctly.
        num_examples: Total number of examples.
        confidence: Confidence level of each of the two bounds, at least 0.5.
    """
    return Difference(
        advantage=(num_better - num_worse) / num_examples,
        least=_least_share(num_better, num_worse, num_examples, confidence),
        most=-_least_share(num_worse, num_better, num_examples, confidence),
        luck=float(special.betainc(num_better, num_worse + 1, 0.5)) if num_better else 1.0,
        detectable=_detectable_share(max(num_better + num_worse, 1), num_examples, float(special.ndtri(confidence))),
        num_better=num_better,
        num_worse=num_worse,
    )


def _compare_means(
    advantage: float, influences: np.ndarray, confidence: float, slack: float = 0.0, bias: float = 0.0
) -> Difference:
    """Return the difference of a metric between two models, with confidence bounds.

    Args:
        advantage: Measured difference; positive if the challenger is better.
        influences: float64[examples]: influence of each example, or group of examples, on `advantage`; see `Estimate`.
            The standard error of the difference follows from these values.
        confidence: See `EvaluateParams`.
        slack: Distance of the bounds from `advantage` if all influences are equal, so that the standard error is 0.
            Otherwise, it is combined with the distance that follows from the standard error.
        bias: Expected value of the difference on this number of examples, minus its expected value on many examples.
    """
    error, freedom = standard_error(influences)
    if error:
        half = math.hypot(float(special.stdtrit(freedom, confidence)) * error, slack)
        luck = float(special.stdtr(freedom, -advantage / error))
        detectable = half + float(special.stdtrit(freedom, _POWER)) * error
        least = advantage - half - max(bias, 0)
        most = advantage + half + max(-bias, 0)
        return Difference(advantage, least, most, luck, detectable)
    if not slack:  # Every example has the same influence on both metrics.
        known = 0.0 if advantage == 0 else None
        return Difference(advantage, known, known, luck=1.0)
    luck = 1.0 if advantage <= slack else 1 - confidence
    return Difference(advantage, advantage - slack, advantage + slack, luck)


@functools.lru_cache(maxsize=4096)
def _least_share(better: int, worse: int, num_examples: int, confidence: float) -> float:
    """Return the lower confidence bound of (`better` - `worse`) / `num_examples`, found by bisection.

    Args:
        better: Number of examples that only the challenger predicts correctly.
        worse: Number of examples that only the champion predicts correctly.
        num_examples: Total number of examples.
        confidence: One-sided confidence.
    """
    advantage = (better - worse) / num_examples
    if confidence == NO_CONFIDENCE:
        return advantage

    def is_possible(difference: float) -> bool:
        return find_chance(better, worse, num_examples, difference) > 1 - confidence

    return bisect(is_possible, -1.0, advantage)[0]


def find_chance(better: int, worse: int, n: int, difference: float) -> float:
    """Return the p-value of the challenger's advantage, which is (`better` - `worse`) / `n`.

    The p-value is the probability of at least this advantage if the true difference is `difference`.

    Args:
        better: Number of examples that only the challenger predicts correctly.
        worse: Number of examples that only the champion predicts correctly.
        n: Total number of examples.
        difference: Assumed true difference between the challenger's and the champion's share of correct predictions.
    """
    # The share of examples that the champion alone has right: the root of a·x² + b·x + c.
    a = 2 * n
    b = -better - worse + (2 * n - better + worse) * difference
    c = -worse * difference * (1 - difference)
    share_worse = (math.sqrt(max(b * b - 4 * a * c, 0)) - b) / (2 * a)
    share_worse = min(max(share_worse, 0.0, -difference), 1.0)
    share_better = min(max(share_worse + difference, 0.0), 1.0 - share_worse)
    middle = n * share_worse
    reach = 8 * math.sqrt(n * share_worse) + 8
    numbers = np.arange(max(0, int(middle - reach)), min(n, int(middle + reach)) + 1)
    log_shares = special.gammaln(n + 1) - special.gammaln(numbers + 1) - special.gammaln(n - numbers + 1)
    shares = np.exp(log_shares + special.xlogy(numbers, share_worse) + special.xlog1py(n - numbers, -share_worse))
    share = min(share_better / (1 - share_worse), 1.0) if share_worse < 1 else 0.0
    rest = n - numbers
    needed = better - worse + numbers  # Fewest examples that only the challenger has right.
    return float(shares @ special.bdtrc(np.minimum(needed - 1, rest), rest, share))


def _detectable_share(differ: int, num_examples: int, quantile: float) -> float:
    """Return the smallest difference between two shares that McNemar's test detects with a probability of 80%.

    The difference is computed by the normal approximation (Connor, Biometrics 43, 1987) with a continuity correction.

    Args:
        differ: Number of examples that only one of the two models predicts correctly.
        num_examples: Total number of examples.
        quantile: Quantile of the normal distribution for the test's confidence.
    """
    power = float(special.ndtri(_POWER))

    def is_enough(difference: float) -> bool:
        share = max(differ / num_examples, difference)
        spread = quantile * math.sqrt(share) + power * math.sqrt(max(share - difference**2, 0))
        return difference >= spread / math.sqrt(num_examples) + 1 / num_examples

    return bisect(is_enough, 0.0, 1.0)[1]

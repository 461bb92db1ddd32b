"""Estimates of metrics, with the influence of every example on them.

The influence of an example is the first-order change of a metric with the weight of the example. The standard deviation
of the influences divided by √n is the metric's standard error (the infinitesimal jackknife: Efron, 1982).

Examples of one group, such as the images of one patient, depend on each other. The influences of a group are added up,
and the groups replace the examples (the cluster-robust variance: Liang and Zeger, Biometrika 73, 1986).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tpu_components.core.base.frameworks import sparse, special
from tpu_components.core.examples.interface import PADDING

_SMALLEST_PROBABILITY = 1e-7
_NUM_PARTS = 40
_WOODRUFF_CONFIDENCE = 0.99


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric of one model, and the values that its standard error and confidence interval are computed from.

    Attributes:
        value: Value of the metric.
        influence: float64[examples]: influence of every example, or group of examples, on the metric. The mean is 0,
            except for classes with few examples; see `class_means`.
        hits: bool[examples]: whether each prediction is correct, if the metric is the share of correct predictions.
            None for other metrics.
        support: For a metric between 0 and 1 without `hits`, the number of examples, or groups, that determine it. None
            for other metrics.
        correction: Factor by which the standard error is multiplied; above 1 for few examples.
        freedom: Upper limit of the degrees of freedom of the standard error.
        bias: Expected value of the metric on many examples, minus its expected value on this number of examples.
        smallest: Weight of the smallest class in a mean over classes, and the number of examples of that class.
        interval_method: Function that returns the confidence interval for a confidence level. None if the metric has no
            method of its own.
        num_independent: Number of independent examples that would give the same standard error, or None if the examples
            are not grouped.
    """

    value: float
    influence: np.ndarray
    hits: np.ndarray | None = None
    support: float | None = None
    correction: float = 1.0
    freedom: float = math.inf
    bias: float = 0.0
    smallest: tuple[float, float] = (0.0, 1.0)
    interval_method: Callable[[float], tuple[float, float] | None] | None = None
    num_independent: float | None = None


def standard_error(influence: np.ndarray) -> tuple[float, float]:
    """Return the standard error of a metric and its degrees of freedom, from the influences of the examples.

    The degrees of freedom are n / (kurtosis - 1), at most n - 1. This is half of what Satterthwaite's rule gives. If
    only k examples have an influence, there are about k degrees of freedom. Both results are 0 if no example has an
    influence, or if there is only one example.
    """
    num_examples = len(influence)
    squares = np.square(influence)
    error = math.sqrt(float(squares.sum()) / (num_examples * max(num_examples - 1, 1)))
    if num_examples < 2 or not error > 0:
        return 0.0, 0.0
    kurtosis = float(np.square(squares).mean() / squares.mean() ** 2)
    return error, min(num_examples / max(kurtosis - 1, 1e-9), num_examples - 1)


def members_of(groups: np.ndarray) -> Any:
    """Return a sparse matrix, float64[groups, examples], that is 1 where an example belongs to a group."""
    codes = np.unique(groups, return_inverse=True)[1]
    return sparse.csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))))


def by_group(estimate: Estimate, members: Any) -> Estimate:
    """Return an estimate with the influences of groups instead of examples.

    `members` is a result of `members_of`.
    """
    (num_groups, num_examples), sizes = members.shape, members.sum(axis=1)
    influence = members @ estimate.influence * (num_groups / num_examples)
    (error, freedom), single = standard_error(influence), standard_error(estimate.influence)[0]
    # Number of groups of equal size with the same precision (Kish, Survey Sampling, 1965).
    num_alike = num_examples**2 / float(sizes @ sizes)
    return dataclasses.replace(
        estimate,
        influence=influence,
        hits=None,
        support=estimate.support if estimate.hits is None else num_alike,
        freedom=2 * freedom if estimate.freedom < math.inf else math.inf,
        num_independent=min(num_examples * (single / error) ** 2, num_examples) if error else num_alike,
    )


def count_deciding(present: Any, members: Any) -> Any:
    """Count, for each class, the examples with a true value in `present`, bool[examples, classes].

    If `members`, from `members_of`, is not None, count the groups that contain at least one of these examples. The
    result is float64[classes].
    """
    return present.sum(axis=0) if members is None else (members @ present > 0).sum(axis=0)


def mean(values: np.ndarray) -> Estimate:
    """Estimate the mean of `values`, float[examples]."""
    value = float(values.mean(dtype=np.float64)) + 0.0  # No "-0.0".
    return Estimate(value, values - value)


def share_of(hits: np.ndarray) -> Estimate:
    """Estimate the share of correct predictions from `hits`, bool[examples]."""
    return dataclasses.replace(mean(hits), hits=hits)


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimate the sum of `parts` divided by the sum of `wholes`, both float[examples].

    The estimate is 0 if the sum of `wholes` is 0.
    """
    value = float(parts.sum() / (wholes.sum() or 1))
    return Estimate(value, (parts - value * wholes) / (wholes.mean() or 1))


def ratio_of_hits(parts: np.ndarray, wholes: np.ndarray, members: Any) -> Estimate:
    """Estimate a ratio of two sums that is from 0 to 1, such as F1.

    Unlike the result of `ratio`, the estimate has `support` and `correction`, which an interval in [0, 1] needs.

    Args:
        parts: Numerators, float[examples], each from 0 to its denominator.
        wholes: Denominators, float[examples].
        members: Groups of dependent examples, as `members_of` returns them. None if all examples are independent.
    """
    decide = float(count_deciding(wholes[:, None] != 0, members).sum())
    estimate = ratio(parts, wholes)
    # A hit counts twice in the denominator of F1, a mistake once. Mistakes alone are therefore half the evidence.
    support = decide if estimate.value else decide / 2
    return dataclasses.replace(estimate, support=support, correction=math.sqrt(decide / max(decide - 1, 1)))


def r_squared(targets: np.ndarray, values: np.ndarray) -> Estimate | None:
    """Estimate R², averaged over the targets. Return None if all values of a target are equal."""
    errors = np.square(targets - values)
    whole = np.square(targets - targets.mean(axis=0))
    variance = targets.var(axis=0)
    if not variance.all():
        return None
    shares = 1 - errors.mean(axis=0) / variance
    return Estimate(float(shares.mean()), ((whole - errors - shares * whole) / variance).mean(axis=1))


def root_mean(squares: np.ndarray) -> Estimate:
    """Estimate the square root of the mean of `squares` over the examples, averaged over the targets."""
    roots = np.sqrt(squares.mean(axis=0))
    shifts = (squares - squares.mean(axis=0)) / np.where(roots > 0, 2 * roots, 1)
    return Estimate(float(roots.mean()), shifts.mean(axis=1))


def median(values: np.ndarray) -> Estimate:
    """Estimate the median of `values` over the examples, averaged over the targets.

    The standard error follows from how far one example shifts the median: by half the distance between adjacent values.
    This distance is the mean over the values inside the median's 99% interval (Woodruff, Journal of the American
    Statistical Association 47, 1952).
    """
    medians = np.median(values, axis=0)
    quantile = float(special.ndtri((1 + _WOODRUFF_CONFIDENCE) / 2))
    reach = min(quantile / (2 * math.sqrt(len(values))), 0.5)
    low, high = np.quantile(values, [0.5 - reach, 0.5 + reach], axis=0)
    shifts = np.sign(values - medians) * (high - low) / (4 * reach)
    return Estimate(float(medians.mean()), shifts.mean(axis=1))


def score_passages(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return two scores of every target character, float64[passages, num_tokens, 2]. The scores of padding are 0.

    The first score is minus the logarithm of the target's probability, clipped at 1e-7. The second is 1 if the target
    is the most probable class, otherwise 0. In a tie, the first class wins.

    Args:
        targets: int[passages, num_tokens]: IDs of the characters; 0 is padding.
        outputs: float32[passages, num_tokens, classes]: probabilities.
    """
    chosen = np.take_along_axis(outputs, targets[..., None].astype(np.int64), -1)[..., 0].astype(np.float64)
    scores = np.stack([-np.log(chosen.clip(_SMALLEST_PROBABILITY, 1)), outputs.argmax(-1) == targets], axis=-1)
    return np.where((targets != PADDING)[..., None], scores, 0.0)


def jackknife(
    measure: Callable[..., float], targets: np.ndarray, outputs: np.ndarray, groups: np.ndarray | None = None
) -> Estimate | None:
    """Estimate any metric by the jackknife, which leaves out one part of the examples at a time.

    The standard error is that of the delete-a-group jackknife (Kott, Journal of Official Statistics 17, 2001). All
    examples of a group are in the same part, because they depend on each other.

    Args:
        measure: Function of targets and outputs that returns the metric's value.
        targets: Targets of all examples.
        outputs: Predictions for all examples.
        groups: int[examples]: the group that each example belongs to, or None if all are independent.

    Returns:
        The estimate, or None if the metric is not finite, with all examples or without a part of them.
    """
    num_examples = len(targets)
    codes = np.arange(num_examples) if groups is None else np.unique(groups, return_inverse=True)[1]
    num_parts = min(_NUM_PARTS, int(codes.max()) + 1)
    parts = codes % num_parts
    value = measure(targets, outputs)
    without = np.array([measure(targets[parts != i], outputs[parts != i]) for i in range(num_parts)])
    if not np.isfinite([value, *without]).all():
        return None
    # Scaled so that `standard_error`, which counts examples, gives the standard error of the parts.
    scale = math.sqrt((num_parts - 1) * (num_examples - 1))
    return Estimate(value, ((without.mean() - without) * scale)[parts])

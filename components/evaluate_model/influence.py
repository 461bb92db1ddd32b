"""How much every example shifts a figure: its chance error follows from that.

In the first order a figure moves by the mean of one value per example, its influence; the standard deviation of these
by √n is its standard error (the infinitesimal jackknife: Efron, 1982). Two models answer the same examples, so that
the difference of their influences is the influence on the difference. A figure that has no formula here is measured
without every twentieth of the examples in turn instead (the delete-d jackknife: Shao and Wu, 1989).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, PADDING, REGRESSION, THRESHOLD, Task
from tpu_components.evaluate_model.metrics import calibration_bins, ranks

_NUM_GROUPS = 20
_MOST_BIAS = 0.5  # In standard errors.
_NUM_DRAWS, _HALVINGS = 1000, 12
_FEW = 5  # The variance within a class of fewer examples cannot be estimated by them alone.


class Estimate(NamedTuple):
    """A figure of one model.

    Attributes:
        value: The figure.
        influence: float64[examples]: influence of every example on it; their mean is 0, but for classes with few
            examples, see `_centers`.
        hits: bool[examples], for a share of right (or wrong) answers; None for other figures.
        support: Number of examples that decide another figure from 0 to 1; None for other figures.
        freedom: Most degrees of freedom that its standard error has.
        bias: Expected distance of the figure below the same figure of many examples.
        smallest: Weight of the smallest class in a mean over classes, and the number of its examples.
        find_interval: Bounds with a confidence on either side, of a figure that has a method of its own.
    """

    value: float
    influence: np.ndarray
    hits: np.ndarray | None = None
    support: float | None = None
    freedom: float = math.inf
    bias: float = 0.0
    smallest: tuple[float, float] = (0.0, 1.0)
    find_interval: Callable[[float], tuple[float, float] | None] | None = None


Formulas = Mapping[str, Callable[[], Estimate]]


def influences(task: Task, labels: np.ndarray, outputs: np.ndarray, top_k: int) -> Formulas:
    """Return for every figure that has a formula the function that estimates it.

    Args:
        task: Any but a language model.
        labels: Targets of all examples, each shaped as `Interface.target_shape` says.
        outputs: Answers to all examples, each shaped as `Interface.output_shape` says; all finite.
        top_k: See `Metrics`.
    """
    return _FORMULAS[task.name](task, labels, outputs, top_k)


def language_influences(targets: np.ndarray, nats: np.ndarray, hits: np.ndarray) -> Formulas:
    """Return the same for a language model, whose examples are passages.

    Args:
        targets: int[passages, num_tokens]; 0 does not count.
        nats: float64[passages, num_tokens]: see `PassageScores`.
        hits: bool[passages, num_tokens]: see `PassageScores`.
    """
    weights = (targets != PADDING).sum(axis=1)
    sums = nats.sum(axis=1)
    return {
        "bits_per_character": lambda: ratio(sums / np.log(2), weights),
        "loss": lambda: ratio(sums, weights),
        "accuracy": lambda: ratio_of_hits(hits.sum(axis=1), weights),
    }


def jackknife(measure: Callable[[np.ndarray], float | None], num_examples: int) -> np.ndarray | None:
    """Return float64[groups]: how much each of 20 groups of examples shifts a figure; their mean is 0.

    Args:
        measure: Gives the figure of the examples of which bool[examples] is true; None where it is not defined.
        num_examples: Number of all.

    Returns:
        None where the figure is not defined without some group.
    """
    groups = np.random.default_rng(0).permutation(num_examples) % min(_NUM_GROUPS, num_examples)
    left = [measure(groups != group) for group in range(groups.max() + 1)]
    if any(value is None for value in left):
        return None
    values = np.array(left, np.float64)
    return (values.mean() - values) * (len(values) - 1)


def _classification(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int) -> Formulas:
    predicted = probabilities.argmax(axis=1)
    hit = (predicted == labels).astype(np.float64)
    num_classes = probabilities.shape[1]

    def over_classes(*roles: np.ndarray) -> Estimate:
        """Estimate the mean over all classes of the share that is right of those that are in one of the roles."""
        counts, right = (
            np.sum([np.bincount(members, weights, num_classes) for members in roles], axis=0) for weights in (None, hit)
        )
        decide = counts - right * (len(roles) - 1) / len(roles)  # An example in both roles is one.
        centers, scales = _centers(right, counts, decide)
        shifts = np.sum([(hit - centers[members]) * scales[members] for members in roles], axis=0)
        return _mean_of_shares(right, counts, decide, centers, shifts * len(hit) / num_classes, len(roles) > 1)

    def calibration() -> Estimate:
        confidence, bins = calibration_bins(probabilities)
        gap = hit - confidence
        value, influence, *_ = mean(gap * np.sign(np.bincount(bins, gap))[bins])
        return Estimate(value, influence, find_interval=lambda sure: _calibration_interval(hit, confidence, bins, sure))

    formulas: dict[str, Callable[[], Estimate]] = {
        "accuracy": lambda: share(hit),
        "top_k_accuracy": lambda: share(ranks(labels, probabilities) < max(1, min(top_k, num_classes - 1))),
        "loss": lambda: mean(task.losses(labels, probabilities)),
        "macro_precision": lambda: over_classes(predicted),
        "macro_recall": lambda: over_classes(labels),
        "macro_f1": lambda: over_classes(labels, predicted),
        "calibration_error": calibration,
    }
    if num_classes == 2:
        formulas["roc_auc"] = lambda: _mean_area(
            (labels == 1)[:, None], _rights(labels == 1, probabilities[:, 1])[:, None]
        )
    return formulas


def _multi_label(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int) -> Formulas:
    true, predicted = labels > 0, probabilities > THRESHOLD
    hits, wholes = 2.0 * (true & predicted), 1.0 * true + predicted

    def over_labels(parts: np.ndarray, wholes: np.ndarray, is_f1: bool = False) -> Estimate:
        right, counts, decide = parts.sum(axis=0), wholes.sum(axis=0), np.count_nonzero(wholes, axis=0)
        centers, scales = _centers(right, counts, decide)
        shifts = (parts - centers * wholes) @ scales
        return _mean_of_shares(right, counts, decide, centers, shifts * len(parts) / len(counts), is_f1)

    def areas() -> Estimate:
        mixed = [i for i in range(labels.shape[1]) if true[:, i].any() and not true[:, i].all()]
        columns = [_rights(true[:, i], probabilities[:, i]) for i in mixed]
        return _mean_area(true[:, mixed], np.array(columns).T)

    return {
        "micro_f1": lambda: ratio_of_hits(hits.sum(axis=1), wholes.sum(axis=1)),
        "macro_f1": lambda: over_labels(hits, wholes, is_f1=True),
        "macro_precision": lambda: over_labels(hits / 2, predicted),
        "macro_recall": lambda: over_labels(hits / 2, true),
        "subset_accuracy": lambda: share((true == predicted).all(axis=1)),
        "hamming_loss": lambda: ratio_of_hits((true != predicted).sum(axis=1), np.full(len(labels), labels.shape[1])),
        "macro_roc_auc": areas,
        "loss": lambda: mean(task.losses(labels, probabilities)),
    }


def _regression(task: Task, targets: np.ndarray, values: np.ndarray, top_k: int) -> Formulas:
    targets = targets.astype(np.float64)
    errors = np.square(targets - values)

    def root() -> Estimate:
        roots = np.sqrt(errors.mean(axis=0))
        shifts = (errors - errors.mean(axis=0)) / np.where(roots > 0, 2 * roots, 1)
        return Estimate(float(roots.mean()), shifts.mean(axis=1))

    return {
        "r2": lambda: explained(targets, values),
        "mean_absolute_error": lambda: mean(np.abs(targets - values).mean(axis=1)),
        "root_mean_squared_error": root,
        "loss": lambda: mean(task.losses(targets, values)),
    }


_FORMULAS: Mapping[str, Callable[[Task, np.ndarray, np.ndarray, int], Formulas]] = {
    CLASSIFICATION: _classification,
    MULTI_LABEL: _multi_label,
    REGRESSION: _regression,
}


def mean(values: np.ndarray) -> Estimate:
    """Estimate the mean of a value for each example."""
    value = float(values.mean(dtype=np.float64))
    return Estimate(value, values - value)


def share(hits: np.ndarray) -> Estimate:
    """Estimate the share of examples that are right, or wrong, from a 0 or a 1 for each."""
    return mean(hits)._replace(hits=hits > 0)


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimate the sum of parts by that of wholes; 0 where there are none."""
    value = float(parts.sum() / (wholes.sum() or 1))
    return Estimate(value, (parts - value * wholes) / (wholes.mean() or 1))


def ratio_of_hits(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimate the same of parts from 0 to their whole, as for F1."""
    decide = float(np.count_nonzero(wholes))
    value, influence, *_ = ratio(parts, wholes)
    # All mistakes say half of an F1 of 0, as much as the same number of hits says of an F1 of 1.
    support = decide if value else decide / 2
    return Estimate(value, influence * math.sqrt(decide / max(decide - 1, 1)), support=support)


def explained(targets: np.ndarray, values: np.ndarray) -> Estimate:
    """Estimate R², the mean over targets, none of which may be the same for all examples."""
    errors, whole = np.square(targets - values), np.square(targets - targets.mean(axis=0))
    variance = targets.var(axis=0)
    shares = 1 - errors.mean(axis=0) / variance
    return Estimate(float(shares.mean()), ((whole - errors - shares * whole) / variance).mean(axis=1))


def standard_error(influence: np.ndarray) -> tuple[float, float]:
    """Return the standard error of a figure by the influence of every example, and its degrees of freedom.

    The degrees of freedom are n / (kurtosis - 1), half of what Satterthwaite's rule gives: k, if only k examples have
    an influence. Both are 0 if none has, and for a single example.
    """
    num_examples = len(influence)
    squares = np.square(influence)
    error = math.sqrt(float(squares.sum()) / (num_examples * max(num_examples - 1, 1)))
    if num_examples < 2 or not error > 0:
        return 0.0, 0.0
    kurtosis = float(np.square(squares).mean() / squares.mean() ** 2)
    return error, min(num_examples / max(kurtosis - 1, 1e-9), num_examples - 1)


def _centers(right: np.ndarray, counts: np.ndarray, decide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float64[classes] twice: from what examples of a class deviate, and the weight of the deviation.

    The center is the class's own share. For few examples it is the share of all classes: the variance of few examples
    around their own share is far too small, and that of a single one is 0. Around another number it is never too small.

    Args:
        right: float64[classes]: what is right.
        counts: float64[classes]: of how much.
        decide: float64[classes]: number of examples that this is of.
    """
    few = decide < _FEW
    centers = np.where(few, right.sum() / max(counts.sum(), 1), right / np.maximum(counts, 1))
    correction = np.where(few, 1, np.sqrt(decide / np.maximum(decide - 1, 1)))
    return centers, correction / np.maximum(counts, 1)


def _mean_of_shares(
    right: np.ndarray, counts: np.ndarray, decide: np.ndarray, centers: np.ndarray, influence: np.ndarray, is_f1: bool
) -> Estimate:
    value = float((right / np.maximum(counts, 1)).mean())
    smallest = 1 / len(decide), float(decide[decide > 0].min(initial=len(influence)))
    freedom = 2 * standard_error(influence)[1]
    estimate = Estimate(value, influence, support=_num_deciding(decide), freedom=freedom, smallest=smallest)
    if is_f1 and decide.any():
        # F1 is 2 j / (1 + j), where j is the share of hits among what is true or predicted. The curve is concave: its
        # mean over few examples is below the F1 of many.
        j = centers / (2 - centers)
        bias = (2 * j * (1 - j) / (1 + j) ** 3 / np.maximum(decide - 1, 1))[decide > 0].sum() / len(decide)
        if bias > _MOST_BIAS * standard_error(influence)[0]:
            return estimate._replace(find_interval=lambda confidence: None)
        return estimate._replace(bias=float(bias))
    return estimate


def _num_deciding(counts: np.ndarray) -> float:
    """Return how many examples decide a mean over classes of so many: all if they are alike, else mainly the fewest."""
    inverse = 1 / counts[counts > 0]
    return float(inverse.sum() ** 2 / (inverse**3).sum()) if len(inverse) else 0.0


def _rights(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return float64[examples]: share of the other kind that a score stands right to; a tie counts half."""
    from scipy.stats import rankdata

    ranks_of_all, rights = rankdata(score), np.empty(len(score))
    for kind in (True, False):
        own = positive == kind
        below = (ranks_of_all[own] - rankdata(score[own])) / (~own).sum()
        rights[own] = below if kind else 1 - below
    return rights


def _mean_area(positive: np.ndarray, rights: np.ndarray) -> Estimate:
    """Estimate the mean of the areas under the ROC curves of bool[examples, labels] (DeLong et al., 1988)."""
    num_examples, num_labels = positive.shape
    counts = positive.sum(axis=0)
    areas = np.where(positive, rights, 0).sum(axis=0) / counts
    influence = np.zeros(num_examples)
    for kind, number in ((positive, counts), (~positive, num_examples - counts)):
        centers, scales = _centers(areas * number, number, number)
        influence += np.where(kind, rights - centers, 0) @ scales
    fewest = np.minimum(counts, num_examples - counts)
    influence *= num_examples / num_labels
    freedom = 2 * standard_error(influence)[1]
    return Estimate(float(areas.mean()), influence, support=_num_deciding(fewest), freedom=freedom)


def _calibration_interval(
    hit: np.ndarray, confidence: np.ndarray, bins: np.ndarray, sure: float
) -> tuple[float, float]:
    """Return the bounds of the calibration error.

    The error is a sum of absolute gaps between confidence and accuracy, one for each bin. Chance alone gives every bin
    a gap, so that the error is too high, most of all for a calibrated model. The lower bound is the error of gaps that
    are smaller by so much that one as high as the computed one is as rare as the confidence says. The gaps are drawn
    from normal distributions. The upper bound ignores that the error is too high.
    """
    counts = np.bincount(bins)
    used = np.flatnonzero(counts)
    counts = counts[used]
    gaps = np.bincount(bins, hit - confidence)[used] / counts
    middle = np.bincount(bins, confidence)[used] / counts
    smoothed = (np.bincount(bins, hit)[used] + 1) / (counts + 2)
    errors = np.sqrt(np.maximum(middle * (1 - middle), smoothed * (1 - smoothed)) / counts)
    noises = np.random.default_rng(0).normal(size=(_NUM_DRAWS, len(used))) * errors
    weights = counts / len(hit)
    error = float(np.abs(gaps) @ weights)

    low, high = 0.0, 1.0  # The gaps' true size, in units of those that were computed.
    for _ in range(_HALVINGS):
        size = (low + high) / 2
        is_below = np.quantile(np.abs(size * gaps + noises) @ weights, (1 + sure) / 2) < error
        low, high = (size, high) if is_below else (low, size)
    upper = error + float(special.ndtri((1 + sure) / 2) * np.linalg.norm(weights * errors))
    return low * error, min(upper, 1.0)

"""Estimates metrics and their confidence intervals, and compares the metrics of two models.

The influence of an example is the first-order change of a metric with the weight of the example. The standard deviation
of the influences divided by √n is the metric's standard error (the infinitesimal jackknife: Efron, 1982). Two models
predict the same examples, so the influence on the difference of their metrics is the difference of their influences.

Examples of one group, as the pictures of a patient, depend on each other. The influences of a group are added up, and
the groups replace the examples (the cluster-robust variance: Liang and Zeger, Biometrika 73, 1986).

A model that is no better may score higher by chance. A difference is therefore reported with its one-sided lower
confidence bound, and with the smallest true difference that as many examples detect with a power of 80%.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse, special

from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
    Task,
)
from tpu_components.core.results.evaluation_info import Difference
from tpu_components.core.results.metric_table import NO_CONFIDENCE

_SMALLEST_PROBABILITY = 1e-7
_CALIBRATION_EDGES = np.linspace(0, 1, 16)
_MOST_BIAS = 0.5  # Largest bias of a metric with a confidence interval, in standard errors.
_NUM_DRAWS, _CALIBRATION_HALVINGS = 1000, 12
_FEW = 5  # Fewer examples of a class do not suffice to estimate the variance within it.
_FEWEST = 10  # Fewest examples for the interval of a metric from 0 to 1, except a share of correct predictions.
_NUM_PARTS = 40
_POWER = 0.8
_HIGHEST_RATE = 0.999
_REACH = float(special.ndtri(0.995))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric of one model, and what its standard error and confidence interval are computed from.

    Attributes:
        value: Value of the metric.
        influence: float64[examples]: influence of every example, or group of examples, on the metric. The mean is 0,
            except for classes with few examples, see `_centers`.
        hits: bool[examples]: correct predictions, if the metric is their share; None for other metrics.
        support: Number of examples, or groups, that determine a metric between 0 and 1 that has no `hits`; None for
            other metrics.
        correction: Factor by which the standard error is multiplied; above 1 for few examples.
        freedom: Upper limit of the degrees of freedom of the standard error.
        bias: Expected value of the metric on many examples, minus that on this number of examples.
        smallest: Weight of the smallest class in a mean over classes, and the number of examples of that class.
        interval_method: Returns the interval for a confidence, if the metric has a method of its own; else None.
        num_independent: Number of independent examples that would give the same standard error; None without groups.
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


Estimators = Mapping[str, Callable[[], Estimate | None]]


def score_passages(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return float64[passages, num_tokens, 2]: two scores of every target character; 0 for padding.

    The first score is minus the logarithm of the target's probability, clipped at 1e-7. The second is 1 if the target
    is the most probable class, else 0; the first class wins a tie.

    Args:
        targets: int[passages, num_tokens]: IDs of the characters; 0 is padding.
        outputs: float32[passages, num_tokens, classes]: probabilities.
    """
    chosen = np.take_along_axis(outputs, targets[..., None].astype(np.int64), -1)[..., 0].astype(np.float64)
    scores = np.stack([-np.log(chosen.clip(_SMALLEST_PROBABILITY, 1)), outputs.argmax(-1) == targets], axis=-1)
    return np.where((targets != PADDING)[..., None], scores, 0.0)


def estimators(
    task: Task, targets: np.ndarray, outputs: np.ndarray, top_k: int = 1, groups: np.ndarray | None = None
) -> Estimators:
    """Return a function for every metric of a task, by name. It estimates the metric, or returns None if undefined.

    Args:
        task: The task.
        targets: Targets of all examples, each of the shape `Interface.target_shape`.
        outputs: Predictions for all examples, all finite, each of the shape `Interface.output_shape`. For a language
            model float64[passages, num_tokens, 2], see `score_passages`.
        top_k: Number of classes for `top_k_accuracy`.
        groups: int[examples]: the group that each example belongs to; None if all are independent.
    """
    members = None if groups is None else _members(groups)
    made = _ESTIMATORS[task.name](task, targets, outputs, top_k, members)
    return {name: functools.partial(_by_group, make, members) for name, make in made.items()}


def _members(groups: np.ndarray) -> Any:
    """Return float64[groups, examples], sparse: 1 where an example belongs to a group."""
    codes = np.unique(groups, return_inverse=True)[1]
    return sparse.csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))))


def _by_group(make: Callable[[], Estimate | None], members: Any) -> Estimate | None:
    """Estimate a metric with the influences of groups instead of examples; if `members` is None, of examples."""
    estimate = make()
    if estimate is None or members is None:
        return estimate
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


def _count_deciding(present: Any, members: Any) -> Any:
    """Return float64[classes]: number of examples (or groups) where `present`, bool[examples, classes], is true."""
    return present.sum(axis=0) if members is None else (members @ present > 0).sum(axis=0)


def _of_classes(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int, members: Any) -> Estimators:
    hit = probabilities.argmax(axis=1) == labels
    counted = count_classes(labels, probabilities)
    return {
        "accuracy": lambda: _share(hit),
        "top_k_accuracy": lambda: _share(_ranks(labels, probabilities) < top_k),
        # A bfloat16 softmax may exceed 1 by a rounding step.
        "loss": lambda: _mean(task.losses(labels, np.minimum(probabilities, 1))),
        "macro_precision": lambda: _mean_of_shares(counted[0], counted[2], members),
        "macro_recall": lambda: _mean_of_shares(counted[0], counted[1], members),
        "macro_f1": lambda: _mean_of_shares(2 * counted[0], counted[1] + counted[2], members, is_f1=True),
        "calibration_error": lambda: _calibration_error(hit, probabilities, members),
        "roc_auc": lambda: (
            mean_area((labels == 1)[:, None], probabilities[:, 1:], members) if probabilities.shape[1] == 2 else None
        ),
    }


def _of_labels(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int, members: Any) -> Estimators:
    true = labels > 0
    predicted = probabilities > THRESHOLD
    hits = 2.0 * (true & predicted)
    wholes = 1.0 * true + predicted
    return {
        "micro_f1": lambda: _ratio_of_hits(hits.sum(axis=1), wholes.sum(axis=1), members),
        "macro_f1": lambda: _mean_of_shares(hits, wholes, members, is_f1=True),
        "macro_precision": lambda: _mean_of_shares(hits / 2, predicted, members),
        "macro_recall": lambda: _mean_of_shares(hits / 2, true, members),
        "subset_accuracy": lambda: _share((true == predicted).all(axis=1)),
        "hamming_loss": lambda: _ratio_of_hits(
            (true != predicted).sum(axis=1), np.full(len(labels), labels.shape[1]), members
        ),
        "mean_average_precision": lambda: mean_average_precision(true, probabilities, members),
        "macro_roc_auc": lambda: mean_area(true, probabilities, members),
        "loss": lambda: _mean(task.losses(labels, probabilities)),
    }


def _of_numbers(task: Task, targets: np.ndarray, values: np.ndarray, top_k: int, members: Any) -> Estimators:
    targets = targets.astype(np.float64)
    errors = np.abs(targets - values)
    return {
        "r2": lambda: _explained(targets, values),
        "mean_absolute_error": lambda: _mean(errors.mean(axis=1)),
        "root_mean_squared_error": lambda: _root_mean(np.square(errors)),
        "median_absolute_error": lambda: _median(errors),
        "loss": lambda: _mean(task.losses(targets, values)),
    }


def _of_passages(task: Task, targets: np.ndarray, scores: np.ndarray, top_k: int, members: Any) -> Estimators:
    weights = (targets != PADDING).sum(axis=1)
    nats, hits = scores.sum(axis=1).T
    return {
        "bits_per_character": lambda: _ratio(nats / np.log(2), weights),
        "loss": lambda: _ratio(nats, weights),
        "accuracy": lambda: _ratio_of_hits(hits, weights, members),
    }


_ESTIMATORS: Mapping[str, Callable[[Task, np.ndarray, np.ndarray, int, Any], Estimators]] = {
    CLASSIFICATION: _of_classes,
    MULTI_LABEL: _of_labels,
    REGRESSION: _of_numbers,
    LANGUAGE_MODEL: _of_passages,
}


def count_classes(labels: np.ndarray, probabilities: np.ndarray) -> tuple[Any, Any, Any]:
    """Return three sparse float64[examples, classes]: 1 for correct predictions, true classes and predicted classes."""
    places = np.arange(len(labels))
    shape = probabilities.shape
    true, predicted = (
        sparse.csr_array((np.ones(len(labels)), (places, classes)), shape=shape)
        for classes in (labels, probabilities.argmax(axis=1))
    )
    return true * predicted, true, predicted


def _ranks(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return int[examples]: rank of the true class by probability, from 0; the first class wins a tie."""
    own = probabilities[np.arange(len(labels)), labels][:, None]
    tied_before = (probabilities == own) & (np.arange(probabilities.shape[1]) < labels[:, None])
    return ((probabilities > own) | tied_before).sum(axis=1)


def _mean(values: np.ndarray) -> Estimate:
    """Estimate the mean of float[examples]."""
    value = float(values.mean(dtype=np.float64)) + 0.0  # No "-0.0".
    return Estimate(value, values - value)


def _share(hits: np.ndarray) -> Estimate:
    """Estimate the share of correct predictions."""
    return dataclasses.replace(_mean(hits), hits=hits)


def _ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimate the sum of parts divided by the sum of wholes; 0 if the sum of wholes is 0."""
    value = float(parts.sum() / (wholes.sum() or 1))
    return Estimate(value, (parts - value * wholes) / (wholes.mean() or 1))


def _ratio_of_hits(parts: np.ndarray, wholes: np.ndarray, members: Any) -> Estimate:
    """Estimate like `_ratio` a metric from 0 to 1, as F1: each part is between 0 and its whole."""
    decide = float(_count_deciding(wholes[:, None] != 0, members).sum())
    ratio = _ratio(parts, wholes)
    # A hit counts twice in the denominator of F1, a mistake once. Mistakes alone are therefore half the evidence.
    support = decide if ratio.value else decide / 2
    return dataclasses.replace(ratio, support=support, correction=math.sqrt(decide / max(decide - 1, 1)))


def _explained(targets: np.ndarray, values: np.ndarray) -> Estimate | None:
    """Estimate R², averaged over the targets; None if a target has the same value in all examples."""
    errors = np.square(targets - values)
    whole = np.square(targets - targets.mean(axis=0))
    variance = targets.var(axis=0)
    if not variance.all():
        return None
    shares = 1 - errors.mean(axis=0) / variance
    return Estimate(float(shares.mean()), ((whole - errors - shares * whole) / variance).mean(axis=1))


def _root_mean(squares: np.ndarray) -> Estimate:
    """Estimate the square root of the mean over examples, averaged over the targets."""
    roots = np.sqrt(squares.mean(axis=0))
    shifts = (squares - squares.mean(axis=0)) / np.where(roots > 0, 2 * roots, 1)
    return Estimate(float(roots.mean()), shifts.mean(axis=1))


def _median(values: np.ndarray) -> Estimate:
    """Estimate the median over examples, averaged over the targets.

    An example shifts a median up or down by half the distance between adjacent values. This distance is measured
    between the ends of the median's 99% interval (Woodruff, Journal of the American Statistical Association 47, 1952).
    """
    medians = np.median(values, axis=0)
    reach = min(_REACH / (2 * math.sqrt(len(values))), 0.5)
    low, high = np.quantile(values, [0.5 - reach, 0.5 + reach], axis=0)
    shifts = np.sign(values - medians) * (high - low) / (4 * reach)
    return Estimate(float(medians.mean()), shifts.mean(axis=1))


def jackknife(
    measure: Callable[..., float], targets: np.ndarray, outputs: np.ndarray, groups: np.ndarray | None = None
) -> Estimate | None:
    """Estimate a metric that has no formula, by leaving out one part of the examples at a time; None if not finite.

    The standard error is that of the delete-a-group jackknife (Kott, Journal of Official Statistics 17, 2001). The
    examples of a group, which depend on each other, are in one part.
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


def standard_error(influence: np.ndarray) -> tuple[float, float]:
    """Return the standard error of a metric from the influences of the examples, and its degrees of freedom.

    The degrees of freedom are n / (kurtosis - 1), half of those by Satterthwaite's rule: about k if only k examples
    have an influence. Both results are 0 if no example has an influence, and for a single example.
    """
    num_examples = len(influence)
    squares = np.square(influence)
    error = math.sqrt(float(squares.sum()) / (num_examples * max(num_examples - 1, 1)))
    if num_examples < 2 or not error > 0:
        return 0.0, 0.0
    kurtosis = float(np.square(squares).mean() / squares.mean() ** 2)
    return error, min(num_examples / max(kurtosis - 1, 1e-9), num_examples - 1)


def _centers(right: np.ndarray, counts: np.ndarray, decide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two float64[classes]: the center that deviations are measured from, and the weight of a deviation.

    The center is the class's own share `right / counts`. For few examples it is the share of all classes: the variance
    of few examples around their own share is far too small, and 0 for one example. Around another number it is never
    too small.

    Args:
        right: float64[classes]: sum of the parts, for example of hits.
        counts: float64[classes]: sum of the wholes.
        decide: float64[classes]: number of examples, or groups, in these sums.
    """
    few = decide < _FEW
    centers = np.where(few, right.sum() / max(counts.sum(), 1), right / np.maximum(counts, 1))
    correction = np.where(few, 1, np.sqrt(decide / np.maximum(decide - 1, 1)))
    return centers, correction / np.maximum(counts, 1)


def _mean_of_shares(parts: Any, wholes: Any, members: Any, is_f1: bool = False) -> Estimate:
    """Estimate the mean over classes of (sum of parts) / (sum of wholes).

    Args:
        parts: Numerators, float64[examples, classes].
        wholes: Denominators, of the same shape.
        members: Whether an example belongs to a class, of the same shape.
        is_f1: Whether the ratio is F1, whose bias on few examples is corrected.
    """
    right = parts.sum(axis=0)
    counts = wholes.sum(axis=0)
    decide = _count_deciding(wholes != 0, members)
    centers, scales = _centers(right, counts, decide)
    influence = (parts @ scales - wholes @ (centers * scales)) * (parts.shape[0] / len(counts))
    bias = 0.0
    if is_f1 and decide.any():
        # F1 is 2 j / (1 + j), where j is the share of hits among true or predicted examples. The curve is concave: its
        # mean on few examples is below the F1 on many.
        j = centers / (2 - centers)
        bias = float((2 * j * (1 - j) / (1 + j) ** 3 / np.maximum(decide - 1, 1))[decide > 0].sum() / len(decide))
    smallest = 1 / len(decide), float(decide[decide > 0].min(initial=len(influence)))
    return _mean_over_classes(right / np.maximum(counts, 1), influence, decide, bias, smallest)


def _mean_over_classes(
    values: np.ndarray,
    influence: np.ndarray,
    decide: np.ndarray,
    bias: float = 0.0,
    smallest: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """Estimate the mean over classes of `values`; `decide` is the number of examples behind each value."""
    inverse = 1 / decide[decide > 0]
    # Support is all examples if classes are equally large; otherwise mainly the examples of the smallest classes.
    support = float(inverse.sum() ** 2 / (inverse**3).sum()) if len(inverse) else 0.0
    freedom = 2 * standard_error(influence)[1]
    value = float(values.mean())
    return Estimate(value, influence, support=support, freedom=freedom, bias=bias, smallest=smallest)


def count_scores(positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores, ascending, the index of every example's score, and counts of examples.

    The counts are two float64[scores]: the numbers of positive and of negative examples with each score.
    """
    values, places = np.unique(scores, return_inverse=True)
    return values, places, np.bincount(places, positive, len(values)), np.bincount(places, ~positive, len(values))


def mean_area(positive: np.ndarray, scores: np.ndarray, members: Any = None) -> Estimate | None:
    """Estimate the mean over labels of the area under the ROC curve (DeLong et al., 1988).

    Args:
        positive: bool[examples, labels]: which examples have a label.
        scores: float[examples, labels]: scores of the labels.
        members: Examples of every group, see `_members`; None if all examples are independent.

    Returns:
        The estimate; None if no label has both positive and negative examples.
    """
    mixed = positive.any(axis=0) & ~positive.all(axis=0)
    positive, scores = positive[:, mixed], scores[:, mixed]
    num_examples, num_labels = positive.shape
    if not num_labels:
        return None
    rights = np.stack([_rights(*column) for column in zip(positive.T, scores.T, strict=True)], axis=1)
    counts = positive.sum(axis=0)
    areas = np.where(positive, rights, 0).sum(axis=0) / counts
    influence = np.zeros(num_examples)
    fewest = counts
    for kind, number in ((positive, counts), (~positive, num_examples - counts)):
        decide = _count_deciding(kind, members)
        centers, scales = _centers(areas * number, number, decide)
        influence += np.where(kind, rights - centers, 0) @ scales
        fewest = np.minimum(fewest, decide)
    area = _mean_over_classes(areas, influence * (num_examples / num_labels), fewest)
    # Where the area is too high by chance, its standard error is too low. Half as many degrees of freedom compensate.
    return dataclasses.replace(area, freedom=min(area.freedom, (area.support or 0.0) / 2))


def _rights(positive: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return float64[examples]: share of the opposite class that is ranked on the correct side; a tie counts half."""
    _, places, true, false = count_scores(positive, scores)
    above_false = (false.cumsum() - false / 2) / false.sum()
    below_true = 1 - (true.cumsum() - true / 2) / true.sum()
    return np.where(positive, above_false[places], below_true[places])


def mean_average_precision(positive: np.ndarray, scores: np.ndarray, members: Any = None) -> Estimate | None:
    """Estimate the mean average precision of bool[examples, labels]; None if no example has a label.

    The influence of an example on a label's average precision is the precision at its score, if the example is
    positive, and its effect on the precision at lower scores.
    """
    has_any = positive.any(axis=0)
    positive, scores = positive[:, has_any], scores[:, has_any]
    num_examples, num_labels = positive.shape
    if not num_labels:
        return None
    counts = positive.sum(axis=0)
    precision, number, others = (np.empty(scores.shape) for _ in range(3))
    for i, column in enumerate(positive.T):
        _, places, true, false = count_scores(column, scores[:, i])
        at_least = (true + false)[::-1].cumsum()[::-1]
        precise = true[::-1].cumsum()[::-1] / at_least
        precision[:, i], number[:, i] = precise[places], at_least[places]
        others[:, i] = column * (true / at_least).cumsum()[places] - (true * precise / at_least).cumsum()[places]
    areas = np.where(positive, precision, 0).sum(axis=0) / counts
    decide = _count_deciding(positive, members)
    centers, scales = _centers(areas * counts, counts, decide)
    influence = (np.where(positive, precision - centers, 0) + others) @ scales * (num_examples / num_labels)
    # The precision at a positive example is computed over the examples ranked at or above it, and counts the example
    # itself. It is therefore too high, by (share of negatives among the other examples) / rank. Rank 1 has no other
    # examples: the mean share of the label's other positive examples is used, which corrects slightly too much.
    others_are_negative = number * (1 - precision) / np.maximum(number - 1, 1)
    has_others = positive & (number > 1)
    usual = np.where(has_others, others_are_negative, 0).sum(axis=0) / np.maximum(has_others.sum(axis=0), 1)
    excess = np.where(number > 1, others_are_negative, usual) / number
    bias = -float((np.where(positive, excess, 0).sum(axis=0) / counts).mean())
    return _mean_over_classes(areas, influence, decide, bias)


def calibration_bins(hit: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    """Return the confidence bins that contain examples.

    Each bin (lower, upper] has the keys `lower`, `upper`, `count`, `confidence` (mean) and `accuracy`.
    """
    confidence, places = _confidence(probabilities)
    return [
        {
            "lower": float(_CALIBRATION_EDGES[i]),
            "upper": float(_CALIBRATION_EDGES[i + 1]),
            "count": int(np.sum(places == i)),
            "confidence": float(confidence[places == i].mean()),
            "accuracy": float(hit[places == i].mean()),
        }
        for i in np.unique(places)
    ]


def _confidence(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float64[examples], the confidence of every prediction, and int[examples], the index of its bin."""
    confidence = probabilities.max(axis=1).astype(np.float64).clip(0, 1)
    return confidence, np.digitize(confidence, _CALIBRATION_EDGES[1:-1], right=True)


def _calibration_error(hit: np.ndarray, probabilities: np.ndarray, members: Any) -> Estimate:
    bins = calibration_bins(hit, probabilities)
    value = sum(item["count"] * abs(item["accuracy"] - item["confidence"]) for item in bins) / len(hit)
    confidence, places = _confidence(probabilities)
    gap = hit - confidence
    influence = _mean(gap * np.sign(np.bincount(places, gap))[places]).influence
    shared = np.eye(len(bins))
    num_drawn = math.inf
    if members is not None:
        own = sparse.csr_array((np.ones(len(gap)), (np.arange(len(gap)), np.unique(places, return_inverse=True)[1])))
        means = own @ np.array([item["accuracy"] - item["confidence"] for item in bins])
        apart = own.multiply((gap - means)[:, None]).tocsr()
        grouped = members @ apart
        single = np.maximum(apart.multiply(apart).sum(axis=0), 1e-12)
        shared = (grouped.T @ grouped).toarray() / np.sqrt(np.outer(single, single))
        np.fill_diagonal(shared, np.maximum(shared.diagonal(), 1))
        num_drawn = members.shape[0] - 1
    return Estimate(value, influence, interval_method=functools.partial(_calibration_interval, bins, shared, num_drawn))


def _calibration_interval(
    bins: list[dict[str, Any]], shared: np.ndarray, freedom: float, sure: float
) -> tuple[float, float]:
    """Return the confidence interval of the calibration error.

    The error is a weighted sum of absolute gaps between confidence and accuracy, one for each bin. Chance alone gives
    every bin a gap, so that the error is too high, most of all for a calibrated model. For the lower bound, the gaps
    are scaled down until, with noise from Student's distribution, an error as high as the computed one has the
    probability (1 - `sure`) / 2. The upper bound does not correct for the error's upward bias.

    Args:
        bins: See `calibration_bins`.
        shared: float64[bins, bins]: covariance of the gaps, in units of the standard errors of independent examples.
        freedom: Degrees of freedom.
        sure: Two-sided confidence.
    """
    counts, middle, accuracy = (np.array([item[name] for item in bins]) for name in ("count", "confidence", "accuracy"))
    gaps = accuracy - middle
    weights = counts / counts.sum()
    smoothed = (accuracy * counts + 1) / (counts + 2)
    errors = np.sqrt(np.maximum(middle * (1 - middle), smoothed * (1 - smoothed)) / counts)
    values, vectors = np.linalg.eigh(shared)
    spread = errors[:, None] * vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(0)
    noises = rng.normal(size=(_NUM_DRAWS, len(bins))) @ spread.T
    if freedom < math.inf:
        noises /= np.sqrt(rng.chisquare(freedom, (_NUM_DRAWS, 1)) / freedom)
    error = float(np.abs(gaps) @ weights)

    def is_as_high(size: float) -> bool:
        return bool(np.quantile(np.abs(size * gaps + noises) @ weights, (1 + sure) / 2) >= error)

    least, _ = _bisect(is_as_high, 0.0, 1.0, _CALIBRATION_HALVINGS)  # True size of the gaps, relative to the computed.
    reach = float(
        special.stdtrit(min(freedom, 1e9), (1 + sure) / 2) * np.linalg.norm((weights * np.sign(gaps)) @ spread)
    )
    return least * error, min(error + reach, 1.0)


def _bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int = 30) -> tuple[float, float]:
    """Bisect an interval, and return its ends (low, high): the condition holds at `high` and not at `low`."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def find_interval(estimate: Estimate, confidence: float) -> tuple[float, float] | None:
    """Return the two-sided confidence interval of a metric; None if there are too few examples.

    A share of correct predictions has the exact interval (Clopper and Pearson, 1934). Other metrics from 0 to 1 use it
    with the effective number of examples (Korn and Graubard, Survey Methodology 24, 1998), and need at least ten
    examples. Unbounded metrics use Student's t. A metric with its own method (`Estimate.interval_method`) uses that.
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
    if estimate.support is None or estimate.support < _FEWEST or abs(estimate.bias) > _MOST_BIAS * error:
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


def find_probability(estimate: Estimate, bound: float) -> float | None:
    """Return the one-sided p-value of a metric against a bound; None if there are too few examples.

    This is the smallest error rate for which the one-sided confidence limit excludes the bound.
    """
    side = int(estimate.value < bound)
    if find_interval(estimate, _POWER) is None:
        return None

    def excludes(rate: float) -> bool:
        interval = find_interval(estimate, 1 - 2 * rate)
        return interval is not None and (interval[1] <= bound if side else interval[0] >= bound)

    return _bisect(excludes, 0.0, _HIGHEST_RATE)[1]


def _share_interval(share: float, number: float, confidence: float) -> tuple[float, float]:
    hits = share * number
    tail = (1 - confidence) / 2
    low = special.betaincinv(hits, number - hits + 1, tail) if hits > 0 else 0.0
    high = special.betaincinv(hits + 1, number - hits, 1 - tail) if hits < number else 1.0
    return float(low), float(high)


def compare(challenger: Estimate, champion: Estimate, sign: int, confidence: float) -> Difference | None:
    """Compare a metric of two models on the same examples; None if there are too few examples.

    Args:
        challenger: Metric of the model.
        champion: Metric of the champion.
        sign: `HIGHER` or `LOWER`, whichever is better.
        confidence: See `EvaluateParams`.
    """
    ours, theirs = challenger.hits, champion.hits
    if ours is not None and theirs is not None:
        return compare_shares(int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours), confidence)
    advantage = sign * (challenger.value - champion.value)
    shift = challenger.correction * challenger.influence - champion.correction * champion.influence
    if challenger.support is None or champion.support is None or confidence == NO_CONFIDENCE:
        return _compare_means(advantage, sign * shift, confidence)
    fewest = min(challenger.support, champion.support)
    if fewest < _FEWEST:
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
    """Return the difference of two models' shares of correct predictions.

    The bounds are those of exact tests with the likeliest share of examples that both models predict correctly, or both
    wrongly (Lloyd, Australian & New Zealand Journal of Statistics 50, 2008). `luck` is McNemar's exact p-value.

    Args:
        num_better: Number of examples that only the challenger predicts correctly.
        num_worse: Number of examples that only the champion predicts correctly.
        num_examples: Number of all examples.
        confidence: See `EvaluateParams`.
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
    """Return the difference of two metrics, with bounds from the influence of every example on the difference.

    Args:
        advantage: Difference; positive if the challenger is better.
        influences: float64[examples]: influences on the difference.
        confidence: See `EvaluateParams`.
        slack: Distance by which the true difference may be off even if all influences are equal.
        bias: Amount by which the difference is expected to be above the difference on many examples.
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
        better: Number of examples that the challenger alone has right.
        worse: Number of examples that the champion alone has right.
        num_examples: Number of all examples.
        confidence: One-sided confidence.
    """
    advantage = (better - worse) / num_examples
    if confidence == NO_CONFIDENCE:
        return advantage

    def is_possible(difference: float) -> bool:
        return find_chance(better, worse, num_examples, difference) > 1 - confidence

    return _bisect(is_possible, -1.0, advantage)[0]


def find_chance(better: int, worse: int, n: int, difference: float) -> float:
    """Return the p-value of the advantage (`better` - `worse`) / `n` if the true difference is `difference`."""
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
    """Return the smallest difference of two shares that McNemar's test detects with the probability `_POWER`.

    Uses the normal approximation (Connor, Biometrics 43, 1987) with a continuity correction.

    Args:
        differ: Number of examples that only one of the two models answers right.
        num_examples: Number of all examples.
        quantile: Quantile of the normal distribution for the test's confidence.
    """
    power = float(special.ndtri(_POWER))

    def is_enough(difference: float) -> bool:
        share = max(differ / num_examples, difference)
        spread = quantile * math.sqrt(share) + power * math.sqrt(max(share - difference**2, 0))
        return difference >= spread / math.sqrt(num_examples) + 1 / num_examples

    return _bisect(is_enough, 0.0, 1.0)[1]

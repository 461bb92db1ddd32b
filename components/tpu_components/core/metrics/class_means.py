"""Means over classes or labels: precision, recall, F1, ROC AUC and average precision."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.frameworks import sparse
from tpu_components.core.examples.interface import THRESHOLD
from tpu_components.core.metrics.estimates import Estimate, count_deciding, standard_error

_FEW = 5  # With fewer examples of a class, the variance within the class cannot be estimated.


class ClassCounts(NamedTuple):
    """Matrices of 0 and 1 for every example and class (or label), float64[examples, classes].

    The matrices are sparse for classes, and dense for labels.

    Attributes:
        right: 1 for a correct prediction.
        true: 1 for a true class.
        predicted: 1 for a predicted class.
    """

    right: Any
    true: Any
    predicted: Any


def count_classes(labels: np.ndarray, probabilities: np.ndarray) -> ClassCounts:
    """Mark the true and the most probable class of each example, in matrices of 0 and 1.

    Args:
        labels: True classes, int[examples].
        probabilities: Probabilities of the classes, float[examples, classes].
    """
    places = np.arange(len(labels))
    shape = probabilities.shape
    true, predicted = (
        sparse.csr_array((np.ones(len(labels)), (places, classes)), shape=shape)
        for classes in (labels, probabilities.argmax(axis=1))
    )
    return ClassCounts(true * predicted, true, predicted)


def count_labels(labels: np.ndarray, probabilities: np.ndarray) -> ClassCounts:
    """Mark the true and the predicted labels of each example, in matrices of 0 and 1.

    Both arguments are float[examples, labels]. A label is predicted if its probability is above 0.5.
    """
    true = np.where(labels > 0, 1.0, 0.0)
    predicted = np.where(probabilities > THRESHOLD, 1.0, 0.0)
    return ClassCounts(true * predicted, true, predicted)


def ranks(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the rank of the true class of each example, int[examples]. The most probable class has the rank 0.

    In a tie, the class with the lower number has the lower rank.
    """
    own = probabilities[np.arange(len(labels)), labels][:, None]
    tied_before = (probabilities == own) & (np.arange(probabilities.shape[1]) < labels[:, None])
    return ((probabilities > own) | tied_before).sum(axis=1)


def mean_of_shares(parts: Any, wholes: Any, members: Any, is_f1: bool = False) -> Estimate:
    """Estimate the mean over classes of (sum of parts) / (sum of wholes), both summed over the examples.

    Args:
        parts: Numerators, float64[examples, classes].
        wholes: Denominators, of the same shape.
        members: Groups of dependent examples, as `members_of` returns them. None if all examples are independent.
        is_f1: Whether the ratio is F1, whose bias on few examples is corrected.
    """
    right = parts.sum(axis=0)
    counts = wholes.sum(axis=0)
    decide = count_deciding(wholes != 0, members)
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
    """Estimate the mean of `values` over classes. `decide` is the number of examples that determine each value.

    The other arguments are attributes of `Estimate`.
    """
    inverse = 1 / decide[decide > 0]
    # Support is all examples if classes are equally large; otherwise mainly the examples of the smallest classes.
    support = float(inverse.sum() ** 2 / (inverse**3).sum()) if len(inverse) else 0.0
    freedom = 2 * standard_error(influence)[1]
    value = float(values.mean())
    return Estimate(value, influence, support=support, freedom=freedom, bias=bias, smallest=smallest)


def _centers(right: np.ndarray, counts: np.ndarray, decide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the center that deviations are measured from, and the weight of a deviation: two float64[classes].

    The center is the share of the class, `right / counts`. For a class with few examples, the center is the share of
    all classes together: the variance of few examples around their own share is far too small, and 0 for one example,
    but the variance around another number is never too small.

    Args:
        right: float64[classes]: sum of the parts, for example of hits.
        counts: float64[classes]: sum of the wholes.
        decide: float64[classes]: number of examples, or groups, in these sums.
    """
    few = decide < _FEW
    centers = np.where(few, right.sum() / max(counts.sum(), 1), right / np.maximum(counts, 1))
    correction = np.where(few, 1, np.sqrt(decide / np.maximum(decide - 1, 1)))
    return centers, correction / np.maximum(counts, 1)


def count_scores(positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores in ascending order, the index of every example's score, and two counts of examples.

    For each score, the first count is the number of positive examples with this score, and the second count is the
    number of negative examples. Both are float64[scores].
    """
    values, places = np.unique(scores, return_inverse=True)
    return values, places, np.bincount(places, positive, len(values)), np.bincount(places, ~positive, len(values))


def mean_area(positive: np.ndarray, scores: np.ndarray, members: Any = None) -> Estimate | None:
    """Estimate the mean area under the ROC curve over all labels (DeLong et al., 1988).

    Args:
        positive: bool[examples, labels]: which examples have a label.
        scores: float[examples, labels]: scores of the labels.
        members: Groups of dependent examples, as `members_of` returns them. None if all examples are independent.

    Returns:
        The estimate, or None if no label has both positive and negative examples.
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
        decide = count_deciding(kind, members)
        centers, scales = _centers(areas * number, number, decide)
        influence += np.where(kind, rights - centers, 0) @ scales
        fewest = np.minimum(fewest, decide)
    area = _mean_over_classes(areas, influence * (num_examples / num_labels), fewest)
    # Where the area is too high by chance, its standard error is too low. Half as many degrees of freedom compensate.
    return dataclasses.replace(area, freedom=min(area.freedom, (area.support or 0.0) / 2))


def _rights(positive: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return, for each example, the share of the opposite class that is ranked on the correct side, float64[examples].

    The correct side is below a positive example, and above a negative example. A tie counts as one half.
    """
    _, places, true, false = count_scores(positive, scores)
    above_false = (false.cumsum() - false / 2) / false.sum()
    below_true = 1 - (true.cumsum() - true / 2) / true.sum()
    return np.where(positive, above_false[places], below_true[places])


def mean_average_precision(positive: np.ndarray, scores: np.ndarray, members: Any = None) -> Estimate | None:
    """Estimate the mean of the average precisions of all labels, or return None if no example has a label.

    The influence of an example on a label's average precision has two parts: the precision at its score if the example
    is positive, and its effect on the precision at lower scores.
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
    decide = count_deciding(positive, members)
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

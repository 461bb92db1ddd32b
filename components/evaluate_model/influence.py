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

from components.evaluate_model.metrics import calibration_bins, ranks
from components.interface import CLASSIFICATION, MULTI_LABEL, PADDING, REGRESSION, THRESHOLD, Task

_NUM_GROUPS = 20


class Estimate(NamedTuple):
    """A figure, and the influence of every example on it, float64[examples] of mean 0."""

    value: float
    influence: np.ndarray


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
        "accuracy": lambda: ratio(hits.sum(axis=1), weights),
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
        counts = np.sum([np.bincount(members, minlength=num_classes) for members in roles], axis=0)
        right = np.sum([np.bincount(members, hit, num_classes) for members in roles], axis=0)
        share = right / np.maximum(counts, 1)
        shifts = np.sum([(hit - share[members]) / counts[members] for members in roles], axis=0)
        return Estimate(float(share.mean()), shifts * len(hit) / num_classes)

    def calibration() -> Estimate:
        confidence, bins = calibration_bins(probabilities)
        gap = hit - confidence
        return mean(gap * np.sign(np.bincount(bins, gap))[bins])

    formulas: dict[str, Callable[[], Estimate]] = {
        "accuracy": lambda: mean(hit),
        "top_k_accuracy": lambda: mean(ranks(labels, probabilities) < max(1, min(top_k, num_classes - 1))),
        "loss": lambda: mean(task.losses(labels, probabilities)),
        "macro_precision": lambda: over_classes(predicted),
        "macro_recall": lambda: over_classes(labels),
        "macro_f1": lambda: over_classes(labels, predicted),
        "calibration_error": calibration,
    }
    if num_classes == 2:
        formulas["roc_auc"] = lambda: _area(labels == 1, probabilities[:, 1])
    return formulas


def _multi_label(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int) -> Formulas:
    true, predicted = labels > 0, probabilities > THRESHOLD
    hits, wholes = 2.0 * (true & predicted), 1.0 * true + predicted

    def over_labels(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
        columns = [ratio(*pair) for pair in zip(parts.T, wholes.T, strict=True)]
        return Estimate(*(np.mean(values, axis=0) for values in zip(*columns, strict=True)))

    def areas() -> Estimate:
        mixed = [i for i in range(labels.shape[1]) if true[:, i].any() and not true[:, i].all()]
        columns = [_area(true[:, i], probabilities[:, i]) for i in mixed]
        return Estimate(*(np.mean(values, axis=0) for values in zip(*columns, strict=True)))

    return {
        "micro_f1": lambda: ratio(hits.sum(axis=1), wholes.sum(axis=1)),
        "macro_f1": lambda: over_labels(hits, wholes),
        "macro_precision": lambda: over_labels(hits / 2, predicted),
        "macro_recall": lambda: over_labels(hits / 2, true),
        "subset_accuracy": lambda: mean((true == predicted).all(axis=1)),
        "hamming_loss": lambda: mean((true != predicted).mean(axis=1)),
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


def ratio(parts: np.ndarray, wholes: np.ndarray) -> Estimate:
    """Estimate the sum of parts by that of wholes; 0 where there are none."""
    value = float(parts.sum() / (wholes.sum() or 1))
    return Estimate(value, (parts - value * wholes) / (wholes.mean() or 1))


def explained(targets: np.ndarray, values: np.ndarray) -> Estimate:
    """Estimate R², the mean over targets, none of which may be the same for all examples."""
    errors, whole = np.square(targets - values), np.square(targets - targets.mean(axis=0))
    variance = targets.var(axis=0)
    shares = 1 - errors.mean(axis=0) / variance
    return Estimate(float(shares.mean()), ((whole - errors - shares * whole) / variance).mean(axis=1))


def standard_error(influence: np.ndarray) -> float:
    """Return the standard error of a figure by the influence of every example; 0 for a single one."""
    return float(influence.std(ddof=1) / math.sqrt(len(influence))) if len(influence) > 1 else 0.0


def _area(positive: np.ndarray, score: np.ndarray) -> Estimate:
    """Estimate the area under the ROC curve (DeLong et al., 1988)."""
    from scipy.stats import rankdata

    ranks_of_all, shifts = rankdata(score), np.empty(len(score))
    for kind in (True, False):
        # Share of the other kind that a score stands right to; a tie counts half.
        own = positive == kind
        below = (ranks_of_all[own] - rankdata(score[own])) / (~own).sum()
        right = below if kind else 1 - below
        shifts[own] = (right - right.mean()) * len(score) / own.sum()
    return Estimate(float(right.mean()), shifts)

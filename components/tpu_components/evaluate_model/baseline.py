"""Compares a model with the best constant prediction. A useful model has to beat it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    THRESHOLD,
)
from tpu_components.core.metrics.definitions import direction
from tpu_components.core.metrics.estimates import standard_error
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.core.results.evaluation_info import Baseline

# At most one in twenty models that know no more than the baseline beat it, by chance, by more than this number of
# standard errors. It is the one-sided 95% quantile of a normal distribution.
_QUANTILE = 1.645
# Outputs of a regression that differ by less than this share of their target's standard deviation count as equal.
_SAME = 1e-6
_LISTED_LABELS = 3


def find_baseline(truth: GroundTruth, outputs: np.ndarray) -> Baseline:
    """Compare a model with the best constant prediction. A useful model has to beat it.

    The constant prediction is fitted to the scored examples: the most frequent class, the set of labels with the
    highest F1, the mean of every target, or the frequency of every character.

    Args:
        truth: The scored examples; see `compute_metrics`.
        outputs: Predictions of the model for these examples; see `compute_metrics`.
    """
    answer, constant, collapsed_to = _CONSTANT_ANSWERS[truth.task.name](truth.targets, outputs, truth.names)
    metric = truth.task.judged
    ours, theirs = (truth.estimators(answers)[metric]() for answers in (outputs, constant))
    if ours is None or theirs is None:
        return Baseline(metric, answer, None, 0.0, 0.0, collapsed_to)
    advantage = direction(metric) * (ours.value - theirs.value)
    margin = _QUANTILE * standard_error(ours.influence - theirs.influence)[0]
    return Baseline(metric, answer, theirs.value, advantage, margin, collapsed_to)


def _answer_class(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    majority = int(np.bincount(labels, minlength=len(names)).argmax())
    predicted = probabilities.argmax(axis=1)
    constant = np.broadcast_to((np.arange(len(names)) == majority).astype(float), probabilities.shape)
    return (
        f"always predicting {names[majority]!r}",
        constant,
        repr(names[predicted[0]]) if _all_alike(predicted) else "",
    )


def _answer_labels(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    predicted = probabilities > THRESHOLD
    support = (labels > 0).sum(axis=0)
    order = np.argsort(-support, kind="stable")
    # Always predicting the k most frequent labels is best among all sets of k.
    f1 = 2 * np.cumsum(support[order]) / (support.sum() + len(labels) * np.arange(1, len(order) + 1))
    chosen = np.isin(np.arange(len(names)), order[: int(f1.argmax()) + 1])
    collapsed_to = _list_labels(predicted[0], names) if _all_alike(predicted) else ""
    constant = np.broadcast_to(chosen.astype(float), probabilities.shape)
    return f"always predicting {_list_labels(chosen, names)}", constant, collapsed_to


def _list_labels(chosen: np.ndarray, names: Sequence[str]) -> str:
    shown = [repr(names[i]) for i in np.flatnonzero(chosen).tolist()]
    more = f" and {len(shown) - _LISTED_LABELS} more" if len(shown) > _LISTED_LABELS else ""
    return ", ".join(shown[:_LISTED_LABELS]) + more or "no label"


def _answer_mean(targets: np.ndarray, values: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    targets = targets.astype(np.float64)
    collapsed = np.ptp(values.astype(np.float64), axis=0) <= _SAME * targets.std(axis=0)
    collapsed_to = ", ".join(f"{value:.4g}" for value in values[0]) if len(values) > 1 and collapsed.all() else ""
    return "always predicting the mean", np.broadcast_to(targets.mean(axis=0), targets.shape), collapsed_to


def _answer_frequencies(targets: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    counts = targets != PADDING
    _, place, frequency = np.unique(targets[counts], return_inverse=True, return_counts=True)
    constant = np.zeros((*targets.shape, 2))
    constant[counts, 0] = -np.log(frequency / counts.sum())[place]
    return "predicting every character from its frequency alone", constant, ""


_CONSTANT_ANSWERS: Mapping[str, Callable[[np.ndarray, np.ndarray, Sequence[str]], tuple[str, np.ndarray, str]]] = {
    CLASSIFICATION: _answer_class,
    MULTI_LABEL: _answer_labels,
    REGRESSION: _answer_mean,
    LANGUAGE_MODEL: _answer_frequencies,
}


def _all_alike(predicted: np.ndarray) -> bool:
    return len(predicted) > 1 and bool((predicted == predicted[0]).all())

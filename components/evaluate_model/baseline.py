"""The best answer that does not look at the input: what a model has to beat before it is worth anything.

It is the best constant answer in hindsight, fitted to the very examples that are scored: the most frequent class, the
set of labels with the greatest F1, the mean of every target, the frequency of every character.
"""

import math
from collections.abc import Sequence

import numpy as np

from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, PADDING, REGRESSION, THRESHOLD
from tpu_components.core.results.evaluation_info import Baseline
from tpu_components.evaluate_model.influence import explained, mean, ratio, standard_error

# At most one in twenty models that know no more than the baseline seem to beat it by more than this many standard
# errors: the one-sided 95 % quantile of a normal distribution.
_QUANTILE = 1.645
# Outputs of a regression that differ by less than this share of their target's deviation are one answer.
_SAME = 1e-6
_LISTED_LABELS = 3


def find_baseline(task: str, targets: np.ndarray, outputs: np.ndarray, names: Sequence[str]) -> Baseline:
    """Return the baseline of examples, and how a model stands to it.

    Args:
        task: Any but a language model.
        targets: Targets of all examples, each shaped as `Interface.target_shape` says.
        outputs: Answers to all examples, each shaped as `Interface.output_shape` says; all finite.
        names: Names of the classes, labels or targets.
    """
    return _FINDERS[task](targets, outputs, names)


def find_language_baseline(targets: np.ndarray, nats: np.ndarray) -> Baseline:
    """Return the baseline of passages: every character foretold by its frequency alone.

    Args:
        targets: int[passages, num_tokens]; 0 does not count.
        nats: float[passages, num_tokens]: minus the logarithm of what the model gave each character.
    """
    counts = targets != PADDING
    _, place, frequency = np.unique(targets[counts], return_inverse=True, return_counts=True)
    unigram = np.zeros(targets.shape)
    unigram[counts] = -np.log2(frequency / counts.sum())[place]
    weights = counts.sum(axis=1)
    saved = ratio(unigram.sum(axis=1) - nats.sum(axis=1) / math.log(2), weights)
    answer = "foretelling every character by its frequency alone"
    margin = _QUANTILE * standard_error(saved.influence)[0]
    return Baseline("bits_per_character", answer, float(unigram.sum() / weights.sum()), saved.value, margin)


def _find_majority(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> Baseline:
    predicted = probabilities.argmax(axis=1)
    majority = int(np.bincount(labels, minlength=len(names)).argmax())
    always = labels == majority
    advantage = mean((predicted == labels).astype(float) - always)
    return Baseline(
        metric="accuracy",
        answer=f"always answering {names[majority]!r}",
        value=float(always.mean()),
        advantage=advantage.value,
        margin=_QUANTILE * standard_error(advantage.influence)[0],
        collapsed_to=repr(names[predicted[0]]) if _all_alike(predicted) else "",
    )


def _find_best_labels(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> Baseline:
    true, predicted = labels > 0, probabilities > THRESHOLD
    support = true.sum(axis=0)
    order = np.argsort(-support, kind="stable")
    # Always predicting the k most frequent labels is best among all sets of k.
    f1 = 2 * np.cumsum(support[order]) / (support.sum() + len(true) * np.arange(1, len(order) + 1))
    chosen = np.isin(np.arange(len(names)), order[: int(f1.argmax()) + 1])
    # F1 is a ratio of sums; an example adds to both, and so shifts it in the first order by this over the mean whole.
    whole, whole_always = true.sum(axis=1) + predicted.sum(axis=1), true.sum(axis=1) + chosen.sum()
    hits, hits_always = 2 * (true & predicted).sum(axis=1), 2 * (true & chosen).sum(axis=1)
    value, value_always = hits.sum() / max(whole.sum(), 1), hits_always.sum() / whole_always.sum()
    shifts = (hits - value * whole) / (whole.mean() or 1) - (hits_always - value_always * whole_always) / (
        whole_always.mean()
    )
    return Baseline(
        metric="micro_f1",
        answer=f"always answering {_list_labels(chosen, names)}",
        value=float(value_always),
        advantage=float(value - value_always),
        margin=_QUANTILE * standard_error(shifts)[0],
        collapsed_to=_list_labels(predicted[0], names) if _all_alike(predicted) else "",
    )


def _list_labels(chosen: np.ndarray, names: Sequence[str]) -> str:
    shown = [repr(names[i]) for i in np.flatnonzero(chosen).tolist()]
    more = f" and {len(shown) - _LISTED_LABELS} more" if len(shown) > _LISTED_LABELS else ""
    return ", ".join(shown[:_LISTED_LABELS]) + more or "no label"


def _find_mean(targets: np.ndarray, values: np.ndarray, names: Sequence[str]) -> Baseline:
    targets = targets.astype(np.float64)
    variance = targets.var(axis=0)
    answer = "always answering the mean"
    collapsed = np.ptp(values.astype(np.float64), axis=0) <= _SAME * np.sqrt(variance)
    collapsed_to = ", ".join(f"{value:.4g}" for value in values[0]) if len(values) > 1 and collapsed.all() else ""
    if not variance.all():
        return Baseline("r2", answer, None, 0.0, 0.0, collapsed_to)
    r2 = explained(targets, values)
    return Baseline("r2", answer, 0.0, r2.value, _QUANTILE * standard_error(r2.influence)[0], collapsed_to)


_FINDERS = {CLASSIFICATION: _find_majority, MULTI_LABEL: _find_best_labels, REGRESSION: _find_mean}


def _all_alike(predicted: np.ndarray) -> bool:
    return len(predicted) > 1 and bool((predicted == predicted[0]).all())

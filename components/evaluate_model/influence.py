"""How much every example shifts a figure: its chance error follows from that.

In the first order a figure moves by the mean of one value per example, its influence; the standard deviation of these
by √n is its standard error (the infinitesimal jackknife: Efron, 1982). Two models answer the same examples, so that
the difference of their influences is the influence on the difference. A figure that has no formula here is measured
without every twentieth of the examples in turn instead (the delete-d jackknife: Shao and Wu, 1989).
"""

from collections.abc import Callable, Mapping

import numpy as np

from components.evaluate_model.metrics import ranks
from components.interface import CLASSIFICATION, MULTI_LABEL, PADDING, REGRESSION, THRESHOLD, Task

_NUM_GROUPS = 20
_CALIBRATION_BINS = 15

Formulas = Mapping[str, Callable[[], np.ndarray]]


def influences(task: Task, labels: np.ndarray, outputs: np.ndarray, top_k: int) -> Formulas:
    """Return for every figure that has a formula a function that gives float64[examples], of mean 0.

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
        "bits_per_character": lambda: _of_ratio(sums / np.log(2), weights),
        "loss": lambda: _of_ratio(sums, weights),
        "accuracy": lambda: _of_ratio(hits.sum(axis=1), weights),
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

    def of_classes(members: np.ndarray) -> np.ndarray:
        """Return the influence on the mean over all classes of the share of a class's members that are right."""
        counts = np.bincount(members, minlength=num_classes)
        share = np.bincount(members, hit, num_classes) / np.maximum(counts, 1)
        return (hit - share[members]) * len(hit) / counts[members] / num_classes

    def of_f1() -> np.ndarray:
        counts = np.bincount(labels, minlength=num_classes) + np.bincount(predicted, minlength=num_classes)
        f1 = 2 * np.bincount(labels, hit, num_classes) / np.maximum(counts, 1)
        parts = [(hit - f1[members]) * len(hit) / counts[members] for members in (labels, predicted)]
        return sum(parts) / num_classes

    def of_calibration() -> np.ndarray:
        confidence = probabilities.max(axis=1).astype(np.float64).clip(0, 1)
        edges = np.linspace(0, 1, _CALIBRATION_BINS + 1)
        bins = np.digitize(confidence, edges[1:-1], right=True)
        gap = hit - confidence
        return _centred(gap * np.sign(np.bincount(bins, gap, _CALIBRATION_BINS))[bins])

    formulas: dict[str, Callable[[], np.ndarray]] = {
        "accuracy": lambda: _centred(hit),
        "top_k_accuracy": lambda: _centred(ranks(labels, probabilities) < max(1, min(top_k, num_classes - 1))),
        "loss": lambda: _centred(task.losses(labels, probabilities)),
        "macro_precision": lambda: of_classes(predicted),
        "macro_recall": lambda: of_classes(labels),
        "macro_f1": of_f1,
        "calibration_error": of_calibration,
    }
    if num_classes == 2:
        formulas["roc_auc"] = lambda: _of_area(labels == 1, probabilities[:, 1])
    return formulas


def _multi_label(task: Task, labels: np.ndarray, probabilities: np.ndarray, top_k: int) -> Formulas:
    true, predicted = labels > 0, probabilities > THRESHOLD
    hits, wholes = 2.0 * (true & predicted), 1.0 * true + predicted

    def of_columns(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
        columns = [_of_ratio(*pair) for pair in zip(parts.T, wholes.T, strict=True) if pair[1].any()]
        return np.sum(columns, axis=0) / labels.shape[1] if columns else np.zeros(len(labels))

    def of_areas() -> np.ndarray:
        mixed = [i for i in range(labels.shape[1]) if true[:, i].any() and not true[:, i].all()]
        return np.mean([_of_area(true[:, i], probabilities[:, i]) for i in mixed], axis=0)

    return {
        "micro_f1": lambda: _of_ratio(hits.sum(axis=1), wholes.sum(axis=1)),
        "macro_f1": lambda: of_columns(hits, wholes),
        "macro_precision": lambda: of_columns(hits / 2, predicted),
        "macro_recall": lambda: of_columns(hits / 2, true),
        "subset_accuracy": lambda: _centred((true == predicted).all(axis=1)),
        "hamming_loss": lambda: _centred((true != predicted).mean(axis=1)),
        "macro_roc_auc": of_areas,
        "loss": lambda: _centred(task.losses(labels, probabilities)),
    }


def _regression(task: Task, targets: np.ndarray, values: np.ndarray, top_k: int) -> Formulas:
    targets = targets.astype(np.float64)
    errors = np.square(targets - values)

    def of_roots() -> np.ndarray:
        roots = np.sqrt(errors.mean(axis=0))
        return ((errors - errors.mean(axis=0)) / np.where(roots > 0, 2 * roots, 1)).mean(axis=1)

    def of_explained() -> np.ndarray:
        whole, variance = np.square(targets - targets.mean(axis=0)), targets.var(axis=0)
        explained = 1 - errors.mean(axis=0) / variance
        return ((whole - errors - explained * whole) / variance).mean(axis=1)

    return {
        "r2": of_explained,
        "mean_absolute_error": lambda: _centred(np.abs(targets - values).mean(axis=1)),
        "root_mean_squared_error": of_roots,
        "loss": lambda: _centred(task.losses(targets, values)),
    }


_FORMULAS: Mapping[str, Callable[[Task, np.ndarray, np.ndarray, int], Formulas]] = {
    CLASSIFICATION: _classification,
    MULTI_LABEL: _multi_label,
    REGRESSION: _regression,
}


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(dtype=np.float64)


def _of_ratio(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Return the influence on the sum of parts by that of wholes, 0 where both are nothing."""
    return (parts - parts.sum() / max(wholes.sum(), 1) * wholes) / (wholes.mean() or 1)


def _of_area(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return the influence on the area under the ROC curve (DeLong et al., 1988)."""
    from scipy.stats import rankdata

    shares = np.empty(len(score))
    for kind in (True, False):
        # Share of the other kind that the score of an example stands right to; a tie counts half.
        own, other = score[positive == kind], (positive != kind).sum()
        below = (rankdata(score)[positive == kind] - rankdata(own)) / other
        right = below if kind else 1 - below
        shares[positive == kind] = (right - right.mean()) * len(score) / len(own)
    return shares

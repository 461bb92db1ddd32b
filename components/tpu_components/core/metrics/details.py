"""Details of a model's predictions beyond scalar metrics: metrics of every class, label or target, and curves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.formatting import show
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    TASKS,
    UNKNOWN,
)
from tpu_components.core.metrics.calibration import calibration_bins
from tpu_components.core.metrics.class_means import (
    ClassCounts,
    count_classes,
    count_labels,
    count_scores,
    mean_area,
    mean_average_precision,
)
from tpu_components.core.metrics.definitions import estimators

MAX_MATRIX_CLASSES = 100  # A matrix of more classes is mostly zeros, and grows with the square of their number.
_MAX_ROC_POINTS = 200
_PER_TARGET = ("mean_absolute_error", "root_mean_squared_error", "median_absolute_error", "r2")


def describe(task: str, targets: np.ndarray, outputs: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Return {name: JSON value} for all results that are not scalar metrics.

    Args:
        task: Name of the task.
        targets: Targets of the examples, each of the shape `Interface.target_shape`.
        outputs: Predictions for these examples; see `compute_metrics`.
        names: Names of the classes, labels or targets.
    """
    return _DETAILS[task](targets, outputs, names)


def _rows(names: Sequence[str], **columns: Any) -> list[dict[str, Any]]:
    """Return a dict for each name: `name`, and the value that each column has for the name."""
    lists = [np.asarray(column, object).tolist() for column in columns.values()]
    return [dict(zip(("name", *columns), row, strict=True)) for row in zip(names, *lists, strict=True)]


def _describe_names(names: Sequence[str], counts: ClassCounts, **more: Any) -> dict[str, Any]:
    """Return the number of classes without examples, and the support, precision, recall and F1 of each class or label.

    Undefined values are 0.
    """
    right, support, answered = (each.sum(axis=0) for each in counts)
    rows = _rows(
        names,
        support=support.astype(int),
        precision=right / np.maximum(answered, 1),
        recall=right / np.maximum(support, 1),
        f1=2 * right / np.maximum(support + answered, 1),
        **more,
    )
    return {"num_absent_classes": int(np.count_nonzero(support == 0)), "per_class": rows}


def _describe_classes(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    predicted = probabilities.argmax(axis=1)
    return {
        **_describe_names(names, count_classes(labels, probabilities)),
        **count_confusions(labels, predicted, len(names)),
        "calibration": calibration_bins(predicted == labels, probabilities),
        "roc": _roc_points(labels == 1, probabilities[:, 1]) if len(names) == 2 else [],
    }


def count_confusions(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> dict[str, Any]:
    """Count how often each class was predicted for each true class, in the form of `evaluation.json`.

    Args:
        labels: True classes, int[examples], from 0 to num_classes - 1.
        predicted: Predicted classes, int[examples].
        num_classes: Number of classes.

    Returns:
        For at most 100 classes, `confusion_matrix`: a list of rows, one for each true class. For more classes,
        `confusions`, which leaves out the zeros: three lists, `true` and `predicted` (class indices) and `count`
        (number of examples), sorted by true and predicted class. The lists are at most as long as the number of
        examples.

    Example:
        >>> labels, predicted = np.array([0, 0, 1]), np.array([0, 1, 1])
        >>> count_confusions(labels, predicted, 2)
        {'confusion_matrix': [[1, 1], [0, 1]]}
        >>> count_confusions(labels, predicted, 101)
        {'confusions': {'true': [0, 0, 1], 'predicted': [0, 1, 1], 'count': [1, 1, 1]}}
    """
    pairs, counts = np.unique(labels.astype(np.int64) * num_classes + predicted, return_counts=True)
    true, predicted = np.divmod(pairs, num_classes)
    if num_classes > MAX_MATRIX_CLASSES:
        columns = {"true": true, "predicted": predicted, "count": counts}
        return {"confusions": {name: column.tolist() for name, column in columns.items()}}
    matrix = np.zeros((num_classes, num_classes), int)
    matrix[true, predicted] = counts
    return {"confusion_matrix": matrix.tolist()}


def list_confusions(figures: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, count) for each pair of classes in the details of a classification.

    Pairs with the count 0 are left out.

    Both `confusions` and `confusion_matrix` are read, because earlier versions wrote `confusion_matrix` for any number
    of classes.
    """
    if "confusions" in figures:
        columns = (figures["confusions"][name] for name in ("true", "predicted", "count"))
        return list(zip(*columns, strict=True))
    matrix = np.array(figures["confusion_matrix"])
    true, predicted = np.nonzero(matrix)
    return list(zip(true.tolist(), predicted.tolist(), matrix[true, predicted].tolist(), strict=True))


def _roc_points(positive: np.ndarray, scores: np.ndarray) -> list[dict[str, float]]:
    """Return at most 200 points of the ROC curve, sorted from the highest threshold to the lowest.

    A point contains the true and false positive rates if a score of at least `threshold` counts as positive. The last
    point is (1, 1). Return [] if all examples have the same class.
    """
    if positive.all() or not positive.any():
        return []
    values, _, true, false = count_scores(positive, scores)
    true_rate, false_rate = (counts[::-1].cumsum() / counts.sum() for counts in (true, false))
    kept = np.arange(len(values))
    if len(values) > _MAX_ROC_POINTS:
        # Evenly along the curve rather than by threshold: most scores crowd near 0 and 1.
        kept = np.unique(np.searchsorted(true_rate + false_rate, np.linspace(0, 2, _MAX_ROC_POINTS)))
    columns = (values[::-1][kept].tolist(), false_rate[kept].tolist(), true_rate[kept].tolist())
    names = ("threshold", "false_positive_rate", "true_positive_rate")
    return [dict(zip(names, point, strict=True)) for point in zip(*columns, strict=True)]


def _describe_labels(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    true = labels > 0
    columns = [(true[:, i : i + 1], probabilities[:, i : i + 1]) for i in range(len(names))]
    estimates = [(mean_average_precision(*column), mean_area(*column)) for column in columns]
    precisions, areas = ([estimate and estimate.value for estimate in kind] for kind in zip(*estimates, strict=True))
    counts = count_labels(labels, probabilities)
    return _describe_names(names, counts, average_precision=precisions, roc_auc=areas)


def _describe_numbers(targets: np.ndarray, values: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    each = [estimators(TASKS[REGRESSION], targets[:, [i]], values[:, [i]]) for i in range(len(names))]
    columns = {
        metric: [estimate and estimate.value for estimate in (own[metric]() for own in each)] for metric in _PER_TARGET
    }
    return {"per_target": _rows(names, **columns)}


def _describe_passages(targets: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    # Characters that the training split lacks are UNKNOWN; a model can only predict that one of them follows.
    return {
        "num_characters": int((targets != PADDING).sum()),
        "num_unknown": int((targets == UNKNOWN).sum()),
    }


_DETAILS: Mapping[str, Callable[[np.ndarray, np.ndarray, Sequence[str]], dict[str, Any]]] = {
    CLASSIFICATION: _describe_classes,
    MULTI_LABEL: _describe_labels,
    REGRESSION: _describe_numbers,
    LANGUAGE_MODEL: _describe_passages,
}


def macro_notes(details: Mapping[str, Any]) -> dict[str, str]:
    """Return {metric: note} for all macro-averaged metrics, or {} if all classes have examples.

    A note says how many classes have no examples, and gives the mean of the other classes.
    """
    absent = details.get("num_absent_classes", 0)
    present = [item for item in details["per_class"] if item["support"]] if absent else []
    total = len(present) + absent
    text = f"{absent:,} of {total:,} classes have no examples and count as 0; the mean of the other classes is"
    return {
        f"macro_{name}": f"{text} {show(float(np.mean([item[name] for item in present])))}"
        for name in ("precision", "recall", "f1")
        if present
    }

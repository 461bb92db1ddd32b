"""Computes the metrics of a model on examples and on slices of them, and of the best constant prediction."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import show
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    TASKS,
    THRESHOLD,
    UNKNOWN,
    Task,
)
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.models.measuring import direction_of, measure
from tpu_components.core.results.estimates import (
    Estimate,
    Estimators,
    calibration_bins,
    compare,
    count_classes,
    count_scores,
    estimators,
    find_interval,
    jackknife,
    mean_area,
    mean_average_precision,
    standard_error,
)
from tpu_components.core.results.evaluation_info import Baseline, Difference, SliceMetric, count_confusions
from tpu_components.core.results.metric_table import NO_CONFIDENCE, direction, task_metrics
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams

_INTERVALS = 0.95
_MAX_ROC_POINTS = 200
# Probabilities of a bfloat16 softmax may leave [0, 1] by a rounding step; logits leave it by far more.
_ROUNDING = 1e-2
# At most one in twenty models that know no more than the baseline seem to beat it by more than this many standard
# errors: the one-sided 95% quantile of a normal distribution.
_QUANTILE = 1.645
# Outputs of a regression that differ by less than this share of their target's standard deviation count as equal.
_SAME = 1e-6
_LISTED_LABELS = 3
_PER_TARGET = ("mean_absolute_error", "root_mean_squared_error", "median_absolute_error", "r2")
# Metric of a slice by task: each is also defined for a single class and for few examples.
SLICED: Mapping[str, str] = {CLASSIFICATION: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "loss"}
_UNITS: Mapping[str, str] = {LENGTH: "tokens", SIZE: "pixels"}
_NUM_QUARTERS = 4
# Property, its value, number of examples with this value, and their index in an array of all examples.
_Part = tuple[str, str, int, np.ndarray | tuple[slice, slice]]


@dataclasses.dataclass(frozen=True)
class GroundTruth:
    """The examples that predictions are compared with.

    Attributes:
        task: The task.
        targets: Targets of the examples, each shaped as `Interface.target_shape` says.
        names: Names of the classes, labels or targets.
        groups: Group of each example: int[examples]; None if all are independent.
        properties: Properties of all examples, by name: those of `load_slices`; for texts also `length`, int[examples],
            the number of tokens that a model reads.
    """

    task: Task
    targets: np.ndarray
    names: Sequence[str]
    groups: np.ndarray | None = None
    properties: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def select(self, rows: np.ndarray) -> Self:
        """Return the examples at some indices."""
        return dataclasses.replace(
            self,
            targets=self.targets[rows],
            groups=None if self.groups is None else self.groups[rows],
            properties={name: values[rows] for name, values in self.properties.items()},
        )

    def estimators(self, outputs: np.ndarray, top_k: int = 1) -> Estimators:
        """Return, for each metric of these predictions, the function that computes it; see `estimates.estimators`."""
        return estimators(self.task, self.targets, outputs, top_k, self.groups)


@dataclasses.dataclass(frozen=True)
class ModelMetrics:
    """Metrics of a model on some examples, and details such as the confusion matrix.

    Attributes:
        task: Name of the task.
        num_examples: Number of scored examples; for a language model, of passages.
        estimates: The metrics of the task that are defined, by name.
        details: Results that are not scalar metrics, as JSON values by name; see `_DETAILS`.
        directions: For each further metric among the estimates, 1 if more is better, -1 if less is.
    """

    task: str
    num_examples: int
    estimates: Mapping[str, Estimate]
    details: Mapping[str, Any]
    directions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Values of the metrics, by name."""
        return {name: estimate.value for name, estimate in self.estimates.items()}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95% confidence intervals of the metrics that have one, by name."""
        intervals = {name: find_interval(estimate, _INTERVALS) for name, estimate in self.estimates.items()}
        return {name: interval for name, interval in intervals.items() if interval}

    def sign_of(self, name: str) -> int:
        """Return `HIGHER` or `LOWER`, whichever is better for a metric; `NEITHER` if that is unknown."""
        return self.directions.get(name) or direction(name)

    def as_dict(self) -> dict[str, Any]:
        """Return `num_examples`, metrics and details as `evaluation.json` holds them; an undefined metric is None."""
        metrics = {**dict.fromkeys(task_metrics(self.task)), **self.metrics}
        return {"num_examples": self.num_examples, **metrics, **self.details}


def compute_metrics(
    truth: GroundTruth, outputs: np.ndarray, top_k: int = 5, further: Sequence[Any] = ()
) -> ModelMetrics:
    """Compute the metrics of a model's predictions.

    Args:
        truth: At least one example.
        outputs: Finite predictions for these examples, each shaped as `Interface.output_shape` says; for a language
            model, results of `score_passages`.
        top_k: Number of most probable classes for `top_k_accuracy`; lowered to num_classes - 1, because all classes
            always contain the true one.
        further: Further Keras metrics; see `measuring.adapt`.

    Raises:
        InputError: If an output of a classification or of multi-label data is not a probability.

    Example:
        >>> from tpu_components.core.examples.interface import TASKS
        >>> truth = GroundTruth(TASKS[CLASSIFICATION], np.array([0, 1]), "ab")
        >>> measured = compute_metrics(truth, np.array([[0.9, 0.1], [0.6, 0.4]]))
        >>> measured.metrics["accuracy"], measured.details["confusion_matrix"]
        (0.5, [[1, 0], [1, 0]])
    """
    task = truth.task.name
    targets = truth.targets
    names = truth.names
    if task in (CLASSIFICATION, MULTI_LABEL):
        _require_probabilities(task, outputs)
    top_k = max(1, min(top_k, len(names) - 1))
    estimates = {name: make() for name, make in truth.estimators(outputs, top_k).items()}
    for metric in further:
        estimates[metric.name] = jackknife(functools.partial(measure, metric), targets, outputs, truth.groups)
    details = _DETAILS[task](targets, outputs, names)
    if task == CLASSIFICATION:
        details["top_k"] = top_k
    defined = {name: estimate for name, estimate in estimates.items() if estimate is not None}
    directions = {metric.name: direction_of(metric) for metric in further}
    return ModelMetrics(task, len(targets), defined, details, directions)


def _require_probabilities(task: str, outputs: np.ndarray) -> None:
    outside = np.flatnonzero(((outputs < -_ROUNDING) | (outputs > 1 + _ROUNDING)).any(axis=1))
    if len(outside):
        worst = max(outputs[outside[0]].tolist(), key=lambda value: abs(value - 0.5))
        ending = "a softmax" if task == CLASSIFICATION else "one sigmoid per label"
        raise InputError(
            f"The model's output is refused: expected probabilities in [0, 1], received {worst:.4g} at "
            f"index {outside[0]} ({len(outside)} of {len(outputs)} rows). End the model with {ending}."
        )


def _rows(names: Sequence[str], **columns: Any) -> list[dict[str, Any]]:
    """Return a mapping for each name, with `name` and its value in every column."""
    lists = [np.asarray(column, object).tolist() for column in columns.values()]
    return [dict(zip(("name", *columns), row, strict=True)) for row in zip(names, *lists, strict=True)]


def _describe_names(names: Sequence[str], hits: Any, true: Any, predicted: Any, **more: Any) -> dict[str, Any]:
    """Return the number of classes without examples, and support, precision, recall and F1 per class or label.

    Undefined values are 0. `hits`, `true` and `predicted` are arrays of 0 and 1: [examples, names].
    """
    right, support, answered = (counted.sum(axis=0) for counted in (hits, true, predicted))
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
        **_describe_names(names, *count_classes(labels, probabilities)),
        **count_confusions(labels, predicted, len(names)),
        "calibration": calibration_bins(predicted == labels, probabilities),
        "roc": _roc_points(labels == 1, probabilities[:, 1]) if len(names) == 2 else [],
    }


def _roc_points(positive: np.ndarray, scores: np.ndarray) -> list[dict[str, float]]:
    """Return at most 200 points of the ROC curve, by falling threshold, the last at (1, 1); [] for a single class.

    A point has the rates that result when a score of at least `threshold` is called positive.
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
    predicted = probabilities > THRESHOLD
    columns = [(true[:, i : i + 1], probabilities[:, i : i + 1]) for i in range(len(names))]
    estimates = [(mean_average_precision(*column), mean_area(*column)) for column in columns]
    precisions, areas = ([estimate and estimate.value for estimate in kind] for kind in zip(*estimates, strict=True))
    return _describe_names(names, true & predicted, true, predicted, average_precision=precisions, roc_auc=areas)


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


def compare_metrics(challenger: ModelMetrics, champion: ModelMetrics, confidence: float) -> dict[str, Difference]:
    """Return the differences of a model from the champion on the same examples, by metric, with confidence bounds.

    Metrics that are undefined, or have too few examples to compare, are left out.
    """
    differences = {
        name: compare(estimate, champion.estimates[name], sign, confidence)
        for name, estimate in challenger.estimates.items()
        if name in champion.estimates and (sign := challenger.sign_of(name))
    }
    return {name: difference for name, difference in differences.items() if difference}


def macro_notes(details: Mapping[str, Any]) -> dict[str, str]:
    """Return notes on macro-averaged metrics about classes without examples, by metric; {} if all have examples."""
    absent = details.get("num_absent_classes", 0)
    present = [item for item in details["per_class"] if item["support"]] if absent else []
    text = f"{absent:,} of {len(present) + absent:,} classes have no examples and count 0; the mean of the others is"
    return {
        f"macro_{name}": f"{text} {show(float(np.mean([item[name] for item in present])))}"
        for name in ("precision", "recall", "f1")
        if present
    }


def find_baseline(truth: GroundTruth, outputs: np.ndarray) -> Baseline:
    """Compare a model with the best constant prediction, which a useful model has to beat.

    The constant prediction is fitted to the scored examples: the most frequent class, the set of labels with the
    highest F1, the mean of every target, or the frequency of every character.

    Args:
        truth: See `compute_metrics`.
        outputs: See `compute_metrics`.
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
    return f"always answering {names[majority]!r}", constant, repr(names[predicted[0]]) if _all_alike(predicted) else ""


def _answer_labels(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    predicted = probabilities > THRESHOLD
    support = (labels > 0).sum(axis=0)
    order = np.argsort(-support, kind="stable")
    # Always predicting the k most frequent labels is best among all sets of k.
    f1 = 2 * np.cumsum(support[order]) / (support.sum() + len(labels) * np.arange(1, len(order) + 1))
    chosen = np.isin(np.arange(len(names)), order[: int(f1.argmax()) + 1])
    collapsed_to = _list_labels(predicted[0], names) if _all_alike(predicted) else ""
    constant = np.broadcast_to(chosen.astype(float), probabilities.shape)
    return f"always answering {_list_labels(chosen, names)}", constant, collapsed_to


def _list_labels(chosen: np.ndarray, names: Sequence[str]) -> str:
    shown = [repr(names[i]) for i in np.flatnonzero(chosen).tolist()]
    more = f" and {len(shown) - _LISTED_LABELS} more" if len(shown) > _LISTED_LABELS else ""
    return ", ".join(shown[:_LISTED_LABELS]) + more or "no label"


def _answer_mean(targets: np.ndarray, values: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    targets = targets.astype(np.float64)
    collapsed = np.ptp(values.astype(np.float64), axis=0) <= _SAME * targets.std(axis=0)
    collapsed_to = ", ".join(f"{value:.4g}" for value in values[0]) if len(values) > 1 and collapsed.all() else ""
    return "always answering the mean", np.broadcast_to(targets.mean(axis=0), targets.shape), collapsed_to


def _answer_frequencies(targets: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> tuple[str, np.ndarray, str]:
    counts = targets != PADDING
    _, place, frequency = np.unique(targets[counts], return_inverse=True, return_counts=True)
    constant = np.zeros((*targets.shape, 2))
    constant[counts, 0] = -np.log(frequency / counts.sum())[place]
    return "foretelling every character by its frequency alone", constant, ""


_CONSTANT_ANSWERS: Mapping[str, Callable[[np.ndarray, np.ndarray, Sequence[str]], tuple[str, np.ndarray, str]]] = {
    CLASSIFICATION: _answer_class,
    MULTI_LABEL: _answer_labels,
    REGRESSION: _answer_mean,
    LANGUAGE_MODEL: _answer_frequencies,
}


def _all_alike(predicted: np.ndarray) -> bool:
    return len(predicted) > 1 and bool((predicted == predicted[0]).all())


def find_slices(params: EvaluateParams, truth: GroundTruth, outputs: np.ndarray) -> tuple[SliceMetric, ...]:
    """Return the metric of every slice that has examples, beside the champion's; () for a language model.

    All bounds together hold with the gate's confidence: each has a higher one, by the Bonferroni correction.

    Args:
        params: Properties by which to divide, and the confidence.
        truth: The examples to divide.
        outputs: Predictions of the model and, if there is one, of the champion: float32[models, examples, …].
    """
    parts = [part for name in params.slices for part in _divide(name, truth)]
    confidence = params.confidence
    if confidence != NO_CONFIDENCE:
        confidence = 1 - (1 - confidence) / max(len(parts), 1)
    return tuple(_judge(part, truth, outputs, confidence) for part in parts)


def _divide(name: str, truth: GroundTruth) -> Iterator[_Part]:
    if name != CLASS:
        names, places = _by_value(truth.properties[name], _UNITS.get(name, ""))
        for i, value in enumerate(names):
            rows = np.flatnonzero(places == i)
            yield name, value, len(rows), rows
    elif truth.task.name == CLASSIFICATION:
        for i in np.unique(truth.targets).tolist():
            rows = np.flatnonzero(truth.targets == i)
            yield name, truth.names[i], len(rows), rows
    elif truth.task.name == MULTI_LABEL:
        for i, count in enumerate((truth.targets > 0).sum(axis=0).tolist()):
            if count:
                yield name, truth.names[i], count, (slice(None), slice(i, i + 1))


def _by_value(values: np.ndarray, unit: str) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts, or names of quarters of numbers, and each example's index into them, int[examples]."""
    if values.dtype.kind == "U":
        names, places = np.unique(values, return_inverse=True)
        return names.tolist(), places
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _NUM_QUARTERS + 1)[1:], method="inverted_cdf"))
    places = np.searchsorted(edges, values)  # Index of the first edge that is not below the value.
    parts = [values[places == i] for i in range(len(edges))]
    return [f"{part.min():,} to {part.max():,} {unit}" for part in parts], places


def _judge(part: _Part, truth: GroundTruth, outputs: np.ndarray, confidence: float) -> SliceMetric:
    by, name, num_examples, chosen = part
    metric = SLICED[truth.task.name]
    if isinstance(chosen, np.ndarray):
        own = truth.select(chosen)
    else:  # The slice of a label has all examples.
        own = dataclasses.replace(truth, targets=truth.targets[chosen])
    ours, *others = [
        estimate for answers in outputs if (estimate := own.estimators(answers[chosen])[metric]()) is not None
    ]
    interval = find_interval(ours, 2 * confidence - 1)
    if not others:
        return SliceMetric(by, name, num_examples, metric, ours.value, interval)
    difference = compare(ours, others[0], direction(metric), confidence)
    return SliceMetric(by, name, num_examples, metric, ours.value, interval, others[0].value, difference)

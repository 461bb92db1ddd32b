"""Table of all metrics: name, direction (which values are better), and the function that estimates the metric.

The gate, the report, the command line and comparisons use this table. Importing it loads no library except NumPy.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    Task,
)
from tpu_components.core.metrics.calibration import calibration_error
from tpu_components.core.metrics.class_means import (
    ClassCounts,
    count_classes,
    count_labels,
    mean_area,
    mean_average_precision,
    mean_of_shares,
    ranks,
)
from tpu_components.core.metrics.estimates import (
    Estimate,
    by_group,
    mean,
    median,
    members_of,
    r_squared,
    ratio,
    ratio_of_hits,
    root_mean,
    share_of,
)

HIGHER = 1
LOWER = -1
NEITHER = 0
NO_CONFIDENCE = 0.5  # Without a significance test: each of two equal models scores higher half of the time.


@dataclasses.dataclass(frozen=True)
class ScoredExamples:
    """Targets and predictions, from which the metrics of a task are estimated.

    Attributes:
        task: The task.
        targets: Targets of all examples.
        outputs: Predictions for all examples.
        top_k: Number of classes for `top_k_accuracy`.
        members: Groups of dependent examples, as `members_of` returns them. None if all examples are independent.
    """

    task: Task
    targets: np.ndarray
    outputs: np.ndarray
    top_k: int
    members: Any

    @property
    def losses(self) -> np.ndarray:
        """Loss of every example, float64[examples]."""
        return self.task.losses(self.targets, self.outputs)


class ScoredClasses(ScoredExamples):
    """True classes, and the predicted probability of every class."""

    @functools.cached_property
    def is_right(self) -> np.ndarray:
        """Whether the most probable class is the true class, bool[examples]."""
        return self.outputs.argmax(axis=1) == self.targets

    @functools.cached_property
    def counts(self) -> ClassCounts:
        """Matrices of 0 and 1: correct predictions, true classes and predicted classes."""
        return count_classes(self.targets, self.outputs)

    @property
    def losses(self) -> np.ndarray:
        """Loss of every example, float64[examples]."""
        # A bfloat16 softmax may exceed 1 by a rounding step.
        return self.task.losses(self.targets, np.minimum(self.outputs, 1))


class ScoredLabels(ScoredExamples):
    """True labels and the predicted probability of every label. An example can have any number of true labels."""

    @functools.cached_property
    def counts(self) -> ClassCounts:
        """Matrices of 0 and 1: correct predictions, true labels and predicted labels."""
        return count_labels(self.targets, self.outputs)


class ScoredNumbers(ScoredExamples):
    """True and predicted numbers."""

    @functools.cached_property
    def exact_targets(self) -> np.ndarray:
        """Targets in double precision, float64[examples, targets]."""
        return self.targets.astype(np.float64)

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """Absolute errors, float64[examples, targets]."""
        return np.abs(self.exact_targets - self.outputs)


class ScoredPassages(ScoredExamples):
    """Characters of passages, and for each character the two scores of `score_passages`."""

    @functools.cached_property
    def num_characters(self) -> np.ndarray:
        """Number of characters in every passage, without padding, int[passages]."""
        return (self.targets != PADDING).sum(axis=1)

    @property
    def nats(self) -> np.ndarray:
        """Sum of the losses of the characters in every passage, float64[passages]."""
        return self._sums[0]

    @property
    def hits(self) -> np.ndarray:
        """Number of correctly predicted characters in every passage, float64[passages]."""
        return self._sums[1]

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        return self.outputs.sum(axis=1).T


_SCORED: Mapping[str, type[ScoredExamples]] = {
    CLASSIFICATION: ScoredClasses,
    MULTI_LABEL: ScoredLabels,
    REGRESSION: ScoredNumbers,
    LANGUAGE_MODEL: ScoredPassages,
}


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of a task.

    Attributes:
        task: The task.
        name: Name in evaluation.json, in thresholds and in registries.
        label: Name in reports; `{top_k}` is replaced by the number of classes of top-k accuracy.
        direction: `HIGHER` if larger values are better, otherwise `LOWER`. Metrics with the same name have the same
            direction in all tasks.
        estimate: Function that estimates the metric from the `ScoredExamples` of the task. It returns None if the
            metric is undefined.
        least: Smallest possible value.
        most: Largest possible value.
        is_share: Whether reports show the metric as a percentage.
        is_headline: Whether reports show the metric at the top.
        needs: What a split must contain so that the metric is defined, in words: for example `both classes in the
            split`. Empty if the metric is always defined.
    """

    task: str
    name: str
    label: str
    direction: int
    estimate: Callable[[Any], Estimate | None]
    least: float = 0.0
    most: float = 1.0
    is_share: bool = False
    is_headline: bool = True
    needs: str = ""


def _loss(scored: ScoredExamples) -> Estimate:
    return mean(scored.losses)


def _macro_precision(scored: ScoredClasses | ScoredLabels) -> Estimate:
    return mean_of_shares(scored.counts.right, scored.counts.predicted, scored.members)


def _macro_recall(scored: ScoredClasses | ScoredLabels) -> Estimate:
    return mean_of_shares(scored.counts.right, scored.counts.true, scored.members)


def _macro_f1(scored: ScoredClasses | ScoredLabels) -> Estimate:
    hits = 2 * scored.counts.right
    wholes = scored.counts.true + scored.counts.predicted
    return mean_of_shares(hits, wholes, scored.members, is_f1=True)


def _micro_f1(scored: ScoredLabels) -> Estimate:
    hits = 2 * scored.counts.right
    wholes = scored.counts.true + scored.counts.predicted
    return ratio_of_hits(hits.sum(axis=1), wholes.sum(axis=1), scored.members)


def _hamming_loss(scored: ScoredLabels) -> Estimate:
    wrong = (scored.counts.true != scored.counts.predicted).sum(axis=1)
    return ratio_of_hits(wrong, np.full(len(wrong), scored.targets.shape[1]), scored.members)


def _roc_auc(scored: ScoredClasses) -> Estimate | None:
    if scored.outputs.shape[1] != 2:
        return None
    return mean_area((scored.targets == 1)[:, None], scored.outputs[:, 1:], scored.members)


# The first metric of each task is the one that the gate compares. Reports show headline metrics in this order.
METRICS: tuple[Metric, ...] = (
    Metric(CLASSIFICATION, "accuracy", "Accuracy", HIGHER, lambda scored: share_of(scored.is_right), is_share=True),
    Metric(
        CLASSIFICATION,
        "top_k_accuracy",
        "Top-{top_k} accuracy",
        HIGHER,
        lambda scored: share_of(ranks(scored.targets, scored.outputs) < scored.top_k),
        is_share=True,
    ),
    Metric(CLASSIFICATION, "loss", "Loss", LOWER, _loss, most=math.inf),
    Metric(CLASSIFICATION, "macro_precision", "Macro precision", HIGHER, _macro_precision, is_headline=False),
    Metric(CLASSIFICATION, "macro_recall", "Macro recall", HIGHER, _macro_recall, is_headline=False),
    Metric(CLASSIFICATION, "macro_f1", "Macro F1", HIGHER, _macro_f1),
    Metric(
        CLASSIFICATION,
        "calibration_error",
        "Calibration error",
        LOWER,
        lambda scored: calibration_error(scored.is_right, scored.outputs, scored.members),
        is_share=True,
    ),
    Metric(CLASSIFICATION, "roc_auc", "ROC AUC", HIGHER, _roc_auc, needs="both classes in the split"),
    Metric(MULTI_LABEL, "micro_f1", "Micro F1", HIGHER, _micro_f1),
    Metric(MULTI_LABEL, "macro_f1", "Macro F1", HIGHER, _macro_f1),
    Metric(MULTI_LABEL, "macro_precision", "Macro precision", HIGHER, _macro_precision, is_headline=False),
    Metric(MULTI_LABEL, "macro_recall", "Macro recall", HIGHER, _macro_recall, is_headline=False),
    Metric(
        MULTI_LABEL,
        "subset_accuracy",
        "All labels right",
        HIGHER,
        lambda scored: share_of((scored.counts.true == scored.counts.predicted).all(axis=1)),
        is_share=True,
    ),
    Metric(MULTI_LABEL, "hamming_loss", "Hamming loss", LOWER, _hamming_loss, is_share=True),
    Metric(
        MULTI_LABEL,
        "mean_average_precision",
        "Mean average precision",
        HIGHER,
        lambda scored: mean_average_precision(scored.targets > 0, scored.outputs, scored.members),
        needs="at least one example in the split that has a label",
    ),
    Metric(
        MULTI_LABEL,
        "macro_roc_auc",
        "Mean ROC AUC",
        HIGHER,
        lambda scored: mean_area(scored.targets > 0, scored.outputs, scored.members),
        needs="a label that only some examples of the split have",
    ),
    Metric(MULTI_LABEL, "loss", "Loss", LOWER, _loss, most=math.inf),
    Metric(
        REGRESSION,
        "r2",
        "R²",
        HIGHER,
        lambda scored: r_squared(scored.exact_targets, scored.outputs),
        least=-math.inf,
        needs="targets with different values within the split",
    ),
    Metric(
        REGRESSION,
        "mean_absolute_error",
        "Mean absolute error",
        LOWER,
        lambda scored: mean(scored.errors.mean(axis=1)),
        most=math.inf,
    ),
    Metric(
        REGRESSION,
        "root_mean_squared_error",
        "Root mean squared error",
        LOWER,
        lambda scored: root_mean(np.square(scored.errors)),
        most=math.inf,
    ),
    Metric(
        REGRESSION,
        "median_absolute_error",
        "Median absolute error",
        LOWER,
        lambda scored: median(scored.errors),
        most=math.inf,
    ),
    Metric(REGRESSION, "loss", "Loss", LOWER, _loss, most=math.inf),
    Metric(
        LANGUAGE_MODEL,
        "bits_per_character",
        "Bits per character",
        LOWER,
        lambda scored: ratio(scored.nats / np.log(2), scored.num_characters),
        most=math.inf,
    ),
    Metric(
        LANGUAGE_MODEL, "loss", "Loss", LOWER, lambda scored: ratio(scored.nats, scored.num_characters), most=math.inf
    ),
    Metric(
        LANGUAGE_MODEL,
        "accuracy",
        "Next character correct",
        HIGHER,
        lambda scored: ratio_of_hits(scored.hits, scored.num_characters, scored.members),
        is_share=True,
    ),
)
# All tasks must agree on a metric with the same name, because thresholds and comparisons know only the name.
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def task_metrics(task: str) -> Mapping[str, Metric]:
    """Return {name: metric} for all metrics of a task. By default, the gate compares the first metric."""
    return {metric.name: metric for metric in METRICS if metric.task == task}


def direction(name: str) -> int:
    """Return `HIGHER` if larger values of a metric are better, `LOWER` if smaller, or `NEITHER` if it is unknown."""
    return BY_NAME[name].direction if name in BY_NAME else NEITHER


Estimators = Mapping[str, Callable[[], Estimate | None]]


def estimators(
    task: Task, targets: np.ndarray, outputs: np.ndarray, top_k: int = 1, groups: np.ndarray | None = None
) -> Estimators:
    """Return {metric: function} for a task. The function returns an estimate of the metric, or None if it is undefined.

    Args:
        task: The task.
        targets: Targets of all examples, each of the shape `Interface.target_shape`.
        outputs: Predictions for all examples, all finite, each of the shape `Interface.output_shape`. For a language
            model, float64[passages, num_tokens, 2]; see `score_passages`.
        top_k: Number of classes for `top_k_accuracy`.
        groups: int[examples]: the group that each example belongs to, or None if all are independent.
    """
    members = None if groups is None else members_of(groups)
    scored = _SCORED[task.name](task, targets, outputs, top_k, members)
    return {name: functools.partial(_estimate, metric, scored) for name, metric in task_metrics(task.name).items()}


def _estimate(metric: Metric, scored: ScoredExamples) -> Estimate | None:
    estimate = metric.estimate(scored)
    return estimate if estimate is None or scored.members is None else by_group(estimate, scored.members)

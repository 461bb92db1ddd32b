"""The table of all metrics of an evaluation, which gate, report, command line and comparisons use.

`tpu_components.core.results.estimates` computes them.
"""

import dataclasses
import math
from collections.abc import Mapping

from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, MULTI_LABEL, REGRESSION

HIGHER = 1
LOWER = -1
NEITHER = 0
NO_CONFIDENCE = 0.5  # Confidence without a margin: of two equal models, either scores higher half of the time.


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of a task.

    Attributes:
        task: The task.
        name: Name in evaluation.json, in thresholds and in registries.
        label: Name in reports; `{top_k}` is replaced by the number of classes of top-k accuracy.
        direction: Whether `HIGHER` or `LOWER` is better; equal for all tasks with a metric of this name.
        most: Largest possible value.
        is_share: Whether reports show it as a percentage.
        is_headline: Whether reports show it at the top.
        needs: Condition under which the metric is defined on a split; empty if it always is.
    """

    task: str
    name: str
    label: str
    direction: int
    most: float = 1.0
    is_share: bool = False
    is_headline: bool = True
    needs: str = ""


# The first metric of each task is the one that the gate compares; headlines are in the order of reports.
METRICS: tuple[Metric, ...] = (
    Metric(CLASSIFICATION, "accuracy", "Accuracy", HIGHER, is_share=True),
    Metric(CLASSIFICATION, "top_k_accuracy", "Top-{top_k} accuracy", HIGHER, is_share=True),
    Metric(CLASSIFICATION, "loss", "Loss", LOWER, most=math.inf),
    Metric(CLASSIFICATION, "macro_precision", "Macro precision", HIGHER, is_headline=False),
    Metric(CLASSIFICATION, "macro_recall", "Macro recall", HIGHER, is_headline=False),
    Metric(CLASSIFICATION, "macro_f1", "Macro F1", HIGHER),
    Metric(CLASSIFICATION, "calibration_error", "Calibration error", LOWER, is_share=True),
    Metric(CLASSIFICATION, "roc_auc", "ROC AUC", HIGHER, needs="two classes, both in the split"),
    Metric(MULTI_LABEL, "micro_f1", "Micro F1", HIGHER),
    Metric(MULTI_LABEL, "macro_f1", "Macro F1", HIGHER),
    Metric(MULTI_LABEL, "macro_precision", "Macro precision", HIGHER, is_headline=False),
    Metric(MULTI_LABEL, "macro_recall", "Macro recall", HIGHER, is_headline=False),
    Metric(MULTI_LABEL, "subset_accuracy", "All labels right", HIGHER, is_share=True),
    Metric(MULTI_LABEL, "hamming_loss", "Hamming loss", LOWER, is_share=True),
    Metric(
        MULTI_LABEL,
        "mean_average_precision",
        "Mean average precision",
        HIGHER,
        needs="an example in the split that has a label",
    ),
    Metric(
        MULTI_LABEL,
        "macro_roc_auc",
        "Mean ROC AUC",
        HIGHER,
        needs="a label that some examples of the split have and others have not",
    ),
    Metric(MULTI_LABEL, "loss", "Loss", LOWER, most=math.inf),
    Metric(REGRESSION, "r2", "R²", HIGHER, needs="targets that differ within the split"),
    Metric(REGRESSION, "mean_absolute_error", "Mean absolute error", LOWER, most=math.inf),
    Metric(REGRESSION, "root_mean_squared_error", "Root mean squared error", LOWER, most=math.inf),
    Metric(REGRESSION, "median_absolute_error", "Median absolute error", LOWER, most=math.inf),
    Metric(REGRESSION, "loss", "Loss", LOWER, most=math.inf),
    Metric(LANGUAGE_MODEL, "bits_per_character", "Bits per character", LOWER, most=math.inf),
    Metric(LANGUAGE_MODEL, "loss", "Loss", LOWER, most=math.inf),
    Metric(LANGUAGE_MODEL, "accuracy", "Next character right", HIGHER, is_share=True),
)
# All tasks must agree on a metric with the same name, because thresholds and comparisons know only the name.
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def task_metrics(task: str) -> Mapping[str, Metric]:
    """Return the metrics of a task by name; the metric that the gate compares comes first."""
    return {metric.name: metric for metric in METRICS if metric.task == task}


def direction(name: str) -> int:
    """Return `HIGHER` or `LOWER`, whichever is better for a metric; `NEITHER` for an unknown name."""
    return BY_NAME[name].direction if name in BY_NAME else NEITHER

"""The metrics of an evaluation, each stated once: gate, report, command line and comparisons read this table.

`tpu_components.evaluate_model.estimates` computes them.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, MULTI_LABEL, REGRESSION

HIGHER, LOWER, NEITHER = 1, -1, 0
_DIGITS, _MAX_DIGITS = 4, 17  # 17 significant digits tell any two numbers apart.


@dataclasses.dataclass(frozen=True)
class Metric:
    """One figure of a task's evaluation.

    Attributes:
        task: The task that is judged by it.
        name: The name in evaluation.json, in thresholds and in registries.
        label: The name in reports; `{top_k}` stands for the number of classes that count.
        direction: `HIGHER` or `LOWER` is better; the same for every task that has a metric of this name.
        most: The greatest value that it can have.
        is_share: Whether reports show it in percent.
        is_headline: Whether reports show it at their top.
        needs: Condition on the split for it to be defined; empty where it always is.
    """

    task: str
    name: str
    label: str
    direction: int
    most: float = 1.0
    is_share: bool = False
    is_headline: bool = True
    needs: str = ""


# Of each task the judged figure first; headlines in the order in which reports show them.
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
# What tasks say of a metric of one name, they all say: thresholds and comparisons know the name alone.
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def task_metrics(task: str) -> Mapping[str, Metric]:
    """Return the metrics of a task by name, the judged one first."""
    return {metric.name: metric for metric in METRICS if metric.task == task}


def direction(name: str) -> int:
    """Return `HIGHER` or `LOWER`, whichever is better; `NEITHER` for what is no metric."""
    return BY_NAME[name].direction if name in BY_NAME else NEITHER


def scalars(task: str, figures: Mapping[str, Any], further: Iterable[str] = ()) -> dict[str, float]:
    """Return the metrics of a task, and further ones, that are defined, by name, from all figures of an evaluation."""
    return {name: value for name in (*task_metrics(task), *further) if (value := figures.get(name)) is not None}


def show(value: float, *beside: float) -> str:
    """Return a value in as many digits as tell it from the ones that it is shown beside, at least four.

    Numbers too small for four places are shown to four digits, since errors have any unit.

    Example:
        >>> show(0.9), show(0.00001234), show(0.90001, 0.9), show(float("nan"))
        ('0.9000', '1.234e-05', '0.90001', 'not a number')
    """
    others = [other for other in beside if other != value]
    digits = _DIGITS
    while digits < _MAX_DIGITS and any(_show(value, digits) == _show(other, digits) for other in others):
        digits += 1
    return _show(value, digits)


def _show(value: float, digits: int) -> str:
    if math.isnan(value):
        return "not a number"
    return f"{value:.{digits}g}" if 0 < abs(value) < 1e-3 else f"{value:.{digits}f}"

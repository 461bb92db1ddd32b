"""How good the probabilities of several labels are: scikit-learn's figures of every label, and their means."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import MULTI_LABEL, THRESHOLD, MultiLabel
from tpu_components.evaluate_model.metrics import check_not_empty, check_probabilities, roc_curve


@dataclasses.dataclass(frozen=True)
class LabelMetrics:
    """One label, told from its absence.

    Attributes:
        name: Its name.
        support: Examples that have it.
        precision: Share of its predictions that are right; 0 without any.
        recall: Share of its examples that are found; 0 without any.
        f1: Harmonic mean of both; 0 where it has neither predictions nor examples.
        average_precision: Precision at every threshold, weighted by the recall gained there; None without examples.
        roc_auc: Area under its ROC curve; None where all examples have it, or none.
    """

    name: str
    support: int
    precision: float
    recall: float
    f1: float
    average_precision: float | None
    roc_auc: float | None


@dataclasses.dataclass(frozen=True)
class MultiLabelMetrics:
    """Every figure of one evaluation, as plain Python numbers. A label is predicted above a probability of 0.5.

    Attributes:
        num_examples: Examples that were scored.
        micro_f1: F1 of all labels of all examples together.
        macro_f1: Mean over all labels, one with neither predictions nor examples counting 0.
        macro_precision: Mean over all labels, one without predictions counting 0.
        macro_recall: Mean over all labels, one without examples counting 0.
        num_absent_classes: Labels that no example has.
        subset_accuracy: Share of the examples whose labels are all right.
        hamming_loss: Share of all labels of all examples that are wrong.
        mean_average_precision: Mean over the labels that have it; None if none has.
        macro_roc_auc: Mean over the labels that have it; None if none has.
        loss: Mean binary cross-entropy in nats; probabilities are clipped at 1e-7.
        per_class: One entry per label, in the order of the class names.
    """

    task: ClassVar[str] = MULTI_LABEL
    num_examples: int
    micro_f1: float
    macro_f1: float
    macro_precision: float
    macro_recall: float
    num_absent_classes: int
    subset_accuracy: float
    hamming_loss: float
    mean_average_precision: float | None
    macro_roc_auc: float | None
    loss: float
    per_class: tuple[LabelMetrics, ...]


def compute_multi_label_metrics(
    labels: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str]
) -> MultiLabelMetrics:
    """Compare predicted probabilities with the truth.

    Args:
        labels: [num_examples, num_classes] of 0 and 1.
        probabilities: float[num_examples, num_classes] in [0, 1].
        class_names: One name per class.

    Raises:
        InputError: If there are no examples, the shapes disagree, or a number is no probability.
    """
    from sklearn import metrics as reference

    check_not_empty(labels)
    if not labels.shape == probabilities.shape == (len(labels), len(class_names)):
        raise InputError(
            "Labels and probabilities must be of shape [num_examples, num_classes]. Received: "
            f"{list(labels.shape)} and {list(probabilities.shape)}, with {len(class_names)} class names. Give the "
            "model one output per class."
        )
    check_probabilities(probabilities, "one sigmoid per label")
    true, predicted = labels > 0, probabilities > THRESHOLD
    support = true.sum(axis=0)
    # Label by label, since scikit-learn takes a single one for a class.
    parts = [
        reference.precision_recall_fscore_support(*columns, labels=[True], zero_division=0.0)[:3]
        for columns in zip(true.T, predicted.T, strict=True)
    ]
    precision, recall, f1 = np.concatenate(parts, axis=1)
    average_precision = [
        float(reference.average_precision_score(*columns)) if columns[0].any() else None
        for columns in zip(true.T, probabilities.T, strict=True)
    ]
    roc_auc = [roc_curve(*columns)[0] for columns in zip(true.T, probabilities.T, strict=True)]
    task = MultiLabel()
    columns = (support.tolist(), precision.tolist(), recall.tolist(), f1.tolist(), average_precision, roc_auc)
    return MultiLabelMetrics(
        num_examples=len(labels),
        micro_f1=task.judge(labels, probabilities),
        macro_f1=float(f1.mean()),
        macro_precision=float(precision.mean()),
        macro_recall=float(recall.mean()),
        num_absent_classes=int(np.count_nonzero(support == 0)),
        subset_accuracy=float((true == predicted).all(axis=1).mean()),
        hamming_loss=float((true != predicted).mean()),
        mean_average_precision=_mean(average_precision),
        macro_roc_auc=_mean(roc_auc),
        loss=float(task.losses(labels, probabilities).mean()),
        per_class=tuple(LabelMetrics(*row) for row in zip(class_names, *columns, strict=True)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None

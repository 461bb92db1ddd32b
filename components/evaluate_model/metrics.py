"""How good a classifier's probabilities are: scikit-learn's figures, and ours where it has none.

Ours are the calibration error, the loss of clipped probabilities, and the rule that the first class wins a tie.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION
from tpu_components.core.results.metric_table import show

_CALIBRATION_EDGES = np.linspace(0, 1, 16)
_MAX_ROC_POINTS = 200
_SMALLEST_PROBABILITY = 1e-7
# Probabilities of a bfloat16 softmax may leave [0, 1] by a rounding step; logits leave it by far more.
_ROUNDING = 1e-2


@dataclasses.dataclass(frozen=True)
class ClassMetrics:
    """One class: how many examples it has, and how well they are told from the others; 0 where undefined."""

    name: str
    support: int
    precision: float
    recall: float
    f1: float


@dataclasses.dataclass(frozen=True)
class CalibrationBin:
    """The examples whose confidence is in (lower, upper]: their mean confidence, and the share predicted right."""

    lower: float
    upper: float
    count: int
    confidence: float
    accuracy: float


@dataclasses.dataclass(frozen=True)
class RocPoint:
    """The rates that result when a score of at least `threshold` is called positive."""

    threshold: float
    false_positive_rate: float
    true_positive_rate: float


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Every figure of one evaluation, as plain Python numbers: `dataclasses.asdict` of it is valid JSON.

    Attributes:
        num_examples: Examples that were scored.
        accuracy: Share whose most probable class is the true one; the first class wins a tie.
        top_k: Number of classes that `top_k_accuracy` looks at.
        top_k_accuracy: Share whose true class is among the `top_k` most probable ones.
        loss: Mean cross-entropy in nats; probabilities are clipped at 1e-7.
        macro_precision: Mean over all classes, a class without predictions counting 0.
        macro_recall: Mean over all classes, a class without examples counting 0.
        macro_f1: Mean over all classes, a class without examples counting 0.
        num_absent_classes: Classes without examples.
        calibration_error: Mean distance of confidence from accuracy over 15 equal-width bins, weighted by their
            examples (https://arxiv.org/abs/1706.04599).
        per_class: One entry per class, in the order of the class names.
        confusion_matrix: Numbers of examples, [true][predicted].
        calibration: The bins that hold examples.
        roc_auc: With two classes, the area under the ROC curve of the second one's probability; else None, and also
            if the examples are all of one class.
        roc: With `roc_auc`, at most 200 points by falling threshold, the last one at (1, 1); else empty.
    """

    task: ClassVar[str] = CLASSIFICATION
    num_examples: int
    accuracy: float
    top_k: int
    top_k_accuracy: float
    loss: float
    macro_precision: float
    macro_recall: float
    macro_f1: float
    num_absent_classes: int
    calibration_error: float
    per_class: tuple[ClassMetrics, ...]
    confusion_matrix: tuple[tuple[int, ...], ...]
    calibration: tuple[CalibrationBin, ...]
    roc_auc: float | None
    roc: tuple[RocPoint, ...]


def compute_metrics(
    labels: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str], top_k: int = 5
) -> Metrics:
    """Compare predicted probabilities with the truth.

    Args:
        labels: int[num_examples] in [0, num_classes).
        probabilities: float[num_examples, num_classes] in [0, 1].
        class_names: One name per class.
        top_k: Classes to look at for `top_k_accuracy`; lowered to num_classes - 1, since all of them always hit.

    Raises:
        InputError: If there are no examples, the shapes disagree, a label is no class, or a number is no probability.

    Example:
        >>> metrics = compute_metrics(np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]), ["cat", "dog"])
        >>> metrics.accuracy, metrics.confusion_matrix
        (0.5, ((1, 0), (1, 0)))
    """
    from sklearn import metrics as reference

    _check(labels, probabilities, class_names)
    num_examples, num_classes = probabilities.shape
    labels = labels.astype(np.int64)
    top_k = max(1, min(top_k, num_classes - 1))

    own = probabilities[np.arange(num_examples), labels]
    predicted = probabilities.argmax(axis=1)

    classes = np.arange(num_classes)
    matrix = reference.confusion_matrix(labels, predicted, labels=classes)
    precision, recall, f1, support = reference.precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=0.0
    )

    bins = _calibration(probabilities, predicted == labels)
    roc_auc, roc = roc_curve(labels == 1, probabilities[:, 1]) if num_classes == 2 else (None, ())
    return Metrics(
        num_examples=num_examples,
        accuracy=float(np.mean(predicted == labels)),
        top_k=top_k,
        top_k_accuracy=float(np.mean(ranks(labels, probabilities) < top_k)),
        loss=float(-np.log(own.astype(np.float64).clip(_SMALLEST_PROBABILITY, 1)).mean()) + 0.0,  # No "-0.0".
        macro_precision=float(precision.mean()),
        macro_recall=float(recall.mean()),
        macro_f1=float(f1.mean()),
        num_absent_classes=int(np.count_nonzero(support == 0)),
        calibration_error=sum(item.count * abs(item.accuracy - item.confidence) for item in bins) / num_examples,
        per_class=tuple(
            ClassMetrics(*row)
            for row in zip(class_names, support.tolist(), precision.tolist(), recall.tolist(), f1.tolist(), strict=True)
        ),
        confusion_matrix=tuple(tuple(row) for row in matrix.tolist()),
        calibration=bins,
        roc_auc=roc_auc,
        roc=roc,
    )


def ranks(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return int[num_examples]: number of classes before the true one; among equally probable ones the first leads."""
    own = probabilities[np.arange(len(labels)), labels][:, None]
    tied_before = (probabilities == own) & (np.arange(probabilities.shape[1]) < labels[:, None])
    return ((probabilities > own) | tied_before).sum(axis=1)


def macro_notes(metrics: Any) -> dict[str, str]:
    """Return what to know of the macro figures, by name; nothing if all classes or labels occur in the split."""
    absent = getattr(metrics, "num_absent_classes", 0)
    present = [item for item in metrics.per_class if item.support] if absent else []
    text = f"{absent:,} of {len(present) + absent:,} classes have no examples and count 0; the mean of the others is"
    return {
        f"macro_{name}": f"{text} {show(float(np.mean([getattr(item, name) for item in present])))}"
        for name in ("precision", "recall", "f1")
        if present
    }


def _check(labels: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str]) -> None:
    num_classes = len(class_names)
    check_not_empty(labels)
    if labels.ndim != 1 or probabilities.shape != (len(labels), num_classes):
        raise InputError(
            "Labels and probabilities must be of shape [num_examples] and [num_examples, num_classes]. Received: "
            f"{list(labels.shape)} and {list(probabilities.shape)}, with {num_classes} class names. Give the model one "
            "output per class."
        )
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(outside):
        raise InputError(
            f"Labels must be in [0, {num_classes}), one per class name. Received: label {labels[outside[0]]} at index "
            f"{outside[0]}, one of {len(outside)}. Evaluate on the data set that the model was made for."
        )
    check_probabilities(probabilities, "a softmax")


def check_not_empty(labels: np.ndarray) -> None:
    """Check that there are examples, whatever their labels are.

    Raises:
        InputError: If there are none.
    """
    if labels.shape[:1] == (0,):
        raise InputError("There is nothing to evaluate: received 0 examples. Choose a split that has some.")


def check_finite(outputs: np.ndarray) -> None:
    """Check that float[num_examples, …] holds numbers.

    Raises:
        InputError: If one is not finite.
    """
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if len(bad):
        raise InputError(
            f"The model's output is refused: {len(bad)} of {len(outputs)} rows hold NaN or infinity, the first at "
            f"index {bad[0]}. The training has diverged: lower training.learning_rate and train again."
        )


def check_probabilities(probabilities: np.ndarray, ending: str) -> None:
    """Check that float[num_examples, num_classes] holds probabilities.

    Args:
        probabilities: Answers of a model.
        ending: Ending that it should have, in words.

    Raises:
        InputError: If a number is not finite, or outside [0, 1] by more than bfloat16's rounding.
    """
    check_finite(probabilities)
    bad = np.flatnonzero(((probabilities < -_ROUNDING) | (probabilities > 1 + _ROUNDING)).any(axis=1))
    if len(bad):
        worst = max(probabilities[bad[0]].tolist(), key=lambda value: abs(value - 0.5))
        raise InputError(
            f"The model's output is refused: expected probabilities in [0, 1], received {worst:.4g} at "
            f"index {bad[0]} ({len(bad)} of {len(probabilities)} rows). End the model with {ending}."
        )


def calibration_bins(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float64[num_examples], the confidence in every answer, and int[num_examples], the bin that it is in."""
    confidence = probabilities.max(axis=1).astype(np.float64).clip(0, 1)
    return confidence, np.digitize(confidence, _CALIBRATION_EDGES[1:-1], right=True)


def _calibration(probabilities: np.ndarray, correct: np.ndarray) -> tuple[CalibrationBin, ...]:
    confidence, index = calibration_bins(probabilities)
    return tuple(
        CalibrationBin(
            lower=float(_CALIBRATION_EDGES[i]),
            upper=float(_CALIBRATION_EDGES[i + 1]),
            count=int(np.sum(index == i)),
            confidence=float(confidence[index == i].mean()),
            accuracy=float(correct[index == i].mean()),
        )
        for i in np.unique(index)
    )


def roc_curve(positive: np.ndarray, score: np.ndarray) -> tuple[float | None, tuple[RocPoint, ...]]:
    """Return the area under the ROC curve of bool[N] by float[N], and at most 200 points; None without both kinds."""
    if positive.all() or not positive.any():
        return None, ()
    from sklearn import metrics as reference

    rates = reference.roc_curve(positive, score, drop_intermediate=False)
    false_rate, true_rate, values = (column[1:] for column in rates)  # The first threshold is infinite.
    kept = np.arange(len(values))
    if len(values) > _MAX_ROC_POINTS:
        # Evenly along the curve rather than by threshold: most scores crowd near 0 and 1.
        kept = np.unique(np.searchsorted(true_rate + false_rate, np.linspace(0, 2, _MAX_ROC_POINTS)))
    return float(reference.roc_auc_score(positive, score)), tuple(
        RocPoint(*point)
        for point in zip(values[kept].tolist(), false_rate[kept].tolist(), true_rate[kept].tolist(), strict=True)
    )

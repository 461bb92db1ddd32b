"""All metrics of a model on a set of examples."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, Task
from tpu_components.core.metrics.definitions import Estimators, direction, estimators, task_metrics
from tpu_components.core.metrics.details import describe
from tpu_components.core.metrics.estimates import Estimate, jackknife
from tpu_components.core.metrics.intervals import find_interval
from tpu_components.core.metrics.keras_metrics import direction_of, measure

_INTERVALS = 0.95
# Probabilities of a bfloat16 softmax may leave [0, 1] by a rounding step; logits leave it by far more.
_ROUNDING = 1e-2


@dataclasses.dataclass(frozen=True)
class GroundTruth:
    """The examples that predictions are compared with.

    Attributes:
        task: The task.
        targets: Targets of the examples, each of the shape `Interface.target_shape`.
        names: Names of the classes, labels or targets.
        groups: Group of each example: int[examples], or None if all are independent.
        properties: Properties of all examples, by name, as `load_slices` returns them. Texts also have `length`,
            int[examples]: the number of tokens that a model reads.
    """

    task: Task
    targets: np.ndarray
    names: Sequence[str]
    groups: np.ndarray | None = None
    properties: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def select(self, rows: np.ndarray) -> Self:
        """Return only the examples at the indices `rows`."""
        return dataclasses.replace(
            self,
            targets=self.targets[rows],
            groups=None if self.groups is None else self.groups[rows],
            properties={name: values[rows] for name, values in self.properties.items()},
        )

    def estimators(self, outputs: np.ndarray, top_k: int = 1) -> Estimators:
        """Return, for each metric of these predictions, the function that computes it; see `definitions.estimators`."""
        return estimators(self.task, self.targets, outputs, top_k, self.groups)


@dataclasses.dataclass(frozen=True)
class ModelMetrics:
    """Metrics of a model on some examples, and details such as the confusion matrix.

    Attributes:
        task: Name of the task.
        num_examples: Number of scored examples or, for a language model, of scored passages.
        estimates: The defined metrics of the task, and additional metrics, by name.
        details: Results that are not scalar metrics, as JSON values by name; see `details`.
        directions: For each additional metric among the estimates: 1 if higher is better, -1 if lower is better.
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
        """Return `HIGHER` if larger values of a metric are better, `LOWER` if smaller, or `NEITHER` if unknown."""
        return self.directions.get(name) or direction(name)

    def as_dict(self) -> dict[str, Any]:
        """Return `num_examples`, metrics and details in the form of `evaluation.json`. An undefined metric is None."""
        metrics = {**dict.fromkeys(task_metrics(self.task)), **self.metrics}
        return {"num_examples": self.num_examples, **metrics, **self.details}


def compute_metrics(
    truth: GroundTruth, outputs: np.ndarray, top_k: int = 5, further: Sequence[Any] = ()
) -> ModelMetrics:
    """Compute the metrics of a model's predictions.

    Args:
        truth: The examples to score, at least one.
        outputs: Finite predictions for these examples, each of the shape `Interface.output_shape`. For a language
            model, results of `score_passages`.
        top_k: Number of most probable classes for `top_k_accuracy`. It is at most num_classes - 1, because the true
            class is always among all classes.
        further: Further Keras metrics; see `keras_metrics.adapt`.

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
    details = describe(task, targets, outputs, names)
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
            f"Cannot evaluate the model's outputs: expected probabilities in [0, 1], received {worst:.4g} at index "
            f"{outside[0]}. Values outside this range occur in {len(outside)} of {len(outputs)} rows. End the model "
            f"with {ending}."
        )

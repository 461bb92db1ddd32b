"""Parameters and result of an evaluation."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.names import as_nfc
from tpu_components.core.base.typed_values import Amount, NotNegative, Positive, Range, Share, check_fields
from tpu_components.core.examples.artifacts import SPLITS, TEST
from tpu_components.core.examples.interface import LANGUAGE_MODEL, REGRESSION, TASKS
from tpu_components.core.machines.device import ACCELERATORS, BACKENDS
from tpu_components.core.metrics.definitions import (
    BY_NAME,
    HIGHER,
    LOWER,
    NEITHER,
    NO_CONFIDENCE,
    direction,
    task_metrics,
)
from tpu_components.core.results.evaluation_info import Rule

# Parameters with a bound for each metric.
RULES = ("minimum", "maximum", "max_regression")
# Direction of the metrics that may have each kind of bound.
_SIDES = {"minimum": HIGHER, "maximum": LOWER}
CLASS, LENGTH = "class", "length"  # Properties of all examples, and of all texts.
Confidence = Annotated[float, Range(NO_CONFIDENCE, below=1)]
Bound = Annotated[float, Range(above=-math.inf, below=math.inf)]


@dataclasses.dataclass(frozen=True)
class EvaluateParams:
    """The split to score and the rules of the gate. Each field is an input of the component.

    Attributes:
        champion: Model to beat: a folder that train_model wrote, local or on gs://, or a version in a registry,
            `REGISTRY/MODEL@champion` or `REGISTRY/MODEL@0001`. REGISTRY is a local folder, or
            `projects/PROJECT/locations/REGION/models` on Vertex AI. Empty means none. In a configuration, empty means
            the champion in the registry of the deploy section, if there is one.
        minimum: Lowest allowed value of each metric for which higher is better, such as {"accuracy": 0.97}.
        maximum: Highest allowed value of each metric for which lower is better, such as {"loss": 0.5}.
        max_regression: Margin by which each metric may be worse than the champion's. With 0, the metric must be
            better. In both cases, the difference is tested at the confidence level `confidence`. With a margin above 0
            and a registry,
            the model is also compared with the best model that was ever promoted and not rolled back. In a
            configuration, the default is 0 for the main metric of the task: accuracy, micro_f1 for multi-label data, r2
            for a regression, bits_per_character for a language model. Without a configuration, the default is
            {"accuracy": 0.0}; for a task without accuracy, it is 0 for the main metric.
        confidence: Confidence level of the comparison with the champion, at least 0.5. With 0.95, at most about 5% of
            the models that are not better are promoted. If there is a margin, this applies to models that are worse by
            the margin. With 0.5, there is no significance test: the measured values are compared, and a tie is
            promoted.
        test_decisions: Number of decisions on one test set that share the error rate, 1 - `confidence`. For example,
            with a confidence of 0.95, 52 decisions and weekly retraining, there is a false promotion in at most one of
            twenty years. With 1, every decision may use the full error rate. Decisions are counted in the registry of
            the champion.
        bound_confidence: Confidence level of `minimum` and `maximum`. With 0.95, at most about one in twenty models
            whose true value is equal to the bound passes. With 0.5, the measured value is compared with the bound. The
            gate's reason gives the p-value: how likely a measured value at least this far from the bound is if the true
            value is equal to the bound.
        slices: Properties that divide the examples into slices. Slices are judged separately, so that a better mean
            does not hide a slice that became worse. The properties are `class` (for multi-label data, each label),
            `length` of texts, `size` of images (number of pixels in the file), and the columns of
            `data.slice_columns`. Lengths and sizes are divided into quarters.
        slice_minimum: Lowest allowed accuracy of every slice, or F1 for multi-label data. A slice fails if its value is
            significantly lower. Not available for a regression or a language model.
        max_slice_regression: Margin by which the accuracy of each slice (or F1 for multi-label data, or the loss of a
            regression) may be worse than the champion's. A slice fails if its value is significantly worse than the
            champion's by more than the margin.
        beat_baseline: Reject a model that is not significantly better than the best constant prediction: the most
            frequent class, the best set of labels, the mean, or the frequency of every character.
        split: The split to score.
        top_k: A prediction counts as correct in top_k_accuracy if the true class is among the `top_k` most probable
            classes.
        batch_size_per_replica: Examples per replica and step. This number affects speed and memory. It changes metrics
            only by rounding, because kernels for other sizes may add numbers in another order. The number of replicas
            does not change the metrics.
        backend: `tensorflow`, `jax`, or `auto`: jax if a TPU or GPU is requested, otherwise tensorflow.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`. On a platform, `auto` is the accelerator of
            `resources.evaluate_model.machine`. Elsewhere it is a GPU if the backend sees one, otherwise the CPU.
        num_replicas: Number of devices. 0 uses all devices, or one on a CPU.
        num_pictures: Number of wrong predictions that the report shows.
        prediction: Output `prediction` of preflight_training. The report compares it with the measurements of training.
            Empty means none.
    """

    champion: str = ""
    minimum: Mapping[str, Bound] = dataclasses.field(default_factory=dict)
    maximum: Mapping[str, Bound] = dataclasses.field(default_factory=dict)
    max_regression: Mapping[str, Amount] = dataclasses.field(default_factory=lambda: {"accuracy": 0.0})
    confidence: Confidence = 0.95
    test_decisions: Positive = 1
    bound_confidence: Confidence = NO_CONFIDENCE
    slices: tuple[str, ...] = (CLASS,)
    slice_minimum: Share = 0.0
    max_slice_regression: Amount = 0.05
    beat_baseline: bool = True
    split: Annotated[str, SPLITS] = TEST
    top_k: Positive = 5
    batch_size_per_replica: Positive = 256
    backend: Annotated[str, BACKENDS] = "auto"
    accelerator: Annotated[str, ACCELERATORS] = "auto"
    num_replicas: NotNegative = 0
    num_pictures: NotNegative = 60
    prediction: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "slices", tuple(map(as_nfc, self.slices)))
        for name in RULES:
            for metric, value in getattr(self, name).items():
                _check_side(name, metric, value, direction(metric))
                most = BY_NAME[metric].most if metric in BY_NAME else math.inf
                if value > most:
                    advice = f" Did you mean {value / 100:g}?" if value <= 100 else ""
                    raise InputError(f"{name}.{metric} cannot be above {most:g}. Received: {value!r}.{advice}")

    def of_task(self, task: str) -> "EvaluateParams":
        """Return a copy in which the default `max_regression` fits a task.

        If the task has no accuracy, the default {"accuracy": 0.0} is replaced by a margin of 0 for the task's main
        metric. A `max_regression` that differs from the default is kept.
        """
        is_default = self.max_regression == {"accuracy": 0.0} and "accuracy" not in task_metrics(task)
        return dataclasses.replace(self, max_regression={TASKS[task].judged: 0.0}) if is_default else self

    def check_task(self, task: str, measured: Mapping[str, int | None] = {}) -> None:
        """Check that the rules of the gate match a task.

        Every metric in the rules must exist. A metric may have a minimum only if higher values are better, and a
        maximum only if lower values are better. `slice_minimum` and `test_decisions` are not supported for every task.

        Args:
            task: Task of the data.
            measured: For each additional metric: 1 if higher is better, -1 if lower is better, 0 if Keras does not say
                which, None if this is not determined yet.

        Raises:
            InputError: If a rule does not match the task or the direction of a metric.
        """
        known = {**measured, **{name: metric.direction for name, metric in task_metrics(task).items()}}
        for name in RULES:
            for metric, value in getattr(self, name).items():
                if metric not in known:
                    offered = [other for other in known if _fits(name, known[other])]
                    meant = did_you_mean(metric, offered)
                    if not meant and (near := did_you_mean(metric, list(known))):
                        meant = f"{near} This metric can only have a {'maximum' if name == 'minimum' else 'minimum'}."
                    raise InputError(
                        f"{metric!r} in {name} is not a metric of the task {task}: expected one of "
                        f"{', '.join(offered)}, or a name in training.metrics.{meant} Change {name}, or data.task."
                    )
                if known[metric] == NEITHER and name == "max_regression":
                    raise InputError(
                        f"Cannot use {metric} in max_regression, because Keras does not say whether higher or lower "
                        "values of this metric are better. Set a minimum or a maximum for it, or use a class of "
                        "keras.metrics whose attribute `_direction` is up or down."
                    )
                _check_side(name, metric, value, known[metric])
        if self.test_decisions > 1 and task == LANGUAGE_MODEL:
            raise InputError(
                f"test_decisions={self.test_decisions} is not supported for a {task}, because the passages of a "
                "corpus have no IDs that identify a test set. Remove test_decisions."
            )
        if self.slice_minimum and task in (REGRESSION, LANGUAGE_MODEL):
            raise InputError(
                f"slice_minimum={self.slice_minimum:g} is not supported for a {task}, which has no accuracy or F1. "
                "Remove slice_minimum, and use max_slice_regression."
            )

    def check_slices(self, kept: Sequence[str]) -> None:
        """Check that `kept`, the properties of the examples, contains every property in `slices`.

        Raises:
            InputError: If a property is missing.
        """
        for name in self.slices:
            if name not in kept:
                raise InputError(
                    f"Cannot divide the examples into slices by {name!r}: expected one of {', '.join(kept)}. "
                    f"To use a column of a CSV file, name it in data.slice_columns.{did_you_mean(name, kept)}"
                )


def find_suspects(metrics: Iterable[str]) -> dict[str, str]:
    """Return the names that look like misspelt metrics, each with the name of the metric that it resembles.

    A returned name may still be that of a metric in training.metrics, so it is not necessarily a mistake.

    Example:
        >>> find_suspects(["acuracy", "loss", "my_own_score"])
        {'acuracy': 'accuracy'}
    """
    near = {metric: difflib.get_close_matches(metric, BY_NAME, n=1) for metric in metrics if metric not in BY_NAME}
    return {metric: names[0] for metric, names in near.items() if names}


def _fits(rule: str, metric_direction: int | None) -> bool:
    """Return whether a metric may have this rule. A metric of unknown direction may have every rule."""
    return not metric_direction or metric_direction == _SIDES.get(rule, metric_direction)


def _check_side(rule: str, metric: str, value: float, metric_direction: int | None) -> None:
    """Check that a metric has a minimum only if higher is better, and a maximum only if lower is better.

    Raises:
        InputError: If the rule would reject good models.
    """
    if not _fits(rule, metric_direction):
        better, other = ("higher", "minimum") if rule == "maximum" else ("lower", "maximum")
        raise InputError(
            f"{metric} cannot have a {rule}: {better} is better, so a {rule} would reject good models. "
            f"Received: {rule}.{metric}={value!r}. Move it to {other}."
        )


@dataclasses.dataclass(frozen=True)
class EvaluateResult:
    """The gate's decision, the outcome of its rules, and the scalar metrics of the model and the champion."""

    promote: bool
    reasons: tuple[Rule, ...]
    num_examples: int
    metrics: Mapping[str, float]
    champion_metrics: Mapping[str, float] | None

"""Further metrics of a model, by Keras: those of `TrainParams.metrics` and those that the model brings.

They travel in the model's architecture, so that the evaluation measures what the training has measured.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import ops
from tpu_components.core.examples.interface import CLASSIFICATION, Interface
from tpu_components.core.results.metric_table import HIGHER, LOWER, NEITHER

_MEASURED = "measured"  # Attribute of a model for its metrics, which Keras does not save.
_PART = 8192  # Examples for one update of a metric.


def measured_by(model: Any) -> Sequence[Any]:
    """Return the further metrics of a model."""
    metrics: Sequence[Any] = vars(model).get(_MEASURED, ())
    return metrics


def set_measured(model: Any, metrics: Sequence[Any]) -> None:
    """Set the further metrics of a model."""
    vars(model)[_MEASURED] = metrics


def direction_of(metric: Any) -> int:
    """Return `HIGHER` or `LOWER`, whichever is better by Keras; `NEITHER` of a metric that does not say."""
    return {"up": HIGHER, "down": LOWER}.get(getattr(metric, "_direction", ""), NEITHER)


def adapt(metric: Any, interface: Interface) -> Any:
    """Let a metric take the targets of a data set: numbers of classes, or 0 and 1 for each class, as it needs.

    Raises:
        InputError: If the metric takes neither, or does not give one number.
    """
    plain, num_classes = type(metric).update_state, interface.num_classes
    labels = np.arange(num_classes + 1) % num_classes  # Not as many examples as classes: shapes must not fit by chance.
    outputs = np.full((len(labels), num_classes), 1 / num_classes, np.float32)
    problem = ""
    for targets in (np.eye(num_classes, dtype=np.float32)[labels], labels.astype(np.int32)):
        try:
            plain(metric, targets, outputs)
            is_number = np.ndim(ops.convert_to_numpy(metric.result())) == 0
            problem = "its result is not one number"
        except Exception as error:  # Keras and a metric of the user may raise anything.
            is_number, problem = False, problem or describe(error)
        metric.reset_state()
        if is_number:
            break
    else:
        raise InputError(
            f"The metric {metric.name!r} does not fit the data, {interface.task_name} with outputs of shape "
            f"{interface.output_shape}: {problem}. Change its parameters, or remove it."
        )
    takes_numbers = targets.ndim == 1

    def update_state(targets: Any, outputs: Any, sample_weight: Any = None) -> Any:
        targets, outputs = ops.convert_to_tensor(targets), ops.convert_to_tensor(outputs)
        if takes_numbers and targets.ndim == outputs.ndim:
            targets = ops.argmax(targets, axis=-1)
        elif not takes_numbers and targets.ndim < outputs.ndim:
            targets = ops.one_hot(ops.cast(targets, "int32"), num_classes)
        return plain(metric, targets, outputs, sample_weight=sample_weight)

    if interface.task_name == CLASSIFICATION:
        metric.update_state = update_state
    return metric


def measure(metric: Any, targets: np.ndarray, outputs: np.ndarray) -> float:
    """Return a metric of all examples."""
    metric.reset_state()
    for start in range(0, len(targets), _PART):
        metric.update_state(targets[start : start + _PART], outputs[start : start + _PART])
    return float(ops.convert_to_numpy(metric.result()))

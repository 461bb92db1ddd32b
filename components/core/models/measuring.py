"""Further metrics of a model, by Keras: those of `TrainParams.metrics` and those that the model brings.

They travel in the model's architecture, so that the evaluation measures what the training has measured.
"""

import functools
from collections.abc import Callable, Sequence
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
    return vars(model).get(_MEASURED, ())


def set_measured(model: Any, metrics: Sequence[Any]) -> None:
    """Set the further metrics of a model."""
    vars(model)[_MEASURED] = metrics


def direction_of(metric: Any) -> int:
    """Return `HIGHER` or `LOWER`, whichever is better by Keras; `NEITHER` of a metric that does not say."""
    return {"up": HIGHER, "down": LOWER}.get(getattr(metric, "_direction", ""), NEITHER)


def adapt(metric: Any, interface: Interface) -> Any:
    """Make a metric take the targets of a data set, see `convert_targets`; returns the metric."""
    plain = functools.partial(type(metric).update_state, metric)

    def try_on(targets: np.ndarray, outputs: np.ndarray) -> str:
        try:
            plain(targets, outputs)
            return "its result is not one number" if np.ndim(ops.convert_to_numpy(metric.result())) else ""
        except Exception as error:  # Keras and a metric of the user may raise anything.
            return describe(error)
        finally:
            metric.reset_state()

    metric.update_state = convert_targets(plain, try_on, f"The metric {metric.name!r}", interface)
    return metric


def convert_targets(
    function: Callable[..., Any],
    try_on: Callable[[np.ndarray, np.ndarray], str],
    what: str,
    interface: Interface,
    is_softened: bool = False,
) -> Callable[..., Any]:
    """Wrap a loss or metric so that it gets targets in the form that it takes: class numbers or one-hot vectors.

    Args:
        function: Function of targets, outputs and, for a metric, weights.
        try_on: Returns why the function cannot be used with some targets and outputs; empty if it can.
        what: Name of the function, for errors.
        interface: Input and output of the model.
        is_softened: Whether label smoothing or mixup gives a probability for each class, which a number would lose.

    Returns:
        The function of the same arguments, for targets in either form.

    Raises:
        InputError: If the function takes neither form, or takes class numbers and the targets are none.
    """
    num_classes, has_numbers = interface.num_classes, interface.task_name == CLASSIFICATION
    # Not as many examples as classes: shapes must not fit by chance. The first two are of one class: a loss that
    # compares examples of a class shows.
    labels = np.maximum(np.arange(5 if num_classes == 4 else 4) - 1, 0) % num_classes
    outputs = np.linspace(0.1, 1, labels.size * num_classes, dtype=np.float32).reshape(labels.size, num_classes)
    outputs /= outputs.sum(axis=1).max()
    problem = try_on((labels[:, None] == np.arange(num_classes)).astype(np.float32), outputs)
    takes_numbers = bool(problem) and not try_on(labels.astype(np.int32), outputs)
    if takes_numbers:
        others = f"label_smoothing, mixup_alpha and data.task={interface.task_name} give a number for each class"
        problem = "" if has_numbers and not is_softened else f"it takes the number of a class; {others}"
    if problem:
        raise InputError(
            f"{what} does not fit the data, {interface.task_name} with outputs of shape {interface.output_shape}: "
            f"{problem}. Change its parameters, or remove it."
        )

    def converted(targets: Any, outputs: Any, *weights: Any, **named: Any) -> Any:
        targets, outputs = ops.convert_to_tensor(targets), ops.convert_to_tensor(outputs)
        if takes_numbers and targets.ndim == outputs.ndim:
            targets = ops.argmax(targets, axis=-1)
        elif has_numbers and not takes_numbers and targets.ndim < outputs.ndim:
            targets = ops.one_hot(ops.cast(targets, "int32"), num_classes, dtype=outputs.dtype)
        return function(targets, outputs, *weights, **named)

    return converted


def measure(metric: Any, targets: np.ndarray, outputs: np.ndarray) -> float:
    """Return a metric of all examples."""
    metric.reset_state()
    for start in range(0, len(targets), _PART):
        metric.update_state(targets[start : start + _PART], outputs[start : start + _PART])
    return float(ops.convert_to_numpy(metric.result()))

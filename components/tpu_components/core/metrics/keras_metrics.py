"""Additional Keras metrics of a model: those in `TrainParams.metrics`, and those that come with the model.

These metrics are saved in `architecture.json`, so that evaluation computes the same metrics as training.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import ops
from tpu_components.core.examples.interface import CLASSIFICATION, Interface
from tpu_components.core.metrics.definitions import HIGHER, LOWER, NEITHER

_MEASURED = "measured"  # Attribute of a model that holds its additional metrics; Keras does not save it.
_PART = 8192  # Examples per update of a metric.


def measured_by(model: Any) -> Sequence[Any]:
    """Return the additional metrics of a model, as Keras metrics."""
    return vars(model).get(_MEASURED, ())


def set_measured(model: Any, metrics: Sequence[Any]) -> None:
    """Set the additional metrics of a model."""
    vars(model)[_MEASURED] = metrics


def direction_of(metric: Any) -> int:
    """Return `HIGHER` if larger values of a Keras metric are better, `LOWER` if smaller, or `NEITHER` if unknown."""
    return {"up": HIGHER, "down": LOWER}.get(getattr(metric, "_direction", ""), NEITHER)


def adapt(metric: Any, interface: Interface, has_one_output: bool) -> Any:
    """Make a Keras metric accept the targets of a data set, whatever form of targets it expects. Return the metric.

    The forms are class numbers and one-hot vectors; see `convert_targets`.

    Args:
        metric: The Keras metric.
        interface: Input and output of the model.
        has_one_output: Whether a user's model has only one output, the probability of the second class; see
            `core.models.lookup.has_added_class`.
    """

    def result(targets: np.ndarray, outputs: np.ndarray) -> Any:
        """Try the metric on examples with the weight 1, and return its value.

        If possible, a copy of the metric is used, because some metrics accept only targets with the shape of the first
        targets that they get.
        """
        try:
            other = type(metric).from_config(metric.get_config())
        except Exception:  # The class or function may be the user's own, and not registered.
            other = metric
        try:
            type(other).update_state(other, targets, outputs, np.ones(len(targets), np.float32))
            return ops.convert_to_numpy(other.result())
        finally:
            other.reset_state()

    def try_on(targets: np.ndarray, outputs: np.ndarray) -> str:
        try:
            return "its result is not a single number" if np.ndim(result(targets, outputs)) else ""
        except Exception as error:  # Keras and a user's metric may raise anything.
            return describe(error)

    def tells_apart(targets: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> bool:
        return bool(result(targets, right) != result(targets, wrong))

    what = f"The metric {metric.name!r}"
    plain = functools.partial(type(metric).update_state, metric)
    metric.update_state = convert_targets(
        plain, try_on, what, interface, tells_apart=tells_apart if has_one_output else None
    )
    return metric


def convert_targets(
    function: Callable[..., Any],
    try_on: Callable[[np.ndarray, np.ndarray], str],
    what: str,
    interface: Interface,
    is_softened: bool = False,
    tells_apart: Callable[[np.ndarray, np.ndarray, np.ndarray], bool] | None = None,
) -> Callable[..., Any]:
    """Wrap a loss or metric so that it gets targets in the form that it expects: class numbers or one-hot vectors.

    For a user's model with one output, the function gets the same values as in Keras: targets of 0 and 1, and the
    probability of the second class, both [batch, 1]. So `Precision` is the precision for the second class. A loss or
    metric that needs an output for each class gets the probabilities of both classes instead.

    Args:
        function: Function of targets, outputs and, for a metric, weights.
        try_on: Function that tries `function` on targets and outputs. It returns what is wrong, or an empty string if
            `function` accepts them.
        what: Name of the loss or metric, for error messages.
        interface: Input and output of the model.
        is_softened: Whether label smoothing or mixup turns class numbers into a probability for each class.
        tells_apart: For a model with one output, a function that gets targets of 0 and 1, right probabilities of the
            second class and wrong probabilities, all float32[examples, 1]. It returns whether the result of `function`
            for the right probabilities differs from the result for the wrong ones. None for other models.

    Returns:
        A function of the same arguments that accepts targets in either form.

    Raises:
        InputError: If the function supports neither form, or only class numbers although the targets are vectors.
    """
    num_classes = interface.num_classes
    has_numbers = interface.task_name == CLASSIFICATION
    # The number of examples differs from the number of classes, so that wrong shapes cannot match by accident. The
    # first two examples have the same class, to detect a loss that compares the examples of a class with each other.
    labels = np.maximum(np.arange(5 if num_classes == 4 else 4) - 1, 0) % num_classes
    outputs = np.linspace(0.1, 1, labels.size * num_classes, dtype=np.float32).reshape(labels.size, num_classes)
    outputs /= outputs.sum(axis=1).max()
    if tells_apart is not None:
        second = labels[:, None].astype(np.float32)
        right = np.abs(1 - second - 0.9).astype(np.float32)
        if not try_on(second, right) and tells_apart(second, right, 1 - right):
            return _with_one_output(function)
    problem = try_on((labels[:, None] == np.arange(num_classes)).astype(np.float32), outputs)
    takes_numbers = bool(problem) and not try_on(labels.astype(np.int32), outputs)
    if takes_numbers:
        others = f"data.task={interface.task_name} has a target for each class"
        if has_numbers:
            others = "label_smoothing and mixup_alpha produce a probability for each class"
        problem = "" if has_numbers and not is_softened else f"it expects the number of a class as target, but {others}"
    if problem:
        raise InputError(
            f"{what} does not fit the data (task {interface.task_name}, outputs of shape {interface.output_shape}): "
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


def _with_one_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a loss or metric so that it gets only the targets and outputs of the second class."""

    def converted(targets: Any, outputs: Any, *weights: Any, **named: Any) -> Any:
        targets, outputs = ops.convert_to_tensor(targets), ops.convert_to_tensor(outputs)
        second = targets[..., 1:] if targets.ndim == outputs.ndim else ops.expand_dims(targets, -1)
        return function(ops.cast(second, outputs.dtype), outputs[..., 1:], *weights, **named)

    return converted


def measure(metric: Any, targets: np.ndarray, outputs: np.ndarray) -> float:
    """Compute a metric over all examples."""
    metric.reset_state()
    for start in range(0, len(targets), _PART):
        metric.update_state(targets[start : start + _PART], outputs[start : start + _PART])
    return float(ops.convert_to_numpy(metric.result()))

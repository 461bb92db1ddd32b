"""Losses for training and validation, and weights of classes.

A loss comes from the configuration, from the model or from the task.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.frameworks import jax, keras, tf
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, Interface
from tpu_components.core.metrics.keras_metrics import convert_targets
from tpu_components.core.models.lookup import brought_by, explain, has_added_class
from tpu_components.core.models.training_step.hyperparameters import OF_THE_TASK, TrainParams
from tpu_components.core.models.training_step.keras_names import create

_FALL = 0.01  # A loss of logits falls by at least this much. The smallest fall, that of a sigmoid, is 0.31.


def weigh_classes(params: TrainParams, class_names: Sequence[str], counts: Sequence[int]) -> tuple[float, ...]:
    """Return the weight of each class in the loss.

    Return an empty tuple if no weights are set, or the task has no classes.

    Args:
        params: Hyper-parameters with `balance_classes` and `class_weights`.
        class_names: Names of the classes.
        counts: Number of training examples of each class.

    Raises:
        InputError: If `class_weights` names an unknown class.

    Example:
        >>> weigh_classes(TrainParams("m", balance_classes=True), ["rare", "common"], [10, 30])
        (2.0, 0.6666666666666666)
    """
    if not params.weighs_classes or not counts:
        return ()
    weights = {class_name(name): weight for name, weight in params.class_weights.items()}
    names = list(map(class_name, class_names))
    for name in weights:
        if name not in names:
            raise InputError(
                (
                    f"class_weights contains {name!r}, which is not a class of the data. Expected classes such as "
                    f"{', '.join(class_names[:20])}. Correct or remove it."
                )
                + did_you_mean(name, class_names)
            )
    even = sum(counts) / len(counts)
    balanced = [even / count if params.balance_classes and count else 1.0 for count in counts]
    return tuple(weight * weights.get(name, 1.0) for weight, name in zip(balanced, names, strict=True))


def _own_loss(params: TrainParams, interface: Interface, model: Any) -> Any:
    """Return the loss that comes with a model, as a function, or None if training uses another loss."""
    loss = brought_by(model).loss
    if params.loss != OF_THE_TASK or loss is None or interface.task.name == LANGUAGE_MODEL:
        return None
    own = _each_example(loss)
    return None if _name_of(own) == interface.task.loss else own


def _task_loss(params: TrainParams, interface: Interface) -> Any:
    """Return the default loss of the task: the name of a Keras loss, or a function."""
    return "categorical_crossentropy" if params.softens_labels else interface.task.loss


def _name_of(loss: Any) -> str:
    return loss if isinstance(loss, str) else str(getattr(loss, "name", getattr(loss, "__name__", type(loss).__name__)))


def loss_name(params: TrainParams, interface: Interface, model: Any) -> str:
    """Return the name of the loss that training uses."""
    if (own := _own_loss(params, interface, model)) is not None:
        return _name_of(own)
    if params.loss != OF_THE_TASK:
        return params.loss
    return _name_of(_task_loss(params, interface))


def make_loss(params: TrainParams, interface: Interface, model: Any) -> Any:
    """Return the loss to pass to `model.compile`."""
    own = _own_loss(params, interface, model)
    if params.loss == OF_THE_TASK and own is None:
        return _task_loss(params, interface)
    name = params.loss if own is None else _name_of(own)
    if interface.task.name == LANGUAGE_MODEL:
        raise InputError(f"loss={name} is not supported for a language model, which has a fixed loss. Remove loss.")
    each = own or _each_example(create("loss", name, params.loss_parameters, reduction="none"))
    try_on = functools.partial(_why_not_each, each)

    def tells_apart(targets: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> bool:
        return bool(np.all(np.asarray(each(targets, right)) < np.asarray(each(targets, wrong))))

    loss = convert_targets(
        each, try_on, f"loss={name}", interface, params.softens_labels, tells_apart if has_added_class(model) else None
    )
    if interface.task.activation in ("softmax", "sigmoid") and _expects_logits(loss, interface):
        raise InputError(
            f"loss={name} expects logits: it still decreases when the output of the right class rises from 1 to 10. "
            "Training always passes probabilities to a loss, even if the model ends without an activation. Remove "
            "from_logits=True from the loss, or the softmax or sigmoid that it applies."
        )
    return loss


def validation_loss(params: TrainParams, interface: Interface, model: Any) -> Callable[[Any, Any], np.ndarray]:
    """Return the validation loss: a function of labels and outputs that returns the loss of each example.

    This is the training loss without label smoothing, mixup, and weights of classes and examples. For a model with its
    own `train_step`, whose loss can be anything, it is the default loss of the task.
    """
    is_plain = params.loss == OF_THE_TASK and _own_loss(params, interface, model) is None
    if is_plain or brought_by(model).has_step:
        return interface.task.losses
    loss = make_loss(params, interface, model)
    return lambda labels, outputs: keras.ops.convert_to_numpy(loss(labels, outputs))


def _expects_logits(loss: Any, interface: Interface) -> bool:
    """Return whether a loss applies softmax or sigmoid to the outputs that it gets.

    If it does, it is finite and not negative even for outputs outside of [0, 1], and it falls as the output of the
    right class rises.
    """
    classes = np.arange(interface.num_classes)
    right = classes[-1]
    values = (-10.0, 0.0, 1.0, 10.0)
    outputs = np.zeros((len(values), classes.size), np.float32)
    outputs[:, right] = values
    targets = np.full(len(values), right, np.int32)
    if interface.task_name != CLASSIFICATION:
        targets = (targets[:, None] == classes).astype(np.float32)
    try:
        losses = np.asarray(loss(targets, outputs))
    except Exception:  # A user's own loss may reject outputs that are not probabilities.
        return False
    return bool(np.isfinite(losses).all() and losses.min() >= 0 and np.diff(losses).max() < -_FALL)


def _each_example(loss: Any) -> Any:
    """Convert a loss for `keras.Model.compile` to a function of probabilities that returns one number per example."""
    each = keras.losses.get(next(iter(keras.tree.flatten(loss))))
    if isinstance(each, keras.losses.Loss):
        each = copy.copy(each)
        each.reduction = "none"
        if "from_logits" in (parameters := getattr(each, "_fn_kwargs", {})):
            each._fn_kwargs = {**parameters, "from_logits": False}
    return each


def _why_not_each(loss: Any, targets: np.ndarray, outputs: np.ndarray) -> str:
    """Return the reason why a loss cannot be used, or an empty string if it can.

    A loss can be used if it returns one number per example, which does not depend on the other examples.
    """
    try:
        together, alone = (np.asarray(loss(targets[:count], outputs[:count])) for count in (len(targets), 1))
    except Exception as error:  # Keras and its backends raise errors of many kinds.
        return explain(error)
    if together.shape != targets.shape[:1]:
        return f"its result has the shape {together.shape} instead of one number for each of {len(targets)} examples"
    return "" if np.allclose(together[:1], alone) else "its result for an example changes with the other examples"


def adds_losses(model: Any, inputs: np.ndarray) -> bool:
    """Return whether a layer that is not part of Keras calls `add_loss` for a batch of inputs."""
    if all(type(layer).__module__.startswith("keras.") for layer in model._flatten_layers()):
        return False
    added: list[Any] = []

    def call(inputs: Any) -> None:
        variables = model.trainable_variables, model.non_trainable_variables
        values = [[variable.value for variable in kind] for kind in variables]
        added.extend(model.stateless_call(*values, inputs, training=True, return_losses=True)[-1])

    if keras.backend.backend() == "jax":
        jax.eval_shape(call, inputs)
    else:
        tf.function(call).get_concrete_function(tf.constant(inputs))
    return bool(added)


def add_float32_loss(layer: Any, loss: Any) -> None:
    """Add a layer's losses as float32. With TensorFlow, Keras cannot sum losses of different dtypes."""
    type(layer).add_loss(layer, keras.tree.map_structure(lambda part: keras.ops.cast(part, "float32"), loss))

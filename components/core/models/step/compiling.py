"""Compiles a model for training: optimizer, learning-rate schedule, loss and metrics.

Training runs the compiled step; preflight compiles the same step for a TPU.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import PADDING, Interface
from tpu_components.core.models.step.augmentation import check_labels
from tpu_components.core.models.step.hyperparameters import TrainParams
from tpu_components.core.models.step.wrapping import (
    average_weights,
    prepare_batches,
    sum_repeated_rows,
    synchronize_normalization,
)

# Metric of the loss without penalties; only models with regularisers have it.
UNPENALIZED_LOSS = "unpenalized_loss"
_DECAYED_ROLES = ("kernel", "embedding")


def scale_learning_rate(learning_rate: float, num_replicas: int, scaling: str, optimizer: str) -> float:
    """Return the peak learning rate for `num_replicas` replicas, given the rate for one.

    `auto` scales linearly for SGD (https://arxiv.org/abs/1706.02677) and by the square root for adaptive methods
    (https://arxiv.org/abs/2205.10287).

    Example:
        >>> scale_learning_rate(0.1, 8, "auto", "sgd"), scale_learning_rate(0.001, 4, "auto", "adam")
        (0.8, 0.002)
    """
    if scaling == "auto":
        scaling = "linear" if optimizer == "sgd" else "sqrt"
    return learning_rate * {"linear": float(num_replicas), "sqrt": math.sqrt(num_replicas), "none": 1.0}[scaling]


def warmup_steps(warmup_epochs: float, steps_per_epoch: int, total_steps: int) -> int:
    """Return the number of warm-up steps; always less than `total_steps`.

    Example:
        >>> warmup_steps(0.5, steps_per_epoch=10, total_steps=100)
        5
    """
    return min(round(warmup_epochs * steps_per_epoch), total_steps - 1)


def learning_rate_at(optimizer: Any, step: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole training."""
    import keras

    rate = optimizer._learning_rate
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return float(np.asarray(rate(step) if is_schedule else rate))


def exempt_from_decay(model: Any) -> list[Any]:
    """Return the trainable variables without weight decay, chosen by their role rather than their shape.

    These are biases of any shape (a GRU's and an attention head's have two axes), parameters of normalisation layers,
    and slopes of activations: their decay does not regularise. Variables of unknown role are exempt if they have at
    most one axis.
    """
    import keras

    layers = keras.layers
    normalizing = (
        layers.BatchNormalization,
        layers.GroupNormalization,
        layers.LayerNormalization,
        layers.RMSNormalization,
        layers.PReLU,
    )
    theirs = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, normalizing)
        for variable in layer.trainable_variables
    }

    def is_exempt(variable: Any) -> bool:
        if id(variable) in theirs or "bias" in variable.name:
            return True
        return len(variable.shape) < 2 and not any(role in variable.name for role in _DECAYED_ROLES)

    return [variable for variable in model.trainable_variables if is_exempt(variable)]


def _is_penalized(model: Any) -> bool:
    """Return whether Keras adds penalties to the model's loss, of weights or of activations."""
    layers = model._flatten_layers()
    return any(getattr(variable, "regularizer", None) for variable in model.trainable_variables) or any(
        getattr(layer, "activity_regularizer", None) for layer in layers
    )


def _add_float32_loss(layer: Any, loss: Any) -> None:
    """Convert a layer's losses to float32: on TensorFlow, Keras cannot add losses of different dtypes."""
    import keras

    type(layer).add_loss(layer, keras.tree.map_structure(lambda part: keras.ops.cast(part, "float32"), loss))


def _optimizer(settings: TrainParams, num_replicas: int, steps_per_epoch: int, model: Any) -> Any:
    import keras

    rate: Any = scale_learning_rate(
        settings.learning_rate, num_replicas, settings.learning_rate_scaling, settings.optimizer
    )
    total = steps_per_epoch * settings.epochs
    warmup = warmup_steps(settings.warmup_epochs, steps_per_epoch, total)
    if warmup or settings.learning_rate_schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(
            0.0 if warmup else rate,
            decay_steps=total - warmup,
            alpha=0.0 if settings.learning_rate_schedule == "cosine" else 1.0,  # 1.0: constant.
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )
    if settings.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay or None)
    elif settings.optimizer == "adamw":
        optimizer = keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay)
    else:
        optimizer = keras.optimizers.Adam(rate)
    optimizer.exclude_from_weight_decay(var_list=exempt_from_decay(model))
    return optimizer


def next_character_loss(targets: Any, outputs: Any) -> Any:
    """Return float32[batch]: the sum of cross-entropies of targets that are not padding, divided by the passage length.

    The division by the length, not by the number of targets, gives every character the same weight in all batches.
    """
    from keras import ops

    each = ops.sparse_categorical_crossentropy(targets, outputs)
    counts = ops.cast(ops.not_equal(targets, PADDING), each.dtype)
    return ops.sum(each * counts, axis=-1) / targets.shape[-1]


def _bits_per_character() -> Any:
    import keras
    from keras import ops

    class BitsPerCharacter(keras.metrics.Mean):
        """Mean of bits per character over the targets that are not padding."""

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            weights = ops.cast(ops.not_equal(y_true, PADDING), "float32")
            if sample_weight is not None:
                weights = weights * ops.expand_dims(ops.cast(sample_weight, "float32"), -1)
            bits = ops.sparse_categorical_crossentropy(y_true, y_pred) / math.log(2)
            return super().update_state(bits, sample_weight=weights)

    return BitsPerCharacter(name="bits_per_character")


_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {"next_character": next_character_loss}
_METRICS: Mapping[str, Callable[[], Any]] = {"bits_per_character": _bits_per_character}


def _why_not_built(error: BaseException, inputs: np.ndarray) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if inputs.dtype == np.uint8 and re.search(r"uint8|UINT8", text):
        return (
            "The model cannot compute with uint8 pixels, as images come to it. Let it begin with "
            "keras.layers.Rescaling(1 / 255)."
        )
    said = next((line.strip() for line in text.splitlines() if "Error" in line or "expected" in line.lower()), text)
    return f"The model cannot take a step on {inputs.shape[1:]} {inputs.dtype} examples: {said[:400]}"


def compile_model(
    model: Any,
    interface: Interface,
    settings: TrainParams,
    num_replicas: int,
    steps_per_epoch: int,
    jit_compile: bool,
) -> Sequence[Any]:
    """Compile a model for training and create all variables that a step changes.

    Args:
        model: A keras.Model from `build_model`.
        interface: Input and output of the model; they decide loss and metric.
        settings: Optimizer, learning rate, augmentation and averaging.
        num_replicas: Number of replicas that share a batch.
        steps_per_epoch: Number of training steps in an epoch.
        jit_compile: Whether XLA compiles the step.

    Returns:
        The variables to validate and save, in the order of `model.variables`: the weights, or their running averages
        with `settings.ema_decay`.

    Raises:
        InputError: If the model's input or task does not support the augmentation, or the model fails on an input.
    """
    import keras

    vars(model).pop("train_step", None)  # Removes the wrapper of an earlier stage.
    softened = settings.softens_labels
    check_labels(settings, interface.task_name)
    task = interface.task
    loss = "categorical_crossentropy" if softened else _LOSSES.get(task.loss, task.loss)
    metrics: list[Any] = [_METRICS[task.metric]() if task.metric in _METRICS else task.metric]
    if _is_penalized(model):
        metrics.append(keras.metrics.MeanMetricWrapper(keras.losses.get(loss), name=UNPENALIZED_LOSS))
    model.compile(
        optimizer=_optimizer(settings, num_replicas, steps_per_epoch, model),
        loss=loss,
        weighted_metrics=metrics,
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)
    for layer in model._flatten_layers():
        layer.add_loss = functools.partial(_add_float32_loss, layer)
    # Creates the metrics' variables, which `fit` would create in its first step: a checkpoint is restored earlier.
    inputs, targets, weights = (np.ones(*shape) for shape in interface.batch_shapes(1, with_margin=False))
    if softened:
        targets = np.ones((1, *interface.output_shape), np.float32)
    try:
        model._symbolic_build(data_batch=(inputs, targets, weights))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(_why_not_built(error, inputs)) from error
    prepare_batches(model, settings, num_replicas, are_larger=interface.input.fed_shape != interface.input.shape)
    synchronize_normalization(model, num_replicas)
    sum_repeated_rows(model.optimizer)
    return average_weights(model, settings.ema_decay) if settings.ema_decay else model.variables

"""What turns a model into a training step: optimizer, learning rate at every step, loss and metrics.

Training runs that step; preflight compiles the very same one for a TPU.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from components.errors import InputError
from components.interface import CLASSIFICATION, PADDING, Interface
from components.models.hyperparameters import TrainParams
from components.models.training_step import average_weights, prepare_batches


def scale_learning_rate(learning_rate: float, num_replicas: int, scaling: str, optimizer: str) -> float:
    """The peak learning rate for a global batch of `num_replicas` times the size.

    Linear for SGD (https://arxiv.org/abs/1706.02677), the square root for adaptive methods
    (https://arxiv.org/abs/2205.10287).

    Example:
        >>> scale_learning_rate(0.1, 8, "auto", "sgd"), scale_learning_rate(0.001, 4, "auto", "adam")
        (0.8, 0.002)
    """
    if scaling == "auto":
        scaling = "linear" if optimizer == "sgd" else "sqrt"
    return learning_rate * {"linear": float(num_replicas), "sqrt": math.sqrt(num_replicas), "none": 1.0}[scaling]


def warmup_steps(warmup_epochs: float, steps_per_epoch: int, total_steps: int) -> int:
    """Steps of warm-up; always fewer than all.

    Example:
        >>> warmup_steps(0.5, steps_per_epoch=10, total_steps=100)
        5
    """
    return min(round(warmup_epochs * steps_per_epoch), total_steps - 1)


def _optimizer(settings: TrainParams, num_replicas: int, steps_per_epoch: int, trained: Sequence[Any]) -> Any:
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
            alpha=0.0 if settings.learning_rate_schedule == "cosine" else 1.0,  # 1.0: a decay to where it started.
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )
    if settings.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay or None)
    elif settings.optimizer == "adamw":
        optimizer = keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay)
    else:
        optimizer = keras.optimizers.Adam(rate)
    # Biases and normalisation's scales are vectors; shrinking them regularises nothing.
    optimizer.exclude_from_weight_decay(var_list=[variable for variable in trained if len(variable.shape) < 2])
    return optimizer


def next_character_loss(targets: Any, outputs: Any) -> Any:
    """float32[batch]: cross-entropy summed over the targets that count, by the length of a passage.

    By that and not by their number, so that every character weighs the same, however a batch is shared out.
    """
    from keras import ops

    each = ops.sparse_categorical_crossentropy(targets, outputs)
    counts = ops.cast(ops.not_equal(targets, PADDING), each.dtype)
    return ops.sum(each * counts, axis=-1) / targets.shape[-1]


def _bits_per_character() -> Any:
    import keras
    from keras import ops

    class BitsPerCharacter(keras.metrics.Mean):
        """The mean over the targets that count."""

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            weights = ops.cast(ops.not_equal(y_true, PADDING), "float32")
            if sample_weight is not None:
                weights = weights * ops.expand_dims(ops.cast(sample_weight, "float32"), -1)
            bits = ops.sparse_categorical_crossentropy(y_true, y_pred) / math.log(2)
            return super().update_state(bits, sample_weight=weights)

    return BitsPerCharacter(name="bits_per_character")


_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {"next_character": next_character_loss}
_METRICS: Mapping[str, Callable[[], Any]] = {"bits_per_character": _bits_per_character}


def compile_model(
    model: Any,
    interface: Interface,
    settings: TrainParams,
    num_replicas: int,
    steps_per_epoch: int,
    jit_compile: bool,
) -> Sequence[Any]:
    """Compile a model for training, with every variable made that a step changes.

    Args:
        model: A keras.Model as `build_model` gives it.
        interface: What it takes and gives: decides loss and metric.
        settings: Optimizer, learning rate, augmentation and averaging.
        num_replicas: Replicas that share a batch.
        steps_per_epoch: Of training.
        jit_compile: Whether XLA compiles the step.

    Returns:
        In the order of `model.variables`, the variables that hold what is to be judged and saved: those themselves, or
        their averages where `settings` ask for them.

    Raises:
        InputError: If the model's input or task cannot be augmented as `settings` say.
    """
    softened = settings.softens_labels
    if softened and interface.task_name != CLASSIFICATION:
        raise InputError(
            f"label_smoothing and mixup_alpha are for data with one class of several. Received: {interface.task_name}. "
            "Remove them from section training."
        )
    loss, metric = interface.task.loss, interface.task.metric
    model.compile(
        optimizer=_optimizer(settings, num_replicas, steps_per_epoch, model.trainable_variables),
        loss="categorical_crossentropy" if softened else _LOSSES.get(loss, loss),
        weighted_metrics=[_METRICS[metric]() if metric in _METRICS else metric],
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)
    # Makes the metrics' variables, as `fit` does at its first step: a checkpoint is restored before that.
    inputs, targets, weights = (np.ones(*shape) for shape in interface.batch_shapes(1))
    if softened:
        targets = np.ones((1, *interface.output_shape), np.float32)
    model._symbolic_build(data_batch=(inputs, targets, weights))
    prepare_batches(model, settings, num_replicas)
    return average_weights(model, settings.ema_decay) if settings.ema_decay else model.variables

"""Compilation of a model for training: optimizer, learning-rate schedule, loss and metrics.

Training runs the compiled step; preflight compiles the same step for a TPU.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import jax, keras, ops, tf
from tpu_components.core.examples.interface import LANGUAGE_MODEL, PADDING, Interface
from tpu_components.core.metrics.keras_metrics import adapt, measured_by, set_measured
from tpu_components.core.models.lookup import PROBABILITIES_LAYER, brought_by, explain, has_added_class
from tpu_components.core.models.training_step.augmentation import check_augmentation
from tpu_components.core.models.training_step.hyperparameters import OF_THE_TASK, TrainParams
from tpu_components.core.models.training_step.keras_names import create
from tpu_components.core.models.training_step.losses import add_float32_loss, adds_losses, loss_name, make_loss
from tpu_components.core.models.training_step.optimizers import (
    check_replicas,
    check_updates,
    make_optimizer,
    used_optimizer,
)
from tpu_components.core.models.training_step.program import state_of
from tpu_components.core.models.training_step.stages import plan_stages
from tpu_components.core.models.training_step.wrapping import (
    clip_after_sum,
    extend_step,
    sum_repeated_rows,
    synchronize_normalization,
)

# Name of the metric for the loss without regularization terms; only models with regularizers have it.
UNPENALIZED_LOSS = "unpenalized_loss"


def used_hyperparameters(model: Any, interface: Interface, params: TrainParams, steps_per_epoch: int) -> dict[str, Any]:
    """Return the hyper-parameters that training uses and that may differ from the configuration.

    A compiled model has its own optimizer, learning rate and loss. Reports and lists of runs show these values.

    Args:
        model: A keras.Model from `build_model`.
        interface: Input and output of the model.
        params: Hyper-parameters of the configuration.
        steps_per_epoch: Number of training steps in an epoch.

    Returns:
        The values, by name of the `TrainParams` field. `learning_rate` is the peak learning rate for one replica in
        the first stage, and each entry of `stages` has the learning rate of its stage. If stages use different
        optimizers, `optimizer` joins their names with "then".
    """
    planned = plan_stages(params)
    each = [used_optimizer(model, stage.params, steps_per_epoch * stage.params.epochs) for stage in planned]
    stages = [
        dataclasses.asdict(stage) | {"learning_rate": used["learning_rate"]}
        for stage, used in zip(params.stages, each, strict=False)
    ]
    return each[0] | {
        "optimizer": " then ".join(dict.fromkeys(used["optimizer"] for used in each)),
        "stages": stages,
        "loss": loss_name(params, interface, model),
    }


def say_what_is_used(model: Any, params: TrainParams) -> str:
    """Return a sentence that lists the optimizer, loss, metrics, callbacks and train_step that come with the model.

    The sentence distinguishes settings that training uses from settings that the configuration replaces. If the model
    comes with none of these settings, the sentence is empty.

    Example:
        >>> from types import SimpleNamespace
        >>> from tpu_components.core.models.lookup import Brought
        >>> model = SimpleNamespace(brought=Brought(optimizer=(), loss="huber"))
        >>> say_what_is_used(model, TrainParams("m", loss="poisson"))
        "training uses the model's own optimizer tuple; the configuration (loss) replaces its loss huber"
    """
    brought = brought_by(model)
    loss = brought.loss
    if isinstance(loss, list | tuple):  # Keras takes a list of one loss, too.
        loss = next(iter(loss), None)
    names: dict[str, Any] = {
        "optimizer": "" if brought.optimizer is None else type(brought.optimizer).__name__,
        "loss": getattr(loss, "__name__", loss if isinstance(loss, str) else "")
        or ("" if loss is None else type(loss).__name__),
        "metrics": ", ".join(metric.name for metric in brought.metrics),
        "callbacks": ", ".join(type(callback).__name__ for callback in brought.callbacks),
        "train_step": brought.has_step
        and "(it gets padding as examples of weight 0; check that steps_per_execution, residency and num_replicas do "
        "not change the trained weights)",
    }
    replaced = {"optimizer": bool(params.of_optimizer), "loss": params.loss != OF_THE_TASK}
    kept = [f"{kind} {name}" for kind, name in names.items() if name and not replaced.get(kind)]
    others = [f"{kind} {name}" for kind, name in names.items() if name and replaced.get(kind)]
    by = [
        *(params.of_optimizer if names["optimizer"] else ()),
        *(["loss"] if names["loss"] and replaced["loss"] else ()),
    ]
    said = {"training uses the model's own": kept, f"the configuration ({', '.join(by)}) replaces its": others}
    return "; ".join(f"{verb} {', '.join(parts)}" for verb, parts in said.items() if parts)


def _bits_per_character() -> Any:
    class BitsPerCharacter(keras.metrics.Mean):
        """Mean of the bits per character over the targets that are not padding."""

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            weights = ops.cast(ops.not_equal(y_true, PADDING), "float32")
            if sample_weight is not None:
                weights = weights * ops.expand_dims(ops.cast(sample_weight, "float32"), -1)
            bits = ops.sparse_categorical_crossentropy(y_true, y_pred) / math.log(2)
            return super().update_state(bits, sample_weight=weights)

    return BitsPerCharacter(name="bits_per_character")


def _count_alike(model: Any, loss: Any, unpenalized: Any) -> None:
    """Make the metrics of a model ignore sample weights, except that they leave out examples of weight 0.

    Padding, for example, has weight 0.

    Args:
        model: Compiled model.
        loss: The loss that the model is compiled with.
        unpenalized: Metric of the weighted loss without regularization terms, or None if the model has no regularizers.
    """
    plain = functools.partial(type(model).compute_metrics, model)
    each = keras.losses.get(loss)
    if unpenalized is not None:
        add = unpenalized.update_state
        unpenalized.update_state = lambda *_, **__: None

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if unpenalized is not None:
            add(each(y, y_pred) * (1.0 if sample_weight is None else sample_weight))
        return plain(x, y, y_pred, None if sample_weight is None else ops.sign(sample_weight))

    model.compute_metrics = compute_metrics


def _on_probabilities(metric: Any, ends_with_logits: bool) -> Any:
    """Convert a metric that may take logits to a metric that takes probabilities.

    For models that return logits, Keras recommends metrics with `from_logits=True` or a threshold of 0. Here, all
    models return probabilities, because `build_model` adds an activation.

    Args:
        metric: A Keras metric.
        ends_with_logits: Whether the user's model returns logits. If it does, and all thresholds of the metric are
            outside of (0, 1), the thresholds are converted from logits to probabilities.
    """
    config = metric.get_config()
    changed: dict[str, Any] = {}
    if config.get("from_logits"):
        changed["from_logits"] = False
    for name in ("threshold", "thresholds"):
        limits = config.get(name)
        numbers = limits if isinstance(limits, list | tuple) else [limits]
        are_numbers = all(isinstance(number, int | float) for number in numbers)
        if ends_with_logits and are_numbers and not any(0 < number < 1 for number in numbers):
            converted = [1 / (1 + math.exp(-number)) for number in numbers]
            changed[name] = converted if numbers is limits else converted[0]
    return type(metric).from_config({**config, **changed}) if changed else metric


def _further_metrics(params: TrainParams, interface: Interface, model: Any) -> list[Any]:
    """Return all metrics except the task's default metric: those of the model, and those of the configuration."""
    ends_with_logits = any(layer.name == PROBABILITIES_LAYER for layer in model.layers)
    of_model = [_on_probabilities(metric, ends_with_logits) for metric in brought_by(model).metrics]
    by_name = {metric.name: metric for metric in of_model if metric.name not in (interface.task.metric, "loss")}
    for name, parameters in params.metrics.items():
        if parameters or name not in by_name:
            by_name[name] = _on_probabilities(create("metric", name, parameters, name=name), ends_with_logits)
    if interface.task_name == LANGUAGE_MODEL:
        if params.metrics:
            raise InputError(
                "metrics are not supported for a language model, which has only bits_per_character. Remove metrics."
            )
        return []
    return [adapt(metric, interface, has_added_class(model)) for metric in by_name.values()]


def _check_step(model: Any, batch: Sequence[np.ndarray]) -> None:
    """Trace the model's own `train_step`. Raise InputError if it fails on this backend or does not return `loss`."""
    is_jax = keras.backend.backend() == "jax"
    try:
        if is_jax:
            state = tuple([variable.value for variable in kind] for kind in state_of(model))
            logs, _ = jax.eval_shape(model.train_step, state, batch)
        else:
            logs = (
                tf.function(model.train_step).get_concrete_function(tuple(map(tf.constant, batch))).structured_outputs
            )
    except Exception as error:  # The step may raise anything.
        takes = ", ".join(inspect.signature(model.train_step).parameters)
        other = "tensorflow" if is_jax else "jax"
        raise InputError(
            f"The model's own train_step({takes}) fails with backend={keras.backend.backend()}: {describe(error)}. "
            f"Correct it, or set training.backend={other} if it is written for that backend."
        ) from error
    if "loss" not in logs:
        raise InputError(
            f"The model's own train_step returns {', '.join(logs)}, but no 'loss'. Return the loss with the key 'loss'."
        )


def compile_model(
    model: Any,
    interface: Interface,
    params: TrainParams,
    num_replicas: int,
    steps_per_epoch: int,
    jit_compile: bool,
    class_weights: Sequence[float] = (),
) -> Sequence[Any]:
    """Compile a model for training, and create the variables of its optimizer and metrics.

    Args:
        model: A keras.Model from `build_model`.
        interface: Input and output of the model, which determine loss and metric.
        params: Optimizer, learning rate, augmentation and averaging.
        num_replicas: Number of replicas that share a batch.
        steps_per_epoch: Number of training steps in an epoch.
        jit_compile: Whether XLA compiles the step.
        class_weights: Weight of each class in the loss. Empty for weights of 1.

    Returns:
        The variables to validate and save, in the order of `model.variables`: the weights or, if `params.ema_decay` is
        set, their running averages.

    Raises:
        InputError: If the model's input or task does not support the augmentation, Keras rejects a setting, or a
            training step fails.
    """
    vars(model).pop("train_step", None)  # Removes the wrapper of an earlier stage.
    check_augmentation(params, model.input_shape, interface.task_name)
    task = interface.task
    loss = make_loss(params, interface, model)
    further = _further_metrics(params, interface, model)
    if not measured_by(model):
        set_measured(model, further)
    metrics = [_bits_per_character() if task.name == LANGUAGE_MODEL else task.metric, *further]
    penalties = (
        *(getattr(variable, "regularizer", None) for variable in model.trainable_variables),
        *(getattr(layer, "activity_regularizer", None) for layer in model._flatten_layers()),
    )
    inputs, targets, weights = (np.ones(*shape) for shape in interface.batch_shapes(1, with_margin=False))
    is_penalized = any(penalties) or adds_losses(model, inputs)
    unpenalized = keras.metrics.Mean(name=UNPENALIZED_LOSS) if is_penalized else None
    model.compile(
        optimizer=make_optimizer(params, num_replicas, steps_per_epoch, model),
        loss=loss,
        weighted_metrics=metrics if unpenalized is None else [*metrics, unpenalized],
        jit_compile=jit_compile,
    )
    _count_alike(model, loss, unpenalized)
    check_replicas(model.optimizer, max(num_replicas, params.num_replicas))
    model.optimizer.build(model.trainable_variables)
    check_updates(model)
    for layer in model._flatten_layers():
        layer.add_loss = functools.partial(add_float32_loss, layer)
    # Creates the metrics' variables. `fit` would create them in its first step, after a checkpoint is restored.
    if params.softens_labels:
        targets = np.ones((1, *interface.output_shape), np.float32)
    try:
        model._symbolic_build(data_batch=(inputs, targets, weights))
    except (ValueError, TypeError, RuntimeError) as error:
        said = explain(error)
        advice = " Begin the model with keras.layers.Rescaling(1 / 255)." if "uint8" in said.lower() else ""
        raise InputError(
            f"A training step fails on examples of {inputs.dtype}{list(inputs.shape[1:])}: {said}.{advice}"
        ) from error
    if brought_by(model).has_step:
        _check_step(model, (inputs, targets, weights))
    synchronize_normalization(model, num_replicas)
    sum_repeated_rows(model.optimizer)
    clip_after_sum(model.optimizer, num_replicas)
    has_margin = interface.input.fed_shape != interface.input.shape
    return extend_step(model, params, num_replicas, has_margin, class_weights)

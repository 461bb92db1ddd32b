"""Compilation of a model for training: optimizer, learning-rate schedule, loss and metrics.

Training runs the compiled step; preflight compiles the same step for a TPU.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe, did_you_mean
from tpu_components.core.base.frameworks import jax, keras, ops, tf
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, PADDING, Interface
from tpu_components.core.metrics.keras_metrics import adapt, convert_targets, measured_by, set_measured
from tpu_components.core.models.lookup import PROBABILITIES_LAYER, Brought, brought_by, explain, has_added_class
from tpu_components.core.models.training_step.augmentation import check_augmentation
from tpu_components.core.models.training_step.hyperparameters import OF_THE_MODEL, OF_THE_TASK, TrainParams
from tpu_components.core.models.training_step.program import state_of
from tpu_components.core.models.training_step.stages import plan_stages
from tpu_components.core.models.training_step.wrapping import (
    extend_step,
    sum_repeated_rows,
    synchronize_normalization,
)

# Name of the metric for the loss without regularization terms; only models with regularizers have it.
UNPENALIZED_LOSS = "unpenalized_loss"
_DECAYED_ROLES = ("kernel", "embedding")
_SAMPLED_STEPS = 100  # Number of steps at which a schedule is evaluated to find its peak.
_FALL = 0.01  # By this much at least, a loss of logits falls. The smallest fall, of a sigmoid, is 0.31.
# Keras module for each kind of object, and the base class of the objects.
# Methods of a callback that training does not call.
_UNUSED_HOOKS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_KINDS = {
    "optimizer": ("optimizers", "optimizers.Optimizer"),
    "learning_rate_schedule": ("optimizers.schedules", "optimizers.schedules.LearningRateSchedule"),
    "loss": ("losses", "losses.Loss"),
    "metric": ("metrics", "metrics.Metric"),
    "callback": ("callbacks", "callbacks.Callback"),
}
# This project's names for a setting, in addition to Keras's.
_OWN_NAMES = {"optimizer": ("auto",), "learning_rate_schedule": ("constant", "cosine"), "loss": ("auto",)}
# Classes that messages do not list: they are rejected, or rejected with their defaults.
_NOT_OFFERED = {
    "optimizer": ("LossScaleOptimizer", "MultiOptimizer"),  # They take other optimizers.
    "loss": ("CTC", "Circle", "Dice", "Tversky"),  # Their result for an example depends on the other examples.
    "metric": ("Mean", "MeanMetricWrapper", "Sum"),  # They take functions, or values other than predictions.
    "callback": ("CallbackList", "LambdaCallback", "LearningRateScheduler"),  # They take functions or callbacks.
}


def scale_learning_rate(learning_rate: float, num_replicas: int, scaling: str, optimizer: str) -> float:
    """Return the peak learning rate for `num_replicas` replicas, from the learning rate for one replica.

    `auto` scales linearly for SGD (https://arxiv.org/abs/1706.02677) and by the square root for adaptive methods
    (https://arxiv.org/abs/2205.10287).

    Example:
        >>> scale_learning_rate(0.1, 8, "auto", "sgd"), scale_learning_rate(0.001, 4, "auto", "adam")
        (0.8, 0.002)
    """
    if scaling == "auto":
        scaling = "linear" if optimizer == "sgd" else "sqrt"
    return learning_rate * {"linear": float(num_replicas), "sqrt": math.sqrt(num_replicas), "none": 1.0}[scaling]


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that a LossScaleOptimizer wraps. Return any other optimizer unchanged."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def learning_rate_at(optimizer: Any, step: int) -> float:
    """Return an optimizer's learning rate at a training step. Steps count from 0 over the whole training run."""
    optimizer = _unwrapped(optimizer)
    rate = optimizer._learning_rate
    step = step // (optimizer.gradient_accumulation_steps or 1)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return float(np.asarray(rate(step) if is_schedule else rate))


def exempt_from_decay(model: Any) -> list[Any]:
    """Return the trainable variables of a model that are exempt from weight decay.

    These are biases of any shape (in a GRU and an attention head, biases have two axes), parameters of normalisation
    layers, and slopes of activations, because their decay does not regularise a model. Variables are recognised by
    their role, not by their shape. A variable with an unknown role is exempt if it has at most one axis.
    """
    layers = keras.layers
    normalizing = (
        layers.BatchNormalization,
        layers.GroupNormalization,
        layers.LayerNormalization,
        layers.RMSNormalization,
        layers.PReLU,
    )
    normalized = [layer for layer in model._flatten_layers() if isinstance(layer, normalizing)]
    exempt = {id(variable) for layer in normalized for variable in layer.trainable_variables}
    return [
        variable
        for variable in model.trainable_variables
        if id(variable) in exempt
        or "bias" in variable.name
        or (len(variable.shape) < 2 and not any(role in variable.name for role in _DECAYED_ROLES))
    ]


def _add_float32_loss(layer: Any, loss: Any) -> None:
    """Add a layer's losses as float32. With TensorFlow, Keras cannot sum losses of different dtypes."""
    type(layer).add_loss(layer, keras.tree.map_structure(lambda part: keras.ops.cast(part, "float32"), loss))


def _adds_losses(model: Any, inputs: np.ndarray) -> bool:
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


def _learning_rate(params: TrainParams, optimizer: str, num_replicas: int, steps_per_epoch: float) -> Any:
    """Return an optimizer's learning rate: a number, or a Keras schedule that counts weight updates."""
    peak = scale_learning_rate(params.learning_rate, num_replicas, params.learning_rate_scaling, optimizer)
    total = max(int(steps_per_epoch * params.epochs), 1)
    warmup = min(round(params.warmup_epochs * steps_per_epoch), total - 1)
    name = {"cosine": "cosine_decay"}.get(params.learning_rate_schedule, params.learning_rate_schedule)
    if name == "constant":
        if params.schedule_parameters:
            raise InputError("learning_rate_schedule=constant has no parameters. Remove schedule_parameters.")
        return _warmed_up(lambda step: peak, warmup) if warmup else peak
    parameters = in_steps(params.schedule_parameters, steps_per_epoch)
    if "values" in parameters:  # Learning rates for one replica, so they are scaled like `learning_rate`.
        parameters["values"] = [value * peak / params.learning_rate for value in parameters["values"]]
    if "decay_steps" in inspect.signature(class_of("learning_rate_schedule", name)).parameters:
        parameters.setdefault("decay_steps", total - warmup)
    schedule = _create("learning_rate_schedule", name, parameters, initial_learning_rate=peak)
    return _warmed_up(schedule, warmup) if warmup else schedule


def in_steps(parameters: Mapping[str, Any], steps_per_epoch: float) -> dict[str, Any]:
    """Return a schedule's parameters with epochs converted to steps.

    Example:
        >>> in_steps({"decay_epochs": 2.5, "boundary_epochs": [1, 3], "alpha": 0.1}, steps_per_epoch=10)
        {'decay_steps': 25, 'boundaries': [10, 30], 'alpha': 0.1}
    """
    names = {name: name.removesuffix("_epochs") + "_steps" for name in parameters if name.endswith("_epochs")}
    names["boundary_epochs"] = "boundaries"
    return {
        names.get(name, name): (
            np.rint(np.multiply(value, steps_per_epoch)).astype(int).tolist() if name in names else value
        )
        for name, value in parameters.items()
    }


def _warmed_up(schedule: Any, steps: int) -> Any:
    """Return a schedule that rises linearly from zero over `steps` and then follows `schedule` from its start."""

    class WarmedUp(keras.optimizers.schedules.LearningRateSchedule):
        """Linear warm-up, then the schedule."""

        def __call__(self, step: Any) -> Any:
            taken = ops.cast(step, "float32")
            later = schedule(ops.maximum(taken - steps, 0.0))
            return ops.where(taken < steps, schedule(0.0) * (taken / steps), later)  # Rounded as Keras does.

        def get_config(self) -> dict[str, Any]:
            return {}  # No model is saved with its schedule.

    return WarmedUp()


def own_optimizer(model: Any, params: TrainParams) -> Any:
    """Return the optimizer that a model is compiled with, or None if training does not use it.

    Training uses it unless the configuration changes a setting of the optimizer or of the learning rate.
    """
    return None if params.of_optimizer else brought_by(model).optimizer


def used_hyperparameters(model: Any, interface: Interface, params: TrainParams, steps_per_epoch: int) -> dict[str, Any]:
    """Return the hyper-parameters that training uses and that may differ from the configuration.

    A compiled model has its own optimizer, learning rate and loss. Reports and lists of runs show these values.

    Args:
        model: A keras.Model from `build_model`.
        interface: Input and output of the model.
        params: Hyper-parameters of the configuration.
        steps_per_epoch: Number of training steps in an epoch.

    Returns:
        Values by the names of the fields of `TrainParams`. `learning_rate` is the peak learning rate for one replica in
        the first stage, and each entry of `stages` has the learning rate of its stage. If stages use different
        optimizers, `optimizer` joins their names with "then".
    """
    planned = plan_stages(params)
    each = [_used_optimizer(model, stage.params, steps_per_epoch * stage.params.epochs) for stage in planned]
    stages = [
        dataclasses.asdict(stage) | {"learning_rate": used["learning_rate"]}
        for stage, used in zip(params.stages, each, strict=False)
    ]
    return each[0] | {
        "optimizer": " then ".join(dict.fromkeys(used["optimizer"] for used in each)),
        "stages": stages,
        "loss": _loss_name(params, interface, brought_by(model)),
    }


def _used_optimizer(model: Any, params: TrainParams, num_steps: int) -> dict[str, Any]:
    """Return the hyper-parameters of the optimizer in a stage of `num_steps` steps. See `used_hyperparameters`."""
    own = own_optimizer(model, params)
    if own is None:
        return {
            "optimizer": "adam" if params.optimizer == OF_THE_MODEL else params.optimizer.lower(),
            "learning_rate": params.learning_rate,
        }
    optimizer = _unwrapped(own)
    name = type(optimizer).__name__
    schedule = optimizer._learning_rate
    config = optimizer.get_config()
    known = inspect.signature(type(optimizer)).parameters
    steps = np.unique(np.linspace(0, max(num_steps - 1, 0), _SAMPLED_STEPS).astype(int))
    is_constant = not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
    peak = max(learning_rate_at(optimizer, int(step)) for step in (steps[:1] if is_constant else steps))
    return {
        "optimizer": _plain(name) if _plain(name) in keras_classes("optimizer") else name,
        "optimizer_parameters": {
            item: value
            for item, value in config.items()
            if item in known
            and item not in ("name", "learning_rate", "weight_decay")
            and isinstance(value, bool | int | float | str)
            and value != known[item].default
        },
        "learning_rate": float(f"{peak:.6g}"),  # Float32 has no more digits.
        "learning_rate_scaling": "none",
        "learning_rate_schedule": "constant" if is_constant else _snake(type(schedule).__name__),
        "weight_decay": config.get("weight_decay") or 0.0,
    }


def _optimizer(params: TrainParams, num_replicas: int, steps_per_epoch: int, model: Any) -> Any:
    if (compiled_with := own_optimizer(model, params)) is not None:
        if compiled_with.use_ema:
            raise InputError(
                "The model's optimizer has use_ema=True, which is not supported. Set training.ema_decay instead."
            )
        return copy_optimizer(compiled_with)  # A new one for every stage.
    name = "adam" if params.optimizer == OF_THE_MODEL else params.optimizer.lower()
    known = inspect.signature(class_of("optimizer", name)).parameters
    parameters = dict(params.optimizer_parameters)
    every = parameters.get("gradient_accumulation_steps")
    updates = steps_per_epoch / (every if isinstance(every, int) and every > 0 else 1)
    own: dict[str, Any] = dict.fromkeys(("use_ema", "ema_momentum", "ema_overwrite_frequency"))
    own["learning_rate"] = _learning_rate(params, name, num_replicas, updates)
    if name == "sgd":
        parameters = {"momentum": 0.9, "nesterov": True, **parameters}
    for decay in ("weight_decay", "adam_weight_decay"):  # The second is Muon's, for all but kernels.
        # An optimizer whose default is no decay keeps None, which computes nothing. Any other default is overridden.
        if decay in known and (params.weight_decay or known[decay].default is not None):
            parameters.setdefault(decay, params.weight_decay)
    optimizer = _create("optimizer", name, parameters, **own)
    optimizer.exclude_from_weight_decay(var_list=exempt_from_decay(model))
    return optimizer


def copy_optimizer(optimizer: Any) -> Any:
    """Return a new optimizer like a model's own, with the weights that it excludes from weight decay.

    Raises:
        InputError: If the optimizer or its learning-rate schedule cannot be created from its configuration.
    """
    try:
        copied = type(optimizer).from_config(optimizer.get_config())
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot copy the model's optimizer {type(optimizer).__name__}, which training creates for every stage: "
            f"{describe(error).rstrip('.')}. Give the optimizer and its schedule a get_config that returns all "
            "arguments, and register them with keras.saving.register_keras_serializable."
        ) from error
    # The configuration of a Keras optimizer does not have these.
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, copy.copy(value))
    return copied


def _check_updates(model: Any) -> None:
    """Check that the model's optimizer can change weights of low precision.

    With bfloat16 weights, Keras computes Adam's step size in bfloat16. There, `beta_2` = 0.999 is rounded to 1, so the
    step size is 0 and the model never learns.

    Raises:
        InputError: If an update by the optimizer leaves such a weight unchanged, or makes it NaN or infinite.
    """
    named = {variable.dtype: variable.path for variable in model.trainable_variables}
    own = _unwrapped(model.optimizer)
    for dtype in named.keys() & {"bfloat16", "float16"}:
        config = own.get_config()
        fixed = {"learning_rate": 1.0, "gradient_accumulation_steps": None}  # The next update must change the weight.
        optimizer = type(own).from_config({**config, **{name: fixed[name] for name in fixed if name in config}})
        weight = keras.Variable(np.zeros((1, 1)), dtype=dtype)
        optimizer.build([weight])
        optimizer.apply([keras.ops.ones((1, 1), dtype)])
        updated = float(keras.ops.cast(weight, "float32")[0, 0])
        if not updated or not math.isfinite(updated):
            raise InputError(
                f"The optimizer {type(optimizer).__name__} cannot update weights of {dtype}, such as {named[dtype]!r}: "
                f"{'it does not change them' if updated == 0 else 'they become NaN'}, because Keras rounds the step "
                f"size to {dtype}. Keep the weights in float32 with dtype='mixed_{dtype}' in the model, or set another "
                "training.optimizer, such as sgd."
            )


def say_what_is_used(model: Any, params: TrainParams) -> str:
    """Return a sentence that lists the optimizer, loss, metrics, callbacks and train_step that come with the model.

    The sentence distinguishes settings that training uses from settings that the configuration replaces. If the model
    comes with no such settings, the sentence is empty.

    Example:
        >>> from types import SimpleNamespace
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


def weigh_classes(params: TrainParams, class_names: Sequence[str], counts: Sequence[int]) -> tuple[float, ...]:
    """Return the weight of each class in the loss.

    Return an empty tuple if no weights are set, or the task has no classes.

    Args:
        params: `balance_classes` and `class_weights`.
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


def _own_loss(params: TrainParams, interface: Interface, brought: Brought) -> Any:
    """Return the loss that comes with a model, as a function, or None if training uses another loss."""
    if params.loss != OF_THE_TASK or brought.loss is None or interface.task.name == LANGUAGE_MODEL:
        return None
    own = _each_example(brought.loss)
    return None if _name_of(own) == interface.task.loss else own


def _task_loss(params: TrainParams, interface: Interface) -> Any:
    """Return the default loss of the task: the name of a Keras loss, or a function."""
    return "categorical_crossentropy" if params.softens_labels else interface.task.loss


def _name_of(loss: Any) -> str:
    return loss if isinstance(loss, str) else str(getattr(loss, "name", getattr(loss, "__name__", type(loss).__name__)))


def _loss_name(params: TrainParams, interface: Interface, brought: Brought) -> str:
    """Return the name of the loss that training uses."""
    if (own := _own_loss(params, interface, brought)) is not None:
        return _name_of(own)
    if params.loss != OF_THE_TASK:
        return params.loss
    return _name_of(_task_loss(params, interface))


def _loss(params: TrainParams, interface: Interface, model: Any) -> Any:
    """Return the loss to pass to `model.compile`."""
    own = _own_loss(params, interface, brought_by(model))
    if params.loss == OF_THE_TASK and own is None:
        return _task_loss(params, interface)
    name = params.loss if own is None else _name_of(own)
    if interface.task.name == LANGUAGE_MODEL:
        raise InputError(f"loss={name} is not supported for a language model, which has a fixed loss. Remove loss.")
    each = own or _each_example(_create("loss", name, params.loss_parameters, reduction="none"))
    try_on = functools.partial(_why_not_each, each)

    def tells_apart(targets: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> bool:
        return bool(np.all(np.asarray(each(targets, right)) < np.asarray(each(targets, wrong))))

    loss = convert_targets(
        each, try_on, f"loss={name}", interface, params.softens_labels, tells_apart if has_added_class(model) else None
    )
    if interface.task.activation in ("softmax", "sigmoid") and _expects_logits(loss, interface):
        raise InputError(
            f"loss={name} expects logits: it still falls when the output of the right class rises from 1 to 10. A loss "
            "gets probabilities, even if the model ends without an activation. Remove from_logits=True, or the softmax "
            "or sigmoid, from the loss."
        )
    return loss


def _expects_logits(loss: Any, interface: Interface) -> bool:
    """Return whether a loss applies softmax or sigmoid to the outputs that it gets.

    Such a loss is finite and positive for outputs outside of [0, 1], and is smaller the larger the output of the right
    class is.
    """
    classes = np.arange(interface.num_classes)
    right = classes[-1]
    values = (-10.0, 0.0, 1.0, 10.0)
    outputs = np.zeros((len(values), classes.size), np.float32)
    outputs[:, right] = values
    targets = np.full(len(values), right, np.int32)
    if interface.task_name != CLASSIFICATION:
        targets = (targets[:, None] == classes).astype(np.float32)
    losses = np.asarray(loss(targets, outputs))
    return bool(np.isfinite(losses).all() and losses.min() >= 0 and np.diff(losses).max() < -_FALL)


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


def _each_example(loss: Any) -> Any:
    """Convert a loss for `keras.Model.compile` to a function of probabilities that returns one number per example."""
    each = keras.losses.get(next(iter(keras.tree.flatten(loss))))
    if isinstance(each, keras.losses.Loss):
        each = copy.copy(each)
        each.reduction = "none"
        if "from_logits" in (parameters := getattr(each, "_fn_kwargs", {})):
            each._fn_kwargs = {**parameters, "from_logits": False}
    return each


def _on_probabilities(metric: Any, ends_with_logits: bool) -> Any:
    """Convert a metric that may take logits to a metric that takes probabilities.

    For models that return logits, Keras recommends metrics with `from_logits=True` or a threshold of 0. Here, all
    models return probabilities, because `build_model` adds an activation.

    Args:
        metric: A Keras metric.
        ends_with_logits: Whether the user's model returns logits. If it does, and all thresholds of the metric are
            outside of (0, 1), they are converted from logits to probabilities.
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
            by_name[name] = _on_probabilities(_create("metric", name, parameters, name=name), ends_with_logits)
    if interface.task_name == LANGUAGE_MODEL:
        if params.metrics:
            raise InputError(
                "metrics are not supported for a language model, which has only bits_per_character. Remove metrics."
            )
        return []
    return [adapt(metric, interface, has_added_class(model)) for metric in by_name.values()]


def make_callbacks(model: Any, params: TrainParams, known: Collection[str]) -> list[Any]:
    """Return the callbacks of the configuration and of the model. Their `on_train_begin` has been called.

    Raises:
        InputError: If Keras does not have a callback, a callback monitors a metric that is not in `known` (the
            names of the measured metrics), or `ReduceLROnPlateau` is combined with a schedule.
    """
    named = [_create("callback", name, parameters) for name, parameters in params.callbacks.items()]
    callbacks = [*named, *brought_by(model).callbacks]
    names = [re.sub("^validation_", "val_", name) for name in known]
    for callback in callbacks:
        kind = type(callback).__name__
        monitor = getattr(callback, "monitor", None)
        if monitor is not None and monitor not in {*names, *known}:
            raise InputError(
                (
                    f"The callback {kind} monitors {monitor!r}, which is not measured: expected one of "
                    f"{', '.join(names)}. Change the callback's parameter monitor."
                )
                + did_you_mean(monitor, names)
            )
        if isinstance(callback, keras.callbacks.ReduceLROnPlateau) and not isinstance(
            model.optimizer._learning_rate, keras.Variable
        ):
            raise InputError(
                f"{kind} needs a learning rate without a schedule and without warmup_epochs. Set "
                "training.learning_rate_schedule=constant and training.warmup_epochs=0."
            )
        _check_hooks(callback)
        callback.set_model(model)
        callback.set_params({"epochs": params.epochs, "steps": None, "verbose": 0})
        callback.on_train_begin()
    return callbacks


def _check_hooks(callback: Any) -> None:
    """Check that a callback does not need methods that training does not call.

    Keras's own callbacks pass, except LearningRateScheduler and LambdaCallback: usually, on_epoch_end is enough for
    them.

    Raises:
        InputError: If it needs such a method.
    """
    kind = type(callback)
    advice = "Move the code to on_epoch_end."
    unused = [
        name
        for name in _UNUSED_HOOKS
        if name in vars(callback) or getattr(kind, name) is not getattr(keras.callbacks.Callback, name)
    ]
    if isinstance(callback, keras.callbacks.LearningRateScheduler):
        advice = "Set training.learning_rate_schedule, or change the learning rate in on_epoch_end."
    elif kind.__module__.startswith("keras.") and not isinstance(callback, keras.callbacks.LambdaCallback):
        return
    if unused:
        raise InputError(
            f"The callback {kind.__name__} has {' and '.join(unused)}, but training calls only on_train_begin and "
            f"on_epoch_end of a callback. {advice}"
        )


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


def _create(kind: str, name: str, parameters: Mapping[str, Any], /, **own: Any) -> Any:
    """Create a Keras object from the name of its class.

    Args:
        kind: `optimizer`, `learning_rate_schedule`, `loss`, `metric` or `callback`.
        name: Name of the class, in any case and with or without underscores, or Keras's short name for it: `AdamW`,
            `adamw`, `binary_crossentropy`, `mse`.
        parameters: Parameters of the class that the user has set.
        own: Parameters that this project sets and the user cannot set. Parameters that the class does not have are
            ignored.

    Raises:
        InputError: If the class does not exist, or a parameter is unknown, missing or invalid.
    """
    keras_class = class_of(kind, name)
    known = inspect.signature(keras_class).parameters
    free = [item for item in known if item not in own and item not in ("kwargs", "name", "dtype")]
    for parameter in parameters:
        if parameter not in free:
            raise InputError(
                f"{kind} {name!r} has no parameter {parameter!r}. Its parameters are {', '.join(free)}."
                + did_you_mean(parameter, free)
            )
    # A configuration stores 0.0 as 0, which Keras may refuse.
    values = {
        item: float(value) if type(value) is int and isinstance(known[item].default, float) else value
        for item, value in parameters.items()
    }
    try:
        return keras_class(**{item: value for item, value in own.items() if item in known}, **values)
    except Exception as error:  # Keras checks values with errors of several kinds.
        raise InputError(
            f"Cannot create the {kind} {name!r} with the parameters {dict(parameters)}: {describe(error)}"
        ) from error


def class_of(kind: str, name: str) -> Any:
    """Return a Keras class by its name, in any case and with or without underscores, or by its short name.

    Raises:
        InputError: If Keras has no such class.
    """
    classes, plain = keras_classes(kind), _plain(name)
    if plain not in classes:
        with contextlib.suppress(Exception):  # Keras also has short names, such as `mse`.
            meant = getattr(keras, _KINDS[kind][0]).get(name)
            plain = _plain(getattr(meant, "__name__", type(meant).__name__))
    if plain not in classes:
        names = offered_names(kind)
        near = did_you_mean(name.lower(), names)
        raise InputError(f"Keras has no {kind} {name!r}: expected one of {', '.join(names)}.{near}")
    return classes[plain]


def offered_names(kind: str) -> tuple[str, ...]:
    """Return the names that messages list for a kind of Keras class, beginning with names such as `auto`."""
    classes = (keras_class.__name__ for keras_class in keras_classes(kind).values())
    return (
        *_OWN_NAMES.get(kind, ()),
        *(_snake(name) for name in classes if name not in _NOT_OFFERED.get(kind, ())),
    )


def keras_classes(kind: str) -> dict[str, Any]:
    """Return Keras's public classes of a kind, by their names in lower case without underscores.

    Args:
        kind: "optimizer", "learning_rate_schedule", "loss", "metric" or "callback".
    """
    module, base = (operator.attrgetter(path)(keras) for path in _KINDS[kind])
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return {_plain(value.__name__): value for value in classes if value is not base}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _snake(name: str) -> str:
    """Return a class's name in lower case with underscores.

    Example:
        >>> _snake("ReduceLROnPlateau"), _snake("AdamW"), _snake("F1Score")
        ('reduce_lr_on_plateau', 'adamw', 'f1_score')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][A-Za-z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


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
            f"The model's own train_step returns {', '.join(logs)}, but no 'loss'. Add its loss with the key 'loss'."
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
    """Compile a model for training and create all variables that a step changes.

    Args:
        model: A keras.Model from `build_model`.
        interface: Input and output of the model, which determine loss and metric.
        params: Optimizer, learning rate, augmentation and averaging.
        num_replicas: Number of replicas that share a batch.
        steps_per_epoch: Number of training steps in an epoch.
        jit_compile: Whether XLA compiles the step.
        class_weights: Weight of each class in the loss. Empty for weights of 1.

    Returns:
        The variables to validate and save, in the order of `model.variables`: the weights, or their running averages
        with `params.ema_decay`.

    Raises:
        InputError: If the model's input or task does not support the augmentation, or the model fails on an input.
    """
    vars(model).pop("train_step", None)  # Removes the wrapper of an earlier stage.
    check_augmentation(params, model.input_shape, interface.task_name)
    task = interface.task
    loss = _loss(params, interface, model)
    further = _further_metrics(params, interface, model)
    if not measured_by(model):
        set_measured(model, further)
    metrics = [_bits_per_character() if task.name == LANGUAGE_MODEL else task.metric, *further]
    penalties = (
        *(getattr(variable, "regularizer", None) for variable in model.trainable_variables),
        *(getattr(layer, "activity_regularizer", None) for layer in model._flatten_layers()),
    )
    inputs, targets, weights = (np.ones(*shape) for shape in interface.batch_shapes(1, with_margin=False))
    is_penalized = any(penalties) or _adds_losses(model, inputs)
    unpenalized = keras.metrics.Mean(name=UNPENALIZED_LOSS) if is_penalized else None
    model.compile(
        optimizer=_optimizer(params, num_replicas, steps_per_epoch, model),
        loss=loss,
        weighted_metrics=metrics if unpenalized is None else [*metrics, unpenalized],
        jit_compile=jit_compile,
    )
    _count_alike(model, loss, unpenalized)
    model.optimizer.build(model.trainable_variables)
    _check_updates(model)
    for layer in model._flatten_layers():
        layer.add_loss = functools.partial(_add_float32_loss, layer)
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
    has_margin = interface.input.fed_shape != interface.input.shape
    return extend_step(model, params, num_replicas, has_margin, class_weights)

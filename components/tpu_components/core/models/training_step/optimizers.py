"""Optimizers and learning-rate schedules: those of the configuration, and those that a model is compiled with."""

import copy
import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import keras, ops
from tpu_components.core.models.lookup import brought_by
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.keras_names import (
    class_of,
    create,
    keras_classes,
    plain_name,
    snake_case,
)

_DECAYED_ROLES = ("kernel", "embedding")
_SAMPLED_STEPS = 100  # Number of steps at which a schedule is evaluated to find its peak.


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
    """Return an optimizer's learning rate at a training step. Steps count from 0 over the whole training run.

    Schedules count training steps, not updates, even if an update accumulates the gradients of several steps. See
    `keras.optimizers.Optimizer._get_current_learning_rate`.
    """
    rate = _unwrapped(optimizer)._learning_rate
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return float(np.asarray(rate(step) if is_schedule else rate))


def exempt_from_decay(model: Any) -> list[Any]:
    """Return the trainable variables of a model that are exempt from weight decay.

    These are biases, parameters of normalisation layers and slopes of activations, because their decay does not
    regularise a model. Variables are recognised by their role, not by their shape, because the biases of a GRU or an
    attention head have two axes. A variable with an unknown role is exempt if it has at most one axis.
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


def _learning_rate(params: TrainParams, optimizer: str, num_replicas: int, steps_per_epoch: int) -> Any:
    """Return an optimizer's learning rate: a number, or a Keras schedule that counts training steps."""
    peak = scale_learning_rate(params.learning_rate, num_replicas, params.learning_rate_scaling, optimizer)
    total = steps_per_epoch * params.epochs
    warmup = min(round(params.warmup_epochs * steps_per_epoch), total - 1)
    name = {"cosine": "cosine_decay"}.get(params.learning_rate_schedule, params.learning_rate_schedule)
    if name == "constant":
        if params.schedule_parameters:
            raise InputError("learning_rate_schedule=constant has no parameters. Remove schedule_parameters.")
        return _warmed_up(lambda step: peak, warmup) if warmup else peak
    parameters = in_steps(params.schedule_parameters, steps_per_epoch)
    if "warmup_target" in parameters:
        raise InputError("warmup_target is not supported in schedule_parameters. Set training.warmup_epochs instead.")
    if "boundaries" in parameters:  # Epochs of the training, which begins with the warm-up.
        parameters["boundaries"] = [boundary - warmup for boundary in parameters["boundaries"]]
    if "values" in parameters:  # Learning rates for one replica, so they are scaled like `learning_rate`.
        parameters["values"] = [value * peak / params.learning_rate for value in parameters["values"]]
    if "decay_steps" in inspect.signature(class_of("learning_rate_schedule", name)).parameters:
        parameters.setdefault("decay_steps", total - warmup)
    schedule = create("learning_rate_schedule", name, parameters, initial_learning_rate=peak)
    return _warmed_up(schedule, warmup) if warmup else schedule


def in_steps(parameters: Mapping[str, Any], steps_per_epoch: int) -> dict[str, Any]:
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


def used_optimizer(model: Any, params: TrainParams, num_steps: int) -> dict[str, Any]:
    """Return the hyper-parameters of the optimizer in a stage of `num_steps` steps. See `used_hyperparameters`."""
    own = own_optimizer(model, params)
    if own is None:
        return {
            "optimizer": params.optimizer_name,
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
        "optimizer": plain_name(name) if plain_name(name) in keras_classes("optimizer") else name,
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
        "learning_rate_schedule": "constant" if is_constant else snake_case(type(schedule).__name__),
        "weight_decay": config.get("weight_decay") or 0.0,
    }


def make_optimizer(params: TrainParams, num_replicas: int, steps_per_epoch: int, model: Any) -> Any:
    """Return a new optimizer for a stage: a copy of the model's own, or the one in `params`; see `own_optimizer`.

    Raises:
        InputError: If Keras rejects the optimizer, its schedule or a parameter, or the model's own optimizer cannot be
            copied.
    """
    if (compiled_with := own_optimizer(model, params)) is not None:
        if compiled_with.use_ema:
            raise InputError(
                "The model's optimizer has use_ema=True, which is not supported. Set training.ema_decay instead."
            )
        return copy_optimizer(compiled_with)  # A new one for every stage.
    name = params.optimizer_name
    known = inspect.signature(class_of("optimizer", name)).parameters
    parameters = dict(params.optimizer_parameters)
    own: dict[str, Any] = dict.fromkeys(("use_ema", "ema_momentum", "ema_overwrite_frequency"))
    own["learning_rate"] = _learning_rate(params, name, num_replicas, steps_per_epoch)
    if name == "sgd":
        parameters = {"momentum": 0.9, "nesterov": True, **parameters}
    for decay in ("weight_decay", "adam_weight_decay"):  # The second is Muon's, for all but kernels.
        # An optimizer whose default is no decay keeps None, which computes nothing. Any other default is overridden.
        if decay in known and (params.weight_decay or known[decay].default is not None):
            parameters.setdefault(decay, params.weight_decay)
    optimizer = create("optimizer", name, parameters, **own)
    optimizer.exclude_from_weight_decay(var_list=exempt_from_decay(model))
    return optimizer


def copy_optimizer(optimizer: Any) -> Any:
    """Return a copy of a model's own optimizer that excludes the same weights from weight decay.

    Raises:
        InputError: If the optimizer or its learning-rate schedule cannot be created from its configuration.
    """
    try:
        copied = type(optimizer).from_config(optimizer.get_config())
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot copy the model's optimizer {type(optimizer).__name__}: {describe(error).rstrip('.')}. Every stage "
            "needs a new copy. Give the optimizer and its schedule a get_config that returns all arguments, and "
            "register them with keras.saving.register_keras_serializable."
        ) from error
    # The configuration of a Keras optimizer does not have these.
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, copy.copy(value))
    return copied


def check_accumulation(optimizer: Any, num_steps: int) -> None:
    """Check that a stage of `num_steps` steps is long enough for at least one update by the optimizer.

    Raises:
        InputError: If the optimizer accumulates the gradients of more than `num_steps` steps before an update.
    """
    every = _unwrapped(optimizer).gradient_accumulation_steps or 1
    if every > num_steps:
        raise InputError(
            f"The optimizer's gradient_accumulation_steps={every} is larger than the number of training steps, "
            f"{num_steps}: the weights would never be updated. Reduce it, or train more epochs."
        )


def check_replicas(optimizer: Any, num_replicas: int) -> None:
    """Check that an optimizer works with several replicas.

    Raises:
        InputError: If the optimizer accumulates gradients, which Keras cannot do on several replicas with TensorFlow.
    """
    every = _unwrapped(optimizer).gradient_accumulation_steps
    if every and num_replicas > 1 and keras.backend.backend() == "tensorflow":
        raise InputError(
            f"gradient_accumulation_steps={every} is not supported with backend=tensorflow and {num_replicas} "
            "replicas. Set training.backend=jax, or training.num_replicas=1."
        )


def check_updates(model: Any) -> None:
    """Check that the model's optimizer can change weights that are stored in low precision.

    With bfloat16 weights, Keras computes Adam's step size in bfloat16. There, `beta_2` = 0.999 is rounded to 1, so the
    step size is 0 and the model never learns.

    Raises:
        InputError: If an update by the optimizer leaves a weight of low precision unchanged, or makes it NaN or
            infinite.
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

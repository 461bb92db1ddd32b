"""Callbacks of the configuration and of the model."""

import re
from collections.abc import Collection
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.frameworks import keras
from tpu_components.core.models.lookup import brought_by
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.keras_names import create

# Callbacks of Keras that would have no effect, and what to do instead.
_REFUSED = {
    "BackupAndRestore": "An interrupted training run resumes without it. Remove it.",
    "SwapEMAWeights": "Set training.ema_decay instead.",
    "TerminateOnNaN": "A training run that diverges stops without it. Remove it.",
}
# Methods of a callback that training does not call.
_UNUSED_HOOKS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def make_callbacks(model: Any, params: TrainParams, known: Collection[str]) -> list[Any]:
    """Return the callbacks of the configuration and of the model. Their `on_train_begin` has been called.

    Raises:
        InputError: If a callback is not in Keras, a callback monitors a metric that is not in `known` (the
            names of the measured metrics), or `ReduceLROnPlateau` is combined with a schedule.
    """
    named = [create("callback", name, parameters) for name, parameters in params.callbacks.items()]
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
                f"{kind} changes the learning rate, so it cannot be combined with a schedule or a warm-up. Set "
                "training.learning_rate_schedule=constant and training.warmup_epochs=0."
            )
        _check_hooks(callback)
        callback.set_model(model)
        callback.set_params({"epochs": params.epochs, "steps": None, "verbose": 0})
        callback.on_train_begin()
    return callbacks


def _check_hooks(callback: Any) -> None:
    """Check that a callback needs only the methods that training calls: `on_train_begin` and `on_epoch_end`.

    For most of Keras's own callbacks, these methods are enough. The exceptions are LearningRateScheduler,
    LambdaCallback, the callbacks in `_REFUSED`, and the parameters `restore_best_weights` and `save_freq`.

    Raises:
        InputError: If the callback needs another method.
    """
    kind = type(callback)
    for name, advice in _REFUSED.items():
        if isinstance(callback, getattr(keras.callbacks, name)):
            raise InputError(f"The callback {name} is not supported. {advice}")
    if getattr(callback, "restore_best_weights", False):
        raise InputError(
            f"The callback {kind.__name__} has restore_best_weights=True, which is not supported: the weights of the "
            "best epoch are always saved. Remove it, and set training.monitor to the callback's monitor."
        )
    if getattr(callback, "save_freq", "epoch") != "epoch":
        raise InputError(
            f"The callback {kind.__name__} has a save_freq, but training calls callbacks only after epochs. Remove "
            "save_freq, or set training.checkpoint_seconds."
        )
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

"""Finds Keras's optimizers, schedules, losses, metrics and callbacks by name, and creates them."""

import contextlib
import inspect
import operator
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError, describe, did_you_mean
from tpu_components.core.base.frameworks import keras

# Keras module for each kind of object, and the base class of the objects.
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


def create(kind: str, name: str, parameters: Mapping[str, Any], /, **own: Any) -> Any:
    """Create a Keras object from the name of its class.

    Args:
        kind: `optimizer`, `learning_rate_schedule`, `loss`, `metric` or `callback`.
        name: Name of the class, such as `AdamW` or `binary_crossentropy`, or Keras's short name for it, such as `mse`.
            In the name of a class, case and underscores are ignored.
        parameters: Parameters of the class that the user has set.
        own: Parameters that this package sets and the user cannot set. Those that the class does not have are ignored.

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
    """Return the Keras class that has `name` as its name or short name.

    In the name of a class, case and underscores are ignored.

    Args:
        kind: `optimizer`, `learning_rate_schedule`, `loss`, `metric` or `callback`.
        name: Name of a class, such as `mean_squared_error`, or a short name, such as `mse`.

    Raises:
        InputError: If Keras has no such class.
    """
    classes = keras_classes(kind)
    plain = plain_name(name)
    if plain not in classes:
        with contextlib.suppress(Exception):  # Keras also has short names, such as `mse`.
            meant = getattr(keras, _KINDS[kind][0]).get(name)
            plain = plain_name(getattr(meant, "__name__", type(meant).__name__))
    if plain not in classes:
        names = offered_names(kind)
        near = did_you_mean(name.lower(), names)
        raise InputError(f"Keras has no {kind} {name!r}: expected one of {', '.join(names)}.{near}")
    return classes[plain]


def offered_names(kind: str) -> tuple[str, ...]:
    """Return the names of Keras classes that error messages suggest.

    Names of this package that Keras does not have, such as `auto`, come first.

    Args:
        kind: `optimizer`, `learning_rate_schedule`, `loss`, `metric` or `callback`.
    """
    classes = (keras_class.__name__ for keras_class in keras_classes(kind).values())
    return (
        *_OWN_NAMES.get(kind, ()),
        *(snake_case(name) for name in classes if name not in _NOT_OFFERED.get(kind, ())),
    )


def keras_classes(kind: str) -> dict[str, Any]:
    """Return Keras's public classes of a kind, as {name in lower case without underscores: class}.

    Args:
        kind: "optimizer", "learning_rate_schedule", "loss", "metric" or "callback".
    """
    module, base = (operator.attrgetter(path)(keras) for path in _KINDS[kind])
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return {plain_name(value.__name__): value for value in classes if value is not base}


def plain_name(name: str) -> str:
    """Return a class name in lower case and without underscores, so that names can be compared."""
    return name.lower().replace("_", "")


def snake_case(name: str) -> str:
    """Return a class's name in lower case with underscores.

    Example:
        >>> snake_case("ReduceLROnPlateau"), snake_case("AdamW"), snake_case("F1Score")
        ('reduce_lr_on_plateau', 'adamw', 'f1_score')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][A-Za-z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

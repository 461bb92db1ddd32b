"""Keras's own optimizers, schedules, losses and metrics, by name and parameters."""

import inspect
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError, describe, did_you_mean

# Module of Keras, and its base class.
_KINDS = {
    "optimizer": ("optimizers", "Optimizer"),
    "learning_rate_schedule": ("optimizers.schedules", "LearningRateSchedule"),
    "loss": ("losses", "Loss"),
    "metric": ("metrics", "Metric"),
}


def create(kind: str, name: str, parameters: Mapping[str, Any], **own: Any) -> Any:
    """Return an object that Keras names.

    Args:
        kind: `optimizer`, `learning_rate_schedule`, `loss` or `metric`.
        name: Name of the class, in any case and with or without underscores: `AdamW`, `adamw`, `binary_crossentropy`.
        parameters: Parameters of the class that the user has set.
        own: Parameters that this project sets, each where the class has it. The user cannot set these.

    Raises:
        InputError: If there is no such class, a parameter is unknown, missing or refused by the class.
    """
    keras_class = class_of(kind, name)
    known = inspect.signature(keras_class).parameters
    free = [item for item in known if item not in own and item not in ("kwargs", "name", "dtype")]
    for parameter in parameters:
        if parameter not in free:
            raise InputError(
                f"{kind} {name!r} has no parameter {parameter!r}: expected some of {', '.join(free)}."
                + did_you_mean(parameter, free)
            )
    missing = [item for item in free if known[item].default is inspect.Parameter.empty and item not in parameters]
    if missing:
        raise InputError(f"{kind} {name!r} needs {', '.join(missing)}. Set them beside its name.")
    try:
        return keras_class(**{item: value for item, value in own.items() if item in known}, **parameters)
    except Exception as error:  # Keras checks values with errors of several kinds.
        raise InputError(f"Cannot make the {kind} {name!r} with {dict(parameters)}: {describe(error)}") from error


def class_of(kind: str, name: str) -> Any:
    """Return the class that Keras names so.

    Raises:
        InputError: If there is none.
    """
    classes = _classes(kind)
    if (plain := _plain(name)) not in classes:
        names = {key: keras_class.__name__ for key, keras_class in classes.items()}
        near = did_you_mean(plain, names)
        raise InputError(f"Keras has no {kind} {name!r}: expected one of {', '.join(names.values())}.{near}")
    return classes[plain]


def _classes(kind: str) -> dict[str, Any]:
    """Return Keras's public classes of a kind, by their names in lower case without underscores."""
    import keras

    path, base = _KINDS[kind]
    module: Any = keras
    for part in path.split("."):
        module = getattr(module, part)
    root = getattr(module, base)
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, root)]
    return {_plain(value.__name__): value for value in classes if value is not root}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")

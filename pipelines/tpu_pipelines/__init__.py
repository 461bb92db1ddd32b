"""Python API of tpu-pipelines: the commands as functions, which also accept Keras models and NumPy arrays."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpu_components.core.base.errors import InputError
    from tpu_pipelines.api.library import (
        Checks,
        Run,
        RunFailedError,
        check,
        compare,
        load_run,
        look,
        predict,
        preflight,
        run,
        train,
    )
    from tpu_pipelines.api.machines import on_machine

__all__ = [
    "Checks",
    "InputError",
    "Run",
    "RunFailedError",
    "check",
    "compare",
    "load_run",
    "look",
    "on_machine",
    "predict",
    "preflight",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a name's module when the name is first used. The command line does not need all of them."""
    if name in __all__:
        module = "machines" if name == "on_machine" else "library"
        return getattr(importlib.import_module(f"tpu_pipelines.api.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, including those that are not imported yet."""
    return __all__

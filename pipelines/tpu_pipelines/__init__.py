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

__all__ = [
    "Checks",
    "InputError",
    "Run",
    "RunFailedError",
    "check",
    "compare",
    "load_run",
    "look",
    "predict",
    "preflight",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import `api.library` when one of its names is first used; the command line does not need it."""
    if name in __all__:
        return getattr(importlib.import_module("tpu_pipelines.api.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return __all__

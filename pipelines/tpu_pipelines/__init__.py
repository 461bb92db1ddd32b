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
    from tpu_pipelines.api.steps import StepCase, StepComparison, StepReport, compare_steps, mesh, preflight_step

__all__ = [
    "Checks",
    "InputError",
    "Run",
    "RunFailedError",
    "StepCase",
    "StepComparison",
    "StepReport",
    "check",
    "compare",
    "compare_steps",
    "load_run",
    "look",
    "mesh",
    "on_machine",
    "predict",
    "preflight",
    "preflight_step",
    "run",
    "train",
]
# Modules of the public names that are not in `library`.
_MODULES = {
    "on_machine": "machines",
    **dict.fromkeys(("StepCase", "StepComparison", "StepReport", "compare_steps", "mesh", "preflight_step"), "steps"),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use, because the command line does not need all modules."""
    if name in __all__:
        return getattr(importlib.import_module(f"tpu_pipelines.api.{_MODULES.get(name, 'library')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, including those that are not imported yet."""
    return __all__

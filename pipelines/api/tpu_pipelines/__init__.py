"""The library `tpu_pipelines`: what the command line does, from Python, with models and arrays as objects too."""

from components.errors import InputError
from pipelines.library import Checks, Run, RunFailedError, check, load_run, look, predict, preflight, run, train

__all__ = [
    "Checks",
    "InputError",
    "Run",
    "RunFailedError",
    "check",
    "load_run",
    "look",
    "predict",
    "preflight",
    "run",
    "train",
]

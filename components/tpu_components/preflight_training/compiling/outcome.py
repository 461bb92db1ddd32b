"""The outcome of a compilation, and the versions of the compiler."""

import contextlib
import dataclasses
import importlib.metadata
import os

from tpu_components.preflight_training.compiling.hlo import ProgramCost

FITS, DOES_NOT_FIT, DOES_NOT_COMPILE = "fits", "does_not_fit", "does_not_compile"
MAY_FIT = "may_fit"  # On a GPU, for which nothing is compiled: the lower bound of the memory fits.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a compilation.

    Attributes:
        verdict: `fits`, `may_fit`, `does_not_fit`, `does_not_compile`, `timed_out`, `crashed`, or `out_of_memory` if
            the compiler exceeded its memory limit on this machine.
        reason: Reason why the program does not fit or compile. Empty if it fits or may fit.
        layer: Layer of the model that caused the failure. Empty if unknown.
        source: Line of the model's code that caused the failure, as `file:line`. Empty if unknown.
        compile_seconds: Time of the compilation.
        peak_bytes: Peak memory use of a device. If the program does not fit, this is the needed memory; if it may fit,
            a lower bound. 0 if unknown.
        held_bytes: Memory of the program and its inputs. Training uses this number to decide whether the data also fit
            in the memory of a device. 0 unless the program fits.
        fixed_bytes: Part of `peak_bytes` that certainly does not grow with the batch: the model's state, and a resident
            training split. 0 unless the program fits.
        example_bytes: Lower bound on the bytes that each example of a batch needs. 0 unless the program fits.
        cost: Cost of the program. None unless the program fits.
        parameters: Number of trainable parameters.
        objection: Reason why train_model would reject a model that fits. Empty if there is none.
        stage: Number of the training stage that was compiled, from 1, or 0 for a training run without stages.
        learning_rate: Peak learning rate of training for one replica. If training uses an optimizer that comes with
            the model, this is that optimizer's learning rate. 0 if the compilation failed.
        program: Digest of the step from `step_digest`, which training also calls. Empty if unknown.
        is_cached: Whether the outcome was taken from the cache.
    """

    verdict: str
    reason: str = ""
    layer: str = ""
    source: str = ""
    compile_seconds: float = 0.0
    peak_bytes: int = 0
    held_bytes: int = 0
    fixed_bytes: int = 0
    example_bytes: int = 0
    cost: ProgramCost | None = None
    parameters: int = 0
    objection: str = ""
    stage: int = 0
    learning_rate: float = 0.0
    program: str = ""
    is_cached: bool = dataclasses.field(default=False, compare=False)


_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def versions_and_flags() -> dict[str, str]:
    """Return the versions of the compiler and JAX, and the environment variables that set flags of the compiler."""
    return versions() | {name: os.environ[name] for name in _FLAGS if os.environ.get(name)}


def versions() -> dict[str, str]:
    """Return the installed versions of libtpu, jax, jaxlib and keras, by name."""
    installed = {}
    for name in ("libtpu", "jax", "jaxlib", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed

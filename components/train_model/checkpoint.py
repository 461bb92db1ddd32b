"""Checkpoints at step level: every variable, the place in the data, and the history, in one file that appears whole."""

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from components import storage
from components.errors import InputError

CHECKPOINT_FILE = "checkpoint.npz"
BEST_FILE = "best.npz"
_PROGRESS = "progress"


@dataclasses.dataclass
class TrainingProgress:
    """The progress of a training.

    Attributes:
        identity: Facts that must be equal for a checkpoint to be continued: parameters, data set and kind of device.
        epoch: Epochs finished.
        step: Steps finished within the epoch after these.
        seconds: Training time so far.
        best_epoch: Epoch (from 1) with the lowest validation loss so far, 0 before the first.
        best_loss: That loss.
        history: One mapping per finished epoch.
        batch_size: Examples of a step, of all replicas together.
        start_seconds: Seconds of `seconds` in which sessions compiled and made their first step.
        waited_seconds: Seconds of `seconds` in which they waited for input and checkpoints after that.
        end_seconds: Seconds at the end of epochs, beside `seconds`, in which they waited for checkpoints.
        saved_at: Moment that it tells of, in seconds since 1970; 0 where an older one does not say.
    """

    identity: str
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    best_epoch: int = 0
    best_loss: float | None = None
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    batch_size: int = 0
    start_seconds: float = 0.0
    waited_seconds: float = 0.0
    end_seconds: float = 0.0
    saved_at: float = 0.0


def _array(variable: Any) -> np.ndarray:
    import keras

    # By way of a tensor: a variable mirrored on several devices is no array.
    return np.asarray(keras.ops.convert_to_tensor(variable))


def snapshot(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a copy of every variable's value."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        # All copies off the device at once. On a CPU there are none, and a value's memory is the next step's too.
        values = jax.device_get({name: variable.value for name, variable in variables.items()})
        return {name: np.array(value) for name, value in values.items()}
    return {name: np.array(_array(variable)) for name, variable in variables.items()}


def all_finite(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether no value is NaN or infinite."""
    return all(bool(np.isfinite(array).all()) for array in arrays.values() if array.dtype.kind == "f")


class Writer:
    """Writes in the background, one job at a time: the training goes on while a bucket takes a checkpoint in.

    A job that fails raises where the next one is given, or the end is waited for.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Wait for the job before, and do this one from now on."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait until all is written; raises what went wrong."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """End the thread when its job is done, whatever comes of that."""
        self._pool.shutdown()


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], progress: TrainingProgress | None = None) -> None:
    """Write arrays, and the progress with them, as one file that appears whole or not at all."""
    buffer = io.BytesIO()
    extra = {} if progress is None else {_PROGRESS: np.array(json.dumps(dataclasses.asdict(progress)))}
    np.savez(buffer, **{**arrays, **extra})  # type: ignore[arg-type]
    storage.write_bytes(path, buffer.getvalue())


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], TrainingProgress | None]:
    """Load what `save_arrays` wrote.

    Raises:
        InputError: If the file is damaged.
    """
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Cannot continue from {path}: the checkpoint is damaged ({error}). Delete the folder {path.parent} "
            "to train from the start."
        ) from error
    raw = arrays.pop(_PROGRESS, None)
    return arrays, None if raw is None else TrainingProgress(**json.loads(str(raw)))


def restore(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Assign saved values.

    Raises:
        ValueError: If names differ: the checkpoint is of another model.
    """
    if variables.keys() != arrays.keys():
        raise ValueError(f"Checkpoint of another model: {sorted(variables.keys() ^ arrays.keys())[:4]} differ.")
    for name, variable in variables.items():
        variable.assign(_placed(arrays[name], variable))


def _placed(array: np.ndarray, variable: Any) -> Any:
    """Return a value for a variable that lies on the devices of several hosts: no host has to wait for another."""
    import keras

    if keras.backend.backend() != "jax":
        return array
    import jax

    if jax.process_count() == 1:
        return array
    value = array.astype(variable.dtype)
    return jax.make_array_from_callback(value.shape, variable.value.sharding, lambda index: value[index])

"""Checkpoints at step level: every variable, the place in the data, and the history, in one file that appears whole.

Where weights lie in parts on several hosts, the file names theirs: see `parts`.
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.train_model.parts import (
    Array,
    ArrayInParts,
    PartsManifest,
    bounds_of,
    manifest_as_json,
    manifest_of_json,
    open_parts,
)

CHECKPOINT_FILE = "checkpoint.npz"
BEST_FILE = "best.npz"
_PROGRESS, _PARTS = "progress", "parts"


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


def snapshot(variables: Mapping[str, Any]) -> dict[str, Array]:
    """Return a copy of every variable's value; of one that lies in parts on several hosts, of this host's parts."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        # All copies off the device at once. On a CPU there are none, and a value's memory is the next step's too.
        values = {name: variable.value for name, variable in variables.items()}
        copies = jax.device_get({name: value if _is_here(value) else _parts(value) for name, value in values.items()})
        return {
            name: np.array(copy)
            if _is_here(values[name])
            else ArrayInParts(values[name].shape, values[name].dtype, {at: np.array(part) for at, part in copy.items()})
            for name, copy in copies.items()
        }
    return {name: np.array(_array(variable)) for name, variable in variables.items()}


def _is_here(value: Any) -> bool:
    return bool(value.is_fully_addressable or value.is_fully_replicated)


def _parts(value: Any) -> dict[Any, Any]:
    return {bounds_of(part.index, value.shape): part.data for part in value.addressable_shards}


def all_finite(arrays: Mapping[str, Array]) -> bool:
    """Return whether no value is NaN or infinite."""
    return all(
        array.is_finite() if isinstance(array, ArrayInParts) else bool(np.isfinite(array).all())
        for array in arrays.values()
        if array.dtype.kind == "f"
    )


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


def save_arrays(
    path: Path,
    arrays: Mapping[str, Array],
    progress: TrainingProgress | None = None,
    manifest: PartsManifest | None = None,
) -> None:
    """Write arrays, the progress with them and the manifest of parts, as one file that appears whole or not at all."""
    buffer = io.BytesIO()
    extra = {} if progress is None else {_PROGRESS: np.array(json.dumps(dataclasses.asdict(progress)))}
    if manifest is not None:
        extra[_PARTS] = np.array(manifest_as_json(manifest))
    whole = {name: array for name, array in arrays.items() if not isinstance(array, ArrayInParts)}
    np.savez(buffer, **{**whole, **extra})  # type: ignore[arg-type]
    storage.write_bytes(path, buffer.getvalue())


def manifest_of(path: Path) -> PartsManifest | None:
    """Return the manifest of parts in a file that `save_arrays` wrote, if there is one."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        return manifest_of_json(str(file[_PARTS])) if _PARTS in file.files else None


def load_arrays(path: Path) -> tuple[dict[str, Array], TrainingProgress | None]:
    """Load what `save_arrays` wrote; parts are read when they are asked for.

    Raises:
        InputError: If the file is damaged.
    """
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays: dict[str, Array] = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Cannot continue from {path}: the checkpoint is damaged ({error}). Delete the folder {path.parent} "
            "to train from the start."
        ) from error
    raw, parts = arrays.pop(_PROGRESS, None), arrays.pop(_PARTS, None)
    if parts is not None:
        arrays |= open_parts(path.parent, manifest_of_json(str(parts)))
    return arrays, None if raw is None else TrainingProgress(**json.loads(str(raw)))


def restore(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Assign saved values.

    Raises:
        ValueError: If names differ: the checkpoint is of another model.
    """
    if variables.keys() != arrays.keys():
        raise ValueError(f"Checkpoint of another model: {sorted(variables.keys() ^ arrays.keys())[:4]} differ.")
    for name, variable in variables.items():
        variable.assign(_placed(arrays[name], variable))


def hold(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Give variables values in this host's memory, where a file can be written from them; no device has them then."""
    for name, variable in variables.items():
        # Keras has no public way to take a variable off its devices; to assign it would put it whole on one.
        variable._layout, variable._value = None, np.asarray(arrays[name])


def _placed(array: Array, variable: Any) -> Any:
    """Return a value for a variable that lies on the devices of several hosts: no host has to wait for another."""
    import keras

    if keras.backend.backend() != "jax":
        return array
    import jax

    if jax.process_count() == 1:
        return np.asarray(array)

    def part(index: Any) -> np.ndarray:
        return np.asarray(array[index]).astype(variable.dtype)

    return jax.make_array_from_callback(array.shape, variable.value.sharding, part)

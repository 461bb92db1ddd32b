"""Saves and restores checkpoints of a training run, at the end of an epoch or within it.

A checkpoint is one file with all variables, the position in the data and the history. The file is written atomically.

If weights are sharded over several hosts, each host also writes a file with its parts of the weights, and the
checkpoint lists these files; see `parts`.
"""

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, keras
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.train_model.checkpoints.parts import Array, ArrayInParts, PartsManifest, bounds_of, open_parts

CHECKPOINT_FILE = "checkpoint.npz"
BEST_FILE = "best.npz"
_PROGRESS, _PARTS = "progress", "parts"


@dataclasses.dataclass
class TrainingProgress:
    """Progress of a training run, over all its sessions.

    Attributes:
        identity: Digest of everything that must be the same in all sessions of a run, from `run_digest` with the
            argument `program`. A run continues only from a checkpoint with the same identity.
        epoch: Number of finished epochs.
        step: Number of finished steps of the current epoch.
        seconds: Training time so far, in seconds.
        best_epoch: Epoch (from 1) with the best value so far of the metric that `TrainParams.monitor` selects, or 0
            before the end of the first epoch.
        best_loss: Value of this metric in `best_epoch`, or None before the end of the first epoch.
        history: Metrics and durations of each finished epoch, by name.
        batch_size: Examples per step, summed over all replicas.
        start_seconds: Part of `seconds` up to the end of the first step of each session and of each stage. It includes
            compilation.
        waited_seconds: Part of `seconds` in which the host waited for input or checkpoints after the first step of each
            session.
        end_seconds: Seconds between epochs in which the host waited for checkpoints. They are not part of `seconds`.
        saved_at: Time when the checkpoint was saved, in seconds since 1970. 0 in checkpoints of older versions.
        step_counts: Histogram of step times, from `StepTimes.counts`. Empty in checkpoints of older versions.
        timed_on: Name of the devices on which the steps in `step_counts` were timed.
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
    step_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    timed_on: str = ""


def snapshot(variables: Mapping[str, Any]) -> dict[str, Array]:
    """Return a copy of each variable's value, by name.

    If a variable is sharded over hosts, only this host's parts are copied.
    """
    if keras.backend.backend() != "jax":
        # Convert to a tensor first: NumPy cannot read a variable that is mirrored on several devices.
        tensors = {name: keras.ops.convert_to_tensor(variable) for name, variable in variables.items()}
        return {name: np.array(np.asarray(tensor)) for name, tensor in tensors.items()}
    values = {name: variable.value for name, variable in variables.items()}
    # `device_get` starts all copies at once. On a CPU it copies nothing, and the next step would change the memory.
    copies = jax.device_get({name: _parts_here(value) for name, value in values.items()})
    return {
        name: ArrayInParts(values[name].shape, values[name].dtype, {at: np.array(part) for at, part in copy.items()})
        if isinstance(copy, dict)
        else np.array(copy)
        for name, copy in copies.items()
    }


def _parts_here(value: Any) -> Any:
    """Return the value of a variable if this host has all of it, otherwise this host's parts, by their bounds."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return value
    return {bounds_of(part.index, value.shape): part.data for part in value.addressable_shards}


def all_finite(arrays: Mapping[str, Array]) -> bool:
    """Return True if no floating-point array has a value that is NaN or infinite."""
    return all(
        array.is_finite() if isinstance(array, ArrayInParts) else bool(np.isfinite(array).all())
        for array in arrays.values()
        if array.dtype.kind in "fV"  # bfloat16 and the 8-bit floating-point types have kind V.
    )


class Writer:
    """A background thread that runs write jobs one at a time, so that training does not wait for slow storage.

    If a job fails, the next call of `submit` or `wait` raises its error.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Wait for the previous job, then start a new job."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait until the job is done. If the job failed, raise its error."""
        job = self._job
        self._job = None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait until the job is done, and end the thread. If the job failed, its error is ignored."""
        self._pool.shutdown()


def save_arrays(
    path: Path,
    arrays: Mapping[str, Array],
    progress: TrainingProgress | None = None,
    manifest: PartsManifest | None = None,
) -> None:
    """Write a checkpoint's arrays, and optionally its progress and manifest, atomically into one `.npz` file.

    Arrays that are sharded over hosts are left out, because each host writes its parts of them with `PartsWriter`. The
    manifest lists the files with these parts.
    """
    buffer = io.BytesIO()
    extra = {} if progress is None else {_PROGRESS: np.array(json.dumps(dataclasses.asdict(progress)))}
    if manifest is not None:
        extra[_PARTS] = np.array(json.dumps(dataclasses.asdict(manifest)))
    whole = {name: array for name, array in arrays.items() if not isinstance(array, ArrayInParts)}
    np.savez(buffer, **{**whole, **extra})  # type: ignore[arg-type]
    storage.write_bytes(path, buffer.getvalue())


def manifest_of(path: Path) -> PartsManifest | None:
    """Return the list of the hosts' part files from a checkpoint that `save_arrays` wrote.

    Return None if the checkpoint does not exist or has no such list.
    """
    return _read(path, _PARTS)[1] if path.is_file() else None


def load_arrays(path: Path) -> tuple[dict[str, Array], TrainingProgress | None]:
    """Load the arrays, by name, and the progress from a file that `save_arrays` wrote.

    The progress is None if the file does not contain it. Sharded arrays are read only when they are used.

    Raises:
        InputError: If the file is damaged.
    """
    arrays, parts, progress = _read(path)
    return {**arrays, **(open_parts(path.parent, parts) if parts else {})}, progress


def _read(path: Path, only: str = "") -> tuple[dict[str, Array], PartsManifest | None, TrainingProgress | None]:
    """Return the arrays, the manifest of parts and the progress in a file that `save_arrays` wrote.

    Args:
        path: The file.
        only: Name of the only entry to read. If empty, all entries are read. Entries that are not read are missing or
            None.

    Raises:
        InputError: If the file is damaged.
    """

    def read_entry(name: str, kind: Any) -> Any:
        return kind(**typed_json.decode(str(arrays.pop(name)).encode())) if name in arrays else None

    try:
        arrays: dict[str, Array] = {**read_arrays(path, only=only, is_own=True)}
        return arrays, read_entry(_PARTS, PartsManifest), read_entry(_PROGRESS, TrainingProgress)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"Cannot continue from {path}: the checkpoint is damaged ({error}). To train from the start, delete the "
            f"folder {path.parent}."
        ) from error


def restore(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Assign to each variable the saved array with the same name.

    Raises:
        ValueError: If the names differ, because the checkpoint belongs to another model.
    """
    if variables.keys() != arrays.keys():
        raise ValueError(
            f"The checkpoint belongs to another model: the variables {sorted(variables.keys() ^ arrays.keys())[:4]} "
            "differ. Use another checkpoint folder."
        )
    assign(list(variables.values()), [arrays[name] for name in variables])


def assign(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    """Assign arrays to variables, in order. Each value gets the sharding of its variable."""
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(_placed(array, variable))


def hold(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Replace the values of variables by NumPy arrays in host memory, so that Keras can save them to a file."""
    for name, variable in variables.items():
        # Keras cannot move a variable to host memory; `assign` would put the whole value on one device.
        variable._layout = None
        variable._value = np.asarray(arrays[name])


def _placed(array: Array, variable: Any) -> Any:
    """Return an array in a form that can be assigned to a variable.

    With several hosts, the result has the variable's sharding. The hosts do not wait for each other.
    """
    if keras.backend.backend() != "jax":
        return array
    if jax.process_count() == 1:
        return np.asarray(array)

    def part(index: Any) -> np.ndarray:
        return np.asarray(array[index]).astype(variable.dtype)

    return jax.make_array_from_callback(array.shape, variable.value.sharding, part)

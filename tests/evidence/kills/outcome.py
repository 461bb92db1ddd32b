"""What a step has left in a folder, as digests by the names of its files: everything but what a clock said."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Outcome = Mapping[str, str]

_TIMED = {
    "seconds",
    "first_step_seconds",
    "examples_per_second",
    "latency_ms",
    "latency_spread",
    "rate_spread",
    "created",
    "time",
    "sessions",
    "goodput",
    "paid_seconds",
    "ended",
    "host",
    "cached",
}
# By file, what depends on how fast this machine was, or on files that do.
_MEASURED = {
    "preflight.json": {"compile_seconds", "epoch", "cost", "feed_per_second", "summary", "advice", "timeout_seconds"},
    # And the price of the platform.
    "receipt.json": {"steps", "step_ms", "waiting", "peak_bytes", "start_up_seconds", "price"}
    | {"low_seconds", "high_seconds", "usd_per_hour", "price_source"},
    "history.jsonl": {"compute_seconds", "input_seconds", "checkpoint_seconds", "host_seconds"},
    "export.json": {"bytes"},  # The SavedModel's fingerprint has a number drawn anew, of as many digits as it takes.
    "version.json": {"files", "digest"},  # Other files' times are in them; whether they agree is checked apart.
}
# Named, not compared: pages and model cards of figures that stand in the JSON beside them, curves with the times of
# their points, and what TensorFlow says of a SavedModel.
_NAMED_ALONE = (".html", ".v2", "fingerprint.pb", "README.md")


def outcome(folder: Path, top: Path | None = None) -> Outcome:
    """Digests of the visible files below a folder, by their names in it; of one file, by its own name.

    Args:
        folder: A folder or a file; nothing if it is not there.
        top: The folder by whose path files may name each other.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else [folder]
    names = {path: path.relative_to(folder).as_posix() for path in files if path.is_file()}
    seen = {path: name for path, name in names.items() if not any(part.startswith(".") for part in name.split("/"))}
    return {_without_time(name): _digest(path, top or folder) for path, name in seen.items()}


def _without_time(name: str) -> str:
    """TensorBoard names its files by the second and the process."""
    parts = name.split("/")
    return "/".join([*parts[:-1], "events.v2"]) if parts[-1].startswith("events.out.tfevents") else name


def _digest(path: Path, top: Path) -> str:
    if path.name.endswith(_NAMED_ALONE):
        return "there"
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        dropped = _TIMED | _MEASURED.get(path.name, set())
        content = json.dumps([_plain(json.loads(line), dropped, str(top)) for line in lines], sort_keys=True).encode()
    elif path.suffix == ".h5":  # The file itself says when it was written.
        import h5py  # Not where Beam is.

        with h5py.File(path) as file:
            arrays: dict[str, np.ndarray] = {}
            file.visititems(
                lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        content = _of_arrays(arrays)
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            content = _of_arrays({name: archive[name] for name in archive.files})
    else:
        content = path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def _plain(value: Any, dropped: set[str], top: str) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one, dropped, top) for name, one in value.items() if name not in dropped}
    if isinstance(value, list):
        return [_plain(one, dropped, top) for one in value]
    return value.replace(top, "HERE") if isinstance(value, str) else value


def _of_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    return repr(
        [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]
    ).encode()


def differences(received: Outcome, expected: Outcome) -> list[str]:
    """The files that are missing, too many or other than expected."""
    return sorted(name for name in {*received, *expected} if received.get(name) != expected.get(name))

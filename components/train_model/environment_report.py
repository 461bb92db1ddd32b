"""What a training finds around it: user, rights in the bucket's mount, devices. Told where somebody asks for it.

Where the platform's documents leave open what a container finds there, `tpu-pipelines smoke` asks.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files import storage
from tpu_components.core.machines.device import Device, describe_host
from tpu_components.core.machines.hosts import tell_hosts

REPORT_VARIABLE = "TPU_PIPELINES_SURROUNDINGS_URI"  # Where to leave the report; nothing is done without it.
_DEVICE_FILES = ("accel*", "vfio/*")  # https://cloud.google.com/tpu/docs/run-in-container: those of TPU VMs.
_LOCKED_BYTES = 68_719_476_736_000  # As use-tpu#custom_container says it; `ulimit -l` counts in KiB.
_LIBRARIES = ("jax", "libtpu", "keras", "tensorflow", "tensorflow-cpu")


def raise_locked_memory() -> None:
    """Let this process lock as much memory as it may: a TPU's driver reads what a program has locked.

    What Google's documents ask for needs rights that a platform may not give; more than nothing is what is allowed.
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/use-tpu#custom_container
    """
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limit in (_LOCKED_BYTES, most):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            return


def leave_report(device: Device, folder: Path, result: Any, started: float) -> None:
    """Leave at the place that the environment names what the training found around it, if it names one.

    Args:
        device: Device that it trains on.
        folder: Folder that it writes to.
        result: Outcome of the training, a dataclass.
        started: When it began, in seconds since 1970.
    """
    if not (uri := os.environ.get(REPORT_VARIABLE, "")):
        return
    report = {
        "started": started,
        "ended": time.time(),
        "result": dataclasses.asdict(result),
        **describe_surroundings(device, folder),
    }
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "report.json"
            path.write_text(json.dumps(report))
            storage.upload(path, uri) if storage.is_remote(uri) else storage.write_json(Path(uri), report)
    except (InputError, PlatformError) as error:  # Whoever asks is told less; the training is as good.
        progress.say("train_model", f"could not tell of its surroundings: {error}")


def describe_surroundings(device: Device, folder: Path) -> dict[str, Any]:
    """Return user, devices, host, libraries, and what may be done in a folder, as JSON has them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "user": {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups()},
        "locked_memory_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],  # -1 is without limit.
        "device_files": {str(path): f"{path.stat().st_mode & 0o777:o}, {_access(path)}" for path in _device_files()},
        "devices": _devices(device),
        "hosts": {**tell_hosts(os.environ), "host name": socket.gethostname()},
        "host": {
            "name": describe_host(),
            "memory_bytes": memory,
            "free_disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        },
        "python": sys.version.split()[0],
        "libraries": dict(_versions()),
        "mount": {"folder": str(folder), **probe_folder(folder)},
    }


def _device_files() -> Iterator[Path]:
    for pattern in _DEVICE_FILES:
        yield from sorted(Path("/dev").glob(pattern))


def _access(path: Path) -> str:
    return "may be used" if os.access(path, os.R_OK | os.W_OK) else "may not be used"


def _devices(device: Device) -> list[str]:
    """Return the devices that the backend trains on, as it calls them."""
    if device.backend == "jax":
        import jax

        return [f"{chip.platform} {chip.device_kind}" for chip in jax.devices()]
    import tensorflow as tf

    return [str(chip.name) for chip in tf.config.list_logical_devices()]


def _versions() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def probe_folder(folder: Path) -> dict[str, str]:
    """Return what may be done in a folder: `yes`, or the system's error, for each thing; leaves nothing there.

    Example:
        >>> import tempfile
        >>> probe_folder(Path(tempfile.gettempdir()))["append"]
        'yes'
    """
    scratch = folder / f"probe-{os.getpid()}"
    file, other = scratch / "file", scratch / "other"

    def write() -> None:
        scratch.mkdir()
        file.write_text("one")

    def append() -> None:
        with open(file, "a") as stream:
            stream.write(", two")
        if file.read_text() != "one, two":
            raise OSError("what was appended is not there")

    def rename_folder() -> None:
        (scratch / "folder").mkdir()
        (scratch / "folder" / "file").write_text("one")
        (scratch / "folder").rename(scratch / "renamed")
        (scratch / "renamed" / "file").read_text()

    def link() -> None:
        os.link(file, scratch / "link")

    def lock() -> None:
        with open(file) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

    tried: dict[str, Callable[[], Any]] = {
        "write": write,
        "append": append,
        "replace": lambda: (other.write_text("other"), other.replace(file)),
        "rename a folder": rename_folder,
        "hard link": link,
        "chmod": lambda: file.chmod(0o600),
        "lock": lock,
    }
    answers = {name: _try(action) for name, action in tried.items()}
    shutil.rmtree(scratch, ignore_errors=True)
    return answers


def _try(action: Callable[[], Any]) -> str:
    try:
        action()
    except OSError as error:
        return error.strerror or str(error)
    return "yes"

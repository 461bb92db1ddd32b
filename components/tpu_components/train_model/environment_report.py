"""Writes the environment report of a training run.

The report contains the user, permissions in the mounted bucket, devices and library versions. It shows facts about a
platform that are missing in the platform's documentation. It is written only if the environment variable
TPU_PIPELINES_SURROUNDINGS_URI is set.
"""

import dataclasses
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, tf
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files import storage
from tpu_components.core.machines.device import Device, describe_host
from tpu_components.core.machines.hosts import tell_hosts

REPORT_VARIABLE = "TPU_PIPELINES_SURROUNDINGS_URI"  # Destination of the report. If unset, no report is written.
# Device files of TPU VMs, https://cloud.google.com/tpu/docs/run-in-container, and of NVIDIA's driver.
_DEVICE_FILES = ("accel*", "vfio/*", "nvidia*")
_LIBRARIES = ("jax", "libtpu", "keras", "tensorflow", "tensorflow-cpu")


def leave_report(device: Device, folder: Path, result: Any, started: float) -> None:
    """Write the environment report to the URI in TPU_PIPELINES_SURROUNDINGS_URI, if the variable is set.

    Args:
        device: Device on which the model was trained.
        folder: Folder to which training writes. Its permissions are part of the report.
        result: Result of the training run, a dataclass.
        started: Start of the training run, in seconds since 1970.
    """
    if not (uri := os.environ.get(REPORT_VARIABLE, "")):
        return
    report = {
        "started": started,
        "ended": time.time(),
        "result": dataclasses.asdict(result),
        **describe_environment(device, folder),
    }
    try:
        storage.write_file(uri, f"{json.dumps(report, indent=2)}\n".encode())
    except (InputError, PlatformError) as error:  # A missing report must not fail the training.
        progress.say("train_model", f"could not write the environment report: {error}")


def describe_environment(device: Device, folder: Path) -> dict[str, Any]:
    """Return the user, devices, host, library versions, and the operations that `folder` permits, as JSON values."""
    import resource  # Training on a platform runs on Linux.

    device_files = [path for pattern in _DEVICE_FILES for path in sorted(Path("/dev").glob(pattern))]
    installed = {package.name: package.version for package in metadata.distributions()}
    return {
        "user": {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups()},
        "locked_memory_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],  # -1: no limit.
        "device_files": {
            str(path): f"{path.stat().st_mode & 0o777:o}, "
            + ("may be used" if os.access(path, os.R_OK | os.W_OK) else "may not be used")
            for path in device_files
        },
        "devices": [f"{chip.platform} {chip.device_kind}" for chip in jax.devices()]
        if device.backend == "jax"
        else [str(chip.name) for chip in tf.config.list_logical_devices()],
        "hosts": {**tell_hosts(os.environ), "host name": socket.gethostname()},
        "host": {
            "name": describe_host(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "free_disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        },
        "python": sys.version.split()[0],
        "libraries": {name: installed[name] for name in _LIBRARIES if name in installed},
        "mount": {"folder": str(folder), **probe_folder(folder)},
    }


def probe_folder(folder: Path) -> dict[str, str]:
    """Try file operations in a folder. Return a mapping from each operation to `yes` or the system's error message.

    The function deletes the files that it creates.

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
            raise OSError("the content that was just appended is missing")

    def rename_folder() -> None:
        (scratch / "folder").mkdir()
        (scratch / "folder" / "file").write_text("one")
        (scratch / "folder").rename(scratch / "renamed")
        (scratch / "renamed" / "file").read_text()

    def lock() -> None:
        import fcntl

        with open(file) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

    tried: dict[str, Callable[[], Any]] = {
        "write": write,
        "append": append,
        "replace": lambda: (other.write_text("other"), other.replace(file)),
        "rename a folder": rename_folder,
        "hard link": lambda: os.link(file, scratch / "link"),
        "chmod": lambda: file.chmod(0o600),
        "lock": lock,
    }
    answers = {}
    for name, action in tried.items():
        try:
            action()
            answers[name] = "yes"
        except OSError as error:
            answers[name] = error.strerror or str(error)
    shutil.rmtree(scratch, ignore_errors=True)
    return answers

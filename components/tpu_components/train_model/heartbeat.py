"""Heartbeats: a process rewrites a file every few seconds to show that it is alive.

The pipeline step that waits for the hosts of a JobSet writes a heartbeat to the shared volume. If the heartbeat stops,
the hosts stop training and end. This is needed because a step that is killed cannot delete its JobSet, and Kubernetes
deletes a JobSet only together with its owner, which may be hours later.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import repeated
from tpu_components.core.files import storage

# Names the heartbeat file. Hosts train without a heartbeat if the variable is unset.
FILE_VARIABLE = "TPU_PIPELINES_FOLLOWED"
EVERY_SECONDS = 20.0
# A mounted bucket may show a file as it was a minute ago (gcsfuse docs/semantics.md). A step whose pod was lost is
# restarted after some minutes and writes the heartbeat again.
LONGEST_SECONDS = 300.0


@contextlib.contextmanager
def beating(file: Path) -> Iterator[None]:
    """Write a heartbeat to a file every 20 seconds while the `with` block runs. Delete the file when the block ends."""

    def beat() -> None:
        with contextlib.suppress(OSError, InputError):  # The volume may be unavailable, or full, for a moment.
            storage.write_json(file, time.time())

    beat()
    try:
        with repeated(beat, EVERY_SECONDS):
            yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def required() -> Iterator[None]:
    """While the `with` block runs, send SIGTERM to this process if the heartbeat is older than five minutes.

    Training then saves a checkpoint and ends. If the environment variable TPU_PIPELINES_FOLLOWED does not name a
    heartbeat file, nothing is checked.

    Raises:
        InputError: If the heartbeat is already older than five minutes when the block is entered. This can happen on a
            restarted host.
    """
    if not (name := os.environ.get(FILE_VARIABLE, "")):
        yield
        return
    last = time.time()  # Used until the file can be read.

    def has_stopped() -> bool:
        nonlocal last
        with contextlib.suppress(OSError, ValueError):  # Missing, or half written.
            last = float(json.loads(Path(name).read_text()))
        return time.time() - last > LONGEST_SECONDS

    def end_if_stopped() -> bool:
        if stopped := has_stopped():
            progress.say("train_model", "the step that started this training run has stopped, so the training run ends")
            os.kill(os.getpid(), signal.SIGTERM)
        return stopped

    if has_stopped():
        raise InputError(
            f"Cannot train: the step that started these hosts has not updated {name} for {time.time() - last:.0f} s. "
            "Run the step again. It restarts the hosts, and they continue from the checkpoint."
        )
    with repeated(end_if_stopped, EVERY_SECONDS):
        yield

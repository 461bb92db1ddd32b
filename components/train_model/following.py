"""Stops the hosts of a JobSet when the pipeline step that follows them is gone: nothing else would delete them.

The step writes a heartbeat to the shared volume. It may be killed without cleanup, and the owner of the JobSet lives on
for hours.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage

# File in which the step that follows says when it did last; a host trains without one.
FILE_VARIABLE = "TPU_PIPELINES_FOLLOWED"
_SAY_EVERY_SECONDS = 20.0
# A mounted bucket may show what was there a minute ago (gcsfuse docs/semantics.md), and a step whose pod was lost is
# there again after some minutes: it goes on following.
_LONGEST_SECONDS = 300.0


@contextlib.contextmanager
def followed(file: Path) -> Iterator[None]:
    """Write a heartbeat to a file every 20 seconds while the block runs."""

    def say() -> None:
        with contextlib.suppress(OSError):  # The volume may be away for a moment.
            storage.write_json(file, time.time())

    def keep_saying() -> None:
        while not is_over.wait(_SAY_EVERY_SECONDS):
            say()

    file.parent.mkdir(parents=True, exist_ok=True)
    say()
    is_over = threading.Event()
    thread = threading.Thread(target=keep_saying, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def while_followed() -> Iterator[None]:
    """Send SIGTERM to this process when the heartbeat is older than five minutes; nothing where no file is named.

    Training then saves a checkpoint. A host that is started again finds the old heartbeat and raises.

    Raises:
        InputError: If the heartbeat is older than five minutes at the beginning.
    """
    if not (name := os.environ.get(FILE_VARIABLE, "")):
        yield
        return
    last = time.time()  # Until the file can be read: it was there before this host was.

    def is_alone() -> bool:
        nonlocal last
        with contextlib.suppress(OSError, ValueError):  # Gone, or half written.
            last = float(json.loads(Path(name).read_text()))
        return time.time() - last > _LONGEST_SECONDS

    def watch() -> None:
        while not is_over.wait(_SAY_EVERY_SECONDS):
            if is_alone():
                progress.say("train_model", "the step that follows this training is gone: it ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    if is_alone():
        raise InputError(
            f"Cannot train: the step that started these hosts has not followed them for {time.time() - last:.0f} s, as "
            f"{name} says. Run the step again; it starts them anew, and they continue from the checkpoint."
        )
    is_over = threading.Event()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

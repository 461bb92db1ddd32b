"""SIGTERM, a platform's word that a step has to end: at once, or once a training has saved where it stands.

The first process of a container does not get a signal that it has not asked for, so a step that does not ask would
compute on until it is killed.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

# As a shell tells of a process that SIGTERM ended. Codes from 128 on are for the platform to start again, those below
# are the program's own failures: https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
EXIT_CODE = 128 + signal.SIGTERM
# Kubernetes kills 30 s after SIGTERM where a pod does not say otherwise:
# https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
_GRACE_SECONDS = 25.0


class Terminated(SystemExit):
    """End of a process that SIGTERM asked for, or the loss of a host that it works with: another start continues.

    It is no Exception, so nobody takes it for an error of what runs.

    Attributes:
        exit_code: Exit code of the process.
    """

    def __init__(
        self, exit_code: int = EXIT_CODE, words: str = "ended by SIGTERM; run the same step again to continue"
    ) -> None:
        super().__init__(exit_code)
        self.exit_code, self._words = exit_code, words

    def __str__(self) -> str:
        return self._words


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """End the block where SIGTERM comes, by raising `Terminated` in it: whatever is open is closed and removed.

    If that takes longer than a platform waits, as within a library that does not return, the process ends without.
    Does nothing outside of the main thread, which alone may ask for signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    is_over = threading.Event()
    threading.Thread(target=_end_late, args=(reading, is_over), daemon=True).start()
    others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(others)
        is_over.set()
        os.close(writing)


@contextlib.contextmanager
def put_off() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether SIGTERM has come, and let the block go on; it ends in `Terminated` then.

    Within `heard` alone: whoever calls a step as a function has signals of their own.
    """
    if signal.getsignal(signal.SIGTERM) is not _terminate:
        yield lambda: False
        return
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, _terminate)
    if asked.is_set():
        raise Terminated


def _terminate(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second one would break off what this one begins.
    raise Terminated


def _end_late(reading: int, is_over: threading.Event) -> None:
    """End the process when SIGTERM has come and the block is not over in time."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (number := pipe.read(1)) and number[0] != signal.SIGTERM:
            pass
    if number and not is_over.wait(_GRACE_SECONDS):
        os._exit(EXIT_CODE)

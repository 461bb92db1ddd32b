"""Handlers of SIGTERM, the signal with which platforms stop a step.

The step ends at once, or after training has saved a checkpoint.

The first process of a container receives only signals for which it has a handler. Without a handler, a step would run
until it is killed.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# The exit code that shells report for a process that SIGTERM ended. Platforms restart a process after codes from
# 128 on; lower codes are failures of the program: https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
EXIT_CODE = 128 + signal.SIGTERM
# Kubernetes kills a container 30 s after SIGTERM, unless the pod sets another grace period:
# https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
_GRACE_SECONDS = 25.0
_LOOK_EVERY_SECONDS = 0.5


class Terminated(SystemExit):
    """Exception that ends the process after SIGTERM or after the loss of another host.

    If the step is started again, it continues its unfinished work.

    This class is not derived from `Exception`, so `except Exception` does not catch it.

    Attributes:
        exit_code: Exit code of the process.
    """

    def __init__(
        self,
        exit_code: int = EXIT_CODE,
        words: str = "The process ended because of SIGTERM. Run the same step again to continue.",
    ) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self._words = words

    def __str__(self) -> str:
        return self._words


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Raise `Terminated` in the `with` block on SIGTERM, so that files are closed and temporary files are removed.

    If the clean-up takes longer than 25 s, for example because a library call does not return, the process exits
    without it. Only the main thread can handle signals, so in any other thread this function has no effect.
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
    """Defer SIGTERM to the end of the `with` block. Yield a function that returns whether SIGTERM has arrived.

    If SIGTERM has arrived, `Terminated` is raised at the end of the block.

    This function has an effect only in the `with` block of `heard`. A program that calls a step as a function does not
    use `heard`, because it handles signals itself.
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second SIGTERM would interrupt the cleanup.
    raise Terminated


def _end_late(reading: int, is_over: threading.Event) -> None:
    """End the process if the block of `heard` is still running 25 s after SIGTERM.

    Args:
        reading: File descriptor of the pipe to which Python writes the numbers of signals.
        is_over: Event that is set at the end of the block.
    """
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (number := pipe.read(1)) and number[0] != signal.SIGTERM:
            pass
    if number and not is_over.wait(_GRACE_SECONDS):
        os._exit(EXIT_CODE)


def end_with(pid: int) -> None:
    """End this process soon after the process with the ID `pid` has ended, for example its parent process."""

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)  # Sends nothing; only checks whether the process exists.
                time.sleep(_LOOK_EVERY_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

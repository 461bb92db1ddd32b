"""A lock for functions that change state of the whole process: its output, environment or current folder."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tpu_components.core.base.progress import is_quiet
from tpu_components.core.base.terminal import in_one_line

P = ParamSpec("P")
T = TypeVar("T")
# Reentrant, because decorated functions call each other.
_TURN = threading.RLock()


def in_turn(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function wait while another thread of the process runs a function with this decorator.

    Runs, checks and predictions redirect `print` and file descriptors, set environment variables and configure
    kfp.local, which all threads of a process share. Because calls wait, a program may start runs from several
    threads; the runs execute one after another. To execute runs in parallel, use processes.
    """

    @functools.wraps(function)
    def wait_and_call(*arguments: P.args, **options: P.kwargs) -> T:
        if not _TURN.acquire(blocking=False):
            if not is_quiet():
                print(
                    in_one_line(f"hint: {function.__name__} waits for another thread of this process"), file=sys.stderr
                )
            _TURN.acquire()
        try:
            return function(*arguments, **options)
        finally:
            _TURN.release()

    return wait_and_call

"""Progress display for long work. On a terminal, it is a bar with the rate and the remaining time.

Without a terminal, it is a line every 5 s. Several processes can share a terminal, and the current line may contain the
bar of another process. So `show_line` clears this line before it prints.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from tpu_components.core.base.terminal import in_one_line

# Set by the local runner, which reads a step's output through a pipe, if the runner itself has a terminal.
TERMINAL_VARIABLE = "TPU_PIPELINES_TERMINAL"
# `quiet` or `verbose`: set from a command's flags for its own process and the processes of the steps.
LOUDNESS_VARIABLE = "TPU_PIPELINES_LOUDNESS"
QUIET, VERBOSE = "quiet", "verbose"
_LINE_EVERY_SECONDS = 5.0
_SILENT_SECONDS = 20.0
_BAR_AFTER_SECONDS = 1.0  # Shorter work, for example an epoch, gets no bar.
_CLEAR_LINE = "\r\x1b[K"  # ECMA-48: to the first column, and erase to the end of the line.
_shown_at = [0.0]  # When this process last showed a line or moved a bar, by time.monotonic.


def is_quiet() -> bool:
    """Return whether this process prints only results and errors, as `--quiet` requests."""
    return os.environ.get(LOUDNESS_VARIABLE) == QUIET


def is_verbose() -> bool:
    """Return whether this process prints everything, including the messages of libraries, as `--verbose` requests."""
    return os.environ.get(LOUDNESS_VARIABLE) == VERBOSE


class Progress(Protocol):
    """Progress display to which the caller reports finished items. `track` yields it."""

    def update(self, count: int, note: str = "") -> None:
        """Add `count` finished items. A `note` is shown after the count and the rate."""


class _Lines:
    def __init__(self, step: str, total: int, unit: str) -> None:
        self._step = step
        self._total = total
        self._unit = unit
        self._done = 0
        self._start = self._last = time.monotonic()

    def update(self, count: int, note: str = "") -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            rate = self._done / (now - self._start)
            left = (self._total - self._done) / rate if rate else 0.0
            say(
                self._step,
                f"{self._done:,}/{self._total:,} {self._unit}, {rate:,.0f} {self._unit}/s, {left:,.0f} s left"
                + (f", {note}" if note else ""),
            )


class _Bar:
    """A bar on a terminal."""

    def __init__(self, step: str, total: int, unit: str, terminal: TextIO) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            desc=step,
            unit=f" {unit}",
            unit_scale=True,
            file=terminal,
            leave=False,
            dynamic_ncols=True,
            delay=_BAR_AFTER_SECONDS,
        )

    def update(self, count: int, note: str = "") -> None:
        _shown_at[0] = time.monotonic()
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()


def say(step: str, message: str) -> None:
    """Print the name of the step and a message as a line on stderr. If `is_quiet` returns True, nothing is printed."""
    if is_quiet():
        return
    show_line(f"[{step}] {message}")


def show_line(text: str) -> None:
    """Print a line on stderr. On a terminal, the line replaces the progress bar, which is drawn again below it."""
    _shown_at[0] = time.monotonic()
    is_terminal = sys.stderr.isatty() and _has_width(sys.stderr) and os.environ.get("TERM") != "dumb"
    if is_terminal:
        sys.stderr.write(_CLEAR_LINE)  # It stays in the buffer until the line is complete.
    print(in_one_line(text), file=sys.stderr, flush=True)


class Heartbeat:
    """A message that a step is still running, for times when the process shows nothing else."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._start = time.monotonic()

    def beat(self) -> None:
        """Print the message if the process has shown nothing for 20 s."""
        now = time.monotonic()
        if now - max(self._start, _shown_at[0]) >= _SILENT_SECONDS:
            say(self._step, f"still running, {now - self._start:,.0f} s after its start")


@contextlib.contextmanager
def repeated(action: Callable[[], Any], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` in a background thread during the `with` block.

    The calls end when `action` returns True.
    """
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds) and not action():
            pass

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def never_silent(step: str) -> Iterator[None]:
    """Print that a step has started and, during the `with` block, that it is still running.

    The second message is printed whenever the process has shown nothing else for 20 s.
    """
    say(step, "started")
    with repeated(Heartbeat(step).beat, 1.0):
        yield


def _has_width(terminal: TextIO) -> bool:
    """Return whether the width of a terminal is known. On a terminal of unknown width, a bar would stay empty."""
    try:
        return os.get_terminal_size(terminal.fileno()).columns > 0
    except OSError:
        return False


@contextlib.contextmanager
def _terminal() -> Iterator[TextIO | None]:
    if sys.stderr.isatty():
        yield sys.stderr if _has_width(sys.stderr) else None
    elif os.environ.get(TERMINAL_VARIABLE):
        try:
            terminal = open("/dev/tty", "w")  # noqa: SIM115 (closed below; opening may fail)
        except OSError:
            yield None
        else:
            with terminal:
                yield terminal if _has_width(terminal) else None
    else:
        yield None


@contextlib.contextmanager
def track(step: str, total: int, unit: str) -> Iterator[Progress]:
    """Show progress through `total` items during the `with` block. If `is_quiet` returns True, nothing is shown."""
    with _terminal() as terminal:
        if terminal is None or is_quiet():
            yield _Lines(step, total, unit)
            return
        with contextlib.closing(_Bar(step, total, unit, terminal)) as bar:
            yield bar

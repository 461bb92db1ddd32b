"""Shows the progress of long work: a bar with rate and remaining time on a terminal, else a line every 5 s."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

from tpu_components.core.base.terminal import in_one_line

# Set by the local runner, which reads a step's output through a pipe, when it has a terminal of its own.
TERMINAL_VARIABLE = "TPU_PIPELINES_TERMINAL"
# `quiet` or `verbose`: set from a command's flags for its own process and the processes of the steps.
LOUDNESS_VARIABLE = "TPU_PIPELINES_LOUDNESS"
QUIET, VERBOSE = "quiet", "verbose"
_LINE_EVERY_SECONDS = 5.0


def is_quiet() -> bool:
    """Return whether only results and errors are printed."""
    return os.environ.get(LOUDNESS_VARIABLE) == QUIET


def is_verbose() -> bool:
    """Return whether everything is printed, messages of libraries included."""
    return os.environ.get(LOUDNESS_VARIABLE) == VERBOSE


class Progress(Protocol):
    """Counts finished items."""

    def update(self, count: int, note: str = "") -> None:
        """Add `count` finished items; `note` is shown after the count and the rate."""


class _Lines:
    def __init__(self, step: str, total: int, unit: str) -> None:
        self._step, self._total, self._unit = step, total, unit
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
        )

    def update(self, count: int, note: str = "") -> None:
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()


def say(step: str, message: str) -> None:
    """Print a line, prefixed with the name of the step, on stderr, unless `is_quiet`."""
    if is_quiet():
        return
    print(in_one_line(f"[{step}] {message}"), file=sys.stderr, flush=True)


def _has_width(terminal: TextIO) -> bool:
    """Return whether the width of a terminal is known; without it, a bar would stay empty."""
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
    """Show progress through `total` items while the block runs, unless `is_quiet`."""
    with _terminal() as terminal:
        if terminal is None or is_quiet():
            yield _Lines(step, total, unit)
            return
        with contextlib.closing(_Bar(step, total, unit, terminal)) as bar:
            yield bar

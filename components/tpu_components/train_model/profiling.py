"""Measures the waiting times of the host during training, and profiles a few steps for TensorBoard."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.frameworks import jax, tf
from tpu_components.train_model.result import STEP

PROFILES = "plugins/profile"  # Folder below the log directory, expected by TensorBoard's plugin.
COMPUTE, INPUT, HOST, CHECKPOINT = "compute", "input", "host", "checkpoint"
_WAITS = (INPUT, CHECKPOINT)


class Stopwatch:
    """Measures how long the host waits for each kind of work. Time outside of `measure` blocks counts as `host`.

    Args:
        kinds: What the host waits for, measured separately: `compute`, `input`, `checkpoint`.

    Attributes:
        kinds: The kinds that are passed to the constructor, and `host`.
        waited_seconds: Seconds in which the host waited for `input` or `checkpoint` since the last call of
            `take_waited`. `take` does not reset this value.
    """

    def __init__(self, *kinds: str) -> None:
        self.kinds = (*kinds, HOST)
        self._seconds = dict.fromkeys(self.kinds, 0.0)
        self._kind = HOST
        self._since = time.monotonic()
        self.waited_seconds = 0.0

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Add the time of a `with` block to the total of `kind`, without the time of nested `measure` blocks."""
        self._charge()
        outer = self._kind
        self._kind = kind
        try:
            yield
        finally:
            self._charge()
            self._kind = outer

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call of `take`, by kind, including `host`. The sum is the elapsed time."""
        self._charge()
        taken = self._seconds
        self._seconds = dict.fromkeys(self.kinds, 0.0)
        return taken

    def take_waited(self) -> float:
        """Return `waited_seconds` and reset it to 0."""
        taken = self.waited_seconds
        self.waited_seconds = 0.0
        return taken

    def _charge(self) -> None:
        now = time.monotonic()
        self._seconds[self._kind] += now - self._since
        if self._kind in _WAITS:
            self.waited_seconds += now - self._since
        self._since = now


class StepProfile:
    """Profiles a few training steps. The first step is left out, because it compiles the model.

    An object of this class stands in for the epoch's progress bar, and counts steps through the bar's updates.

    Args:
        num_steps: Number of steps to profile. 0 disables the profile. A profile ends with its epoch at the latest.
        batch_size: Examples per step.
        log_dir: TensorBoard's log directory. The profile is written there, to `plugins/profile/TIME/HOST.xplane.pb`.
        start: Function that starts the backend's profiler with a log directory.
        stop: Function that stops the profiler.
    """

    def __init__(
        self,
        num_steps: int,
        batch_size: int,
        log_dir: Path,
        start: Callable[[str], Any],
        stop: Callable[[], Any],
    ) -> None:
        self._examples_left = num_steps * batch_size
        self._log_dir = log_dir
        self._start = start
        self._stop = stop
        self._is_compiled = self._is_on = False

    @contextlib.contextmanager
    def watching(self, bar: progress.Progress, num_examples: int) -> Iterator[progress.Progress]:
        """Profile while the `with` block trains an epoch. Yield a progress bar to update in place of `bar`.

        Args:
            bar: Progress bar of the epoch.
            num_examples: Number of examples on which the block trains.
        """
        self._bar = bar
        self._epoch_left = num_examples
        self._begin()
        try:
            yield self
        finally:
            self._end()

    def update(self, count: int, note: str = "") -> None:
        """Advance the progress bar by `count` examples, and show `note` next to it.

        The first call starts the profile, after the step that compiles the program. The profile stops `num_steps` steps
        later.
        """
        self._bar.update(count, note)
        self._epoch_left -= count
        if self._is_on:
            self._examples_left -= count
            if self._examples_left <= 0:
                self._end()
        self._is_compiled = True
        self._begin()

    def _begin(self) -> None:
        if self._is_compiled and not self._is_on and self._examples_left > 0 and self._epoch_left > 0:
            self._start(str(self._log_dir))
            self._is_on = True

    def _end(self) -> None:
        if self._is_on:
            self._stop()
            self._is_on, self._examples_left = False, 0
            progress.say(STEP, f"a profile of a few steps was written to {self._log_dir / PROFILES}")


def profiler(backend: str) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Return the functions that start and stop a backend's profiler."""
    if backend == "jax":
        return jax.profiler.start_trace, jax.profiler.stop_trace
    return tf.profiler.experimental.start, tf.profiler.experimental.stop

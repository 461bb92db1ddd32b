"""Profile of a few training steps for TensorBoard: a timeline of device and host."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tpu_components.core.base import progress

PROFILES = "plugins/profile"  # Folder below the log directory, expected by TensorBoard's plugin.
_STEP = "train_model"


class StepProfile:
    """Profiles a number of steps after the first, which compiles. It counts steps by the updates of the progress bar.

    Args:
        num_steps: Steps to profile; 0 disables the profile. A profile ends with its epoch.
        batch_size: Examples per step.
        log_dir: TensorBoard's log directory; gets `plugins/profile/TIME/HOST.xplane.pb`.
        start: Starts the backend's profiler with a log directory.
        stop: Stops the profiler.
    """

    def __init__(
        self,
        num_steps: int,
        batch_size: int,
        log_dir: Path,
        start: Callable[[str], None],
        stop: Callable[[], None],
    ) -> None:
        self._examples_left, self._log_dir = num_steps * batch_size, log_dir
        self._start, self._stop = start, stop
        self._is_compiled = self._is_on = False

    @contextlib.contextmanager
    def watching(self, bar: progress.Progress, num_examples: int) -> Iterator[progress.Progress]:
        """Profile during an epoch of `num_examples`. Yields a progress bar to update in place of `bar`."""
        self._bar, self._epoch_left = bar, num_examples
        self._begin()
        try:
            yield self
        finally:
            self._end()

    def update(self, count: int, note: str = "") -> None:
        """Add a number of trained examples; starts or stops the profile when it is time."""
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
            progress.say(_STEP, f"a profile of a few steps is in {self._log_dir / PROFILES}")


def profiler(backend: str) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Return the functions that start and stop a backend's profiler."""
    if backend == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop

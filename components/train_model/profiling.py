"""A profile of a few steps of a training, for TensorBoard: what the device and the host did when."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tpu_components.core.base import progress

PROFILES = "plugins/profile"  # Where TensorBoard's plugin looks for them, below the folder of the curves.
_STEP = "train_model"


class StepProfile:
    """Profiles some steps that come after the first, which is compiled; what a loop tells of its progress says when.

    Args:
        num_steps: Steps to profile; 0 is none. Where an epoch ends before, it has its steps alone.
        batch_size: Examples of a step.
        log_dir: Folder of TensorBoard; gets `plugins/profile/TIME/HOST.xplane.pb`.
        start: Begins a profile in that folder; the backend's, by default.
        stop: Ends it.
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
        """Follow the progress through an epoch of so many examples; gives what to tell of it, in the place of `bar`."""
        self._bar, self._epoch_left = bar, num_examples
        self._begin()
        try:
            yield self
        finally:
            self._end()

    def update(self, count: int, note: str = "") -> None:
        """Add examples that were trained on."""
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
    """Return how a backend begins and ends a profile."""
    if backend == "jax":
        import jax

        return jax.profiler.start_trace, jax.profiler.stop_trace
    import tensorflow as tf

    return tf.profiler.experimental.start, tf.profiler.experimental.stop

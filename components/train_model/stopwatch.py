"""Host-side time of a training, by kind of wait."""

import contextlib
import time
from collections.abc import Iterator

COMPUTE, INPUT, HOST, CHECKPOINT = "compute", "input", "host", "checkpoint"
_WAITS = (INPUT, CHECKPOINT)


class Stopwatch:
    """Measures seconds by what the host waits for. Time outside of `measure` counts as `host`.

    Args:
        kinds: Kinds to measure, besides `host`.

    Attributes:
        waited_seconds: Seconds of input and checkpoints; `take` does not reset it.
    """

    def __init__(self, *kinds: str) -> None:
        self.kinds = (*kinds, HOST)
        self._seconds = dict.fromkeys(self.kinds, 0.0)
        self._kind, self._since = HOST, time.monotonic()
        self.waited_seconds = 0.0

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Count the time of a `with` block to a kind, without nested `measure` blocks."""
        self._charge()
        outer, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._charge()
            self._kind = outer

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, by kind. Their sum is the elapsed time."""
        self._charge()
        taken, self._seconds = self._seconds, dict.fromkeys(self.kinds, 0.0)
        return taken

    def _charge(self) -> None:
        now = time.monotonic()
        self._seconds[self._kind] += now - self._since
        if self._kind in _WAITS:
            self.waited_seconds += now - self._since
        self._since = now

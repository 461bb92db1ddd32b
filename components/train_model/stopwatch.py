"""Where the time of a training goes, as its host sees it."""

import contextlib
import time
from collections.abc import Iterator

COMPUTE, INPUT, HOST, CHECKPOINT = "compute", "input", "host", "checkpoint"
_WAITS = (INPUT, CHECKPOINT)


class Stopwatch:
    """Seconds by what the host waits for; what nobody measures is the host's own work.

    Args:
        kinds: Kinds that are measured; `host` is always.

    Attributes:
        waited_seconds: Seconds of input and checkpoints; counts on when the others are taken.
    """

    def __init__(self, *kinds: str) -> None:
        self.kinds = (*kinds, HOST)
        self._seconds = dict.fromkeys(self.kinds, 0.0)
        self._kind, self._since = HOST, time.monotonic()
        self.waited_seconds = 0.0

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Count the time of the block as of one kind, but for blocks within it."""
        self._charge()
        outer, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._charge()
            self._kind = outer

    def take(self) -> dict[str, float]:
        """Return the seconds since the last time, by kind; together they are all that have passed."""
        self._charge()
        taken, self._seconds = self._seconds, dict.fromkeys(self.kinds, 0.0)
        return taken

    def _charge(self) -> None:
        now = time.monotonic()
        self._seconds[self._kind] += now - self._since
        if self._kind in _WAITS:
            self.waited_seconds += now - self._since
        self._since = now

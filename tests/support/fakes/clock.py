"""A clock that stands still until somebody sleeps."""

import datetime
import threading


class Clock:
    """Time for a fake service and for what talks to it.

    Attributes:
        slept: How long, each time.
    """

    def __init__(self) -> None:
        self._time = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def now(self) -> datetime.datetime:
        """The time, in UTC; never the same twice, as in a service that does one thing after another."""
        with self._lock:
            self._time += datetime.timedelta(microseconds=1)
            return self._time

    def seconds(self) -> float:
        """The time, as `time.monotonic` tells it."""
        return self._time.timestamp()

    def sleep(self, seconds: float) -> None:
        """Let time pass, at once."""
        with self._lock:
            self.slept.append(seconds)
            self._time += datetime.timedelta(seconds=seconds)

"""A clock whose time only passes when code sleeps on it."""

import datetime
import threading


class Clock:
    """Time for a fake service and its clients.

    Attributes:
        slept: Durations of all calls of `sleep`.
    """

    def __init__(self) -> None:
        self._time = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def now(self) -> datetime.datetime:
        """Return the time, in UTC; each call returns a later time."""
        with self._lock:
            self._time += datetime.timedelta(microseconds=1)
            return self._time

    def seconds(self) -> float:
        """Return the time, like `time.monotonic`."""
        return self._time.timestamp()

    def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        with self._lock:
            self.slept.append(seconds)
            self._time += datetime.timedelta(seconds=seconds)

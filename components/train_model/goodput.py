"""Goodput: the share of the time that a training was paid for in which it trained, over all its sessions.

The terms are those of https://github.com/AI-Hypercomputer/ml-goodput-measurement, which keeps its records in Cloud
Logging: here they lie in a file beside the checkpoints.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from components import storage

SESSIONS_FILE = "sessions.json"
_SIGN_EVERY_SECONDS = 10.0


class Sessions:
    """The sessions of a training, each from its start to its last sign of life, of which it gives one now and then.

    Args:
        folder: Folder of the checkpoints.
        identity: Identity of the training; the sessions of another one do not count.
        started: Start of this session, in seconds since 1970.
        clock: Gives the time, in seconds since 1970.
    """

    def __init__(self, folder: Path, identity: str, started: float, clock: Callable[[], float] = time.time) -> None:
        self._path, self._identity, self._clock = folder / SESSIONS_FILE, identity, clock
        self._earlier = self._read()
        self._started = started

    def _read(self) -> list[list[float]]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self._path.read_text())
            if content["identity"] == self._identity:
                return [[float(start), float(end)] for start, end in content["sessions"]]
        return []

    @property
    def count(self) -> int:
        """Sessions so far, this one included."""
        return len(self._earlier) + 1

    @property
    def paid_seconds(self) -> float:
        """Seconds of all sessions; of one that was killed, up to its last sign of life."""
        return sum(end - start for start, end in self._earlier) + self._clock() - self._started

    def sign(self) -> None:
        """Give a sign of life."""
        sessions = [*self._earlier, [self._started, self._clock()]]
        storage.write_bytes(self._path, json.dumps({"identity": self._identity, "sessions": sessions}).encode())

    def goodput(self, trained_seconds: float) -> float:
        """Return the share of the time paid for that so many seconds are."""
        return trained_seconds / self.paid_seconds

    @contextlib.contextmanager
    def signed(self, is_writer: bool) -> Iterator[None]:
        """Give signs of life during the block, where this is the host that writes."""
        is_over = threading.Event()

        def sign_on() -> None:
            while True:
                with contextlib.suppress(OSError):  # The training matters more than its books.
                    self.sign()
                if is_over.wait(_SIGN_EVERY_SECONDS):
                    return

        if is_writer:
            threading.Thread(target=sign_on, daemon=True).start()
        try:
            yield
        finally:
            is_over.set()
            if is_writer:
                with contextlib.suppress(OSError):
                    self.sign()

"""Goodput: the share of the time that a training was paid for in which it trained, over all its sessions.

The terms are those of https://github.com/AI-Hypercomputer/ml-goodput-measurement, which keeps its records in Cloud
Logging: here they lie in a file beside the checkpoints.
"""

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage

SESSIONS_FILE = "sessions.json"
_SIGN_EVERY_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 0.5  # For the end of the first step, which is told at once.


@dataclasses.dataclass(frozen=True)
class PaidSeconds:
    """The seconds that a training was paid for, by what became of them, with the library's names for what is lost.

    Attributes:
        trained: Steps that are in the result. Their share of all is the goodput.
        start_up: Each session until its first step: TPU_INITIALIZATION, TRAINING_PREP, PROGRAM_STARTUP and
            UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME.
        waiting: After it, waiting for input and for checkpoints: DATA_LOADING, UNPRODUCTIVE_CHECKPOINT_SAVE_TIME.
        lost: After a session's last checkpoint, until it was killed: WASTED_PROGRESS_FROM_DISRUPTION.
        other: Validation and saving the model: OTHER; all that older books do not tell.
    """

    trained: float = 0.0
    start_up: float = 0.0
    waiting: float = 0.0
    lost: float = 0.0
    other: float = 0.0

    @property
    def goodput(self) -> float:
        """Share of all that trained."""
        return self.trained / (sum(dataclasses.astuple(self)) or 1.0)


@dataclasses.dataclass
class _Session:
    """A session, in seconds since 1970.

    Attributes:
        start: Its start.
        end: Its last sign of life.
        began: End of its first step; None if it made none.
        kept: Moment until which its steps are in the result; None if none are.
    """

    start: float
    end: float
    began: float | None = None
    kept: float | None = None

    @property
    def start_up_seconds(self) -> float:
        """Time until the first step; of a session that left a checkpoint and no word of that step, it is not known."""
        if self.began is None and self.kept is not None:
            return 0.0
        return max((self.end if self.began is None else self.began) - self.start, 0.0)

    @property
    def lost_seconds(self) -> float:
        if self.began is None:
            return 0.0
        return max(self.end - (self.began if self.kept is None else max(self.began, self.kept)), 0.0)


class Sessions:
    """The sessions of a training, each from its start to its last sign of life, of which it gives one now and then.

    A session knows its training's identity only when the model is built. Until then its settings tell whose it is: one
    that is killed before was paid for too.

    Args:
        folder: Folder of the checkpoints.
        settings: Digest of what is known of the training at once.
        started: Start of this session, in seconds since 1970.
        clock: Gives the time, in seconds since 1970.
    """

    def __init__(self, folder: Path, settings: str, started: float, clock: Callable[[], float] = time.time) -> None:
        self._path, self._settings, self._clock = folder / SESSIONS_FILE, settings, clock
        self._lock, self._is_withdrawn = threading.Lock(), False
        self._before: bytes | None = None  # The file as it was.
        self._books, self._early = self._read()
        self._earlier: list[_Session] = []
        self._now = _Session(started, started)
        self._identity: str | None = None
        self._first_step_at: Callable[[], float | None] = lambda: None

    def _read(self) -> tuple[dict[str, Any], list[_Session]]:
        """Return the books of the last training here, and the sessions that ended before they knew theirs."""
        books: dict[str, Any] = {}
        early: list[_Session] = []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            self._before = self._path.read_bytes()
            content = json.loads(self._before)
            spans = [(float(start), float(end)) for start, end in content["sessions"]]
            # Older books say nothing of a session's parts: of these nothing is start-up and nothing lost.
            steps = content.get("steps", [list(span) for span in spans])
            _sessions(spans, steps)
            books = {"identity": content["identity"], "sessions": spans, "steps": steps}
            if content.get("early", {}).get("settings") == self._settings:
                early = _sessions(content["early"]["sessions"], None)
        return books, early

    def claim(
        self, identity: str, continued_from: float | None, first_step_at: Callable[[], float | None] = lambda: None
    ) -> None:
        """Say of which training this session is.

        Args:
            identity: Identity of the training; the sessions of another one do not count.
            continued_from: Moment of the checkpoint that it goes on from, in seconds since 1970; 0 where that does not
                tell, None if there is none.
            first_step_at: Gives the moment at which this session's first step ended, in seconds since 1970.
        """
        with self._lock:
            books = self._books if self._books.get("identity") == identity else {"sessions": [], "steps": []}
            self._earlier = [*_sessions(books["sessions"], books["steps"]), *self._early]
            self._earlier.sort(key=lambda session: session.start)
            if continued_from:
                before = [session for session in self._earlier if session.start <= continued_from]
                for session in before[-1:]:
                    session.end = max(session.end, continued_from)
                    session.kept = max(session.kept or 0.0, continued_from)
            self._identity, self._first_step_at = identity, first_step_at

    @property
    def count(self) -> int:
        """Sessions so far, this one included."""
        return len(self._earlier) + 1

    def sign(self) -> None:
        """Give a sign of life."""
        with self._lock:
            if self._is_withdrawn:
                return
            now = self._look()
            if self._identity is None:
                books = {"identity": "", "sessions": [], "steps": [], **self._books}
                early = [*self._early, now]
            else:
                ours = [*self._earlier, now]
                books, early = {"identity": self._identity, **_lists(ours)}, []
            told = {**books, "early": {"settings": self._settings, "sessions": _lists(early)["sessions"]}}
            storage.write_bytes(self._path, json.dumps(told).encode())

    def _look(self) -> _Session:
        self._now.end, self._now.began = self._clock(), self._first_step_at()
        return self._now

    def paid_seconds(self, trained: float, waiting: float) -> PaidSeconds:
        """Return what became of the seconds of all sessions; of one that was killed, up to its last sign of life.

        Args:
            trained: Seconds of the steps that are in the result.
            waiting: Seconds in which these sessions waited after their first steps.
        """
        now = self._look()
        sessions = [*self._earlier, now]
        paid = sum(session.end - session.start for session in sessions)
        start_up = sum(session.start_up_seconds for session in sessions)
        lost = sum(session.lost_seconds for session in self._earlier)
        return PaidSeconds(trained, start_up, waiting, lost, max(paid - trained - start_up - waiting - lost, 0.0))

    @contextlib.contextmanager
    def signed(self, is_writer: bool) -> Iterator[None]:
        """Give signs of life during the block, where this is the host that writes."""
        is_over, was_there = threading.Event(), self._path.parent.is_dir()

        def sign_on() -> None:
            has_begun, signed = False, time.monotonic()
            while not is_over.wait(_SIGN_EVERY_SECONDS if has_begun else min(_LOOK_EVERY_SECONDS, _SIGN_EVERY_SECONDS)):
                begins = not has_begun and self._first_step_at() is not None
                if begins or time.monotonic() - signed >= _SIGN_EVERY_SECONDS:
                    self._try_to_sign()
                    signed = time.monotonic()
                has_begun = has_begun or begins

        if is_writer:
            self._try_to_sign()  # At once: what comes next may take long, and be killed.
            threading.Thread(target=sign_on, daemon=True).start()
        try:
            yield
        except InputError:
            is_over.set()
            if is_writer and self._identity is None:
                self._withdraw(was_there)
            raise
        finally:
            is_over.set()
            if is_writer:
                self._try_to_sign()

    def _withdraw(self, keep_folder: bool) -> None:
        """Leave the books as they were before: what was refused has paid for nothing but its refusal."""
        with self._lock, contextlib.suppress(OSError):
            self._is_withdrawn = True
            if self._before is not None:
                storage.write_bytes(self._path, self._before)
                return
            self._path.unlink(missing_ok=True)
            if not keep_folder:
                self._path.parent.rmdir()

    def _try_to_sign(self) -> None:
        with contextlib.suppress(OSError):  # The training matters more than its books.
            self.sign()


def _sessions(spans: Any, steps: Any) -> list[_Session]:
    parts = steps or [(None, None)] * len(spans)
    return [_Session(start, end, began, kept) for (start, end), (began, kept) in zip(spans, parts, strict=True)]


def _lists(sessions: list[_Session]) -> dict[str, list[list[float | None]]]:
    return {
        "sessions": [[session.start, session.end] for session in sessions],
        "steps": [[session.began, session.kept] for session in sessions],
    }

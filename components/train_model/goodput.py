"""Goodput: the share of paid time in which a run trained, over all its sessions.

The terms are those of https://github.com/AI-Hypercomputer/ml-goodput-measurement. That library stores its records in
Cloud Logging; this module stores them in a file beside the checkpoints.
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
_LOOK_EVERY_SECONDS = 0.5  # Until the first step has ended, which is recorded at once.


@dataclasses.dataclass(frozen=True)
class PaidSeconds:
    """Seconds that a training run was paid for, by use. Capitals are the library's names for unproductive time.

    Attributes:
        trained: Steps that are part of the result. Their share of the total is the goodput.
        start_up: Start of each session to the end of its first step: TPU_INITIALIZATION, TRAINING_PREP,
            PROGRAM_STARTUP and UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME.
        waiting: Waiting for input and checkpoints after first steps: DATA_LOADING, UNPRODUCTIVE_CHECKPOINT_SAVE_TIME.
        lost: Last checkpoint of a session to its end, if it was killed: WASTED_PROGRESS_FROM_DISRUPTION.
        other: Validation and saving the model: OTHER. Also time that a file of an older version does not classify.
    """

    trained: float = 0.0
    start_up: float = 0.0
    waiting: float = 0.0
    lost: float = 0.0
    other: float = 0.0

    @property
    def goodput(self) -> float:
        """Share of `trained` in the total, from 0 to 1."""
        return self.trained / (sum(dataclasses.astuple(self)) or 1.0)


@dataclasses.dataclass
class _Session:
    """One start of the training process. All times are in seconds since 1970.

    Attributes:
        start: Start of the session.
        end: Its last heartbeat.
        began: End of its first step; None if it has finished no step.
        kept: Time of the last checkpoint that a later session continued from; None if there is none.
    """

    start: float
    end: float
    began: float | None = None
    kept: float | None = None

    @property
    def start_up_seconds(self) -> float:
        """Seconds until the end of the first step; 0 if a checkpoint shows that it ended but not when."""
        if self.began is None and self.kept is not None:
            return 0.0
        return max((self.end if self.began is None else self.began) - self.start, 0.0)

    @property
    def lost_seconds(self) -> float:
        if self.began is None:
            return 0.0
        return max(self.end - (self.began if self.kept is None else max(self.began, self.kept)), 0.0)


class Sessions:
    """Records the sessions of a training run, each from its start to its last heartbeat, in a file.

    The identity of the run is known only when the model is built. Until then a digest of the settings identifies it, so
    that a session that is killed earlier is counted too.

    Args:
        folder: Folder of the checkpoints.
        settings: Digest of the settings that are known at the start.
        started: Start of this session, in seconds since 1970.
        clock: Returns the time, in seconds since 1970.
    """

    def __init__(self, folder: Path, settings: str, started: float, clock: Callable[[], float] = time.time) -> None:
        self._path, self._settings, self._clock = folder / SESSIONS_FILE, settings, clock
        self._lock, self._is_withdrawn = threading.Lock(), False
        self._before: bytes | None = None  # Content of the file before this session.
        self._stored, self._early = self._read()
        self._earlier: list[_Session] = []
        self._now = _Session(started, started)
        self._identity: str | None = None
        self._first_step_at: Callable[[], float | None] = lambda: None

    def _read(self) -> tuple[dict[str, Any], list[_Session]]:
        """Return the records of the last run in this folder, and the sessions that ended before `claim`."""
        stored: dict[str, Any] = {}
        early: list[_Session] = []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            self._before = self._path.read_bytes()
            content = json.loads(self._before)
            spans = [(float(start), float(end)) for start, end in content["sessions"]]
            # Files of older versions have no `steps`: their sessions count as without start-up and loss.
            steps = content.get("steps", [list(span) for span in spans])
            _sessions(spans, steps)
            stored = {"identity": content["identity"], "sessions": spans, "steps": steps}
            if content.get("early", {}).get("settings") == self._settings:
                early = _sessions(content["early"]["sessions"], None)
        return stored, early

    def claim(
        self, identity: str, continued_from: float | None, first_step_at: Callable[[], float | None] = lambda: None
    ) -> None:
        """Assign this session to a training run.

        Args:
            identity: Identity of the run; sessions of other runs are dropped.
            continued_from: Time of the checkpoint that this session continues from, in seconds since 1970; 0 if the
                checkpoint has no time, None if there is no checkpoint.
            first_step_at: Returns the time at which this session's first step ended, in seconds since 1970, or None.
        """
        with self._lock:
            stored = self._stored if self._stored.get("identity") == identity else {"sessions": [], "steps": []}
            self._earlier = [*_sessions(stored["sessions"], stored["steps"]), *self._early]
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
        """Record a heartbeat of this session in the file."""
        with self._lock:
            if self._is_withdrawn:
                return
            now = self._look()
            if self._identity is None:
                stored = {"identity": "", "sessions": [], "steps": [], **self._stored}
                early = [*self._early, now]
            else:
                ours = [*self._earlier, now]
                stored, early = {"identity": self._identity, **_lists(ours)}, []
            told = {**stored, "early": {"settings": self._settings, "sessions": _lists(early)["sessions"]}}
            storage.write_bytes(self._path, json.dumps(told).encode())

    def _look(self) -> _Session:
        self._now.end, self._now.began = self._clock(), self._first_step_at()
        return self._now

    def paid_seconds(self, trained: float, waiting: float) -> PaidSeconds:
        """Return the seconds of all sessions by use. A killed session counts to its last heartbeat.

        Args:
            trained: Seconds of the steps that are part of the result.
            waiting: Seconds in which the sessions waited for input and checkpoints after their first steps.
        """
        now = self._look()
        sessions = [*self._earlier, now]
        paid = sum(session.end - session.start for session in sessions)
        start_up = sum(session.start_up_seconds for session in sessions)
        lost = sum(session.lost_seconds for session in self._earlier)
        return PaidSeconds(trained, start_up, waiting, lost, max(paid - trained - start_up - waiting - lost, 0.0))

    @contextlib.contextmanager
    def signed(self, is_writer: bool) -> Iterator[None]:
        """Record a heartbeat every 10 seconds while the block runs, if this host is the writer."""
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
            self._try_to_sign()  # At once: the block may be killed before the next heartbeat.
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
        """Restore the file as it was before this session: a session that was refused does not count."""
        with self._lock, contextlib.suppress(OSError):
            self._is_withdrawn = True
            if self._before is not None:
                storage.write_bytes(self._path, self._before)
                return
            self._path.unlink(missing_ok=True)
            if not keep_folder:
                self._path.parent.rmdir()

    def _try_to_sign(self) -> None:
        with contextlib.suppress(OSError):  # A heartbeat that cannot be written must not fail the training.
            self.sign()


def _sessions(spans: Any, steps: Any) -> list[_Session]:
    parts = steps or [(None, None)] * len(spans)
    return [_Session(start, end, began, kept) for (start, end), (began, kept) in zip(spans, parts, strict=True)]


def _lists(sessions: list[_Session]) -> dict[str, list[list[float | None]]]:
    return {
        "sessions": [[session.start, session.end] for session in sessions],
        "steps": [[session.began, session.kept] for session in sessions],
    }

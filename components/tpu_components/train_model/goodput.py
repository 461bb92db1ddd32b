"""Measures the goodput of a training run: the share of the paid time spent on steps that led to the trained model.

The paid time is the time of all sessions of the run. A session is the life of one training process.

The terms come from https://github.com/AI-Hypercomputer/ml-goodput-measurement. That library stores its records in Cloud
Logging. This module stores its records in a file next to the checkpoints.
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
from tpu_components.core.base.progress import repeated
from tpu_components.core.files import storage

SESSIONS_FILE = "sessions.json"
EVERY_SECONDS = 10.0


@dataclasses.dataclass
class _Session:
    """A session: the life of one training process. All times are in seconds since 1970.

    Attributes:
        start: Start of the session.
        end: Time at which the entry of the session was last written.
        began: Time at which the session's first step ended, or None if no step has ended.
        kept: Time of the session's last checkpoint from which a later session continued, or None if no later session
            continued from a checkpoint of this session.
    """

    start: float
    end: float
    began: float | None = None
    kept: float | None = None

    @property
    def start_up_seconds(self) -> float:
        """Seconds from the session's start to the end of its first step, or to its last update if no step has ended.

        The value is 0 if the start-up time is unknown: this session wrote a checkpoint from which a later session
        continued, but was killed before it recorded the end of its first step.
        """
        if self.began is None and self.kept is not None:
            return 0.0
        return max((self.end if self.began is None else self.began) - self.start, 0.0)

    @property
    def lost_seconds(self) -> float:
        if self.began is None:
            return 0.0
        return max(self.end - (self.began if self.kept is None else max(self.began, self.kept)), 0.0)


class GoodputRecorder:
    """Records the sessions of a training run in a file.

    A session lasts from its start to the last update of its entry.

    Args:
        folder: Folder of the checkpoints.
        digest: Digest of parameters and data, from `run_digest`. Earlier sessions with another digest are ignored.
        started: Start of this session, in seconds since 1970.
        is_writer: Whether this host writes the file.
        clock: Function that returns the current time, in seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        digest: str,
        started: float,
        is_writer: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = folder / SESSIONS_FILE
        self._digest = digest
        self._clock = clock
        self._is_writer = is_writer
        self._lock = threading.Lock()
        self._is_accepted = False
        self._before: bytes | None = None  # Content of the file before this session.
        self._now = _Session(started, started)
        self._earlier = list[_Session]()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._before = self._path.read_bytes()
            self._earlier = self._read(json.loads(self._before))

    def _read(self, content: Any) -> list[_Session]:
        """Return the earlier sessions in a file's content if they have the same digest as this session.

        In the file, the digest has the key `settings`.

        Files of older versions can also be read. In some of them, `early` has two entries: the digest, and the sessions
        that ended before the model was built. The oldest files have neither `early` nor `steps`, so their sessions have
        no start-up time and no lost time.
        """
        early = content.get("early", {"settings": self._digest, "sessions": []})
        if content.get("settings", early["settings"]) != self._digest:
            return []
        spans = [(float(start), float(end)) for start, end in content["sessions"]]
        steps = content.get("steps", spans)
        earlier = [_Session(*span, *step) for span, step in zip(spans, steps, strict=True)]
        return earlier + [_Session(*span) for span in early["sessions"]]

    def forget(self) -> None:
        """Drop the earlier sessions, because the checkpoint in the folder belongs to another run."""
        self._earlier = []

    def accept(self, continued_from: float) -> None:
        """Record that this session begins to train. From then on, the session is counted even if it fails.

        Args:
            continued_from: Time of the checkpoint from which this session continues, in seconds since 1970, or 0 if
                there is no checkpoint, or the checkpoint has no time.
        """
        self._is_accepted = True
        for session in [session for session in self._earlier if session.start <= continued_from][-1:]:
            session.end = max(session.end, continued_from)
            session.kept = max(session.kept or 0.0, continued_from)

    def begin(self) -> None:
        """Record that this session's first step has ended."""
        self._now.began = self._clock()
        self.save()

    @property
    def first_step_seconds(self) -> float:
        """Seconds from the start of this session to the end of its first step, or 0 if that step has not ended."""
        return self._now.start_up_seconds if self._now.began is not None else 0.0

    @property
    def num_sessions(self) -> int:
        """Number of sessions so far, including this session."""
        return len(self._earlier) + 1

    def save(self) -> None:
        """Write all sessions to the file. The current time is written as the end of this session.

        Errors are ignored, because they must not make training fail.
        """
        with self._lock, contextlib.suppress(OSError, InputError):  # InputError if the disk is full.
            self._now.end = self._clock()
            sessions = [*self._earlier, self._now]
            content = {
                "settings": self._digest,
                "sessions": [[session.start, session.end] for session in sessions],
                "steps": [[session.began, session.kept] for session in sessions],
            }
            if self._is_writer:
                storage.write_bytes(self._path, json.dumps(content).encode())

    def paid_seconds(self, trained: float, waiting: float) -> dict[str, float]:
        """Return the paid seconds of all sessions, by what the time was spent on.

        The names in capitals are the corresponding terms of ml-goodput-measurement.

        - `trained`: Steps that are part of the result. Their share of the total is the goodput.
        - `start_up`: Time from the start of each session to the end of its first step: TPU_INITIALIZATION,
          TRAINING_PREP, PROGRAM_STARTUP and UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME.
        - `waiting`: Waiting for input and checkpoints: DATA_LOADING and UNPRODUCTIVE_CHECKPOINT_SAVE_TIME.
        - `lost`: Time from the last checkpoint of a killed session to the last update of its entry in the goodput file:
          WASTED_PROGRESS_FROM_DISRUPTION.
        - `other`: Validation, compilation of later stages and saving the model (OTHER). If the file has sessions from
          older versions, which did not record start-up and lost time, this time is also part of `other`.

        Args:
            trained: Seconds of the steps that are part of the result.
            waiting: Seconds in which the sessions waited for input and checkpoints after their first steps.
        """
        self._now.end = self._clock()
        sessions = [*self._earlier, self._now]
        paid = sum(session.end - session.start for session in sessions)
        uses = {
            "trained": trained,
            "start_up": sum(session.start_up_seconds for session in sessions),
            "waiting": waiting,
            "lost": sum(session.lost_seconds for session in self._earlier),
        }
        return {**uses, "other": max(paid - sum(uses.values()), 0.0)}

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Save the sessions every 10 seconds while the `with` block runs.

        If an InputError ends the block before `accept` is called, the file gets its earlier content again, so that this
        session is not counted.
        """
        was_there = self._path.parent.is_dir()
        is_refused = False
        self.save()  # At once: the block may be killed within 10 seconds.
        try:
            with repeated(self.save, EVERY_SECONDS):
                yield
        except InputError:
            is_refused = self._is_writer and not self._is_accepted
            raise
        finally:
            if is_refused:
                self._restore_file(was_there)
            else:
                self.save()

    def _restore_file(self, keep_folder: bool) -> None:
        with contextlib.suppress(OSError):
            if self._before is not None:
                storage.write_bytes(self._path, self._before)
                return
            self._path.unlink(missing_ok=True)
            if not keep_folder:
                self._path.parent.rmdir()

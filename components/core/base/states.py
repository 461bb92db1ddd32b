"""The words for what became of something: a run, a step, a model, a check. Files, pages and commands use these."""

import enum


class State(enum.StrEnum):
    """The state of a run or of one of its steps, here or on a platform."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"  # A run of which the gate did not promote the model.
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # A run here whose process was killed.
    SKIPPED = "skipped"  # A step that did not have to run.
    CACHED = "cached"  # A step whose result was taken from an earlier run.

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to a run on a platform."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Status(enum.StrEnum):
    """The status of what a check looked at."""

    OK = "ok"
    HINT = "hint"  # It stops nothing, and may spoil something.
    ERROR = "error"  # It would stop a run.
    UNKNOWN = "unknown"  # It could not be asked.


PROMOTED, NOT_PROMOTED = "promoted", "not promoted"  # What became of a run's model.
COLOURS = {
    State.SUCCEEDED: "green",
    PROMOTED: "green",
    Status.OK: "green",
    State.REJECTED: "yellow",
    NOT_PROMOTED: "yellow",
    Status.HINT: "yellow",
    State.FAILED: "red",
    Status.ERROR: "red",
}
LOOKS = {PROMOTED: "good", State.FAILED: "bad"}  # How pages show a result.


def result_of(state: str) -> str:
    """Return what became of a run's model, as people are told; of a run that has none, its state."""
    results: dict[str, str] = {State.SUCCEEDED: PROMOTED, State.REJECTED: NOT_PROMOTED}
    return results.get(state, state)

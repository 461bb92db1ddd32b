"""Names of the states and results of runs, steps and checks, as files, pages and commands show them."""

import enum


class State(enum.StrEnum):
    """The state of a run or of one of its steps, on this machine or on a platform."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"  # A run whose model the gate did not promote.
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # A local run whose process was killed.
    SKIPPED = "skipped"  # A step that did not need to run.
    CACHED = "cached"  # A step whose result comes from an earlier run.

    @property
    def is_final(self) -> bool:
        """Whether a run in this state has ended for good: it succeeded, failed, was rejected or was cancelled.

        An interrupted run is not final, because it can be continued.
        """
        return self in (State.SUCCEEDED, State.REJECTED, State.FAILED, State.CANCELLED)


# Keys: states of Vertex AI or Kubeflow. KFP's server passes COMPLETE instead of SUCCEEDED to an exit task.
_RUN_STATES = {
    "SUCCEEDED": State.SUCCEEDED,
    "COMPLETE": State.SUCCEEDED,
    "SKIPPED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "CANCELED": State.CANCELLED,
    "CANCELLED": State.CANCELLED,
    "RUNNING": State.RUNNING,
    "CANCELING": State.RUNNING,
    "CANCELLING": State.RUNNING,
}


def run_state(name: str | None) -> State:
    """Convert the name of a state on Vertex AI or Kubeflow to a `State`.

    An unknown name, or None, becomes `PENDING`.

    Example:
        >>> run_state("PIPELINE_STATE_CANCELLING"), run_state("CANCELED"), run_state(None)
        (<State.RUNNING: 'running'>, <State.CANCELLED: 'cancelled'>, <State.PENDING: 'pending'>)
    """
    return _RUN_STATES.get((name or "").upper().removeprefix("PIPELINE_STATE_"), State.PENDING)


class Status(enum.StrEnum):
    """Result of a check."""

    OK = "ok"
    HINT = "hint"  # The run works, but its result may be poor.
    ERROR = "error"  # The run would stop.
    UNKNOWN = "unknown"  # The check could not run.


# Results of a run: its model was registered, it passed the gate but there is no registry, or the gate rejected it.
PROMOTED, PASSED, NOT_PROMOTED = "promoted", "passed", "not promoted"
COLOURS = {
    State.SUCCEEDED: "green",
    PROMOTED: "green",
    PASSED: "green",
    Status.OK: "green",
    State.REJECTED: "yellow",
    NOT_PROMOTED: "yellow",
    Status.HINT: "yellow",
    State.FAILED: "red",
    Status.ERROR: "red",
}
LOOKS = {PROMOTED: "good", PASSED: "good", State.FAILED: "bad"}  # Style of a result on pages.


def result_of(state: str, is_registered: bool = False) -> str:
    """Return the result of a run, `promoted`, `passed` or `not promoted`, from its state.

    If the state is neither `succeeded` nor `rejected`, return the state itself.

    Args:
        state: State of the run.
        is_registered: Whether the run registered its model. Without a registry, a model that passes the gate is
            `passed`, not `promoted`.

    Example:
        >>> result_of(State.SUCCEEDED, is_registered=True), result_of(State.SUCCEEDED), result_of(State.REJECTED)
        ('promoted', 'passed', 'not promoted')
    """
    results: dict[str, str] = {State.SUCCEEDED: PROMOTED if is_registered else PASSED, State.REJECTED: NOT_PROMOTED}
    return results.get(state, state)

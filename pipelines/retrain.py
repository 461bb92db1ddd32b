"""Whether a run is needed: what has changed since the last one of its name."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from components.errors import InputError
from pipelines.config import Config
from pipelines.platforms.jobs import DIGEST, State, Submitter
from pipelines.run_local import fingerprints_here
from pipelines.submission import Plan, look_up
from pipelines.summary import FAILED, Summary


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision whether to run, with its reasons.

    Attributes:
        needed: Whether there is anything to do.
        since: The run that it was compared with: the id of its job, or its folder; empty if there is none.
        changed: Those of `data`, `configuration` and `code` that have changed since.
        reason: In words.
    """

    needed: bool
    since: str
    changed: tuple[str, ...]
    reason: str


def decide(plan: Plan, submitter: Submitter) -> Decision:
    """Compare a run with those of its name on a platform. Starts nothing.

    Args:
        plan: The run as it would be sent.
        submitter: The platform.

    Returns:
        Not needed where the same run was sent before, or by a schedule, and goes on or has ended with the gate's
        decision.
    """
    job = plan.jobs[0]
    last = look_up(plan, submitter) or submitter.latest(job.name)
    if last is None:
        return _first(job.name)
    if last.digest == job.labels[DIGEST]:
        return _unchanged(last.job_id, last.state, has_failed=last.state in (State.FAILED, State.CANCELLED))
    return _changed(last.job_id, last.fingerprints, job.fingerprints)


def decide_here(config: Config, workspace: Path) -> Decision:
    """Compare a run with the last one of its name in a workspace. Runs nothing.

    Args:
        config: Configuration that would run.
        workspace: Folder of the runs.

    Raises:
        InputError: If the data or the configuration cannot be used.
    """
    after, summary = fingerprints_here(config, workspace), last_summary(config, workspace)
    if summary is None:
        return _first(config.name)
    since = str(workspace / config.name)
    if summary.fingerprints == after:
        return _unchanged(since, summary.status, has_failed=summary.status == FAILED)
    return _changed(since, summary.fingerprints, after)


def last_summary(config: Config, workspace: Path) -> Summary | None:
    """Return what the last run of a configuration's name left; None where there was none, or it was interrupted."""
    try:
        return Summary.load(workspace / config.name)
    except InputError:
        return None


def _first(name: str) -> Decision:
    return Decision(True, "", (), f"there is no earlier run of {name!r}")


def _unchanged(since: str, state: str, has_failed: bool) -> Decision:
    words = f"nothing has changed since {since} ({state})" + (", but that gave no result" if has_failed else "")
    return Decision(has_failed, since, (), words)


def _changed(since: str, before: Mapping[str, str], after: Mapping[str, str]) -> Decision:
    changed = tuple(part for part in after if before.get(part) != after[part]) if before else ()
    unknown = "where or with what it runs" if before else "what, that run does not say"
    return Decision(True, since, changed, f"changed since {since}: {' and '.join(changed) or unknown}")

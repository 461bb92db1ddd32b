"""Decides whether a run is needed, by the changes since the last run with its name, and the age of that run."""

import dataclasses
import datetime
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import State
from tpu_pipelines.checking.workspace import with_registry
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.platforms.jobs import DIGEST, Platform, now
from tpu_pipelines.runs.data_drift import Drift, find_drift
from tpu_pipelines.runs.run_local import fingerprints_here
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.submission.submit import RunPlan, look_up

CHANGED, DRIFTED, OLDER, ALWAYS = "changed", "drifted", "older-than", "always"
DATA = "data"  # Key of the data in a run's fingerprints.
_UNITS = {"d": "days", "h": "hours"}


@dataclasses.dataclass(frozen=True)
class Occasion:
    """Conditions for a new run; one that holds is enough.

    Attributes:
        changed: Run if data, configuration or code have changed.
        older_than: Run if the last run is at least this old; None disables the condition.
        always: Always run.
        drifted: Run if the data have changed and drifted from the champion's data.
    """

    changed: bool = True
    older_than: datetime.timedelta | None = None
    always: bool = False
    drifted: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a list such as `changed,older-than=30d`.

        Raises:
            InputError: If the list has an unknown condition.

        Example:
            >>> Occasion.parse("older-than=36h").older_than
            datetime.timedelta(days=1, seconds=43200)
        """
        words = [word.strip() for word in text.split(",")]
        older_than = None
        for word in words:
            if match := re.fullmatch(rf"{OLDER}=(\d{{1,6}})([dh])", word):
                older_than = datetime.timedelta(**{_UNITS[match[2]]: int(match[1])})
            elif word not in (CHANGED, DRIFTED, ALWAYS):
                raise InputError(
                    f"Cannot use --when {text}: expected one or more of {CHANGED}, {DRIFTED}, {OLDER}=30d (or 12h) and "
                    f"{ALWAYS}, with commas between. Received: {word!r}."
                )
        return cls(CHANGED in words, older_than, ALWAYS in words, DRIFTED in words)


@dataclasses.dataclass(frozen=True)
class RunDecision:
    """Decision whether to run, with reasons.

    Attributes:
        needed: Whether a run is needed.
        since: Last run: id of its job, or its folder; empty if there is none.
        changed: Changes since the last run: any of `data`, `configuration` and `code`.
        reason: Reasons as text.
    """

    needed: bool
    since: str
    changed: tuple[str, ...]
    reason: str


def decide(
    plan: RunPlan,
    submitter: Platform,
    occasion: Occasion = Occasion(),
    look_for_drift: Callable[[], Drift] | None = None,
) -> RunDecision:
    """Compare a run with the last one with its name on a platform. Starts no run.

    Args:
        plan: The run that would be submitted.
        submitter: The platform.
        occasion: Conditions for a run.
        look_for_drift: Compares the data with the champion's; used if `occasion.drifted`.

    Returns:
        The decision. By default no run is needed if an equal run, submitted or scheduled, is still running or has ended
        with a decision of the gate.
    """
    job = plan.jobs[0]
    last = look_up(plan, submitter) or submitter.latest(job.name)
    if last is None:
        return _first(job.name)
    if is_change := last.digest != job.labels[DIGEST]:
        decision = _changed(last.job_id, last.fingerprints, job.fingerprints)
    else:
        decision = _unchanged(last.job_id, last.state, has_failed=last.state in (State.FAILED, State.CANCELLED))
        if not last.state.is_final:  # Do not start a second run beside a running one.
            return decision
    return _apply(occasion, decision, last.created, is_change, look_for_drift)


def decide_here(config: Config, workspace: Path, occasion: Occasion = Occasion()) -> RunDecision:
    """Compare a run with the last one with its name in a workspace. Starts no run.

    Args:
        config: Configuration of the run.
        workspace: Folder of the runs.
        occasion: Conditions for a run.

    Raises:
        InputError: If the data or the configuration cannot be used.
    """
    summary = last_summary(config, workspace)
    after = fingerprints_here(config, workspace, summary.fingerprints if summary else {})
    if summary is None:
        return _first(config.name)
    since = str(workspace / config.name)
    if is_change := summary.fingerprints != after:
        decision = _changed(since, summary.fingerprints, after)
    else:
        decision = _unchanged(since, summary.status, has_failed=summary.status == State.FAILED)
    own = with_registry(config, workspace.absolute())
    return _apply(occasion, decision, summary.ended, is_change, lambda: find_drift(own))


def last_summary(config: Config, workspace: Path) -> Summary | None:
    """Return the summary of the last run with a configuration's name; None if there is none, or it was interrupted."""
    try:
        return Summary.load(workspace / config.name)
    except InputError:
        return None


def _first(name: str) -> RunDecision:
    return RunDecision(True, "", (), f"there is no earlier run of {name!r}")


def _unchanged(since: str, state: str, has_failed: bool) -> RunDecision:
    words = f"nothing has changed since {since} ({state})" + (", but that gave no result" if has_failed else "")
    return RunDecision(has_failed, since, (), words)


def _changed(since: str, before: Mapping[str, str], after: Mapping[str, str]) -> RunDecision:
    changed = tuple(part for part in after if before.get(part) != after[part]) if before else ()
    unknown = "where or with what it runs" if before else "what, that run does not say"
    return RunDecision(True, since, changed, f"changed since {since}: {' and '.join(changed) or unknown}")


def _apply(
    occasion: Occasion, decision: RunDecision, created: str, is_change: bool, look: Callable[[], Drift] | None
) -> RunDecision:
    """Return the decision by the conditions. A last run without a result always needs a new run."""
    age = now() - datetime.datetime.fromisoformat(created) if created else None
    if occasion.always and not decision.needed:
        return dataclasses.replace(decision, needed=True, reason=f"always, though {decision.reason}")
    rests = ""
    if occasion.older_than is not None and age is not None:
        limit = _words(occasion.older_than)
        if age > occasion.older_than:
            words = f"the last run is {_words(age)} old, above {limit}; {decision.reason}"
            return dataclasses.replace(decision, needed=True, reason=words)
        rests = f"; the last run is {_words(age)} old, not above {limit}"
    if not decision.needed:
        return dataclasses.replace(decision, reason=f"{decision.reason}{rests}")
    if not is_change or occasion.changed or occasion.always:
        return decision
    # If the last run has no fingerprints, its data may differ.
    if occasion.drifted and look and (DATA in decision.changed or not decision.changed):
        drift = look()
        words = f"{decision.reason}; {drift.reason}{'' if drift.matters else rests}"
        return dataclasses.replace(decision, needed=drift.matters, reason=words)
    words = f"{decision.reason}, which is no occasion by --when{rests}"
    return dataclasses.replace(decision, needed=False, reason=words)


def _words(age: datetime.timedelta) -> str:
    hours = age.total_seconds() / 3600
    return f"{age.days:,} days" if age.days > 1 else f"{hours:,.0f} hours" if hours > 1 else f"{hours * 60:.0f} minutes"

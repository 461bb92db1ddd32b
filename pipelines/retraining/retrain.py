"""Whether a run is needed: what has changed since the last one of its name, and how long ago that was."""

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
from tpu_pipelines.platforms.jobs import DIGEST, Submitter, now
from tpu_pipelines.runs.data_drift import Drift, find_drift
from tpu_pipelines.runs.run_local import fingerprints_here
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.submission.submit import RunPlan, look_up

CHANGED, DRIFTED, OLDER, ALWAYS = "changed", "drifted", "older-than", "always"
DATA = "data"  # Of a run's fingerprints, that of its data.
_UNITS = {"d": "days", "h": "hours"}


@dataclasses.dataclass(frozen=True)
class Occasion:
    """The occasions on which a run is needed; any of them is enough.

    Attributes:
        changed: Whether a change of data, configuration or code is one.
        older_than: Age of the last run from which on it is one; None for none.
        always: Whether it is needed whenever it is asked for.
        drifted: Whether changed data are one where their figures differ from those that the champion was made of.
    """

    changed: bool = True
    older_than: datetime.timedelta | None = None
    always: bool = False
    drifted: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a list as `changed,older-than=30d`.

        Raises:
            InputError: If it holds anything else.

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


def decide(
    plan: RunPlan,
    submitter: Submitter,
    occasion: Occasion = Occasion(),
    look_for_drift: Callable[[], Drift] | None = None,
) -> RunDecision:
    """Compare a run with those of its name on a platform. Starts nothing.

    Args:
        plan: The run as it would be sent.
        submitter: The platform.
        occasion: Occasions on which it is needed.
        look_for_drift: Compares the data with the champion's, where drift is an occasion.

    Returns:
        By default not needed where the same run was sent before, or by a schedule, and goes on or has ended with the
        gate's decision.
    """
    job = plan.jobs[0]
    last = look_up(plan, submitter) or submitter.latest(job.name)
    if last is None:
        return _first(job.name)
    if is_change := last.digest != job.labels[DIGEST]:
        decision = _changed(last.job_id, last.fingerprints, job.fingerprints)
    else:
        decision = _unchanged(last.job_id, last.state, has_failed=last.state in (State.FAILED, State.CANCELLED))
        if not last.state.is_final:  # A run that goes on is not started twice.
            return decision
    return _apply(occasion, decision, last.created, is_change, look_for_drift)


def decide_here(config: Config, workspace: Path, occasion: Occasion = Occasion()) -> RunDecision:
    """Compare a run with the last one of its name in a workspace. Runs nothing.

    Args:
        config: Configuration that would run.
        workspace: Folder of the runs.
        occasion: Occasions on which it is needed.

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
    """Return what the last run of a configuration's name left; None where there was none, or it was interrupted."""
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
    """Return the decision that the occasions ask for; a run that gave no result is none to rest on at any."""
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
    # Of a run that does not say what it was made of, the data may be others.
    if occasion.drifted and look and (DATA in decision.changed or not decision.changed):
        drift = look()
        words = f"{decision.reason}; {drift.reason}{'' if drift.matters else rests}"
        return dataclasses.replace(decision, needed=drift.matters, reason=words)
    words = f"{decision.reason}, which is no occasion by --when{rests}"
    return dataclasses.replace(decision, needed=False, reason=words)


def _words(age: datetime.timedelta) -> str:
    hours = age.total_seconds() / 3600
    return f"{age.days:,} days" if age.days > 1 else f"{hours:,.0f} hours" if hours > 1 else f"{hours * 60:.0f} minutes"

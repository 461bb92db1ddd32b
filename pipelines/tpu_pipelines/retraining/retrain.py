"""Decides whether a run is needed.

The decision depends on the age of the last run with the same name, and on the changes since that run.

Every decision is kept in a separate file:

    REGISTRY/MODEL/decisions/2026-11-23T03-07-12.123456Z.json

Several machines may therefore decide at the same time. When the history of decisions is read, the state of unfinished
runs is requested again.
"""

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import LOOKS, State
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Cell, Table
from tpu_components.core.sources.listing import Listing
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.platforms.jobs import DIGEST, PlatformClient, Submission, fingerprints_in, now
from tpu_pipelines.runs.data_drift import Drift, find_drift
from tpu_pipelines.runs.resolution import fingerprints_here
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.runs.workspace import with_registry
from tpu_pipelines.submission.submit import RunPlan, look_up

CHANGED, DRIFTED, OLDER, ALWAYS = "changed", "drifted", "older-than", "always"
DATA = "data"  # Key of the data in a run's fingerprints.
FOLDER = "decisions"
STARTED = "started"
_COLUMNS = {"when, UTC": "<", "run": "<", "outcome": "<", "machine": "<", "hours": ">", "price": ">", "why": "<"}
_LISTED = 50
_UNITS = {"d": "days", "h": "hours"}


@dataclasses.dataclass(frozen=True)
class Occasion:
    """Conditions for a new run. A run is needed if any of them holds, or if no earlier run has a result.

    While an identical run is in progress, no run is needed.

    Attributes:
        changed: Run if data, configuration or code have changed.
        older_than: Run if the last run is older than this. None disables the condition.
        always: Run in any case.
        drifted: Run if the data have changed and drifted from the champion's data.
    """

    changed: bool = True
    older_than: datetime.timedelta | None = None
    always: bool = False
    drifted: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a list of conditions such as `changed,older-than=30d`.

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
                    f"{ALWAYS}, separated by commas. Received: {word!r}."
                )
        return cls(CHANGED in words, older_than, ALWAYS in words, DRIFTED in words)


@dataclasses.dataclass(frozen=True)
class RunDecision:
    """A decision on whether a run is needed, and the outcome of the run that was started.

    Attributes:
        at: Time of the decision, UTC, ISO 8601. The name of the decision's file is derived from it.
        needed: Whether a run was needed.
        changed: Changes before the decision: any of `data`, `configuration` and `code`.
        reason: Reasons for the decision, as text.
        run: Job or folder of the run. Until a run is started, it is the job or folder of the last run. Empty if there
            is no run.
        outcome: `promoted`; `not promoted`; `passed`, if the model passed the gate but the run has no registry;
            `started`, for a local run that is running or was killed; or, for a run without a result, its state on the
            platform. Empty until a run starts.
        machine: Machine of the training step. Empty for a local run.
        training_hours: Hours for which the training step had its machine, or waited for it. 0 for a run that existed
            before the decision.
        usd: Price of these hours in US dollars, or None if unknown or free.
        url: URL of the run's page.
    """

    at: str
    needed: bool
    changed: tuple[str, ...]
    reason: str
    run: str = ""
    outcome: str = ""
    machine: str = ""
    training_hours: typed_values.Amount = 0.0
    usd: typed_values.Amount | None = None
    url: str = ""

    @classmethod
    def make(cls, needed: bool, reason: str, since: str = "", changed: tuple[str, ...] = ()) -> Self:
        """Return a decision with the current time.

        Args:
            needed: Whether a run is needed.
            reason: Reasons for the decision, as text.
            since: Job or folder of the last run.
            changed: Changes since the last run: any of `data`, `configuration` and `code`.
        """
        return cls(now().isoformat(timespec="microseconds"), needed, changed, reason, since)

    @property
    def is_open(self) -> bool:
        """Whether the recorded outcome may still change: it is empty, pending or running."""
        return self.outcome in (State.PENDING, State.RUNNING, "")

    def with_run(self, run: Submission, usd_per_hour: float | None) -> Self:
        """Return the decision with the current state and price of its run on a platform.

        Args:
            run: The run, with its current state.
            usd_per_hour: Price of the run's machine in US dollars per hour, or None if it is unknown or free.
        """
        hours = run.training_seconds / 3600 if self.needed else 0.0
        return dataclasses.replace(
            self,
            run=run.job_id,
            outcome=str(run.result),
            machine=run.machine,
            training_hours=round(hours, 4),
            usd=None if usd_per_hour is None or not self.needed else round(hours * usd_per_hour, 2),
            url=run.url,
        )


def decide(
    plan: RunPlan, submitter: PlatformClient, occasion: Occasion, look_for_drift: Callable[[], Drift]
) -> RunDecision:
    """Decide whether to submit a run, by comparing it with the last run with its name. No run is started.

    Args:
        plan: The run that would be submitted.
        submitter: Client of the platform.
        occasion: Conditions for a run.
        look_for_drift: Function that compares the data with the champion's data. It is called only if
            `occasion.drifted` is set.

    Returns:
        The decision. No run is needed while an identical run, submitted or scheduled, is in progress. If an identical
        run has ended with a decision of the gate, a run is needed only because of `occasion.older_than` or
        `occasion.always`.
    """
    job = plan.jobs[0]
    last = look_up(plan, submitter) or submitter.latest(job.name)
    is_change = last is None or last.digest != job.labels[DIGEST]
    return _decide(job.name, last, fingerprints_in(job.labels), is_change, occasion, look_for_drift)


def decide_here(config: Config, workspace: Path, listing: Listing, occasion: Occasion = Occasion()) -> RunDecision:
    """Decide whether to run a configuration on this machine, by comparing it with the last run of the same name.

    No run is started.

    Args:
        config: Configuration of the run.
        workspace: Folder of the runs.
        listing: Examples of the data set.
        occasion: Conditions for a run.

    Raises:
        InputError: If the data or the configuration cannot be used.
    """
    summary = Summary.find(workspace / config.name)  # None if the last run was interrupted.
    before = summary.fingerprints if summary else {}
    after = fingerprints_here(config, workspace, listing, before)
    last = None
    if summary:
        run_dir = str(workspace / config.name)
        state = State(summary.status)
        last = Submission(run_dir, config.name, state, fingerprints=before, created=summary.ended)
    own = with_registry(config, workspace.absolute())
    return _decide(config.name, last, after, before != after, occasion, lambda: find_drift(own))


def _decide(
    name: str,
    last: Submission | None,
    fingerprints: Mapping[str, str],
    is_change: bool,
    occasion: Occasion,
    look_for_drift: Callable[[], Drift],
) -> RunDecision:
    """Decide whether a run is needed, from the last run, the changes since then, and the conditions for a run.

    Args:
        name: Name of the run.
        last: The last run, or None if there is no earlier run.
        fingerprints: Fingerprints of the new run.
        is_change: Whether the new run differs from the last run.
        occasion: Conditions for a run.
        look_for_drift: Function that compares the data with the champion's data.
    """
    if last is None:
        return RunDecision.make(True, f"there is no earlier run of {name!r}")
    since, before = last.job_id, last.fingerprints
    has_failed = last.state in (State.FAILED, State.CANCELLED)
    if is_change:
        changed = tuple(part for part in fingerprints if before.get(part) != fingerprints[part]) if before else ()
        unknown = "the machine, image or settings" if before else "unknown, because the last run has no fingerprints"
        words = f"changed since {since}: {' and '.join(changed) or unknown}"
        words += ", and the last run has no result" if has_failed else ""
        decision = RunDecision.make(True, words, since, changed)
    else:
        words = f"nothing has changed since {since} ({last.state})"
        words += ", but the last run has no result" if has_failed else ""
        decision = RunDecision.make(has_failed, words, since)
        if not last.state.is_final:  # Do not start a second run beside a running one.
            return decision
    return _apply(occasion, decision, last.created, is_change and not has_failed, look_for_drift)


def _apply(
    occasion: Occasion, decision: RunDecision, created: str, is_conditional: bool, look: Callable[[], Drift]
) -> RunDecision:
    """Apply the conditions of `--when` to a decision that is based only on the changes since the last run.

    If the last run has no result, a run is needed whatever the conditions are: `is_conditional` is then False.
    """
    age = now() - datetime.datetime.fromisoformat(created) if created else None
    if occasion.always and not decision.needed:
        return dataclasses.replace(decision, needed=True, reason=f"--when always, although {decision.reason}")
    rests = ""
    if occasion.older_than is not None and age is not None:
        limit = _words(occasion.older_than)
        if age > occasion.older_than:
            words = f"the last run is {_words(age)} old, more than {limit}; {decision.reason}"
            return dataclasses.replace(decision, needed=True, reason=words)
        rests = f"; the last run is {_words(age)} old, not more than {limit}"
    if not decision.needed:
        return dataclasses.replace(decision, reason=f"{decision.reason}{rests}")
    if not is_conditional or occasion.changed or occasion.always:
        return decision
    # If the last run has no fingerprints, its data may differ.
    if occasion.drifted and (DATA in decision.changed or not decision.changed):
        drift = look()
        words = f"{decision.reason}; {drift.reason}{'' if drift.matters else rests}"
        return dataclasses.replace(decision, needed=drift.matters, reason=words)
    words = f"{decision.reason}, which is not a reason to run according to --when{rests}"
    return dataclasses.replace(decision, needed=False, reason=words)


def _words(age: datetime.timedelta) -> str:
    hours = age.total_seconds() / 3600
    return f"{age.days:,} days" if age.days > 1 else f"{hours:,.0f} hours" if hours > 1 else f"{hours * 60:.0f} minutes"


def place_of(config: Config, otherwise: Location) -> Location:
    """Return the folder of a configuration's decisions, local or in a bucket.

    Args:
        config: The configuration.
        otherwise: Parent folder if the configuration has no registry, or one on Vertex AI. Pass the folder of the runs:
            the bucket or the workspace.
    """
    deploy = config.deploy
    if deploy and deploy.registry and not deploy.is_on_vertex:
        return Location(deploy.registry).child(deploy.model_name).child(FOLDER)
    return otherwise.child(f"{config.name}.{FOLDER}")


def record(place: Location, entry: RunDecision) -> None:
    """Write a decision to its file in a folder of decisions. An earlier state of the decision is replaced."""
    content = json.dumps(dataclasses.asdict(entry), indent=2).encode()
    storage.write_file(place.child(_name(entry)), content)


def _name(entry: RunDecision) -> str:
    return f"{entry.at.partition('+')[0].replace(':', '-')}Z.json"


def entries(
    place: Location,
    ask: Callable[[str], Submission | None],
    price: Callable[[str], float | None],
    leave_out: Callable[[str], None],
) -> list[RunDecision]:
    """Return all decisions, the newest first. The outcome of unfinished runs is requested and recorded.

    Args:
        place: Folder of the decisions, from `place_of`.
        ask: Function that returns the state of a job by its ID, or None if the platform no longer has the job.
        price: Function that returns the price of a machine in US dollars per hour, or None if it is unknown.
        leave_out: Function that is called with the name of each file that is ignored because it is not a decision.
    """
    known = []
    for file in storage.list_known(place):
        content = storage.read_bytes(place.child(file.name))
        try:
            entry = typed_values.read(typed_json.decode(content), RunDecision, file.name, any_version=True)
        except (KeyError, TypeError, ValueError):
            entry = None
        if entry and file.name == _name(entry):
            known.append(entry)
        else:
            leave_out(file.name)
    for i, entry in enumerate(known):
        if entry.is_open and entry.run and (run := ask(entry.run)):
            known[i] = entry.with_run(run, price(run.machine))
            record(place, known[i])
    return _paid_once(sorted(known, key=lambda entry: entry.at))[::-1]


def _paid_once(known: Sequence[RunDecision]) -> list[RunDecision]:
    """Keep the hours and the price only in the first decision of each run, so that no run is counted twice.

    Args:
        known: Decisions, the oldest first.
    """
    begun = {entry.run: entry.at for entry in reversed(known) if entry.needed}
    return [
        entry
        if not entry.needed or begun[entry.run] == entry.at
        else dataclasses.replace(entry, training_hours=0.0, usd=None)
        for entry in known
    ]


def as_table(known: Sequence[RunDecision]) -> str:
    """Format the decisions as a table for the terminal, the newest first."""
    more = [f"and {len(known) - _LISTED:,} more, on the page"] if len(known) > _LISTED else []
    return "\n".join([*_table(known[:_LISTED]).lines(), *more])


def write_page(known: Sequence[RunDecision], name: str, path: Path) -> None:
    """Write the decisions as a self-contained HTML page."""
    runs = len({entry.run for entry in known if entry.needed and entry.run})
    paid = sum(entry.usd or 0.0 for entry in known if entry.needed)
    subtitle = f"{len(known)} decisions, {runs} run{'' if runs == 1 else 's'}"
    subtitle += f", ${paid:.2f} for machines, at the platform's price" if paid else ""
    storage.write_bytes(path, page.render(f"{name}: retraining decisions", [_table(known)], [subtitle]).encode())


def _table(known: Sequence[RunDecision]) -> Table:
    return Table(
        _COLUMNS,
        [
            (
                entry.at[:16].replace("T", " "),
                Cell(entry.run.rpartition("/")[2], link=entry.url if entry.url.startswith("https://") else ""),
                Cell(entry.outcome, LOOKS.get(entry.outcome, "")) if entry.needed else "not needed",
                entry.machine,
                f"{entry.training_hours:.2f}" if entry.training_hours else "",
                f"{entry.usd:.2f} $" if entry.usd is not None else "",
                entry.reason,
            )
            for entry in known
        ],
    )

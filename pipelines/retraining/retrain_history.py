"""What `retrain` has decided of a name, and what became of it: a file for each decision, kept beside the registry.

    REGISTRY/MODEL/decisions/2026-11-23T03-07-12.123456Z.json

Several may decide at once, from any machine: nobody writes another's file, and nothing is read to write one. What goes
on is asked for again when the history is read.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tpu_components.core.base import typed_values
from tpu_components.core.base.terminal import lay_out
from tpu_components.core.files import storage, typed_json
from tpu_components.core.registry.reference import is_on_vertex
from tpu_components.deploy_model.params import VERTEX
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.platforms.jobs import State, Submission, now
from tpu_pipelines.retraining.retrain import Decision
from tpu_pipelines.runs.summary import NOT_PROMOTED, PROMOTED

FOLDER = "decisions"
STARTED = "started"
_COLUMNS = {"when, UTC": "<", "run": "<", "outcome": "<", "hours": ">", "price": ">", "why": "<"}
_LISTED = 50


@dataclasses.dataclass(frozen=True)
class Entry:
    """A decision, and what is known of the run.

    Attributes:
        at: When it was decided, UTC, ISO 8601; it names the file.
        needed: Whether a run was needed.
        changed: Those of `data`, `configuration` and `code` that had changed.
        reason: Reasons, in words.
        run: The job, or the folder, that it was about; empty where none came to be.
        outcome: `promoted`, `not promoted`, or the state of a run that has no result; `started` of one here that goes
            on, or was killed.
        machine: Machine that it trained on; empty for this one.
        training_hours: Hours that the training had its machine, or waited for it; 0 of a run that was there before.
        usd: The target's price of these; None where no price is known, or nothing is paid.
        url: Page of the run.
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
    def make(cls, decision: Decision) -> Self:
        """Return the entry of a decision of this moment."""
        at = now().isoformat(timespec="microseconds")
        return cls(at, decision.needed, decision.changed, decision.reason, decision.since)

    @property
    def is_open(self) -> bool:
        """Whether its run may have gone on since."""
        return self.outcome in (State.PENDING, State.RUNNING, "")

    def with_run(self, run: Submission, usd_per_hour: float | None) -> Self:
        """Return what is known by now of a run on a platform."""
        hours = run.training_seconds / 3600 if self.needed else 0.0
        is_judged = run.state is State.SUCCEEDED
        outcome = (PROMOTED if run.promoted else NOT_PROMOTED) if is_judged else str(run.state)
        return dataclasses.replace(
            self,
            run=run.job_id,
            outcome=outcome,
            machine=run.machine,
            training_hours=round(hours, 4),
            usd=None if usd_per_hour is None or not self.needed else round(hours * usd_per_hour, 2),
            url=run.url,
        )


def place_of(config: Config, otherwise: str) -> str:
    """Return the folder of a configuration's decisions, here or in a bucket.

    Args:
        config: The configuration.
        otherwise: Folder to keep them under where no registry has one: a bucket's, or the workspace.
    """
    deploy = config.deploy
    if deploy and deploy.registry and deploy.registry != VERTEX and not is_on_vertex(deploy.registry):
        return storage.join(storage.join(deploy.registry, deploy.model_name), FOLDER)
    return storage.join(otherwise, f"{config.name}.{FOLDER}")


def record(place: str, entry: Entry) -> None:
    """Write an entry, or what has become of it, to its own file."""
    content = json.dumps(dataclasses.asdict(entry), indent=2).encode()
    if not storage.is_remote(place):
        Path(place).mkdir(parents=True, exist_ok=True)
    storage.write_file(storage.join(place, _name(entry)), content)


def _name(entry: Entry) -> str:
    return f"{entry.at.partition('+')[0].replace(':', '-')}Z.json"


def entries(
    place: str,
    ask: Callable[[str], Submission | None],
    price: Callable[[str], float | None],
    leave_out: Callable[[str], None],
) -> list[Entry]:
    """Return all decisions, the newest first; of runs that went on, what has become of them, which is kept too.

    Args:
        place: Folder of `place_of`.
        ask: Gives what is known of a job by its id; None where it is not known any more.
        price: Gives the target's price of a machine's hour in dollars; None where it is not known.
        leave_out: Takes the name of a file that is no decision.
    """
    known = []
    if storage.is_remote(place) or Path(place).is_dir():
        for file in storage.list_files(place):
            content = storage.read_bytes(storage.join(place, file.name))
            try:
                entry = typed_values.read(typed_json.decode(content), Entry, file.name, any_version=True)
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


def _paid_once(known: Sequence[Entry]) -> list[Entry]:
    """Return decisions, the oldest first, of which several at the same moment may have found the same run needed."""
    begun = {entry.run: entry.at for entry in reversed(known) if entry.needed}
    return [
        entry
        if not entry.needed or begun[entry.run] == entry.at
        else dataclasses.replace(entry, training_hours=0.0, usd=None)
        for entry in known
    ]


def as_table(known: Sequence[Entry]) -> str:
    """Return the decisions to be read by people, the newest first."""
    rows = [
        (
            entry.at[:16].replace("T", " "),
            entry.run.rpartition("/")[2],
            entry.outcome if entry.needed else "not needed",
            f"{entry.training_hours:.2f}" if entry.training_hours else "",
            f"{entry.usd:.2f} $" if entry.usd is not None else "",
            entry.reason,
        )
        for entry in known[:_LISTED]
    ]
    more = [f"and {len(known) - _LISTED:,} more, on the page"] if len(known) > _LISTED else []
    return "\n".join([*lay_out(_COLUMNS, rows), *more])


def write_page(known: Sequence[Entry], name: str, path: Path) -> None:
    """Write the decisions as a page that needs nothing else."""
    from tpu_components.core.pages import page

    template = page.environment(Path(__file__).parent).get_template("retrain_history.html.jinja")
    runs = len({entry.run for entry in known if entry.needed and entry.run})
    paid = sum(entry.usd or 0.0 for entry in known if entry.needed)
    storage.write_bytes(path, template.render(entries=known, name=name, paid=paid, runs=runs).encode())

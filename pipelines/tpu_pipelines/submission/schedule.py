"""Creates, updates, pauses, resumes and deletes schedules on a platform.

A schedule is identified by the name that all of its runs have.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff
from tpu_pipelines.platforms.jobs import Job, PlatformClient, Schedule, comparable

_TIME_ZONE = re.compile(r"(CRON_)?TZ=\S+\s+")


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of a schedule.

    Attributes:
        action: `created`, `updated` or `unchanged`.
        schedule: Schedule after the change.
        difference: Removed (`-`) and added (`+`) lines of the schedule's content.
        duplicates: IDs of other schedules with the same name. They are reported, but not changed.
    """

    action: str
    schedule: Schedule
    difference: str
    duplicates: tuple[str, ...] = ()


def check_cron(cron: str) -> None:
    """Check that a cron expression is well formed.

    Raises:
        InputError: If the expression does not have five well-formed fields.
    """
    fields = _TIME_ZONE.sub("", cron, count=1).split()
    if len(fields) != 5 or not all(re.fullmatch(r"[\w*/,-]+", field) for field in fields):
        raise InputError(
            "Cannot use --cron: expected minute, hour, day, month and weekday, as in '0 3 * * *', or with a time zone, "
            f"'TZ=Europe/Berlin 0 3 * * *'. Received: {cron!r}."
        )


def upsert(
    client: PlatformClient, job: Job, cron: str, backoff: Backoff | None = None, dry_run: bool = False
) -> Change:
    """Create the schedule of a run, or update it if it has changed.

    A paused schedule stays paused. Concurrent calls and retries leave no duplicates: if several callers create a
    schedule at the same time, only the oldest remains, and a retry finds a schedule whose creation was not confirmed.

    Args:
        client: Client of the platform. It must not retry by itself.
        job: Job that the schedule starts.
        cron: Cron expression of the start times.
        backoff: Policy for retries after transient errors.
        dry_run: Whether to return the change without making it.

    Raises:
        PlatformError: If the platform still fails after the last retry.
    """

    def attempt() -> Change:  # Retried as a whole: each attempt first looks at the existing schedules.
        schedules = client.schedules(job.name)
        wanted = client.schedule_content(job, cron)
        if not schedules and dry_run:
            return Change("created", Schedule("", cron, False, wanted), _difference({}, wanted))
        if not schedules:
            created = client.create_schedule(job, cron)
            # The last of several concurrent callers sees all schedules, and all callers keep the oldest.
            oldest, *younger = client.schedules(job.name)
            for other in younger:
                client.delete_schedule(other.schedule_id)
            is_ours = oldest.schedule_id == created.schedule_id
            return Change("created", created, _difference({}, wanted)) if is_ours else attempt()
        current, *others = schedules
        difference = _difference(current.content, wanted)
        if difference and not dry_run:
            current = client.update_schedule(current.schedule_id, job, cron)
        duplicates = tuple(other.schedule_id for other in others if other.schedule_id != current.schedule_id)
        return Change("updated" if difference else "unchanged", current, difference, duplicates)

    return (backoff or Backoff())(attempt)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the removed (`-`) and added (`+`) lines of YAML, or an empty string if there are none."""
    old, new = (yaml.safe_dump(content).splitlines() if content else [] for content in comparable(before, after))
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def change_state(client: PlatformClient, name: str, action: str, dry_run: bool = False) -> list[Schedule]:
    """Pause, resume or delete every schedule with a given name.

    Args:
        client: Client of the platform.
        name: Name of the runs.
        action: `pause`, `resume` or `delete`.
        dry_run: Whether to return the schedules without changing them.

    Returns:
        The schedules before the change.

    Raises:
        InputError: If there is no schedule with this name.
    """
    schedules = client.schedules(name)
    if not schedules:
        raise InputError(
            f"Cannot {action} the schedule of {name!r}: there is no such schedule. Check the name and the settings."
        )
    for schedule in () if dry_run else schedules:
        if action == "delete" or schedule.is_paused == (action == "resume"):
            getattr(client, f"{action}_schedule")(schedule.schedule_id)
    return schedules

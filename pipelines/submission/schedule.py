"""Runs that a platform starts by itself, on time: one schedule for each name."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff
from tpu_pipelines.platforms.jobs import Job
from tpu_pipelines.platforms.schedules import Schedule, Scheduler, comparable

_TIME_ZONE = re.compile(r"(CRON_)?TZ=\S+\s+")


@dataclasses.dataclass(frozen=True)
class Change:
    """The change that was made to a schedule.

    Attributes:
        action: `created`, `updated` or `unchanged`.
        schedule: Schedule as it is now.
        difference: Lines of what is no more (`-`) and what is new (`+`).
        duplicates: Other schedules of the same name, which somebody else has made.
    """

    action: str
    schedule: Schedule
    difference: str
    duplicates: tuple[str, ...] = ()


def check_cron(cron: str) -> str:
    """Return the cron expression, if it looks like one.

    Raises:
        InputError: If it does not have five fields.

    Example:
        >>> check_cron("TZ=Europe/Berlin 0 3 * * 1-5")
        'TZ=Europe/Berlin 0 3 * * 1-5'
    """
    fields = _TIME_ZONE.sub("", cron, count=1).split()
    if len(fields) != 5 or not all(re.fullmatch(r"[\w*/,-]+", field) for field in fields):
        raise InputError(
            "Cannot use --cron: expected minute, hour, day, month and weekday, as in '0 3 * * *', or with a time zone, "
            f"'TZ=Europe/Berlin 0 3 * * *'. Received: {cron!r}."
        )
    return cron


def upsert(scheduler: Scheduler, job: Job, cron: str, backoff: Backoff | None = None, dry_run: bool = False) -> Change:
    """Make the schedule of a run what it is to be: create it, change it, or leave it.

    A schedule that is paused stays paused. There is never a second one: two who create one at the same time keep the
    older, and one that was created without our hearing of it is found.

    Args:
        scheduler: The platform.
        job: Job that it starts.
        cron: When.
        backoff: Way to wait out an outage.
        dry_run: Only say what would happen.

    Raises:
        PlatformError: If the platform does not answer in the end.
    """
    # As a whole: to create a schedule twice makes two, so each try first looks what is there.
    return (backoff or Backoff())(lambda: _upsert(scheduler, job, cron, dry_run))


def _upsert(scheduler: Scheduler, job: Job, cron: str, dry_run: bool) -> Change:
    schedules = scheduler.schedules(job.name)
    wanted = scheduler.schedule_content(job, cron)
    if not schedules:
        difference = _difference({}, wanted)
        if dry_run:
            return Change("created", Schedule("", job.name, cron, False, wanted), difference)
        created = scheduler.create_schedule(job, cron)
        # Whoever looks last sees all that were created at the same time, and all agree on the oldest.
        oldest, *younger = scheduler.schedules(job.name)
        for other in younger:
            scheduler.delete_schedule(other.schedule_id)
        if oldest.schedule_id == created.schedule_id:
            return Change("created", created, difference)
        return _upsert(scheduler, job, cron, dry_run)
    current, *others = schedules
    difference = _difference(current.content, wanted)
    if difference and not dry_run:
        current = scheduler.update_schedule(current.schedule_id, job, cron)
    duplicates = tuple(other.schedule_id for other in others if other.schedule_id != current.schedule_id)
    return Change("updated" if difference else "unchanged", current, difference, duplicates)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what changes, line by line; empty if nothing does."""
    old, new = (yaml.safe_dump(content).splitlines() if content else [] for content in comparable(before, after))
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def change_state(
    scheduler: Scheduler, name: str, action: str, backoff: Backoff | None = None, dry_run: bool = False
) -> list[Schedule]:
    """Pause, resume or delete every schedule of a name.

    Args:
        scheduler: The platform.
        name: Name of the runs.
        action: `pause`, `resume` or `delete`.
        backoff: Way to wait out an outage.
        dry_run: Only say what would happen.

    Returns:
        The schedules as they were.

    Raises:
        InputError: If there is none.
    """
    backoff = backoff or Backoff()
    schedules = backoff(lambda: scheduler.schedules(name))
    if not schedules:
        raise InputError(f"Cannot {action} the schedule of {name!r}: there is none. Check the name and the settings.")
    act = {
        "pause": scheduler.pause_schedule,
        "resume": scheduler.resume_schedule,
        "delete": scheduler.delete_schedule,
    }[action]
    for schedule in () if dry_run else schedules:
        if action == "delete" or schedule.is_paused == (action == "resume"):
            backoff(functools.partial(act, schedule.schedule_id))
    return schedules

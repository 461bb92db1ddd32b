"""Schedules on any platform, and the interface of platforms for schedules."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from tpu_pipelines.platforms.jobs import DIGEST, Job


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule on a platform.

    Attributes:
        schedule_id: Id of the schedule on the platform.
        name: Name of the runs.
        cron: Cron expression of the start times.
        is_paused: Whether the schedule is paused.
        content: Plain values that define the schedule; schedules with equal content do the same.
        next_run: Time of the next run, in UTC; empty if unknown.
        url: URL of the schedule's page.
    """

    schedule_id: str
    name: str
    cron: str
    is_paused: bool
    content: Mapping[str, Any]
    next_run: str = ""
    url: str = ""


class Scheduler(Protocol):
    """A platform for schedules. Methods raise `OutageError` for transient errors and `InputError` for refusals."""

    def schedules(self, name: str) -> list[Schedule]:
        """Return all schedules with this name, the oldest first."""

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return `Schedule.content` for this job, without a call to the platform."""

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Create a schedule."""

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Change job or time of a schedule, or replace it by a new one if the platform cannot change it."""

    def pause_schedule(self, schedule_id: str) -> None:
        """Pause a schedule: it starts no further runs."""

    def resume_schedule(self, schedule_id: str) -> None:
        """Resume a schedule; missed runs are not started."""

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, if it exists."""


def comparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prepare two contents for comparison: replaces a pipeline specification by our digest, if both have one.

    A service may complete and reorder a specification, which would then always differ from ours.
    """
    digest = after.get("labels", {}).get(DIGEST)
    is_same = bool(digest) and before.get("labels", {}).get(DIGEST) == digest
    left_out = ("pipelineSpec",) if is_same else ()
    old, new = ({key: value for key, value in content.items() if key not in left_out} for content in (before, after))
    return old, new

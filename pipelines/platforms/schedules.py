"""What a schedule is, on any platform, and what a platform can be asked of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from tpu_pipelines.platforms.jobs import DIGEST, Job


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule on a platform.

    Attributes:
        schedule_id: The platform's name of it.
        name: Name of the runs.
        cron: When they start.
        is_paused: Whether they do not, for now.
        content: Plain values that decide what happens when; equal contents do the same.
        next_run: When the next one starts, in UTC, if the platform says so.
        url: Address of its page.
    """

    schedule_id: str
    name: str
    cron: str
    is_paused: bool
    content: Mapping[str, Any]
    next_run: str = ""
    url: str = ""


class Scheduler(Protocol):
    """A platform. Its methods raise `OutageError` where the same call may succeed later, `InputError` for a refusal."""

    def schedules(self, name: str) -> list[Schedule]:
        """Return all schedules of a name, the oldest first."""

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return the content of a schedule of this job. Asks the platform nothing."""

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Return a new schedule."""

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Change the job or the time of a schedule; where it cannot be changed, a new one takes its place."""

    def pause_schedule(self, schedule_id: str) -> None:
        """Start no more runs."""

    def resume_schedule(self, schedule_id: str) -> None:
        """Start runs again; those that were missed stay so."""

    def delete_schedule(self, schedule_id: str) -> None:
        """Forget a schedule; nothing happens to one that is not there."""


def comparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two contents as they are to be compared: a specification by our digest of it, where both carry one.

    A service may fill in and reorder what it was sent, and would seem to hold another pipeline for ever.
    """
    digest = after.get("labels", {}).get(DIGEST)
    is_same = bool(digest) and before.get("labels", {}).get(DIGEST) == digest
    left_out = ("pipelineSpec",) if is_same else ()
    old, new = ({key: value for key, value in content.items() if key not in left_out} for content in (before, after))
    return old, new

"""Jobs and schedules on any platform: their dataclasses, and the protocol of a platform's client."""

import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import yaml

from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import State, result_of
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_pipelines.config.steps import StepResources

TRAINING_TASK = "train-model"  # Name of the training's task in a pipeline.
DIGEST = "tpu_pipelines_digest"  # Label with the digest of the run.
FINGERPRINTS = ("data", "configuration", "code")
PlacedStep = Callable[..., Any]  # A step of the pipeline, wrapped for a platform: takes inputs, returns KFP's task.


@dataclasses.dataclass(frozen=True)
class Placement:
    """Facts about a step that `Platform.on_machine` needs besides the step's component, machine and settings.

    Attributes:
        run: Name of the run or pipeline, for labels.
        step: Name of the step, for the name of its job.
        folder: Folder of the step's checkpoints, relative to the bucket or the first volume. If empty, the platform
            chooses one.
        resources: Number of retries of the step. On a platform where several steps share a host, also the CPUs, memory
            and disk that the step requests.
        uses_s3: Whether the step reads or writes s3://.
    """

    run: str
    step: str
    folder: str
    resources: StepResources
    uses_s3: bool = False


def slug(name: str) -> str:
    """Convert a name to a text that is valid in IDs and labels: lower-case letters, digits and hyphens.

    The name is cut off after 40 characters. If the result would not begin with a letter, it gets the prefix `run-`.

    Example:
        >>> slug("My.Run_2"), slug("3d")
        ('my-run-2', 'run-3d')
    """
    letters = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return letters if letters[:1].isalpha() else f"run-{letters}".strip("-")


def now() -> datetime.datetime:
    """Return the current time in UTC."""
    return datetime.datetime.now(datetime.UTC)


@dataclasses.dataclass(frozen=True)
class Job:
    """A pipeline that is ready to submit.

    Attributes:
        job_id: Unique ID of the job on the platform.
        name: Name of the run in the configuration.
        package: The compiled pipeline, YAML.
        machine: Machine of the training step, with its region.
        labels: Labels that identify the job later.
    """

    job_id: str
    name: str
    package: str
    machine: MachineSpec
    labels: Mapping[str, str]

    @functools.cached_property
    def specifications(self) -> list[dict[str, Any]]:
        """The pipeline specification, and the platform specification if the pipeline has one."""
        return list(yaml.safe_load_all(self.package))


def fingerprints_in(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints in a job's labels, as a dict with the keys `data`, `configuration` and `code`.

    A fingerprint that is not in the labels is left out.
    """
    return {part: labels[name] for part in FINGERPRINTS if (name := f"tpu_pipelines_{part}") in labels}


@dataclasses.dataclass(frozen=True)
class Submission:
    """State of a run on a platform at the time of the last request.

    Attributes:
        job_id: ID of the job on the platform.
        name: Name of the run in the configuration.
        state: State of the job.
        machine: Short name of the machine of the training step, for example `v5e-4`.
        url: URL of the run's page.
        logs_url: URL of the logs of the training step.
        steps: States of the steps that have started, by name. A successful run has passed the gate only if
            `export_model` or `mark_promoted` is among its finished steps.
        error: Error message of the platform. Empty if the run has not failed.
        lacks_machine: Whether the run failed because its machine was not available.
        waited_seconds: Seconds that the run has been waiting for its machine.
        fingerprints: Fingerprints of data, configuration and code. Empty if unknown.
        digest: Digest of everything that defines the run. Identical runs have the same digest, whether they were
            submitted or started by a schedule.
        created: Time of submission, ISO 8601. Empty if unknown.
        training_seconds: Seconds from the start of the training step to its end, or until now if it has not ended.
            They include the time in which the step waited for its machine.
    """

    job_id: str
    name: str
    state: State
    machine: str = ""
    url: str = ""
    logs_url: str = ""
    steps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""
    lacks_machine: bool = False
    waited_seconds: float = 0
    fingerprints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    digest: str = ""
    created: str = ""
    training_seconds: float = 0

    @property
    def passed_gate(self) -> bool:
        """Whether the model has passed the gate."""
        return self._has_done("export_model", "mark_promoted")  # `mark_promoted` runs if nothing is exported.

    @property
    def promoted(self) -> bool:
        """Whether the model has passed the gate and is registered."""
        return self._has_done("deploy_model")

    @property
    def result(self) -> str:
        """The run's result: `promoted`, `passed` or `not promoted`.

        If the run has not succeeded, the result is the run's state.
        """
        is_rejected = self.state is State.SUCCEEDED and not self.passed_gate
        return result_of(State.REJECTED if is_rejected else self.state, self.promoted)

    def _has_done(self, *steps: str) -> bool:
        return any(self.steps.get(step) in (State.SUCCEEDED, State.CACHED) for step in steps)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule on a platform.

    Attributes:
        schedule_id: ID of the schedule on the platform.
        cron: Cron expression of the start times.
        is_paused: Whether the schedule is paused.
        content: Plain values that define the schedule. Schedules with equal content start identical runs at the same
            times.
        next_run: Time of the next run, in UTC. Empty if unknown.
        url: URL of the schedule's page.
    """

    schedule_id: str
    cron: str
    is_paused: bool
    content: Mapping[str, Any]
    next_run: str = ""
    url: str = ""


def comparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of two schedules in a form that can be compared.

    If both contents have the same digest label, the pipeline specification is left out. A service may add defaults to a
    specification and reorder it, so that equal pipelines would look different.
    """
    digest = after.get("labels", {}).get(DIGEST)
    is_same = bool(digest) and before.get("labels", {}).get(DIGEST) == digest
    left_out = ("pipelineSpec",) if is_same else ()
    old, new = ({key: value for key, value in content.items() if key not in left_out} for content in (before, after))
    return old, new


class PlatformClient(Protocol):
    """Client of a platform for runs and schedules.

    Methods raise `OutageError` for transient errors, and `InputError` if the platform rejects a request.
    """

    def create(self, job: Job) -> Submission:
        """Start a job. If a job with its ID exists, return that job."""

    def get(self, job_id: str) -> Submission | None:
        """Return the job with this ID, or None if there is none."""

    def latest(self, name: str) -> Submission | None:
        """Return the newest job with this name, otherwise the job with this ID, otherwise None."""

    def cancel(self, job_id: str) -> None:
        """Stop a job, unless it has ended."""

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the URI of an output of a job's step, or an empty string if the URI is unknown."""

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the request that `create` would send, without calling the platform."""

    def schedules(self, name: str) -> list[Schedule]:
        """Return all schedules with this name, the oldest first."""

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return `Schedule.content` for this job, without calling the platform."""

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Create a schedule."""

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Change the job or the cron expression of a schedule. A platform that cannot change a schedule replaces it."""

    def pause_schedule(self, schedule_id: str) -> None:
        """Pause a schedule. It does not start runs until it is resumed."""

    def resume_schedule(self, schedule_id: str) -> None:
        """Resume a schedule. Missed runs are not started."""

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, if it exists."""


class Retrying:
    """Wraps a `PlatformClient` and repeats its calls after transient errors.

    If the response to `create` is lost, the repeated call returns the created job. A repeated `create_schedule`,
    however, would create a second schedule, so `schedule.upsert` must get a client without these retries. `upsert` has
    its own retries, which first look for the schedule.

    Args:
        client: Client to call.
        backoff: Retry policy.
    """

    def __init__(self, client: PlatformClient, backoff: Backoff | None = None) -> None:
        self.client = client
        self.backoff = backoff or Backoff()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return lambda *arguments: self.backoff(functools.partial(method, *arguments))

"""Jobs on any platform: the job to submit, the state of a submission, and the interface of platforms."""

import copy
import dataclasses
import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any, Protocol

import yaml

from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import State
from tpu_components.core.machines.machine_spec import MachineSpec

DIGEST = "tpu_pipelines_digest"  # Label with the digest of the run.


FINGERPRINTS = ("data", "configuration", "code")


def slug(name: str) -> str:
    """Convert a name to characters that are valid in ids and labels.

    Example:
        >>> slug("My.Run_2"), slug("3d")
        ('my-run-2', 'run-3d')
    """
    letters = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return letters if letters[:1].isalpha() else f"run-{letters}".strip("-")


def now() -> datetime.datetime:
    """Return the time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


@dataclasses.dataclass(frozen=True)
class Job:
    """A pipeline that is ready to submit.

    Attributes:
        job_id: Id of the job on the platform; unique.
        name: Name of the run in the configuration.
        package: The compiled pipeline, YAML.
        machine: Machine of the training, with its region.
        labels: Labels that identify the job later.
    """

    job_id: str
    name: str
    package: str
    machine: MachineSpec
    labels: Mapping[str, str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the job's data, configuration and code; see `caching.fingerprints`."""
        return fingerprints_in(self.labels)

    @property
    def specification(self) -> dict[str, Any]:
        """The pipeline specification, without the platform specification."""
        return copy.deepcopy(parse_package(self.package))


def fingerprints_in(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints in the labels of a job; see `caching.fingerprints`."""
    return {part: labels[name] for part in FINGERPRINTS if (name := f"tpu_pipelines_{part}") in labels}


@functools.lru_cache(maxsize=16)
def parse_package(package: str) -> dict[str, Any]:
    """Return a compiled pipeline as a mapping."""
    return next(yaml.safe_load_all(package))


@dataclasses.dataclass(frozen=True)
class Submission:
    """State of a run on a platform, at the last request.

    Attributes:
        job_id: Id of the job on the platform.
        name: Name of the run in the configuration.
        state: State of the job.
        machine: Machine of the training, for example `v5e-4`.
        url: URL of the run's page.
        logs_url: URL of the training's logs.
        steps: States of the steps that have started, by name.
        error: The platform's message, if the run failed.
        lacks_machine: Whether the run failed because its machine is not available.
        waited_seconds: Seconds that the run has been waiting for its machine.
        fingerprints: Fingerprints of data, configuration and code; see `caching.fingerprints`. Empty if unknown.
        digest: Digest of the whole run; equal for equal runs, including those of a schedule.
        created: Time of submission, ISO 8601; empty if unknown.
        training_seconds: Seconds that the training has had its machine, or waited for it.
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
    def promoted(self) -> bool:
        """Whether the model has passed the gate."""
        # The second step shows it if nothing is exported.
        judged = (self.steps.get(name) for name in ("export_model", "mark_promoted"))
        return any(state in (State.SUCCEEDED, State.CACHED) for state in judged)


class Submitter(Protocol):
    """A platform for runs. Methods raise `OutageError` for transient errors and `InputError` for refusals."""

    def create(self, job: Job) -> Submission:
        """Start a job, or return the existing job with its id."""

    def get(self, job_id: str) -> Submission | None:
        """Return the job with this id; None if there is none."""

    def latest(self, name: str) -> Submission | None:
        """Return the newest job with this name; None if there is none."""

    def cancel(self, job_id: str) -> None:
        """Stop a job, unless it has ended."""

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the URI of an output of a job's step; empty if unknown."""

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the request of `create`, without a call to the platform."""


@dataclasses.dataclass(frozen=True)
class Retrying:
    """Wraps a platform; retries transient errors."""

    submitter: Submitter
    backoff: Backoff = dataclasses.field(default_factory=Backoff)

    def create(self, job: Job) -> Submission:
        """See `Submitter`. If the response of a call is lost, the repeated call returns the created job."""
        return self.backoff(lambda: self.submitter.create(job))

    def get(self, job_id: str) -> Submission | None:
        """Do what the platform does."""
        return self.backoff(lambda: self.submitter.get(job_id))

    def latest(self, name: str) -> Submission | None:
        """Do what the platform does."""
        return self.backoff(lambda: self.submitter.latest(name))

    def cancel(self, job_id: str) -> None:
        """Do what the platform does."""
        self.backoff(lambda: self.submitter.cancel(job_id))

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Do what the platform does."""
        return self.backoff(lambda: self.submitter.find_output(job_id, step, output))

    def describe(self, job: Job) -> dict[str, Any]:
        """Do what the platform does."""
        return self.submitter.describe(job)

"""What a job is, on any platform: what is sent, what is known of it, and what a platform can be asked."""

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

DIGEST = "tpu_pipelines_digest"  # The label that holds it.


FINGERPRINTS = ("data", "configuration", "code")


def slug(name: str) -> str:
    """Return a name in letters that ids and labels may have.

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
    """A pipeline, ready to be sent.

    Attributes:
        job_id: Id of the job on the platform; there is never a second of that id.
        name: Name of the run, as the configuration says it.
        package: The compiled pipeline, YAML.
        machine: Machine that it trains on; the region is filled in.
        labels: Labels by which it is known later.
    """

    job_id: str
    name: str
    package: str
    machine: MachineSpec
    labels: Mapping[str, str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of what the job follows from; see `caching.fingerprints`."""
        return fingerprints_in(self.labels)

    @property
    def specification(self) -> dict[str, Any]:
        """The pipeline alone, without what is said of the platform beside it."""
        return copy.deepcopy(parse_package(self.package))


def fingerprints_in(labels: Mapping[str, str]) -> dict[str, str]:
    """Return what a job follows from, as its labels say; see `caching.fingerprints`."""
    return {part: labels[name] for part in FINGERPRINTS if (name := f"tpu_pipelines_{part}") in labels}


@functools.lru_cache(maxsize=16)
def parse_package(package: str) -> dict[str, Any]:
    """Return a compiled pipeline as a mapping."""
    return next(yaml.safe_load_all(package))


@dataclasses.dataclass(frozen=True)
class Submission:
    """A run on a platform, as it was when the platform was last asked.

    Attributes:
        job_id: The platform's name of it.
        name: Name of the run, as the configuration says it.
        state: State of the job so far.
        machine: Machine that it trains on, as `v5e-4`.
        url: Address of its page.
        logs_url: Address of what the training prints.
        steps: The state of each step that has one.
        error: Why it failed, in the platform's words.
        lacks_machine: Whether it failed because its machine cannot be had.
        waited_seconds: Seconds that it has waited for its machine without getting it.
        fingerprints: Fingerprints of what it follows from; see `caching.fingerprints`. Empty where it does not say.
        digest: Digest of the whole run; the same run has the same, also one that a schedule started.
        created: When it was sent, ISO 8601; empty where the platform does not say.
        training_seconds: Seconds that the training has had its machine, or waited for it, so far.
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
        """Whether the gate let the model through."""
        # The second stands for the first where nothing is exported.
        judged = (self.steps.get(name) for name in ("export_model", "mark_promoted"))
        return any(state in (State.SUCCEEDED, State.CACHED) for state in judged)


class Submitter(Protocol):
    """A platform. Its methods raise `OutageError` where the same call may succeed later, `InputError` for a refusal."""

    def create(self, job: Job) -> Submission:
        """Start a job; where there is one of its id already, find that."""

    def get(self, job_id: str) -> Submission | None:
        """Return a job, if there is one of that id."""

    def latest(self, name: str) -> Submission | None:
        """Return the newest job of a run, if there is one of that name."""

    def cancel(self, job_id: str) -> None:
        """Stop a job; nothing happens to one that has ended."""

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the place of what a step of a job has written; empty where the platform does not say."""

    def describe(self, job: Job) -> dict[str, Any]:
        """Return what `create` would send, without asking the platform."""


@dataclasses.dataclass(frozen=True)
class Retrying:
    """A platform whose outages are waited out."""

    submitter: Submitter
    backoff: Backoff = dataclasses.field(default_factory=Backoff)

    def create(self, job: Job) -> Submission:
        """Create a job; one that was created without our hearing of it is found."""
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

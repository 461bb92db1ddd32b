"""A run on a platform: sent once, however often it is sent, followed to its end, on the next machine where one is out.

All that must be remembered is on the platform. A job's id follows from the configuration, the data and the code, so
whoever sends the same again, at the same time or from another machine, finds the job that is there.
"""

import copy
import dataclasses
import datetime
import enum
import functools
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from components import storage
from components.machine_spec import MachineSpec
from components.outages import Backoff, PlatformError
from pipelines.config import Config, on_machine
from pipelines.settings import Settings

DIGEST = "tpu_pipelines_digest"  # The label that holds it.
CACHED = "cached"  # The state of a step that the platform's cache answered.
FINGERPRINTS = ("data", "configuration", "code")


def now() -> datetime.datetime:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


class State(enum.StrEnum):
    """Of a run."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


@dataclasses.dataclass(frozen=True)
class Job:
    """A pipeline, ready to be sent.

    Attributes:
        job_id: What the platform is to call it; there is never a second of that id.
        name: Of the run, as the configuration says it.
        package: The compiled pipeline, YAML.
        machine: What it trains on; the region is filled in.
        labels: What is to be known of it later.
    """

    job_id: str
    name: str
    package: str
    machine: MachineSpec
    labels: Mapping[str, str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """What it follows from; see `caching.fingerprints`."""
        return fingerprints_in(self.labels)

    @property
    def specification(self) -> dict[str, Any]:
        """The pipeline alone, without what is said of the platform beside it."""
        return copy.deepcopy(_parse(self.package))


def fingerprints_in(labels: Mapping[str, str]) -> dict[str, str]:
    """What a job's labels say that it follows from; see `caching.fingerprints`."""
    return {part: labels[name] for part in FINGERPRINTS if (name := f"tpu_pipelines_{part}") in labels}


@functools.lru_cache(maxsize=16)
def _parse(package: str) -> dict[str, Any]:
    return next(yaml.safe_load_all(package))


@dataclasses.dataclass(frozen=True)
class Submission:
    """A run on a platform, as it was when the platform was last asked.

    Attributes:
        job_id: The platform's name of it.
        name: Of the run, as the configuration says it.
        state: What became of it so far.
        machine: What it trains on, as `v5e-4`.
        url: Where to look at it.
        logs_url: Where to read what the training prints.
        steps: The state of each step that has one.
        error: Why it failed, in the platform's words.
        lacks_machine: Whether it failed because its machine cannot be had.
        waited_seconds: How long it has waited for its machine without getting it.
        fingerprints: What it follows from; see `caching.fingerprints`. Empty where it does not say.
        digest: Of all of it; what is the same run has the same, also one that a schedule started.
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

    @property
    def promoted(self) -> bool:
        """Whether the gate let the model through."""
        return self.steps.get("export_model") in ("succeeded", CACHED)


class Submitter(Protocol):
    """A platform. Its methods raise `OutageError` where the same call may succeed later, `InputError` for a refusal."""

    def create(self, job: Job) -> Submission:
        """Start a job; where there is one of its id already, find that."""

    def get(self, job_id: str) -> Submission | None:
        """A job, if there is one of that id."""

    def latest(self, name: str) -> Submission | None:
        """The newest job of a run, if there is one of that name."""

    def cancel(self, job_id: str) -> None:
        """Stop a job; nothing happens to one that has ended."""

    def describe(self, job: Job) -> dict[str, Any]:
        """What `create` would send. Asks the platform nothing."""


@dataclasses.dataclass(frozen=True)
class Retrying:
    """A platform whose outages are waited out."""

    submitter: Submitter
    backoff: Backoff = dataclasses.field(default_factory=Backoff)

    def create(self, job: Job) -> Submission:
        """As the platform's; a job that was created without our hearing of it is found."""
        return self.backoff(lambda: self.submitter.create(job))

    def get(self, job_id: str) -> Submission | None:
        """As the platform's."""
        return self.backoff(lambda: self.submitter.get(job_id))

    def latest(self, name: str) -> Submission | None:
        """As the platform's."""
        return self.backoff(lambda: self.submitter.latest(name))

    def cancel(self, job_id: str) -> None:
        """As the platform's."""
        self.backoff(lambda: self.submitter.cancel(job_id))

    def describe(self, job: Job) -> dict[str, Any]:
        """As the platform's."""
        return self.submitter.describe(job)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run as it will be sent: on its machine, and on the others where that one cannot be had.

    Attributes:
        jobs: The job for each machine, in the order in which they are tried.
        image: What every step runs in.
        carried: Content of the files that the jobs read from the bucket, by their place there.
        timeout: When the training is stopped, and why then.
    """

    jobs: tuple[Job, ...]
    image: str = ""
    carried: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    timeout: str = ""

    def has(self, job_id: str) -> bool:
        """Whether a job is one of this run's, of whatever round."""
        return job_id.startswith(self.jobs[0].job_id)

    def round(self, number: int) -> tuple[Job, ...]:
        """The same jobs when they are sent for the 1st, 2nd… time: ids of their own from the 2nd on.

        Example:
            The first machine of the second round: digits-3f9c2a7d41e0-r2.
        """
        if number == 1:
            return self.jobs
        first = self.jobs[0].job_id
        return tuple(
            dataclasses.replace(job, job_id=f"{first}-r{number}{job.job_id.removeprefix(first)}") for job in self.jobs
        )


def plan_submission(config: Config, target: str, settings: Settings) -> Plan:
    """Compile a run for each of its machines, and give it its id.

    Args:
        config: What to run.
        target: The platform, as `vertex`.
        settings: Where it runs.

    Raises:
        InputError: If it cannot be compiled, on any of the machines, or its data cannot be listed.
    """
    from components.create_tfrecords.sources import source_version
    from pipelines.caching import fingerprints
    from pipelines.compile import compile_pipeline, in_region, require_machine

    machines = require_machine(config, target).candidates
    packages, timeouts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for machine in machines:
            path = Path(folder) / "pipeline.yaml"
            compiled = compile_pipeline(on_machine(config, machine), target, path, settings)
            packages.append(path.read_text())
            timeouts.append(compiled.timeout.reason)
    slug, data = _slug(config.name), source_version(config.data)
    made_of = fingerprints(config, data, compiled.image)
    digest = _digest(packages[0], made_of)
    parts = {f"tpu_pipelines_{part}": value for part, value in made_of.items()}
    jobs = []
    for index, (machine, package) in enumerate(zip(machines, packages, strict=True)):
        if target == "vertex":
            machine = in_region(machine, settings)
        labels = {
            **settings.labels,
            "tpu_pipelines_run": slug,
            DIGEST: digest,
            **parts,
            "tpu_pipelines_machine": machine.name,
            "tpu_pipelines_region": machine.region,
            "tpu_pipelines_fallback": str(index),
        }
        job_id = f"{slug}-{digest}" + (f"-f{index}" if index else "")
        jobs.append(Job(job_id, config.name, package, machine, labels))
    return Plan(tuple(jobs), compiled.image, compiled.carried, timeouts[0])


def without_cache(plan: Plan) -> Plan:
    """Return the same run with every step to be run, whatever the platform has kept of earlier ones."""
    return dataclasses.replace(
        plan, jobs=tuple(dataclasses.replace(job, package=_without_cache(job.package)) for job in plan.jobs)
    )


def _without_cache(package: str) -> str:
    spec, *platforms = yaml.safe_load_all(package)
    for component in (spec["root"], *spec["components"].values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task.pop("cachingOptions", None)
    return yaml.safe_dump_all([spec, *platforms])


def put_carried(plan: Plan) -> None:
    """Put what the jobs of a run read from the bucket there; what is there already is the same.

    Raises:
        InputError: If the bucket is missing or may not be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        for place, content in plan.carried.items():
            path = Path(folder) / Path(place).name
            path.write_bytes(content)
            storage.upload(path, place)


def _slug(name: str) -> str:
    """A name in letters that ids and labels may have.

    Example:
        >>> _slug("My.Run_2"), _slug("3d")
        ('my-run-2', 'run-3d')
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return slug if slug[:1].isalpha() else f"run-{slug}".strip("-")


def _digest(package: str, fingerprints: Mapping[str, str]) -> str:
    """What makes a run this run: its pipeline, what its data are, and the code that its steps run.

    Where else it could run, and how long to wait for that, make it no other run.
    """
    spec = {key: value for key, value in _parse(package).items() if key != "sdkVersion"}
    return hashlib.sha256(json.dumps([spec, fingerprints], sort_keys=True).encode()).hexdigest()[:12]


def submit(plan: Plan, submitter: Submitter, again: bool = False) -> Submission:
    """Start a run, or find it where it is: on whatever machine, and if it has ended, as it ended.

    Args:
        plan: The run.
        submitter: The platform.
        again: Start it once more if it has ended.
    """
    put_carried(plan)
    number = 1
    while True:
        submission = _find(plan.round(number), submitter)
        if submission is None:
            return submitter.create(plan.round(number)[0])
        later = plan.round(number + 1)[0].job_id
        if not submission.state.is_final or (not again and submitter.get(later) is None):
            return submission
        number += 1


def look_up(plan: Plan, submitter: Submitter) -> Submission | None:
    """The last job of a run that there is, on whatever machine; starts none."""
    found, number = None, 1
    while jobs := [job for one in plan.round(number) if (job := submitter.get(one.job_id))]:
        found, number = jobs[-1], number + 1
    return found


def _find(jobs: tuple[Job, ...], submitter: Submitter) -> Submission | None:
    """The job of a round that counts: the first that did not lack its machine. All but a round's first are created."""
    found = None
    for job in jobs:
        submission = submitter.get(job.job_id)
        if submission is None:
            return submitter.create(job) if found else None
        found = submission
        if not _lacked_machine(submission, job):
            break
    return found


def _lacked_machine(submission: Submission, job: Job) -> bool:
    """Whether the job ended for want of its machine: the platform said so, or whoever waited for it gave up."""
    limit = job.machine.max_wait_seconds
    gave_up = submission.state is State.CANCELLED and 0 < limit <= submission.waited_seconds
    return submission.lacks_machine or gave_up


def wait(
    plan: Plan,
    submission: Submission,
    submitter: Submitter,
    report: Callable[[Submission], None] = lambda _: None,
    poll_seconds: float = 20,
    sleep: Callable[[float], None] = time.sleep,
) -> Submission:
    """Follow a run to its end, onto the next machine where one cannot be had.

    To be killed and started again at will: it remembers nothing that the platform does not.

    Args:
        plan: The run.
        submission: What `submit` gave.
        submitter: The platform.
        report: Told of every state that is seen.
        poll_seconds: Between two looks.
        sleep: Waits.

    Raises:
        PlatformError: If the job vanishes.
    """
    number, index = _place(plan, submission.job_id)
    jobs = plan.round(number)
    given_up = False
    while True:
        report(submission)
        job, is_last = jobs[index], index + 1 == len(jobs)
        if submission.state.is_final:
            ended_early = submission.state is not State.SUCCEEDED and given_up
            if is_last or not (ended_early or _lacked_machine(submission, job)):
                return submission
            index, given_up = index + 1, False
            submission = submitter.create(jobs[index])
            continue
        if not is_last and not given_up and 0 < job.machine.max_wait_seconds <= submission.waited_seconds:
            submitter.cancel(job.job_id)
            given_up = True
        sleep(poll_seconds)
        current = submitter.get(job.job_id)
        if current is None:
            raise PlatformError(f"The run {job.job_id} is gone: somebody has deleted it. Submit it again.")
        submission = current


def _place(plan: Plan, job_id: str) -> tuple[int, int]:
    """The round of a job, and its place in it."""
    rest = job_id.removeprefix(plan.jobs[0].job_id)
    number = int(found[1]) if (found := re.match(r"-r(\d+)", rest)) else 1
    return number, [job.job_id for job in plan.round(number)].index(job_id)

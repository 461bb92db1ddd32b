"""Submits a run to a platform exactly once, and follows it to its end.

If a machine is not available, the run moves to the next machine.

All state is on the platform. The ID of a job is derived from the configuration, the data and the code. A repeated
submission therefore finds the existing job, even if the submission is concurrent or comes from another computer.
"""

import dataclasses
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping

import yaml

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State, Status
from tpu_components.core.files import storage
from tpu_components.core.sources.kinds import find_source, source_version
from tpu_components.core.sources.params import BEAM
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.preflight_training.estimate import INTERVALS
from tpu_components.preflight_training.findings import LEFT_OUT
from tpu_pipelines.checks.check_list import image_check, model_findings
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline import compile as compiling
from tpu_pipelines.pipeline.cache_keys import fingerprints
from tpu_pipelines.pipeline.compile import ResolvedRun
from tpu_pipelines.platforms.data_sizes import measure, with_sizes
from tpu_pipelines.platforms.findings import CannotAskError, Check, Finding, answer
from tpu_pipelines.platforms.jobs import DIGEST, Job, PlatformClient, Submission, now, slug
from tpu_pipelines.platforms.machines import require_machine
from tpu_pipelines.platforms.platform import Platform
from tpu_pipelines.runs.prerequisites import check_data
from tpu_pipelines.sizing.preflight import judge_machines


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """A run that is ready to submit, on its machine and on its fallbacks.

    Attributes:
        jobs: Job for each machine, in the order in which the machines are tried.
        runs: Run from which each job was built, in the same order.
        resources: Text about the resources that steps request because of the size of the data. Empty if the steps
            request the defaults.
        data: Plan of the data set, or None if the data must be downloaded first.
    """

    jobs: tuple[Job, ...]
    runs: tuple[ResolvedRun, ...] = ()
    resources: str = ""
    data: DatasetPlan | None = None

    @property
    def carried(self) -> Mapping[str, bytes]:
        """Content of the files that the jobs read from the bucket, by URI. It is the same for all machines."""
        return self.runs[0].carried if self.runs else {}

    @property
    def checkpoints(self) -> str:
        """Folder of the checkpoints on the first machine, relative to the bucket or volume."""
        return self.runs[0].checkpoints

    def has(self, job_id: str) -> bool:
        """Return whether a job belongs to any submission of this run, on any machine."""
        return job_id.startswith(self.jobs[0].job_id)

    def round(self, number: int) -> tuple[Job, ...]:
        """Return the jobs of the submission with this number, one job per machine.

        From the second submission on, the job IDs contain the number. For example, the second submission on the first
        machine has the ID digits-3f9c2a7d41e0-r2.

        Args:
            number: Number of the submission, from 1.
        """
        if number == 1:
            return self.jobs
        first = self.jobs[0].job_id
        return tuple(
            dataclasses.replace(job, job_id=f"{first}-r{number}{job.job_id.removeprefix(first)}") for job in self.jobs
        )

    def number_of(self, job_id: str) -> int:
        """Return the number (from 1) of the submission to which a job belongs. See `RunPlan.round`."""
        match = re.match(r"-r(\d+)", job_id.removeprefix(self.jobs[0].job_id))
        return int(match[1]) if match else 1

    def jobs_from(self, job_id: str) -> list[Job]:
        """Return the job with this ID, and the jobs on the next machines of the same submission."""
        return list(itertools.dropwhile(lambda job: job.job_id != job_id, self.round(self.number_of(job_id))))


def plan_submission(config: Config, platform: Platform, settings: Settings) -> RunPlan:
    """Plan a run: check its data, compile it for each of its machines, and derive the IDs of its jobs.

    Args:
        config: Configuration to run.
        platform: The platform.
        settings: Project, region, bucket and images.

    Raises:
        InputError: If the run cannot be compiled for one of its machines, or its data cannot be used.
    """
    machines = require_machine(config, platform).candidates
    data = None if find_source(config.data.source_ref).is_downloaded else check_data(config)
    # The compilation rejects local data, and the data sets of libraries are small.
    listed = data.listing if data and config.data_location.is_remote else None
    sized, resources = with_sizes(config, measure(listed, config.data), platform) if listed else (config, "")
    compiled = [
        compiling.compile_pipeline(dataclasses.replace(sized, machine=machine), platform, settings)
        for machine in machines
    ]
    name = slug(config.name)
    beam = settings.images.beam if config.data.engine == BEAM else ""
    images = " ".join(filter(None, (settings.images.training, settings.images.other_steps, beam)))
    made_of = fingerprints(config, source_version(config.data, data.listing if data else None), images)
    # The digest covers the pipeline, what its pods mount, the data and the code. It leaves out the fallbacks and how
    # long to wait for them.
    pipeline, *kubernetes = yaml.safe_load_all(compiled[0].package)
    spec = {key: value for key, value in pipeline.items() if key != "sdkVersion"}
    digest = digest_of([spec, *kubernetes, made_of])[:12]
    parts = {f"tpu_pipelines_{part}": value for part, value in made_of.items()}
    jobs = []
    for index, made in enumerate(compiled):
        labels = {
            **settings.labels,
            "tpu_pipelines_run": name,
            DIGEST: digest,
            **parts,
            "tpu_pipelines_machine": made.run.machine.name,
            "tpu_pipelines_region": made.run.machine.region,
            "tpu_pipelines_fallback": str(index),
        }
        job_id = f"{name}-{digest}" + (f"-f{index}" if index else "")
        jobs.append(Job(job_id, config.name, made.package, made.run.machine, labels))
    return RunPlan(tuple(jobs), tuple(made.run for made in compiled), resources, data)


def without_cache(plan: RunPlan) -> RunPlan:
    """Return a copy of the plan in which every step runs, without using the platform's cache or earlier checkpoints.

    The run writes its checkpoints to a new folder, whose name contains the current time. A job that restarts continues
    from these checkpoints, and so does a job on a fallback machine.
    """
    jobs = []
    anew = f"{plan.checkpoints}/{now():%Y%m%dT%H%M%S%f}"
    for job in plan.jobs:
        spec, *platforms = json.loads(json.dumps(job.specifications).replace(plan.checkpoints, anew))
        for component in (spec["root"], *spec["components"].values()):
            for task in component.get("dag", {}).get("tasks", {}).values():
                task.pop("cachingOptions", None)
        jobs.append(dataclasses.replace(job, package=yaml.safe_dump_all([spec, *platforms])))
    return dataclasses.replace(plan, jobs=tuple(jobs))


def put_carried(plan: RunPlan) -> None:
    """Upload the files that the jobs of a run read from the bucket.

    Raises:
        InputError: If the bucket does not exist or cannot be written.
    """
    for place, content in plan.carried.items():
        storage.write_file(place, content)


def submit(plan: RunPlan, submitter: PlatformClient, again: bool = False) -> Submission:
    """Start a run, or return its existing job.

    The existing job may have ended, or may use a fallback machine.

    Args:
        plan: Plan of the run.
        submitter: Client of the platform.
        again: Whether to start the run again if it has ended.
    """
    put_carried(plan)
    if (newest := look_up(plan, submitter)) is None:
        return submitter.create(plan.jobs[0])
    job, *fallbacks = plan.jobs_from(newest.job_id)
    if fallbacks and _lacked_machine(newest, job):  # The waiting process was killed before this.
        return submitter.create(fallbacks[0])
    if again and newest.state.is_final:
        return submitter.create(plan.round(plan.number_of(newest.job_id) + 1)[0])
    return newest


def look_up(plan: RunPlan, submitter: PlatformClient) -> Submission | None:
    """Return the newest job of a run on any of its machines, or None if the run has no job. No job is started."""
    newest, number = None, 1
    while jobs := [job for planned in plan.round(number) if (job := submitter.get(planned.job_id))]:
        newest = jobs[-1]
        number = number + 1
    return newest


def _lacked_machine(submission: Submission, job: Job) -> bool:
    """Return True if a job ended because its machine was not available, or did not become available in time."""
    limit = job.machine.max_wait_seconds
    gave_up = submission.state is State.CANCELLED and 0 < limit <= submission.waited_seconds
    return submission.lacks_machine or gave_up


def wait(
    plan: RunPlan,
    submission: Submission,
    submitter: PlatformClient,
    report: Callable[[Submission], None] = lambda _: None,
    poll_seconds: float = 20,
    sleep: Callable[[float], None] = time.sleep,
) -> Submission:
    """Follow a run to its end. If a machine is not available, start the run on the next machine.

    If the process is killed, `wait` can be repeated, because all state is on the platform.

    Args:
        plan: Plan of the run.
        submission: Result of `submit`.
        submitter: Client of the platform.
        report: Function that is called with every state of the run.
        poll_seconds: Seconds between two requests for the state.
        sleep: Function that waits for a number of seconds.

    Raises:
        PlatformError: If the job was deleted.
    """
    job, *fallbacks = plan.jobs_from(submission.job_id)
    given_up = False
    report(submission)
    while not submission.state.is_final:
        if fallbacks and not given_up and 0 < job.machine.max_wait_seconds <= submission.waited_seconds:
            submitter.cancel(job.job_id)
            given_up = True
        sleep(poll_seconds)
        current = submitter.get(job.job_id)
        if current is None:
            raise PlatformError(f"The run {job.job_id} was deleted on the platform. Submit it again.")
        submission = current
        report(submission)
    ended_early = submission.state is not State.SUCCEEDED and given_up
    if not fallbacks or not (ended_early or _lacked_machine(submission, job)):
        return submission
    return wait(plan, submitter.create(fallbacks[0]), submitter, report, poll_seconds, sleep)


def describe(config: Config, plan: RunPlan) -> Iterator[Finding]:
    """Yield findings about a run without submitting it (dry run): machine, price, image, data, model and job.

    Args:
        config: Configuration of the run.
        plan: Plan of the run.
    """
    run = plan.runs[0]
    machines = [f"{job.machine.name} in {job.machine.region}".removesuffix(" in ") for job in plan.jobs]
    splits = plan.data.split_examples if plan.data else {}
    yield Finding("machine", Status.OK, ", then ".join(machines))
    yield from answer(Check("price", lambda: _prices(config, plan)))
    yield from answer(image_check(run.platform, run.settings.images))
    data = [config.data.source, *(f"{split} {count:,}" for split, count in splits.items())]
    yield Finding("data", Status.OK, ", ".join(data))
    if plan.resources:
        yield Finding("requests", Status.OK, plan.resources)
    yield from model_findings(config.training.model, plan.carried)
    yield Finding("job", Status.OK, f"{plan.jobs[0].job_id}, with its checkpoints in {plan.checkpoints}")


def _prices(config: Config, plan: RunPlan) -> Iterator[Finding]:
    """Yield preflight's summary for each machine, with the platform's price.

    Raises:
        CannotAskError: If preflight is switched off, or the data must be downloaded first.
        InputError: If the compiler is not installed, or the training step cannot be compiled.
    """
    if plan.data is None:
        raise CannotAskError(f"unknown until the data are downloaded: tpu-pipelines preflight {config.name}")
    reports = judge_machines(config, plan.data.listing, [run.paid for run in plan.runs])
    lines = [report.summary for report in reports]
    lines += [INTERVALS, LEFT_OUT] if any(report.step for report in reports) else []
    yield from (Finding("price", Status.OK, line) for line in lines)

"""A run on a platform: sent once, however often it is sent, followed to its end, on the next machine where one is out.

All that must be remembered is on the platform. A job's id follows from the configuration, the data and the code, so
whoever sends the same again, at the same time or from another machine, finds the job that is there.
"""

import dataclasses
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tpu_components.core.base.container_images import BEAM_IMAGE, other_steps_image
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.files import storage
from tpu_components.core.sources.params import BEAM
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.resources import on_machine
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.custom_job import start_anew
from tpu_pipelines.platforms.jobs import DIGEST, Job, Submission, Submitter, slug

if TYPE_CHECKING:
    from tpu_components.create_tfrecords.planning import DatasetPlan


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """A run as it will be sent: on its machine, and on the others where that one cannot be had.

    Attributes:
        jobs: The job for each machine, in the order in which they are tried.
        image: Image that every step runs in.
        carried: Content of the files that the jobs read from the bucket, by their place there.
        timeout: When the training is stopped, and why then.
        resources: Resources that steps ask for because of the data's size; empty where that is nothing more than
            always.
        data: The examples; None where they have to be downloaded first.
    """

    jobs: tuple[Job, ...]
    image: str = ""
    carried: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    timeout: str = ""
    resources: str = ""
    data: "DatasetPlan | None" = None

    def has(self, job_id: str) -> bool:
        """Return whether a job is one of this run's, of whatever round."""
        return job_id.startswith(self.jobs[0].job_id)

    def round(self, number: int) -> tuple[Job, ...]:
        """Return the same jobs when they are sent for the 1st, 2nd… time: ids of their own from the 2nd on.

        Example:
            The first machine of the second round: digits-3f9c2a7d41e0-r2.
        """
        if number == 1:
            return self.jobs
        first = self.jobs[0].job_id
        return tuple(
            dataclasses.replace(job, job_id=f"{first}-r{number}{job.job_id.removeprefix(first)}") for job in self.jobs
        )


def plan_submission(config: Config, target: str, settings: Settings) -> RunPlan:
    """Check a run's data, compile it for each of its machines, and give it its id.

    Args:
        config: Configuration to run.
        target: The platform, as `vertex`.
        settings: Project, region, bucket and images.

    Raises:
        InputError: If it cannot be compiled, on any of the machines, or its data cannot be used.
    """
    from tpu_components.core.sources.kinds import find_source, source_version
    from tpu_pipelines.checking.checks import check_data
    from tpu_pipelines.config.resources import measure, with_sizes
    from tpu_pipelines.pipeline.cache_keys import fingerprints
    from tpu_pipelines.pipeline.compile import compile_pipeline, placed, require_machine

    candidates = [on_machine(config, machine, target) for machine in require_machine(config, target).candidates]
    machines = [require_machine(placed(candidate, target, settings), target) for candidate in candidates]
    data = None if find_source(config.data.source)[0].is_downloaded else check_data(config)
    # What lies elsewhere is no step's to read: compiling refuses it. What comes with a library is small.
    listed = data.listing if data and storage.is_remote(config.data_location) else None
    sized, resources = with_sizes(config, measure(listed, config.data), target) if listed else (config, "")
    packages, timeouts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for machine in machines:
            path = Path(folder) / "pipeline.yaml"
            compiled = compile_pipeline(on_machine(sized, machine, target), target, path, settings)
            packages.append(path.read_text())
            timeouts.append(compiled.timeout.reason)
    name = slug(config.name)
    images = f"{compiled.image} {other_steps_image()}".rstrip() + f" {BEAM_IMAGE}" * (config.data.engine == BEAM)
    made_of = fingerprints(config, source_version(config.data, data.listing if data else None), images)
    digest = _digest(packages[0], made_of)
    parts = {f"tpu_pipelines_{part}": value for part, value in made_of.items()}
    jobs = []
    for index, (machine, package) in enumerate(zip(machines, packages, strict=True)):
        labels = {
            **settings.labels,
            "tpu_pipelines_run": name,
            DIGEST: digest,
            **parts,
            "tpu_pipelines_machine": machine.name,
            "tpu_pipelines_region": machine.region,
            "tpu_pipelines_fallback": str(index),
        }
        job_id = f"{name}-{digest}" + (f"-f{index}" if index else "")
        jobs.append(Job(job_id, config.name, package, machine, labels))
    return RunPlan(tuple(jobs), compiled.image, compiled.carried, timeouts[0], resources, data)


def without_cache(plan: RunPlan) -> RunPlan:
    """Return the same run with every step to be run, whatever the platform has kept of earlier ones."""
    return dataclasses.replace(
        plan, jobs=tuple(dataclasses.replace(job, package=_without_cache(job.package)) for job in plan.jobs)
    )


def _without_cache(package: str) -> str:
    spec, *platforms = yaml.safe_load_all(package)
    for component in (spec["root"], *spec["components"].values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task.pop("cachingOptions", None)
    start_anew(spec)
    return yaml.safe_dump_all([spec, *platforms])


def put_carried(plan: RunPlan) -> None:
    """Put what the jobs of a run read from the bucket there; what is there already is the same.

    Raises:
        InputError: If the bucket is missing or may not be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        for place, content in plan.carried.items():
            path = Path(folder) / Path(place).name
            path.write_bytes(content)
            storage.upload(path, place)


def _digest(package: str, fingerprints: Mapping[str, str]) -> str:
    """Digest what makes a run this run: its pipeline with what its pods mount, its data, and its steps' code.

    Where else it could run, and how long to wait for that, make it no other run.
    """
    pipeline, *platforms = yaml.safe_load_all(package)
    spec = {key: value for key, value in pipeline.items() if key != "sdkVersion"}
    return digest_of([spec, *platforms, fingerprints])[:12]


def submit(plan: RunPlan, submitter: Submitter, again: bool = False) -> Submission:
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


def look_up(plan: RunPlan, submitter: Submitter) -> Submission | None:
    """Return the last job of a run that there is, on whatever machine; starts none."""
    newest, number = None, 1
    while jobs := [job for planned in plan.round(number) if (job := submitter.get(planned.job_id))]:
        newest, number = jobs[-1], number + 1
    return newest


def _find(jobs: tuple[Job, ...], submitter: Submitter) -> Submission | None:
    """Find the job of a round that counts, the first that did not lack its machine; all but the first are created."""
    newest = None
    for job in jobs:
        submission = submitter.get(job.job_id)
        if submission is None:
            return submitter.create(job) if newest else None
        newest = submission
        if not _lacked_machine(submission, job):
            break
    return newest


def _lacked_machine(submission: Submission, job: Job) -> bool:
    """Return whether the job ended for want of its machine: the platform said so, or whoever waited for it gave up."""
    limit = job.machine.max_wait_seconds
    gave_up = submission.state is State.CANCELLED and 0 < limit <= submission.waited_seconds
    return submission.lacks_machine or gave_up


def wait(
    plan: RunPlan,
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
        submission: Result of `submit`.
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


def _place(plan: RunPlan, job_id: str) -> tuple[int, int]:
    """Return the round of a job, and its place in it."""
    rest = job_id.removeprefix(plan.jobs[0].job_id)
    number = int(match[1]) if (match := re.match(r"-r(\d+)", rest)) else 1
    return number, [job.job_id for job in plan.round(number)].index(job_id)

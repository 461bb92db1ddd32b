"""Runs predictions as an Apache Beam pipeline, on any runner.

The step's process lists the source, and writes a task for each prediction file. Each worker predicts the examples
of some tasks, and writes their files. The process shares this folder with the workers:

TEMP/JOB          tasks and finished files, see `resume_state`; TEMP is the option `temp_location`
TEMP/JOB/export   copy of a local model, for workers on other machines
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.kinds import location_of
from tpu_components.core.sources.tasks import load_tasks, pack_tasks
from tpu_components.core.work.beam.options import complete
from tpu_components.core.work.beam.running import call_for_each
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.predict_batch.answering import Work, answer_part
from tpu_components.predict_batch.params import PredictParams
from tpu_components.predict_batch.prediction_files import STEP, Plan, file_name


def options_of(params: PredictParams, export: str) -> dict[str, str]:
    """Check the options of the pipeline. Return them with the defaults that the runner needs.

    Raises:
        InputError: If Beam is not installed, an option is unknown, or an option that the runner needs is missing.
    """
    reads = {"the source": location_of(params.source_ref), "the model": export if Location(export).is_remote else ""}
    return complete(params.beam_options, reads)


def answer_with_beam(plan: Plan, options: Mapping[str, str], own: Path) -> ResumeState:
    """Write missing prediction files on the workers of a Beam runner.

    Return the resume state: a folder with all finished files, from which a restarted run continues.

    Args:
        plan: Plan of the files.
        options: Options of the pipeline, from `options_of`.
        own: Folder for the files if `temp_location` is not set.

    Raises:
        InputError: If a worker reports a mistake of the user, or the runner rejects the options.
        PlatformError: If the runner's job fails.
    """
    job = f"tpu-pipelines-answers-{plan.digest[:16]}"
    place = Location(options.get("temp_location", "") or f"{own}/beam").child(job)
    state = ResumeState(place).begin(plan.digest)
    finished = state.finished()

    def pack(number: int) -> bytes:
        examples = plan.select(number)
        return pack_tasks(plan.digest, examples, {number: len(examples.keys)})

    if missing := [number for number, name in enumerate(plan.names) if name not in finished]:
        state.hand_over(missing, pack)
        work = plan.work  # One thread: a runner has a worker for each processor.
        if place.is_remote and not Location(work.export).is_remote:  # Workers may be on other machines.
            storage.upload(Path(work.export), f"{place}/export")
            work = dataclasses.replace(work, export=f"{place}/export")
        arguments = {"work": work, "place": place, "digest": plan.digest, "num_files": len(plan.names)}
        call_for_each(missing, answer_file, arguments, job, options, STEP)
    return state


def answer_file(number: int, work: Work, place: str, digest: str, num_files: int) -> None:
    """Write a prediction file on a worker, unless it is already finished.

    Args:
        number: Number of the file.
        work: Settings of the workers.
        place: Folder of the job.
        digest: Digest of the plan.
        num_files: Number of files.
    """
    state = ResumeState(place)
    name = file_name(number, num_files, work.params.form)
    if state.is_whole(name):
        return
    for _, examples in load_tasks(state.task(number), digest):
        answer_part(work, examples, state, name)

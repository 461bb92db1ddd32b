"""Files of predictions as a pipeline of Apache Beam, on any of its runners: each worker answers some of them.

TEMP/JOB          tasks and finished files, as `resume_state` says: this process lists the source, and no worker does
TEMP/JOB/export   the model, of which a folder in a bucket has a copy for workers elsewhere
"""

from collections.abc import Mapping
from pathlib import Path

from tpu_components.core.files import storage
from tpu_components.core.sources.tasks import load_tasks, pack_tasks
from tpu_components.core.work.beam.options import complete
from tpu_components.core.work.beam.running import call_for_each
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.predict_batch.answering import Work, answer_part
from tpu_components.predict_batch.inputs import location_of
from tpu_components.predict_batch.params import PredictParams
from tpu_components.predict_batch.planning import Plan, file_name
from tpu_components.predict_batch.publishing import STEP, collect


def options_of(params: PredictParams, export: str) -> dict[str, str]:
    """Return the options of the pipeline with the runner among them.

    Raises:
        InputError: If Beam is not installed, does not know one of them, or a runner on other machines lacks one.
    """
    reads = {"the source": location_of(params.source), "the model": export if storage.is_remote(export) else ""}
    return complete(params.beam_options, reads)


def answer_with_beam(plan: Plan, options: Mapping[str, str], begun: ResumeState) -> None:
    """Have the files that are not there yet written by the workers of a Beam runner.

    Args:
        plan: Plan of the files.
        options: Options of the pipeline, complete.
        begun: Folder that gets them.

    Raises:
        InputError: If a worker met a user's mistake, or the runner refuses its options.
        PlatformError: If the runner's job fails.
    """
    job = f"tpu-pipelines-answers-{plan.digest[:16]}"
    place = storage.join(options.get("temp_location", "") or f"{begun.root}/beam", job)
    there = ResumeState(place)
    there.begin(plan.digest)
    finished = there.finished()

    def pack(number: int) -> bytes:
        keys, contents, kept = plan.contents(number)
        arguments = (kept, keys, contents, None)  # In place of labels.
        return pack_tasks(plan.digest, arguments, {number: len(keys)}, plan.inputs.are_in_place)

    if missing := [number for number, name in enumerate(plan.names) if name not in finished]:
        there.hand_over(missing, pack)
        # One thread: a runner has a worker for each processor.
        work = plan.work(num_threads=1, export=_place_of_model(plan, place))
        arguments = {"work": work, "place": place, "digest": plan.digest, "num_files": plan.num_files}
        call_for_each(missing, answer_file, arguments, job, options, STEP)
    collect(plan, [there], begun)


def answer_file(number: int, work: Work, place: str, digest: str, num_files: int) -> None:
    """Write a file of predictions, on a worker.

    Args:
        number: Number of the file.
        work: Facts that every worker is told.
        place: Folder of the job.
        digest: Digest of all that decides what the files hold.
        num_files: Number of files.
    """
    begun, name = ResumeState(place), file_name(number, num_files, work.form)
    if begun.is_whole(name):
        return
    for _, (kept, keys, contents, _) in load_tasks(begun.task(number), digest):
        answer_part(work, keys, contents, kept, begun, name)


def _place_of_model(plan: Plan, place: str) -> str:
    """Return where workers find the model: of one on a disk a copy, where they may be on other machines."""
    if storage.is_remote(plan.export) or not storage.is_remote(place):
        return plan.export
    storage.upload(Path(plan.export), copy := f"{place}/export")
    return copy

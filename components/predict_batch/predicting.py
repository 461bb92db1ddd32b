"""Every example of a source answered once: files of predictions that a restart goes on with, then published whole."""

import os
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.files import storage
from tpu_components.core.sources.params import BEAM
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.core.work.workers import in_processes
from tpu_components.predict_batch import beam
from tpu_components.predict_batch.answering import answer_part
from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.planning import Plan, plan_answers
from tpu_components.predict_batch.publishing import STEP, SUMMARY_FILE, begun_beside, publish


def predict_batch(params: PredictParams, export: str | Path, directory: Path) -> PredictResult:
    """Answer every example of a source once with an exported model.

    A file of `part_examples` predictions is finished at a time, in a hidden folder beside `directory`. A run of the
    same model on the same source goes on there, and leaves the same bytes as one that nobody has killed.

    Args:
        params: Source to read, the form to write, and the engine that does it.
        export: Folder that export_model wrote, here or in a bucket.
        directory: Folder to write; appears whole or not at all. Predictions that it already holds are replaced.

    Raises:
        InputError: If the model or the source cannot be used, no example can be read, or `directory` holds something
            else.
        PlatformError: If a Beam runner's job fails.
    """
    storage.require_output(directory, SUMMARY_FILE)
    options = beam.options_of(params, str(export)) if params.engine == BEAM else {}
    plan = plan_answers(params, str(export))
    begun = begun_beside(directory)
    begun.begin(plan.digest)
    if params.engine == BEAM:
        beam.answer_with_beam(plan, options, begun)
    else:
        answer_files(plan, begun, range(plan.num_files))
    return publish(plan, begun, directory)


def answer_files(plan: Plan, begun: ResumeState, wanted: Sequence[int]) -> int:
    """Write those of some files that are not there yet, in worker processes; returns how many were there."""
    names = plan.names
    there = begun.whole(names[number] for number in wanted)
    missing = [number for number in wanted if names[number] not in there]
    num_workers = max(1, min(plan.params.num_workers or os.cpu_count() or 1, len(missing)))
    work = plan.work(max(1, (os.cpu_count() or 1) // num_workers))
    total = sum(len(plan.examples(number)) for number in wanted)
    if kept := total - sum(len(plan.examples(number)) for number in missing):
        progress.say(STEP, f"going on after {kept:,} of {total:,} examples, which an earlier run has answered")
    calls = ((work, *plan.contents(number), begun, names[number]) for number in missing)
    with progress.track(STEP, total, "examples") as bar, in_processes(answer_part, calls, num_workers) as answered:
        bar.update(kept)
        for number, _ in zip(missing, answered, strict=True):
            bar.update(len(plan.examples(number)))
    return len(wanted) - len(missing)

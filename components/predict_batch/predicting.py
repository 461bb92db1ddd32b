"""Every example of a source answered once: in files that a restart goes on with, or in one file for a person."""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.sources.params import BEAM
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.core.work.workers import in_processes
from tpu_components.predict_batch import beam
from tpu_components.predict_batch.answering import answer_part
from tpu_components.predict_batch.params import FORMS, PARQUET, PredictParams, PredictResult
from tpu_components.predict_batch.prediction_files import (
    ASIDE_FILE,
    STEP,
    SUMMARY_FILE,
    Plan,
    plan_answers,
    publish,
    state_beside,
)


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
    state = state_beside(directory)
    state.begin(plan.digest)
    if params.engine == BEAM:
        beam.answer_with_beam(plan, options, state)
    else:
        answer_files(plan, state, range(len(plan.names)))
    return publish(plan, state, directory)


def answer_files(plan: Plan, state: ResumeState, wanted: Sequence[int]) -> int:
    """Write those of some files that are not there yet, in worker processes; returns how many were there."""
    finished = state.whole(plan.names[number] for number in wanted)
    missing = [number for number in wanted if plan.names[number] not in finished]
    num_workers = max(1, min(plan.params.num_workers or os.cpu_count() or 1, len(missing)))
    work = dataclasses.replace(plan.work, num_threads=max(1, (os.cpu_count() or 1) // num_workers))
    sizes = {number: len(plan.examples(number)) for number in wanted}
    total = sum(sizes.values())
    if kept := total - sum(sizes[number] for number in missing):
        progress.say(STEP, f"going on after {kept:,} of {total:,} examples, which an earlier run has answered")
    calls = ((work, *plan.contents(number), state, plan.names[number]) for number in missing)
    with progress.track(STEP, total, "examples") as bar, in_processes(answer_part, calls, num_workers) as answered:
        bar.update(kept)
        for number, _ in zip(missing, answered, strict=True):
            bar.update(sizes[number])
    return len(wanted) - len(missing)


def form_of(file: Path) -> str:
    """Return the form that a file's name asks for.

    Raises:
        InputError: If its suffix is none of them.
    """
    form = file.suffix.removeprefix(".").lower()
    if form not in FORMS:
        raise InputError(f"Cannot write {file}: expected a name that ends in .jsonl or .parquet. Rename it.")
    return form


def predict_to_file(params: PredictParams, export_dir: Path, file: Path) -> tuple[PredictResult, Path | None]:
    """Answer every example of a source once, in one file, which appears whole or not at all; see `predict_batch`.

    Returns:
        The counts; and the file beside it that says what was set aside and why, where something was.
    """
    storage.require_writable(file.parent)
    if file.is_dir():
        raise InputError(f"Cannot write {file}: it is a folder. Expected the name of a file. Choose another one.")
    folder = file.with_name(f".{file.name}.parts")
    result = predict_batch(params, export_dir, folder)
    parts = sorted(folder.glob(f"predictions-*.{params.form}"))
    half = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        (_join_tables if params.form == PARQUET else _join_lines)(parts, half)
        aside = file.with_name(f"{file.stem}.{ASIDE_FILE}")
        if result.num_set_aside:
            os.replace(folder / ASIDE_FILE, aside)
        else:
            aside.unlink(missing_ok=True)
        os.replace(half, file)
    finally:
        half.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return result, aside if result.num_set_aside else None


def _join_lines(parts: Sequence[Path], file: Path) -> None:
    with open(file, "wb") as whole:
        for part in parts:
            with open(part, "rb") as content:
                shutil.copyfileobj(content, whole)


def _join_tables(parts: Sequence[Path], file: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, pq.read_schema(parts[0])) as whole:
        for part in parts:
            whole.write_table(pq.read_table(part))

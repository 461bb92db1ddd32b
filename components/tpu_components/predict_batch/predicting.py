"""Predicts every example of a source once, and writes the predictions to a folder of files or to a single file.

If a run is killed, the next run continues from its finished files.
"""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
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
)


def predict_batch(params: PredictParams, export: str | Path, directory: str | Path) -> PredictResult:
    """Predict every example of a source once with an exported model.

    Finished files of `part_examples` predictions are kept in a hidden folder next to `directory`. If a run is killed,
    the next run of the same model on the same source continues from these files and writes the same bytes.

    Args:
        params: Source, format and engine.
        export: Folder that export_model wrote, local or in a bucket.
        directory: Folder to write. It is written completely or not at all. Existing predictions are replaced.

    Raises:
        InputError: If the model or the source cannot be used, no example can be read, or `directory` contains other
            files.
        PlatformError: If a Beam runner's job fails.
    """
    directory = Location(directory).as_path()
    storage.require_output(directory, SUMMARY_FILE)
    options = beam.options_of(params, str(export)) if params.engine == BEAM else {}
    plan = plan_answers(params, str(export))
    own = directory.parent / f".{directory.name}.begun"
    if params.engine == BEAM:
        state = beam.answer_with_beam(plan, options, own)
    else:
        state = ResumeState(str(own)).begin(plan.digest)
        answer_files(plan, state)
    result = publish(plan, state, directory)
    shutil.rmtree(own, ignore_errors=True)
    return result


def answer_files(plan: Plan, state: ResumeState) -> None:
    """Write the prediction files that are still missing, in worker processes. Finished files are kept."""
    finished = state.whole(plan.names)
    numbers = range(len(plan.names))
    missing = [number for number in numbers if plan.names[number] not in finished]
    num_workers = max(1, min(plan.work.params.num_workers or available_cpus(), len(missing)))
    work = dataclasses.replace(plan.work, num_threads=max(1, available_cpus() // num_workers))
    sizes = {number: len(plan.examples(number)) for number in numbers}
    total = sum(sizes.values())
    if kept := total - sum(sizes[number] for number in missing):
        progress.say(STEP, f"continuing after {kept:,} of {total:,} examples, which an earlier run has predicted")
    calls = ((work, plan.select(number), state, plan.names[number]) for number in missing)
    with progress.track(STEP, total, "examples") as bar, in_processes(answer_part, calls, num_workers) as answered:
        bar.update(kept)
        for number, _ in zip(missing, answered, strict=True):
            bar.update(sizes[number])


def form_of(file: Path) -> str:
    """Return the format of a prediction file, `jsonl` or `parquet`, by its suffix.

    Raises:
        InputError: If the suffix is unknown.
    """
    form = file.suffix.removeprefix(".").lower()
    if form not in FORMS:
        raise InputError(f"Cannot write {file}: expected a name that ends in .jsonl or .parquet. Choose another name.")
    return form


def predict_to_file(params: PredictParams, export_dir: Path, file: Path) -> tuple[PredictResult, Path | None]:
    """Predict every example of a source once, and write one file, completely or not at all.

    See `predict_batch`.

    Returns:
        The counts, and the file that lists the examples that could not be read, or None if all could be read.
    """
    storage.require_writable(file.parent)
    if file.is_dir():
        raise InputError(f"Cannot write {file}: it is a folder. Expected the name of a file. Choose another name.")
    folder = file.with_name(f".{file.name}.parts")
    result = predict_batch(params, export_dir, folder)
    parts = sorted(folder.glob(f"predictions-*.{params.form}"))
    whole = folder / "whole"
    aside = file.with_name(f"{file.stem}.{ASIDE_FILE}")
    (_join_tables if params.form == PARQUET else _join_lines)(parts, whole)
    if result.num_set_aside:
        os.replace(folder / ASIDE_FILE, aside)
    else:
        aside.unlink(missing_ok=True)
    os.replace(whole, file)
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

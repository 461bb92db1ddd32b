"""The predictions of a source as one file, for a person who asks for one."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.predict_batch.params import FORMS, PARQUET, PredictParams, PredictResult
from tpu_components.predict_batch.predicting import predict_batch
from tpu_components.predict_batch.publishing import ASIDE_FILE


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

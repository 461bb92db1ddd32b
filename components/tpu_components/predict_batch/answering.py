"""Predicts some examples of a source in a worker process, and writes one prediction file."""

import dataclasses
import functools
import itertools
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from tpu_components.core.base import fingerprint
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, AnyInput
from tpu_components.core.files import storage
from tpu_components.core.sources.tasks import Selection
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.predict_batch.inputs import read_inputs
from tpu_components.predict_batch.params import PARQUET, PredictParams
from tpu_components.serving.exported import BATCH_SIZE, ExportedModel, load_model

# A model is not thread-safe, and a worker of Beam may have several threads.
_ANSWERING = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Work:
    """Settings of a worker that predicts examples.

    Attributes:
        params: Parameters of the step.
        export: Folder of the model, local or in a bucket.
        model_digest: Digest of the model.
        stored: Description of the inputs in the records of a `records:` source, or None for all other sources.
        types: Arrow types of the values that are copied to each prediction, by name.
        num_threads: Number of threads for one call of the model.
    """

    params: PredictParams
    export: str
    model_digest: str
    stored: AnyInput | None
    types: Mapping[str, str]
    num_threads: int = 1


def digest_model(export_dir: Path) -> str:
    """Return a SHA-256 digest of the names and contents of all files of a model."""
    files = (path for path in export_dir.rglob("*") if path.is_file())
    return fingerprint.digest_files({path.relative_to(export_dir).as_posix(): path for path in files})


@functools.lru_cache(maxsize=1)
def _model(export: str, digest: str, use_int8: bool, num_threads: int) -> ExportedModel:
    """Load the model in this process, or return it if it is already loaded.

    Raises:
        InputError: If the model has changed since the predictions were planned.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = storage.localize(export, Path(folder))
        if (received := digest_model(here)) != digest:
            raise InputError(
                f"The model {export} has changed since its predictions were planned: expected {digest[:12]}, received "
                f"{received[:12]}. Run the step again."
            )
        return load_model(here, use_int8, num_threads)


def answer_part(work: Work, examples: Selection, state: ResumeState, name: str) -> None:
    """Predict examples, and store the predictions as the finished file `name` in the resume state.

    The resume state is a folder from which a restarted run continues. With the file, counts of its predictions and the
    list of unreadable examples are stored.
    """
    with _ANSWERING:
        model = _model(work.export, work.model_digest, work.params.use_int8, work.num_threads)
    aside: list[dict[str, Any]] = []
    lost = Counter[str]()
    rows = list[dict[str, Any]]()
    outputs = [np.empty((0, len(model.class_names)), np.float32)]
    readable = _read_all(model, work, examples, aside, lost)
    while batch := list(itertools.islice(readable, BATCH_SIZE)):
        rows += [row for row, _ in batch]
        with _ANSWERING:
            outputs.append(model.predict(np.stack([example for _, example in batch])))
    joined = np.concatenate(outputs)
    named = [[] if model.task == REGRESSION else [name for name, _ in model.decode(output, 1)] for output in joined]
    counts = Counter(itertools.chain.from_iterable(named))
    note = {"file": {"num_examples": len(rows)}, "predicted": counts, "set_aside": aside, "lost": lost}
    if work.params.form == PARQUET:
        content = _as_parquet(model, rows, joined, named, work.types)
    else:
        content = _as_lines(model, rows, joined)
    state.finish(name, content, note)


def _read_all(
    model: ExportedModel, work: Work, examples: Selection, aside: list[dict[str, Any]], lost: Counter[str]
) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield two values for each readable example: a dict of its key and kept columns, and its model input.

    Unreadable examples are appended to `aside`, with the reason. The number of images that lose content in the
    conversion is added to `lost`; see `images.LOSSES`.
    """
    results = read_inputs(model, work.stored, examples)
    for key, more, result in zip(examples.keys, examples.values, results, strict=True):
        if isinstance(result, Exception):
            aside.append({"key": key, **more, "reason": str(result)})
        else:
            lost.update(result.losses)
            yield {"key": result.name, **more}, result.value


def _as_lines(model: ExportedModel, rows: Sequence[Mapping[str, Any]], outputs: np.ndarray) -> bytes:
    """Return predictions as JSON Lines, in the format of the server: class and confidence, labels, or values."""
    lines = []
    for row, output in zip(rows, outputs, strict=True):
        figures = dict(zip(model.class_names, output.astype(float).round(7).tolist(), strict=True))
        line = {**row, **model.describe(output, figures)}
        lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines).encode()


def _as_parquet(
    model: ExportedModel,
    rows: Sequence[Mapping[str, Any]],
    outputs: np.ndarray,
    named: Sequence[Sequence[str]],
    types: Mapping[str, str],
) -> bytes:
    """Return predictions as a Parquet file with the key, the kept columns of the source, and the prediction.

    Args:
        model: The model.
        rows: `key` and kept columns of each example.
        outputs: Outputs of the model, float32[num_examples, num_outputs].
        named: Predicted classes or labels of each example.
        types: Arrow types of the kept columns, by name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    figures = pa.FixedSizeListArray.from_arrays(pa.array(outputs.reshape(-1), pa.float32()), outputs.shape[1])
    fields = {"key": "string", **types}
    columns = {name: pa.array([row[name] for row in rows], pa.type_for_alias(kind)) for name, kind in fields.items()}
    if model.task == CLASSIFICATION:
        columns["class"] = pa.array([classes[0] for classes in named], pa.string())
        columns["confidence"] = pa.array(outputs.max(1) if len(outputs) else [], pa.float32())
    elif model.task == MULTI_LABEL:
        columns["labels"] = pa.array(named, pa.list_(pa.string()))
    columns["values" if model.task == REGRESSION else "probabilities"] = figures
    table = pa.table(columns).replace_schema_metadata({"class_names": json.dumps(model.class_names)})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    return cast(bytes, buffer.getvalue().to_pybytes())

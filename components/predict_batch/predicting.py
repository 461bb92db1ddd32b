"""Every example of a source answered once: files of predictions that a restart goes on with, then published whole."""

import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components import progress, storage
from components.errors import InputError
from components.predict_batch.answering import Work, answer_part
from components.predict_batch.inputs import Inputs, digest_of, list_inputs
from components.predict_batch.params import PredictParams, PredictResult
from components.serving.exported import ExportedModel, load_model
from components.workers import in_processes

STEP = "predict_batch"
SUMMARY_FILE, ASIDE_FILE = "predictions.json", "set_aside.jsonl"
_BEGUN_FILE = "begun.json"
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is decided before an example is answered; the same for all who answer some of them.

    Attributes:
        params: Source to read, and the form to write.
        export_dir: Folder of the model.
        model: The model.
        inputs: The examples.
        digest: Digest of all that decides what the files hold.
        names: Name of each file.
    """

    params: PredictParams
    export_dir: Path
    model: ExportedModel
    inputs: Inputs
    digest: str
    names: list[str]


def plan_answers(params: PredictParams, export_dir: Path) -> Plan:
    """List the examples that a model is to answer, and name the files.

    Raises:
        InputError: If the model or the source cannot be used.
    """
    model = load_model(export_dir, params.use_int8)
    inputs = list_inputs(params, model)
    count = -(-len(inputs.keys) // params.part_examples)
    names = [f"predictions-{i:05d}-of-{count:05d}.{params.form}" for i in range(count)]
    return Plan(params, export_dir, model, inputs, digest_of(params, inputs, export_dir), names)


def predict_batch(params: PredictParams, export_dir: Path, directory: Path) -> PredictResult:
    """Answer every example of a source once with an exported model.

    A file of `part_examples` predictions is finished at a time, in a hidden folder beside `directory`. A run of the
    same model on the same source goes on there, and leaves the same bytes as one that nobody has killed.

    Args:
        params: Source to read, and the form to write.
        export_dir: Folder that export_model wrote.
        directory: Folder to write; appears whole or not at all. Predictions that it already holds are replaced.

    Raises:
        InputError: If the model or the source cannot be used, no example can be read, or `directory` holds something
            else.
    """
    storage.require_output(directory, SUMMARY_FILE)
    plan = plan_answers(params, export_dir)
    begun = begun_beside(directory)
    begin(begun, plan.digest)
    answer_files(plan, begun, range(len(plan.names)))
    return publish(plan, begun, directory)


def begun_beside(directory: Path) -> Path:
    """Return the hidden folder of what is finished of a folder to come."""
    return directory.parent / f".{directory.name}.begun"


def publish(plan: Plan, begun: Path, directory: Path) -> PredictResult:
    """Write what all files hold, and let the folder appear; what was begun of it goes.

    Raises:
        InputError: If no example could be read.
    """
    result = _finish(plan, begun)
    storage.link_tree(begun / "whole", directory)
    shutil.rmtree(begun, ignore_errors=True)
    return result


def is_begun(begun: Path, digest: str) -> bool:
    """Return whether a folder has what is finished of the same model, source and parameters."""
    try:
        return bool(json.loads((begun / _BEGUN_FILE).read_bytes()) == digest)
    except (OSError, ValueError):
        return False


def begin(begun: Path, digest: str) -> None:
    """Have a folder for what is finished, with what a killed run of the same has finished."""
    is_same = is_begun(begun, digest)
    if not is_same:
        shutil.rmtree(begun, ignore_errors=True)
    for name in ("whole", "notes"):
        (begun / name).mkdir(parents=True, exist_ok=True)
        storage.drop_half_written(begun / name)
    if not is_same:
        storage.write_json(begun / _BEGUN_FILE, digest)


def note_of(begun: Path, name: str) -> Path:
    """Return the file that is there once a file of predictions is finished."""
    return begun / "notes" / f"{name}.json"


def answer_files(plan: Plan, begun: Path, wanted: Sequence[int]) -> int:
    """Write those of some files that are not there yet, in worker processes; returns how many were there."""
    params, inputs, names = plan.params, plan.inputs, plan.names
    missing = [i for i in wanted if not note_of(begun, names[i]).is_file()]
    num_workers = max(1, min(params.num_workers or os.cpu_count() or 1, len(missing)))
    num_threads = max(1, (os.cpu_count() or 1) // num_workers)
    work = Work(str(plan.export_dir), params.use_int8, num_threads, params.form, inputs.root, inputs.stored)
    size = params.part_examples
    ranges = {i: range(i * size, min((i + 1) * size, len(inputs.keys))) for i in wanted}
    total = sum(map(len, ranges.values()))
    if kept := total - sum(len(ranges[i]) for i in missing):
        progress.say(STEP, f"going on after {kept:,} of {total:,} examples, which an earlier run has answered")
    calls = (
        (
            work,
            [inputs.keys[at] for at in ranges[i]],
            inputs.contents(np.arange(ranges[i].start, ranges[i].stop)),
            begun / "whole" / names[i],
            note_of(begun, names[i]),
        )
        for i in missing
    )
    with progress.track(STEP, total, "examples") as bar, in_processes(answer_part, calls, num_workers) as answered:
        bar.update(kept)
        for i, _ in zip(missing, answered, strict=True):
            bar.update(len(ranges[i]))
    return len(wanted) - len(missing)


def _finish(plan: Plan, begun: Path) -> PredictResult:
    """Write what was set aside, and what the files hold."""
    params, model, names, num_examples = plan.params, plan.model, plan.names, len(plan.inputs.keys)
    notes = [json.loads(note_of(begun, name).read_bytes()) for name in names]
    aside: list[dict[str, str]] = [item for note in notes for item in note["set_aside"]]
    predicted: Counter[str] = sum((Counter(note["predicted"]) for note in notes), Counter())
    for item in aside[:_SHOWN]:
        progress.say(STEP, f"set aside {item['key']!r}: {item['reason']}")
    if len(aside) == num_examples:
        raise InputError(
            f"None of the {num_examples:,} examples of {params.source!r} can be read: {aside[0]['key']!r} "
            f"({aside[0]['reason']}) …. Expected {model.input.plural}. Check the source."
        )
    by_class = {name: predicted[name] for name in model.class_names if predicted[name]}
    result = PredictResult(num_examples, num_examples - len(aside), len(aside), len(names), by_class)
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in aside)
    storage.write_bytes(begun / "whole" / ASIDE_FILE, lines.encode())
    summary: dict[str, Any] = {
        "model": model.name,
        "task": model.task,
        "class_names": model.class_names,
        "source": params.source,
        "form": params.form,
        "num_examples": num_examples,
        "num_predicted": result.num_predicted,
        "num_set_aside": len(aside),
        "predicted": by_class,
        "files": [{"name": name, **note["file"]} for name, note in zip(names, notes, strict=True)],
    }
    storage.write_json(begun / "whole" / SUMMARY_FILE, summary)
    progress.say(STEP, f"{result.num_predicted:,} {model.input.plural} answered, {len(aside):,} set aside")
    return result

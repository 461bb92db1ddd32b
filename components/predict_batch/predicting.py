"""Every example of a source answered once: files of predictions that a restart goes on with, then published whole."""

import json
import os
import shutil
from collections import Counter
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
    model = load_model(export_dir, params.use_int8)
    inputs = list_inputs(params, model)
    begun = directory.parent / f".{directory.name}.begun"
    _begin(begun, digest_of(params, inputs, export_dir))
    count = -(-len(inputs.keys) // params.part_examples)
    names = [f"predictions-{i:05d}-of-{count:05d}.{params.form}" for i in range(count)]
    _answer_all(params, export_dir, inputs, begun, names)
    result = _finish(params, model, len(inputs.keys), begun, names)
    storage.link_tree(begun / "whole", directory)
    shutil.rmtree(begun, ignore_errors=True)
    return result


def _begin(begun: Path, digest: str) -> None:
    """Have a folder for what is finished, with what a killed run of the same has finished."""
    try:
        is_same = json.loads((begun / _BEGUN_FILE).read_bytes()) == digest
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        shutil.rmtree(begun, ignore_errors=True)
    for name in ("whole", "notes"):
        (begun / name).mkdir(parents=True, exist_ok=True)
        storage.drop_half_written(begun / name)
    if not is_same:
        storage.write_json(begun / _BEGUN_FILE, digest)


def _note(begun: Path, name: str) -> Path:
    return begun / "notes" / f"{name}.json"


def _answer_all(params: PredictParams, export_dir: Path, inputs: Inputs, begun: Path, names: list[str]) -> None:
    """Write every file of predictions that is not there yet, in worker processes."""
    missing = [i for i, name in enumerate(names) if not _note(begun, name).is_file()]
    num_workers = max(1, min(params.num_workers or os.cpu_count() or 1, len(missing)))
    num_threads = max(1, (os.cpu_count() or 1) // num_workers)
    work = Work(str(export_dir), params.use_int8, num_threads, params.form, inputs.root, inputs.stored)
    total, size = len(inputs.keys), params.part_examples
    ranges = [range(i * size, min((i + 1) * size, total)) for i in range(len(names))]
    if kept := total - sum(len(ranges[i]) for i in missing):
        progress.say(STEP, f"going on after {kept:,} of {total:,} examples, which an earlier run has answered")
    calls = (
        (
            work,
            [inputs.keys[at] for at in ranges[i]],
            inputs.contents(np.arange(ranges[i].start, ranges[i].stop)),
            begun / "whole" / names[i],
            _note(begun, names[i]),
        )
        for i in missing
    )
    with progress.track(STEP, total, "examples") as bar, in_processes(answer_part, calls, num_workers) as answered:
        bar.update(kept)
        for i, _ in zip(missing, answered, strict=True):
            bar.update(len(ranges[i]))


def _finish(
    params: PredictParams, model: ExportedModel, num_examples: int, begun: Path, names: list[str]
) -> PredictResult:
    """Write what was set aside, and what the files hold."""
    notes = [json.loads(_note(begun, name).read_bytes()) for name in names]
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

"""Files of predictions put together, described and published as one folder."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.work.resume_state import ResumeState, gather
from tpu_components.predict_batch.params import PredictResult
from tpu_components.predict_batch.planning import Plan

STEP = "predict_batch"
SUMMARY_FILE, ASIDE_FILE = "predictions.json", "set_aside.jsonl"
_SHOWN = 5
_NOTE = {"set_aside": list[Mapping[str, Any]], "predicted": Mapping[str, int]}  # What each file's note says of it.


def begun_beside(directory: Path) -> ResumeState:
    """Return the hidden folder of what is finished of a folder to come."""
    return ResumeState(str(directory.parent / f".{directory.name}.begun"))


def collect(plan: Plan, folders: Sequence[ResumeState], begun: ResumeState) -> None:
    """Copy the files that others have finished.

    Args:
        plan: Plan of the files.
        folders: Folders with them, in any order.
        begun: Folder that gets those that it has not.

    Raises:
        InputError: If one is missing, damaged, or of another model, source, parameters or code.
    """
    there = begun.finished()
    wanted = [name for name in plan.names if name not in there]
    for name, piece in zip(wanted, gather(folders, plan.digest, wanted), strict=True):
        begun.finish(name, piece.content, piece.note)


def publish(plan: Plan, begun: ResumeState, directory: Path) -> PredictResult:
    """Write what all files hold, and let the folder appear; what was begun of it goes.

    Raises:
        InputError: If no example could be read.
    """
    whole = Path(begun.root, "whole")
    result = _describe(plan, begun, whole)
    storage.link_tree(whole, directory)
    shutil.rmtree(begun.root, ignore_errors=True)
    return result


def _describe(plan: Plan, begun: ResumeState, whole: Path) -> PredictResult:
    """Write what was set aside, and what the files hold."""
    params, model, names, num_examples = plan.params, plan.model, plan.names, len(plan.inputs.keys)
    notes = [begun.note(name, _NOTE) for name in names]
    aside: list[dict[str, Any]] = [item for note in notes for item in note["set_aside"]]
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
    storage.write_bytes(whole / ASIDE_FILE, lines.encode())
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
    storage.write_json(whole / SUMMARY_FILE, summary)
    progress.say(STEP, f"{result.num_predicted:,} {model.input.plural} answered, {len(aside):,} set aside")
    return result

"""Plans the prediction files, collects them from workers, and publishes them as a folder."""

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import fingerprint, progress
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.images import describe_losses
from tpu_components.core.files import storage
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.core.sources.columns import pick
from tpu_components.core.sources.tasks import Selection
from tpu_components.core.work.resume_state import ResumeState, gather, giving_up
from tpu_components.predict_batch.answering import Work, digest_model
from tpu_components.predict_batch.inputs import Inputs, list_inputs
from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.serving.exported import ExportedModel, load_model

STEP = "predict_batch"
SUMMARY_FILE, ASIDE_FILE = "predictions.json", "set_aside.jsonl"
_SHOWN = 5
# Content of each file's note.
_NOTE = {"set_aside": list[Mapping[str, Any]], "predicted": Mapping[str, int], "lost": Mapping[str, int]}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Examples to predict, and the prediction files. A plan is the same for all workers.

    Attributes:
        work: Settings of the workers.
        model: The model.
        inputs: The examples.
        digest: Digest of everything that the content of the files depends on.
        names: Name of each file.
    """

    work: Work
    model: ExportedModel
    inputs: Inputs
    digest: str
    names: Sequence[str]

    def examples(self, number: int) -> range:
        """Return the indices of the examples of a file."""
        size = self.work.params.part_examples
        return range(number * size, min((number + 1) * size, len(self.inputs.keys)))

    def select(self, number: int) -> Selection:
        """Return the examples of a file, each with the values to copy to its prediction, by name."""
        some = np.arange(self.examples(number).start, self.examples(number).stop)
        columns = [pick(values, some) for values in self.inputs.kept.values()]
        kept = [dict(zip(self.inputs.kept, row, strict=True)) for row in zip(*columns, strict=True)]
        return dataclasses.replace(self.inputs.select(some), values=kept or [{} for _ in some])


def file_name(number: int, num_files: int, form: str) -> str:
    """Return the name of a prediction file.

    Example:
        >>> file_name(7, 12, "jsonl")
        'predictions-00007-of-00012.jsonl'
    """
    return f"predictions-{number:05d}-of-{num_files:05d}.{form}"


def inputs_version(params: PredictParams, export: str) -> str:
    """Return a digest of the files with the examples to predict. It changes when one of these files changes.

    Raises:
        InputError: If the model or the source cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        return list_inputs(params, load_model(fetch_folder(export, Path(folder)), params.use_int8)).version


def plan_answers(params: PredictParams, export: str) -> Plan:
    """List the examples to predict, and name the files.

    Raises:
        InputError: If the model or the source cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = fetch_folder(export, Path(folder))
        model = load_model(here, params.use_int8)
        inputs = list_inputs(params, model)
        model_digest = digest_model(here)
    work = Work(params, export, model_digest, inputs.stored, inputs.types)
    code = fingerprint.code_of(["tpu_components.predict_batch.answering"])
    kept = {name: digest_of(list(values)) for name, values in inputs.kept.items()}
    settings = [params.form, params.use_int8, params.part_examples]
    digest = digest_of([*settings, kept, inputs.version, model_digest, code.digest, code.versions()])
    num_files = -(-len(inputs.keys) // params.part_examples)
    names = [file_name(number, num_files, params.form) for number in range(num_files)]
    return Plan(work, model, inputs, digest, names)


def publish(plan: Plan, state: ResumeState, directory: Path) -> PredictResult:
    """Write the prediction files, the list of unreadable examples (`set_aside.jsonl`) and `predictions.json`.

    The folder is written completely or not at all. Return the counts of the predictions.

    Args:
        plan: Plan of the files.
        state: Resume state with the files.
        directory: Folder to write.

    Raises:
        InputError: If a file is missing, is damaged, or was written with another model, source, code or other
            parameters; if the source has changed since it was listed; or if no example could be read.
    """
    with storage.staged_directory(directory) as staged:
        notes = []
        for name, piece in zip(plan.names, gather([state], plan.digest, plan.names, fields=_NOTE), strict=True):
            storage.write_bytes(staged / name, piece.content)
            notes.append(piece.note)
        with giving_up(state):
            plan.inputs.require_unchanged()
        return _summarize(plan, notes, staged)


def _summarize(plan: Plan, notes: Sequence[Mapping[str, Any]], staged: Path) -> PredictResult:
    params = plan.work.params
    model = plan.model
    num_examples = len(plan.inputs.keys)
    aside: list[dict[str, Any]] = [item for note in notes for item in note["set_aside"]]
    predicted: Counter[str] = sum((Counter(note["predicted"]) for note in notes), Counter())
    lost: Counter[str] = sum((Counter(note["lost"]) for note in notes), Counter())
    for message in describe_losses(lost, num_examples):
        progress.say(STEP, message)
    for item in aside[:_SHOWN]:
        progress.say(STEP, f"could not read {item['key']!r}: {item['reason']}")
    if len(aside) == num_examples:
        raise InputError(
            f"None of the {num_examples:,} examples of {params.source!r} can be read, for example {aside[0]['key']!r} "
            f"({aside[0]['reason']}). Expected {model.input.plural}. Check the source."
        )
    by_class = {name: predicted[name] for name in model.class_names if predicted[name]}
    result = PredictResult(num_examples, num_examples - len(aside), len(aside), len(notes), by_class)
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in aside)
    storage.write_bytes(staged / ASIDE_FILE, lines.encode())
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
        "files": [{"name": name, **note["file"]} for name, note in zip(plan.names, notes, strict=True)],
    }
    storage.write_json(staged / SUMMARY_FILE, summary)
    progress.say(STEP, f"predicted {result.num_predicted:,} {model.input.plural}, could not read {len(aside):,}")
    return result

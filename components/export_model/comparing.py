"""How far each format is from the trained model: its answers, and a fresh process that judges by them."""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, TEXT_FEATURE, Manifest
from tpu_components.core.examples.interface import PADDING, CorpusInput, ImageInput
from tpu_components.core.files import storage
from tpu_components.export_model import verification
from tpu_components.export_model.formats.table import FORMATS
from tpu_components.export_model.formats.trained import TrainedModel
from tpu_components.export_model.params import Compared, ExportParams

_BATCH_SIZE = 256
_CHUNK = 16 * _BATCH_SIZE
# Of the split that a language model is compared on, at most so much, from its start: all answers are held in memory.
_MAX_PASSAGES, _MAX_ANSWER_BYTES = 2048, 512 << 20


@dataclasses.dataclass(frozen=True)
class Questions:
    """The examples of a split that every format and the trained model answer, with their labels."""

    inputs: np.ndarray
    labels: np.ndarray


def write_questions(split: str, trained: TrainedModel, records_dir: Path, manifest: Manifest, work: Path) -> Questions:
    """Leave inputs, labels and the task for the fresh process."""
    num_examples = manifest.split(split).num_examples
    if isinstance(manifest.input, CorpusInput):
        answer_bytes = 4 * math.prod(manifest.interface.output_shape)
        num_examples = max(1, min(num_examples, _MAX_PASSAGES, _MAX_ANSWER_BYTES // answer_bytes))
    (inputs_shape, inputs_dtype), of_labels, _ = manifest.interface.batch_shapes(num_examples, with_margin=False)
    inputs = np.lib.format.open_memmap(work / verification.INPUTS_FILE, "w+", inputs_dtype, inputs_shape)
    labels = np.empty(*of_labels)
    start = 0
    texts: list[str] = []
    for fields in records.read_batches(records_dir, manifest, split, _CHUNK, with_keys=True).as_numpy_iterator():
        end = min(start + len(fields[LABEL_FEATURE]), num_examples)
        inputs[start:end] = fields[manifest.input.feature][: end - start]
        labels[start:end] = fields[LABEL_FEATURE][: end - start]
        texts += [text.decode() for text in fields.get(TEXT_FEATURE, ())]
        start = end
        if start == num_examples:
            break
    inputs.flush()
    if texts:
        storage.write_json(work / verification.TEXTS_FILE, texts)
    np.save(work / verification.LABELS_FILE, labels)
    task = manifest.interface.task
    facts = {"task": task.name, "judged": _judged(manifest), "answer": task.answer, **trained.scale}
    margin = manifest.input.margin if isinstance(manifest.input, ImageInput) else (0, 0)
    of_files = {"num_outputs": manifest.interface.output_shape[-1], "margin": margin}
    storage.write_json(work / verification.TASK_FILE, {**facts, **of_files})
    return Questions(inputs, labels)


def _judged(manifest: Manifest) -> str:
    """Return the figure that is compared; of a language model the next character's accuracy.

    Quantisation lowers that as it lowers a classifier's.
    """
    return "accuracy" if isinstance(manifest.input, CorpusInput) else manifest.interface.task.judged


def write_expectations(trained: TrainedModel, questions: Questions, manifest: Manifest, work: Path) -> Compared:
    """Leave the trained model's own answers for the fresh process; returns what is compared."""
    from tpu_components.core.models.trained import predict

    labels = questions.labels
    expected = np.empty((len(labels), *manifest.interface.output_shape), np.float32)
    for start in range(0, len(labels), _CHUNK):
        expected[start : start + _CHUNK] = predict(trained.model, questions.inputs[start : start + _CHUNK], _BATCH_SIZE)
    np.save(work / verification.EXPECTED_FILE, expected)
    if isinstance(manifest.input, CorpusInput):
        score = float((expected.argmax(-1) == labels)[labels != PADDING].mean())
    else:
        score = manifest.interface.task.judge(labels, expected)
    return Compared(len(labels), _judged(manifest), score)


class Judge:
    """A fresh process that judges an export by the files alone: it answers with each while the next one is made.

    It runs verification.py as a script: isolated, so that nothing of the training code can help it.
    """

    def __init__(self, export_dir: Path, work: Path) -> None:
        """Start the process, which gets ready.

        Args:
            export_dir: Folder of the formats.
            work: Folder in which `write_questions` and `write_expectations` leave what to compare them with.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", verification.__file__, str(export_dir), str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def show(self, name: str) -> None:
        """Show it a format that is made; the questions must be written."""
        self._tell(f"{name}={FORMATS[name].file}")

    def measure(self) -> dict[str, dict[str, Any]]:
        """Return the facts of the formats that it was shown, by their names; the trained model's answers must be there.

        Raises:
            InputError: If the process could not judge them.
        """
        code, answer, errors = self._ask()
        if code < 0:
            raise RuntimeError(f"The process that judges the export was killed by signal {-code}.")
        if code:
            raise InputError(
                f"The exported model does not load in a fresh process (exit code {code}): {errors.strip()[-2000:]}"
            )
        return json.loads(answer.splitlines()[-1])

    def _tell(self, word: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # It has died; `measure` says of what.
            print(word, file=self._process.stdin, flush=True)

    def _ask(self) -> tuple[int, str, str]:
        """Say that no format follows; returns the process's exit code, what it printed, and its errors."""
        answer, errors = self._process.communicate()
        return self._process.returncode, answer, errors


def find_too_far(params: ExportParams, compared: Compared, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Find the formats that are too far from the trained model, each with the reason."""
    far = {}
    for name, facts in measured.items():
        problems = [facts["error"]] if "error" in facts else _problems(params, compared, name, facts)
        if problems:
            far[name] = "; ".join(problems)
    return far


def _problems(params: ExportParams, compared: Compared, name: str, facts: Mapping[str, Any]) -> list[str]:
    against = f"the trained model on {facts['num_compared']:,} examples"
    if FORMATS[name].made_of:
        if not math.isfinite(compared.trained_score):
            return []
        drop, interval = compared.trained_score - facts[compared.judged], facts["drop_interval"]
        at_least = interval[0] if interval else -math.inf
        if math.isfinite(drop) and at_least <= params.max_int8_accuracy_drop:
            return []
        return [
            f"it loses {drop:.4f} of {compared.judged} against {against}, at least {at_least:.4f} with 95 % "
            f"confidence, allowed {params.max_int8_accuracy_drop} (raise export.calibration_examples, or "
            "export.max_int8_accuracy_drop)"
        ]
    problems = []
    if not facts["max_difference"] <= params.tolerance:  # Written so that NaN fails.
        problems.append(f"it differs from {against} by {facts['max_difference']:.2e}, allowed {params.tolerance:.2e}")
    if facts["agreement"] < params.min_agreement:
        problems.append(
            f"it gives the same answer as {against} for {facts['agreement']:.4%}, required {params.min_agreement:.4%}"
        )
    return problems

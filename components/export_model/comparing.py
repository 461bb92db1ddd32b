"""How far each format is from the trained model: its answers, and a fresh process that judges by them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from components import records, storage
from components.artifacts import LABEL_FEATURE, TEXT_FEATURE, Manifest
from components.errors import InputError
from components.export_model import verification
from components.export_model.formats.table import FORMATS
from components.export_model.formats.trained import TrainedModel
from components.export_model.params import Compared, ExportParams
from components.interface import PADDING, CorpusInput

_BATCH_SIZE = 256
# Of the split that a language model is compared on, at most so much, from its start: all answers are held in memory.
_MAX_PASSAGES, _MAX_ANSWER_BYTES = 2048, 512 << 20


def write_expectations(
    split: str, trained: TrainedModel, records_dir: Path, manifest: Manifest, work: Path
) -> Compared:
    """Leave inputs, labels and the trained model's own answers for the fresh process; returns what is compared."""
    if isinstance(manifest.input, CorpusInput):
        return _write_passages(split, trained, records_dir, manifest, work)
    from components.model_loading.trained import predict

    num_examples = manifest.split(split).num_examples
    (inputs_shape, inputs_dtype), of_labels, _ = manifest.interface.batch_shapes(num_examples)
    inputs = np.lib.format.open_memmap(work / verification.INPUTS_FILE, "w+", inputs_dtype, inputs_shape)
    labels = np.empty(*of_labels)
    expected = np.empty((num_examples, *manifest.interface.output_shape), np.float32)
    start = 0
    chunk = _BATCH_SIZE * 16
    texts: list[str] = []
    for fields in records.read_batches(records_dir, manifest, split, chunk, with_keys=True).as_numpy_iterator():
        end = start + len(fields[LABEL_FEATURE])
        inputs[start:end], labels[start:end] = fields[manifest.input.feature], fields[LABEL_FEATURE]
        expected[start:end] = predict(trained.model, inputs[start:end], _BATCH_SIZE)
        texts += [text.decode() for text in fields.get(TEXT_FEATURE, ())]
        start = end
    inputs.flush()
    if texts:
        storage.write_json(work / verification.TEXTS_FILE, texts)
    np.save(work / verification.LABELS_FILE, labels)
    np.save(work / verification.EXPECTED_FILE, expected)
    task = manifest.interface.task
    facts = {"task": task.name, "judged": task.judged, "answer": task.answer, **trained.scale}
    storage.write_json(work / verification.TASK_FILE, facts)
    return Compared(num_examples, task.judged, task.judge(labels, expected))


def _write_passages(split: str, trained: TrainedModel, records_dir: Path, manifest: Manifest, work: Path) -> Compared:
    from components.model_loading.trained import predict

    answer_bytes = 4 * math.prod(manifest.interface.output_shape)
    most = max(1, min(_MAX_PASSAGES, _MAX_ANSWER_BYTES // answer_bytes))
    inputs, labels = [], []
    for fields in records.read_batches(records_dir, manifest, split).as_numpy_iterator():
        inputs.append(fields[manifest.input.feature])
        labels.append(fields[LABEL_FEATURE])
        if sum(map(len, inputs)) >= most:
            break
    passages, targets = np.concatenate(inputs)[:most], np.concatenate(labels)[:most]
    expected = predict(trained.model, passages, _BATCH_SIZE)
    np.save(work / verification.INPUTS_FILE, passages)
    np.save(work / verification.LABELS_FILE, targets)
    np.save(work / verification.EXPECTED_FILE, expected)
    # Of a language model it is the next character's accuracy, which quantisation lowers as it lowers a classifier's.
    task = {"task": manifest.task, "judged": "accuracy", "answer": manifest.interface.task.answer}
    storage.write_json(work / verification.TASK_FILE, task)
    accuracy = float((expected.argmax(-1) == targets)[targets != PADDING].mean())
    return Compared(len(passages), "accuracy", accuracy)


class Judge:
    """A fresh process that judges an export by the files alone; it gets ready while these are made.

    It runs verification.py as a script: isolated, so that nothing of the training code can help it.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", verification.__file__],
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

    def measure(self, export_dir: Path, work: Path, formats: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the facts of some formats, by their names; can be asked once.

        Args:
            export_dir: Folder of the formats.
            work: Folder in which `write_expectations` left what to compare them with.
            formats: Names of the formats.

        Raises:
            InputError: If the process could not judge them.
        """
        words = [str(export_dir), str(work), *(f"{name}={FORMATS[name].file}" for name in formats)]
        code, answer, errors = self._ask(words)
        if code < 0:
            raise RuntimeError(f"The process that judges the export was killed by signal {-code}.")
        if code:
            raise InputError(
                f"The exported model does not load in a fresh process (exit code {code}): {errors.strip()[-2000:]}"
            )
        return json.loads(answer.splitlines()[-1])

    def _ask(self, words: list[str]) -> tuple[int, str, str]:
        """Give the process its words; returns its exit code and what it printed on standard output and error."""
        answer, errors = self._process.communicate(f"{json.dumps(words)}\n")
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

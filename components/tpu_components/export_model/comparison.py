"""Compares the formats of an export with the trained model, in a new, isolated process that loads only the files."""

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, TEXT_FEATURE, Manifest
from tpu_components.core.examples.interface import LANGUAGE_MODEL, CorpusInput, ImageInput, Task
from tpu_components.core.files import storage
from tpu_components.core.metrics.definitions import estimators
from tpu_components.core.metrics.estimates import Estimate, score_passages, standard_error
from tpu_components.export_model import verification
from tpu_components.export_model.formats import FORMATS, TrainedModel
from tpu_components.export_model.params import ExportParams
from tpu_components.serving import lite  # noqa: F401  # `verification` loads it by its path.

_BATCH_SIZE = 256
_ONE_SIDED_95 = 1.645  # Standard errors, of a normal distribution.
_CHUNK = 16 * _BATCH_SIZE
# Limits of the part of a split, from its start, that a language model is compared on: all answers are held in memory.
_MAX_PASSAGES = 2048
_MAX_ANSWER_BYTES = 512 << 20


def judged_metric(manifest: Manifest) -> str:
    """Return the name of the metric that is compared between a format and the trained model.

    For a language model, it is the accuracy of the next character. Quantisation lowers this accuracy in the same way as
    it lowers the accuracy of a classifier.
    """
    return "accuracy" if isinstance(manifest.input, CorpusInput) else manifest.interface.task.judged


def write_examples(
    split: str, trained: TrainedModel, records_dir: Path, manifest: Manifest, work: Path
) -> records.Examples:
    """Write inputs of a split and a description of the task to files for verification.py. Return the examples."""
    num_examples = manifest.split(split).num_examples
    if isinstance(manifest.input, CorpusInput):
        answer_bytes = 4 * math.prod(manifest.interface.output_shape)
        num_examples = max(1, min(num_examples, _MAX_PASSAGES, _MAX_ANSWER_BYTES // answer_bytes))
    (inputs_shape, inputs_dtype), of_labels, _ = manifest.interface.batch_shapes(num_examples, with_margin=False)
    inputs = np.lib.format.open_memmap(work / verification.INPUTS_FILE, "w+", inputs_dtype, inputs_shape)
    labels = np.empty(*of_labels)
    texts = list[str]()
    start = 0
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
    task = {
        "task": manifest.task,
        "answer": trained.answer,
        **trained.scale,
        "num_outputs": manifest.interface.output_shape[-1],
        "num_threads": available_cpus(),
        "margin": manifest.input.margin if isinstance(manifest.input, ImageInput) else (0, 0),
    }
    storage.write_json(work / verification.TASK_FILE, task)
    return records.Examples(inputs, labels, np.ones(num_examples, np.float32))


def write_expected(trained: TrainedModel, examples: records.Examples, manifest: Manifest, work: Path) -> np.ndarray:
    """Write the trained model's predictions to `work`, for verification.py. Return the predictions."""
    from tpu_components.core.models.trained import predict

    inputs = examples.inputs
    expected = np.empty((len(inputs), *manifest.interface.output_shape), np.float32)
    for start in range(0, len(inputs), _CHUNK):
        expected[start : start + _CHUNK] = predict(trained.model, inputs[start : start + _CHUNK], _BATCH_SIZE)
    np.save(work / verification.EXPECTED_FILE, expected)
    return expected


class Judge:
    """A new process that loads every format, predicts the examples with it, and compares the predictions.

    The process runs verification.py as an isolated script, so that a format that cannot be loaded without the training
    code fails. The process predicts with one format while the next format is written.
    """

    def __init__(self, export_dir: Path, work: Path) -> None:
        """Start the process that loads the formats and predicts.

        Args:
            export_dir: Folder with the exported formats.
            work: Folder into which `write_examples` and `write_expected` write.
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

    def add(self, name: str) -> None:
        """Tell the new process to load the finished format `name` and to predict with it.

        Call `write_examples` first.
        """
        self._send(f"{name}={FORMATS[name].file}")

    def measure(self) -> dict[str, dict[str, Any]]:
        """Return the measurements of the added formats, by name. Call `write_expected` first.

        Raises:
            InputError: If the process failed.
            RuntimeError: If the process was killed by a signal.
            OSError: If the process could not read or write a file. This is an error of this machine's disk, not of a
                format.
        """
        code, answer, errors = self._finish()
        if code < 0:
            raise RuntimeError(
                f"The process that checks the export was killed by signal {-code}. Run export_model again, perhaps on "
                "a machine with more memory."
            )
        if code:
            raise InputError(
                "Cannot check the exported model: expected the process that loads it to succeed, received exit code "
                f"{code}. Correct the cause, and run export_model again. End of its stderr: {errors.strip()[-2000:]}"
            )
        facts: dict[str, dict[str, Any]] = json.loads(answer.splitlines()[-1])
        for name, measured in facts.items():
            if number := measured.pop("errno", None):
                raise OSError(number, os.strerror(number), FORMATS[name].file)
        return facts

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # The process has ended; `measure` raises its error.
            print(line, file=self._process.stdin, flush=True)

    def _finish(self) -> tuple[int, str, str]:
        """Close the input of the process. Return its exit code, stdout and stderr."""
        answer, errors = self._process.communicate()
        return self._process.returncode, answer, errors


def read_answers(work: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a format's predictions, which the new process wrote to `work`, and the indices of their examples."""
    with np.load(work / verification.ANSWERS_FILE.format(name)) as file:
        return file["answers"], file["chosen"]


class Scorer:
    """Computes a metric of the trained model and of each format, and checks whether their difference is allowed.

    Args:
        task: Task of the model.
        judged: Name of the metric.
        labels: Labels of all compared examples.
        expected: The trained model's predictions for these examples.
    """

    def __init__(self, task: Task, judged: str, labels: np.ndarray, expected: np.ndarray) -> None:
        self._task = task
        self._judged = judged
        self._labels = labels
        self._expected = expected
        self.trained = self._estimate(labels, expected).value

    def _estimate(self, labels: np.ndarray, answers: np.ndarray) -> Estimate:
        """Return the metric of predictions, or NaN if it is undefined, for example R² of targets that do not vary."""
        outputs = score_passages(labels, answers) if self._task.name == LANGUAGE_MODEL else answers
        estimate = estimators(self._task, labels, outputs)[self._judged]() if np.isfinite(answers).all() else None
        return estimate or Estimate(math.nan, np.full(len(labels), math.nan))

    def score(self, answers: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
        """Return a dict with the metric of a format (`score`) and a confidence interval of the drop (`drop_interval`).

        The drop is the trained model's metric minus the format's metric. If the format predicted only a sample of the
        examples, `score` is the trained model's metric on all examples minus the drop on the sample. Each bound of
        `drop_interval` has 95% confidence. The interval is None for one example or an undefined metric.

        Args:
            answers: Predictions of the format.
            chosen: Indices of the predicted examples.
        """
        labels = self._labels[chosen]
        ours = self._estimate(labels, self._expected[chosen])
        theirs = self._estimate(labels, answers)
        drop = ours.value - theirs.value
        spread = _ONE_SIDED_95 * standard_error(ours.influence - theirs.influence)[0]
        is_known = len(chosen) > 1 and math.isfinite(drop)
        return {
            "score": theirs.value if len(chosen) == len(self._labels) else self.trained - drop,
            "drop_interval": [drop - spread, drop + spread] if is_known else None,
        }

    def find_differing(self, params: ExportParams, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return the formats that differ too much from the trained model, by name, with the reasons.

        Args:
            params: Limits.
            measured: Measurements by format, with the result of `score` unless the format has failed.
        """
        problems = {name: "; ".join(self._problems(params, name, facts)) for name, facts in measured.items()}
        return {name: reasons for name, reasons in problems.items() if reasons}

    def _problems(self, params: ExportParams, name: str, facts: Mapping[str, Any]) -> list[str]:
        if "error" in facts:
            return [facts["error"]]
        against = f"the trained model on {facts['num_compared']:,} examples"
        if FORMATS[name].quantized_from:
            if not math.isfinite(self.trained):
                return []
            drop = self.trained - facts["score"]
            interval = facts["drop_interval"]
            at_least = interval[0] if interval else -math.inf
            if math.isfinite(drop) and at_least <= params.max_int8_accuracy_drop:
                return []
            return [
                (
                    f"it loses {drop:.4f} of {self._judged} against {against}, at least {at_least:.4f} with 95% "
                    f"confidence, but only {params.max_int8_accuracy_drop} is allowed (raise "
                    "export.calibration_examples, or export.max_int8_accuracy_drop)"
                )
            ]
        problems = []
        if not facts["max_difference"] <= params.tolerance:  # Written so that NaN fails.
            problems.append(
                f"it differs from {against} by {facts['max_difference']:.2e}, but only {params.tolerance:.2e} is "
                "allowed"
            )
        if facts["agreement"] < params.min_agreement:
            problems.append(
                f"only {facts['agreement']:.4%} of its predictions are the same as those of {against}, but "
                f"{params.min_agreement:.4%} is required"
            )
        return problems

"""Compares the formats of an export with the trained model.

This is an isolated script that gets only the exported files.

Usage: python -I verification.py EXPORT_DIR WORK_DIR [NAME=FILE…]. WORK_DIR contains the inputs and the task, and after
all formats have been written, also the trained model's predictions. Without NAME=FILE, the formats are read from stdin,
one per line. Each format is loaded and predicts while the next format is written. All formats are timed when stdin
ends.

The script prints one JSON line with the measurements by format. For a format that does not load or predict, the line
has only the fields `error` and `errno`. The predictions of all formats that work are saved in WORK_DIR. The script does
not import the packages tpu_components and tpu_pipelines, and blocks their import. It runs LiteRT files with the
server's module `lite.py`, which does not import these packages either.
"""

import bisect
import dataclasses
import functools
import importlib.util
import json
import statistics
import sys
import timeit
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

INPUTS_FILE, EXPECTED_FILE, TASK_FILE = "inputs.npy", "expected.npy", "task.json"
ANSWERS_FILE = "answers_{}.npz"  # A format's `answers` to the compared examples, and their indices, `chosen`.
TEXTS_FILE = "texts.json"  # Strings of all examples, if the model takes strings.
_BATCH_SIZE = 64
_REPEATS = 5  # Number of measurements of a duration. The result has their median, minimum and maximum.
_LATENCY_RUNS = 10
# Number of compared examples with which a format is timed, after all formats are made.
_TIMED = 8 * _BATCH_SIZE
_TEXTS_AT_ONCE = 4 * _BATCH_SIZE  # Batch size of untimed texts: a loop over tokens takes no longer for more texts.
_ENCODED_CHECKED = 8
# Largest number of compared examples, for most formats, and for a file that takes one example at a time. Both take a
# core some seconds. `most_disagreeing` bounds the error of the sample.
_SAMPLED, _SAMPLED_ONE_AT_A_TIME = 10_000, 2000
_TIE = 1e-6  # Characters whose probabilities differ by less than this count as equally likely.
# Prefixes of operations that exist only on other devices.
_DEVICE_OPS = ("TPU", "Xla", "CollectiveReduce", "NcclAllReduce")

_SIGNIFICANCE = 0.05
_SAME_NUMBER = 0.05  # In standard deviations of a regression's target.

Predict = Callable[[np.ndarray], np.ndarray]

_spec = importlib.util.spec_from_file_location("lite", Path(__file__).parents[1] / "serving" / "lite.py")
assert _spec is not None
assert _spec.loader is not None
lite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lite)


class DisagreementError(Exception):
    """A format loads, but its predictions are wrong, or it contains operations that a CPU cannot run."""


def _saved_model(path: Path, answer: str) -> tuple[Predict, Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    _refuse_device_ops(signature)
    (name,) = signature.structured_input_signature[1]
    return lambda inputs: signature(**{name: tf.constant(inputs)})[answer].numpy(), loaded


def _refuse_device_ops(signature: Any) -> None:
    graph = signature.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    for node in nodes:
        if node.op.startswith(_DEVICE_OPS) or "TPU" in node.device or "GPU" in node.device:
            raise DisagreementError(
                f"The SavedModel cannot run on a CPU: expected operations that a CPU supports, received {node.op} on "
                f"{node.device or 'any device'} in the node {node.name!r}. Remove this operation from the model."
            )


def _check_encoded(loaded: Any, images: np.ndarray, pixels: Predict, name: str, margin: Sequence[int]) -> None:
    """Check that the signature for image files, which crops a margin, predicts the same as the signature for pixels."""
    import tensorflow as tf

    rows, columns = margin
    around = [(0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)]
    encoded = tf.stack([tf.io.encode_png(image) for image in np.pad(images, around)])
    answer = loaded.signatures["encoded"](encoded=encoded)[name].numpy()
    if not np.array_equal(answer, pixels(images), equal_nan=True):
        raise DisagreementError("The SavedModel predicts different values for encoded images and for their pixels.")


def _takes_one(path: Path) -> bool:
    """Return whether the batch size of a file is fixed at one."""
    return path.suffix == ".tflite" and bool(lite.takes_one(path))


def choose_examples(path: Path, count: int) -> np.ndarray:
    """Return the indices of the examples on which a format is compared with the trained model, in ascending order.

    These are all examples or, if there are many, a random sample. The sample is smaller for a LiteRT file that takes
    only one example at a time.

    Args:
        path: File or folder of the format.
        count: Total number of examples.
    """
    most = _SAMPLED_ONE_AT_A_TIME if count > _SAMPLED_ONE_AT_A_TIME and _takes_one(path) else _SAMPLED
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def most_disagreeing(count: int, compared: int, disagreeing: int) -> int:
    """Return an upper bound on the number of examples that an exported model predicts differently from the original.

    The bound holds for all examples with 95% confidence. It is computed from a random sample, and is exact, by the
    hypergeometric distribution.

    Args:
        count: Total number of examples.
        compared: Number of examples in the sample.
        disagreeing: Number of examples in the sample that disagree.
    """
    from scipy import stats

    def is_excluded(among_all: int) -> bool:
        return bool(stats.hypergeom.cdf(disagreeing, count, among_all, compared) <= _SIGNIFICANCE)

    possible = range(disagreeing, count - compared + disagreeing + 1)
    return possible[bisect.bisect_left(possible, True, key=is_excluded) - 1]


def _step_by_step(path: Path, num_threads: int, num_classes: int) -> Predict:
    """Return a LiteRT step of a language model as a function: int32[N, length] IDs → float32[N, length, classes]."""
    step, state_size = lite.load_step(path, num_threads, num_classes)

    def predict(passages: np.ndarray) -> np.ndarray:
        probabilities = np.empty((*passages.shape, num_classes), np.float32)
        state = np.zeros((len(passages), state_size), np.float32)
        for position in range(passages.shape[1]):
            probabilities[:, position], state = step(passages[:, position], state)
        return probabilities

    return predict


def _check_steps(loaded: Any, passages: np.ndarray, whole: Predict) -> None:
    """Check that the signature for single steps predicts the same as the signature for passages."""
    import tensorflow as tf

    step = loaded.signatures["step"]
    _refuse_device_ops(step)
    expected = whole(passages)
    state = tf.zeros((len(passages), step.structured_input_signature[1]["state"].shape[1]))
    for position in range(passages.shape[1]):
        answer = step(tokens=tf.constant(passages[:, position]), state=state)
        state = answer["state"]
        if not np.allclose(answer["probabilities"], expected[:, position], atol=1e-4):
            raise DisagreementError(f"The SavedModel predicts different values step by step, at character {position}.")


def agree(task: str, answers: np.ndarray, expected: np.ndarray, scale: Any) -> np.ndarray:
    """Return whether predictions agree, bool[examples], or bool[examples, length] for a language model.

    See `ExportParams.min_agreement`.

    Args:
        task: Name of the task.
        answers: A format's predictions, float[examples, outputs]. For a language model, float[examples, length,
            classes].
        expected: The trained model's predictions, of the same shape.
        scale: Standard deviations of a regression's targets, by output. It is ignored for other tasks.
    """
    if task == "classification":
        return answers.argmax(1) == expected.argmax(1)
    if task == "language_model":
        chosen = np.take_along_axis(expected, answers.argmax(-1)[..., None], -1)[..., 0]
        return chosen >= expected.max(-1) - _TIE  # Either of two equally likely characters is right.
    if task == "multi_label":
        return ((answers > 0.5) == (expected > 0.5)).all(axis=1)
    return np.all(differences(answers, expected, scale) <= _SAME_NUMBER, axis=1)


def differences(answers: np.ndarray, expected: np.ndarray, scale: Any) -> np.ndarray:
    """Return the absolute differences of predictions, in units of `scale` if it is not None.

    The shape is that of `answers`.
    """
    distances = np.abs(answers.astype(np.float64) - expected)
    if scale is None:
        return distances
    # Ignore differences of up to two float32 steps: for targets around a large mean, the steps are wide.
    return np.maximum(distances - 2 * np.spacing(np.abs(expected).astype(np.float32)), 0) / scale


@dataclasses.dataclass
class Candidate:
    """A format that is compared.

    Attributes:
        path: File or folder of the format.
        predict: Function from a batch of examples to their predictions.
        examples: All examples, as images, token IDs or strings, whichever the format takes.
        chosen: Indices of the examples that are compared.
        answers: Predictions so far, in batches, in the order of `chosen`.
    """

    path: Path
    predict: Predict
    examples: np.ndarray
    chosen: np.ndarray
    answers: list[np.ndarray] = dataclasses.field(default_factory=list)

    def answer(self, some: np.ndarray, batch_size: int = _BATCH_SIZE) -> None:
        """Append the predictions for the examples at given indices to `answers`."""
        for start in range(0, len(some), batch_size):
            self.answers.append(self.predict(np.asarray(self.examples[some[start : start + batch_size]])))

    def answer_untimed(self) -> None:
        """Warm up the format. Then predict all chosen examples except the last 512, which `time` predicts.

        The predictions are appended to `answers`.
        """
        self.predict(np.asarray(self.examples[:_BATCH_SIZE]))
        self.answer(self.chosen[:-_TIMED], _TEXTS_AT_ONCE if self.examples.dtype == object else _BATCH_SIZE)

    def time(self) -> dict[str, Any]:
        """Measure throughput and latency.

        The throughput is measured with the last 512 chosen examples, whose predictions are appended to `answers`. The
        latency is measured with batches of one example.

        Returns:
            Medians and ranges of the measurements, by name.
        """
        rest = self.chosen[-_TIMED:]
        known = len(self.answers)
        rates = []
        for _ in range(_REPEATS):
            del self.answers[known:]
            rates.append(len(rest) / timeit.timeit(functools.partial(self.answer, rest), number=1))
        latencies = []
        self.predict(np.asarray(self.examples[:1]))
        for _ in range(_REPEATS):
            times = []
            for run in range(_LATENCY_RUNS):
                at = run % len(self.examples)
                example = np.asarray(self.examples[at : at + 1])
                times.append(timeit.timeit(functools.partial(self.predict, example), number=1))
            latencies.append(statistics.median(times) * 1e3)
        return {
            "latency_ms": statistics.median(latencies),
            "latency_spread": (min(latencies), max(latencies)),
            "examples_per_second": statistics.median(rates),
            "rate_spread": (min(rates), max(rates)),
        }


def _measure(candidate: Candidate, expected: np.ndarray, task: dict[str, Any]) -> dict[str, Any]:
    times = candidate.time()
    chosen = candidate.chosen
    count = len(expected)
    answers = np.concatenate(candidate.answers)
    expected = expected[chosen]
    agrees = agree(task["task"], answers, expected, task.get("scale", 1.0))
    disagreeing = int(len(chosen) - agrees.reshape(len(chosen), -1).all(axis=1).sum())
    files = (file for file in (candidate.path, *candidate.path.rglob("*")) if file.is_file())
    return {
        "file": candidate.path.name,
        "bytes": sum(file.stat().st_size for file in files),
        "agreement": float(agrees.mean()),
        "num_compared": len(chosen),
        "most_disagreeing": most_disagreeing(count, len(chosen), disagreeing),
        "max_difference": float(differences(answers, expected, task.get("scale")).max()),
        **times,
    }


def _load(path: Path, work: Path, task: dict[str, Any]) -> Candidate:
    """Load an exported format, and choose the examples on which it is compared with the trained model.

    The examples are texts if a SavedModel takes texts, and arrays of model inputs otherwise.
    """
    inputs = np.load(work / INPUTS_FILE, mmap_mode="r")
    is_language_model = task["task"] == "language_model"
    examples = inputs
    some = np.asarray(inputs[:_ENCODED_CHECKED])
    if path.suffix == ".tflite":
        if is_language_model:
            predict = _step_by_step(path, task["num_threads"], task["num_outputs"])
        else:
            predict = lite.load_predictor(path, task["num_threads"], task.get("scale", 1.0), task.get("offset", 0.0))
    else:
        predict, loaded = _saved_model(path, task["answer"])
        if (work / TEXTS_FILE).is_file():
            examples = np.array(json.loads((work / TEXTS_FILE).read_bytes()), object)
        elif is_language_model:
            _check_steps(loaded, some, predict)
        else:
            _check_encoded(loaded, some, predict, task["answer"], task["margin"])
    return Candidate(path, predict, examples, choose_examples(path, len(inputs)))


def _failure(error: Exception) -> dict[str, Any]:
    """Return a dict with the reason why a format cannot be measured (`error`), and with `errno`.

    `errno` is the number of an operating system's error, or None for other errors.
    """
    line, *_ = str(error).strip().splitlines() or [""]
    message = f"The format does not predict in a new process: {type(error).__name__}: {line}"
    is_its_own = isinstance(error, DisagreementError)
    return {"error": str(error) if is_its_own else message, "errno": getattr(error, "errno", None)}


def main(export_dir: Path, work: Path, formats: Iterable[str]) -> None:
    """Load each format (`NAME=FILE`) as soon as `formats` yields it, and compute its predictions.

    When `formats` ends, time the formats one after the other and compare their predictions with the trained model's.
    """
    for name in ("tpu_components", "tpu_pipelines"):
        sys.modules[name] = None  # type: ignore[assignment]  # Importing it raises ImportError.
    candidates = dict[str, Candidate]()
    facts = dict[str, dict[str, Any]]()
    for name, file in (word.strip().split("=") for word in formats):
        try:
            candidate = _load(export_dir / file, work, json.loads((work / TASK_FILE).read_text()))
            candidate.answer_untimed()
            candidates[name] = candidate
        except Exception as error:  # Which error a bad file raises depends on the library.
            facts[name] = _failure(error)
    if not (work / EXPECTED_FILE).is_file():  # The export has failed.
        return
    expected = np.load(work / EXPECTED_FILE)
    task = json.loads((work / TASK_FILE).read_text())
    for name, candidate in candidates.items():
        try:
            facts[name] = _measure(candidate, expected, task)
            answers = np.concatenate(candidate.answers)
            np.savez(work / ANSWERS_FILE.format(name), answers=answers, chosen=candidate.chosen)
        except Exception as error:  # Which error a bad file raises depends on the library.
            facts[name] = _failure(error)
    print(json.dumps(facts))


if __name__ == "__main__":
    import tensorflow  # noqa: F401  # Takes seconds, while the first format is made.

    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or sys.stdin)

"""Judges an export from outside: run as a script in a process of its own, it knows only the exported files.

Usage: python -I verification.py EXPORT_DIR WORK_DIR [NAME=FILE…]. WORK_DIR holds inputs, labels and the task, and in
    the end the trained model's answers. Formats that are not named are read from its standard input, one a line: each
    answers as it comes, while the next one is made, and is measured when no more come.
Prints one JSON line: facts by format; of one that does not load or answer, `error` alone. The answers of a
    classifier's formats are left in WORK_DIR. It must not import
anything of this project, and sees to it that it cannot.
"""

import dataclasses
import json
import math
import os
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

INPUTS_FILE, LABELS_FILE, EXPECTED_FILE, TASK_FILE = "inputs.npy", "labels.npy", "expected.npy", "task.json"
ANSWERS_FILE = "answers_{}.npy"  # What a format of a classifier answers to the examples that are compared.
TEXTS_FILE = "texts.json"  # Where the model takes strings: one for every input.
_BATCH_SIZE = 64
_REPEATS = 5  # Of either time: the median is told, with the least and the most.
_LATENCY_RUNS = 10
# Of the examples that are compared, those by which a format is timed: they wait until nothing else computes.
_TIMED = 8 * _BATCH_SIZE
_TEXTS_AT_ONCE = 4 * _BATCH_SIZE  # Of those that are not timed: a loop over tokens costs as much for more texts.
_ENCODED_CHECKED = 8
# Examples of a large split that are compared, and of a file that takes one example at a time: some seconds of a core.
# `_most_disagreeing` says what they can miss.
_SAMPLED, _SAMPLED_ONE_AT_A_TIME = 10_000, 2000
_TIE = 1e-6  # Among 100,000 characters there are some with two that are likely alike, up to rounding.
# A model for the CPU must not name another device, nor hold an operation that only exists on one.
_DEVICE_OPS = ("TPU", "Xla", "CollectiveReduce", "NcclAllReduce")

_ONE_IN = 0.05
_ONE_SIDED_95 = 1.645  # Standard errors, of a normal distribution.
_SAME_NUMBER = 0.05  # In standard deviations of a regression's target.

Predict = Callable[[np.ndarray], np.ndarray]


class DisagreementError(Exception):
    """A format that is not what it has to be."""


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
                f"The SavedModel is not for a CPU: node {node.name!r} is {node.op} on {node.device!r}."
            )


def _check_encoded(loaded: Any, images: np.ndarray, pixels: Predict, name: str, margin: Sequence[int]) -> None:
    """Check that the signature for encoded images answers like the one for pixels, which lack the margin of a file."""
    import tensorflow as tf

    rows, columns = margin
    around = [(0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)]
    encoded = tf.stack([tf.io.encode_png(image) for image in np.pad(images, around)])
    answer = loaded.signatures["encoded"](encoded=encoded)[name].numpy()
    if not np.array_equal(answer, pixels(images)):
        raise DisagreementError("The SavedModel answers differently to encoded images and to their pixels.")


def lite_predictor(path: Path, scale: Any = 1.0, offset: Any = 0.0) -> Predict:
    """Load the model of a LiteRT file as a function: pixels or ids of N examples → float32[N, outputs], any N.

    Args:
        path: The file.
        scale: Factor of an answer.
        offset: Number that is added to it then.
    """
    factor, addend = np.float32(scale), np.float32(offset)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=os.cpu_count())
    current = 0

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal current
        details = interpreter.get_input_details()[0]
        if len(inputs) != current:
            interpreter.resize_tensor_input(details["index"], inputs.shape)
            interpreter.allocate_tensors()
            current = len(inputs)
        interpreter.set_tensor(details["index"], _as_input(inputs, details))
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    answers: Predict = _one_at_a_time(path) if _takes_one(interpreter) else predict
    return lambda inputs: answers(inputs) * factor + addend


def _takes_one(interpreter: Any) -> bool:
    """Return whether a model's batch is fixed at one."""
    return bool(interpreter.get_input_details()[0]["shape_signature"][0] == 1)


def _choose(path: Path, count: int) -> np.ndarray:
    """Choose the examples to compare a format on: all, or a random sample where they are many."""
    from ai_edge_litert.interpreter import Interpreter

    most = _SAMPLED
    if count > _SAMPLED_ONE_AT_A_TIME and path.suffix == ".tflite" and _takes_one(Interpreter(model_path=str(path))):
        most = _SAMPLED_ONE_AT_A_TIME
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _most_disagreeing(count: int, compared: int, disagreeing: int) -> int:
    """Return how many of all examples disagree at most, with 95 % confidence, if so many of a random sample do.

    Exact, by the hypergeometric distribution: the most of which a sample has so few in one case of twenty or more.
    """

    def logarithm(whole: int, part: int) -> float:
        return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)

    def is_credible(among_all: int) -> bool:
        least = max(0, compared - (count - among_all))
        terms = (
            logarithm(among_all, some) + logarithm(count - among_all, compared - some) - logarithm(count, compared)
            for some in range(least, min(disagreeing, among_all) + 1)
        )
        return sum(map(math.exp, terms)) > _ONE_IN

    low, high = disagreeing, count - compared + disagreeing
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_credible(middle) else (low, middle - 1)
    return low


def _one_at_a_time(path: Path) -> Predict:
    """Return a predictor of a model with loops, whose batch is fixed at 1: an interpreter of one thread per core."""
    from ai_edge_litert.interpreter import Interpreter

    count = os.cpu_count() or 1
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(count):
        interpreter = Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
        free.put(interpreter)
    pool = ThreadPoolExecutor(count)

    def predict_one(row: np.ndarray) -> np.ndarray:
        interpreter = free.get()
        try:
            details = interpreter.get_input_details()[0]
            interpreter.set_tensor(details["index"], row[None].astype(details["dtype"]))
            interpreter.invoke()
            return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        finally:
            free.put(interpreter)

    return lambda inputs: np.concatenate(list(pool.map(predict_one, inputs)))


def step_predictor(path: Path, num_classes: int) -> Predict:
    """Load one step of a language model from LiteRT: int32[N, length] ids → float32[N, length, classes], any N."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=os.cpu_count())
    tokens, state = sorted(interpreter.get_input_details(), key=lambda details: details["dtype"] == np.float32)
    answer = interpreter.get_output_details()[0]

    def predict(passages: np.ndarray) -> np.ndarray:
        interpreter.resize_tensor_input(tokens["index"], (len(passages),))
        interpreter.resize_tensor_input(state["index"], (len(passages), state["shape_signature"][1]))
        interpreter.allocate_tensors()
        probabilities = np.empty((*passages.shape, num_classes), np.float32)
        after = np.zeros((len(passages), state["shape_signature"][1]), np.float32)
        for position in range(passages.shape[1]):
            interpreter.set_tensor(tokens["index"], np.ascontiguousarray(passages[:, position]))
            interpreter.set_tensor(state["index"], after)
            interpreter.invoke()
            both = interpreter.get_tensor(answer["index"])
            probabilities[:, position], after = both[:, :num_classes], both[:, num_classes:]
        return probabilities

    return predict


def _check_steps(loaded: Any, passages: np.ndarray, whole: Predict) -> None:
    """Check that the signature for single steps answers like the one for passages."""
    import tensorflow as tf

    step = loaded.signatures["step"]
    _refuse_device_ops(step)
    expected = whole(passages)
    state = tf.zeros((len(passages), step.structured_input_signature[1]["state"].shape[1]))
    for position in range(passages.shape[1]):
        answer = step(tokens=tf.constant(passages[:, position]), state=state)
        state = answer["state"]
        if not np.allclose(answer["probabilities"], expected[:, position], atol=1e-4):
            raise DisagreementError(f"The SavedModel answers differently step by step, at character {position}.")


def _as_input(images: np.ndarray, details: dict[str, Any]) -> np.ndarray:
    """Convert pixels to what the model takes: float32, or uint8 on the calibration's scale (as a rule 1, zero 0)."""
    scale, zero_point = details["quantization"]
    if details["dtype"] == np.uint8 and (scale, zero_point) != (1.0, 0):
        images = np.clip(np.round(images / scale) + zero_point, 0, 255)
    return images.astype(details["dtype"])


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def _batches(chosen: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]


def _contributions(task: str, labels: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return float64[examples, …]: what each example adds to the sums of which the task's figure is made."""
    if task == "classification":
        correct = answers.argmax(1) == labels
        return np.stack([correct, np.ones_like(correct)], axis=-1).astype(np.float64)
    if task == "language_model":
        # It answers every character of a passage; where it is not asked for one, the label is 0.
        asked = labels != 0
        correct = (answers.argmax(-1) == labels) & asked
        return np.stack([correct.sum(1), asked.sum(1)], axis=-1).astype(np.float64)
    if task == "multi_label":
        true, predicted = labels == 1, answers > 0.5
        return np.stack([(true & predicted).sum(1), (true != predicted).sum(1)], axis=-1).astype(np.float64)
    truth = labels.astype(np.float64)
    spread = truth - truth.mean(0)
    return np.stack([(answers - truth) ** 2, spread, spread**2, np.ones_like(spread)], axis=-1)


def _figure(task: str, sums: np.ndarray) -> np.ndarray:
    """Return a task's accuracy, micro F1 or R² from sums of contributions; R² is the mean over the targets."""
    # Of no examples nothing is known; a target that does not vary has no R²: 0 / 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        if task == "multi_label":
            hits, mistakes = 2 * sums[..., 0], sums[..., 1]
            return hits / np.maximum(hits + mistakes, 1)
        if task == "regression":
            residual, total, squares, count = np.moveaxis(sums, -1, 0)
            return (1 - residual / (squares - total**2 / count)).mean(-1)
        return sums[..., 0] / sums[..., 1]


def _judge(task: str, labels: np.ndarray, answers: np.ndarray) -> float:
    return float(_figure(task, _contributions(task, labels, answers).sum(0)))


def _drop_interval(task: str, labels: np.ndarray, expected: np.ndarray, answers: np.ndarray) -> list[float] | None:
    """Return how much of the figure answers lose at least and at most, each with 95 % confidence.

    By the jackknife over the examples, which are the same for both; None of one example, or where there is no figure.
    """
    ours, theirs = (_contributions(task, labels, some) for some in (expected, answers))
    drop = float(_figure(task, ours.sum(0)) - _figure(task, theirs.sum(0)))
    without = _figure(task, ours.sum(0) - ours) - _figure(task, theirs.sum(0) - theirs)
    spread = _ONE_SIDED_95 * math.sqrt((len(labels) - 1) * float(np.var(without)))
    bounds = [drop - spread, drop + spread]
    return bounds if len(labels) > 1 and np.isfinite(bounds).all() else None


def _agree(task: str, answers: np.ndarray, expected: np.ndarray, scale: Any) -> np.ndarray:
    """Return bool[examples]: whether an answer means the same; of a language model bool[examples, length]."""
    if task == "classification":
        return answers.argmax(1) == expected.argmax(1)
    if task == "language_model":
        chosen = np.take_along_axis(expected, answers.argmax(-1)[..., None], -1)[..., 0]
        return chosen >= expected.max(-1) - _TIE  # Of two that the trained model likes alike, either will do.
    if task == "multi_label":
        return ((answers > 0.5) == (expected > 0.5)).all(axis=1)
    return np.all(_differences(answers, expected, scale) <= _SAME_NUMBER, axis=1)


def _differences(answers: np.ndarray, expected: np.ndarray, scale: Any) -> np.ndarray:
    """Return how far answers lie apart; a regression's in units of `scale`."""
    distances = np.abs(answers.astype(np.float64) - expected)
    if scale is None:
        return distances
    # Around a large mean float32's own steps are wide: two of them are no difference.
    return np.maximum(distances - 2 * np.spacing(np.abs(expected).astype(np.float32)), 0) / scale


@dataclasses.dataclass
class Candidate:
    """A format that is judged.

    Attributes:
        path: Its file or folder.
        predict: Function that answers a batch.
        examples: All examples, as it takes them.
        chosen: Indices of those that are compared.
        answers: Its answers so far, in batches, in the order of `chosen`.
    """

    path: Path
    predict: Predict
    examples: np.ndarray
    chosen: np.ndarray
    answers: list[np.ndarray] = dataclasses.field(default_factory=list)

    def answer(self, some: np.ndarray, batch_size: int = _BATCH_SIZE) -> None:
        """Answer more of the chosen examples."""
        self.answers += [self.predict(np.asarray(self.examples[batch])) for batch in _batches(some, batch_size)]

    def answer_untimed(self) -> None:
        """Answer all but those by which it is timed, once it has warmed up."""
        self.predict(np.asarray(self.examples[:_BATCH_SIZE]))
        self.answer(self.chosen[:-_TIMED], _TEXTS_AT_ONCE if self.examples.dtype == object else _BATCH_SIZE)

    def time(self) -> dict[str, Any]:
        """Answer the rest, and single examples, several times; returns how long both take, and from when to when."""
        rest = self.chosen[-_TIMED:]
        known, rates = len(self.answers), []
        for _ in range(_REPEATS):
            del self.answers[known:]
            start = time.perf_counter()
            self.answer(rest)
            rates.append(len(rest) / (time.perf_counter() - start))
        latencies = []
        self.predict(np.asarray(self.examples[:1]))
        for _ in range(_REPEATS):
            times = []
            for run in range(_LATENCY_RUNS):
                at = run % len(self.examples)
                example = np.asarray(self.examples[at : at + 1])
                begin = time.perf_counter()
                self.predict(example)
                times.append(time.perf_counter() - begin)
            latencies.append(statistics.median(times) * 1e3)
        return {
            "latency_ms": statistics.median(latencies),
            "latency_spread": (min(latencies), max(latencies)),
            "examples_per_second": statistics.median(rates),
            "rate_spread": (min(rates), max(rates)),
        }


def _measure(candidate: Candidate, labels: np.ndarray, expected: np.ndarray, task: dict[str, Any]) -> dict[str, Any]:
    times, chosen = candidate.time(), candidate.chosen
    answers = np.concatenate(candidate.answers)
    scale, score = task.get("scale", 1.0), _judge(task["task"], labels[chosen], answers)
    if len(chosen) < len(labels):  # The trained model's figure on all, less what is lost on the sample.
        lost = _judge(task["task"], labels[chosen], expected[chosen]) - score
        score = _judge(task["task"], labels, expected) - lost
    count, labels, expected = len(labels), labels[chosen], expected[chosen]
    agrees = _agree(task["task"], answers, expected, scale)
    disagreeing = int(len(chosen) - agrees.reshape(len(chosen), -1).all(axis=1).sum())
    return {
        "file": candidate.path.name,
        "bytes": _size(candidate.path),
        task["judged"]: score,
        "drop_interval": _drop_interval(task["task"], labels, expected, answers),
        "agreement": float(agrees.mean()),
        "num_compared": len(chosen),
        "most_disagreeing": _most_disagreeing(count, len(chosen), disagreeing),
        "max_difference": float(_differences(answers, expected, task.get("scale")).max()),
        **times,
    }


def _load(path: Path, work: Path, task: dict[str, Any]) -> Candidate:
    """Load a format, with the examples as it takes them."""
    inputs = np.load(work / INPUTS_FILE, mmap_mode="r")
    is_language_model = task["task"] == "language_model"
    examples, some = inputs, np.asarray(inputs[:_ENCODED_CHECKED])
    if path.suffix == ".tflite":
        units = task.get("scale", 1.0), task.get("offset", 0.0)
        predict = step_predictor(path, task["num_outputs"]) if is_language_model else lite_predictor(path, *units)
    else:
        predict, loaded = _saved_model(path, task["answer"])
        if (work / TEXTS_FILE).is_file():
            examples = np.array(json.loads((work / TEXTS_FILE).read_bytes()), object)
        elif is_language_model:
            _check_steps(loaded, some, predict)
        else:
            _check_encoded(loaded, some, predict, task["answer"], task["margin"])
    return Candidate(path, predict, examples, _choose(path, len(inputs)))


def _explain(error: Exception) -> str:
    if isinstance(error, DisagreementError):
        return str(error)
    # What a file that does not load raises depends on the library.
    line, *_ = str(error).strip().splitlines() or [""]
    return f"It does not answer in a fresh process: {type(error).__name__}: {line}"


def main(export_dir: Path, work: Path, formats: Iterable[str]) -> None:
    """Have formats, each a name and a file, answer as they come; then measure each by itself, and print the facts."""
    for name in ("tpu_components", "tpu_pipelines"):
        sys.modules[name] = None  # type: ignore[assignment]  # Importing it raises ImportError.
    candidates, facts = dict[str, Candidate](), dict[str, dict[str, Any]]()
    for name, file in (word.strip().split("=") for word in formats):
        facts[name] = {}
        try:
            candidates[name] = _load(export_dir / file, work, json.loads((work / TASK_FILE).read_text()))
            candidates[name].answer_untimed()
        except Exception as error:  # See `_explain`.
            facts[name] = {"error": _explain(error)}
    if not (work / EXPECTED_FILE).is_file():  # Whoever started this is gone.
        return
    labels, expected = np.load(work / LABELS_FILE), np.load(work / EXPECTED_FILE)
    task = json.loads((work / TASK_FILE).read_text())
    for name, candidate in candidates.items():
        try:
            facts[name] = facts[name] or _measure(candidate, labels, expected, task)
            if task["task"] == "classification" and "error" not in facts[name]:
                np.save(work / ANSWERS_FILE.format(name), np.concatenate(candidate.answers))
        except Exception as error:  # See `_explain`.
            facts[name] = {"error": _explain(error)}
    print(json.dumps(facts))


def _formats_as_they_come() -> Iterable[str]:
    """Load what takes seconds to load, and return the formats that come then."""
    import tensorflow  # noqa: F401

    return sys.stdin


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or _formats_as_they_come())

"""The training step in float64, by hand: models of one linear layer, whose gradients can be written down."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Weights = dict[str, np.ndarray]
MEAN, STD = (5.0, -40.0), (2.0, 30.0)  # Of the regression's targets.
NUM_STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY, EMA_DECAY, WARMUP_STEPS = 12, 8, 0.05, 0.01, 0.6, 4
DECAYED = ("kernel", "embeddings")
TASKS = ("classification", "multi_label", "regression", "language_model")


def examples(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and weights of all steps; the last ones are the filling of a batch."""
    rng = np.random.default_rng(TASKS.index(task))
    count = NUM_STEPS * BATCH
    weights = (np.arange(count) < count - 3).astype(np.float32)
    if task == "language_model":
        ids = rng.integers(1, 7, (count, 5)).astype(np.int32)
        targets = ids.copy()
        targets[::3, :2] = 0
        return np.roll(ids, 1, axis=1), targets, weights
    images = rng.integers(0, 256, (count, 2, 3, 1), np.uint8)
    if task == "classification":
        return images, rng.integers(0, 4, count).astype(np.int32), weights
    if task == "multi_label":
        return images, (rng.random((count, 3)) < 0.4).astype(np.float32), weights
    return images, (rng.normal(size=(count, 2)) * STD + MEAN).astype(np.float32), weights


def train(task: str, optimizer: str, start: Mapping[str, np.ndarray]) -> tuple[Weights, Weights, float]:
    """The weights after all steps, their running averages, and the mean loss of the steps."""
    now: Weights = {name: value.astype(np.float64) for name, value in start.items()}
    averages: Weights = {}
    update = _OPTIMIZERS[optimizer]
    memory: dict[str, np.ndarray] = {}
    losses = []
    inputs, targets, weights = examples(task)
    for step in range(NUM_STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        loss, gradients = _loss(task, now, inputs[part], targets[part], weights[part].astype(np.float64))
        losses.append(loss)
        rate = _rate(step)
        for name, gradient in gradients.items():
            if optimizer != "adam" and name in DECAYED:
                now[name] = now[name] - rate * WEIGHT_DECAY * now[name]
            now[name] = now[name] + update(memory, name, gradient, rate, step + 1)
        kept = min(EMA_DECAY, step / (step + 9))
        averages = {name: value + kept * (averages.get(name, value) - value) for name, value in now.items()}
    return now, averages, float(np.mean(losses))


def _rate(step: int) -> float:
    if step < WARMUP_STEPS:
        return LEARNING_RATE * step / WARMUP_STEPS
    return LEARNING_RATE * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (NUM_STEPS - WARMUP_STEPS))) / 2


def _sgd(memory: dict[str, np.ndarray], name: str, gradient: np.ndarray, rate: float, step: int) -> np.ndarray:
    """Nesterov's momentum of 0.9."""
    memory[name] = 0.9 * memory.get(name, 0.0) - rate * gradient
    return 0.9 * memory[name] - rate * gradient


def _adam(memory: dict[str, np.ndarray], name: str, gradient: np.ndarray, rate: float, step: int) -> np.ndarray:
    first = memory[name, 1] = 0.9 * memory.get((name, 1), 0.0) + 0.1 * gradient
    second = memory[name, 2] = 0.999 * memory.get((name, 2), 0.0) + 0.001 * gradient**2
    scale = math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return -rate * scale * first / (np.sqrt(second) + 1e-7)


_OPTIMIZERS: Mapping[str, Callable[..., np.ndarray]] = {"sgd": _sgd, "adam": _adam, "adamw": _adam}
OPTIMIZERS: Sequence[str] = tuple(_OPTIMIZERS)


def _loss(
    task: str, now: Weights, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[float, Weights]:
    """The mean loss of a batch, in which the filling weighs nothing, and its gradients."""
    features = now["embeddings"][inputs] if task == "language_model" else inputs.reshape(len(inputs), -1) / 255
    values = features @ now["kernel"] + now["bias"]
    losses, slopes = _OUTPUTS[task](values, targets)
    slopes = slopes * weights.reshape(-1, *[1] * (slopes.ndim - 1)) / len(inputs)
    gradients = {
        "kernel": features.reshape(-1, features.shape[-1]).T @ slopes.reshape(-1, slopes.shape[-1]),
        "bias": slopes.reshape(-1, slopes.shape[-1]).sum(axis=0),
    }
    if task == "language_model":
        gradients["embeddings"] = np.zeros_like(now["embeddings"])
        np.add.at(gradients["embeddings"], inputs, slopes @ now["kernel"].T)
    return float((losses * weights).mean()), gradients


def _softmax(values: np.ndarray) -> np.ndarray:
    odds = np.exp(values - values.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def _one_class(values: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shares, true = _softmax(values), np.eye(values.shape[-1])[targets]
    return -np.log((shares * true).sum(axis=-1)), shares - true


def _labels(values: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shares = 1 / (1 + np.exp(-values))
    losses = -np.log(np.where(targets > 0, shares, 1 - shares)).mean(axis=1)
    return losses, (shares - targets) / values.shape[1]


def _numbers(values: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    errors = values - (targets.astype(np.float64) - MEAN) / STD
    return np.square(errors).mean(axis=1), 2 * errors / values.shape[1]


def _next_characters(values: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    losses, slopes = _one_class(values, targets)
    counts = targets != 0
    return (losses * counts).sum(axis=1) / targets.shape[1], slopes * counts[..., None] / targets.shape[1]


_OUTPUTS: Mapping[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "classification": _one_class,
    "multi_label": _labels,
    "regression": _numbers,
    "language_model": _next_characters,
}

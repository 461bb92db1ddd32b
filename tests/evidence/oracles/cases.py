"""Examples and answers of every task, odd ones among them: few, tied, absent, extreme."""

from collections.abc import Iterator

import numpy as np

Case = tuple[str, str, np.ndarray, np.ndarray]


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return (odds / odds.sum(-1, keepdims=True)).astype(np.float32)


def cases() -> Iterator[Case]:
    """Task, name, targets and outputs as evaluation has them."""
    rng = np.random.default_rng(0)
    for name, num, classes, digits in (
        ("one", 1, 3, 6),
        ("two classes", 60, 2, 6),
        ("ties", 90, 4, 1),
        ("absent classes", 30, 20, 6),
        ("many", 300, 10, 6),
    ):
        labels = rng.integers(0, classes, num)
        logits = rng.normal(size=(num, classes)) + 1.5 * np.eye(classes)[labels]
        yield "classification", name, labels, _softmax(logits).round(digits)
    labels = rng.integers(0, 3, 40)
    yield "classification", "certain", labels, np.eye(3, dtype=np.float32)[rng.integers(0, 3, 40)]
    for name, num, classes, digits in (
        ("few", 2, 3, 6),
        ("one label", 50, 1, 6),
        ("ties", 80, 4, 1),
        ("many", 200, 6, 6),
    ):
        true = (rng.random((num, classes)) < np.linspace(0.1, 0.8, classes)).astype(np.float32)
        logits = rng.normal(size=true.shape) + 1.5 * (true - 0.5)
        yield "multi_label", name, true, (1 / (1 + np.exp(-logits))).astype(np.float32).round(digits)
    true = np.zeros((20, 3), np.float32)
    true[:, 0], true[:10, 1] = 1, 1
    yield "multi_label", "all, half and none", true, rng.random((20, 3)).astype(np.float32)
    for name, num, size, offset in (("few", 2, 1, 0.0), ("units", 100, 3, 5.0), ("far from zero", 80, 2, 1e4)):
        scale = 10.0 ** np.arange(size)
        values = ((rng.normal(size=(num, size)) + offset) * scale).astype(np.float32)
        yield "regression", name, values, (values + rng.normal(size=values.shape) * scale / 3).astype(np.float32)
    yield "regression", "never changes", np.ones((9, 1), np.float32), rng.normal(size=(9, 1)).astype(np.float32)
    for name, passages, length in (("one passage", 1, 5), ("many", 20, 30)):
        ids = rng.integers(1, 7, (passages, length))
        ids[:, : length // 3] = 0
        yield "language_model", name, ids, _softmax(rng.normal(size=(passages, length, 7)))

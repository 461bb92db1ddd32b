"""Weights and history that train_model has saved, to compare trainings."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

FILES = ("last.weights.h5", "best.weights.h5")


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a weights file, or of `last.weights.h5` in a model's folder, by name."""
    found = {}
    with h5py.File(path / FILES[0] if path.is_dir() else path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def history_of(model_dir: Path) -> list[dict[str, Any]]:
    """Return the entries of a model's history, one per epoch."""
    return [json.loads(line) for line in (model_dir / "history.jsonl").read_text().splitlines()]


def assert_close_models(expected: Path, received: Path) -> None:
    """Compare last weights but for the order in which float32 sums gradients over examples: 1e-4 after 40 steps."""
    ours, theirs = weights_of(expected), weights_of(received)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(theirs[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def assert_equal_models(expected: Path, received: Path) -> None:
    """Compare the last and the best weights of two models' folders, bit by bit."""
    for file in FILES:
        ours, theirs = weights_of(expected / file), weights_of(received / file)
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            assert np.array_equal(theirs[name], array), name

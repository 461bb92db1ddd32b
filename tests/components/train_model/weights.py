"""Weights that train_model has saved, to compare two trainings."""

from pathlib import Path

import h5py
import numpy as np

FILES = ("last.weights.h5", "best.weights.h5")


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a weights file, or of `last.weights.h5` in a model's folder, by name."""
    found = {}
    with h5py.File(path / FILES[0] if path.is_dir() else path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def assert_equal_models(expected: Path, received: Path) -> None:
    """Compare the last and the best weights of two models' folders, bit by bit."""
    for file in FILES:
        ours, theirs = weights_of(expected / file), weights_of(received / file)
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            assert np.array_equal(theirs[name], array), name

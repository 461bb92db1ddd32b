"""What examples have in columns that are no target, such as the site of a photo: by it a gate judges them in slices.

records/slices.npz   for each column its name and its values, and for each split int32[num_examples] in stored order:
                     which of the values
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.errors import InputError

SLICES_FILE = "slices.npz"
_NAMES = "names"


def save_slices(directory: Path, columns: Mapping[str, Sequence[str]], stored: Mapping[str, np.ndarray]) -> None:
    """Write the values of columns beside records; nothing where there is no column.

    Args:
        directory: The records' folder.
        columns: A value for every example that is listed, by the column's name.
        stored: Examples of each split, int[num_examples], in stored order.
    """
    arrays: dict[str, Any] = {}
    for number, column in enumerate(columns.values()):
        arrays[f"{number}"], codes = np.unique(np.array(column), return_inverse=True)
        arrays |= {f"{number}.{split}": codes[examples].astype(np.int32) for split, examples in stored.items()}
    if columns:
        arrays[_NAMES] = np.array(list(columns))
        np.savez_compressed(directory / SLICES_FILE, **arrays)


def slice_names(records_dir: Path) -> list[str]:
    """Return the columns that records keep.

    Raises:
        InputError: If their file is damaged.
    """
    return _load(records_dir, _NAMES).get(_NAMES, np.empty(0)).tolist()


def load_slices(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    """Return str[num_examples] of a split in stored order, by the column's name.

    Raises:
        InputError: If their file is damaged.
    """
    arrays = _load(records_dir)
    names = arrays.get(_NAMES, np.empty(0)).tolist()
    return {name: arrays[f"{number}"][arrays[f"{number}.{split}"]] for number, name in enumerate(names)}


def _load(records_dir: Path, *wanted: str) -> dict[str, np.ndarray]:
    """Load the arrays of some names, or all; none where records keep no column."""
    path = records_dir / SLICES_FILE
    if not path.is_file():
        return {}
    try:
        with np.load(path) as file:
            return {name: file[name] for name in wanted or file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Cannot read {path}: expected what create_tfrecords wrote, received {error}. Run it again."
        ) from error

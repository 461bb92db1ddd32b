"""Slice values and groups of examples, which are stored with the records.

Slice values, such as the site and the size of a photo, define the slices that the gate judges. Groups, such as the
images of one patient, contain examples that depend on each other.

`records/slices.npz` contains the following arrays. The arrays of a SPLIT are int32[num_examples], in stored order:

names         names of the slice columns
N             distinct values of the column with the index N in `names`
N.SPLIT       index of each example's value in the array N
size.SPLIT    number of pixels of each image file; only for images
group.SPLIT   number of each example's group; only if the examples have groups
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import reading
from tpu_components.core.base.names import as_nfc
from tpu_components.core.files.unpacking import read_arrays

SLICES_FILE = "slices.npz"
SIZE = "size"
_NAMES, _GROUP = "names", "group"


def save_slices(
    directory: Path,
    columns: Mapping[str, Sequence[str]],
    stored: Mapping[str, np.ndarray],
    sizes: Mapping[str, np.ndarray],
    groups: Sequence[str] | None = None,
) -> None:
    """Write `slices.npz` with the columns, sizes and groups of examples. If all three are empty, write no file.

    Args:
        directory: Folder of the records.
        columns: Slice columns by name, with a value for every example that the source lists.
        stored: For each split, the indices of its examples in these columns, int[num_examples], in stored order.
        sizes: For each split, the number of pixels of each image file, int32[num_examples], in stored order. Empty for
            texts.
        groups: Group name of every example that the source lists, or None without groups.
    """
    arrays: dict[str, Any] = {f"{SIZE}.{split}": rows for split, rows in sizes.items()}
    if groups is not None:
        codes = number_groups(groups)
        arrays |= {f"{_GROUP}.{split}": codes[examples] for split, examples in stored.items()}
    for number, column in enumerate(columns.values()):
        arrays[f"{number}"], codes = np.unique(np.array([*map(as_nfc, column)]), return_inverse=True)
        arrays |= {f"{number}.{split}": codes[examples].astype(np.int32) for split, examples in stored.items()}
    if arrays:
        arrays[_NAMES] = np.array([*map(as_nfc, columns)], np.str_)
        np.savez_compressed(directory / SLICES_FILE, **arrays)


def number_groups(groups: Sequence[str]) -> np.ndarray:
    """Convert group names to numbers, int32[num_examples]. Groups are numbered from 0, in alphabetical order."""
    return np.unique(np.array(list(map(as_nfc, groups))), return_inverse=True)[1].astype(np.int32)


def load_groups(records_dir: Path, split: str) -> np.ndarray | None:
    """Return the group number of each example of a split, int32[num_examples], in stored order.

    Return None if the examples have no groups.
    """
    return _load(records_dir, split).get(_GROUP)


def load_slices(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    """Return the slice values of a split's examples, in stored order.

    Returns:
        For each slice column name, the values of the examples, str[num_examples]. For images, there is also `size`, the
        number of pixels, int32[num_examples], unless a column has this name.

    Raises:
        InputError: If the file is damaged.
    """
    return {name: values for name, values in _load(records_dir, split).items() if name != _GROUP}


def _load(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    path = records_dir / SLICES_FILE
    if not path.is_file():
        return {}
    with reading(path, "the slice values that create_tfrecords wrote", "Run create_tfrecords again."):
        file = read_arrays(path, is_own=True)
        columns = {
            # Files from earlier versions have names in any Unicode form.
            as_nfc(name): file[f"{number}"][file[f"{number}.{split}"]]
            for number, name in enumerate(file[_NAMES].tolist())
        }
        others = {name: file[f"{name}.{split}"] for name in (SIZE, _GROUP) if f"{name}.{split}" in file}
    return {**others, **columns}

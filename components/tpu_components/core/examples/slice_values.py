"""Properties of examples that define the gate's slices, such as the site and the size of a photo.

The examples of one group, such as the images of one patient, depend on each other.

`records/slices.npz` contains these arrays. Those of a SPLIT are int32[num_examples], in stored order:

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
    """Write `slices.npz` with the columns, sizes and groups of examples. If there are none, no file is written.

    Args:
        directory: Folder of the records.
        columns: Value of every listed example, by column name.
        stored: Examples of each split, int[num_examples], in stored order.
        sizes: Pixels of the files of each split's images, int32[num_examples], in stored order. Empty for texts.
        groups: Group of every listed example, or None without groups.
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
    """Return the number of each example's group, int32[num_examples]. Groups are numbered alphabetically."""
    return np.unique(np.array(list(map(as_nfc, groups))), return_inverse=True)[1].astype(np.int32)


def load_groups(records_dir: Path, split: str) -> np.ndarray | None:
    """Return the group number of each example of a split, int32[num_examples], in stored order.

    Return None if the examples have no groups.
    """
    return _load(records_dir, split).get(_GROUP)


def load_slices(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    """Return the properties of a split's examples, in stored order.

    Returns:
        str[num_examples] for each column, by its name. For images also `size`, int32[num_examples], unless a column has
        this name.

    Raises:
        InputError: If the file is damaged.
    """
    return {name: values for name, values in _load(records_dir, split).items() if name != _GROUP}


def _load(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    path = records_dir / SLICES_FILE
    if not path.is_file():
        return {}
    with reading(path, "what create_tfrecords wrote", "Run it again."):
        file = read_arrays(path, is_own=True)
        columns = {
            # Files from earlier versions have names in any Unicode form.
            as_nfc(name): file[f"{number}"][file[f"{number}.{split}"]]
            for number, name in enumerate(file[_NAMES].tolist())
        }
        others = {name: file[f"{name}.{split}"] for name in (SIZE, _GROUP) if f"{name}.{split}" in file}
    return {**others, **columns}

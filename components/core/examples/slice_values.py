"""Properties of examples besides the target, for example site and size of a photo. The gate evaluates slices by them.

records/slices.npz   for each column its name and its values, and for each split int32[num_examples] in stored order:
                     which of the values; of images for each split int32[num_examples]: pixels of their files
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError

SLICES_FILE = "slices.npz"
SIZE = "size"
_NAMES = "names"


def save_slices(
    directory: Path,
    columns: Mapping[str, Sequence[str]],
    stored: Mapping[str, np.ndarray],
    sizes: Mapping[str, np.ndarray],
) -> None:
    """Write the values of columns and the sizes of images beside records; writes no file if there are neither.

    Args:
        directory: Folder of the records.
        columns: Values of every example of the listing, by the name of the column.
        stored: Examples of each split in stored order: int[num_examples], indices into the listing.
        sizes: Number of pixels in the images' files, by split in stored order: int32[num_examples]; empty for texts.
    """
    arrays: dict[str, Any] = {_of_size(split): rows for split, rows in sizes.items()}
    for number, column in enumerate(columns.values()):
        arrays[f"{number}"], codes = np.unique(np.array(column), return_inverse=True)
        arrays |= {f"{number}.{split}": codes[examples].astype(np.int32) for split, examples in stored.items()}
    if arrays:
        arrays[_NAMES] = np.array(list(columns), np.str_)
        np.savez_compressed(directory / SLICES_FILE, **arrays)


def load_slices(records_dir: Path, split: str) -> dict[str, np.ndarray]:
    """Return the properties of a split's examples, in stored order.

    Returns:
        str[num_examples] for each column, by its name. For images also `size`, int32[num_examples], unless a column has
        this name.

    Raises:
        InputError: If the file is damaged.
    """
    path = records_dir / SLICES_FILE
    if not path.is_file():
        return {}
    try:
        with np.load(path) as file:
            columns = {
                name: file[f"{number}"][file[f"{number}.{split}"]] for number, name in enumerate(file[_NAMES].tolist())
            }
            sizes = {SIZE: file[_of_size(split)]} if _of_size(split) in file else {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Cannot read {path}: expected what create_tfrecords wrote, received {error}. Run it again."
        ) from error
    return {**sizes, **columns}


def _of_size(split: str) -> str:
    return f"{SIZE}.{split}"

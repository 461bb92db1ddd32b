"""Examples from the arrays of a NumPy file (`.npz`)."""

import hashlib
import re

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.sources.arrays import Arrays, list_arrays
from tpu_components.core.sources.listing import SPLIT_NAMES, Listing, Source
from tpu_components.core.sources.params import WriteParams


def list_npz(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List the arrays of a NumPy file.

    The names of the arrays must be x_train/y_train, x_validation/y_validation and x_test/y_test. Without splits, the
    names must be x/y or images/labels.

    If `labelled` is false, the labels may be missing.
    """
    content = storage.read_bytes(location)
    advice = "Write the file with numpy.savez_compressed."
    with reading(location, "an .npz file without pickled objects", advice):
        data = read_arrays(location, content)
        if data.keys() == {""}:
            raise ValueError("a single array, as numpy.save writes it")
    if not labelled:
        data = _without_labels(data)
    arrays: Arrays = {}
    pairs = {f"{side}_{alias}": split for split, names in SPLIT_NAMES.items() for alias in names for side in "xy"}
    named = [name for name in data if re.match(r"[xy]_", name, re.IGNORECASE)]
    for name in named:
        split = pairs.get(name)
        partner = {"x": "y", "y": "x"}[name[0].lower()] + name[1:]
        if split is None or partner not in data or (split in arrays and name[0] == "x"):
            raise InputError(
                f"Cannot use {name!r} in {location}: expected one pair for each split, such as x_train and y_train, "
                f"x_validation and y_validation, x_test and y_test. Received: {sorted(named)}. Rename or remove the "
                "arrays that do not belong to one of these pairs."
            )
        if name[0] == "x":
            arrays[split] = data[name], data[partner]
    for images, labels in (("x", "y"), ("images", "labels")):
        if not arrays and images in data and labels in data:
            arrays[""] = data[images], data[labels]
    if not arrays:
        raise InputError(
            f"Found no images in {location}: expected arrays x_train, y_train (and x_test, y_test) or images, labels. "
            f"Received: {sorted(data)}. Rename the arrays."
        )
    return list_arrays(arrays, hashlib.sha256(content).hexdigest(), params)


def _without_labels(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the image arrays of a file, each with an array of zeros in place of labels."""
    partners = {"x": "y", "images": "labels"}
    images = {name: array for name, array in data.items() if name in partners or re.match("x_", name, re.IGNORECASE)}
    labels = {partners.get(name, f"y{name[1:]}"): np.zeros(len(array), int) for name, array in images.items()}
    return {**images, **labels}


SOURCE = Source("npz:FILE", list_npz, suffixes=(".npz",), takes=("task",))

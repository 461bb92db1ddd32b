"""Example IDs: eight bytes of a hash of an example's content, stored with records and with models.

records/examples.npz     for each split, in stored order: IDs, uint64[num_examples], and whether each example has a copy
                         in training, bool[num_examples]
model/trained_on.npy     IDs of the training examples, sorted, uint64[…]
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import reading
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import read_arrays

IDENTITY_TYPE = np.dtype("<u8")  # A million different examples have a collision with probability 3e-8.
EXAMPLES_FILE = "examples.npz"
TRAINED_ON_FILE = "trained_on.npy"
_COPIED = "_copied"


def identify(content: Any) -> bytes:
    """Return an ID of eight bytes that is equal for equal content; `content` is bytes or a contiguous array."""
    return hashlib.blake2b(content, digest_size=IDENTITY_TYPE.itemsize).digest()


def identify_each(contents: Iterable[Any]) -> np.ndarray:
    """Return the ID of each content, uint64[count]; see `identify`."""
    return np.fromiter(map(identify, contents), f"S{IDENTITY_TYPE.itemsize}").view(IDENTITY_TYPE)


def save_identities(directory: Path, by_split: Mapping[str, np.ndarray], copied: Mapping[str, np.ndarray]) -> None:
    """Write example IDs to `examples.npz` in the folder of the records.

    Args:
        directory: Folder of the records.
        by_split: IDs of each split, uint64[num_examples], in stored order.
        copied: For each split, whether each example has a copy in training, exact or near: bool[num_examples].
    """
    arrays: dict[str, Any] = dict(by_split)
    arrays |= {f"{name}{_COPIED}": some for name, some in copied.items()}
    np.savez(directory / EXAMPLES_FILE, **arrays)


def load_identities(records_dir: Path, split: str) -> np.ndarray | None:
    """Load the example IDs of a split, uint64[num_examples]; None for a corpus and for records without IDs."""
    path = records_dir / EXAMPLES_FILE
    return _load(path, split).get(split) if path.is_file() else None


def load_copied(records_dir: Path, split: str) -> np.ndarray:
    """Load, for each example of a split with IDs, whether it has a copy in training: bool[num_examples]."""
    name = f"{split}{_COPIED}"
    return _load(records_dir / EXAMPLES_FILE, name)[name]


def load_retired(files: Iterable[str]) -> np.ndarray:
    """Load the example IDs of retired test sets, uint64[…], from `.npy` files, local or in a bucket."""
    contents = [np.empty(0, IDENTITY_TYPE)]
    for uri in files:
        with reading(uri, "examples.npy, as the gate names it", "Correct data.retired_tests."):
            contents.append(read_arrays(uri, storage.read_bytes(uri))[""])
    return np.concatenate(contents)


def save_trained_on(records_dir: Path, model_dir: Path, initial: Path | None = None) -> None:
    """Save the IDs of a model's training examples in its folder, together with those of its initial model.

    Nothing is saved for records without IDs.
    """
    identities = load_identities(records_dir, TRAIN)
    if identities is not None:
        before = [_load(initial / TRAINED_ON_FILE)[""]] if initial and (initial / TRAINED_ON_FILE).is_file() else []
        np.save(model_dir / TRAINED_ON_FILE, np.unique(np.concatenate([identities, *before])))


def find_seen(model_dir: Path, identities: np.ndarray) -> np.ndarray | None:
    """Return whether a model was trained on each example, bool[num_examples]; None if the model has no IDs."""
    path = model_dir / TRAINED_ON_FILE
    return np.isin(identities, _load(path)[""]) if path.is_file() else None


def _load(path: Path, name: str = "") -> dict[str, np.ndarray]:
    with reading(path, "the IDs of examples", "Write the folder again."):
        return read_arrays(path, only=name, is_own=True)

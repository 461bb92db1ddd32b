"""What examples are known by wherever they go: eight bytes of a hash of their content, in records and in models.

records/examples.npz     uint64[num_examples] for each split, in stored order, and bool[num_examples]: copied
model/trained_on.npy     uint64[…], sorted: what the model has trained on
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import read_arrays

IDENTITY_TYPE = np.dtype("<u8")  # Among a million examples two that differ share one with a chance of 3 in 100 million.
EXAMPLES_FILE = "examples.npz"
TRAINED_ON_FILE = "trained_on.npy"
_COPIED = "_copied"


def identify(content: Any) -> bytes:
    """Return eight bytes that are equal for equal content: a text's bytes, or those of a contiguous array."""
    return hashlib.blake2b(content, digest_size=IDENTITY_TYPE.itemsize).digest()


def identify_each(contents: Iterable[Any]) -> np.ndarray:
    """Return uint64[count]: `identify` of each."""
    identities = bytearray()
    for content in contents:
        identities += identify(content)
    return np.frombuffer(identities, IDENTITY_TYPE)


def save_identities(directory: Path, by_split: Mapping[str, np.ndarray], copied: Mapping[str, np.ndarray]) -> None:
    """Write what the examples are known by.

    Args:
        directory: The records' folder.
        by_split: The identities of each split, uint64[num_examples], in stored order.
        copied: bool[num_examples] of each split: whether it has a copy in training, be it a near one.
    """
    arrays: dict[str, Any] = dict(by_split)
    arrays |= {f"{name}{_COPIED}": some for name, some in copied.items()}
    np.savez(directory / EXAMPLES_FILE, **arrays)


def load_identities(records_dir: Path, split: str) -> np.ndarray | None:
    """Load the identities of a split, uint64[num_examples]; None where records have none: a corpus, or old ones."""
    path = records_dir / EXAMPLES_FILE
    if not path.is_file():
        return None
    return _load(path, split).get(split)


def load_copied(records_dir: Path, split: str) -> np.ndarray:
    """Return bool[num_examples] of a split that has identities: whether an example has a copy in training."""
    name = f"{split}{_COPIED}"
    return _load(records_dir / EXAMPLES_FILE, name)[name]


def load_retired(files: Iterable[str]) -> np.ndarray:
    """Return the identities of examples of retired test sets, uint64[…], from files here or in a bucket."""
    contents = [np.empty(0, IDENTITY_TYPE)]
    for uri in files:
        try:
            contents.append(read_arrays(uri, storage.read_bytes(uri))[""])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"Cannot read the retired test set {uri}: expected examples.npy, as the gate names it, received "
                f"{error}. Correct data.retired_tests."
            ) from error
    return np.concatenate(contents)


def save_trained_on(records_dir: Path, model_dir: Path) -> None:
    """Let a model say what it was trained on, where its records say it."""
    identities = load_identities(records_dir, TRAIN)
    if identities is not None:
        np.save(model_dir / TRAINED_ON_FILE, np.unique(identities))


def find_seen(model_dir: Path, identities: np.ndarray) -> np.ndarray | None:
    """Return bool[num_examples]: whether a model has trained on each example; None where it does not say."""
    path = model_dir / TRAINED_ON_FILE
    return np.isin(identities, _load(path)[""]) if path.is_file() else None


def _load(path: Path, name: str = "") -> dict[str, np.ndarray]:
    try:
        return read_arrays(path, only=name, is_own=True)
    except ValueError as error:
        raise InputError(f"Cannot read {path}: it is damaged ({error}). Write the folder again.") from error

"""Example IDs: hashes that identify examples in training sets, test sets and retired test sets.

An ID is the first eight bytes of a BLAKE2b hash of the source data, before any conversion. It does not depend on the
settings of the records (image_size, channels, encoding, vocabulary …) or on the versions of libraries:

- images in arrays, and lossless image files (PNG, BMP, GIF, PPM, TIFF, lossless WebP): their shape and pixels, neither
  rotated nor converted; see `images.original_pixels`
- JPEG and other lossy image files: the bytes of the file
- texts: the text in Unicode NFC, without a byte-order mark, with single spaces between its words

These are the IDs of scheme 2. Scheme 1, from earlier versions, hashed the content of the record, so its IDs depended on
the settings. The IDs of both schemes are stored, because files from earlier versions have only IDs of scheme 1, and
because equal IDs of scheme 1 show which examples are copies.

Two files contain IDs:

records/examples.npz     for each split, in stored order: IDs, ID_TYPE[num_examples], and whether each example has a
                         copy in training, bool[num_examples]
model/trained_on.npy     IDs of the training examples, each once, ID_TYPE[…]

Files from earlier versions have only IDs of scheme 1, as a uint64 array.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import reading
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import read_arrays

_HASH_BYTES = 8
HASH_TYPE = np.dtype("<u8")  # A million different examples have a collision with probability 3e-8.
# The ID of an example in each scheme; 0 if unknown, as for scheme 2 in files from earlier versions.
ID_TYPE = np.dtype([("scheme1", HASH_TYPE), ("scheme2", HASH_TYPE)])
EXAMPLES_FILE = "examples.npz"
TRAINED_ON_FILE = "trained_on.npy"
_COPIED = "_copied"
_BYTE_ORDER_MARK = "\ufeff"
_SPACES_OF_ASCII = bytes(32 if chr(code).isspace() else code for code in range(256))  # Also tabs and line ends.


def identify(content: Any) -> bytes:
    """Return the eight-byte BLAKE2b hash of bytes or of the content of a contiguous array."""
    return hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()


def identify_each(contents: Iterable[Any]) -> np.ndarray:
    """Return the hash of each item of `contents`, uint64[count]; see `identify`."""
    return np.fromiter(map(identify, contents), f"S{_HASH_BYTES}").view(HASH_TYPE)


def identify_pixels(pixels: np.ndarray, known: bytes | None = None) -> bytes:
    """Return the ID of an image, from its pixels and shape.

    Args:
        pixels: uint8 or uint16 [height, width, channels].
        known: Result of `identify` for the pixels, if the caller has it.
    """
    return _with_shape(known or identify(np.ascontiguousarray(pixels)), pixels.dtype.str, pixels.shape)


def identify_bands(bands: Iterable[np.ndarray]) -> bytes | None:
    """Return the ID of an image that is read in bands of rows.

    The ID is the same as from `identify_pixels` for the whole image.

    Args:
        bands: Bands from top to bottom, each uint8 or uint16 [rows, width, channels].

    Returns:
        The ID, or None if there are no bands.
    """
    hasher = hashlib.blake2b(digest_size=_HASH_BYTES)
    num_rows = 0
    last = None
    for last in bands:
        hasher.update(np.ascontiguousarray(last).data)
        num_rows += len(last)
    if last is None:
        return None
    return _with_shape(hasher.digest(), last.dtype.str, (num_rows, *last.shape[1:]))


def _with_shape(digest: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Combine a hash of pixels with their shape.

    Hashing the pixels again together with the shape would take longer.
    """
    return (int.from_bytes(digest) ^ _hash_shape(dtype, shape)).to_bytes(_HASH_BYTES)


@functools.lru_cache(1 << 12)
def _hash_shape(dtype: str, shape: tuple[int, ...]) -> int:
    return int.from_bytes(identify(f"{dtype}{shape}".encode()))


def identify_text(content: bytes, known: bytes | None = None) -> bytes:
    r"""Return the ID of a UTF-8 text.

    Args:
        content: The text.
        known: Result of `identify` for `content`, if the caller has it.

    Example:
        >>> identify_text("Caf\u00e9 \r\n".encode()) == identify_text("\ufeffCafe\u0301".encode())
        True
    """
    if not content.isascii():
        text = as_nfc(content.decode().removeprefix(_BYTE_ORDER_MARK))
        return identify(" ".join(text.split()).encode())
    spaced = content.translate(_SPACES_OF_ASCII)
    # Most texts already have single spaces. Splitting the others takes most of the time.
    if spaced != content or b"  " in spaced or spaced[:1] == b" " or spaced[-1:] == b" ":
        return identify(b" ".join(spaced.split()))
    return known or identify(content)


def as_ids(array: np.ndarray) -> np.ndarray:
    """Convert an array that was read from a file to example IDs, ID_TYPE[len(array)].

    A uint64 array, from a file of an earlier version, contains only IDs of scheme 1. In the result, the IDs of scheme 2
    are then 0.

    Raises:
        ValueError: If the array has another type or shape, for example IDs of a later scheme.
    """
    if array.ndim == 1 and array.dtype == ID_TYPE:
        return array
    if array.ndim != 1 or array.dtype != HASH_TYPE:
        raise ValueError(f"an array of {array.dtype}{list(array.shape)} instead of example IDs")
    ids = np.zeros(len(array), ID_TYPE)
    ids["scheme1"] = array
    return ids


def are_among(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each of `ids` whether it is also in `others`, bool[len(ids)]. Both arrays are ID_TYPE[…].

    Two examples are compared by their IDs of scheme 2. If one of the two comes from an earlier version and has only an
    ID of scheme 1, they are compared by scheme 1.
    """
    is_old, is_other_old = ids["scheme2"] == 0, others["scheme2"] == 0
    result = ~is_old & np.isin(ids["scheme2"], others["scheme2"][~is_other_old])
    result |= np.isin(ids["scheme1"], others["scheme1"][is_other_old])
    if is_old.any():
        result |= is_old & np.isin(ids["scheme1"], others["scheme1"])
    return result


def join_ids(*parts: np.ndarray) -> np.ndarray:
    """Merge arrays of ID_TYPE into one sorted array that contains each example once."""
    ids = np.concatenate(parts)
    ids = ids[np.lexsort((ids["scheme1"], ids["scheme2"]))]
    is_new = ids[1:] != ids[:-1]
    ids = ids[np.concatenate([[True], is_new])] if len(ids) else ids
    is_old = ids["scheme2"] == 0
    # Leave out an ID with only scheme 1 if another entry has both IDs of the same example.
    return ids[~is_old | ~np.isin(ids["scheme1"], ids["scheme1"][~is_old])]


def save_identities(directory: Path, by_split: Mapping[str, np.ndarray], copied: Mapping[str, np.ndarray]) -> None:
    """Write example IDs to `examples.npz` in the folder of the records.

    Args:
        directory: Folder of the records.
        by_split: IDs of each split, ID_TYPE[num_examples], in stored order.
        copied: For each split, whether each example has an exact or near copy in training, bool[num_examples].
    """
    arrays: dict[str, Any] = dict(by_split)
    arrays |= {f"{name}{_COPIED}": some for name, some in copied.items()}
    np.savez(directory / EXAMPLES_FILE, **arrays)


def load_identities(records_dir: Path, split: str) -> np.ndarray | None:
    """Load the example IDs of a split, ID_TYPE[num_examples].

    Return None for a corpus and for records without IDs.
    """
    path = records_dir / EXAMPLES_FILE
    return _load_ids(path, split) if path.is_file() else None


def load_copied(records_dir: Path, split: str) -> np.ndarray:
    """Load an array, bool[num_examples], that is true where an example of a split has a copy in training.

    The split must have example IDs.
    """
    name = f"{split}{_COPIED}"
    path = records_dir / EXAMPLES_FILE
    with reading(path, "example IDs", "Run the step that wrote this folder again."):
        return read_arrays(path, only=name, is_own=True)[name]


def load_retired(uri: str) -> np.ndarray:
    """Load the example IDs of a retired test set, ID_TYPE[…], from an `.npy` file, local or in a bucket."""
    with reading(uri, "the example IDs of a retired test set (examples.npy)", "Correct data.retired_tests."):
        return as_ids(read_arrays(uri, storage.read_bytes(uri))[""])


def save_trained_on(records_dir: Path, model_dir: Path, initial: Path | None = None) -> None:
    """Save the IDs of all examples that a model was trained on, in the model's folder.

    The IDs include the training examples of the initial model, if there is one. Nothing is saved for records without
    IDs.
    """
    identities = load_identities(records_dir, TRAIN)
    if identities is not None:
        before = load_trained_on(initial) if initial else None
        np.save(model_dir / TRAINED_ON_FILE, join_ids(identities, *([] if before is None else [before])))


def load_trained_on(model_dir: Path) -> np.ndarray | None:
    """Load the IDs of a model's training examples, ID_TYPE[…]. Return None if the folder has no file with IDs."""
    path = model_dir / TRAINED_ON_FILE
    return _load_ids(path) if path.is_file() else None


def _load_ids(path: Path, name: str = "") -> np.ndarray | None:
    with reading(path, "example IDs", "Run the step that wrote this folder again."):
        array = read_arrays(path, only=name, is_own=True).get(name)
        return None if array is None else as_ids(array)

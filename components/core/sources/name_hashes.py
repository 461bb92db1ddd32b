"""Hashes of examples' names: a number in [0, 1) for each, and the names that repeat."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tpu_components.core.sources.columns import in_chunks


def hash_unit(seed: int, purpose: str, keys: Sequence[str]) -> np.ndarray:
    """Return float64[len(keys)] in [0, 1): one well-mixed number per key, independent between purposes.

    Example:
        >>> hash_unit(0, "split", ["a", "a"]).tolist() == hash_unit(0, "split", ["a"]).tolist() * 2
        True
    """
    base = hashlib.blake2b(f"{seed}/{purpose}/".encode(), digest_size=8)
    result, at = np.empty(len(keys)), 0
    for chunk in in_chunks(keys):
        digests = bytearray()
        for key in chunk:
            hasher = base.copy()
            hasher.update(key)
            digests += hasher.digest()
        result[at : at + len(chunk)] = (np.frombuffer(bytes(digests), ">u8") >> np.uint64(11)) * 2.0**-53
        at += len(chunk)
    return result


def find_repeated(keys: Sequence[str]) -> list[str]:
    """Return each of the keys that repeat once, without a table of them all."""
    hashes = hash_unit(0, "alike", keys)
    hashes.sort()
    alike = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(alike):
        return []
    candidates = np.flatnonzero(np.isin(hash_unit(0, "alike", keys), alike)).tolist()
    return [key for key, count in Counter(keys[i] for i in candidates).items() if count > 1]

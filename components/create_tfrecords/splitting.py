"""Which example goes to which split, and in which order: decided by hashes, the same everywhere and every time."""

import hashlib
from collections.abc import Sequence

import numpy as np

from components.artifacts import TEST, TRAIN, VALIDATION


def hash_unit(seed: int, purpose: str, keys: Sequence[str]) -> np.ndarray:
    """float64[len(keys)] in [0, 1): one well-mixed number per key, independent between purposes.

    Example:
        >>> hash_unit(0, "split", ["a", "a"]).tolist() == hash_unit(0, "split", ["a"]).tolist() * 2
        True
    """
    base = hashlib.blake2b(f"{seed}/{purpose}/".encode(), digest_size=8)
    digests = bytearray()
    for key in keys:
        one = base.copy()
        one.update(key.encode())
        digests += one.digest()
    return (np.frombuffer(bytes(digests), ">u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hold_out(
    keys: Sequence[str],
    labels: np.ndarray,
    fraction: float,
    *,
    purpose: str,
    seed: int = 0,
    stratify: bool = True,
    groups: Sequence[str] | None = None,
) -> np.ndarray:
    """bool[num_examples]: which examples to hold out.

    1. With `groups`, whole groups are held out, by the hash of their name.
    2. With `stratify`, the share of each class is exact, to the nearest example, and at least one where the class
       has two or more.
    3. Otherwise every example is decided by its own hash alone, so adding examples moves none.

    Args:
        keys: One unique name per example.
        labels: int[num_examples].
        fraction: Share to hold out, in [0, 1).
        purpose: Name of the split; two purposes choose independently.
        seed: Salt.
        stratify: See above; ignored with `groups`.
        groups: One group name per example.
    """
    if fraction == 0:
        return np.zeros(len(keys), bool)
    if groups is not None:
        return hash_unit(seed, purpose, groups) < fraction
    position = hash_unit(seed, purpose, keys)
    if not stratify:
        return position < fraction
    held = np.zeros(len(keys), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        wanted = int(np.floor(fraction * len(members) + 0.5))
        wanted = min(max(wanted, 1), len(members) - 1)
        held[members[np.argsort(position[members], kind="stable")[:wanted]]] = True
    return held


def assign_splits(
    keys: Sequence[str],
    labels: np.ndarray,
    own: np.ndarray | None,
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int = 0,
    stratify: bool = True,
    groups: Sequence[str] | None = None,
) -> tuple[np.ndarray, str]:
    """The split of every example, and the rule in words.

    Args:
        keys: One unique name per example.
        labels: int[num_examples].
        own: The source's own split names, str[num_examples], or None. Fractions fill in only the splits it lacks.
        validation_fraction: Share of the training examples to hold out for validation.
        test_fraction: Share of all examples to hold out for testing.
        seed: Salt.
        stratify: See `hold_out`.
        groups: See `hold_out`.

    Returns:
        str[num_examples] of `train`, `validation` and `test`, and a sentence.
    """
    splits = np.full(len(keys), TRAIN, dtype="<U10") if own is None else own.astype("<U10")
    how = "by group" if groups is not None else "stratified by class" if stratify else "by hash"
    rules = [] if own is None else ["the source's own " + ", ".join(sorted(set(own.tolist())))]
    # The share of validation is meant of all examples, so what the test split took first is made up for.
    for name, fraction in ((TEST, test_fraction), (VALIDATION, validation_fraction)):
        if fraction == 0 or name in splits:
            continue
        pool = np.flatnonzero(splits == TRAIN)
        if name == VALIDATION and own is None:
            fraction = fraction / (1 - test_fraction)
        held = hold_out(
            [keys[i] for i in pool.tolist()],
            labels[pool],
            fraction,
            purpose=name,
            seed=seed,
            stratify=stratify,
            groups=None if groups is None else [groups[i] for i in pool.tolist()],
        )
        splits[pool[held]] = name
        rules.append(f"{name} held out of the rest {how}, seed {seed}")
    return splits, "; ".join(rules) or "all examples train"


def storage_order(keys: Sequence[str], seed: int) -> np.ndarray:
    """int[num_examples]: the indices of `keys`, shuffled by hash, so that every shard holds a fair sample."""
    return np.argsort(hash_unit(seed, "order", keys), kind="stable")

"""Which example goes to which split, and in which order: decided by hashes, the same everywhere and every time."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence

import numpy as np

from tpu_components.core.examples.artifacts import SPLITS, TEST, TRAIN, VALIDATION
from tpu_components.core.sources.columns import Names, find_repeated, hash_unit

LEFT_OUT = -1  # For a place in `SPLITS`, of an example that is in none.
# 1 ranked the examples of a class, so that new ones pushed old ones out of a split. 2 moved copies into the split of
# one of them, and knew images of Parquet files, and rows whose ids are not all there and different, by other names.
SPLIT_RULE_VERSION = 3
# Any text would do. With this one the bundled digits come out at their exact shares, which documents and tests quote.
_SALT = "split/61"
_ORDERED_PARTS, _LOOKED_AT_ONCE = 16, 1 << 16
_TOLERATED = 0.25  # How far a split of groups may be from its share, as a part of it, before groups are exchanged.


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
    """Return the split of every example, and the rule in words.

    Every example has a place between 0 and 1 by the hash of its key: the first `test_fraction` tests, what follows
    validates, the rest trains. No other example has a say, so a data set may grow and every example stays where it was;
    the price is that shares are right on average only, as if each example had been drawn by lot. No rule that knows
    nothing but the examples can promise more. If of any m examples of a class it tests one, and never trains on what it
    once tested, then no m examples of a larger class may train together: it would train on less than m, however many
    there are. Leaving examples out changes nothing of that; with groups it is the same.

    1. With `stratify`, a class that drew no example for a split lends it its nearest, and keeps one to train: it takes
       that back as it grows. Of 20 examples a class draws none to test with a chance of 1 %, at the default fraction.
    2. With `groups`, places are the groups'. A split whose share is off by more than a quarter, as happens with few
       groups, is mended to the nearest share that whole groups give; that is the one rule which may move others.

    Args:
        keys: Names that identify the examples; equal ones, as of copies, stay together.
        labels: int[num_examples].
        own: The source's own split names, str[num_examples], or None. Fractions fill in only the splits it lacks.
        validation_fraction: Share of the training examples to hold out for validation.
        test_fraction: Share of all examples to hold out for testing.
        seed: Salt.
        stratify: See above; ignored with `groups`.
        groups: One group name per example.

    Returns:
        int8[num_examples], places in `artifacts.SPLITS`, and a sentence.
    """
    splits = np.full(len(keys), SPLITS.index(TRAIN), np.int8)
    if own is not None:
        for name in SPLITS:
            splits[own == name] = SPLITS.index(name)
    rules = [] if own is None else ["the source's own " + ", ".join(sorted(set(own.tolist())))]
    asked = {TEST: test_fraction, VALIDATION: validation_fraction}
    shares = {name: share for name, share in asked.items() if share and SPLITS.index(name) not in splits}
    if shares:
        pool = np.flatnonzero(splits == SPLITS.index(TRAIN)) if own is not None else slice(None)
        places = hash_unit(seed, _SALT, keys if groups is None else groups)[pool]
        cuts = np.cumsum(list(shares.values()))
        chosen = np.zeros(len(places), np.int8)
        for cut in cuts:  # As searchsorted, in a byte each.
            chosen += places >= cut
        drawn = chosen.copy()
        if groups is not None:
            of_groups, unit = np.unique(places, return_inverse=True)
            of_groups = np.searchsorted(cuts, of_groups, side="right")
            chosen = _mend_shares(of_groups, np.bincount(unit), list(shares.values()))[unit].astype(np.int8)
        elif stratify:
            _lend_where_none(chosen, places, labels[pool], len(shares))
        num_lent = np.count_nonzero(drawn != chosen)
        splits[pool] = np.array([SPLITS.index(name) for name in (*shares, TRAIN)], np.int8)[chosen]
    how = "by group" if groups is not None else "stratified by class" if stratify else "by hash"
    rules += [f"{name} held out of the rest {how}, seed {seed}" for name in shares]
    if shares and num_lent:
        rules.append(f"lent to splits that had drawn too few: {num_lent}, which may go back as data are added")
    return splits, "; ".join(rules) or "all examples train"


def _lend_where_none(chosen: np.ndarray, places: np.ndarray, labels: np.ndarray, num_held: int) -> None:
    """Give every class an example in each split, in place; of few classes, as a rule, and so of few examples.

    Args:
        chosen: int[num_examples], splits by number: `num_held` is training.
        places: float64[num_examples]; copies have the same.
        labels: int[num_examples].
        num_held: Number of splits that are held out.
    """
    present = np.zeros((num_held + 1, labels.max(initial=-1) + 1), bool)
    for at in range(0, len(labels), _LOOKED_AT_ONCE):  # NumPy would hold copies of all of them.
        part = slice(at, at + _LOOKED_AT_ONCE)
        present[chosen[part], labels[part]] = True
    lacking = np.flatnonzero(present.any(axis=0) & ~present.all(axis=0))
    if len(lacking):
        some = np.isin(places, places[np.isin(labels, lacking)])  # Copies under other labels move too.
        ordered, unit = np.unique(places[some], return_inverse=True)
        of_units = np.empty(len(ordered), chosen.dtype)
        of_units[unit] = chosen[some]
        chosen[some] = _lend_examples(of_units, unit, labels[some], lacking, num_held)[unit]


def _lend_examples(
    chosen: np.ndarray, unit: np.ndarray, labels: np.ndarray, classes: np.ndarray, num_held: int
) -> np.ndarray:
    """Return int[units], splits by number, with an example of classes in each split, as far as a class has so many.

    Args:
        chosen: int[units] in ascending order of their places: `num_held` is training.
        unit: int[num_examples]: which unit an example is, or is a copy of.
        labels: int[num_examples].
        classes: int[…]: labels of those that lack one.
        num_held: Number of splits that are held out.
    """
    result, lent = chosen.copy(), np.zeros(len(chosen), bool)
    for label in classes:
        members = np.unique(unit[labels == label])
        num_splits = min(num_held, len(members) - 1)
        cuts = np.searchsorted(chosen[members], np.arange(num_held), side="right")
        for i in range(num_held):
            least = cuts[i - 1] + 1 if i else 1
            # Of too few examples the first splits have one each; training always has one.
            cuts[i] = max(least, min(cuts[i], len(members) - num_splits + i)) if i < num_splits else len(members) - 1
        own = np.searchsorted(cuts, np.arange(len(members)), side="right")
        moved = own != chosen[members]
        # Copies under two labels stay together: where both classes lend, the first split has them.
        taken = np.where(lent[members], np.minimum(result[members], own), own)
        result[members[moved]] = taken[moved]
        lent[members[moved]] = True
    return result


def _mend_shares(chosen: np.ndarray, sizes: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Return int[groups], splits by number, each with about its share of the examples, and at least one group.

    Args:
        chosen: int[groups] in ascending order of their places: `len(shares)` is training.
        sizes: int[groups]: examples of each.
        shares: Share of the examples for each split that is held out.
    """
    result, training = chosen.copy(), len(shares)
    for split, share in enumerate(shares):
        wanted, held = share * sizes.sum(), int(sizes[result == split].sum())
        if held and abs(held - wanted) <= _TOLERATED * wanted:
            continue
        # First out what came last, then in what comes next, as long as each brings the share nearer.
        for group in np.flatnonzero(result == split)[::-1]:
            if abs(held - sizes[group] - wanted) < abs(held - wanted):
                result[group] = training
                held -= int(sizes[group])
        free = np.flatnonzero(result > split)
        for group in free[:-1]:
            if abs(held + sizes[group] - wanted) < abs(held - wanted):
                result[group] = split
                held += int(sizes[group])
        if not held and len(free) > 1:
            result[free[np.argmin(sizes[free])]] = split
    return result


def tell_apart(keys: Sequence[str], labels: np.ndarray) -> Sequence[str]:
    """Return `keys`; those that repeat have their label and count behind them.

    Example:
        >>> list(tell_apart(["a", "b", "a"], np.array([1, 0, 1])))
        ['a/1/1', 'b', 'a/1/2']
    """
    repeated = find_repeated(keys)
    return Names.collect(_numbered(keys, labels, set(repeated))) if repeated else keys


def _numbered(keys: Sequence[str], labels: np.ndarray, repeated: Container[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for number, key in enumerate(keys):
        if key in repeated:
            key = f"{key}/{labels[number].tolist()}"
            seen[key] += 1
            key = f"{key}/{seen[key]}"
        yield key


def storage_order(keys: Sequence[str], seed: int) -> np.ndarray:
    """Return int[num_examples]: the indices of `keys`, shuffled by hash, so that every shard holds a fair sample.

    Ordered a part of all places after the other, since NumPy needs 8 bytes for each that it orders at once.
    """
    places = hash_unit(seed, "order", keys)
    parts = np.multiply(places, _ORDERED_PARTS, out=np.empty(len(places), np.uint8), casting="unsafe")
    order, at = np.empty(len(places), np.int32 if len(places) < 2**31 else np.int64), 0
    for part in range(_ORDERED_PARTS):
        inside = np.flatnonzero(parts == part)
        order[at : at + len(inside)] = inside[np.argsort(places[inside], kind="stable")]
        at += len(inside)
    return order

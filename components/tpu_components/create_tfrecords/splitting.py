"""Assigns examples to splits and orders them, by hashes of their keys. The result is the same on every machine."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.artifacts import SPLITS, TEST, TRAIN, VALIDATION
from tpu_components.core.sources.columns import Names, find_repeated, hash_unit

LEFT_OUT = -1  # In place of an index into `SPLITS`: the example is in no split.
# Rule 1 ranked the examples of a class, so that new examples could push old ones out of a split. Rule 2 moved copies
# into the split of one of them. It used other keys for images in Parquet files, and for rows with missing or repeated
# ids.
SPLIT_RULE_VERSION = 3
# Any text could be used. With this one, the bundled digits have exactly the wanted shares, which tests rely on.
_SALT = "split/61"
_ORDERED_PARTS = 16
_LOOKED_AT_ONCE = 1 << 16
_TOLERATED = 0.25  # Largest relative deviation of a split from its share before groups are moved.


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
    have_forms: bool = False,
) -> tuple[np.ndarray, str]:
    """Return the split of every example, and a description of the rule.

    The hash of an example's key gives the example a position between 0 and 1. Positions below `test_fraction` are the
    test split, the following positions are the validation split, and the rest is the training split. Apart from the two
    rules below, the split of an example does not depend on other examples, so it does not change when a data set grows.
    Therefore, shares are exact only on average, as with random draws. A rule that decides on each example independently
    cannot guarantee that every split gets a minimum share. Suppose that it put at least one of every m examples of a
    class into the test split. Then no m examples of this class could all be in the training split, so the training
    split would have at most m - 1 of them, however large the class is.

    1. With `stratify`, a split that has no example of a class borrows one: the example of this class whose position is
       nearest to the split's range of positions. At least one example of the class stays in the training split. The
       borrowed example goes back when the class grows. At the default fraction, the probability that the test split
       borrows from a class of 20 examples is 1%.
    2. With `groups`, all examples of a group have one position. With few groups, the share of a split may differ from
       its fraction by more than a quarter. In that case, whole groups are moved until the share is as near as possible.

    Args:
        keys: Names that identify the examples. Examples with equal keys, for example copies, are in the same split.
        labels: int[num_examples].
        own: Split names from the source, str[num_examples], or None. Fractions apply only to splits that the source
            does not have.
        validation_fraction: Share of the examples to hold out for validation. If the source has splits, it is a share
            of the source's training split.
        test_fraction: Share of the examples to hold out for testing, like `validation_fraction`.
        seed: Salt of the hashes.
        stratify: See rule 1. It is ignored with `groups`.
        groups: One group name per example, or None.
        have_forms: Whether keys that differ only in their Unicode form identify the same example. True for IDs, but not
            for file paths. Group names that differ only in their Unicode form are always the same group.

    Returns:
        int8[num_examples], indices into `artifacts.SPLITS`; and the rule in words.
    """
    splits = np.full(len(keys), SPLITS.index(TRAIN), np.int8)
    if own is not None:
        for name in SPLITS:
            splits[own == name] = SPLITS.index(name)
    rules = [] if own is None else ["the source's " + ", ".join(sorted(set(own.tolist())))]
    fractions = {TEST: test_fraction, VALIDATION: validation_fraction}
    shares = {name: share for name, share in fractions.items() if share and SPLITS.index(name) not in splits}
    if shares:
        pool = np.flatnonzero(splits == SPLITS.index(TRAIN)) if own is not None else slice(None)
        names = keys if groups is None else groups
        places = hash_unit(seed, _SALT, names)
        if have_forms or groups is not None:
            _join_forms(places, names)
        places = places[pool]
        cuts = np.cumsum(list(shares.values()))
        chosen = np.zeros(len(places), np.int8)
        for cut in cuts:  # The same as searchsorted, but with one byte per example.
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
        rules.append(
            f"examples moved between splits, because a class or the number of groups is small: {num_lent}, which may "
            "move back when data are added"
        )
    return splits, "; ".join(rules) or "all examples are used for training"


def _join_forms(places: np.ndarray, names: Sequence[str]) -> None:
    """Give all Unicode forms of a name the lowest of their positions. `places` is changed in place.

    Names are hashed in the form in which they are written, so that existing data sets keep their splits. With the
    lowest position, a test example does not move to training when its name also occurs in another form.
    """
    several = {nfc for name in names if (nfc := as_nfc(name)) != name}
    if several:
        by_name: dict[str, list[int]] = {}
        for place, name in enumerate(map(as_nfc, names)):
            if name in several:
                by_name.setdefault(name, []).append(place)
        for members in by_name.values():
            places[members] = places[members].min()


def _lend_where_none(chosen: np.ndarray, places: np.ndarray, labels: np.ndarray, num_held: int) -> None:
    """Move examples so that each split has an example of every class. `chosen` is changed in place.

    Only the classes that are missing from a split are processed. Usually these are few.

    Args:
        chosen: Split of each example: int[num_examples], from 0 to `num_held`, which is the training split.
        places: Position of each example by its hash, float64[num_examples]. It is equal for copies.
        labels: int[num_examples].
        num_held: Number of splits that are held out.
    """
    present = np.zeros((num_held + 1, labels.max(initial=-1) + 1), bool)
    for at in range(0, len(labels), _LOOKED_AT_ONCE):  # In blocks: NumPy copies what it indexes.
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
    """Return splits in which each of `classes` has an example in every split, if the class has enough examples.

    A unit is a set of examples with the same hash: an example and its copies.

    Args:
        chosen: Split of each unit, in ascending order of the units' hashes: int[units], from 0 to `num_held`, which is
            the training split.
        unit: Unit of each example: int[num_examples], indices into `chosen`.
        labels: int[num_examples].
        classes: Labels of the classes that are missing from a split: int[…].
        num_held: Number of splits that are held out.

    Returns:
        int[units], like `chosen`.
    """
    result = chosen.copy()
    lent = np.zeros(len(chosen), bool)
    for label in classes:
        members = np.unique(unit[labels == label])
        num_splits = min(num_held, len(members) - 1)
        cuts = np.searchsorted(chosen[members], np.arange(num_held), side="right")
        for i in range(num_held):
            least = cuts[i - 1] + 1 if i else 1
            # If there are too few examples, the first splits have one each; training always has one.
            cuts[i] = max(least, min(cuts[i], len(members) - num_splits + i)) if i < num_splits else len(members) - 1
        own = np.searchsorted(cuts, np.arange(len(members)), side="right")
        moved = own != chosen[members]
        # Copies with different labels stay together: if both classes move them, they go to the first of the two splits.
        taken = np.where(lent[members], np.minimum(result[members], own), own)
        result[members[moved]] = taken[moved]
        lent[members[moved]] = True
    return result


def _mend_shares(chosen: np.ndarray, sizes: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Correct the splits of groups so that each split has about its share of the examples and at least one group.

    Args:
        chosen: Split of each group, in ascending order of the hashes of groups: int[groups], indices into `shares`, or
            `len(shares)` for training.
        sizes: Number of examples in each group: int[groups].
        shares: Share of the examples for each split that is held out.

    Returns:
        int[groups], like `chosen`.
    """
    result = chosen.copy()
    training = len(shares)
    for split, share in enumerate(shares):
        wanted = share * sizes.sum()
        held = int(sizes[result == split].sum())
        if held and abs(held - wanted) <= _TOLERATED * wanted:
            continue
        # First remove groups from the end, then add the groups that follow, as long as each brings the share nearer.
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


def require_examples(before: np.ndarray, after: np.ndarray, reason: str) -> None:
    """Check that every split that had examples still has some after examples were left out.

    Args:
        before: Split of each example as drawn: int8[num_examples], indices into `SPLITS`, or LEFT_OUT.
        after: Split of each example after more examples were left out, in the same form.
        reason: End of the error message: why the examples were left out, and what to do.

    Raises:
        InputError: If a split has no examples left.
    """
    for number, name in enumerate(SPLITS):
        if (had := np.count_nonzero(before == number)) and not np.any(after == number):
            raise InputError(f"The {name!r} split has no examples left: all {had:,} examples drawn for it are {reason}")


def tell_apart(keys: Sequence[str], labels: np.ndarray) -> Sequence[str]:
    """Return unique keys: the label and a running number are appended to each key that occurs more than once.

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
    """Return the indices of `keys` in the order of their hashes, int[num_examples].

    Each shard contains consecutive examples in this order, so it is a random sample of its split.

    The hashes are divided into ranges that are sorted one after the other to save memory, because NumPy needs 8 bytes
    for each element that it sorts at once.
    """
    places = hash_unit(seed, "order", keys)
    parts = np.multiply(places, _ORDERED_PARTS, out=np.empty(len(places), np.uint8), casting="unsafe")
    order = np.empty(len(places), np.int32 if len(places) < 2**31 else np.int64)
    at = 0
    for part in range(_ORDERED_PARTS):
        inside = np.flatnonzero(parts == part)
        order[at : at + len(inside)] = inside[np.argsort(places[inside], kind="stable")]
        at += len(inside)
    return order

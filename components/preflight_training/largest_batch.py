"""The largest batch that fits: searched by compiling, or estimated from two sizes that were compiled."""

import dataclasses
from collections.abc import Callable

_GUESS_IS_GOOD_TO = 256  # One part in so many, as a rule.
_MAX_GUESSES = 3
_SECOND = 16  # Times the batch is the second size of an estimate; so far apart that padding hardly counts.
_LANES = 128  # The compiler fills arrays up to multiples of it, so memory grows in steps of that many examples.


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The most examples per replica that fit; exact if it was compiled, and its successor too, which does not fit."""

    size: int
    is_exact: bool


@dataclasses.dataclass(frozen=True)
class Trial:
    """A batch that was tried: whether it fits (None: cannot be told), and its memory, 0 where that is not known."""

    fits: bool | None
    num_bytes: int = 0


def find_largest_batch(attempt: Callable[[int], Trial], first: int, capacity_bytes: int) -> LargestBatch | None:
    """Find a batch that fits and whose successor does not.

    A guess from the memory that the first one takes is near; from there the search goes on in strides that double
    until the bound lies between two batches, and then halves what is between them.

    Args:
        attempt: Tries a batch.
        first: Batch to try first.
        capacity_bytes: Bytes of memory that there are.

    Returns:
        The batch; size 0 if not even one example fits, and None if it could not be told.

    Example:
        >>> find_largest_batch(lambda size: Trial(size <= 700, size * 10), first=64, capacity_bytes=7_000)
        LargestBatch(size=700, is_exact=True)
    """
    low, high = 0, 0  # The largest known to fit, and the smallest known not to, of which 0 means none.
    size, stride, guesses = first, 0, 0
    known: list[tuple[int, int]] = []  # Batches and what they take.
    while not high or high - low > 1:
        trial = attempt(size)
        if trial.fits is None:
            return LargestBatch(low, is_exact=False) if low else None
        low, high = (size, high) if trial.fits else (low, size)
        if trial.num_bytes:
            known.append((size, trial.num_bytes))
        if low and high:
            size = _between(low, high)
            continue
        guess = _guess(known, capacity_bytes)
        if guess is not None and guesses < _MAX_GUESSES and abs(guess - size) * _GUESS_IS_GOOD_TO > size:
            size, guesses = _within(_whole(guess), low, high), guesses + 1
        else:
            stride = 2 * stride or max(_whole(size // _GUESS_IS_GOOD_TO), 1)
            size = _within(low + stride if low else high - stride, low, high)
    return LargestBatch(low, is_exact=True)


def estimate_largest_batch(
    attempt: Callable[[int], Trial], first: int, num_bytes: int, capacity_bytes: int
) -> LargestBatch | None:
    """Estimate the largest batch from the memory of one that fits and of one 16 times as large, which is tried.

    Args:
        attempt: Tries a batch.
        first: Batch that fits.
        num_bytes: Bytes of memory that it takes.
        capacity_bytes: Bytes of memory that there are.

    Returns:
        The batch; None where the larger one says nothing.

    Example:
        >>> estimate_largest_batch(lambda size: Trial(True, 500 + size), 64, num_bytes=564, capacity_bytes=7_000)
        LargestBatch(size=6500, is_exact=False)
    """
    second = _SECOND * first
    trial = attempt(second)
    guess = _guess([(first, num_bytes), (second, trial.num_bytes)], capacity_bytes) if trial.num_bytes else None
    if trial.fits is None or guess is None:
        return None
    return LargestBatch(max(guess, second) if trial.fits else max(min(guess, second - 1), first), is_exact=False)


def _guess(known: list[tuple[int, int]], capacity_bytes: int) -> int | None:
    """Extrapolate the last two batches and their bytes, or the only one's and zero, to the bound."""
    if not known:
        return None
    (size, num_bytes), (other, other_bytes) = known[-1], known[-2] if len(known) > 1 else (0, 0)
    if (num_bytes - other_bytes) * (size - other) <= 0:
        return None
    return max(size + (size - other) * (capacity_bytes - num_bytes) // (num_bytes - other_bytes), 1)


def _whole(size: int) -> int:
    return size // _LANES * _LANES or size


def _within(size: int, low: int, high: int) -> int:
    """Return the nearest batch above `low` and, where it is known, below `high`."""
    return max(min(size, high - 1) if high else size, low + 1)


def _between(low: int, high: int) -> int:
    middle = (low + high) // 2
    if _whole(middle) > low:
        return _whole(middle)
    # Where no whole step lies between them, the first of the next step decides.
    return low + 1 if low % _LANES == 0 else middle

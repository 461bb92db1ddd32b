"""Finds the largest batch that fits in device memory, by compiling the program with several batch sizes.

After a single compilation, only an upper bound on the largest batch is known.
"""

import dataclasses
from collections.abc import Callable

from tpu_components.preflight_training.compiling.kernels import LANES
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_FIT, FITS, Outcome

_GUESS_IS_GOOD_TO = 256  # The relative error of a guess is usually below 1/256.
_MAX_GUESSES = 3


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """Largest number of examples per replica that fits in device memory.

    Attributes:
        size: Number of examples.
        is_exact: Whether compilation shows that `size` examples fit and one more does not.
        is_upper_bound: Whether it is only known that at most `size` examples fit. If both `is_exact` and
            `is_upper_bound` are false, `size` examples fit, and more may fit.
    """

    size: int
    is_exact: bool
    is_upper_bound: bool = False

    @property
    def text(self) -> str:
        """The number of examples, with ≤ or ≥ if it is a bound."""
        return ("" if self.is_exact else "≤" if self.is_upper_bound else "≥") + f"{self.size:,}"


def find_largest_batch(attempt: Callable[[int], Outcome], first: int, capacity_bytes: int) -> LargestBatch | None:
    """Find the largest batch per replica that fits in device memory.

    The search compiles the program with several batch sizes. First, it extrapolates the memory of the compiled batches
    to guess the largest size. Then it changes the size in increments that double, until one size fits and a larger one
    does not. Finally, it bisects between these two sizes.

    Args:
        attempt: Function that compiles the program with a batch size, and returns the outcome.
        first: Batch size to try first.
        capacity_bytes: Memory of a device that the program may use, in bytes.

    Returns:
        The largest batch, with size 0 if not even one example fits. None if a compilation failed for a reason other
            than memory before any batch fitted.

    Example:
        >>> def attempt(size):
        ...     return Outcome(FITS if size <= 700 else DOES_NOT_FIT, peak_bytes=size * 10)
        >>> find_largest_batch(attempt, first=64, capacity_bytes=7_000)
        LargestBatch(size=700, is_exact=True, is_upper_bound=False)
    """
    low, high = 0, 0  # The largest batch known to fit, and the smallest known not to fit; 0 if unknown.
    size = first
    stride = 0
    guesses = 0
    known: list[tuple[int, int]] = []  # Batches and their memory.
    while not high or high - low > 1:
        outcome = attempt(size)
        if outcome.verdict not in (FITS, DOES_NOT_FIT):
            return LargestBatch(low, is_exact=False) if low else None
        low, high = (size, high) if outcome.verdict == FITS else (low, size)
        if outcome.peak_bytes:
            known.append((size, outcome.peak_bytes))
        if low and high:
            size = _between(low, high)
            continue
        guess = _guess(known, capacity_bytes)
        if guess is not None and guesses < _MAX_GUESSES and abs(guess - size) * _GUESS_IS_GOOD_TO > size:
            size = _within(_whole(guess), low, high)
            guesses = guesses + 1
        else:
            stride = 2 * stride or max(_whole(size // _GUESS_IS_GOOD_TO), 1)
            size = _within(low + stride if low else high - stride, low, high)
    return LargestBatch(low, is_exact=True)


def bound_largest_batch(size: int, fixed_bytes: int, example_bytes: int, capacity_bytes: int) -> LargestBatch:
    """Return an upper bound on the largest batch that fits, from the compilation of one batch size.

    The bound is usually too high, because a program also keeps gradients, intermediate results and padding, which
    `example_bytes` does not count. The largest batch that fits is often half of the bound.

    Args:
        size: Batch size that fits.
        fixed_bytes: Memory that does not grow with the batch, in bytes.
        example_bytes: Lower bound on the memory that each example needs, in bytes. It must be positive.
        capacity_bytes: Memory of a device that the program may use, in bytes.

    Example:
        >>> bound_largest_batch(size=100, fixed_bytes=500, example_bytes=2, capacity_bytes=7_000)
        LargestBatch(size=3250, is_exact=False, is_upper_bound=True)
    """
    most = (capacity_bytes - fixed_bytes) // example_bytes
    return LargestBatch(max(most, size), is_exact=False, is_upper_bound=True)


def _guess(known: list[tuple[int, int]], capacity_bytes: int) -> int | None:
    """Return the batch size at which the memory reaches the capacity, or None if the memory does not grow.

    Memory is extrapolated linearly from the last two batches, or from zero and the only batch.
    """
    if not known:
        return None
    (size, num_bytes), (other, other_bytes) = known[-1], known[-2] if len(known) > 1 else (0, 0)
    if (num_bytes - other_bytes) * (size - other) <= 0:
        return None
    return max(size + (size - other) * (capacity_bytes - num_bytes) // (num_bytes - other_bytes), 1)


def _whole(size: int) -> int:
    return size // LANES * LANES or size


def _within(size: int, low: int, high: int) -> int:
    """Return the batch size nearest to `size` that is above `low` and, unless `high` is 0 (unknown), below `high`."""
    return max(min(size, high - 1) if high else size, low + 1)


def _between(low: int, high: int) -> int:
    middle = (low + high) // 2
    if _whole(middle) > low:
        return _whole(middle)
    # If no multiple of 128 lies between them: the batch after a multiple takes the memory of the next multiple.
    return low + 1 if low % LANES == 0 else middle

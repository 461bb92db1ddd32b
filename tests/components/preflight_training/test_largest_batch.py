import pytest

from tpu_components.preflight_training.compiling.outcome import DOES_NOT_FIT, FITS, Outcome
from tpu_components.preflight_training.compiling.sandbox import CRASHED
from tpu_components.preflight_training.largest_batch import LargestBatch, bound_largest_batch, find_largest_batch

_FEW = 16  # Each is a compilation.
_MOST = 32  # Halving alone, from a hundred thousand down to one.


class _Device:
    """Memory that grows with the batch, in steps of so many examples; counts what is tried."""

    def __init__(self, capacity, fixed=50, per_example=10, step=1, says_bytes=True):
        self.capacity, self.fixed, self.per_example, self.step = capacity, fixed, per_example, step
        self.says_bytes = says_bytes
        self.tried = []

    def needed(self, size):
        return self.fixed + -(-size // self.step) * self.step * self.per_example

    def attempt(self, size):
        assert size >= 1
        self.tried.append(size)
        fits = self.needed(size) <= self.capacity
        peak_bytes = self.needed(size) if fits or self.says_bytes else 0
        return Outcome(FITS if fits else DOES_NOT_FIT, peak_bytes=peak_bytes)

    def search(self, first):
        return find_largest_batch(self.attempt, first, self.capacity)


@pytest.mark.parametrize("step", [1, 8, 128])
@pytest.mark.parametrize("capacity", [99, 1_000, 1_339, 7_000, 98_765, 12_345_678])
@pytest.mark.parametrize("first", [1, 64, 128, 5_000, 200_000])
@pytest.mark.parametrize("fixed_share", [0.01, 0.5, 0.95])  # Weights can take nearly all of the memory.
def test_finds_the_last_batch_that_fits_and_has_tried_its_successor(step, capacity, first, fixed_share):
    device = _Device(capacity, step=step, fixed=int(fixed_share * capacity))
    largest = device.search(first)
    assert largest == LargestBatch((capacity - device.fixed) // 10 // step * step, is_exact=True)
    assert largest.size + 1 in device.tried
    assert largest.size in [*device.tried, 0]
    assert len(device.tried) == len(set(device.tried)) <= _MOST


@pytest.mark.parametrize("first", [32, 128, 512])
@pytest.mark.parametrize("capacity", [200_000, 1_000_000, 2_345_678])
def test_memory_in_steps_of_128_takes_few_compilations(first, capacity):
    device = _Device(capacity, fixed=20_000, per_example=100, step=128)
    device.search(first)
    assert len(device.tried) <= _FEW


def test_memory_of_what_does_not_fit_may_be_unknown():
    device = _Device(98_765, says_bytes=False)
    assert device.search(64) == LargestBatch(9871, is_exact=True)


def test_memory_that_jumps_is_found_all_the_same():
    """A batch beyond 1,000 takes another, more wasteful algorithm."""

    def attempt(size):
        needed = size * 10 + (500_000 if size > 1000 else 0)
        return Outcome(FITS if needed <= 100_000 else DOES_NOT_FIT, peak_bytes=needed)

    assert find_largest_batch(attempt, 128, 100_000) == LargestBatch(1000, is_exact=True)


def test_nothing_fits_where_the_model_alone_is_too_large():
    device = _Device(1_000, fixed=2_000)
    assert device.search(128) == LargestBatch(0, is_exact=True)
    assert 1 in device.tried


def test_one_example_may_be_all_that_fits():
    assert _Device(65).search(128) == LargestBatch(1, is_exact=True)


def test_a_trial_that_cannot_be_told_ends_the_search_with_what_is_known():
    def attempt(size):
        return Outcome(CRASHED) if size > 300 else Outcome(FITS, peak_bytes=size * 10)

    largest = find_largest_batch(attempt, 128, 10_000)
    assert not largest.is_exact
    assert 128 <= largest.size <= 300


def test_nothing_is_known_if_the_first_trial_cannot_be_told():
    assert find_largest_batch(lambda size: Outcome(CRASHED), 128, 10_000) is None


@pytest.mark.parametrize("step", [1, 8, 128])
@pytest.mark.parametrize("fixed_share", [0.001, 0.1, 0.9])
@pytest.mark.parametrize("known_share", [0.0, 0.5, 1.0])  # How much of the fixed memory is known to be fixed,
@pytest.mark.parametrize("least_bytes", [1, 6, 10])  # and how much of the 10 bytes of an example.
def test_a_bound_is_not_below_what_fits(fixed_share, step, known_share, least_bytes):
    device = _Device(10_000_000, fixed=int(fixed_share * 10_000_000), step=step)
    bound = bound_largest_batch(8, int(known_share * device.fixed), least_bytes, device.capacity)
    assert bound.is_upper_bound
    assert not bound.is_exact
    assert bound.size >= device.search(8).size
    assert bound.size * least_bytes <= device.capacity


def test_a_bound_is_what_fits_where_all_is_known():
    device = _Device(10_000_000, fixed=9_000_000)
    assert bound_largest_batch(8, device.fixed, 10, device.capacity).size == device.search(8).size == 100_000


@pytest.mark.parametrize(
    ("largest", "text"),
    [
        (LargestBatch(1024, is_exact=True), "1,024"),
        (LargestBatch(1024, is_exact=False, is_upper_bound=True), "≤1,024"),
        (LargestBatch(1024, is_exact=False), "≥1,024"),
    ],
)
def test_a_bound_is_marked(largest, text):
    assert largest.text == text

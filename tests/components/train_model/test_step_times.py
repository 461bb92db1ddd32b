import itertools

import numpy as np
import pytest

from tpu_components.train_model.step_times import StepTimes, quantiles_ms

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def _times(*moments):
    return StepTimes(clock=iter(moments).__next__)


def test_quantiles_are_those_of_the_steps_to_half_a_percent():
    seconds = np.random.default_rng(0).lognormal(-4.0, 0.5, 5_000)
    times = _times(0.0, *np.cumsum(seconds))
    times.start(0)
    for step in range(1, 5_001):
        times.reach(step)
    exact = 1e3 * np.quantile(seconds, _SHARES, method="inverted_cdf")
    assert quantiles_ms(times.counts, _SHARES) == pytest.approx(exact, rel=0.0051)


def test_steps_of_a_block_count_with_their_mean():
    times = _times(10.0, 10.4, 10.5)
    times.start(0)
    times.reach(4)
    times.reach(5)
    assert sum(times.counts.values()) == 5
    assert quantiles_ms(times.counts, (0.5,)) == pytest.approx([100.0], rel=0.006)


def test_steps_that_have_not_ended_and_time_before_a_start_count_for_nothing():
    times = _times(0.0, 5.0, 100.0, 100.1)
    times.start(0)
    times.reach(0)
    times.reach(1)
    times.start(1)  # A checkpoint was saved meanwhile.
    times.reach(2)
    assert quantiles_ms(times.counts, (0.4, 0.9)) == pytest.approx([100.0, 5000.0], rel=0.006)


def test_counts_of_a_checkpoint_add_up_and_lost_steps_count_once():
    moments = itertools.count(0.0, 0.01).__next__
    killed = StepTimes(moments)
    killed.start(0)
    for step in range(1, 11):
        killed.reach(step)
        if step == 7:
            saved = killed.counts
    resumed = StepTimes(moments)
    resumed.resume(saved)
    resumed.start(7)
    for step in range(8, 21):
        resumed.reach(step)
    assert sum(resumed.counts.values()) == 20


def test_steps_of_a_stage_with_more_frozen_layers_are_not_counted():
    times = _times(0.0, 1.0, 2.0)
    times.is_counting = False
    times.start(0)
    times.reach(1)
    assert times.counts == {}

"""A step is judged by others alone, and the interval holds what it says."""

import dataclasses
import math
import random
import statistics

import pytest

from tests.evidence.benchmarks import step_errors
from tests.evidence.benchmarks.step_errors import Observation
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training.compiling.hlo import Kind, OperationCost

_CHIP = next(one for one in load_catalogue().generations if one.name == "v5e")


def _step(number=0, ratio=1.0, program=None, source=None):
    """A step whose products take a second by the compiler's cycles, at 40% of the peak."""
    product = OperationCost(Kind.PRODUCT, _CHIP.clock_hz, 0.4 * _CHIP.device_peak_flops)
    return Observation(
        key=f"{number}/v5e",
        program=program or f"program {number}",
        family=program or f"program {number}",
        kind="decoder",
        generation=_CHIP,
        sources=frozenset([source or f"source {number}"]),
        operations=[product],
        beside=0.0,
        hidden=0.0,
        measured=ratio,
        is_whole=True,
    )


def test_a_step_takes_what_its_operations_take():
    step = _step(ratio=1.5)
    assert step.ratio == pytest.approx(1.5)
    assert step.utilization == pytest.approx(0.4)
    kernel = OperationCost(Kind.KERNEL, 0.0, 0.45 * _CHIP.device_peak_flops, _CHIP.device_bytes_per_second / 2)
    both = dataclasses.replace(step, operations=[*step.operations, kernel])
    assert both.ratio == pytest.approx(1.5 / 2)
    assert both.ratio_by_cycles == pytest.approx(1.5 / 1.5), "what has no cycles is estimated by its bytes"


def test_communication_is_added_or_hidden():
    step = _step()
    assert dataclasses.replace(step, beside=1.0).ratio == pytest.approx(0.5)
    assert dataclasses.replace(step, hidden=0.5).ratio == pytest.approx(1.0)
    assert dataclasses.replace(step, hidden=4.0).ratio == pytest.approx(0.25)


def test_a_step_is_judged_by_other_programs_of_other_publishers():
    steps = [_step(0), _step(1, program="program 0"), _step(2, source="source 0"), _step(3)]
    assert [one.key for one in step_errors.others_of(steps, steps[0])] == ["3/v5e"]


def test_a_constant_share_of_the_peak_is_that_of_the_other_steps():
    steps = [_step(number, ratio) for number, ratio in enumerate([1.0, 1.0, 1.0, 2.0])]
    assert step_errors.hold_out_constant(steps) == pytest.approx({"0/v5e": 1, "1/v5e": 1, "2/v5e": 1, "3/v5e": 2})


def test_the_interval_of_one_step_of_each_publisher_is_that_of_the_next_value():
    """Judged by the prediction interval of a normal sample, of which Student's t is 2.132 for five values."""
    logs = [0.1, -0.2, 0.3, 0.0, 0.4]
    half = 2.132 * statistics.stdev(logs) * math.sqrt(1 + 1 / 5)
    expected = math.exp(0.12 - half), math.exp(0.12 + half)
    steps = [_step(number, math.exp(value)) for number, value in enumerate(logs)]
    assert step_errors.interval(steps) == pytest.approx(expected, rel=1e-3)
    alone = [dataclasses.replace(one, sources=frozenset(["source 0"])) for one in steps]
    assert step_errors.interval(alone) == pytest.approx(expected, rel=1e-3), "a single publisher"


@pytest.mark.parametrize("ratios", [[2.0], [2.0, 2.0, 2.0]])
def test_the_interval_of_equal_ratios_has_no_width(ratios):
    assert step_errors.interval([_step(number, ratio) for number, ratio in enumerate(ratios)]) == pytest.approx((2, 2))


@pytest.mark.parametrize("of_publishers", [0.0, 0.1, 0.4])
def test_the_interval_holds_nine_of_ten_steps_of_new_publishers(of_publishers):
    """Drawn anew 1,000 times, of eight publishers with one to eight steps."""
    draw = random.Random(0)
    held = 0
    for _ in range(1000):
        steps = []
        for publisher in range(8):
            bias = draw.gauss(0, of_publishers)
            ratios = [math.exp(bias + draw.gauss(0, 0.2)) for _ in range(publisher + 1)]
            steps += [_step(len(steps), ratio, source=f"source {publisher}") for ratio in ratios]
        low, high = step_errors.interval(steps)
        held += low <= math.exp(draw.gauss(0, of_publishers) + draw.gauss(0, 0.2)) <= high
    assert 0.89 < held / 1000 < 0.95


def test_a_step_lies_in_the_interval_of_its_own_group():
    ratios = [1.0, 1.1, 1.05, 1.02, 1.08, 1.7, 3.0, 2.9, 3.1, 2.2, 3.05, 2.95]
    steps = [_step(number, ratio) for number, ratio in enumerate(ratios)]
    held = step_errors.hold_out_intervals(steps, lambda one: one.measured >= 2)
    assert [key for key, is_held in held.items() if not is_held] == ["5/v5e", "9/v5e"]


def test_errors_are_shares_of_what_was_measured():
    assert step_errors.errors([0.5, 1.0, 2.0]) == (0.5, 1.0, 0.0)

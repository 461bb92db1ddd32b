"""A step is judged by others alone, and the interval holds what it says."""

import dataclasses
import random

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


@pytest.mark.parametrize(("number", "ends"), [(1, (0, 0)), (18, (0, 17)), (19, (0, 18)), (39, (1, 37)), (99, (4, 94))])
def test_the_interval_leaves_out_one_of_twenty_on_each_side(number, ends):
    ratios = [float(ratio) for ratio in range(number)]
    assert step_errors.interval(random.Random(0).sample(ratios, number)) == ends


def test_the_interval_holds_nine_of_ten():
    """Drawn anew 4,000 times, of 30 ratios and one more."""
    draw = random.Random(0)
    held = 0
    for _ in range(4000):
        low, high = step_errors.interval([draw.lognormvariate(0, 0.3) for _ in range(30)])
        held += low <= draw.lognormvariate(0, 0.3) <= high
    assert 0.89 < held / 4000 < 0.95  # With 30, the ends are the lowest and the highest: 29 of 31.


def test_a_step_lies_in_the_interval_of_its_own_group():
    steps = [_step(number, ratio) for number, ratio in enumerate([1.0, 1.1, 1.05, 3.0, 2.0, 2.5])]
    held = step_errors.hold_out_intervals(steps, lambda one: one.measured >= 2)
    assert list(held.values()) == [False, False, True, False, False, True]


def test_errors_are_shares_of_what_was_measured():
    assert step_errors.errors([0.5, 1.0, 2.0]) == (0.5, 1.0, 0.0)

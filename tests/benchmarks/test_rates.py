"""The fit finds the rates that made its data, and judges a step by others alone."""

import dataclasses
import math
import random

import pytest

from tests.benchmarks import rates
from tests.benchmarks.rates import Observation
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training.compiling.hlo import Kind, OperationCost
from tpu_components.preflight_training.estimate import Rates, seconds_of

_GENERATIONS = {one.name: one for one in load_catalogue().generations}
_TRUE = Rates(0.7, 1.3, 1.2, 0.4, 0.9)


def _step(number, generation="v5e", program=None, true=_TRUE, factor=1.0):
    """A step of a millisecond of each kind of operation, in shares that differ from step to step."""
    chip = _GENERATIONS[generation]
    cycles = chip.clock_hz * 1e-3
    kinds = [Kind.PRODUCT, Kind.CONVOLUTION, Kind.OTHER, Kind.KERNEL]
    shares = [random.Random(f"{number} {kind}").choice((0, 1, 20)) for kind in kinds]
    operations = [
        OperationCost(kind, cycles * share, 0.0)
        if kind is not Kind.KERNEL
        else OperationCost(kind, 0.0, chip.device_peak_flops * 1e-3 * share)
        for kind, share in zip(kinds, (1 + share for share in shares), strict=True)
    ]
    return Observation(
        key=f"{number}/{generation}",
        program=program or f"program {number}",
        kind="decoder",
        generation=chip,
        sources=frozenset([f"source {number}"]),
        operations=operations,
        beside=0.0,
        hidden=0.0,
        measured=factor * sum(seconds_of(operation, chip, true) for operation in operations),
        is_whole=True,
    )


def test_rates_of_many_steps_are_those_that_made_them():
    found = rates.fit([_step(number) for number in range(60)], ["v5e", "v4"])
    assert found["v5e"].products == pytest.approx(0.7, rel=0.1)
    assert found["v5e"].convolutions == pytest.approx(1.3, rel=0.1)
    assert found["v5e"].kernels == pytest.approx(0.4, rel=0.1)
    assert found["v5e"].products < found["v4"].products < 1, "what is known of one says most of what the other is like"


def test_without_steps_nothing_is_corrected():
    assert rates.fit([], ["v5e"]) == {"v5e": Rates(1.0, 1.0, 1.0, 0.45, 0.9)}


def test_the_fit_is_never_faster_than_the_chip():
    """Steps that are measured at half the time that the peak allows leave the estimate at the peak."""
    chip = _GENERATIONS["v5e"]
    operation = OperationCost(Kind.PRODUCT, chip.clock_hz, chip.device_peak_flops)
    steps = [
        dataclasses.replace(_step(number), operations=[operation], measured=0.5, program=f"p{number}")
        for number in range(20)
    ]
    found = rates.fit(steps, ["v5e"])
    assert rates.ratio(steps[0], found["v5e"]) == pytest.approx(0.5)


def test_a_step_is_judged_by_other_programs_and_other_sources_alone():
    """A time that is off changes by how much it is off, and nothing of what was expected of it."""
    steps = [_step(number, program=f"program {number // 2}") for number in range(8)]
    off = dataclasses.replace(steps[0], measured=3 * steps[0].measured)
    of_its_source = dataclasses.replace(steps[5], sources=off.sources, measured=9 * steps[5].measured)
    before = rates.hold_out(steps, ["v5e"])["0/v5e"]
    others = [*steps[1:5], of_its_source, *steps[6:]]
    without_source = rates.hold_out([steps[0], *steps[1:5], *steps[6:]], ["v5e"])["0/v5e"]
    assert rates.hold_out([off, *steps[1:]], ["v5e"])["0/v5e"] == pytest.approx(3 * before)
    assert rates.hold_out([off, *others], ["v5e"])["0/v5e"] == pytest.approx(3 * without_source)


def test_communication_is_added_or_hidden():
    step = _step(0)
    computed = step.measured
    assert rates.ratio(step, _TRUE) == pytest.approx(1.0)
    assert rates.ratio(dataclasses.replace(step, beside=computed), _TRUE) == pytest.approx(0.5)
    assert rates.ratio(dataclasses.replace(step, hidden=computed / 2), _TRUE) == pytest.approx(1.0)
    assert rates.ratio(dataclasses.replace(step, hidden=4 * computed), _TRUE) == pytest.approx(0.25)


def test_a_constant_utilization_is_that_of_the_other_steps():
    steps = [_step(number, factor=factor) for number, factor in enumerate([1.0, 1.0, 1.0, 2.0])]
    assert all(ratio > 0 for ratio in rates.hold_out_constant(steps).values())
    same = [
        dataclasses.replace(steps[0], key=str(at), program=str(at), sources=frozenset([str(at)])) for at in range(3)
    ]
    assert rates.hold_out_constant(same) == pytest.approx({"0": 1.0, "1": 1.0, "2": 1.0})


def test_errors_are_shares_of_what_was_measured():
    median, most, bias = rates.errors([0.5, 1.0, 2.0])
    assert (median, most, bias) == (0.5, 1.0, 0.0)


@pytest.mark.parametrize(("own", "expected"), [([], 1.0), ([9.0], 9.0), ([0.1], 1.0)])
def test_the_interval_reaches_as_far_as_nine_of_ten_of_all_and_of_the_generations_own(own, expected):
    """Of 19 distances up to 1, with that of the next one among them."""
    held_out = {str(at): math.exp(min(at / 17, 1.0)) for at in range(19)}
    held_out |= {f"own {at}": math.exp(distance) for at, distance in enumerate(own)}
    assert rates.reach(held_out, [f"own {at}" for at in range(len(own))]) == pytest.approx(expected, abs=0.06)

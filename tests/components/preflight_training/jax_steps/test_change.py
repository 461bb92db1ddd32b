"""When a change of a step is refused."""

import dataclasses

import pytest

from tests.components.preflight_training.jax_steps.reports import make_report
from tpu_components.preflight_training.jax_steps.change import StepChange, StepLimits


@pytest.mark.parametrize(
    ("now", "limits", "refusal"),
    [
        (make_report(10.0), StepLimits(max_step_ms=10.0, max_memory=0.25), None),
        (make_report(10.1), StepLimits(max_step_ms=10.0), "max_step_ms=10"),
        (make_report(10.0, gib=4.1), StepLimits(max_memory=0.25), "max_memory=0.25"),
        (make_report(None), StepLimits(max_step_ms=10.0), "is unknown, so max_step_ms cannot be checked"),
        (make_report(None, verdict="does_not_fit", reason="Ran out of memory"), StepLimits(), "Ran out of memory"),
    ],
)
def test_limits_are_checked_without_an_earlier_report(now, limits, refusal):
    failures = StepChange(now, None, limits).failures
    assert bool(failures) == bool(refusal)
    assert not refusal or refusal in failures[0]


@pytest.mark.parametrize(
    ("milliseconds", "max_slowdown", "is_refused"),
    [(15.0, None, False), (15.1, None, True), (11.0, 0.1, False), (11.2, 0.1, True), (5.0, 0.0, False)],
)
def test_a_slower_step_is_refused_above_the_interval_or_the_limit(milliseconds, max_slowdown, is_refused):
    change = StepChange(make_report(milliseconds), make_report(10.0), StepLimits(max_slowdown=max_slowdown))
    assert bool(change.failures) == is_refused


def test_new_receipts_are_no_change_of_the_step():
    before = make_report(10.0)
    now = dataclasses.replace(before, step=dataclasses.replace(before.step, factor=1.6, low_ms=14.0, high_ms=18.0))
    for change in (StepChange(now, before), StepChange(before, now)):
        assert change.failures == []
        assert "10.0 | 10.0" in change.markdown()


def test_another_machine_is_not_compared():
    change = StepChange(make_report(100.0), make_report(10.0, machine="v6e-8"), StepLimits(max_slowdown=0.1))
    assert change.failures == []
    assert "Times are not compared, because the earlier report is for v6e-8" in change.markdown()


def test_the_table_has_memory_time_and_the_layers_that_changed():
    before = make_report(10.0)
    up, down = make_report(20.0, gib=8.0).layers
    now = make_report(20.0, gib=8.0, layers=(up, dataclasses.replace(down, name="new"), before.layers[1]))
    text = StepChange(now, before).markdown()
    assert r"| memory of a device | 4.00 GiB | 8.00 GiB | \+100% |" in text
    assert r"| layer up, ms | 7.00 | 14.0 | \+100% |" in text
    assert "| layer new, ms | – | 6.00 | new |" in text
    assert "layer down" not in text  # It takes as long as before.


def test_another_compiler_is_said():
    assert (
        "another version of JAX or libtpu" in StepChange(make_report(), make_report(compiler={"jax": "1"})).markdown()
    )

"""The functions for steps that are not Keras's; what they compile is tested with the compiler."""

from pathlib import Path

import pytest

import tpu_pipelines as tp
from tests.components.preflight_training.jax_steps.reports import make_report
from tpu_pipelines.api import steps


@pytest.fixture
def examined(monkeypatch):
    """The cases that were compiled. The time of a step is ten times its first argument."""
    cases = []

    def examine(case, box, runs):
        cases.append((case, box))
        return make_report(10.0 * (case.args or (1,))[0], machine=case.machine, name=case.label)

    monkeypatch.setattr(steps, "examine", examine)
    return cases


def step(factor, other=0):
    """A step."""


def test_one_machine_gives_a_report_and_several_a_comparison(examined):
    assert tp.preflight_step(step, 1, machine="v5e-8").machine == "v5e-8"
    comparison = tp.preflight_step(step, 1, machine=["v5e-8", "v6e-8"])
    assert {report.machine for report in comparison.reports} == {"v5e-8", "v6e-8"}


def test_arguments_of_the_step_and_options_of_jit_are_told_apart(examined):
    tp.preflight_step(step, 2, machine="v5e-8", kwargs={"other": 3}, static_argnums=0, spot=True, slices=2)
    (case, _) = examined[0]
    assert (case.args, case.kwargs, case.jit_options) == ((2,), {"other": 3}, {"static_argnums": 0})
    assert (case.paid.spot, case.slices, case.label) == (True, 2, "step")


def test_an_unknown_option_is_refused_with_where_to_put_it(examined):
    with pytest.raises(tp.InputError, match=r"Unknown options of preflight_step: other\. .*kwargs=\{\.\.\.\}"):
        tp.preflight_step(step, 1, machine="v5e-8", other=3)


def test_a_path_is_a_file_of_stablehlo(examined):
    tp.preflight_step(Path("step.mlir"), machine="v5e-8")
    assert examined[0][0].step == "step.mlir"


def test_limits_and_cache_reach_the_process_that_compiles(examined, tmp_path):
    limits = {"compile_timeout_seconds": 5.0, "compile_memory_mib": 100}
    tp.preflight_step(step, machine="v5e-8", cache_dir=tmp_path, **limits)
    box = examined[0][1]
    assert (box.timeout_seconds, box.memory_mib, box.cache_dir) == (5.0, 100, tmp_path)


def test_layouts_are_ranked_by_the_price_of_the_same_work(examined):
    cases = [tp.StepCase(step, (size,), "v5e-8", name=f"batch {size}") for size in (1, 4)]
    comparison = tp.compare_steps(cases, items=[8, 64], total=1e9, unit="tokens")
    assert comparison.best.name == "batch 4"  # 8 times the tokens in 4 times the time.
    assert "1,000,000,000 tokens" in str(comparison)


@pytest.mark.parametrize("items", [[1], [1, 2, 3], [1, 0], 0])
def test_a_number_of_items_for_each_step_is_needed(examined, items):
    with pytest.raises(tp.InputError, match="a positive number of items for each"):
        tp.compare_steps([tp.StepCase(step), tp.StepCase(step)], items=items)


def test_nothing_to_compare_is_refused(examined):
    with pytest.raises(tp.InputError, match="Cannot compare 0 steps"):
        tp.compare_steps([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": 3}, "Cannot use int as the inputs of step: expected a tuple"),
        ({"kwargs": [1]}, "expected a mapping of names to inputs"),
        ({"slices": 1.5}, "expected slices=1 or more, a whole number"),
        ({"levels": -1}, "expected the largest number of scopes in a layer's name, a whole number"),
    ],
)
def test_a_value_that_is_not_usable_is_refused_before_anything_is_compiled(options, message):
    with pytest.raises(tp.InputError, match=message):
        tp.StepCase(step, **options)


def test_only_cases_and_positive_work_are_compared(examined):
    with pytest.raises(tp.InputError, match=r"expected tp.StepCase\(step"):
        tp.compare_steps([step])
    with pytest.raises(tp.InputError, match=r"total must be positive.*Received: -5"):
        tp.compare_steps([tp.StepCase(step)], total=-5)


@pytest.mark.parametrize("axes", [{"data": 2.0}, {"data": "8"}, {"data": 0}, {"data": 16}, {}])
def test_a_mesh_needs_whole_sizes_of_at_most_all_devices(axes):
    with pytest.raises(tp.InputError, match="expected axes with at most 8 devices in all"):
        tp.mesh("v5e-8", **axes)
    with pytest.raises(tp.InputError, match="expected slices=1 or more"):
        tp.mesh("v5e-8", slices=0, data=8)


def test_receipts_are_read_once_for_all_machines_and_cases(examined, monkeypatch):
    folders = []
    monkeypatch.setattr(steps, "load_runs", lambda folder: folders.append(folder) or [])
    tp.preflight_step(len, machine=["v5e-1", "v5e-4"], receipts="mine")
    tp.compare_steps([tp.StepCase(len, (), "v5e-1"), tp.StepCase(len, (), "v5e-4"), tp.StepCase(len, (), "v6e-1")])
    assert folders == ["mine", ""]

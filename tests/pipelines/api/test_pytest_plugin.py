"""The plugin in a repository of somebody else: which tests fail, and what is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_pipelines.api.pytest_plugin import _folder_of

_CONFTEST = """
import tpu_pipelines.api.steps as steps
from tests.components.preflight_training.jax_steps.reports import make_report

def compile_step(step, *args, machine, **options):
    if step == "cannot be traced":
        raise steps.InputError("Cannot trace the step at model.py:3: shapes.")
    return make_report(step, machine=machine, name=options.get("name", "step"))

steps.preflight_step = compile_step  # What compiles is tested elsewhere.
"""
_TESTS = """
import pytest

@pytest.mark.preflight(machine="v5e-8", max_step_ms=10.5)
def test_fast(preflight_step):
    assert preflight_step(10.0).fits

@pytest.mark.preflight("v5e-8", 9.5)
def test_slow(preflight_step):
    preflight_step(10.0)

@pytest.mark.preflight("v5e-8", max_slowdown=0.2, name="named")
def test_two_steps(preflight_step):
    assert preflight_step(10.0).name == "named"
    preflight_step(10.0, name="second")

@pytest.mark.preflight("v5e-8")
def test_mistake(preflight_step):
    preflight_step("cannot be traced")

@pytest.mark.preflight(machine=["v5e-8", "v6e-8"])
def test_several_machines(preflight_step):
    preflight_step(10.0)

def test_no_machine(preflight_step):
    preflight_step(10.0)
"""


@pytest.fixture
def run(tmp_path):
    """Run the tests of the other repository with options; returns what was printed."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_steps.py").write_text(_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")

    def run(*options):
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    return run


def test_a_repository_refuses_steps_that_exceed_their_limits(run, tmp_path):
    printed = run("--preflight-reports", "base", "--preflight-markdown", "steps.md")
    for name in ("test_fast", "test_two_steps"):
        assert f"PASSED test_steps.py::{name}" in printed
    assert "A step of step takes 10.0 ms (9.00–15.0), but max_step_ms=9.5." in printed
    assert "Cannot trace the step at model.py:3: shapes." in printed
    assert "received ['v5e-8', 'v6e-8']. Write @pytest.mark.preflight(machine='v5e-8')" in printed
    assert "The fixture preflight_step needs a machine. Mark the test" in printed
    assert "2 passed, 3 failed, 1 error" in printed.replace("3 failed, 2 passed", "2 passed, 3 failed")
    markdown = (tmp_path / "steps.md").read_text()
    assert [line for line in markdown.splitlines() if line.startswith("## ")] == [
        f"## `test_steps.py::{name}`" for name in ("test_fast", "test_slow", "test_two_steps")
    ]

    (tmp_path / "test_steps.py").write_text(_TESTS.replace("preflight_step(10.0, name", "preflight_step(12.5, name"))
    printed = run("-k", "two_steps or fast", "--preflight-base", "base")
    assert "PASSED test_steps.py::test_fast" in printed
    assert "A step of second takes 12.5 ms (11.2–18.8), 1.25 times as long as before, but max_slowdown=0.2." in printed


_MISTAKES = """
import pytest

@pytest.mark.preflight("v5e-8", 1, 0.9, 0.1, 5)
def test_too_many(preflight_step):
    preflight_step(10.0)

@pytest.mark.preflight("v5e-8", max_step_ms="5")
def test_text(preflight_step):
    preflight_step(10.0)

@pytest.mark.preflight("v5e-8", max_memory=90)
def test_percent(preflight_step):
    preflight_step(10.0)

@pytest.mark.preflight("v5e-8")
def test_another_machine(preflight_step):
    preflight_step(10.0, machine=["v5e-8", "v6e-8"])

@pytest.mark.preflight("v5e-8")
def test_damaged(preflight_step):
    preflight_step(10.0)
"""


def test_mistakes_in_a_marker_fail_with_a_sentence(run, tmp_path):
    (tmp_path / "test_steps.py").write_text(_MISTAKES)
    damaged = tmp_path / "base" / "test_steps.py-test_damaged"
    damaged.mkdir(parents=True)
    (damaged / "step.json").write_text("{")
    printed = run("--preflight-base", "base")
    assert "expects one machine and max_step_ms, max_memory, max_slowdown, received 'v5e-8' and more" in printed
    assert "Cannot use max_step_ms='5' as a limit: expected a positive number of milliseconds." in printed
    assert "Cannot use max_memory=90 as a limit: expected a share from 0 to 1, such as 0.9." in printed
    assert "received ['v5e-8', 'v6e-8']" in printed
    assert "Cannot compare with an earlier report: " in printed
    assert "5 failed" in printed
    assert "Traceback" not in printed


def test_a_base_that_is_missing_stops_the_tests(run):
    """Otherwise a typing error in its path would let every slow step pass."""
    printed = run("--preflight-base", "bsae")
    assert "There is no folder bsae to compare with. Write it on the base branch" in printed
    assert "passed" not in printed


def test_reports_of_different_tests_have_different_folders():
    folders = {_folder_of("tests/a.py::test_x[v5e-8]", 1), _folder_of("tests/a.py::test_x[v5e-4]", 1)}
    assert len(folders | {_folder_of("tests/a.py::test_x[v5e-8]", 2)}) == 3

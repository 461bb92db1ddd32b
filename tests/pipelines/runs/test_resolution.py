"""Tests that a run is decided once: its machine is parsed, its time limit found, and its source listed, once each."""

from collections import Counter

import pytest

from tests.support.cli import tpu_pipelines_here
from tpu_components.core.machines import machine_spec
from tpu_components.core.sources import kinds
from tpu_pipelines.platforms import machines


@pytest.fixture
def calls(monkeypatch):
    """How often a machine is parsed, a time limit is found and a source is listed."""
    counted = Counter()

    def count(module, name, what):
        function = getattr(module, name)

        def counting(*arguments):
            counted[what] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counting)

    count(machine_spec, "_with_fallbacks", "parsed")
    count(machines, "training_timeout", "limited")
    count(kinds, "check_source", "listed")
    return counted


def test_a_compiled_pipelines_machine_is_parsed_and_limited_once(calls, tmp_path):
    output = tmp_path / "pipeline.yaml"
    done = tpu_pipelines_here(
        "compile", "digits", "--target", "vertex", "--set", "machine=v5e-4", "--output", str(output)
    )
    assert (done.returncode, calls) == (0, {"parsed": 1, "limited": 1})


def test_a_dry_run_decides_once_for_each_machine_what_it_shows(calls, federated):
    sent = ("submit", "digits", "--set", "machine={name: v5e-4, fallbacks: [v6e-4]}", "--set", "preflight=false")
    done = tpu_pipelines_here(*sent, "--dry-run")
    assert (done.returncode, calls) == (0, {"parsed": 2, "limited": 2, "listed": 1})


def test_a_retrained_runs_source_is_listed_once(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("tpu_pipelines.runs.run_local._LocalSession.run", lambda session, runner: None)
    done = tpu_pipelines_here("retrain", "digits", "--target", "local", "--workspace", str(tmp_path), "--json")
    assert "the step did not run" in done.stderr
    assert calls["listed"] == 1

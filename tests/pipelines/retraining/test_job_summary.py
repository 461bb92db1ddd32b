import dataclasses
import json
import xml.etree.ElementTree as ET

import pytest

from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.results.evaluation_info import Decision, EvaluatedModel, Evaluation, Rule, SliceMetric
from tpu_pipelines.retraining.job_summary import RunFindings, render_junit, render_markdown, render_runs
from tpu_pipelines.retraining.retrain import RunDecision
from tpu_pipelines.runs.summary import Summary

_CHANGED = RunDecision.make(True, "changed since runs/digits: data", "runs/digits", ("data",))
_REASONS = (
    Rule(True, "accuracy", "accuracy 0.9800 beats the champion's 0.9500, with 95% confidence by more than 0.0100"),
    Rule(False, "accuracy", "accuracy 0.7000 of class 'cat|<dog>' (300 examples) is worse than the champion's 1.0000"),
)


@pytest.fixture
def run_dir(tmp_path):
    gate = Decision(False, _REASONS)
    Summary(status="rejected", gate=gate, metrics={"accuracy": 0.98, "num_examples": 900}).save(tmp_path)
    (tmp_path / "evaluation").mkdir()
    worse = Difference(advantage=-0.3, least=-0.36, most=-0.24, luck=1.0)
    alike = Difference(advantage=0.01, least=-0.02, most=0.04, luck=0.3)
    Evaluation(
        split="test",
        dataset_fingerprint="abc",
        model=EvaluatedModel("cnn", {}, "best", "digest"),
        class_names=("cat|<dog>", "fox"),
        gate=gate,
        challenger={"num_examples": 900, "accuracy": 0.98, "loss": 0.1},
        champion={"num_examples": 900, "accuracy": 0.95, "loss": 0.2},
        registered_champion=None,
        intervals={"accuracy": (0.969, 0.988)},
        differences={"accuracy": Difference(0.03, 0.01, 0.05, 0.004), "loss": alike},
        slices=(
            SliceMetric("class", "cat|<dog>", 300, "accuracy", 0.7, (0.6, 0.8), 1.0, worse),
            SliceMetric("class", "fox", 600, "accuracy", 0.9, (0.8, 0.95), 0.89, alike),
        ),
    ).save(tmp_path / "evaluation")
    return tmp_path


def test_markdown_shows_decision_reasons_figures_beside_the_champions_and_slices_that_changed(run_dir):
    text = render_markdown("digits", _CHANGED, Summary.load(run_dir).result, {}, RunFindings.of_folder(run_dir))
    assert (
        text
        == """\
### ✗ digits: not promoted

changed since runs/digits: data

- ✓ accuracy 0.9800 beats the champion's 0.9500, with 95% confidence by more than 0.0100
- ✗ accuracy 0.7000 of class 'cat\\|&lt;dog&gt;' (300 examples) is worse than the champion's 1.0000

| metric | value | interval | champion | difference |
|---|--:|---|--:|---|
| Accuracy | 98.00% | 96.90% to 98.80% | 95.00% | **\\+3.00 points (+1.00 to +5.00)** |
| Loss | 0.1000 |  | 0.2000 | −0.1000 (−0.0400 to +0.0200) |

| slice | value | interval | champion | difference |
|---|--:|---|--:|---|
| class 'cat\\|&lt;dog&gt;' (300 examples) | 70.00% | 60.00% to 80.00% | 100.00% | \
**−30.00 points (−36.00 to −24.00)** |
"""
    )


def test_runs_side_by_side_show_the_slices_that_surely_changed(run_dir):
    text = render_runs({"a_b": RunFindings.of_folder(run_dir), "failed": RunFindings()})
    assert (
        text
        == """\
| with 95% confidence | a_b |
|---|--:|
| Accuracy | 98.00% (96.90% to 98.80%) |
| Loss | 0.1000 |

Slices of a_b that differ from the champion's slices:

| slice | value | interval | champion | difference |
|---|--:|---|--:|---|
| class 'cat\\|&lt;dog&gt;' (300 examples) | 70.00% | 60.00% to 80.00% | 100.00% | \
**−30.00 points (−36.00 to −24.00)** |"""
    )


def test_markdown_of_a_job_has_its_links_and_of_what_was_not_needed_its_earlier_outcome():
    rest = RunDecision.make(False, "nothing has changed since digits-1 (succeeded)", "digits-1")
    links = {"digits-1": "https://console.example/1", "logs": "javascript:alert(1)"}
    text = render_markdown("digits", rest, "promoted", links, RunFindings())
    assert text.splitlines()[0] == "### ✓ digits: not needed (promoted)"
    assert "[digits-1](https://console.example/1)" in text
    assert "javascript" not in text


def test_the_gates_rules_are_test_cases(run_dir):
    suite = ET.fromstring(render_junit("digits", "not promoted", _REASONS))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case for case in suite if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == [_REASONS[1].text]


@pytest.mark.parametrize(
    ("outcome", "failures"), [("promoted", 0), ("passed", 0), ("running", 0), ("not promoted", 1), ("failed", 1)]
)
def test_without_reasons_the_run_is_the_test_case(outcome, failures):
    suite = ET.fromstring(render_junit("dig\x00its", outcome, ()))
    assert suite.get("failures") == str(failures)
    assert suite.find("testcase").get("name") == f"run: {outcome}"


def test_a_run_that_failed_after_the_gate_has_passed_it_is_a_failure():
    suite = ET.fromstring(render_junit("digits", "failed", _REASONS[:1]))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_a_run_that_has_failed_says_why(tmp_path):
    Summary(status="failed", error="train_model: out of memory ```").save(tmp_path)
    text = render_markdown("digits", _CHANGED, "failed", {}, RunFindings.of_folder(tmp_path))
    assert "train_model: out of memory '''" in text
    (tmp_path / "summary.json").write_text(json.dumps([]))
    text = render_markdown("digits", _CHANGED, "failed", {}, RunFindings.of_folder(tmp_path))
    assert text.endswith("changed since runs/digits: data\n")


def test_a_run_that_made_nothing_new_says_which_version_that_is(run_dir):
    findings = dataclasses.replace(RunFindings.of_folder(run_dir), same_as="0004")
    text = render_markdown("digits", _CHANGED, "promoted", {}, findings)
    assert "\n\nThe model is the same as version 0004, which is already the champion.\n\n- ✓" in text

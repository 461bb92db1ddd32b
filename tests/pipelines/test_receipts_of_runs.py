"""From a run to the next preflight: training writes a receipt, `receipts add` adds it, the interval changes."""

import dataclasses
import json
import shutil

import pytest

from tests.support.cli import tpu_pipelines_here
from tpu_components.core.results.receipt import Receipt, StepQuantiles


@pytest.mark.slow  # Needs a finished run, and compiles twice: 20 s.
def test_receipt_of_a_run_changes_the_interval_of_its_next_preflight(finished_run, warm, tmp_path):
    run_dir = finished_run[0] / "digits"
    measured, receipt = Receipt.load(run_dir / "model"), Receipt.load(run_dir / "evaluation")
    assert measured.id == receipt.id
    assert (measured.machine, measured.prediction, receipt.prediction.machine) == ("cpu", None, "v5e-1")
    assert 0 < measured.steps < measured.all_steps
    assert "Predicted and measured" in (run_dir / "evaluation" / "report.html").read_text()
    private = ("sklearn", "digits", "cnn", str(finished_run[0]))
    text = (run_dir / "evaluation" / "receipt.json").read_text()
    assert not [word for word in private if word in text]

    def preflight():
        command = ("preflight", "digits", "--workspace", str(tmp_path), "--json")
        with warm.takes_over():
            (machine,) = json.loads(tpu_pipelines_here(*command).stdout)["machines"]
        return machine

    before = preflight()
    assert (before["step"]["factor"], before["step"]["basis"]) == (1.0, "")
    # There is no TPU here: let the CPU's run be one that took 1.4 times as long as the compiler says.
    median_ms = 1.4 * (before["step"]["compute_ms"] + before["step"]["communication_ms"])
    on_tpu = dataclasses.replace(
        receipt,
        program=before["program"],
        machine="v5e-1",
        step_ms=StepQuantiles(*(median_ms * each for each in (0.9, 0.95, 1.0, 1.05, 1.1))),
        prediction=dataclasses.replace(
            receipt.prediction, compiler_ms=median_ms / 1.4, mxu_utilization=before["step"]["mxu_utilization"]
        ),
    )
    shutil.copytree(run_dir / "evaluation", tmp_path / "there")
    on_tpu.save(tmp_path / "there")
    assert tpu_pipelines_here("receipts", "add", str(tmp_path / "there"), "--workspace", str(tmp_path)).returncode == 0
    after = preflight()
    assert after["step"]["basis"] == "1 run of this program, none of others"
    assert after["step"]["factor"] == pytest.approx(1.38, abs=0.05)
    spread = {name: each["step"]["high_ms"] / each["step"]["low_ms"] for name, each in (("b", before), ("a", after))}
    assert spread["a"] < spread["b"] / 2
    assert after["cost"]["usd_per_run"] == pytest.approx(
        before["cost"]["usd_per_run"] * after["step"]["factor"], rel=1e-3
    )

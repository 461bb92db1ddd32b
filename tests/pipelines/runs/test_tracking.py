"""Runs in MLflow, by its own client and file store."""

import json
import shutil

import pytest

from tpu_components.core.base.errors import InputError
from tpu_pipelines.runs import tracking
from tpu_pipelines.runs.summary import Summary

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def run_dir(finished_run, tmp_path, monkeypatch):
    """A copy of a finished run, and a file store of its own."""
    shutil.copytree(finished_run[0] / "digits", tmp_path / "digits")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(tracking.VARIABLE, "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    return tmp_path / "digits"


def record(run_dir):
    tracking.record(Summary.load(run_dir), run_dir, tracking.chosen_tool())


def recorded(name="digits"):
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(name)
    return client.search_runs([experiment.experiment_id]) if experiment else []


def test_a_run_is_recorded_once_with_its_settings_curves_figures_and_report(run_dir, capsys):
    record(run_dir)
    record(run_dir)
    (run,) = recorded()
    summary = Summary.load(run_dir)
    assert run.data.params["training.learning_rate"] == "0.002"
    assert run.data.params["data.source"] == "sklearn:digits"
    assert run.data.metrics["test_accuracy"] == pytest.approx(summary.metrics["accuracy"])
    assert run.data.metrics["expected_usd"] == pytest.approx(summary.preflight.cost.usd_per_run)
    assert run.data.metrics["run_seconds"] == pytest.approx(summary.seconds)
    assert len(run.info.run_name) == len("2026-11-26 10:30")
    assert run.data.tags["model_version"] == summary.artifacts["version"]
    assert run.info.status == "FINISHED"
    client = mlflow.MlflowClient()
    epochs = [json.loads(line) for line in (run_dir / "model" / "history.jsonl").read_text().splitlines()]
    for figure in ("validation_accuracy", "seconds"):
        curve = [point.value for point in client.get_metric_history(run.info.run_id, figure)]
        assert curve == [epoch[figure] for epoch in epochs]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"summary.json", "report.html"}
    assert capsys.readouterr().err.count("recorded in mlflow: file://") == 1


def test_a_tool_that_does_not_answer_costs_no_run_and_gets_it_later(run_dir, monkeypatch, capsys):
    with monkeypatch.context() as broken:
        broken.setattr(mlflow, "log_params", lambda _: 1 / 0)
        record(run_dir)
    assert "hint: the run is not recorded in mlflow: division by zero" in capsys.readouterr().err
    record(run_dir)
    assert sorted(run.info.status for run in recorded()) == ["FAILED", "FINISHED"]


def test_another_tool_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setenv(tracking.VARIABLE, "exel")
    with pytest.raises(InputError, match="expected mlflow or wandb, received 'exel'"):
        tracking.chosen_tool()

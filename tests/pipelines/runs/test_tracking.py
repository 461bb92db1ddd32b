"""Runs in MLflow, by its own client and file store."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.fakes.local_server import LocalServer
from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.runs import tracking
from tpu_pipelines.runs.run_local import run_local
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


def record(run_dir, limit_seconds=100.0):
    tracking.record(run_dir, tracking.chosen_tool(), limit_seconds)


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


def test_results_are_named_after_the_split_that_the_gate_scored(run_dir):
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text())
    summary["config"]["gate"]["split"] = "validation"
    path.write_text(json.dumps(summary))
    record(run_dir)
    (run,) = recorded()
    assert run.data.metrics["final_validation_accuracy"] == pytest.approx(summary["metrics"]["accuracy"])
    assert not [name for name in run.data.metrics if name.startswith("test_")]


def test_a_tool_that_fails_costs_no_run_and_gets_it_later(run_dir, monkeypatch, capsys):
    """In this process: other tests ask how the tool is kept apart."""
    monkeypatch.setattr(tracking, "in_fresh_process", lambda function, *arguments, seconds: function(*arguments))
    monkeypatch.setattr(tracking, "end_with", lambda pid: None)
    with monkeypatch.context() as broken:
        broken.setenv("MLFLOW_TRACKING_URI", f"file://{run_dir}/summary.json/mlruns")
        record(run_dir)
    assert "hint: the run was not recorded in mlflow: " in capsys.readouterr().err
    record(run_dir)
    assert [run.info.status for run in recorded()] == ["FINISHED"]


@pytest.fixture
def silent_tracker():
    """A server that accepts requests and never answers; yields its address with a password."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_over.wait()

        def do_POST(self):
            is_over.wait()

    with LocalServer(Handler) as server:
        yield server.url.replace("://", "://me:secret@")
        is_over.set()


@pytest.fixture
def tracker():
    """A server that answers what MLflow's client asks for to record a run, and keeps who asks."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.authorizations.append(self.headers.get("Authorization"))
            info = {"run_id": "r1", "run_uuid": "r1", "experiment_id": "1", "status": "RUNNING"}
            run = {"info": {**info, "artifact_uri": f"file://{server.folder}"}, "data": {}}
            experiment = {"experiment_id": "1", "name": "digits", "lifecycle_stage": "active"}
            body = json.dumps({"experiment": experiment, "experiment_id": "1", "run": run, "run_info": info}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self._answer()

        def do_POST(self):
            self._answer()

        def log_message(self, *_):
            pass

    with LocalServer(Handler) as server:
        server.authorizations = []
        yield server


def test_a_server_that_is_silent_is_given_up_and_its_password_is_not_shown(
    run_dir, silent_tracker, monkeypatch, capsys
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent_tracker)
    record(run_dir, limit_seconds=5)
    said = capsys.readouterr()
    assert "hint: the run was not recorded in mlflow: it did not respond within 5 s. Run the same command" in said.err
    assert not (run_dir / tracking.TRACKED_FILE).exists()
    assert "secret" not in said.err + said.out


def test_a_password_in_the_address_of_the_tracker_is_neither_printed_nor_stored(
    run_dir, tracker, tmp_path, monkeypatch, capfd
):
    tracker.folder = tmp_path / "artifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.url.replace("://", "://me:secret@"))
    record(run_dir)
    said = capfd.readouterr()
    assert tracker.authorizations[0].startswith("Basic ")
    assert f"recorded in mlflow: {tracker.url.replace('://', '://***@')}, run r1" in said.err
    assert "secret" not in said.err + said.out
    assert not [path for path in run_dir.rglob("*.json") if b"secret" in path.read_bytes()]


def test_the_result_is_told_before_the_tracker_is_asked(empty_steps, monkeypatch, tmp_path):
    order = []
    monkeypatch.setattr(tracking, "record", lambda *_: order.append("recorded"))
    config = load_config("digits", ["preflight=false", "deploy=false"])
    outcome = run_local(config, tmp_path, tell=lambda outcome: order.append(outcome.summary.status))
    assert order == [outcome.summary.status, "recorded"]


def test_another_tool_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setenv(tracking.VARIABLE, "exel")
    with pytest.raises(InputError, match="expected mlflow or wandb, received 'exel'"):
        tracking.chosen_tool()

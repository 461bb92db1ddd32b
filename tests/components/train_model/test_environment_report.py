"""The environment report of a training: what it tries, and that a training never fails because of it."""

import time

from tpu_components.train_model import environment_report
from tpu_components.train_model.environment_report import REPORT_VARIABLE, probe_folder
from tpu_components.train_model.result import TrainResult


def test_a_folder_is_probed_and_left_as_it_was(tmp_path):
    assert set(probe_folder(tmp_path).values()) == {"yes"}
    assert list(tmp_path.iterdir()) == []
    assert probe_folder(tmp_path / "none")["write"] == "No such file or directory"


def test_a_report_that_cannot_be_left_spoils_no_training(tmp_path, bucket, monkeypatch, capfd):
    monkeypatch.setenv(REPORT_VARIABLE, "gs://nobody-has-this-one/report.json")
    result = TrainResult(1, 1, "loss", 1, 1, 1.0, 1.0, {}, "jax", "cpu", 1, "float32", 0)
    monkeypatch.setattr(environment_report, "describe_environment", lambda device, folder: {})  # It imports JAX.
    environment_report.leave_report(None, tmp_path, result, time.time())
    assert "could not write the environment report: " in (said := capfd.readouterr().err)
    assert "nobody-has-this-one" in said

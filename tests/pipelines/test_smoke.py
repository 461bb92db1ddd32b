"""The ready example `smoke` is submitted like any other, and its training tells what a platform gives it."""

import json
import os

import pytest

from tests.support.cli import set_environment
from tests.support.fakes.execution import RunOnCpu, Simulate
from tests.support.fakes.google_cloud import Bucket
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.kubeflow import RunOnCpu as RunKubeflowOnCpu
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.files import storage
from tpu_components.train_model.environment_report import REPORT_VARIABLE
from tpu_pipelines.cli.main import main

REPORT = "gs://bucket/smoke.json"
SUBMIT = ("submit", "smoke", "--wait", "--set", "preflight=false", "--target")


@pytest.fixture
def environment(bucket, no_sign_in, tmp_path, monkeypatch):
    """Sets what a user sets for a service."""

    def set_for(vertex):
        set_environment(monkeypatch, vertex.environment(tmp_path))
        vertex.cloud.buckets["bucket"] = Bucket()
        monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
        monkeypatch.setenv("TPU_PIPELINES_ENVIRONMENT", f"{REPORT_VARIABLE}={REPORT}")

    return set_for


def test_the_training_of_the_example_is_told_where_to_write_its_report(environment):
    with FakeVertex(Simulate()) as vertex:
        environment(vertex)
        assert main([*SUBMIT, "vertex", "--poll-seconds", "0.01"]) == 0
    (job,) = vertex.custom_jobs.values()
    (pool,) = job.job_spec.worker_pool_specs
    assert {REPORT_VARIABLE: REPORT}.items() <= {entry.name: entry.value for entry in pool.container_spec.env}.items()
    assert pool.machine_spec.machine_type == "ct5lp-hightpu-1t"


@pytest.mark.slow  # Runs the digits pipeline for real: a minute.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_the_example_trains_and_its_report_says_what_it_met(target, environment, tmp_path, monkeypatch, capfd):
    jobs = tmp_path / "jobs"
    with FakeVertex(RunOnCpu(jobs)) as vertex, FakeKubeflow(RunKubeflowOnCpu(jobs)) as kubeflow:
        environment(vertex)
        monkeypatch.setenv("TPU_PIPELINES_KFP_HOST", kubeflow.url)
        code = main([*SUBMIT, target, "--poll-seconds", "0.5"])
        logs = "".join(path.read_text()[-2000:] for path in sorted(jobs.glob("*.log")))
        report = json.loads(storage.read_bytes(REPORT)) if code == 0 else {}
    assert code == 0, capfd.readouterr().err + logs
    assert report["user"]["uid"] == os.getuid()
    assert "cpu" in report["devices"][0].lower()
    assert report["result"]["first_step_seconds"] > 0
    assert report["started"] < report["ended"]
    assert report["mount"]["write"] == "yes"
    assert {"device_files", "hosts", "host", "python", "libraries", "locked_memory_bytes"} <= report.keys()

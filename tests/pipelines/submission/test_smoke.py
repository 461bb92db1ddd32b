"""The smallest run: what it asks for first, what it tells, and that it goes the whole line."""

import json
import os
import re
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.cli import set_environment
from tests.support.fakes.execution import RunOnCpu, Simulate
from tests.support.fakes.execution_cache import ExecutionCache
from tests.support.fakes.google_cloud import Bucket
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.kubeflow import RunOnCpu as RunKubeflowOnCpu
from tests.support.fakes.rule_list import rules_in
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.files import storage
from tpu_components.train_model import environment_report
from tpu_components.train_model.environment_report import REPORT_VARIABLE, probe_folder
from tpu_components.train_model.result import TrainResult
from tpu_pipelines.cli.main import main

SMOKE = ("smoke", "--target", "vertex", "--poll-seconds", "0.01")
_TOLD = {
    "user": {"uid": 1000, "gid": 1000, "groups": [1000, 44]},
    "locked_memory_bytes": 65536,
    "device_files": {"/dev/accel0": "666, may be used"},
    "devices": ["tpu TPU v5 lite"],
    "hosts": {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"},
    "host": {"name": "24 × AMD EPYC", "memory_bytes": 48 << 30, "free_disk_bytes": 90 << 30},
    "python": "3.11.2",
    "libraries": {"jax": "0.10.2", "libtpu": "0.0.42.1"},
    "mount": {"folder": "/gcs/bucket/run", "write": "yes", "hard link": "Function not | implemented"},
    "result": {"num_replicas": 1, "examples_per_second": 16000.0, "first_step_seconds": 21.04},
}


class Telling(Simulate):
    """Trains nothing, and tells of surroundings as a training does."""

    def start_custom_job(self, vertex, name):
        (pool,) = vertex.custom_jobs[name].job_spec.worker_pool_specs
        (uri,) = (one.value for one in pool.container_spec.env if one.name == REPORT_VARIABLE)
        now = time.time()
        report = {"started": now, "ended": now + 36, **_TOLD}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "training.json"
            path.write_text(json.dumps(report))
            storage.upload(path, uri)
        super().start_custom_job(vertex, name)


@pytest.fixture
def environment(fake, federated, bucket, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
    fake.cloud.buckets["bucket"] = Bucket()


def said(capfd):
    out, err = capfd.readouterr()
    return json.loads(out), err


def test_the_price_comes_first_and_nothing_is_sent_without_a_yes(fake, environment, capfd):
    assert main([*SMOKE, "--machine", "v5e-4"]) == 2
    err = capfd.readouterr().err
    assert (
        "price: at most $5.52 at Vertex AI's price: two trainings on v5e-4, each of them stopped after 30 minutes at "
        "the latest ($5.52 an hour); the other steps, disks and storage come on top\n"
    ) in err
    assert err.endswith("error: Nothing was sent: expected --yes, which confirms the price.\n")
    assert fake.calls == []


def test_a_second_submission_that_the_cache_answers_is_a_hit(fake, environment, capfd):
    fake.execution = Telling(cache=ExecutionCache())
    assert main([*SMOKE, "--yes", "--json", "--set", "preflight=false"]) == 0
    rows, _ = said(capfd)
    assert rows["machine"] == "v5e-1"
    assert rows["first run"].endswith(": succeeded")
    assert rows["cache, training of the second run"] == "hit: it was not trained again"
    assert "train_model" in rows["cache, steps that the platform calls answered"]
    assert rows["user"] == "uid 1000, gid 1000, groups 1000, 44"
    assert rows["device files of the TPU"] == "/dev/accel0: 666, may be used"
    assert rows["devices seen"] == "1: tpu TPU v5 lite"
    assert rows["hosts"] == "TPU_WORKER_ID: 0; TPU_WORKER_HOSTNAMES: localhost"
    assert rows["a step, measured"] == "2.000 ms (median of the epochs)"
    assert rows["from there to the end of its first step"] == "21.0 s"
    assert rows["the training"] == "36 s, $0.0138 at Vertex AI's price; what is billed, the invoice says"
    assert len(fake.pipeline_jobs) == 2
    assert len(fake.custom_jobs) == 1


def test_what_the_platform_answered_is_written_as_rules_of_the_fakes(fake, environment, tmp_path, capfd):
    fake.execution = Telling(cache=ExecutionCache())
    report = tmp_path / "rules.txt"
    assert main([*SMOKE, "--yes", "--json", "--set", "preflight=false", "--report", str(report)]) == 0
    rules = rules_in("".join(f"    {line}\n" for line in report.read_text().splitlines()))
    source = f"(tpu-pipelines smoke of {time.strftime('%Y-%m-%d')}, vertex, v5e-1)"
    assert f"user: uid 1000, gid 1000, groups 1000, 44 {source}" in rules
    assert f"cache, training of the second run: hit: it was not trained again {source}" in rules
    assert all(rule.endswith(source) for rule in rules)
    assert not [rule for rule in rules if rule.startswith(("first run", "not asked"))]
    assert max(map(len, report.read_text().splitlines())) <= 120


def test_a_second_submission_that_trains_again_is_a_miss_and_the_table_can_be_pasted(fake, environment, capfd):
    fake.execution = Telling()
    assert main([*SMOKE, "--yes", "--set", "preflight=false"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("| question | answer |\n|---|---|\n| machine | v5e-1 |\n")
    assert "| cache, training of the second run | miss: it was trained again |\n" in out
    assert "| rights in /gcs/bucket/run | write: yes; hard link: Function not \\| implemented |\n" in out
    assert all(line.count(" | ") == 1 for line in out.replace("\\|", "").splitlines()[2:])


def test_a_run_that_fails_is_told_with_its_reason_and_not_sent_again(fake, environment, capfd):
    fake.execution = Simulate(failures={"train-model": "The TPU is not there."})
    assert main([*SMOKE, "--yes", "--json", "--set", "preflight=false"]) == 1
    rows, _ = said(capfd)
    assert rows["first run"].endswith(": failed, train_model: The TPU is not there.")
    assert rows["environment of the training"] == "not told: it failed before, or may not write into the bucket"
    assert len(fake.pipeline_jobs) == 1


def test_what_a_run_needs_is_asked_first(fake, environment, capfd):
    fake.cloud.images.clear()
    assert main([*SMOKE, "--yes", "--set", "preflight=false"]) == 2
    assert "error: Refused to send a run that cannot work. Missing: image: " in capfd.readouterr().err
    assert fake.calls == []


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


@pytest.mark.slow  # Runs the digits pipeline twice for real: two minutes.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_the_whole_line_is_run_and_told(target, bucket, no_sign_in, tmp_path, monkeypatch, capfd):
    jobs = tmp_path / "jobs"
    with FakeVertex(RunOnCpu(jobs)) as vertex, FakeKubeflow(RunKubeflowOnCpu(jobs)) as kubeflow:
        set_environment(monkeypatch, vertex.environment(tmp_path))
        monkeypatch.setenv("TPU_PIPELINES_KFP_HOST", kubeflow.url)
        monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
        code = main(["smoke", "--target", target, "--poll-seconds", "0.5", "--yes", "--json"])
        logs = "".join(path.read_text()[-2000:] for path in sorted(jobs.glob("*.log")))
        out, err = capfd.readouterr()
    assert code == 0, err + logs
    rows = json.loads(out)
    assert rows["user"].startswith(f"uid {os.getuid()}, ")
    assert "CPU" in rows["devices seen"]
    assert rows["a step, measured"].endswith("ms (median of the epochs)")
    assert rows["a step, by preflight"].endswith("ms on the device")
    assert float(rows["from there to the end of its first step"].removesuffix(" s")) > 0
    (folder,) = (question.removeprefix("rights in ") for question in rows if question.startswith("rights in "))
    in_pod = re.sub(r"^.*/pod-[^/]+", "", folder)  # On Kubeflow every step writes in a pod of its own.
    assert Path(in_pod).is_relative_to(jobs)
    assert (in_pod == folder) == (target == "vertex")
    assert rows["cache, training of the second run"] == "miss: it was trained again", "these servers keep none"
    assert "train_model succeeded" in rows["second run, steps"]

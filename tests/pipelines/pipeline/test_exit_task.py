"""The task with which a run ends, however it ends."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.components.core.component.test_notification import chat  # noqa: F401
from tests.pipelines.platforms.vertex.test_client import SETTINGS, connect, run
from tests.support.fakes.clock import Clock
from tests.support.fakes.execution import Simulate
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import State
from tpu_components.core.component import notification
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline.compile import compile_pipeline
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.submission.submit import plan_submission

CONFIG = load_config("digits", ["machine=v5e-4"])
MAIL = "vertex-pipelines-notification-email"


def compiled(target, **settings):
    known = {"project": "my-project", "region": "us-central1", "bucket": "gs://my-bucket"} if target == "vertex" else {}
    return next(yaml.safe_load_all(compile_pipeline(CONFIG, PLATFORMS[target], Settings(**known, **settings)).package))


def test_without_the_setting_there_is_no_such_task():
    assert "train-model" in compiled("vertex")["root"]["dag"]["tasks"]


@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_all_steps_are_in_the_group_whose_end_the_task_is_told(target):
    spec = compiled(target, notify="gs://my-bucket/hook.txt", kfp_host="https://kf.example.com/pipeline")
    group, told = spec["root"]["dag"]["tasks"].values()
    inside = spec["components"][group["componentRef"]["name"]]["dag"]["tasks"]
    assert {"create-tfrecords", "preflight-training", "train-model", "evaluate-model"} < inside.keys()
    assert told["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    inputs = told["inputs"]["parameters"]
    assert inputs["status"] == {"taskFinalStatus": {"producerTask": "exit-handler-1"}}
    # KFP's driver fills in a placeholder only where it is the whole input (backend/src/v2/driver/resolve.go).
    assert inputs["run_id"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    assert inputs["page"]["runtimeValue"]["constant"] == "https://kf.example.com/pipeline/#/runs/details/"


def test_vertex_sends_e_mails_by_the_component_that_the_service_knows():
    """Name and inputs are those of google_cloud_pipeline_components/v1/vertex_notification_email/component.py."""
    spec = compiled("vertex", notify="mailto:me@example.com,you@example.com")
    task = spec["root"]["dag"]["tasks"][MAIL]
    assert task["inputs"]["parameters"] == {
        "recipients": {"runtimeValue": {"constant": ["me@example.com", "you@example.com"]}},
        "pipeline_task_final_status": {"taskFinalStatus": {"producerTask": "exit-handler-1"}},
    }
    types = spec["components"][f"comp-{MAIL}"]["inputDefinitions"]["parameters"]
    assert {name: one["parameterType"] for name, one in types.items()} == {
        "recipients": "LIST",
        "pipeline_task_final_status": "TASK_FINAL_STATUS",
    }
    with pytest.raises(InputError, match=r"Expected the setting notify .* to be a webhook.*'mailto:me@example.com'"):
        compiled("kubeflow", notify="mailto:me@example.com")


def test_a_run_on_vertex_is_followed_as_before_and_its_failed_step_is_named(tmp_path, monkeypatch):
    plan = plan_submission(CONFIG, PLATFORMS["vertex"], dataclasses.replace(SETTINGS, notify="gs://my-bucket/hook.txt"))
    clock = Clock()
    with FakeVertex(Simulate(), clock.now) as fake:
        assert run(plan, connect(fake, clock), clock).state is State.SUCCEEDED
    with FakeVertex(Simulate(failures={"train-model": "no such file"}), clock.now) as fake:
        failed = run(plan, connect(fake, clock), clock)
        (job,) = fake.pipeline_jobs
        for name, value in fake.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        told = notification.reasons(job), notification.reasons(f"{job}0"), notification.reasons("run-7")
        assert told == ("train_model: no such file", "", ""), "a job that is gone, and another platform's, have none"
    assert (failed.state, failed.steps["train_model"]) == (State.FAILED, "failed")
    assert "train_model: no such file" in failed.error


_RUN = """
import sys
from kfp import local
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline.exit_task import exit_task
from tpu_pipelines.pipeline.training_pipeline import training_pipeline
from tpu_pipelines.platforms.platform import PLATFORMS
source, address, root = sys.argv[1:]
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=root, raise_on_error=False)
config = load_config({"name": "digits", "data": {"source": source}, "model": "digits_cnn"})
settings = Settings(kfp_host="http://kf", notify=address)
training_pipeline(config, exit_task=lambda: exit_task("digits", PLATFORMS["kubeflow"], settings))()
"""


def test_a_run_whose_step_fails_tells_the_chat(chat, tmp_path):  # noqa: F811
    """Run by KFP's own engine, with the step and the task as they are compiled."""
    words = [sys.executable, "-c", _RUN, "npz:/nowhere/digits.npz", f"{chat.url}/hook", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True, env=os.environ, cwd=Path(__file__).parents[3])
    ((kind, sent),) = chat.got
    assert kind == "application/json"
    first, page = json.loads(json.dumps(sent))["text"].splitlines()
    assert first.startswith("digits failed")
    assert page.startswith("http://kf/#/runs/details/")

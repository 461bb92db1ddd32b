"""The examples that are pipelines: each compiles for both platforms, and runs with kfp.local from start to end."""

import importlib
import json

import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, local
from kfp.kubernetes import kubernetes_executor_config_pb2

from tests.support.cli import PIPELINES, set_environment

EXAMPLES = sorted(path.stem for path in (PIPELINES / "examples").glob("*.py") if path.stem != "__init__")
PINNED = "us-docker.pkg.dev/my-project/images/python@sha256:" + 64 * "0"


def example(name):
    return importlib.import_module(f"tpu_pipelines.examples.{name}")


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    set_environment(monkeypatch, {"TPU_PIPELINES_REGION": "us-west4"})


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_compiles_for_the_platform(name, platform, tmp_path):
    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(example(name).make_pipeline(platform, PINNED), str(path))
    spec, *pods = yaml.safe_load_all(path.read_text())
    executors = spec["deploymentSpec"]["executors"]
    images = {executor["container"]["image"] for executor in executors.values()}
    assert "tpu-pipelines/python:latest" not in images
    assert "tpu" in json.dumps(executors)
    for pod in pods:
        for config in pod["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
            json_format.ParseDict(config, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    assert bool(pods) is (platform == "kubeflow")


@pytest.mark.filterwarnings("ignore:You may be attemping to run a task that uses custom")  # KFP's, of the images.
@pytest.mark.heavy  # Trains, evaluates and exports in processes of their own: a minute each.
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_here(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "outputs"))
    done = example(name).make_pipeline("local")()
    if name == "foreign_training":
        assert done.output > 0.9
    else:
        assert list((tmp_path / "outputs").rglob("model.tflite"))

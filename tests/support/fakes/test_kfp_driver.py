"""Claims about the execution of a compiled pipeline by Kubeflow Pipelines."""

import functools
import json

import pytest
import yaml

from tests.support.fakes import kfp_launcher
from tests.support.fakes.kfp_driver import LAUNCHER, Driver, StepFailedError
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline.compile import compile_pipeline
from tpu_pipelines.platforms.platform import PLATFORMS

STEPS = ("list-source", "create-tfrecords", "preflight-training", "train-model", "evaluate-model", "export-model")


@functools.cache
def compiled_digits():
    """The digits pipeline for Kubeflow, as YAML. Compiled by the first test that runs it, not when tests are listed."""
    return compile_pipeline(load_config("digits", ["machine=v5e-4"]), PLATFORMS["kubeflow"], Settings()).package


class Pods:
    """Takes pods, and answers instead of their launchers: with these parameters, or nothing for failures."""

    def __init__(self, store, promoted=True, failures=0):
        self.store, self.promoted, self.failures, self.seen = store, promoted, failures, []

    def start(self, pod):
        self.seen.append(pod)
        (main,) = pod["spec"]["containers"]
        named = dict(zip(main["command"][2:-1:2], main["command"][3:-1:2], strict=True))
        if self.failures:
            self.failures -= 1
            return
        outputs = json.loads(named["--executor_input"])["outputs"]
        told = kfp_launcher.result_file(self.store, named["--execution_id"])
        told.parent.mkdir(exist_ok=True)
        values = dict.fromkeys(outputs["parameters"], self.promoted)
        artifacts = {key: {"artifacts": [{"metadata": {"of": key}}]} for key in outputs["artifacts"]}
        told.write_text(json.dumps({"code": 0, "parameters": values, "artifacts": artifacts}))

    def input_of(self, task):
        """Return the input of the launcher of a task's pod."""
        (pod,) = (pod for pod in self.seen if f"-{task}-" in pod["metadata"]["name"])
        words = pod["spec"]["containers"][0]["command"]
        return json.loads(words[words.index("--executor_input") + 1])


@pytest.fixture
def pods(tmp_path):
    return Pods(tmp_path)


def drive(pods, compiled=None, **options):
    driver = Driver(compiled or compiled_digits(), pods.store, pods.store / "launcher.py", pods.start, **options)
    driver.run()
    return driver


def names(pods):
    return [pod["metadata"]["name"].removeprefix("training-pipeline-") for pod in pods.seen]


def test_every_step_has_a_pod_after_those_that_it_needs(pods):
    driver = drive(pods, values={"train-model": {"accelerator": "cpu"}})
    assert driver.skipped == []
    started = [name.rpartition("-")[0] for name in names(pods)]
    assert sorted(started) == sorted(STEPS)
    assert started.index("create-tfrecords") < started.index("train-model") < started.index("evaluate-model")
    assert started[-1] == "export-model"
    inputs = pods.input_of("train-model")["inputs"]
    assert (repr(inputs["parameterValues"]["warmup_epochs"]), inputs["parameterValues"]["accelerator"]) == ("1", "cpu")
    (records,) = inputs["artifacts"]["records"]["artifacts"]
    assert records["uri"] == driver.places["create-tfrecords/records"]
    assert records["metadata"] == {"of": "records"}, "as the step before told"
    (pod,) = (pod for pod in pods.seen if "train-model" in pod["metadata"]["name"])
    (main,) = pod["spec"]["containers"]
    assert main["command"][1] == LAUNCHER
    assert main["resources"]["limits"]["google.com/tpu"] == "4"
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2"
    assert pod["spec"]["activeDeadlineSeconds"] == 86400
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_model_that_is_not_promoted_is_not_exported(pods):
    pods.promoted = False
    assert drive(pods).skipped == ["condition-1"]
    assert not any("export" in name for name in names(pods))


def test_a_failed_step_ends_the_run_and_says_which(pods):
    pods.failures = 1
    with pytest.raises(StepFailedError, match=r"failed 1 times: its launcher told nothing"):
        drive(pods)
    assert len(pods.seen) == 1


def test_a_step_is_started_again_as_often_as_its_policy_says(pods):
    spec, platforms = yaml.safe_load_all(compiled_digits())
    for task in spec["root"]["dag"]["tasks"].values():
        task["retryPolicy"] = {"maxRetryCount": 2}
    pods.failures = 2
    drive(pods, yaml.safe_dump_all([spec, platforms]))
    first = names(pods)[:3]
    assert [name[-2:] for name in first] == ["-0", "-1", "-2"]
    assert {"name": "KFP_RETRY_INDEX", "value": "2"} in pods.seen[2]["spec"]["containers"][0]["env"]


def test_what_it_does_not_know_is_refused(pods):
    spec, platforms = yaml.safe_load_all(compiled_digits())
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors["exec-train-model"]["pvcMount"] = [{"mountPath": "/data"}]
    with pytest.raises(NotImplementedError, match=r"\['pvcMount'\]"):
        drive(pods, yaml.safe_dump_all([spec, platforms]))

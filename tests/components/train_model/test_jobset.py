"""A step that trains by a JobSet, through Kubernetes' own client, against a cluster whose pods are processes."""

import contextlib
import copy
import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.support.fakes.kubernetes import FakeKubernetes
from tpu_components.core.base import termination
from tpu_components.core.base.errors import BAD_INPUT, InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.component import command_line
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_components.train_model import TrainParams, TrainResult, heartbeat, jobset
from tpu_components.train_model.jobset import JOBSET_VARIABLE, JobSet, JobSetState, name_jobset, train_on_hosts

_GOOD = "echo trained"


def _manifest(script, restarts=3, seconds=600.0, topology="2x4"):
    hosts = 2
    container = {"name": "train", "image": "steps", "command": ["sh", "-c", script]}
    container["resources"] = {"limits": {"google.com/tpu": "4"}}
    exit_codes = {"containerName": "train", "operator": "In", "values": [2]}
    job = {
        "completions": hosts,
        "parallelism": hosts,
        "backoffLimit": 0,
        "activeDeadlineSeconds": seconds,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": exit_codes}]},
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"cloud.google.com/gke-tpu-topology": topology},
                "containers": [container],
            }
        },
    }
    reasons = ["PodFailurePolicy", "DeadlineExceeded"]
    rule = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": reasons}
    return {
        "metadata": {"generateName": "digits"},
        "spec": {
            "failurePolicy": {"maxRestarts": restarts, "rules": [rule]},
            "replicatedJobs": [{"name": "host", "replicas": 1, "template": {"spec": job}}],
        },
    }


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with FakeKubernetes(tmp_path) as cluster:
        cluster.write_kubeconfig(tmp_path / "kubeconfig", "here")
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
        yield cluster


@pytest.fixture
def find_jobset(cluster):
    """A JobSet by its name, whose connections are closed after the test."""
    with contextlib.ExitStack() as opened:
        yield lambda name="digits-1": opened.enter_context(contextlib.closing(JobSet(name)))


@pytest.fixture
def train(find_jobset):
    """Create a JobSet and follow it until it has ended."""

    def train(script, **options):
        training = find_jobset()
        training.create(_manifest(script, **options))
        training.follow(0.05)
        return training.state()

    return train


def test_what_host_0_prints_is_relayed_once_and_the_last_line_too(train, capfd):
    script = 'echo "host $TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES"; sleep 0.3; echo trained'
    assert train(script) == JobSetState(True, None, restarts=0)
    assert capfd.readouterr().err == "host 0 of 127.0.0.1,127.0.0.1\ntrained\n"


def test_of_a_long_log_only_the_end_is_fetched_and_a_new_log_is_read_from_its_beginning(
    cluster, train, capfd, monkeypatch
):
    monkeypatch.setattr(jobset, "OVERLAP_SECONDS", 0)
    lines = "for i in $(seq 14); do echo line $i; sleep 0.1; done"
    assert train(lines) == JobSetState(True, None, restarts=0)
    assert capfd.readouterr().err == "".join(f"line {i}\n" for i in range(1, 15))
    first, *others = [query for query in cluster.log_queries if query["timestamps"].lower() == "true"]
    assert "sinceSeconds" not in first
    assert {query["sinceSeconds"] for query in others} == {"1"}


def test_lines_of_one_moment_are_printed_once_and_none_is_lost_where_the_node_puts_a_log_away(
    cluster, train, tmp_path, capfd
):
    logs = ["1Z a\n1Z b\n2Z c\n2Z d\n", "2Z c\n2Z d\n2Z e\n", "", "3Z f\n", "2Z e\n3Z f\n4Z \n"]
    answer = cluster.answer

    def answer_with_next_log(verb, target, content=b""):
        if "/log?" not in target:
            return answer(verb, target, content)
        if logs[1:]:
            return 200, logs.pop(0)
        (tmp_path / "read").touch()
        return 200, logs[0]

    cluster.answer = answer_with_next_log
    train(f"until [ -e {tmp_path}/read ]; do sleep 0.05; done")
    assert capfd.readouterr().err == "a\nb\nc\nd\ne\nf\n\n"


def test_a_mistake_is_told_as_the_host_told_it_and_starts_nothing_again(cluster, train):
    with pytest.raises(InputError, match=r"^Training diverged\.$"):
        train("echo 'error: Training diverged.'; exit 2")
    (failed,) = cluster.jobsets.values()
    assert failed.body["status"]["restarts"] == 0


def test_a_lost_host_is_told_and_all_start_again(train, tmp_path, capfd):
    lose = f'[ "$TPU_WORKER_ID" = 0 ] || [ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; echo gone; kill -9 $$; }}'
    assert train(f"{lose}; sleep 0.2; {_GOOD}") == JobSetState(True, None, restarts=1)
    err = capfd.readouterr().err
    assert "host 1 ended with exit code 137: gone\n" in err
    assert "all hosts are being restarted (restart 1)\n" in err


def test_hosts_that_fail_too_often_fail_the_step_with_their_last_words(train):
    with pytest.raises(PlatformError, match=r"jobset digits-1 failed: .*BackoffLimitExceeded.* exit code 1: no luck"):
        train("echo no luck; exit 1", restarts=1)


def _running(cluster):
    pods = [pod for training in cluster.jobsets.values() for pod in training.pods.values()]
    return [pod.name for pod in pods if pod.exit_code() is None]


def test_hosts_whose_time_is_over_end_and_are_not_started_again(cluster, train):
    with pytest.raises(PlatformError, match=r"jobset digits-1 failed: .*DeadlineExceeded"):
        train("exec sleep 60", seconds=0.3)  # A shell that waits for its child would leave it behind.
    (failed,) = cluster.jobsets.values()
    assert failed.body["status"]["restarts"] == 0
    assert _running(cluster) == []


def test_hosts_that_nobody_follows_save_end_and_are_not_started_again_for_long(
    cluster, find_jobset, tmp_path, monkeypatch
):
    """A step that was killed at once can delete nothing."""
    monkeypatch.setattr(heartbeat, "EVERY_SECONDS", 0.1)  # The hosts take their time to start on a busy machine.
    hosts = (
        f"import os, sys, time; os.environ['TPU_PIPELINES_FOLLOWED'] = '{tmp_path}/followed'\n"
        "from tpu_components.core.base import termination\n"
        "from tpu_components.core.base.errors import InputError\n"
        "from tpu_components.train_model import heartbeat\n"
        "heartbeat.LONGEST_SECONDS, heartbeat.EVERY_SECONDS = 1.5, 0.1\n"
        "try:\n"
        "    with termination.heard(), heartbeat.required(): print('begun', flush=True); time.sleep(60)\n"
        "except InputError as error: sys.exit(f'error: {error}' and 2)\n"
        "except termination.Terminated: print('saved', flush=True); raise\n"
    )
    (tmp_path / "hosts.py").write_text(hosts)
    training = find_jobset()
    with heartbeat.beating(tmp_path / "followed"):
        training.create(_manifest(f"exec python3 {tmp_path}/hosts.py"))
        while not any("begun" in path.read_text() for path in tmp_path.glob("*.log")):
            time.sleep(0.02)
        said = (tmp_path / "followed").read_text()
    (tmp_path / "followed").write_text(said)  # It was killed: nothing is tidied up.
    while training.state().failure is None:
        time.sleep(0.05)
    assert _running(cluster) == []
    assert training.state().restarts <= 2
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert (
        "begun\n[train_model] the step that started this training run has stopped, so the training run ends\nsaved\n"
        in logs
    )


def test_a_host_that_finds_nobody_who_follows_does_not_begin(digits_records, tmp_path):
    (tmp_path / "followed").write_text(str(time.time() - 3600))
    environment = {**os.environ, heartbeat.FILE_VARIABLE: str(tmp_path / "followed")}
    flags = ["--records", str(digits_records), "--output", str(tmp_path / "model"), "--model", "digits_cnn"]
    command = [sys.executable, "-m", "tpu_components.train_model", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == BAD_INPUT, "which a JobSet does not start again"
    assert "error: Cannot train: the step that started these hosts has not updated " in done.stderr
    assert not (tmp_path / "model").exists()


def test_hosts_are_told_again_and_again_that_they_are_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_SECONDS", 0.01)
    file = tmp_path / "hosts" / "followed"
    with heartbeat.beating(file):
        first = file.read_text()
        while file.read_text() in ("", first):
            time.sleep(0.01)
    assert not file.exists()


def test_who_starts_it_again_finds_it(cluster, find_jobset):
    for _ in range(2):
        find_jobset().create(_manifest("sleep 60"))
    assert list(cluster.jobsets) == [("default", "digits-1")]
    find_jobset().delete()
    assert find_jobset().state() is None


def _attempt(cluster, monkeypatch, pod, *owners):
    """Be the pod of a step."""
    spec = {"serviceAccountName": "pipeline-runner", "containers": [{"name": "main"}]}
    cluster.pods[pod] = {"metadata": {"name": pod, "ownerReferences": owners}, "spec": spec}
    monkeypatch.setenv("KFP_POD_NAME", pod)


def test_it_belongs_to_the_run_and_may_what_the_step_may(cluster, find_jobset, monkeypatch):
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "digits-x", "uid": "1"}
    _attempt(cluster, monkeypatch, "digits-x-pod", {**workflow, "controller": True})
    find_jobset().create(_manifest(_GOOD))
    created = cluster.jobsets["default", "digits-1"]
    assert created.body["metadata"]["ownerReferences"] == [workflow]
    assert created.job["template"]["spec"]["serviceAccountName"] == "pipeline-runner"


def test_a_cluster_without_jobsets_is_refused_in_a_sentence(cluster, train):
    cluster.jobsets = None
    with pytest.raises(
        InputError, match=r"JobSets are not installed in the cluster \(jobset\.x-k8s\.io/v1alpha2\)\. Install them"
    ):
        train(_GOOD)


@pytest.mark.parametrize(("forbidden", "what"), [("POST .*jobsets", "create"), ("GET .*/pods", "list_pod")])
def test_a_right_that_the_step_lacks_is_named(cluster, train, forbidden, what):
    cluster.forbidden = [forbidden]
    with pytest.raises(InputError, match=rf"may not call {what}.* in namespace default\. Allow it to"):
        train(_GOOD)


def test_what_the_cluster_refuses_is_said_in_its_words(train):
    with pytest.raises(PlatformError, match=r"cluster rejected the request: 400 2 pods of 4 chips are no slice of 2x2"):
        train(_GOOD, topology="2x2")


def test_the_same_training_has_the_same_name_and_no_other(quick):
    ask = {"manifest": _manifest(_GOOD), "shared": "/mnt/a"}
    name = name_jobset(ask, quick, "records")
    assert name == name_jobset(copy.deepcopy(ask), quick, "records")
    assert len({name, name_jobset(ask, quick, "others"), name_jobset({**ask, "shared": "/b"}, quick, "records")}) == 3
    assert name.startswith("digits-")


def test_flags_say_all_parameters(quick):
    stages = tuple(params_from({"epochs": 1, "frozen": ["a", "b"]}, Stage) for _ in range(quick.epochs))
    params = dataclasses.replace(quick, stages=stages, model_parameters={"filters": 8}, ema_decay=1e-9)
    said = command_line.flags_of(params)
    assert '--model-parameters={"filters": 8}' in said
    assert params_from(_parsed(said), TrainParams) == params


def _parsed(words):
    import argparse

    parser = argparse.ArgumentParser()
    command_line.add_params(parser, TrainParams)
    return vars(parser.parse_args(words))


def test_a_step_that_is_started_again_follows_the_hosts_of_before(
    cluster, find_jobset, quick, digits_records, tmp_path, capfd
):
    ask = {"manifest": _manifest(_GOOD), "shared": str(tmp_path / "shared")}
    name = name_jobset(ask, quick, Manifest.load(digits_records).fingerprint)
    folder = tmp_path / "shared" / name
    result = TrainResult(3, 3, "loss", 9, 9, 1.0, 1.0, {}, "jax", "cpu", 2, "float32", 0)
    done = f"sleep 0.3; mkdir -p {folder}/model; echo whole > {folder}/model/weights; echo trained"
    (folder / "records").mkdir(parents=True)
    (folder / "result-0.json").write_text(json.dumps(dataclasses.asdict(result)))
    find_jobset(name).create(_manifest(done))
    assert train_on_hosts(ask, quick, digits_records, tmp_path / "model", poll_seconds=0.05) == result
    assert (tmp_path / "model" / "weights").read_text() == "whole\n"
    assert capfd.readouterr().err.count("trained\n") == 1
    assert (cluster.jobsets, list((tmp_path / "shared").iterdir())) == ({}, [])


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("import sys; print('error: Diverged.', file=sys.stderr); sys.exit(2)", InputError, r"^Diverged\.$"),
        ("raise SystemExit(1)", PlatformError, "jobset .* failed"),
    ],
)
def test_what_hosts_fail_with_is_told_again_to_the_same_run_and_tried_again_by_another(
    cluster, quick, digits_records, tmp_path, monkeypatch, program, error, said
):
    """A cluster may start a step again whatever it failed with."""
    (tmp_path / "tpu_components").mkdir()
    (tmp_path / "tpu_components" / "train_model.py").write_text(program)
    manifest = _manifest(_GOOD, restarts=0)
    (container,) = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "PYTHONPATH", "value": str(tmp_path)}]  # An image whose training only fails.
    ask = {"manifest": manifest, "shared": str(tmp_path / "shared")}
    made = []
    for pod in ("digits-x7-impl-1", "digits-x7-impl-2", "digits-y8-impl-3"):
        _attempt(cluster, monkeypatch, pod)
        with pytest.raises(error, match=said):
            train_on_hosts(ask, quick, digits_records, tmp_path / "model", poll_seconds=0.05)
        made.append(*cluster.jobsets.values())
    assert made[0] is made[1]
    assert made[1] is not made[2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_step_that_is_ended_ends_its_hosts(cluster, quick, digits_records, tmp_path, monkeypatch):
    ask = {"manifest": _manifest(_GOOD), "shared": str(tmp_path / "shared")}
    monkeypatch.setenv(JOBSET_VARIABLE, json.dumps(ask))

    def end():
        while not cluster.jobsets:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    with termination.heard(), pytest.raises(termination.Terminated):
        train_on_hosts(jobset.requested_jobset(), quick, digits_records, tmp_path / "model", poll_seconds=0.05)
    assert cluster.jobsets == {}
    assert not (tmp_path / "model").exists()
    gc.collect()  # SIGTERM may come in the middle of a request, whose connection is then left to the collector.

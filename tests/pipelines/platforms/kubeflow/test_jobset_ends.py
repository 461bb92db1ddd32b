"""What goes on computing on a cluster, and is paid for, once the step that follows several hosts is gone: nothing."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml

from tests.support.fakes import argo
from tests.support.fakes.clock import Clock
from tests.support.fakes.jobsets import JobSet
from tests.support.fakes.kubeflow import FakeKubeflow, Simulate, split_spec
from tests.support.fakes.kubernetes import FakeKubernetes
from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import State
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.train_model import heartbeat
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Retrying
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.submission.submit import plan_submission, submit

# A step as it is compiled, but for the command of its hosts, which only wait.
STEP = textwrap.dedent("""
    import pathlib, sys
    from tpu_components.core.base import termination
    from tpu_components.train_model import TrainParams, jobset
    with_command = jobset._with_command
    def waiting(*arguments):
        manifest = with_command(*arguments)
        jobset._pod(manifest)["containers"][0]["command"] = ["sleep", "600"]
        return manifest
    jobset._with_command = waiting
    with termination.heard():
        jobset.train_on_hosts(jobset.requested_jobset(), TrainParams("digits_cnn"), *map(pathlib.Path, sys.argv[1:]))
    """)


class Following(Simulate):
    """Lets the training's pod be a process, which follows the hosts.

    Attributes:
        seconds: Time that the process has when it is ended.
    """

    def __init__(self, records, output):
        super().__init__(hold=True)
        self.arguments, self.seconds, self.processes = [str(records), str(output)], 1.0, []

    def start_run(self, kubeflow, run_id):
        super().start_run(kubeflow, run_id)
        run = kubeflow.runs[run_id]
        if run.state != "RUNNING" or any(process.poll() is None for process in self.processes):
            return
        container = split_spec(run.pipeline_spec)[0]["deploymentSpec"]["executors"]["exec-train-model"]["container"]
        variables = {one["name"]: one["value"] for one in container["env"]}
        command = [sys.executable, "-c", STEP, *self.arguments]
        environment = {**os.environ, **variables}
        self.processes.append(subprocess.Popen(command, env=environment, start_new_session=True))

    def stop(self, run_id):
        for process in self.processes:
            if process.poll() is None:
                argo.end(process, self.seconds)


class World:
    """A server whose steps follow hosts in a cluster."""

    def __init__(self, cluster, server, clock, settings, plan):
        self.cluster, self.server, self.clock, self.execution = cluster, server, clock, server.execution
        self.kubeflow = Retrying(
            KubeflowClient(dataclasses.replace(settings, kfp_host=server.url), clock.now),
            Backoff(sleep=clock.sleep, clock=clock.seconds),
        )
        self.job_id = submit(plan, self.kubeflow).job_id
        (self.run_id,) = server.runs
        self.wait_for_hosts()

    def wait_for_hosts(self):
        """Wait until the hosts compute, and whoever started them says that it follows."""
        while not self.hosts():
            time.sleep(0.05)

    def hosts(self):
        """The processes of hosts that run."""
        pods = [pod for jobset in list(self.cluster.jobsets.values()) for pod in list(jobset.pods.values())]
        return [pod.process.pid for pod in pods if pod.exit_code() is None]

    def followed(self):
        """When the hosts were last told that they are followed, as they read it."""
        (jobset,) = self.cluster.jobsets.values()
        (trainer,) = jobset.job["template"]["spec"]["containers"]
        (name,) = (one["value"] for one in trainer["env"] if one["name"] == heartbeat.FILE_VARIABLE)
        return Path(name).read_text()

    def left_after_a_minute(self):
        """What runs in the cluster a minute later, on the server's time, and what became of the run."""
        self.clock.sleep(60)
        state = self.kubeflow.get(self.job_id).state
        steps = [process for process in self.execution.processes if process.poll() is None]
        return state, len(steps), len(self.hosts()), len(self.cluster.jobsets)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "records"
    write_records(WriteParams("sklearn:digits", num_workers=1), folder)
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    volume = str(tmp_path_factory.mktemp("volume"))
    return Settings(kfp_host="http://kfp", bucket="gs://b/runs", volumes={"shared": volume})


@pytest.fixture(scope="module")
def make_plan(settings):
    @functools.cache
    def make(machine="v5e-16"):
        overrides = [f"machine={machine}", "training.backend=jax", "preflight=false"]
        return plan_submission(load_config("digits", overrides), PLATFORMS["kubeflow"], settings)

    return make


@pytest.fixture
def make_world(records, settings, no_sign_in, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    clock, execution = Clock(), Following(records, tmp_path / "model")
    with FakeKubernetes(tmp_path) as cluster, FakeKubeflow(execution, clock.now) as server:
        cluster.write_kubeconfig(tmp_path / "kubeconfig", "here")
        yield functools.partial(World, cluster, server, clock, settings)


@pytest.fixture
def world(make_world, make_plan):
    return make_world(make_plan())


def test_of_a_run_that_is_cancelled_nothing_is_left(world):
    world.kubeflow.cancel(world.job_id)
    assert world.left_after_a_minute() == (State.FAILED, 0, 0, 0), "the server calls what was terminated failed"


@pytest.mark.parametrize("policy", ["OnError", "OnFailure", "Always"])
def test_of_a_step_whose_time_is_over_nothing_is_left_and_it_is_not_started_again(world, policy):
    world.server.retry_policy = policy
    world.clock.sleep(24 * 3600 + 1)  # Its pod's activeDeadlineSeconds: the node ends it, and it has failed.
    world.server.preempt(world.run_id)
    assert world.left_after_a_minute() == (State.FAILED, 0, 0, 0)


def test_hosts_whose_time_is_over_are_not_started_again(make_world, make_plan):
    world = make_world(make_plan("{name: v5e-16, timeout_seconds: 2}"))
    (step,) = world.execution.processes
    assert step.wait() != 0, "the JobSet has failed"
    (jobset,) = world.cluster.jobsets.values()
    assert (jobset.body["status"]["restarts"], world.hosts()) == (0, [])


def test_of_a_step_that_is_evicted_nothing_is_left_where_the_cluster_does_not_start_it_again(world):
    world.server.preempt(world.run_id)
    assert world.left_after_a_minute() == (State.FAILED, 0, 0, 0)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_step_that_is_evicted_is_started_again_and_starts_its_hosts_anew(world, is_deleted):
    world.server.retry_policy = "Always"
    before = world.hosts()
    world.server.preempt(world.run_id, is_deleted=is_deleted)
    world.wait_for_hosts()
    assert set(before).isdisjoint(world.hosts())
    assert world.left_after_a_minute() == (State.RUNNING, 1, 4, 1)


def test_a_step_whose_pod_is_deleted_is_started_again_by_kfp_2_17(world):
    world.server.preempt(world.run_id, is_deleted=True)
    world.wait_for_hosts()
    assert world.left_after_a_minute() == (State.RUNNING, 1, 4, 1)


def test_a_step_that_is_lost_at_once_and_started_again_follows_the_same_hosts(world):
    world.server.retry_policy, world.execution.seconds = "Always", 0
    before, said = world.hosts(), world.followed()
    world.server.preempt(world.run_id)
    while world.followed() == said:
        time.sleep(0.05)
    assert world.left_after_a_minute() == (State.RUNNING, 1, 4, 1)
    assert world.hosts() == before
    world.execution.seconds = 1.0


def test_hosts_have_no_proxy_beside_them_which_would_never_end(make_plan, tmp_path):
    spec = next(yaml.safe_load_all(make_plan().jobs[0].package))
    container = spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]
    (ask,) = (json.loads(one["value"]) for one in container["env"] if one["name"] == "TPU_PIPELINES_JOBSET")
    manifest = ask["manifest"]
    (replicated,) = manifest["spec"]["replicatedJobs"]
    (trainer,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    manifest["metadata"]["name"], trainer["command"] = "digits-1", ["true"]
    jobset = JobSet(manifest, tmp_path, injects=True)
    while not jobset.body["status"]["conditions"]:
        time.sleep(0.02)
    assert [one["type"] for one in jobset.body["status"]["conditions"]] == ["Completed"]


def test_hosts_may_ask_the_cluster_nothing(world):
    """The step's account, which they have, may create JobSets."""
    (jobset,) = world.cluster.jobsets.values()
    assert {pod.has_token for pod in jobset.pods.values()} == {False}

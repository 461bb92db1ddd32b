"""Claims about Kubeflow Pipelines, through its real client against a stateful fake."""

import contextlib
import copy
import dataclasses
import functools
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import kfp_server_api as sdk
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from tests.evidence.benchmarks.submissions import Idle
from tests.support.cli import set_environment
from tests.support.fakes.clock import Clock
from tests.support.fakes.google_api import every_one, first_of_each_kind
from tests.support.fakes.kubeflow import FakeKubeflow, RunOnCpu, Simulate, executor_config, node_selectors, outputs
from tests.support.fakes.kubernetes import FakeKubernetes
from tests.support.losing_hosts import HostLoss, arrays
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, OutageError, PlatformError
from tpu_components.core.files import storage
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline.compile import compile_pipeline
from tpu_pipelines.platforms.jobs import FINGERPRINTS, Retrying, State
from tpu_pipelines.platforms.kubeflow.client import MINIMUM_VERSION, KubeflowClient
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.retraining.job_summary import RunFindings
from tpu_pipelines.submission.schedule import change_state, upsert
from tpu_pipelines.submission.submit import plan_submission, submit, wait

SETTINGS = Settings(kfp_host="http://kfp", bucket="gs://my-bucket/runs", labels={"team": "vision"})
MACHINE = "machine={name: v5e-4, max_wait_seconds: 3600, fallbacks: [v6e-4, v5e-8]}"
V5E, V6E = "tpu-v5-lite-podslice", "tpu-v6e-slice"
NIGHTLY = "0 3 * * *"
pytestmark = pytest.mark.usefixtures("no_sign_in")


def make_plan(*overrides):
    return plan_submission(load_config("digits", ["preflight=false", *overrides]), PLATFORMS["kubeflow"], SETTINGS)


@pytest.fixture(scope="module")
def plan():
    return make_plan(MACHINE)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fake(clock):
    with FakeKubeflow(Simulate(), clock.now) as fake:
        yield fake


@pytest.fixture
def kubeflow(fake, clock):
    return connect(fake, clock)


def connect(fake, clock, platform=KubeflowClient, **settings):
    """Kubeflow Pipelines with retries, on the fake's time."""
    settings = dataclasses.replace(SETTINGS, kfp_host=fake.url, **settings)
    return Retrying(platform(settings, clock.now), Backoff(sleep=clock.sleep, clock=clock.seconds))


def run(plan, kubeflow, clock, report=lambda _: None, poll_seconds=60.0):
    """Submit and wait, in no time."""
    return wait(plan, submit(plan, kubeflow), kubeflow, report, poll_seconds, clock.sleep)


def runs(fake):
    """The name of every run, and how it ended."""
    return sorted((one.display_name, one.state) for one in fake.runs.values())


def finish(fake):
    """Let the trainings that run end well, and their pipelines go on."""
    with fake.lock:
        fake.execution.hold = False
        for run_id in fake.runs:
            fake.execution.start_run(fake, run_id)


# Sending


def test_what_is_sent_arrives_as_it_was_compiled(plan, fake, kubeflow, clock):
    end = run(plan, kubeflow, clock)
    assert (end.state, end.result, end.machine, end.name) == (State.SUCCEEDED, "passed", "v5e-4", "digits")
    steps = {"list_source", "create_tfrecords", "train_model", "evaluate_model", "condition_1", "export_model"}
    assert set(end.steps) == steps
    ((run_id, sent),) = fake.runs.items()
    assert sent.display_name == end.job_id == plan.jobs[0].job_id
    assert end.url == f"{fake.url}/#/runs/details/{run_id}"
    assert sent.runtime_config.pipeline_root == "gs://my-bucket/runs"
    assert "team: vision" in sent.description
    assert sent.pipeline_spec["pipeline_spec"] == plan.jobs[0].specifications[0]
    assert node_selectors(sent.pipeline_spec, "train-model") == {
        "cloud.google.com/gke-tpu-accelerator": V5E,
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    assert fake.experiments[sent.experiment_id].display_name == "digits"


_ALL_OF_KUBERNETES = dataclasses.replace(
    SETTINGS,
    environment={"XLA_FLAGS": "--xla_dump_to=/tmp/xla"},
    kueue_queue="tpu-queue",
    notify="gs://my-bucket/hook.txt",
    s3_secret="s3-credentials",
    secrets={"key": "/secrets/key"},
    volumes={"shared": "/mnt/shared"},
    bucket="s3://bucket/runs",
)
_ALL_OF_PIPELINES = (
    *("preflight.max_price_usd=5", "data.source=npz:s3://bucket/digits.npz", "data.engine=fan_out"),
    *("data.engine_tasks=3", "resources.create_tfrecords={disk: 500Gi, retries: 2, timeout: 7200}"),
)


@pytest.mark.parametrize("machine", ["{name: v5e-4, spot: true}", "v5e-16", "l4-1"])
def test_the_oldest_server_knows_all_that_a_pipeline_asks_for(fake, kubeflow, machine):
    oldest = ".".join(map(str, MINIMUM_VERSION))
    overrides = [*_ALL_OF_PIPELINES[machine == "l4-1" :], f"machine={machine}", "training.backend=jax"]
    config = load_config("digits", overrides)
    package = compile_pipeline(config, PLATFORMS["kubeflow"], _ALL_OF_KUBERNETES).package
    job = dataclasses.replace(make_plan(MACHINE).jobs[0], package=package)
    fake.version = f"{oldest}.0"
    fake.execution = Idle()
    kubeflow.create(job)
    fake.version = "2.15.2"
    with pytest.raises(InputError, match=r"unknown field 'securityContext': it is of KFP 2\.16"):
        kubeflow.create(dataclasses.replace(job, job_id="another"))


def test_the_version_of_the_server_is_read_from_either_health_api(fake):
    server = KubeflowClient(dataclasses.replace(SETTINGS, kfp_host=fake.url))
    assert server.version() == "2.17.0"
    fake.is_behind_web_server = True
    assert server.version() == "2.17.0"


def test_a_dry_run_says_exactly_what_is_sent(plan, fake, kubeflow):
    said = kubeflow.describe(plan.jobs[0])
    assert fake.calls == []
    kubeflow.create(plan.jobs[0])
    (call,) = fake.called("run_service_create_run")
    sent = fake.encode(call.request["run"])
    assert {key: sent[key] for key in said} == said


@pytest.mark.parametrize("number", [2, 8])
def test_submits_at_once_give_one_run(plan, fake, clock, number):
    fake.execution = Simulate(hold=True)
    fake.latency_seconds = 0.02
    barrier = threading.Barrier(number)

    def send(_):
        kubeflow = connect(fake, clock)
        barrier.wait()
        return submit(plan, kubeflow).job_id

    with ThreadPoolExecutor(number) as pool:
        assert set(pool.map(send, range(number))) == {plan.jobs[0].job_id}
    assert runs(fake) == [(plan.jobs[0].job_id, "RUNNING")]
    assert len(fake.experiments) == 1


def test_of_two_runs_that_a_killed_process_left_the_older_stays(plan, fake, kubeflow, clock):
    fake.execution = Simulate(hold=True)
    submit(plan, kubeflow)
    (first,) = fake.runs.values()
    clock.sleep(5)
    with fake.lock:
        fake.run_service_create_run({"run": copy.deepcopy(first)})
    assert len(fake.runs) == 2
    assert submit(plan, kubeflow).url.endswith(first.run_id)
    assert list(fake.runs) == [first.run_id]


def test_names_that_differ_in_case_are_different_runs(plan, fake, kubeflow):
    loud = dataclasses.replace(plan.jobs[0], job_id=plan.jobs[0].job_id.upper())
    kubeflow.create(loud)
    assert kubeflow.get(plan.jobs[0].job_id) is None


def test_where_users_have_namespaces_runs_are_found_in_their_own(plan, clock):
    with FakeKubeflow(Simulate(), clock.now, multi_user=True) as fake:
        ours, theirs = (connect(fake, clock, kfp_namespace=name) for name in ("team-a", "team-b"))
        assert run(plan, ours, clock).state is State.SUCCEEDED
        assert theirs.latest("digits") is theirs.get(plan.jobs[0].job_id) is None
        with pytest.raises(InputError, match=r"refused to list runs: Namespace is empty in multi-user mode"):
            submit(plan, connect(fake, clock))


def test_labels_that_a_description_has_no_room_for_are_on_the_pods(fake, clock):
    labels = {f"label-{number}": "x" * 20 for number in range(8)}
    settings = dataclasses.replace(SETTINGS, labels=labels)
    plan = plan_submission(load_config("digits", ["preflight=false", MACHINE]), PLATFORMS["kubeflow"], settings)
    kubeflow = connect(fake, clock, labels=labels)
    kubeflow.create(plan.jobs[0])
    ((_, run),) = fake.runs.items()
    assert "label-0: xxx" in run.description
    assert "label-7" not in run.description
    assert executor_config(run.pipeline_spec, "train-model")["podMetadata"]["labels"] == labels
    found = kubeflow.get(plan.jobs[0].job_id)
    assert (found.name, found.machine, set(found.fingerprints)) == ("digits", "v5e-4", set(FINGERPRINTS))


@pytest.fixture
def fake_of_long_columns(fake):
    """A server on PostgreSQL, which has stored the descriptions of earlier versions."""
    fake.columns["Description"] = 2000
    return fake


def earlier(item):
    """Describe a run or schedule as earlier versions did: by all labels of its job, in one YAML mapping."""
    item.description = yaml.safe_dump(dict(make_plan(MACHINE).jobs[0].labels))


def test_runs_of_earlier_versions_are_found_followed_and_cancelled(plan, fake_of_long_columns, kubeflow, clock):
    fake = fake_of_long_columns
    job = plan.jobs[0]
    fake.execution = Simulate(hold=True)
    kubeflow.create(job)
    ((_, run),) = fake.runs.items()
    earlier(run)
    assert len(run.description) > 255
    found = kubeflow.latest("digits")
    assert found.job_id == kubeflow.get(job.job_id).job_id == job.job_id
    assert (found.name, found.machine, found.digest) == ("digits", "v5e-4", job.labels["tpu_pipelines_digest"])
    assert set(found.fingerprints) == set(FINGERPRINTS)
    assert submit(plan, kubeflow).job_id == job.job_id
    assert len(fake.runs) == 1
    kubeflow.cancel(job.job_id)
    clock.sleep(60)
    assert kubeflow.get(job.job_id).state.is_final


def test_a_duplicate_that_an_earlier_version_started_is_deleted(plan, fake_of_long_columns, kubeflow, clock):
    fake = fake_of_long_columns
    fake.execution = Simulate(hold=True)
    submit(plan, kubeflow)
    (first,) = fake.runs.values()
    clock.sleep(5)
    second = copy.deepcopy(first)
    earlier(second)
    with fake.lock:
        fake.run_service_create_run({"run": second})
    assert submit(plan, kubeflow).url.endswith(first.run_id)
    assert list(fake.runs) == [first.run_id]


def test_a_column_that_is_shorter_than_kfps_is_a_refusal_and_not_tried_again(plan, fake, kubeflow):
    fake.columns["Description"] = 100
    with pytest.raises(InputError, match=r"refused to create run: .*Error 1406.* look for workflows without a run"):
        submit(plan, kubeflow)
    assert len([call for call in fake.calls if call.method == "run_service_create_run"]) == 1


def test_an_experiment_whose_name_differs_in_case_is_named_at_once(plan, fake, kubeflow):
    kubeflow.create(dataclasses.replace(plan.jobs[0], name="Digits", job_id="digits-1"))
    with pytest.raises(InputError, match=r"Cannot use the name 'digits' at .*: the experiment 'Digits' exists"):
        submit(plan, kubeflow)


# Machines that cannot be had


@pytest.mark.parametrize("terminated", ["FAILED", "CANCELED"])
def test_a_machine_that_does_not_come_in_time_is_given_up(plan, fake, kubeflow, clock, terminated):
    fake.scarce, fake.terminated_state = {V5E}, terminated
    seen = []
    end = run(plan, kubeflow, clock, lambda one: seen.append(one.state), poll_seconds=400)
    assert (end.state, end.machine) == (State.SUCCEEDED, "v6e-4")
    assert runs(fake) == [(plan.jobs[0].job_id, terminated), (plan.jobs[1].job_id, "SUCCEEDED")]
    assert State.CANCELLED in seen
    assert 3600 <= sum(clock.slept) < 3600 + 2 * 400
    assert submit(plan, kubeflow).job_id == end.job_id


def test_without_any_other_machine_one_waits_on(plan, fake, kubeflow, clock):
    fake.scarce = {V5E, V6E}

    def report(submission):
        if sum(clock.slept) > 20000:
            fake.scarce = set()
            finish(fake)

    end = run(plan, kubeflow, clock, report, poll_seconds=600)
    assert (end.state, end.machine) == (State.SUCCEEDED, "v5e-8")


def test_a_wait_for_the_machine_ends_when_the_training_begins(plan, fake, clock):
    fake.execution = Simulate(hold=True)
    kubeflow = connect(fake, clock)

    def report(submission):
        assert submission.waited_seconds == 0
        if sum(clock.slept) > 10000:
            finish(fake)

    assert run(plan, kubeflow, clock, report, poll_seconds=600).machine == "v5e-4"


def test_a_failed_step_is_named_and_no_other_machine_tried(plan, fake, clock):
    fake.execution = Simulate(failures=("train-model",))
    end = run(plan, connect(fake, clock), clock)
    assert (end.state, end.error) == (State.FAILED, "train_model failed. See its log for the reason.")
    assert len(fake.runs) == 1


# Machines that are taken away


def test_a_spot_pod_that_is_taken_away_goes_on_elsewhere(fake, kubeflow, clock):
    fake.execution, fake.retry_policy = Simulate(hold=True), "Always"
    plan = make_plan("machine={name: v5e-4, spot: true, timeout_seconds: 36000}")
    submission = submit(plan, kubeflow)
    (run_id,) = fake.runs
    for number in range(5):
        clock.sleep(5 * 3600)
        fake.preempt(run_id, is_deleted=number % 2 == 1)
        assert kubeflow.get(submission.job_id).state is State.RUNNING
    finish(fake)
    assert kubeflow.get(submission.job_id).state is State.SUCCEEDED


@pytest.mark.parametrize(("policy", "is_deleted"), [("OnError", False), ("OnFailure", True)])
def test_without_the_policy_always_a_spot_pod_may_not_be_started_again(fake, kubeflow, policy, is_deleted):
    """That of KFP 2.17 leaves out pods that their node shuts down; the one before, pods that are gone."""
    fake.execution, fake.retry_policy = Simulate(hold=True), policy
    submission = submit(make_plan("machine={name: v5e-4, spot: true}"), kubeflow)
    (run_id,) = fake.runs
    fake.preempt(run_id, is_deleted=not is_deleted)
    assert kubeflow.get(submission.job_id).state is State.RUNNING
    fake.preempt(run_id, is_deleted=is_deleted)
    assert kubeflow.get(submission.job_id).state is State.FAILED


def test_a_spot_pod_that_finds_no_new_machine_is_given_up_for_the_next_one(fake, kubeflow, clock):
    fake.execution, fake.retry_policy = Simulate(hold=True), "Always"
    plan = make_plan("machine={name: v5e-4, spot: true, max_wait_seconds: 3600, fallbacks: [v6e-4]}")
    submission = submit(plan, kubeflow)
    (run_id,) = fake.runs
    fake.scarce = {V5E}
    fake.preempt(run_id)
    assert kubeflow.get(submission.job_id).waited_seconds < 1
    clock.sleep(1800)
    assert kubeflow.get(submission.job_id).waited_seconds == pytest.approx(1800, abs=1)


def test_a_pod_that_is_not_spot_fails_with_its_node(fake, kubeflow, clock):
    fake.execution = Simulate(hold=True)
    submission = submit(make_plan("machine=v5e-4"), kubeflow)
    fake.preempt(next(iter(fake.runs)))
    assert kubeflow.get(submission.job_id).state is State.FAILED


def test_a_step_may_write_to_its_volumes(fake, clock):
    """A fresh disk is root's, and the image's user is not."""
    settings = dataclasses.replace(SETTINGS, volumes={"checkpoints": "/mnt/checkpoints"}, kfp_host=fake.url)
    overrides = ["machine=v5e-4", "preflight=false", "resources.create_tfrecords={disk: 500Gi}"]
    plan = plan_submission(load_config("digits", overrides), PLATFORMS["kubeflow"], settings)
    kubeflow = connect(fake, clock, volumes=settings.volumes)
    assert submit(plan, kubeflow).state is not State.FAILED
    assert runs(fake) == [(plan.jobs[0].job_id, "SUCCEEDED")]


# A server that fails


@pytest.mark.parametrize("status", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL"])
def test_a_storm_of_errors_is_waited_out(plan, fake, kubeflow, clock, status):
    fake.fail_next(7, status)
    assert run(plan, kubeflow, clock).state is State.SUCCEEDED
    assert len(fake.called("run_service_create_run")) == 1
    assert sum(clock.slept) > 60


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("PERMISSION_DENIED", ".*Ask for the role kubeflow-edit in the namespace, and check kfp_namespace"),
        ("INVALID_ARGUMENT", ""),
    ],
)
def test_a_refusal_is_not_tried_again(plan, fake, kubeflow, clock, status, hint):
    fake.fail_next(1, status, "run_service_create_run")
    refused = r"at http.* refused to create run: Injected into run_service_create_run"
    with pytest.raises(InputError, match=refused + hint):
        run(plan, kubeflow, clock)
    assert [call.method for call in fake.calls].count("run_service_create_run") == 1
    assert clock.slept == []
    assert fake.runs == {}


def test_a_server_that_stays_away_is_an_error_that_loses_nothing(plan, fake, clock):
    fake.execution = Simulate(hold=True)
    kubeflow = connect(fake, clock)
    submission = submit(plan, kubeflow)
    fake.fail_next(1000, "UNAVAILABLE")
    with pytest.raises(
        PlatformError,
        match=r"Gave up after .* s\. Last error: Kubeflow Pipelines at .* cannot list runs at the moment: 503",
    ):
        wait(plan, submission, kubeflow, sleep=clock.sleep)
    fake.recover()
    finish(fake)
    assert run(plan, kubeflow, clock).url == submission.url


def test_a_server_that_goes_away_and_comes_back_is_waited_for(plan, fake, clock):
    fake.execution = Simulate(hold=True)
    downs = []

    def sleep(seconds):
        clock.sleep(seconds)
        downs.append(seconds)
        if len(downs) == 2:
            fake.go_down()
        if len(downs) == 6:
            fake.come_back()
            finish(fake)

    platform = KubeflowClient(dataclasses.replace(SETTINGS, kfp_host=fake.url), clock.now)
    kubeflow = Retrying(platform, Backoff(sleep=sleep, clock=clock.seconds))
    assert wait(plan, submit(plan, kubeflow), kubeflow, sleep=sleep).state is State.SUCCEEDED
    assert len(fake.runs) == 1


class Killed(BaseException):
    pass


class Mortal(KubeflowClient):
    """Dies right after a request."""

    requests_left = 0

    def _call(self, *arguments, **options):
        result = super()._call(*arguments, **options)
        self.requests_left -= 1
        if self.requests_left == 0:
            raise Killed
        return result


@contextlib.contextmanager
def story():
    """A run whose first machine does not come and whose second trains."""
    clock = Clock()
    with FakeKubeflow(Simulate(), clock.now) as fake:
        fake.scarce = {V5E}
        yield fake, clock


def assert_end_of_story(plan, fake):
    assert runs(fake) == [(plan.jobs[0].job_id, "FAILED"), (plan.jobs[1].job_id, "SUCCEEDED")]


@pytest.mark.parametrize("fault", ["before", "after", "halfway", "UNAVAILABLE"])
@pytest.mark.parametrize("which", [first_of_each_kind, pytest.param(every_one, marks=pytest.mark.slow)])  # 5 s a fault.
def test_whichever_request_is_lost_nothing_is_created_twice_or_forgotten(plan, fault, which):
    """Each of these requests of the run, one at a time, meets the fault."""
    with story() as (fake, clock):
        run(plan, connect(fake, clock), clock, poll_seconds=1200)
        skips = which(fake.calls)
        assert_end_of_story(plan, fake)
    assert len(skips) > 3
    for skip in skips:
        with story() as (fake, clock):
            if fault.isupper():
                fake.fail_next(1, fault, skip=skip)
            else:
                fake.drop_next(1, fault, skip=skip)
            end = run(plan, connect(fake, clock), clock, poll_seconds=1200)
            assert (end.state, end.machine) == (State.SUCCEEDED, "v6e-4"), skip
            assert_end_of_story(plan, fake)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_whenever_the_waiting_process_dies_the_next_one_goes_on(plan, stride):
    """Whoever waits dies right after a request of the run: every fifth of them, or each, one at a time."""
    died = 1
    while died:
        with story() as (fake, clock):
            mortal = connect(fake, clock, Mortal)
            mortal.client.requests_left = died
            try:
                run(plan, mortal, clock, poll_seconds=1200)
            except Killed:
                died += stride
                assert run(plan, connect(fake, clock), clock, poll_seconds=1200).state is State.SUCCEEDED
            else:
                assert died > 15
                died = 0
            assert_end_of_story(plan, fake)


# Signing in


@pytest.fixture
def token(fake, tmp_path, monkeypatch):
    """A file with a token, as Kubernetes renews it; call it to renew it."""
    path = tmp_path / "token"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(path))
    fake.require_tokens()

    def renew():
        path.write_text(fake.exchange_token()["access_token"])

    renew()
    return renew


def test_a_token_that_is_renewed_while_waiting_is_used(plan, fake, clock, token):
    fake.execution = Simulate(hold=True)
    looks = []

    def report(submission):
        looks.append(submission.state)
        if len(looks) == 2:
            fake.expire_tokens()
            token()
        if len(looks) == 4:
            finish(fake)

    assert run(plan, connect(fake, clock), clock, report).state is State.SUCCEEDED
    assert {call.token for call in fake.calls if call.status == 200} == {"token-1", "token-2"}
    assert len(fake.runs) == 1


def test_a_sign_in_that_is_refused_once_is_made_anew(plan, fake, kubeflow, clock):
    submission = submit(plan, kubeflow)
    fake.fail_next(1, "UNAUTHENTICATED", "run_service_list_runs")
    assert kubeflow.get(submission.job_id).url == submission.url
    assert clock.slept == []
    assert len(fake.called("healthz_service_get_healthz")) == 2  # A new client asks.


def test_a_token_that_is_refused_for_good_is_an_error(plan, fake, clock, token):
    fake.expire_tokens()
    with pytest.raises(InputError, match=r"the sign-in is not valid, or has expired .*KF_PIPELINES_SA_TOKEN_PATH"):
        submit(plan, connect(fake, clock))
    assert clock.slept == []


def test_a_token_that_cannot_be_read_is_an_error(plan, fake, kubeflow, monkeypatch, tmp_path):
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"the token cannot be read .*none.* Check KF_PIPELINES_SA_TOKEN_PATH"):
        submit(plan, kubeflow)


def test_a_page_to_sign_in_at_is_not_taken_for_an_answer(plan):
    class SignIn(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>Sign in</html>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SignIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kubeflow = KubeflowClient(dataclasses.replace(SETTINGS, kfp_host=f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(
            InputError, match=r"does not respond like Kubeflow Pipelines: .* received text/html.* Check kfp_host"
        ):
            kubeflow.create(plan.jobs[0])
        server.shutdown()


def test_no_message_and_no_address_shows_the_credentials_of_a_server(plan, fake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"http://me:top%2Fsecret@127.0.0.1:{taken.getsockname()[1]}/pipeline"
    kubeflow = KubeflowClient(dataclasses.replace(SETTINGS, kfp_host=host))
    with pytest.raises(OutageError, match=r"Kubeflow Pipelines at http://\*\*\*@127\.0\.0\.1:\d+/pipeline") as caught:
        kubeflow.create(plan.jobs[0])
    assert "secret" not in str(caught.value)
    signed_in = dataclasses.replace(SETTINGS, kfp_host=fake.url.replace("://", "://me:top%2Fsecret@"))
    assert submit(plan, Retrying(KubeflowClient(signed_in))).url.startswith(f"{fake.url}/#/runs/")
    with pytest.raises(InputError, match=r"Received: 'ftp://\*\*\*@host'"):
        dataclasses.replace(SETTINGS, kfp_host="ftp://me:secret@host")


# Looking and cancelling


def test_a_run_is_found_by_its_name_and_by_its_id(plan, fake, kubeflow, clock):
    assert kubeflow.latest("digits") is None
    first = submit(plan, kubeflow).job_id
    assert kubeflow.latest("digits").job_id == kubeflow.latest(first).job_id == first
    clock.sleep(1)
    second = submit(plan, kubeflow, again=True).job_id
    assert second == f"{first}-r2"
    assert kubeflow.latest("digits").job_id == second
    assert kubeflow.latest('di"gits') is None


@pytest.mark.parametrize("terminated", ["FAILED", "CANCELED"])
def test_a_run_is_cancelled_and_one_that_has_ended_is_left(plan, fake, clock, terminated):
    fake.terminated_state = terminated
    fake.execution = Simulate(hold=True)
    kubeflow = connect(fake, clock)
    job_id = submit(plan, kubeflow).job_id
    kubeflow.cancel(job_id)
    assert kubeflow.get(job_id).state is State.RUNNING, "it is being cancelled"
    kubeflow.cancel(job_id)
    clock.sleep(fake.canceling_seconds)
    assert kubeflow.get(job_id).state.is_final
    kubeflow.cancel(job_id)
    assert len(fake.called("run_service_terminate_run")) == 1
    with pytest.raises(InputError, match=r"Cannot cancel 'digits-none' at http.*: there is no run with this name"):
        kubeflow.cancel("digits-none")


def test_a_run_that_ends_while_it_is_cancelled_is_left(plan, clock):
    class Late(FakeKubeflow):
        def run_service_terminate_run(self, request):
            finish(self)
            super().run_service_terminate_run(request)

    with Late(Simulate(hold=True), clock.now) as fake:
        kubeflow = connect(fake, clock)
        job_id = submit(plan, kubeflow).job_id
        kubeflow.cancel(job_id)
        assert kubeflow.get(job_id).state is State.SUCCEEDED


def test_a_failed_run_that_is_retried_there_goes_on(plan, fake, clock):
    fake.execution = Simulate(failures=("evaluate-model",))
    kubeflow = connect(fake, clock)
    assert run(plan, kubeflow, clock).state is State.FAILED
    fake.execution.failures = ()
    (run_id,) = fake.runs
    fake.run_service_retry_run({"run_id": run_id})  # As somebody does in the UI.
    assert run(plan, kubeflow, clock).state is State.SUCCEEDED


# Schedules


@pytest.fixture
def backoff(clock):
    return Backoff(sleep=clock.sleep, clock=clock.seconds)


def test_a_schedule_is_created_once_and_then_left(plan, fake, kubeflow, backoff):
    scheduler = kubeflow.client
    first = upsert(scheduler, plan.jobs[0], NIGHTLY, backoff)
    assert (first.action, first.schedule.is_paused) == ("created", False)
    assert "+cron: 0 3 * * *" in first.difference
    again = upsert(scheduler, plan.jobs[0], NIGHTLY, backoff)
    assert (again.action, again.difference) == ("unchanged", "")
    (one,) = fake.recurring_runs.values()
    assert (one.trigger.cron_schedule.cron, one.max_concurrency, one.no_catchup) == ("0 0 3 * * *", "1", True)
    assert first.schedule.url == f"{fake.url}/#/recurringrun/details/{one.recurring_run_id}"
    assert fake.fire(one.recurring_run_id).pipeline_spec["pipeline_spec"] == plan.jobs[0].specifications[0]
    assert scheduler.latest("digits").state is State.SUCCEEDED


def test_a_change_puts_a_schedule_in_the_place_of_the_old_and_tells(plan, fake, kubeflow, backoff):
    scheduler = kubeflow.client
    upsert(scheduler, plan.jobs[0], NIGHTLY, backoff)
    change = upsert(scheduler, make_plan("machine=v5e-8").jobs[0], "TZ=Europe/Berlin 0 4 * * 1-5", backoff)
    assert (change.action, change.schedule.is_paused, change.duplicates) == ("updated", False, ())
    lines = change.difference.splitlines()
    assert "-cron: 0 3 * * *" in lines
    assert "+cron: TZ=Europe/Berlin 0 4 * * 1-5" in lines
    assert "+  tpu_pipelines_machine: v5e-8" in lines
    (one,) = fake.recurring_runs.values()
    assert one.trigger.cron_schedule.cron == "TZ=Europe/Berlin 0 0 4 * * 1-5"


def test_a_schedule_of_an_earlier_version_is_left_and_replaced(plan, fake_of_long_columns, kubeflow, backoff):
    fake = fake_of_long_columns
    scheduler = kubeflow.client
    upsert(scheduler, plan.jobs[0], NIGHTLY, backoff)
    ((_, one),) = fake.recurring_runs.items()
    earlier(one)
    assert upsert(scheduler, plan.jobs[0], NIGHTLY, backoff).action == "unchanged"
    assert upsert(scheduler, plan.jobs[0], "0 4 * * *", backoff).action == "updated"
    (one,) = fake.recurring_runs.values()
    assert (one.mode, len(one.description) <= 255) == ("ENABLE", True)


@pytest.mark.parametrize("marked", [False, True])
def test_a_replacement_that_an_earlier_version_began_is_ended(
    plan, fake_of_long_columns, kubeflow, backoff, clock, marked
):
    fake = fake_of_long_columns
    scheduler = kubeflow.client
    job = plan.jobs[0]
    upsert(scheduler, dataclasses.replace(job, package="root: {dag: {tasks: {}}}"), NIGHTLY, backoff)
    ((old, _),) = fake.recurring_runs.items()
    scheduler.pause_schedule(old)
    clock.sleep(60)
    begun = scheduler.create_schedule(job, "0 4 * * *").schedule_id
    scheduler.pause_schedule(begun)
    earlier(fake.recurring_runs[begun])
    fake.recurring_runs[begun].description += "tpu_pipelines_to_be_enabled: 'true'\n" * marked
    upsert(scheduler, job, "0 4 * * *", backoff)
    assert list(fake.recurring_runs) == [begun]
    assert fake.recurring_runs[begun].mode == ("ENABLE" if marked else "DISABLE")


@pytest.mark.parametrize("name", ["ü-boot", "_-x"])
def test_a_name_that_no_object_of_the_cluster_may_have_is_not_scheduled(plan, fake, kubeflow, backoff, name):
    job = dataclasses.replace(plan.jobs[0], name=name)
    with pytest.raises(InputError, match=rf"Cannot schedule {name!r} on Kubeflow: .* Expected a letter from a to z"):
        upsert(kubeflow.client, job, NIGHTLY, backoff)
    assert fake.called("recurring_run_service_create_recurring_run") == []


def test_a_schedule_is_paused_resumed_and_deleted(plan, fake, kubeflow, backoff):
    scheduler = kubeflow.client
    job = plan.jobs[0]
    upsert(scheduler, job, NIGHTLY, backoff)
    change_state(Retrying(scheduler, backoff), "digits", "pause")
    assert upsert(scheduler, job, "0 4 * * *", backoff).schedule.is_paused  # A change does not wake it.
    (one,) = fake.recurring_runs
    assert fake.fire(one) is None
    change_state(Retrying(scheduler, backoff), "digits", "resume")
    assert fake.fire(one) is not None
    change_state(Retrying(scheduler, backoff), "digits", "delete")
    assert fake.recurring_runs == {}
    with pytest.raises(InputError, match=r"Cannot pause the schedule of 'digits': there is no such schedule"):
        change_state(Retrying(scheduler, backoff), "digits", "pause")


def test_of_many_who_create_a_schedule_at_once_one_stays(plan, fake, clock):
    fake.latency_seconds = 0.02
    barrier = threading.Barrier(6)

    def create(_):
        scheduler = connect(fake, clock).client
        barrier.wait()
        upsert(scheduler, plan.jobs[0], NIGHTLY)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(create, range(6)))
    assert len(fake.recurring_runs) == 1


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("fault", ["after", "UNAVAILABLE", "killed"])
def test_whenever_a_change_breaks_off_there_is_one_schedule_in_the_end_and_never_two_active(plan, fault, paused):
    job, skip = dataclasses.replace(plan.jobs[0], package="root: {dag: {tasks: {}}}"), 0
    while skip >= 0:
        clock = Clock()
        with FakeKubeflow(Simulate(), clock.now) as fake:
            backoff = Backoff(sleep=clock.sleep, clock=clock.seconds)
            upsert(connect(fake, clock).client, job, NIGHTLY, backoff)
            if paused:
                change_state(Retrying(connect(fake, clock).client, backoff), "digits", "pause")
            clock.sleep(60)
            before = len(fake.calls)
            mortal = connect(fake, clock, Mortal).client
            if fault == "killed":
                mortal.requests_left = skip + 1
            elif fault == "after":
                fake.drop_next(1, fault, skip=skip)
            else:
                fake.fail_next(1, fault, skip=skip)
            with contextlib.suppress(Killed):
                upsert(mortal, job, "0 4 * * *", backoff)
            assert sum(one.mode == "ENABLE" for one in fake.recurring_runs.values()) <= 1
            done = len(fake.calls) - before
            upsert(connect(fake, clock).client, job, "0 4 * * *", backoff)
            (one,) = fake.recurring_runs.values()
            assert one.trigger.cron_schedule.cron == "0 0 4 * * *"
            assert one.mode == ("DISABLE" if paused else "ENABLE"), skip
        skip = skip + 1 if skip < done else -1
    assert done > 5


def test_what_is_no_cron_expression_there_is_refused_in_the_servers_words(plan, fake, kubeflow, backoff):
    with pytest.raises(InputError, match=r"refused to create recurring run: Schedule cron is not a supported format"):
        upsert(kubeflow.client, plan.jobs[0], "0 3 * *", backoff)


# The command line


@pytest.fixture
def environment(fake, monkeypatch):
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # Nobody is signed in to Google Cloud: the image is not asked for.
    image = f"europe-docker.pkg.dev/p/r/i@sha256:{'0' * 64}"
    set_environment(monkeypatch, {"TPU_PIPELINES_KFP_HOST": fake.url, "TPU_PIPELINES_IMAGE": image})


SUBMIT = ("submit", "digits", "--target", "kubeflow", "--set", "machine=v5e-4")


def test_submit_waits_and_says_what_came_of_it(fake, environment, token, capfd):
    code = main([*SUBMIT, "--wait", "--poll-seconds", "0.01", "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    said = json.loads(out)
    assert (said["state"], said["machine"], said["passed_gate"], said["promoted"]) == (
        "succeeded",
        "v5e-4",
        True,
        False,
    )
    assert f"succeeded on v5e-4, {fake.url}/#/runs/details/" in err
    assert "token-1" not in out + err
    assert main(["status", "digits", "--target", "kubeflow"]) == 0
    assert capfd.readouterr().out.startswith(f"{said['job_id']}: succeeded, to train on v5e-4\n")
    assert main(["cancel", said["job_id"], "--target", "kubeflow"]) == 0
    assert capfd.readouterr().out == f"{said['job_id']}: already succeeded\n"
    assert main(["status", "digit", "--target", "kubeflow"]) == 2
    assert f"There is no run 'digit' with kfp_host {fake.url}: expected" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("execution", "code"), [(Simulate(promote=False), 3), (Simulate(failures=("train-model",)), 1)]
)
def test_the_exit_code_says_how_a_run_ended(fake, environment, capfd, execution, code):
    fake.execution = execution
    assert main([*SUBMIT, "--wait", "--poll-seconds", "0.01"]) == code
    assert main(["status", "digits", "--target", "kubeflow"]) == code


def test_retrain_runs_what_has_changed_and_says_what(fake, environment, capfd, tmp_path):
    command = ["retrain", *SUBMIT[1:], "--workspace", str(tmp_path), "--wait", "--poll-seconds", "0.01", "--json"]

    def retrain(*arguments):
        code = main([*command, *arguments])
        said = json.loads(capfd.readouterr().out)
        return code, said["retrain"]["needed"], said["retrain"]["changed"], said["job_id"]

    code, needed, _, first = retrain()
    assert (code, needed) == (0, True)
    assert retrain() == (0, False, [], first)
    code, needed, changed, second = retrain("--set", "training.epochs=31")
    assert (code, needed, changed) == (0, True, ["configuration"])
    assert second != first


def test_a_dry_run_prints_the_runs_and_sends_none(fake, environment, capfd):
    assert main([*SUBMIT[:4], "--set", MACHINE, "--set", "preflight=false", "--dry-run", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert ["tpu_pipelines_machine: v6e-4" in one["description"] for one in said] == [False, True, False]
    assert fake.calls == []


def test_the_schedule_command_prints_what_changes(fake, environment, capfd):
    command = ["schedule", "digits", "--target", "kubeflow", "--set", "machine=v5e-4"]
    assert main([*command, "--cron", NIGHTLY]) == main([*command, "--cron", NIGHTLY]) == 0
    assert "digits: unchanged, next run unknown" in capfd.readouterr().out
    assert main([*command, "--pause"]) == 0
    assert main([*command, "--cron", "0 4 * * *"]) == 0
    assert "digits: updated, paused" in capfd.readouterr().out
    assert main([*command, "--delete"]) == 0
    assert fake.recurring_runs == {}


def test_a_server_that_stays_away_is_no_stack_trace(environment, capfd, monkeypatch):
    monkeypatch.setattr(Backoff, "__init__", functools.partialmethod(Backoff.__init__, patience_seconds=0))
    monkeypatch.setenv("TPU_PIPELINES_KFP_HOST", "http://127.0.0.1:1")
    assert main(["status", "digits", "--target", "kubeflow"]) == 1
    err = capfd.readouterr().err
    assert "error: Gave up after 0 s. Last error: Kubeflow Pipelines at http://127.0.0.1:1 cannot be reached" in err
    assert "Traceback" not in err


def test_a_server_whose_name_does_not_exist_is_a_mistake_and_no_outage(monkeypatch):
    """It is not tried again for a quarter of an hour."""

    def resolve(host, *_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    platform = KubeflowClient(Settings(kfp_host="https://kubeflow.example.com/pipeline"))
    with pytest.raises(InputError, match=r"The host name in https://kubeflow\.example\.com/pipeline does not exist"):
        platform.get("run")


def test_missing_settings_are_named_before_anything_slow_is_imported():
    code = (
        "import sys; from tpu_pipelines.cli import main\n"
        "code = main(['submit', 'digits', '--target', 'kubeflow'])\n"
        "import tpu_pipelines.platforms.kubeflow.client\n"
        "print(code, [m for m in ('kfp', 'kfp_server_api', 'kubernetes', 'urllib3') if m in sys.modules])"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TPU_PIPELINES_KFP")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "2 []\n"
    assert "Missing settings: kfp_host. Set them in the environment" in done.stderr


@pytest.mark.slow  # Three processes, each of which compiles: 10 s.
def test_processes_that_submit_at_once_and_die_while_they_wait_leave_one_run(fake, environment):
    fake.execution = Simulate(hold=True)
    command = [sys.executable, "-m", "tpu_pipelines.cli", *SUBMIT, "--wait", "--poll-seconds", "0.1", "--json"]
    start = functools.partial(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def looks():
        return len(fake.called("run_service_get_run"))

    first, second = start(), start()
    while looks() < 8:
        time.sleep(0.05)
    for process in (first, second):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    third, seen = start(), looks()
    while looks() < seen + 4:
        time.sleep(0.05)
    finish(fake)
    out, err = third.communicate()
    assert third.returncode == 0, err
    assert json.loads(out)["state"] == "succeeded"
    assert len(fake.runs) == 1


# The fake


def test_the_fake_refuses_what_is_no_run(fake):
    client = sdk.ApiClient(sdk.Configuration(host=fake.url))
    with pytest.raises(sdk.ApiException, match=r"display_name is required"):
        sdk.RunServiceApi(client).run_service_create_run(sdk.V2beta1Run(pipeline_spec={"root": {}}))
    with pytest.raises(sdk.ApiException, match=r"V2beta1Run has no field \['labels'\]"):
        client.call_api("/apis/v2beta1/runs", "POST", body={"labels": {}}, response_type="V2beta1Run")


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        ({"pvcMount": [{"constant": "my.claim", "mountPath": "/mnt"}]}, "no DNS label"),
        ({"secretAsVolume": [{"secretName": "s" * 64, "mountPath": "/mnt"}]}, "no DNS label"),
        ({"pvcMount": [{"constant": "claim", "mountPath": "/mnt:ro"}]}, "a colon"),
        (
            {
                "pvcMount": [{"constant": "a", "mountPath": "/mnt"}],
                "secretAsVolume": [{"secretName": "b", "mountPath": "/mnt/"}],
            },
            "there twice",
        ),
        ({"pvcMount": [{"constant": "gcs-scratch", "mountPath": "/mnt"}]}, "there twice"),
    ],
)
def test_the_fake_refuses_what_no_pod_could_mount(plan, fake, kubeflow, mounts, message):
    spec, platform = copy.deepcopy(plan.jobs[0].specifications)
    platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-model"].update(mounts)
    with pytest.raises(InputError, match=message):
        kubeflow.create(dataclasses.replace(plan.jobs[0], package=yaml.safe_dump_all([spec, platform])))


# For real


@pytest.fixture
def digits_on_s3(s3_server, tmp_path):
    """The digits in a bucket that speaks S3."""
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", x=digits.images.astype(np.uint8) * 15, y=digits.target)
    storage.upload(tmp_path / "digits.npz", "s3://bucket/digits.npz")
    return "npz:s3://bucket/digits.npz"


def test_a_pod_whose_secret_is_not_there_does_not_start(digits_on_s3, fake, kubeflow):
    settings = dataclasses.replace(SETTINGS, s3_secret="s3-credentials")
    overrides = [f"data.source={digits_on_s3}", "machine=v5e-4", "preflight=false"]
    plan = plan_submission(load_config("digits", overrides), PLATFORMS["kubeflow"], settings)
    kubeflow.create(plan.jobs[0])
    ((run_id, run),) = fake.runs.items()
    waiting = [node for node in run.run_details.task_details if node.state == "PENDING"]
    assert [(node.display_name, node.parent_task_id) for node in waiting] == [("executor", "list-source")]
    fake.secrets["s3-credentials"] = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
    fake.execution.start_run(fake, run_id)
    assert runs(fake) == [(plan.jobs[0].job_id, "SUCCEEDED")]


@pytest.mark.slow  # Runs the digits pipeline for real: half a minute.
def test_a_submitted_pipeline_trains_and_promotes(digits_on_s3, tmp_path):
    """Its data are on S3, to which only pods sign in that have the secret."""
    overrides = ("machine=v5e-4", "training.epochs=2", "gate.minimum={}", "export.calibration_examples=50")
    settings = dataclasses.replace(SETTINGS, s3_secret="s3-credentials")
    config = load_config("digits", [*overrides, "preflight=false", f"data.source={digits_on_s3}"])
    plan = plan_submission(config, PLATFORMS["kubeflow"], settings)
    with FakeKubeflow(RunOnCpu(tmp_path, stored=("evaluate-model",))) as fake:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION")
        fake.secrets["s3-credentials"] = {name: os.environ[name] for name in names}
        settings = dataclasses.replace(settings, kfp_host=fake.url, bucket="s3://bucket/runs")
        kubeflow = Retrying(KubeflowClient(settings))
        end = wait(plan, submit(plan, kubeflow), kubeflow, poll_seconds=0.5)
        findings = RunFindings.of_job(end, kubeflow, config, settings)
        (run_id,) = fake.runs
        assert (end.state, end.result) == (State.SUCCEEDED, "passed"), (tmp_path / f"{run_id}.log").read_text()[-3000:]
    (evaluation,) = outputs(tmp_path, run_id, "evaluation.json")
    assert json.loads(evaluation.read_text())["challenger"]["accuracy"] > 0.5
    assert findings.evaluation == Evaluation.load(evaluation.parent)
    (export,) = outputs(tmp_path, run_id, "export.json")
    assert (export.parent / "model.tflite").is_file()


@pytest.mark.slow  # Two runs, each with four processes that train: three minutes on 2 idle cores.
@pytest.mark.timeout(1800)
def test_a_jobset_of_four_hosts_trains_and_survives_losing_one(tmp_path, monkeypatch):
    overrides = ("machine=v5e-16", "preflight=false", "gate.minimum={}", "export.calibration_examples=50")
    training = {"backend": "jax", "batch_size_per_replica": 16, "epochs": 20, "learning_rate": 0.002}
    training |= {"learning_rate_scaling": "none", "checkpoint_seconds": 0.2}
    overrides += ("model.parameters={filters: 8, units: 32}", *(f"training.{k}={v}" for k, v in training.items()))
    settings = dataclasses.replace(SETTINGS, volumes={"shared": str(tmp_path / "volume")})
    results, weights, restarts = {}, {}, {}
    (tmp_path / "pods").mkdir()
    with FakeKubernetes(tmp_path / "pods") as cluster, FakeKubeflow(RunOnCpu(tmp_path / "runs")) as fake:
        cluster.write_kubeconfig(tmp_path / "kubeconfig", "here")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

        def lose():
            (jobset,) = cluster.jobsets.values()
            restarts["lost"] = jobset.body["status"]
            jobset.host(2).process.kill()

        loss = HostLoss(tmp_path / "volume" / "lost", lose)
        kubeflow = Retrying(KubeflowClient(dataclasses.replace(settings, kfp_host=fake.url)))
        for name in ("whole", "lost"):
            plan = plan_submission(load_config("digits", [f"name={name}", *overrides]), PLATFORMS["kubeflow"], settings)
            end = wait(plan, submit(plan, kubeflow), kubeflow, poll_seconds=0.5)
            run_id = list(fake.runs)[-1]
            log = (tmp_path / "runs" / f"{run_id}.log").read_text()
            assert (end.state, end.result) == (State.SUCCEEDED, "passed"), log[-5000:]
            (path,) = outputs(tmp_path / "runs", run_id, "last.weights.h5")
            weights[name] = arrays(path)
            results[name] = json.loads((path.parent / "model.json").read_text())["training"]
            (evaluation,) = outputs(tmp_path / "runs", run_id, "evaluation.json")
            assert json.loads(evaluation.read_text())["challenger"]["accuracy"] > 0.9
            assert outputs(tmp_path / "runs", run_id, "export.json")
            assert cluster.jobsets == {}, "what is done is removed"
    print(restarts, {name: (one["sessions"], one["goodput"]) for name, one in results.items()}, loss.lost_at)
    assert "all hosts are being restarted (restart 1)" in log
    assert loss.lost_at >= 5
    assert restarts["lost"]["restarts"] == 1
    assert [results[name]["sessions"] for name in ("whole", "lost")] == [1, 2]
    assert results["whole"]["num_replicas"] == results["lost"]["num_replicas"] == 4
    assert weights["lost"] == weights["whole"]
    assert not list((tmp_path / "volume").rglob("hosts/*/*")), "nothing is left beside checkpoints"

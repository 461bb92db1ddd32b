"""Claims about Vertex AI, through its real client against a stateful fake."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1

from tests.support.cli import QUICK
from tests.support.fakes.clock import Clock
from tests.support.fakes.execution import RunOnCpu, Simulate
from tests.support.fakes.google_api import every_one, first_of_each_kind
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.models.ready import digits_cnn
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Retrying
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.vertex.client import VertexClient, is_out_of_capacity
from tpu_pipelines.retraining.job_summary import RunFindings
from tpu_pipelines.submission.schedule import upsert
from tpu_pipelines.submission.submit import plan_submission, submit, wait

SETTINGS = Settings(
    project="my-project",
    region="us-central1",
    bucket="gs://my-bucket/pipelines",
    service_account="trainer@my-project.iam.gserviceaccount.com",
    network="projects/12345/global/networks/my-network",
    labels={"team": "vision"},
)
MACHINE = "machine={name: v5e-4, max_wait_seconds: 3600, fallbacks: [v6e-4, {name: v5e-4, region: us-east1}]}"
V5E, V6E = "ct5lp-hightpu-4t", "ct6e-standard-4t"


@pytest.fixture(scope="module")
def plan():
    return plan_submission(load_config("digits", [MACHINE]), PLATFORMS["vertex"], SETTINGS)


@pytest.fixture
def vertex(fake, clock):
    return connect(fake, clock)


def service_of(fake):
    return VertexService(SETTINGS.project, SETTINGS.region, fake.url, AnonymousCredentials())


def connect(fake, clock):
    """Vertex AI with retries, on the fake's time."""
    platform = VertexClient(SETTINGS, service_of(fake), clock.now)
    return Retrying(platform, Backoff(sleep=clock.sleep, clock=clock.seconds))


def run(plan, vertex, clock, report=lambda _: None, poll_seconds=60.0):
    """Submit and wait, in no time."""
    return wait(plan, submit(plan, vertex), vertex, report, poll_seconds, clock.sleep)


def job_ids(fake):
    return [name.rpartition("/")[2] for name in fake.pipeline_jobs]


def machines(fake):
    """The machine of every custom job, where it is, and what became of it."""
    return [
        (
            job.job_spec.worker_pool_specs[0].machine_spec.machine_type,
            name.split("/")[3],
            job.state.name.removeprefix("JOB_STATE_"),
        )
        for name, job in fake.custom_jobs.items()
    ]


def place_of(custom_job):
    """Where a custom job's checkpoints lie."""
    return custom_job.job_spec.base_output_directory.output_uri_prefix


# Sending


def test_what_is_sent_arrives_as_it_was_compiled(plan, fake, vertex, clock):
    end = run(plan, vertex, clock)
    assert (end.state, end.result, end.machine) == (State.SUCCEEDED, "passed", "v5e-4")
    assert set(end.steps) >= {"create_tfrecords", "preflight_training", "train_model", "export_model"}
    (job,) = fake.pipeline_jobs.values()
    assert job.display_name == "digits"
    assert job.service_account == SETTINGS.service_account
    assert job.network == SETTINGS.network
    assert job.runtime_config.gcs_output_directory == "gs://my-bucket/pipelines"
    assert job.labels["team"] == "vision"
    assert job.labels["tpu_pipelines_machine"] == "v5e-4"
    (custom_job,) = fake.custom_jobs.values()
    assert custom_job.display_name == f"{end.job_id}-train-model"
    (pool,) = custom_job.job_spec.worker_pool_specs
    assert pool.machine_spec == v1.MachineSpec(machine_type=V5E, tpu_topology="2x2")
    assert re.fullmatch(r"gs://my-bucket/pipelines/digits/[0-9a-f]{12}", place_of(custom_job))
    assert end.url == (
        "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/"
        f"{end.job_id}?project=my-project"
    )


def test_a_users_key_attachment_and_tensorboard_reach_the_jobs(fake, clock):
    place = "projects/my-project/{}/us-central1"
    settings = dataclasses.replace(
        SETTINGS,
        network="",
        network_attachment=f"{place.format('regions')}/networkAttachments/training",
        encryption_key=f"{place.format('locations')}/keyRings/ring/cryptoKeys/key",
        tensorboard=f"{place.format('locations')}/tensorboards/1",
    )
    plan = plan_submission(load_config("digits", ["machine=v5e-4", "preflight=false"]), PLATFORMS["vertex"], settings)
    vertex = VertexClient(settings, service_of(fake), clock.now)
    assert wait(plan, submit(plan, vertex), vertex, sleep=clock.sleep).state is State.SUCCEEDED
    (job,), (custom_job,) = fake.pipeline_jobs.values(), fake.custom_jobs.values()
    for one, spec in ((job, job), (custom_job, custom_job.job_spec)):
        assert one.encryption_spec.kms_key_name == settings.encryption_key
        assert spec.psc_interface_config.network_attachment == settings.network_attachment
    assert custom_job.job_spec.tensorboard == settings.tensorboard
    labels = dict(custom_job.labels)
    assert labels.items() >= {"team": "vision", "tpu_pipelines_run": "digits", "tpu_pipelines_machine": "v5e-4"}.items()
    upsert(vertex, plan.jobs[0], "0 3 * * *")
    (schedule,) = vertex.schedules("digits")
    assert schedule.content["encryptionSpec"] == {"kmsKeyName": settings.encryption_key}
    other = dataclasses.replace(settings, encryption_key=f"{settings.encryption_key}2")
    assert VertexClient(other, service_of(fake)).schedule_content(plan.jobs[0], "0 3 * * *") != schedule.content


def test_a_run_is_in_the_experiment_of_the_settings_once_it_has_begun(plan, fake, clock):
    settings = dataclasses.replace(SETTINGS, experiment="digits-models")
    fake.execution, fake.queued_seconds = Simulate(hold=True), 90
    platform = VertexClient(settings, service_of(fake), clock.now)
    vertex = Retrying(platform, Backoff(sleep=clock.sleep, clock=clock.seconds))
    fake.drop_next(1, "after", "create_context")
    fake.fail_next(1, "UNAVAILABLE", "add_context_children")
    first = vertex.create(plan.jobs[0])
    assert (first.state, vertex.create(plan.jobs[0]).job_id) == (State.RUNNING, first.job_id)
    store = "projects/123456789012/locations/us-central1/metadataStores/default/contexts"
    assert fake.contexts[f"{store}/digits-models"].schema_title == "system.Experiment"
    assert [*fake.contexts[f"{store}/{first.job_id}"].parent_contexts] == [f"{store}/digits-models"]
    assert len(fake.pipeline_jobs) == 1


def test_a_job_that_is_cancelled_before_it_begins_is_in_no_experiment(plan, fake, clock):
    settings = dataclasses.replace(SETTINGS, experiment="digits-models")
    fake.queued_seconds = 10**6
    connect(fake, clock).create(plan.jobs[0])
    connect(fake, clock).cancel(plan.jobs[0].job_id)
    clock.sleep(fake.cancelling_seconds)
    assert VertexClient(settings, service_of(fake), clock.now).create(plan.jobs[0]).state is State.CANCELLED
    assert fake.contexts == {}


def test_a_dry_run_says_exactly_what_is_sent(plan, fake, vertex):
    said = vertex.describe(plan.jobs[0])
    assert fake.calls == []
    vertex.create(plan.jobs[0])
    (call,) = fake.called("create_pipeline_job")
    sent = v1.CreatePipelineJobRequest.from_json(json.dumps(said))
    sent.parent = call.request.parent  # The fake knows the project by its number.
    assert call.request == sent


def test_many_submits_at_once_give_one_job(plan, fake, clock):
    fake.latency_seconds = 0.02
    barrier = threading.Barrier(8)

    def send(_):
        vertex = connect(fake, clock)
        barrier.wait()
        return submit(plan, vertex).job_id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(send, range(8)))
    assert ids == set(job_ids(fake)) == {plan.jobs[0].job_id}
    assert len(fake.custom_jobs) == 1


# Machines that cannot be had


@pytest.mark.parametrize(("lacking", "tried"), [("stock_out", [(V5E, "us-central1", "FAILED")]), ("without_quota", [])])
def test_a_machine_that_cannot_be_had_falls_back_to_the_next_and_says_so(plan, fake, vertex, clock, lacking, tried):
    """A quota is refused when the custom job is created, which leaves none."""
    setattr(fake, lacking, {V5E})
    end = run(plan, vertex, clock)
    assert (end.state, end.machine) == (State.SUCCEEDED, "v6e-4")
    assert machines(fake) == [*tried, (V6E, "us-central1", "SUCCEEDED")]
    assert job_ids(fake) == [plan.jobs[0].job_id, plan.jobs[1].job_id]
    assert vertex.latest("digits").machine == "v6e-4"
    assert submit(plan, vertex).job_id == end.job_id


def test_a_fallback_and_a_run_that_is_sent_again_find_the_checkpoints(plan, fake, vertex, clock):
    fake.stock_out = {V5E}
    run(plan, vertex, clock)
    fake.stock_out = set()
    assert wait(plan, submit(plan, vertex, again=True), vertex, sleep=clock.sleep).job_id.endswith("-r2")
    assert len(fake.custom_jobs) == 3
    assert len({place_of(job) for job in fake.custom_jobs.values()}) == 1


def test_the_same_machine_elsewhere_can_be_a_fallback(plan, fake, vertex, clock):
    fake.stock_out = {f"us-central1/{V5E}", V6E}
    assert run(plan, vertex, clock).state is State.SUCCEEDED
    assert machines(fake)[-1] == (V5E, "us-east1", "SUCCEEDED")


@pytest.mark.parametrize(
    ("lacking", "said", "num_custom_jobs"),
    [
        ("stock_out", "train_model: Resources are insufficient in region: us-east1.", 3),
        ("without_quota", "exceed quota limits: aiplatform.googleapis.com/custom_model_training_tpu_v5e", 0),
    ],
)
def test_without_any_machine_the_run_fails_in_the_services_words(
    plan, fake, vertex, clock, lacking, said, num_custom_jobs
):
    setattr(fake, lacking, {V5E, V6E})
    end = run(plan, vertex, clock)
    assert (end.state, end.lacks_machine) == (State.FAILED, True)
    assert said in end.error
    assert (len(fake.pipeline_jobs), len(fake.custom_jobs)) == (3, num_custom_jobs)


def test_a_machine_that_does_not_come_in_time_is_given_up(plan, fake, vertex, clock):
    fake.scarce = {V5E}
    end = run(plan, vertex, clock, poll_seconds=400)
    assert end.machine == "v6e-4"
    assert machines(fake) == [(V5E, "us-central1", "CANCELLED"), (V6E, "us-central1", "SUCCEEDED")]
    states = [job.state.name for job in fake.pipeline_jobs.values()]
    assert states == ["PIPELINE_STATE_CANCELLED", "PIPELINE_STATE_SUCCEEDED"]
    assert 3600 <= sum(clock.slept) <= 3600 + 2 * 400  # Two polls: one sees that it is late, one that it is cancelled.


def test_a_training_is_stopped_by_what_preflight_estimates(plan, fake, clock):
    fake.execution = Simulate(outputs={"preflight-training": "28800s"})
    run(plan, connect(fake, clock), clock)
    (job,) = fake.custom_jobs.values()
    assert job.job_spec.scheduling.timeout.total_seconds() == 8 * 3600


def test_another_error_of_the_training_tries_no_other_machine(plan, fake, clock):
    fake.execution = Simulate(failures={"train-model": "The replica workerpool0-0 exited with a non-zero status of 1."})
    end = run(plan, connect(fake, clock), clock)
    assert (end.state, end.lacks_machine) == (State.FAILED, False)
    assert end.error == "train_model: The replica workerpool0-0 exited with a non-zero status of 1."
    assert len(fake.pipeline_jobs) == 1


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (9, "Resources are insufficient in region: us-central1. Please try a different region.", True),
        (
            8,
            "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_tpu",
            True,
        ),
        (8, "", True),
        (9, "code=RESOURCE_EXHAUSTED, message=No more capacity in the zone", True),
        (9, "STOCKOUT", True),
        (3, "The replica exited with a non-zero status of 1. RESOURCE_EXHAUSTED: Ran out of memory in hbm", False),
        (7, "Permission denied on gs://my-bucket", False),
    ],
)
def test_capacity_is_told_from_other_errors(code, message, expected):
    assert is_out_of_capacity(code, message) is expected


# A service that fails


@pytest.mark.parametrize("status", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL"])
def test_a_storm_of_errors_is_waited_out(plan, fake, vertex, clock, status):
    fake.fail_next(7, status)
    assert run(plan, vertex, clock).state is State.SUCCEEDED
    assert len(fake.called("create_pipeline_job")) == 1
    assert sum(clock.slept) > 60


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("PERMISSION_DENIED", r".*Injected into create_pipeline_job\. Give the account .* roles/aiplatform\.user"),
        ("INVALID_ARGUMENT", ""),
        ("UNAUTHENTICATED", ""),
    ],
)
def test_a_refusal_is_not_tried_again(plan, fake, vertex, clock, status, hint):
    fake.fail_next(1, status, "create_pipeline_job")
    refused = r"Vertex AI refused to create pipeline job in my-project, us-central1"
    with pytest.raises(InputError, match=refused + hint):
        run(plan, vertex, clock)
    assert Counter(call.method for call in fake.calls)["create_pipeline_job"] == 1
    assert clock.slept == []


def test_a_service_that_stays_away_is_an_error_that_loses_nothing(plan, fake, vertex, clock):
    submission = submit(plan, vertex)
    fake.fail_next(1000, "UNAVAILABLE")
    with pytest.raises(
        PlatformError,
        match=r"Gave up after .* s\. Last error: Vertex AI cannot get pipeline job at the moment: 503 .*continue",
    ):
        wait(plan, submission, vertex, sleep=clock.sleep)
    fake.recover()
    assert run(plan, vertex, clock).job_id == submission.job_id
    assert len(fake.pipeline_jobs) == 1


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

    platform = VertexClient(SETTINGS, service_of(fake), clock.now)
    vertex = Retrying(platform, Backoff(sleep=sleep, clock=clock.seconds))
    end = wait(plan, submit(plan, vertex), vertex, sleep=sleep)
    assert end.state is State.SUCCEEDED
    assert len(fake.pipeline_jobs) == len(fake.custom_jobs) == 1


def finish(fake):
    """Let the training that runs end well, and its pipeline go on."""
    for job in fake.custom_jobs.values():
        fake.end_custom_job(job.name, v1.JobState.JOB_STATE_SUCCEEDED)
    for name in fake.pipeline_jobs:
        fake.execution.start_pipeline_job(fake, name)


class Killed(BaseException):
    pass


@contextlib.contextmanager
def story(clock):
    """A run that meets everything: the first machine is out, the second does not come, the third trains."""
    with FakeVertex(Simulate(), clock=clock.now) as fake:
        fake.stock_out, fake.scarce = {f"us-central1/{V5E}"}, {V6E}
        yield fake


def end_of_story(plan):
    return [job.job_id for job in plan.jobs], [
        (V5E, "us-central1", "FAILED"),
        (V6E, "us-central1", "CANCELLED"),
        (V5E, "us-east1", "SUCCEEDED"),
    ]


@pytest.mark.parametrize("fault", ["before", "after", "halfway", "UNAVAILABLE"])
@pytest.mark.parametrize("which", [first_of_each_kind, pytest.param(every_one, marks=pytest.mark.slow)])  # 5 s a fault.
def test_whichever_request_is_lost_nothing_is_created_twice_or_forgotten(plan, fault, which):
    """Each of these requests of the run, one at a time, meets the fault."""
    with story(clock := Clock()) as fake:
        run(plan, connect(fake, clock), clock, poll_seconds=600)
        skips = which(fake.calls)
        assert (job_ids(fake), machines(fake)) == end_of_story(plan)
    assert len(skips) > 3
    for skip in skips:
        with story(clock := Clock()) as fake:
            if fault.isupper():
                fake.fail_next(1, fault, skip=skip)
            else:
                fake.drop_next(1, fault, skip=skip)
            assert run(plan, connect(fake, clock), clock, poll_seconds=600).state is State.SUCCEEDED
            assert (job_ids(fake), machines(fake)) == end_of_story(plan), skip


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_whenever_the_waiting_process_dies_the_next_one_goes_on(plan, stride):
    """Whoever waits dies right after a request of the run: every fifth of them, or each, one at a time."""

    class Mortal(VertexService):
        requests_left = 0

        def call(self, *arguments):
            result = super().call(*arguments)
            self.requests_left -= 1
            if self.requests_left == 0:
                raise Killed
            return result

    died = 1
    while died:
        with story(clock := Clock()) as fake:
            service = Mortal(SETTINGS.project, SETTINGS.region, fake.url, AnonymousCredentials())
            service.requests_left = died
            try:
                run(plan, VertexClient(SETTINGS, service, clock.now), clock, poll_seconds=600)
            except Killed:
                died += stride
                assert run(plan, connect(fake, clock), clock, poll_seconds=600).state is State.SUCCEEDED
            else:
                assert died > 20
                died = 0
            assert (job_ids(fake), machines(fake)) == end_of_story(plan), died


# Tokens


def signed_in(fake, clock):
    settings = dataclasses.replace(SETTINGS, vertex_endpoint=fake.url)
    return Retrying(VertexClient(settings, now=clock.now), Backoff(sleep=clock.sleep, clock=clock.seconds))


def test_a_token_that_expires_while_waiting_is_renewed(plan, fake, clock, federated):
    fake.require_tokens()
    fake.execution = Simulate(hold=True)
    vertex = signed_in(fake, clock)
    looks = []

    def report(submission):
        looks.append(submission.state)
        if len(looks) == 2:
            fake.expire_tokens()
        if len(looks) == 4:
            finish(fake)

    assert run(plan, vertex, clock, report).state is State.SUCCEEDED
    assert {call.token for call in fake.calls if call.status == 200} == {"token-1", "token-2"}
    assert len(fake.pipeline_jobs) == 1


def test_a_wait_never_holds_a_token_to_its_end(plan, fake, clock, federated):
    fake.require_tokens(lifetime_seconds=1)  # So short that every call finds it about to run out.
    run(plan, signed_in(fake, clock), clock)
    tokens = [call.token for call in fake.calls]
    assert len(set(tokens)) == len(tokens) > 2
    assert {call.status for call in fake.calls} <= {200, 404}


def test_without_credentials_the_error_says_how_to_sign_in(plan, fake, clock, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(
        InputError, match=r"Cannot sign in to Google Cloud: .*none\.json.*gcloud auth application-default"
    ):
        submit(plan, signed_in(fake, clock))


def test_a_token_that_is_refused_for_good_is_an_error(plan, fake, clock, federated):
    fake.require_tokens()
    fake.fail_next(10, "UNAUTHENTICATED")
    with pytest.raises(InputError, match=r"the sign-in is missing or has expired .*gcloud auth"):
        submit(plan, signed_in(fake, clock))
    assert clock.slept == []


# Looking and cancelling


def test_a_run_is_found_by_its_name_and_by_its_id(plan, fake, vertex):
    assert vertex.latest("digits") is None
    first = submit(plan, vertex).job_id
    assert vertex.latest("digits").job_id == vertex.latest(first).job_id == first
    second = submit(plan, vertex, again=True).job_id
    assert second == f"{first}-r2"
    assert vertex.latest("digits").job_id == second
    assert vertex.latest('di"gits') is None


def test_a_run_is_cancelled_and_one_that_has_ended_is_left(plan, fake, clock):
    fake.execution = Simulate(hold=True)
    vertex = connect(fake, clock)
    job_id = submit(plan, vertex).job_id
    vertex.cancel(job_id)
    assert vertex.get(job_id).state is State.RUNNING, "it is being cancelled"
    vertex.cancel(job_id)
    clock.sleep(fake.cancelling_seconds)
    assert vertex.get(job_id).state is State.CANCELLED
    assert machines(fake) == [(V5E, "us-central1", "CANCELLED")]
    vertex.cancel(job_id)
    with pytest.raises(InputError, match=r"refused to cancel pipeline job .*not found"):
        vertex.cancel("digits-none")


def test_logs_are_those_of_the_training(plan, fake, clock):
    fake.execution = Simulate(hold=True)
    vertex = connect(fake, clock)
    submission = vertex.get(submit(plan, vertex).job_id)
    number = next(iter(fake.custom_jobs)).rpartition("/")[2]
    assert submission.logs_url.startswith("https://console.cloud.google.com/logs/query;query=")
    assert number in submission.logs_url


def test_steps_that_the_cache_answers_are_done(plan, fake, clock):
    fake.execution = Simulate(cached=("create-tfrecords", "train-model", "export-model"))
    end = run(plan, connect(fake, clock), clock)
    assert (end.state, end.result) == (State.SUCCEEDED, "passed")
    assert (end.steps["train_model"], end.steps["evaluate_model"]) == ("cached", "succeeded")
    assert not fake.custom_jobs


# The command line


@pytest.fixture
def environment(fake, federated):
    fake.require_tokens()


def test_submit_waits_and_says_what_came_of_it(fake, environment, capfd):
    fake.stock_out = {V5E}
    code = main(["submit", "digits", "--set", MACHINE, "--wait", "--poll-seconds", "0.01", "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    said = json.loads(out)
    assert (said["state"], said["machine"], said["passed_gate"], said["promoted"]) == (
        "succeeded",
        "v6e-4",
        True,
        False,
    )
    assert f"{said['job_id']}: succeeded on v6e-4, https://console.cloud.google.com/" in err
    assert "[train_model] failed" in err
    assert "token-1" not in out + err
    assert main(["status", "digits"]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(f"{said['job_id']}: succeeded, to train on v6e-4\n")
    assert "  export_model        succeeded\n" in out
    assert main(["cancel", said["job_id"]]) == 0
    assert capfd.readouterr().out == f"{said['job_id']}: already succeeded\n"


@pytest.mark.parametrize(
    ("execution", "code", "words"),
    [
        (Simulate(promote=False), 3, ""),
        (Simulate(failures={"evaluate-model": "Out of cheese."}), 1, "error: evaluate_model: Out of cheese.\nhint: "),
    ],
)
def test_the_exit_code_says_how_a_run_ended(fake, environment, capfd, execution, code, words):
    fake.execution = execution
    arguments = ["submit", "digits", "--set", "machine=v5e-4", "--wait", "--poll-seconds", "0.01"]
    assert main(arguments) == code
    assert main(["status", "digits"]) == code
    assert words in capfd.readouterr().err
    assert main([*arguments, "--again"]) == code
    assert len(fake.pipeline_jobs) == 2


def test_a_run_is_cancelled_by_name(fake, environment, capfd, clock):
    fake.execution = Simulate(hold=True)
    assert main(["submit", "digits", "--set", "machine=v5e-4"]) == 0
    assert main(["cancel", "digits"]) == 0
    assert capfd.readouterr().out.endswith(": being cancelled\n")
    clock.sleep(fake.cancelling_seconds)
    assert main(["status", "digits"]) == 1
    assert machines(fake) == [(V5E, "us-central1", "CANCELLED")]


def test_a_name_that_nothing_has_is_an_error(fake, environment, capfd):
    assert main(["status", "digit"]) == 2
    assert "There is no run 'digit' with project my-project, region us-central1" in capfd.readouterr().err


def test_a_service_that_stays_away_is_no_stack_trace(environment, capfd, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(Backoff, "__init__", functools.partialmethod(Backoff.__init__, patience_seconds=0))
    monkeypatch.setenv("TPU_PIPELINES_VERTEX_ENDPOINT", "http://127.0.0.1:1")
    assert main(["status", "digits"]) == 1
    assert (
        "error: Gave up after 0 s. Last error: Cannot reach Vertex AI to list pipeline jobs" in capfd.readouterr().err
    )


def test_a_dry_run_says_what_is_missing_writes_the_requests_where_it_is_told_and_sends_none(
    fake, environment, capfd, tmp_path
):
    code = tmp_path / "my_model.py"
    code.write_text(Path(digits_cnn.__file__).read_text())
    own = ("--set", "preflight=false", "--set", f"model={{name: {code}, parameters: {{}}}}")
    assert main(["submit", "digits", "--set", MACHINE, *own, "--dry-run"]) == 0
    said, err = capfd.readouterr()
    assert "hint: --output FILE writes the request, and --json prints it\n" in err
    said = re.sub(r"models/[0-9a-f]{64}", "models/SHA256", re.sub(r"[\d,]+ bytes", "N bytes", said))
    said = re.sub(r"digits[-/][0-9a-f]{12}", "digits/DIGEST", said).replace(str(tmp_path), "")
    assert said == (
        "digits for vertex, not sent (dry run)\n\n"
        "ok       machine  v5e-4 in us-central1, then v6e-4 in us-central1, then v5e-4 in us-east1\n"
        "unknown  price    preflight is switched off\n"
        f"ok       image    {os.environ['TPU_PIPELINES_IMAGE']}\n"
        "ok       data     sklearn:digits, train 1,259, validation 179, test 359\n"
        "ok       model    /my_model.py is uploaded as gs://my-bucket/pipelines/models/SHA256/my_model.zip, N bytes\n"
        "ok       job      digits/DIGEST, with its checkpoints in digits/DIGEST\n\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TPU_PIPELINES_IMAGE")
        assert main(["submit", "digits", "--set", MACHINE, *own, "--dry-run"]) == 0
        out, err = capfd.readouterr()
        assert "error    image    Vertex AI cannot pull the step image 'tpu-p" in out
        assert "cannot fetch" not in err  # Nothing is said twice.
    path = tmp_path / "requests.json"
    assert main(["submit", "digits", "--set", MACHINE, *own, "--dry-run", "--output", str(path), "--json"]) == 0
    out, err = capfd.readouterr()
    assert "digits for vertex, not sent (dry run)\n" in err
    requests = json.loads(path.read_text())
    assert [one["pipelineJob"]["labels"]["tpu_pipelines_machine"] for one in requests] == ["v5e-4", "v6e-4", "v5e-4"]
    assert requests[0]["parent"] == "projects/my-project/locations/us-central1"
    assert json.loads(out) == requests
    assert main(["submit", "digits", "--set", MACHINE, "--output", str(path)]) == 2
    assert "error: --output requires --dry-run." in capfd.readouterr().err
    assert fake.calls == []


@pytest.mark.parametrize("command", [("submit",), ("retrain",), ("schedule", "--cron", "0 3 * * *")])
def test_an_image_that_nobody_can_fetch_is_refused_before_anything_is_sent(
    fake, environment, capfd, monkeypatch, command
):
    monkeypatch.delenv("TPU_PIPELINES_IMAGE")
    assert main([command[0], "digits", "--set", "machine=v5e-4", *command[1:]]) == 2
    refused = (
        "error: The run was not sent, because it would fail. Missing: image: Vertex AI cannot pull the step image "
    )
    assert f"{refused}'tpu-pipelines/python:latest'" in capfd.readouterr().err
    assert fake.calls == []
    dry = ("--set", "machine=v5e-4", "--set", "preflight=false", "--dry-run")
    assert main([command[0], "digits", *command[1:], *dry]) == 0
    out, err = capfd.readouterr()
    said = "Vertex AI cannot pull the step image 'tpu-pipelines/python:latest'"
    assert (out if command == ("submit",) else err).count(said) == 1
    assert (out + err).count(said) == 1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.batch_size_per_replica=5000", "batch_size"),
        ("data.test_fraction=0", "gate.split='test' has no examples"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_is_sent(fake, environment, capfd, override, words):
    assert main(["submit", "digits", "--set", "machine=v5e-4", "--set", override]) == 2
    assert words in capfd.readouterr().err
    assert fake.calls == []


@pytest.mark.parametrize("command", [("submit", "digits"), ("status", "digits"), ("schedule", "digits", "--pause")])
def test_missing_settings_are_named_together_before_anything_slow_is_imported(command, tmp_path):
    code = (
        "import sys; from tpu_pipelines.cli import main\n"
        f"code = main({[*command]!r})\n"
        "print(code, [m for m in ('kfp', 'google.cloud.aiplatform_v1') if m in sys.modules])"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TPU_PIPELINES_")}
    environment["TPU_PIPELINES_REGION"] = "us-central1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "2 []\n"
    assert "Missing settings: project, bucket. Set them in the environment" in done.stderr


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tpu_pipelines.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow  # Three processes, each of which compiles: 10 s.
def test_processes_that_submit_at_once_and_die_while_they_wait_leave_one_job(fake, environment):
    fake.execution = Simulate(hold=True)
    command = ("submit", "digits", "--set", "machine=v5e-4", "--wait", "--poll-seconds", "0.1", "--json")
    first, second = start(*command), start(*command)
    while Counter(call.method for call in fake.calls)["list_custom_jobs"] < 8:
        time.sleep(0.05)
    for process in (first, second):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    third = start(*command)
    looks = len(fake.calls)
    while len(fake.calls) < looks + 4:
        time.sleep(0.05)
    fake.expire_tokens()
    with fake.lock:
        finish(fake)
    out, err = third.communicate()
    assert third.returncode == 0, err
    assert json.loads(out)["state"] == "succeeded"
    assert len(fake.pipeline_jobs) == len(fake.custom_jobs) == 1


# For real


_MY_LAYERS = """
import keras


@keras.saving.register_keras_serializable()
class Scaling(keras.layers.Rescaling):
    pass
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory, storage_server):
    """The digits pipeline with a model of the user's own, submitted and run on CPU; its first machine was out."""
    execution = RunOnCpu(tmp_path_factory.mktemp("vertex"), stored=("evaluate-model",))
    code = tmp_path_factory.mktemp("code")
    source = Path(digits_cnn.__file__).read_text()
    (code / "my_model.py").write_text("import my_layers\n" + source.replace("layers.Rescaling(", "my_layers.Scaling("))
    (code / "my_layers.py").write_text(_MY_LAYERS)
    settings = dataclasses.replace(SETTINGS, bucket="gs://bucket/pipelines")
    own = ["preflight=false", *QUICK[1::2], f"model.name={code}/my_model.py"]
    plan = plan_submission(load_config("digits", [MACHINE, *own]), PLATFORMS["vertex"], settings)
    with FakeVertex(execution) as fake:
        fake.stock_out = {V5E}
        vertex = VertexClient(settings, service_of(fake))
        end = wait(plan, submit(plan, vertex), vertex, poll_seconds=0.5)
        yield end, execution.root, fake


@pytest.mark.slow  # Runs the digits pipeline for real: half a minute.
def test_a_submitted_pipeline_trains_and_promotes_on_the_machine_that_it_fell_back_to(executed):
    end, root, fake = executed
    assert (end.state, end.machine, end.result) == (State.SUCCEEDED, "v6e-4", "passed"), end.error
    assert machines(fake) == [(V5E, "us-central1", "FAILED"), (V6E, "us-central1", "SUCCEEDED")]
    (evaluation,) = (root / end.job_id).rglob("evaluation.json")
    assert json.loads(evaluation.read_text())["challenger"]["accuracy"] > 0.9
    findings = RunFindings.of_job(end, VertexClient(SETTINGS, service_of(fake)), load_config("digits"), SETTINGS)
    assert findings.evaluation == Evaluation.load(evaluation.parent)
    (model,) = (root / end.job_id).rglob("model.json")
    assert json.loads(model.read_text())["name"].endswith("/my_model.zip")
    assert (model.parent / "code.zip").is_file()
    (export,) = (root / end.job_id).rglob("export.json")
    assert (export.parent / "model.tflite").is_file()

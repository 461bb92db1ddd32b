"""Claims about schedules, through Vertex AI's real client against a stateful fake."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import State
from tpu_components.core.files.vertex_clients import VertexService
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Retrying
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.vertex.client import VertexClient
from tpu_pipelines.submission.schedule import change_state, check_cron, upsert
from tpu_pipelines.submission.submit import plan_submission

SETTINGS = Settings(project="my-project", region="us-central1", bucket="gs://my-bucket", labels={"team": "vision"})
NIGHTLY = "0 3 * * *"


def make_job(*overrides):
    return plan_submission(load_config("digits", ["machine=v5e-4", *overrides]), PLATFORMS["vertex"], SETTINGS).jobs[0]


@pytest.fixture(scope="module")
def job():
    return make_job()


@pytest.fixture
def vertex(fake, clock):
    return connect(fake, clock)


@pytest.fixture
def backoff(clock):
    return Backoff(sleep=clock.sleep, clock=clock.seconds)


def connect(fake, clock):
    return VertexClient(
        SETTINGS, VertexService("my-project", "us-central1", fake.url, AnonymousCredentials()), clock.now
    )


def test_a_schedule_is_created_once_and_then_left(job, fake, vertex, backoff):
    first = upsert(vertex, job, NIGHTLY, backoff)
    assert (first.action, first.schedule.is_paused) == ("created", False)
    assert "+cron: 0 3 * * *" in first.difference
    again = upsert(vertex, job, NIGHTLY, backoff)
    assert (again.action, again.difference) == ("unchanged", "")
    assert len(fake.schedules) == len(fake.called("create_schedule")) == 1
    assert fake.called("update_schedule") == []
    (schedule,) = fake.schedules.values()
    assert schedule.display_name == "digits"
    assert schedule.max_concurrent_run_count == 1
    assert schedule.create_pipeline_job_request.pipeline_job_id == ""


def test_a_change_is_made_to_the_schedule_that_is_there_and_told(job, fake, vertex, backoff):
    created = upsert(vertex, job, NIGHTLY, backoff)
    changed = upsert(vertex, make_job("training.epochs=7", "machine=v5e-8"), "TZ=Europe/Berlin 0 4 * * 1-5", backoff)
    assert (changed.action, changed.schedule.schedule_id) == ("updated", created.schedule.schedule_id)
    lines = changed.difference.splitlines()
    assert "-cron: 0 3 * * *" in lines
    assert "+cron: TZ=Europe/Berlin 0 4 * * 1-5" in lines
    assert "-  tpu_pipelines_machine: v5e-4" in lines
    assert "+  tpu_pipelines_machine: v5e-8" in lines
    assert any("defaultValue: 7.0" in line and line[0] == "+" for line in lines)
    assert all(line[0] in "+-" for line in lines)
    (schedule,) = fake.schedules.values()
    assert schedule.cron == "TZ=Europe/Berlin 0 4 * * 1-5"


def test_a_dry_run_tells_the_difference_and_changes_nothing(job, fake, vertex, backoff):
    assert upsert(vertex, job, NIGHTLY, backoff, dry_run=True).action == "created"
    assert fake.schedules == {}
    upsert(vertex, job, NIGHTLY, backoff)
    change = upsert(vertex, job, "0 4 * * *", backoff, dry_run=True)
    assert (change.action, change.difference) == ("updated", "-cron: 0 3 * * *\n+cron: 0 4 * * *")
    assert next(iter(fake.schedules.values())).cron == NIGHTLY


def test_a_schedule_starts_runs_that_are_found_by_name(job, fake, vertex, backoff):
    created = upsert(vertex, job, NIGHTLY, backoff).schedule
    name = next(iter(fake.schedules))
    runs = [fake.fire(name).name.rpartition("/")[2] for _ in range(2)]
    assert len(set(runs)) == 2
    latest = vertex.latest("digits")
    assert (latest.job_id, latest.state, latest.machine) == (runs[1], State.SUCCEEDED, "v5e-4")
    assert created.url.endswith(f"/schedules/{created.schedule_id}?project=my-project")


def test_a_run_that_waits_for_its_machine_is_the_only_one(job, fake, vertex, backoff, clock):
    upsert(vertex, job, NIGHTLY, backoff)
    name = next(iter(fake.schedules))
    fake.scarce = {"ct5lp-hightpu-4t"}
    waiting = fake.fire(name)
    assert fake.fire(name) is None
    assert len(fake.pipeline_jobs) == len(fake.custom_jobs) == 1
    vertex.cancel(waiting.name.rpartition("/")[2])
    assert fake.fire(name) is None, "it is being cancelled"
    clock.sleep(fake.cancelling_seconds)
    assert fake.fire(name) is not None


def test_a_schedule_that_lets_runs_pile_up_is_changed(job, fake, vertex, backoff):
    upsert(vertex, job, NIGHTLY, backoff)
    (schedule,) = fake.schedules.values()
    schedule.max_concurrent_active_run_count = 0  # As the first versions made it.
    change = upsert(vertex, job, NIGHTLY, backoff)
    assert (change.action, change.difference) == ("updated", "-active_runs: 0\n+active_runs: 1")
    (schedule,) = fake.schedules.values()
    assert schedule.max_concurrent_active_run_count == 1


def test_a_specification_that_the_service_has_normalised_is_no_change(job, fake, vertex, backoff):
    upsert(vertex, job, NIGHTLY, backoff)
    (schedule,) = fake.schedules.values()
    schedule.create_pipeline_job_request.pipeline_job.pipeline_spec["sdkVersion"] = "as the service writes it"
    assert upsert(vertex, job, NIGHTLY, backoff).action == "unchanged"
    change = upsert(vertex, job, "0 4 * * *", backoff)
    assert (change.action, change.difference) == ("updated", "-cron: 0 3 * * *\n+cron: 0 4 * * *")
    assert upsert(vertex, make_job("training.seed=1"), "0 4 * * *", backoff).action == "updated"


def test_a_schedule_is_paused_resumed_and_deleted(job, fake, vertex, backoff):
    upsert(vertex, job, NIGHTLY, backoff)
    name = next(iter(fake.schedules))
    change_state(Retrying(vertex, backoff), "digits", "pause")
    assert fake.fire(name) is None
    assert upsert(vertex, job, "0 4 * * *", backoff).schedule.is_paused  # A change does not wake it.
    change_state(Retrying(vertex, backoff), "digits", "resume")
    assert fake.fire(name) is not None
    assert not fake.schedules[name].catch_up
    change_state(Retrying(vertex, backoff), "digits", "delete")
    assert fake.schedules == {}
    with pytest.raises(InputError, match=r"Cannot pause the schedule of 'digits': there is no such schedule"):
        change_state(Retrying(vertex, backoff), "digits", "pause")


def test_of_many_who_create_a_schedule_at_once_one_stays(job, fake, clock):
    fake.latency_seconds = 0.02
    barrier = threading.Barrier(6)

    def create(_):
        vertex = connect(fake, clock)
        barrier.wait()
        return upsert(vertex, job, NIGHTLY).schedule.schedule_id

    with ThreadPoolExecutor(6) as pool:
        kept = set(pool.map(create, range(6)))
    assert kept == {name.rpartition("/")[2] for name in fake.schedules}
    assert len(fake.schedules) == 1


@pytest.mark.parametrize("when", ["before", "after", "halfway"])
@pytest.mark.parametrize("method", ["create_schedule", "list_schedules", "update_schedule"])
def test_a_request_that_is_lost_makes_no_second_schedule(job, fake, vertex, backoff, method, when):
    fake.drop_next(2, when, method)
    upsert(vertex, job, NIGHTLY, backoff)
    assert upsert(vertex, job, "0 4 * * *", backoff).action in ("updated", "unchanged")
    (schedule,) = fake.schedules.values()
    assert schedule.cron == "0 4 * * *"


def test_duplicates_that_somebody_else_made_are_reported_and_left(job, fake, vertex, backoff):
    first = upsert(vertex, job, NIGHTLY, backoff).schedule
    other = v1.Schedule(next(iter(fake.schedules.values())))
    fake.create_schedule(v1.CreateScheduleRequest(parent="projects/my-project/locations/us-central1", schedule=other))
    change = upsert(vertex, job, NIGHTLY, backoff)
    (duplicate,) = change.duplicates
    assert change.schedule.schedule_id == first.schedule_id != duplicate
    assert len(fake.schedules) == 2
    change_state(Retrying(vertex, backoff), "digits", "delete")
    assert fake.schedules == {}


@pytest.mark.parametrize("cron", ["0 3 * *", "0 3 * * * *", "at three", "", "0 3 * * *; rm -rf"])
def test_what_is_no_cron_expression_is_refused(cron):
    with pytest.raises(InputError, match=r"Cannot use --cron: expected minute, hour, day, month and weekday"):
        check_cron(cron)


@pytest.fixture
def command(federated, capfd):
    """Runs `tpu-pipelines schedule digits …` in this process: exit code, stdout, stderr."""

    def run(*arguments):
        return main(["schedule", "digits", "--set", "machine=v5e-4", *arguments]), *capfd.readouterr()

    return run


def test_the_command_prints_what_changes(fake, command):
    code, out, err = command("--cron", NIGHTLY)
    assert code == 0, err
    assert "digits: created, next run unknown\nhttps://console.cloud.google.com/" in out
    code, out, _ = command("--cron", NIGHTLY)
    assert (code, out.splitlines()[0]) == (0, "digits: unchanged, next run unknown")
    code, out, _ = command("--cron", "0 4 * * *", "--dry-run")
    assert out.splitlines()[:3] == [
        "-cron: 0 3 * * *",
        "+cron: 0 4 * * *",
        "digits: updated (dry run), next run unknown",
    ]
    (schedule,) = fake.schedules.values()
    number = schedule.name.rpartition("/")[2]
    for action, done in (("--pause", "paused"), ("--delete", "deleted")):
        code, out, _ = command(action, "--dry-run")
        assert (code, out) == (0, f"digits: {done} (dry run), schedule {number} at '0 3 * * *'\n")
    assert [one.state.name for one in fake.schedules.values()] == ["ACTIVE"]
    assert command("--pause")[:2] == (0, f"digits: paused, schedule {number} at '0 3 * * *'\n")
    assert command("--cron", "0 4 * * *")[1].splitlines()[2] == "digits: updated, paused"
    assert command("--delete")[0] == 0
    code, out, err = command("--delete")
    assert (code, out) == (2, "")
    assert "there is no such schedule" in err


def test_the_commands_mistakes_are_the_users(command):
    code, out, err = command("--cron", "nightly")
    assert (code, out) == (2, "")
    assert "Received: 'nightly'" in err
    code, out, err = command("--cron", NIGHTLY, "--set", "training.batch_size_per_replica=5000")
    assert (code, out) == (2, "")
    assert "The batch is larger than the training split" in err
    with pytest.raises(SystemExit, match=r"2"):
        command("--cron", NIGHTLY, "--pause")

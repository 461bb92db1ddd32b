"""Claims about Dataflow's jobs: found, followed, failed and cancelled; the service is a local server with its rules."""

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.fakes.clock import Clock
from tests.fakes.dataflow import PROJECT, REGION, FakeDataflow
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, MissingError, PlatformError
from tpu_components.core.base.termination import Terminated
from tpu_components.core.files.dataflow import Dataflow

NAME = "tpu-pipelines-records-0123456789abcdef"


@pytest.fixture
def fake():
    with FakeDataflow() as server:
        yield server


@pytest.fixture
def service(fake):
    clock = Clock()
    backoff = Backoff(sleep=clock.sleep, clock=clock.seconds)
    return Dataflow(PROJECT, REGION, fake.url, AnonymousCredentials(), backoff)


def make(fake: FakeDataflow, name: str = NAME, request: str = "") -> str:
    """Make a job as Beam's client does."""
    environment = {"tempStoragePrefix": "storage.googleapis.com/bucket/temp"}
    asked = {"name": name, "clientRequestId": request or str(fake.made), "environment": environment}
    return fake._create(REGION, asked)["id"]


def done_after(fake: FakeDataflow, number: int, state: str = "JOB_STATE_DONE", *errors: str) -> None:
    """Let a job end when it is asked for so many times."""
    asked = []

    def go_on(job):
        asked.append(job)
        if len(asked) == number:
            fake.end(job, state, *errors)
        elif len(asked) < number and job.state == "JOB_STATE_PENDING":
            job.state = "JOB_STATE_RUNNING"

    fake.on_get = go_on


def test_a_job_is_made_once_and_followed_to_its_end(fake, service, capsys):
    done_after(fake, 3)
    service.run(NAME, lambda: make(fake), "create_tfrecords")
    assert fake.made == 1
    told = capsys.readouterr().err
    link = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{fake.jobs[0].id}?project={PROJECT}"
    assert f"started the job {NAME}: {link}" in told
    assert told.index("the job is running") < told.index("the job is done")


def test_the_job_that_runs_already_is_followed(fake, service, capsys):
    for name in ("another", NAME, "one-more"):
        make(fake, name)
    done_after(fake, 2)
    service.run(NAME, lambda: pytest.fail("a second job"), "create_tfrecords")
    assert f"following the job {NAME}, which runs already" in capsys.readouterr().err
    assert [job.state for job in fake.jobs] == ["JOB_STATE_PENDING", "JOB_STATE_DONE", "JOB_STATE_PENDING"]


def test_a_name_is_free_again_once_its_job_has_ended(fake, service):
    make(fake)
    fake.end(fake.jobs[0], "JOB_STATE_FAILED", "No worker could be started.")
    assert service.find(NAME) is None
    done_after(fake, 2)
    service.run(NAME, lambda: make(fake), "create_tfrecords")
    assert [job.state for job in fake.jobs] == ["JOB_STATE_FAILED", "JOB_STATE_DONE"]


def test_a_job_that_another_step_was_faster_to_make_is_followed(fake, service):
    def submit() -> str:
        make(fake, request="its own")
        existing = make(fake, request="ours")
        assert fake.jobs[0].public()["clientRequestId"] != "ours"
        return "" if existing == fake.jobs[0].id else existing

    done_after(fake, 2)
    service.run(NAME, submit, "create_tfrecords")
    assert fake.made == 1


def test_a_failed_job_says_why(fake, service):
    reasons = [f"Worker {number} died." for number in range(5)]
    done_after(fake, 2, "JOB_STATE_FAILED", *reasons)
    with pytest.raises(
        PlatformError, match=r"ended as JOB_STATE_FAILED. It says: Worker 2 died. \| Worker 3 .* step ag"
    ):
        service.run(NAME, lambda: make(fake), "create_tfrecords")


def test_a_reason_that_comes_late_is_waited_for(fake, service):
    done_after(fake, 2, "JOB_STATE_FAILED")
    asked = service.errors

    def late(job_id):
        if len([path for _, path in fake.calls if path.endswith("/messages")]) == 4:
            fake.say(fake.jobs[0], "JOB_MESSAGE_ERROR", "Quota 'CPUS' exceeded.")
        return asked(job_id)

    service.errors = late
    with pytest.raises(PlatformError, match=r"It says: Quota 'CPUS' exceeded\."):
        service.run(NAME, lambda: make(fake), "create_tfrecords")


def test_a_mistake_that_a_worker_met_is_the_users(fake, service):
    trace = (
        'Traceback (most recent call last):\n  File "x.py"\n'
        "tpu_components.core.base.errors.InputError: Images differ in size: a. b"
    )
    done_after(
        fake, 2, "JOB_STATE_FAILED", "Error message from worker: " + trace + " [while running 'Write-ptransform-9']"
    )
    with pytest.raises(InputError, match=r"^Images differ in size: a. b$"):
        service.run(NAME, lambda: make(fake), "create_tfrecords")


def test_a_job_that_somebody_cancels_is_said_to_be(fake, service):
    done_after(fake, 2, "JOB_STATE_CANCELLED")
    with pytest.raises(PlatformError, match=r"was cancelled, and not by this step.* run the step again to go on"):
        service.run(NAME, lambda: make(fake), "create_tfrecords")


@pytest.mark.parametrize("when", ["while it is made", "while it runs"])
def test_the_job_is_cancelled_with_the_step(fake, service, when):
    def submit() -> str:
        job_id = make(fake)
        if when == "while it is made":
            raise Terminated
        return job_id

    def end(job) -> None:
        raise Terminated

    service._wait = lambda job_id, step: end(job_id)
    with pytest.raises(Terminated):
        service.run(NAME, submit, "create_tfrecords")
    assert [job.state for job in fake.jobs] == ["JOB_STATE_CANCELLING"]


def test_a_step_that_ends_before_its_job_is_made_cancels_nothing(fake, service):
    make(fake, "another")

    def submit() -> str:
        raise Terminated

    with pytest.raises(Terminated):
        service.run(NAME, submit, "create_tfrecords")
    assert [job.state for job in fake.jobs] == ["JOB_STATE_PENDING"]


def test_a_job_that_is_being_cancelled_is_waited_for_and_made_again(fake, service):
    service.cancel(make(fake))
    assert fake.jobs[0].state == "JOB_STATE_CANCELLING"
    ends = iter(["JOB_STATE_CANCELLED", "JOB_STATE_DONE"])
    fake.on_get = lambda job: job.state in ("JOB_STATE_CANCELLING", "JOB_STATE_PENDING") and fake.end(job, next(ends))
    service.run(NAME, lambda: make(fake), "create_tfrecords")
    assert [job.state for job in fake.jobs] == ["JOB_STATE_CANCELLED", "JOB_STATE_DONE"]


def test_a_job_that_the_service_does_not_know_yet_is_asked_for_again(fake, service):
    done_after(fake, 2)
    made = []

    def submit():
        fake.faults = [404, 404]
        made.append(make(fake))
        return made[-1]

    service.run(NAME, submit, "create_tfrecords")
    assert (fake.made, fake.faults) == (1, [])


def test_an_outage_is_waited_out(fake, service):
    fake.faults = [503, 429, 500]
    done_after(fake, 2)
    service.run(NAME, lambda: make(fake), "create_tfrecords")
    assert fake.jobs[0].state == "JOB_STATE_DONE"


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (403, InputError, r"refused in my-project, us-central1: Injected. .*roles/dataflow.developer"),
        (400, InputError, r"refused .*Injected. Check beam_options"),
        (404, MissingError, r"no such job or place in my-project, us-central1: Injected"),
    ],
)
def test_what_is_refused_is_no_stack_trace(fake, service, status, kind, words):
    fake.faults = [status]
    with pytest.raises(kind, match=words):
        service.find(NAME)


def test_errors_are_told_once_and_nothing_less_is(fake, service):
    make(fake)
    for number, level in enumerate(("BASIC", "ERROR", "WARNING", "ERROR", "DETAILED", "ERROR")):
        fake.say(fake.jobs[0], f"JOB_MESSAGE_{level}", f"{number % 5}")
    assert service.errors(fake.jobs[0].id) == ["1", "3", "0"]

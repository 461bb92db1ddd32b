"""Claims about Dataflow's jobs: made, followed, failed. Beam's client asks a local server with Dataflow's rules."""

import json
import threading

import pytest

from tests.support import beam
from tests.support.dataflow import options_for, wait_for
from tests.support.fakes.dataflow import PROJECT, REGION, FakeDataflow

pytestmark = pytest.mark.slow  # 5 s each, with Apache Beam.

NAME = "tpu-pipelines-records-0123456789abcdef"
# Submits a pipeline as a step does, and does not wait as long; prints what the step would be told.
STEP = """
import json, sys, time
import apache_beam
from tpu_components.core.base.retries import Backoff
from tpu_components.core.work.beam.dataflow import DataflowJob
from tpu_components.core.work.beam.options import as_beams_own
options = json.loads(sys.argv[1])
pipeline = apache_beam.Pipeline(options=as_beams_own(options))
pipeline | apache_beam.Create([1])
try:
    DataflowJob(pipeline, options, "a step", Backoff(sleep=lambda _: time.sleep(0.1))).run()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def run_step(dataflow: FakeDataflow):
    options = {**options_for(dataflow), "sdk_location": "container", "job_name": NAME}
    done = beam.run([beam.PYTHON, "-c", STEP, json.dumps(options)])
    assert done.returncode == 0, done.stderr
    return done


def done_after(dataflow: FakeDataflow, number: int, state: str = "JOB_STATE_DONE", *errors: str) -> None:
    """Let a job end when it is asked for so many times."""
    asked = []

    def go_on(job):
        asked.append(job)
        if len(asked) == number:
            dataflow.end(job, state, *errors)
        elif job.state == "JOB_STATE_PENDING":
            job.state = "JOB_STATE_RUNNING"

    dataflow.on_get = go_on


def test_a_job_is_made_once_and_followed_through_outages_and_answers_that_it_is_not_there(dataflow):
    done_after(dataflow, 3)
    dataflow.faults = [503, 429, 0, 429, 404, 0, 503]
    told = run_step(dataflow).stderr
    assert (dataflow.made, dataflow.faults) == (1, [])
    link = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{dataflow.jobs[0].id}?project={PROJECT}"
    assert f"started the job {NAME}: {link}" in told
    assert told.index("the job is running") < told.index("the job is done")


def test_a_failed_job_says_why_also_where_its_reasons_come_late(dataflow):
    done_after(dataflow, 2, "JOB_STATE_FAILED")

    def say_late():
        wait_for(lambda: len([path for _, path in dataflow.calls if path.endswith("/messages")]) >= 3)
        with dataflow.lock:
            for text in ("A", "A", "Worker 1 died.", "Worker 2 died.", "Worker 3 died."):
                dataflow.say(dataflow.jobs[0], "JOB_MESSAGE_ERROR", text)
            dataflow.say(dataflow.jobs[0], "JOB_MESSAGE_WARNING", "It is late.")

    thread = threading.Thread(target=say_late, daemon=True)
    thread.start()
    told = run_step(dataflow).stdout
    assert (
        f"PlatformError: The Dataflow job {NAME} ended in the state FAILED. Its messages: Worker 1 died. | Worker 2"
        in told
    )
    assert "Worker 3 died.. Its finished work is kept: run the step again" in told


def test_a_job_that_somebody_cancels_is_said_to_be(dataflow):
    done_after(dataflow, 2, "JOB_STATE_CANCELLED")
    told = run_step(dataflow).stdout
    assert "PlatformError:" in told
    assert "was cancelled, but not by this step. Its finished work is kept: run the step again to continue" in told


def test_a_job_that_is_being_cancelled_is_waited_for_and_made_again(dataflow):
    environment = {"tempStoragePrefix": "storage.googleapis.com/bucket/temp"}
    job = {"name": NAME, "clientRequestId": "another step's", "environment": environment}
    dataflow.answer("POST", f"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs", json.dumps(job).encode())
    dataflow.jobs[0].state = "JOB_STATE_CANCELLING"
    asked, ends = [], iter(["JOB_STATE_CANCELLED", "JOB_STATE_DONE"])

    def go_on(job):
        asked.append(job)
        if asked.count(job) == 4:
            dataflow.end(job, next(ends))

    dataflow.on_get = go_on
    assert f"started the job {NAME}" in run_step(dataflow).stderr
    assert [job.state for job in dataflow.jobs] == ["JOB_STATE_CANCELLED", "JOB_STATE_DONE"]

"""Steps that have Dataflow do their work, and what does it in Dataflow's place."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support import beam
from tests.support.cli import REPOSITORY
from tests.support.fakes.dataflow import PROJECT, REGION, FakeDataflow, StoredJob

IMAGE = "europe-docker.pkg.dev/my-project/images/beam@sha256:" + 64 * "0"


@pytest.fixture
def dataflow(bucket: object) -> Iterator[FakeDataflow]:
    """Dataflow, beside a bucket, for a Python that has Beam."""
    beam.require_beam()
    with FakeDataflow() as fake:
        yield fake


def options_for(fake: FakeDataflow) -> dict[str, str]:
    """What Dataflow has to be told."""
    return {
        "runner": "DataflowRunner",
        "project": PROJECT,
        "region": REGION,
        "temp_location": "gs://bucket/temp",
        "sdk_container_image": IMAGE,
        "dataflow_endpoint": fake.url,
        "no_auth": "",
    }


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """A step, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def is_asked_for(fake: FakeDataflow, job: StoredJob) -> bool:
    """Whether somebody follows a job."""
    return any(verb == "GET" and path.endswith(job.id) for verb, path in fake.calls)


def work(fake: FakeDataflow, job: StoredJob) -> None:
    """Do a job as the service does: its workers run the pipeline that was staged."""
    options = job.asked["environment"]["sdkPipelineOptions"]["options"]
    words = [
        beam.PYTHON,
        str(REPOSITORY / "tests" / "support" / "fakes" / "dataflow_worker.py"),
        options["pipelineUrl"],
    ]
    job.state = "JOB_STATE_RUNNING"
    done = beam.run(words)
    error = f"Error message from worker: {done.stderr}"
    fake.end(job, "JOB_STATE_DONE") if done.returncode == 0 else fake.end(job, "JOB_STATE_FAILED", error)


def work_on_all(fake: FakeDataflow) -> threading.Thread:
    """Do every job once it is made."""
    thread = threading.Thread(target=lambda: (wait_for(lambda: fake.jobs), work(fake, fake.jobs[-1])), daemon=True)
    thread.start()
    return thread

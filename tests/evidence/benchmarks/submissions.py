"""Many runs submitted to a platform that loses and delays its answers.

`python -m tests.evidence.benchmarks.submissions` runs it.

Three requests of ten meet a fault, and half of the runs are submitted twice at once. Each must be there once at the
end. The clients, and how long they wait before they try again, are the real ones; the local servers run nothing.
"""

import argparse
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from google.auth.credentials import AnonymousCredentials

from tests.support.fakes.google_api import GoogleApiServer
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.retries import Backoff
from tpu_components.core.files.vertex_clients import VertexService
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Job, PlatformClient, Retrying
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.vertex.client import VertexClient
from tpu_pipelines.submission.submit import RunPlan, plan_submission, submit

SHARE = 0.3
THREADS = 48
_GOOGLE = {"project": "my-project", "region": "us-central1", "bucket": "gs://my-bucket/runs"}


class Idle:
    """Runs nothing: jobs stay as they were created."""

    def start_pipeline_job(self, vertex: Any, name: str) -> None:
        """A pipeline job was created."""

    def start_custom_job(self, vertex: Any, name: str) -> None:
        """A custom job has got its machine."""

    def start_run(self, kubeflow: Any, run_id: str) -> None:
        """A run was created."""

    def stop(self, name: str) -> None:
        """A job was cancelled, or the fake ends."""


@contextmanager
def vertex() -> Iterator[tuple[GoogleApiServer, PlatformClient, Callable[[], list[str]]]]:
    """A Vertex AI, its client, and what gives the ids of the jobs that are there."""
    with FakeVertex(Idle()) as fake:
        service = VertexService("my-project", "us-central1", fake.url, AnonymousCredentials())
        yield (
            fake,
            VertexClient(Settings(**_GOOGLE), service),
            lambda: [one.rpartition("/")[2] for one in fake.pipeline_jobs],
        )


@contextmanager
def kubeflow() -> Iterator[tuple[GoogleApiServer, PlatformClient, Callable[[], list[str]]]]:
    """A Kubeflow, its client, and what gives the names of the runs that are there."""
    with FakeKubeflow(Idle()) as fake:
        yield (
            fake,
            KubeflowClient(Settings(kfp_host=fake.url)),
            lambda: [run.display_name for run in fake.runs.values()],
        )


SERVERS = {"vertex": vertex, "kubeflow": kubeflow}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of many submissions.

    Attributes:
        jobs: How many are there.
        doubled: Ids of which there is more than one.
        lost: Ids of which there is none.
        failed: Submissions that gave up.
        requests: How many arrived at the platform.
        faults: How many of them met a fault that the client noticed.
        seconds: How long all of it took.
    """

    jobs: int
    doubled: int
    lost: int
    failed: int
    requests: int
    faults: int
    seconds: float


def submit_in_a_storm(target: str, number: int, seed: int = 0) -> Outcome:
    """Submit so many runs, half of them twice at once, while three requests of ten go wrong."""
    settings = Settings(**_GOOGLE) if target == "vertex" else Settings(kfp_host="http://kfp")
    config = load_config("digits", ["machine=v5e-4", "preflight=false"])
    (job,) = plan_submission(config, PLATFORMS[target], settings).jobs
    plans = [RunPlan((_with_id(job, f"digits-{index:012x}"),)) for index in range(number)]
    # Those that come twice come one behind the other, so that two threads have them at once.
    sent = itertools.chain.from_iterable([plan] * (1 + index % 2) for index, plan in enumerate(plans))
    with SERVERS[target]() as (server, submitter, job_ids):
        server.storm(SHARE, seed)
        start = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            ends = list(pool.map(lambda plan: _try_to_submit(plan, Retrying(submitter, Backoff())), sent))
        seconds = time.monotonic() - start
        there = Counter(job_ids())
        return Outcome(
            jobs=there.total(),
            doubled=sum(count > 1 for count in there.values()),
            lost=sum(plan.jobs[0].job_id not in there for plan in plans),
            failed=ends.count(False),
            requests=len(server.calls),
            faults=sum(call.status in (0, 429, 503) for call in server.calls),
            seconds=seconds,
        )


def _with_id(job: Job, job_id: str) -> Job:
    return dataclasses.replace(job, job_id=job_id)


def _try_to_submit(plan: RunPlan, submitter: PlatformClient) -> bool:
    try:
        return submit(plan, submitter).job_id == plan.jobs[0].job_id
    except Exception as error:  # To be counted; the others go on.
        print(f"{plan.jobs[0].job_id}: {error!r}", flush=True)
        return False


def main() -> None:
    """Print what became of them, a line a platform."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--target", choices=SERVERS, action="append")
    arguments = parser.parse_args()
    for target in arguments.target or SERVERS:
        print(f"{target}: {submit_in_a_storm(target, arguments.number)}", flush=True)


if __name__ == "__main__":
    main()

"""Claims about the longest texts that the platforms store: each is what the local servers take."""

import dataclasses
import random

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.evidence.benchmarks.submissions import Idle
from tests.evidence.databases.__main__ import earlier_description, random_jobs, send
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.core.machines.machine_spec import MachineSpec
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms import limits
from tpu_pipelines.platforms.jobs import Job
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.platforms.kubeflow.limits import KUBEFLOW_LIMITS
from tpu_pipelines.platforms.limits import check_texts
from tpu_pipelines.platforms.vertex.client import VertexClient
from tpu_pipelines.platforms.vertex.limits import VERTEX_LIMITS

PIPELINE = "pipelineInfo: {name: training-pipeline}\nroot: {dag: {tasks: {}}}\n"
JOB = Job("digits-1", "digits", PIPELINE, MachineSpec("v5e-4"), {})
CRON = "0 3 * * *"
pytestmark = pytest.mark.usefixtures("no_sign_in")


@pytest.fixture
def kubeflow():
    with FakeKubeflow(Idle()) as fake:
        yield fake, KubeflowClient(Settings(kfp_host=fake.url))


@pytest.fixture
def vertex():
    with FakeVertex(Idle()) as fake:
        settings = Settings(project="my-project", region="us-central1", bucket="gs://my-bucket")
        yield fake, VertexClient(settings, VertexService("my-project", "us-central1", fake.url, AnonymousCredentials()))


def unlimited(monkeypatch):
    """Send everything, so that the server says what it takes."""
    monkeypatch.setattr(limits.Limit, "length", lambda limit, text: 0)


def cron_of(length):
    return f"{'0,' * ((length - 11) // 2)}{'0' * (1 + (length - 11) % 2)} 3 * * *"


TOO_LONG = {
    "experiment": lambda platform, length: platform.create(dataclasses.replace(JOB, name="x" * length)),
    "run": lambda platform, length: platform.create(dataclasses.replace(JOB, job_id="x" * length)),
    "recurring_run": lambda platform, length: platform.create_schedule(
        dataclasses.replace(JOB, name="x" * length), CRON
    ),
    "cron": lambda platform, length: platform.create_schedule(JOB, cron_of(length)),
    "pipeline": lambda platform, length: platform.create(
        dataclasses.replace(JOB, package=f"{PIPELINE}schemaVersion: '{'x' * (length - len(PIPELINE) - 18)}'\n")
    ),
}


@pytest.mark.parametrize("field", TOO_LONG)
def test_what_kubeflow_could_not_store_is_refused_before_anything_is_sent(kubeflow, field):
    fake, platform = kubeflow
    with pytest.raises(InputError, match=r"^The .* is too long: expected at most [\d,]+ (bytes|characters), received"):
        TOO_LONG[field](platform, KUBEFLOW_LIMITS[field].most + 1)
    assert fake.calls == []


@pytest.mark.parametrize("field", ["experiment", "run", "cron"])
def test_the_longest_texts_of_kubeflow_are_stored(kubeflow, field):
    TOO_LONG[field](kubeflow[1], KUBEFLOW_LIMITS[field].most)


@pytest.mark.parametrize("field", ["experiment", "run", "cron", "pipeline"])
def test_the_local_kubeflow_refuses_what_is_longer(kubeflow, field, monkeypatch):
    unlimited(monkeypatch)
    with pytest.raises((PlatformError, InputError), match=r"too long|cannot exceed|has \d+ bytes"):
        TOO_LONG[field](kubeflow[1], KUBEFLOW_LIMITS[field].most + 20)


@pytest.mark.parametrize("field", ["pipeline_job_id", "pipeline_job", "custom_job", "schedule"])
def test_what_vertex_could_not_store_is_refused_before_anything_is_sent(vertex, field):
    fake, platform = vertex
    names = {"job_id" if field in ("pipeline_job_id", "custom_job") else "name": "x" * (VERTEX_LIMITS[field].most + 1)}
    with pytest.raises(InputError, match=r"is too long: expected at most 12[78] characters, received 129|received 128"):
        platform.create_schedule(dataclasses.replace(JOB, **names), CRON)
    assert fake.calls == []


@pytest.mark.parametrize("field", ["pipeline_job_id", "pipeline_job", "schedule"])
def test_the_local_vertex_refuses_what_is_longer(vertex, field, monkeypatch):
    unlimited(monkeypatch)
    _, platform = vertex
    most = VERTEX_LIMITS[field].most
    if field == "schedule":
        platform.create_schedule(dataclasses.replace(JOB, name="x" * most), CRON)
        with pytest.raises(InputError, match=r"schedule\.display_name has at most 128"):
            platform.create_schedule(dataclasses.replace(JOB, name="x" * (most + 1)), CRON)
        return
    name = "job_id" if field == "pipeline_job_id" else "name"
    platform.create(dataclasses.replace(JOB, **{"job_id": "another", name: "x" * most}))
    with pytest.raises(InputError, match=r"Invalid pipeline job id|pipeline_job\.display_name has at most 128"):
        platform.create(dataclasses.replace(JOB, **{name: "x" * (most + 1)}))


def test_a_length_is_counted_as_the_platform_counts_it():
    check_texts(KUBEFLOW_LIMITS, {"description": "ü" * 255, "experiment": "ü" * 64})
    with pytest.raises(InputError, match=r"experiment is too long: expected at most 128 bytes, received 130: 'üüü"):
        check_texts(KUBEFLOW_LIMITS, {"experiment": "ü" * 65})


def test_every_description_fits_whatever_the_names_and_labels(kubeflow):
    """In a real database: `python -m tests.evidence.databases`."""
    fake, platform = kubeflow
    lengths = []
    chance = random.Random(1)
    for job, settings in random_jobs(30, seed=1):
        send(job, settings, fake, chance)
        lengths.append(len(earlier_description(job)))
        assert platform.get(job.job_id).digest == job.labels["tpu_pipelines_digest"]
    assert min(lengths) > KUBEFLOW_LIMITS["description"].most
    assert len(fake.runs) == len(fake.recurring_runs) == 30

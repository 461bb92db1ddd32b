"""Claims about what a platform's execution cache answers, by the rules of `tests.support.fakes.execution_cache`."""

import contextlib
import dataclasses
import time

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp import dsl

from tests.support.fakes import execution, kubeflow
from tests.support.fakes.execution_cache import ABSENT, AS_WRITTEN, FILLED_IN, ExecutionCache
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.base.container_images import Images
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.create_tfrecords.component import list_source
from tpu_components.kfp import on_current_data, with_images
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline import cache_keys
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.vertex.client import VertexClient
from tpu_pipelines.submission.schedule import upsert
from tpu_pipelines.submission.submit import plan_submission

_SETTINGS = Settings(project="my-project", region="us-central1", bucket="gs://bucket/runs")
_OVERRIDES = ("machine=v5e-4", "data.source=images:gs://bucket/photos", "training.batch_size_per_replica=8")


def _list_source(parameters):
    return {"Output": list_source.python_func(**parameters)}


def _cache(defaults=AS_WRITTEN):
    return ExecutionCache({"list-source": _list_source}, defaults)


@pytest.fixture
def photos(bucket):
    """Two classes of photos in the bucket; nobody looks into them before they are written as records."""
    for label in ("cat", "dog"):
        for number in range(10):
            bucket.blob(f"photos/{label}/{number}.png").upload_from_string(f"{label} {number}")
    return bucket


def _plan(target, settings, *overrides):
    return plan_submission(load_config("digits", (*_OVERRIDES, *overrides)), PLATFORMS[target], settings)


@contextlib.contextmanager
def _vertex(cache, **options):
    with FakeVertex(execution.Simulate(cache=cache, **options)) as fake:
        yield (
            fake,
            VertexClient(_SETTINGS, VertexService("my-project", "us-central1", fake.url, AnonymousCredentials())),
        )


def _fire_three_times(photos, fire, count_trained):
    """How often was trained after each of three firings: with the same data as when it was scheduled, new, the same."""
    trained = []
    for is_new in (False, True, False):
        if is_new:
            photos.blob("photos/cat/3.png").upload_from_string("another cat")
        fire()
        trained.append(count_trained())
    return trained


@pytest.mark.parametrize("defaults", [ABSENT, AS_WRITTEN, FILLED_IN])
def test_a_schedule_trains_when_the_data_are_new_and_never_else_on_vertex_ai(photos, defaults):
    cache = _cache(defaults)
    with _vertex(cache) as (fake, vertex):
        upsert(vertex, _plan("vertex", _SETTINGS).jobs[0], "0 3 * * *")
        (name,) = fake.schedules
        trained = _fire_three_times(photos, lambda: fake.fire(name), lambda: len(fake.custom_jobs))
        states = {
            task.task_name: task.state.name for task in list(fake.pipeline_jobs.values())[-1].job_detail.task_details
        }
    assert trained == [1, 2, 2]
    assert states["list-source"] == "SUCCEEDED", "it looks anew each time"
    assert {name for name, state in states.items() if state == "SKIPPED"} == {
        "create-tfrecords",
        "preflight-training",
        "train-model",
        "evaluate-model",
        "export-model",
    }
    assert cache.ran.count("create-tfrecords") == 2


def test_a_schedule_trains_when_the_data_are_new_and_never_else_on_kubeflow(photos):
    settings = Settings(kfp_host="", bucket="gs://bucket/runs")
    cache = _cache()
    with FakeKubeflow(kubeflow.Simulate(cache=cache)) as fake:
        server = KubeflowClient(Settings(kfp_host=fake.url, bucket="gs://bucket/runs"))
        upsert(server, _plan("kubeflow", settings).jobs[0], "0 3 * * *")
        (name,) = fake.recurring_runs
        trained = _fire_three_times(photos, lambda: fake.fire(name), lambda: cache.ran.count("train-model"))
    assert trained == [1, 2, 2]
    assert cache.ran.count("list-source") == 3


def test_equal_work_is_trained_once_and_different_work_again(photos, monkeypatch):
    def job(*overrides):
        return _plan("vertex", _SETTINGS, *overrides).jobs[0]

    plain, larger, seeded = job(), job("machine=v5e-8"), job("training.seed=1")
    judged_otherwise = job("gate.top_k=2")
    monkeypatch.setattr(cache_keys, "code_version", lambda step: f"other code of {step}")
    of_other_code = job()
    other_image = dataclasses.replace(_SETTINGS, images=Images("europe-docker.pkg.dev/p/r/steps@sha256:1"))
    in_other_image = _plan("vertex", other_image).jobs[0]
    work = [plain, plain, larger, seeded, judged_otherwise, of_other_code, in_other_image, in_other_image]
    for defaults in (ABSENT, AS_WRITTEN, FILLED_IN):
        trained = []
        with _vertex(_cache(defaults)) as (fake, vertex):
            for one in work:
                upsert(vertex, one, "0 3 * * *")
                fake.fire(next(iter(fake.schedules)))
                trained.append(len(fake.custom_jobs))
        assert trained == [1, 1, 2, 3, 3, 4, 5, 5], defaults


def test_a_training_that_failed_or_was_cancelled_is_no_answer(photos):
    with _vertex(_cache(), hold=True) as (fake, vertex):
        upsert(vertex, _plan("vertex", _SETTINGS).jobs[0], "0 3 * * *")
        (name,) = fake.schedules

        def fire():
            job = fake.fire(name)
            return job, list(fake.custom_jobs)[-1]

        job, custom_job = fire()
        fake.end_custom_job(custom_job, v1.JobState.JOB_STATE_FAILED, 3, "exited with a non-zero status of 1")
        fake.execution.start_pipeline_job(fake, job.name)
        job, _ = fire()
        vertex.cancel(job.name.rpartition("/")[2])
        assert len(fake.custom_jobs) == 2
        time.sleep(fake.cancelling_seconds)
        job, custom_job = fire()
        assert len(fake.custom_jobs) == 3
        fake.end_custom_job(custom_job, v1.JobState.JOB_STATE_SUCCEEDED)
        fake.execution.start_pipeline_job(fake, job.name)
        fire()
        assert len(fake.custom_jobs) == 3


def _records_of_somebody(is_current):
    """A pipeline that is not ours, compiled, with the records of a bucket."""
    create_tfrecords = with_images("docker.io/me/python@sha256:" + 64 * "0").create_tfrecords
    write = create_tfrecords if not is_current else on_current_data(create_tfrecords)

    @dsl.pipeline(name="somebodys")
    def pipeline(source: str = "images:gs://bucket/photos"):
        write(source=source, image_size=[8, 8])

    return json_format.MessageToDict(pipeline.pipeline_spec)


@pytest.mark.parametrize(("is_current", "written"), [(True, [1, 2, 2]), (False, [1, 1, 1])])
@pytest.mark.filterwarnings("ignore::tpu_components.kfp.StaleCacheWarning")
def test_in_a_pipeline_of_somebody_else_new_data_give_new_records_with_on_current_data(photos, is_current, written):
    cache = _cache()
    spec = _records_of_somebody(is_current)
    with FakeVertex(execution.Simulate(cache=cache)) as fake:
        service = VertexService("my-project", "us-central1", fake.url, AnonymousCredentials())

        def run():
            config = v1.PipelineJob.RuntimeConfig(gcs_output_directory="gs://bucket/runs")
            job = v1.PipelineJob(pipeline_spec=spec, runtime_config=config)
            request = v1.CreatePipelineJobRequest(parent=service.parent, pipeline_job=job)
            service.call("PipelineService", "create_pipeline_job", request)

        assert _fire_three_times(photos, run, lambda: cache.ran.count("create-tfrecords")) == written

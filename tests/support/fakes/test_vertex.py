"""Claims about the fake Vertex AI on which other tests rely."""

import datetime
import json
import time

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp import dsl

from tests.support.fakes.clock import Clock
from tests.support.fakes.execution import RunOnCpu, Simulate
from tests.support.fakes.vertex import DEFAULT_ACCOUNT, FakeVertex

PARENT = "projects/my-project/locations/us-west1"
MACHINE = {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1}
CONTAINER = {"image_uri": "europe-docker.pkg.dev/my-project/images/serving@sha256:0"}


KEY = "projects/my-project/locations/us-west1/keyRings/ring/cryptoKeys/key"
PIPELINE_JOB = {"pipeline_spec": {"root": {"dag": {"tasks": {}}}}, "runtime_config": {"gcs_output_directory": "gs://b"}}


@pytest.fixture
def fake():
    with FakeVertex(Simulate(), serve=lambda model: lambda instances, _: [model.artifact_uri] * len(instances)) as fake:
        yield fake


def client(fake, service):
    kind = getattr(v1, f"{service}ServiceClient")
    return kind(client_options={"api_endpoint": fake.url}, transport="rest", credentials=AnonymousCredentials())


def custom_job(machine_type="ct5lp-hightpu-4t", topology="2x2", pool=None, spec=None, **more):
    """Return a valid custom job, with some of its fields replaced."""
    machine = {"machine_type": machine_type, "tpu_topology": topology}
    fields = {"replica_count": 1, "machine_spec": machine, "container_spec": CONTAINER, **(pool or {}), **more}
    return {"display_name": "train", "job_spec": {"worker_pool_specs": [fields], **(spec or {})}}


def upload(fake, artifact_uri, **request):
    model = {"display_name": "digits", "artifact_uri": artifact_uri, "container_spec": CONTAINER}
    aliases = request.pop("version_aliases", [])
    request = {"parent": PARENT, "model": {**model, "version_aliases": aliases}, **request}
    return client(fake, "Model").upload_model(request).result()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (custom_job("n1-standard-4"), r"Machine type 'n1-standard-4' is not supported"),
        (custom_job(topology=""), r"Invalid TPU topology '' for machine type ct5lp-hightpu-4t"),
        (custom_job("ct5lp-hightpu-1t"), r"Invalid TPU topology '2x2'"),
        (custom_job("cloud-tpu", ""), r"cloud-tpu takes TPU_V2 or TPU_V3 and a count"),
        (custom_job("ct6e-standard-4t"), r"ct6e-standard-4t is not supported for training in us-west1"),
        (custom_job(disk_spec={"boot_disk_type": "pd-extreme"}), r"Disk type pd-extreme is not supported\."),
        (
            custom_job(disk_spec={"boot_disk_type": "hyperdisk-balanced"}),
            r"hyperdisk-balanced is not supported by ct5lp",
        ),
        (custom_job(replica_count=2), r"one worker pool of one replica"),
        (custom_job(container_spec={}), r"image_uri must name an image in Artifact Registry.* Received: ''"),
        (custom_job(container_spec={"image_uri": "steps:latest"}), r"Received: 'steps:latest'"),
        (custom_job(spec={"scheduling": {"strategy": "FLEX_START"}}), r"FLEX_START is not supported for TPUs"),
        (custom_job(topology="4x4", spec={"scheduling": {"strategy": "SPOT"}}), r"not supported for TPU Pods"),
        (custom_job(spec={"scheduling": {"timeout": "604801s"}}), r"A task runs for 7 days at most"),
        (
            custom_job(spec={"persistent_resource_id": "{{$.pipeline_persistent_resource_id}}"}),
            r"no persistent resource",
        ),
        (custom_job(spec={"network": "projects/p/global/networks/n"}), r"The network's project must be a number"),
        (custom_job(spec={"base_output_directory": {"output_uri_prefix": "/tmp"}}), r"must be a gs:// path"),
        (
            custom_job(spec={"tensorboard": "projects/p/locations/us-west1/tensorboards/1"}),
            r"must have a service_account",
        ),
        ({**custom_job(), "display_name": ""}, r"display_name is required"),
        ({**custom_job(), "labels": {str(number): "" for number in range(65)}}, r"At most 64 labels"),
        ({**custom_job(), "encryption_spec": {"kms_key_name": KEY.replace("west1", "east1")}}, r"one of us-west1"),
    ],
)
def test_a_custom_job_that_cannot_be_one_is_refused_at_creation(fake, job, message):
    with pytest.raises(exceptions.BadRequest, match=message):
        client(fake, "Job").create_custom_job(parent=PARENT, custom_job=job)
    assert not fake.custom_jobs


def test_a_training_writes_to_a_regional_bucket(fake):
    spec = {"base_output_directory": {"output_uri_prefix": "gs://my-bucket/run"}}
    client(fake, "Job").create_custom_job(parent=PARENT, custom_job=custom_job(spec=spec))
    fake.cloud.buckets["my-bucket"].location_type = "dual-region"
    with pytest.raises(exceptions.BadRequest, match="my-bucket is not regional"):
        client(fake, "Job").create_custom_job(parent=PARENT, custom_job=custom_job(spec=spec))


def test_the_service_fills_in_what_a_job_does_not_say(fake):
    training = client(fake, "Job").create_custom_job(parent=PARENT, custom_job=custom_job())
    assert training.job_spec.scheduling.timeout == datetime.timedelta(days=7)
    assert training.job_spec.worker_pool_specs[0].disk_spec.boot_disk_size_gb == 100
    job = client(fake, "Pipeline").create_pipeline_job(parent=PARENT, pipeline_job=PIPELINE_JOB)
    assert job.service_account == DEFAULT_ACCOUNT
    assert "vertex-ai-pipelines-run-billing-id" in job.labels


def test_an_account_acts_reads_and_encrypts_only_as_it_may(fake):
    fake.not_acted_as, fake.unusable_keys = {DEFAULT_ACCOUNT}, {KEY}
    with pytest.raises(exceptions.BadRequest, match=f"permission to act as service_account: {DEFAULT_ACCOUNT}"):
        client(fake, "Pipeline").create_pipeline_job(parent=PARENT, pipeline_job=PIPELINE_JOB)
    endpoint = {"display_name": "e", "encryption_spec": {"kms_key_name": KEY}}
    with pytest.raises(exceptions.Forbidden, match=r"may not use the key"):
        client(fake, "Endpoint").create_endpoint(parent=PARENT, endpoint=endpoint)
    fake.not_acted_as = set()
    fake.unreadable = {"gs://b/1", CONTAINER["image_uri"]}
    with pytest.raises(exceptions.BadRequest, match=r"gcp-sa-aiplatform.* does not have .*storage.objects.get"):
        upload(fake, "gs://b/1/export")
    created = client(fake, "Job").create_custom_job(parent=PARENT, custom_job=custom_job())
    assert "does not have permission to pull" in fake.custom_jobs[created.name].error.message
    fake.unreadable = {"gs://b"}
    with pytest.raises(exceptions.BadRequest, match=DEFAULT_ACCOUNT):
        client(fake, "Pipeline").create_pipeline_job(parent=PARENT, pipeline_job=PIPELINE_JOB)


def test_a_job_that_succeeds_while_it_is_cancelled_has_succeeded():
    clock = Clock()
    with FakeVertex(Simulate(hold=True), clock=clock.now) as fake:
        jobs = client(fake, "Job")
        name = jobs.create_custom_job(parent=PARENT, custom_job=custom_job()).name
        jobs.cancel_custom_job(name=name)
        fake.end_custom_job(name, v1.JobState.JOB_STATE_SUCCEEDED)
        clock.sleep(fake.cancelling_seconds)
        assert jobs.get_custom_job(name=name).state is v1.JobState.JOB_STATE_SUCCEEDED


@dsl.component(base_image="python", install_kfp_package=False)
def return_text(size: int) -> str:
    return "x" * size


@dsl.component(base_image="python", install_kfp_package=False)
def write_part(number: int, part: dsl.Output[dsl.Artifact]) -> None:
    part.metadata["number"] = number


@dsl.component(base_image="python", install_kfp_package=False)
def merge_parts(parts: dsl.Input[list[dsl.Artifact]], merged: dsl.Output[dsl.Artifact]) -> None:
    merged.metadata["count"] = len(parts)


def submit(fake, pipeline):
    """Submit a pipeline, and wait for its end."""
    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    jobs, job = client(fake, "Pipeline"), {**PIPELINE_JOB, "pipeline_spec": spec}
    name = jobs.create_pipeline_job(parent=PARENT, pipeline_job=job).name
    while not (ended := jobs.get_pipeline_job(name=name)).end_time:
        time.sleep(0.05)
    return ended


def test_a_task_returns_no_more_than_the_service_takes(tmp_path):
    @dsl.pipeline(name="long")
    def pipeline():
        return_text(size=131_072)

    with FakeVertex(RunOnCpu(tmp_path)) as fake:
        ended = submit(fake, pipeline)
    assert ended.state.name == "PIPELINE_STATE_FAILED"
    (said,) = [task.error.message for task in ended.job_detail.task_details if task.error.message]
    assert "return-text have 131" in said


@pytest.mark.parametrize(("count", "is_taken"), [(99, True), (100, False)])
def test_a_task_has_no_more_artifacts_than_the_service_takes(fake, count, is_taken):
    @dsl.pipeline(name="wide")
    def pipeline():
        with dsl.ParallelFor(list(range(count))) as number:
            written = write_part(number=number)
        merge_parts(parts=dsl.Collected(written.outputs["part"]))

    if is_taken:
        submit(fake, pipeline)
        return
    with pytest.raises(exceptions.BadRequest, match="Task merge-parts has 101 input and output artifacts"):
        submit(fake, pipeline)


@pytest.mark.parametrize(
    ("script", "restarts", "code", "attempts"),
    [
        ("true", False, 0, 1),
        ('[ "$TPU_WORKER_ID" = 0 ] && exit 134; sleep 60', False, 134, 4),
        ('[ "$TPU_WORKER_ID" = 0 ] && exit 1; sleep 60', True, 1, 1),
        ('[ "$TPU_WORKER_ID" = 0 ] && kill -9 $$; sleep 60', True, -9, 4),
        ('[ "$TPU_WORKER_ID" = 0 ] && kill -9 $$; sleep 60', False, -9, 1),
    ],
)
def test_a_slice_ends_with_host_0_and_starts_again_after_an_abort(tmp_path, script, restarts, code, attempts):
    executor_input = json.dumps({"inputs": {"parameterValues": {}}})
    words = ["sh", "-c", f"echo $TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES; {script}", "--executor_input", executor_input]
    pool = {"container_spec": {**CONTAINER, "command": words}}
    job = custom_job(topology="4x4", pool=pool, spec={"scheduling": {"restart_job_on_worker_restart": restarts}})
    with FakeVertex(RunOnCpu(tmp_path)) as fake:
        jobs = client(fake, "Job")
        name = jobs.create_custom_job(parent=PARENT, custom_job=job).name
        while not (ended := jobs.get_custom_job(name=name)).end_time:
            time.sleep(0.05)
        assert ended.error.message.endswith(f"status of {code}." if code else "")
        assert fake.execution.attempts[ended.name] == attempts
    hosts = ",".join(["127.0.0.1"] * 4)
    assert (tmp_path / f"{name.rpartition('/')[2]}.log").read_text() == f"0 of {hosts}\n" * attempts


@pytest.mark.parametrize("condition", ['display_name:"x"', "display_name=x OR state=y", "()"])
def test_a_filter_that_is_not_understood_is_refused(fake, condition):
    with pytest.raises(exceptions.BadRequest, match=r"Invalid filter"):
        client(fake, "Pipeline").list_pipeline_jobs({"parent": PARENT, "filter": condition})


def test_listings_have_pages(fake):
    for number in range(5):
        upload(fake, f"gs://b/{number}")
    found = list(client(fake, "Model").list_models({"parent": PARENT, "page_size": 2}))
    assert len({model.name for model in found}) == 5
    assert len(fake.called("list_models")) == 3


def test_what_the_service_would_refuse_is_refused(fake):
    jobs = client(fake, "Pipeline")
    job = v1.PipelineJob(pipeline_spec={"root": {}}, runtime_config={"gcs_output_directory": "gs://b"})
    for change, job_id, message in (
        ({}, "Upper", r"Invalid pipeline job id"),
        ({"labels": {"Team": "x"}}, "job", r"Invalid label"),
        ({"runtime_config": {}}, "job", r"must be a gs:// path"),
        ({"pipeline_spec": {}}, "job", r"pipeline_spec is required"),
    ):
        changed = v1.PipelineJob(job)
        for field, value in change.items():
            setattr(changed, field, value)
        with pytest.raises(exceptions.BadRequest, match=message):
            jobs.create_pipeline_job(parent=PARENT, pipeline_job=changed, pipeline_job_id=job_id)
    with pytest.raises(exceptions.MethodNotImplemented, match=r"This fake has no list_training_pipelines"):
        jobs.list_training_pipelines(parent=PARENT)


def test_a_deployment_changes_no_traffic_unless_told_and_its_id_is_given_once(fake):
    endpoints = client(fake, "Endpoint")
    endpoint = endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "e"}, endpoint_id="e").result().name
    model = upload(fake, "gs://b/1", model_id="digits").model
    deployed = {"id": "7", "model": model, "dedicated_resources": MACHINE}
    endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed).result()
    assert dict(endpoints.get_endpoint(name=endpoint).traffic_split) == {}
    with pytest.raises(exceptions.BadRequest, match=r"doesn't have traffic_split"):
        client(fake, "Prediction").predict(endpoint=endpoint, instances=[1])
    with pytest.raises(exceptions.Conflict, match=r"Deployed model 7 already exists"):
        endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed)


def deployed_to(fake, **fields):
    """Return an endpoint with one model, which has all traffic."""
    endpoints = client(fake, "Endpoint")
    endpoint = endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "e", **fields}).result().name
    deployed = {"model": upload(fake, "gs://b/1").model, "dedicated_resources": MACHINE}
    endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split={"0": 100}).result()
    return endpoints.get_endpoint(name=endpoint)


def ask(address, endpoint, instance=1):
    asked = v1.PredictionServiceClient(
        client_options={"api_endpoint": address}, transport="rest", credentials=AnonymousCredentials()
    )
    return list(asked.predict(endpoint=endpoint.name, instances=[instance]).predictions)


def test_a_request_is_no_larger_than_its_endpoint_takes(fake):
    with pytest.raises(exceptions.BadRequest, match=r"exceeds 1500000 bytes"):
        ask(fake.url, deployed_to(fake), "x" * 1_500_000)
    dedicated = deployed_to(fake, dedicated_endpoint_enabled=True)
    assert ask(dedicated.dedicated_endpoint_dns, dedicated, "x" * 1_500_000) == ["gs://b/1"]


def test_the_name_of_a_deleted_endpoint_is_free_again_after_seven_days():
    clock = Clock()
    with FakeVertex(Simulate(), clock=clock.now) as fake:
        endpoints, endpoint = client(fake, "Endpoint"), {"display_name": "e"}
        name = endpoints.create_endpoint(parent=PARENT, endpoint=endpoint, endpoint_id="e").result().name
        endpoints.delete_endpoint(name=name).result()
        with pytest.raises(exceptions.Conflict, match="it was deleted lately"):
            endpoints.create_endpoint(parent=PARENT, endpoint=endpoint, endpoint_id="e")
        clock.sleep(7 * 86400)
        assert endpoints.create_endpoint(parent=PARENT, endpoint=endpoint, endpoint_id="e").result().name == name

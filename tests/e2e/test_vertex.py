"""Compile, submit, run, judge, register, deploy, predict: the real clients, steps and serving code on fakes."""

import io
import json

import numpy as np
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1
from sklearn.datasets import load_digits

from tests.support.fakes.execution import RunOnCpu
from tests.support.fakes.serving import Containers
from tests.support.fakes.vertex import FakeVertex, canonical
from tests.support.losing_hosts import HostLoss, arrays
from tpu_pipelines.cli.main import main

ROOT = "projects/my-project/locations/us-central1/models"
DATA = "gs://bucket/data/digits.npz"
SMALL = (
    *(f"data.source=npz:{DATA}", "preflight=false", "gate.minimum={}"),
    *("export.calibration_examples=50", "model.parameters={filters: 8, units: 32}"),
)
# A run that takes half a minute; what is asked of it is only to be no worse than the champion.
OPTIONS = (
    *("machine=v5e-4", *SMALL),
    f"deploy.serving_image=europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}",
    *("deploy.registry=vertex", "deploy.endpoint=digits", "deploy.endpoint_traffic=50"),
)


@pytest.fixture
def digits(bucket):
    """The bundled digits on Cloud Storage."""
    data = load_digits()
    images, labels = data.images.astype(np.uint8)[..., None] * 15, data.target
    content = io.BytesIO()
    np.savez(content, x=images, y=labels)
    bucket.blob("data/digits.npz").upload_from_string(content.getvalue())
    return images, labels


@pytest.fixture
def cloud(digits, tmp_path, monkeypatch):
    """Vertex AI and Cloud Storage, and the variables by which the command line and the steps find them."""
    containers = Containers(tmp_path)
    with containers.running(), FakeVertex(RunOnCpu(tmp_path / "jobs"), serve=containers) as fake:
        for name, value in fake.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
        yield fake


def submit(capfd, *overrides, options=OPTIONS):
    """Submit and wait; the exit code, and what is said."""
    arguments = [word for override in (*options, *overrides) for word in ("--set", override)]
    code = main(["submit", "digits", *arguments, "--wait", "--poll-seconds", "0.5", "--json"])
    out, err = capfd.readouterr()
    assert "token-" not in out + err
    return code, json.loads(out), err


def versions(fake):
    return {one.version_id: sorted(one.version_aliases) for one in fake.models.get(canonical(f"{ROOT}/digits"), [])}


def served(fake):
    """The endpoint that users ask; on the one where versions are tried nothing is left."""
    endpoint, candidate = sorted(fake.endpoints.values(), key=lambda one: one.name)
    assert (candidate.name, list(candidate.deployed_models)) == (f"{endpoint.name}-candidate", [])
    return endpoint


def shares(fake):
    endpoint = served(fake)
    return {one.model_version_id: endpoint.traffic_split.get(one.id, 0) for one in endpoint.deployed_models}


def evaluation(fake, job_id):
    (path,) = (fake.execution.root / job_id).rglob("evaluation.json")
    return json.loads(path.read_text())


@pytest.mark.slow  # Runs the pipeline seven times for real: some six minutes on 2 idle cores.
@pytest.mark.timeout(3600)
def test_every_model_that_the_gate_lets_through_is_served_and_no_other_is(cloud, digits, capfd):
    weak, strong = ("training.epochs=1", "training.learning_rate=0.002"), "training.epochs=6"

    code, first, err = submit(capfd, *weak)
    assert code == 0, err
    assert evaluation(cloud, first["job_id"])["gate"]["reasons"][0]["text"] == "there is no other champion to beat"
    assert (versions(cloud), shares(cloud)) == ({"1": ["champion", "default"]}, {"1": 100})

    code, _, err = submit(capfd, *weak, "training.learning_rate=1e-9")
    assert code == 3, err
    assert (versions(cloud), shares(cloud)) == ({"1": ["champion", "default"]}, {"1": 100}), "not beaten"

    code, beaten, err = submit(capfd, strong)
    assert code == 0, err
    assert evaluation(cloud, beaten["job_id"])["registered_champion"]["version"] == "1"
    assert (versions(cloud), shares(cloud)) == ({"1": [], "2": ["champion", "default"]}, {"1": 50, "2": 50})

    code, again, err = submit(capfd, strong, f"gate.champion={ROOT}/digits@2")
    assert code == 0, err
    assert evaluation(cloud, again["job_id"])["registered_champion"]["version"] == "1", "not compared with itself"
    assert (versions(cloud), shares(cloud)) == ({"1": [], "2": ["champion", "default"]}, {"1": 50, "2": 50})

    code, alike, err = submit(capfd, strong, "training.learning_rate=0.00201")
    assert code == 3, err
    reasons = evaluation(cloud, alike["job_id"])["gate"]["reasons"]
    assert [reason["metric"] for reason in reasons if "it must be better" in reason["text"]] == ["accuracy"]
    assert (versions(cloud), shares(cloud)) == ({"1": [], "2": ["champion", "default"]}, {"1": 50, "2": 50})

    code, _, err = submit(capfd, strong, "training.learning_rate=1e30")
    assert code == 1, "a model of NaN is not even evaluated"
    assert "train_model" in err
    assert (versions(cloud), shares(cloud)) == ({"1": [], "2": ["champion", "default"]}, {"1": 50, "2": 50})

    code, _, err = submit(capfd, strong, "deploy.endpoint_traffic=100")
    assert code == 0, err
    assert (versions(cloud), shares(cloud)) == ({"1": [], "2": ["champion", "default"]}, {"2": 100})

    client = v1.PredictionServiceClient(
        client_options={"api_endpoint": cloud.url}, transport="rest", credentials=AnonymousCredentials()
    )
    images, labels = digits
    request = {"endpoint": served(cloud).name, "instances": images[-100:].tolist()}
    response = client.predict(v1.PredictRequest.from_json(json.dumps(request)))
    assert response.model_version_id == "2"
    right = [one["class"] == str(label) for one, label in zip(response.predictions, labels[-100:], strict=True)]
    assert sum(right) > 85


# On the CPU that stands for the slice each host has one device: 64 examples a step.
FOUR_HOSTS = (
    *SMALL,
    *("machine=v5e-16", "training.backend=jax", "training.batch_size_per_replica=16", "training.epochs=20"),
    *("training.learning_rate=0.002", "training.learning_rate_scaling=none", "training.checkpoint_seconds=0.2"),
)


def custom_job(fake, name):
    (job,) = [job for job in fake.custom_jobs.values() if job.labels["tpu_pipelines_run"] == name]
    return job


@pytest.mark.slow  # Two runs, each with four processes that train: three minutes on 2 idle cores.
@pytest.mark.timeout(1800)
def test_a_slice_of_four_hosts_trains_and_survives_losing_one(cloud, capfd):
    results, weights = {}, {}
    folder = cloud.execution.root / "bucket" / "pipelines" / "lost"
    loss = HostLoss(folder, lambda: cloud.execution.lose_host(custom_job(cloud, "lost").name, 2))
    for name in ("whole", "lost"):
        code, said, err = submit(capfd, f"name={name}", options=FOUR_HOSTS)
        assert code == 0, err
        assert evaluation(cloud, said["job_id"])["challenger"]["accuracy"] > 0.9
        assert list((cloud.execution.root / said["job_id"]).rglob("saved_model.pb"))
        (path,) = (cloud.execution.root / said["job_id"]).rglob("last.weights.h5")
        weights[name], results[name] = arrays(path), json.loads((path.parent / "model.json").read_text())["training"]
        (pool,) = custom_job(cloud, name).job_spec.worker_pool_specs
        assert (pool.replica_count, pool.machine_spec.tpu_topology) == (1, "4x4")
    starts = {name: cloud.execution.attempts[custom_job(cloud, name).name] for name in results}
    print(starts, {name: (one["sessions"], one["goodput"]) for name, one in results.items()}, loss.lost_at)
    assert loss.lost_at >= 5
    assert starts == {name: one["sessions"] for name, one in results.items()} == {"whole": 1, "lost": 2}
    assert results["whole"]["num_replicas"] == results["lost"]["num_replicas"] == 4
    assert weights["lost"] == weights["whole"]

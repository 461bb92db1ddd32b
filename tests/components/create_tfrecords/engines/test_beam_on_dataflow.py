"""Claims about records that Dataflow writes: Beam's own client, and a local service that runs what is sent to it."""

import dataclasses
import signal
import threading

import pytest

from tests.components.create_tfrecords.engines.cases import images, same_files
from tests.support import beam
from tests.support.dataflow import IMAGE, is_asked_for, options_for, start, wait_for, work, work_on_all
from tests.support.fakes.dataflow import REGION
from tpu_components.core.component import command_line
from tpu_components.core.files import storage
from tpu_components.create_tfrecords import WriteParams, write_records

pytestmark = pytest.mark.slow  # 30 s each, with Apache Beam.


@pytest.fixture
def params(bucket, tmp_path, dataflow):
    """Pictures in a bucket, one of them damaged, and all that Dataflow is told."""
    images(tmp_path / "data")
    storage.upload(tmp_path / "data", "gs://bucket/data")
    options = {
        **options_for(dataflow),
        "worker_machine_type": "n2-standard-4",
        "max_num_workers": "7",
        "network": "inside",
        "subnetwork": f"regions/{REGION}/subnetworks/private",
        "no_use_public_ips": "",
        "service_account_email": "worker@my-project.iam.gserviceaccount.com",
    }
    return WriteParams(
        "images:gs://bucket/data",
        max_bad_fraction=0.1,
        image_size=(8, 8),
        engine_tasks=3,
        num_workers=1,
        beam_options=options,
    )


def command(params, output):
    return beam.command("--output", output, *command_line.flags_of(params))


def test_a_job_is_made_as_asked_for_and_writes_the_same_bytes(dataflow, params, tmp_path):
    thread = work_on_all(dataflow)
    done = beam.run(command(params, tmp_path / "records"))
    thread.join()
    assert done.returncode == 0, done.stderr
    (job,) = dataflow.jobs
    assert f"started the job {job.asked['name']}: https://console.cloud.google.com/dataflow/jobs/" in done.stderr
    (pool,) = job.asked["environment"]["workerPools"]
    assert (pool["machineType"], pool["network"]) == ("n2-standard-4", "inside")
    assert pool["subnetwork"] == f"regions/{REGION}/subnetworks/private"
    assert pool["ipConfiguration"] == 2  # environment.proto: WORKER_IP_PRIVATE.
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 7
    assert [each["containerImage"] for each in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert job.asked["environment"]["serviceAccountEmail"] == "worker@my-project.iam.gserviceaccount.com"
    alone = dataclasses.replace(params, engine="local", beam_options={})
    write_records(alone, tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")

    again = beam.run(command(params, tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    assert dataflow.made == 1, "all parts are there"
    assert same_files(tmp_path / "again", tmp_path / "alone")


def test_a_step_that_was_killed_finds_its_job_and_follows_it(dataflow, params, tmp_path):
    first = start(command(params, tmp_path / "records"))
    wait_for(lambda: dataflow.jobs)
    first.kill()
    first.communicate()
    assert not (tmp_path / "records").exists()
    dataflow.calls.clear()
    second = start(command(params, tmp_path / "records"))
    wait_for(lambda: is_asked_for(dataflow, dataflow.jobs[0]))
    work(dataflow, dataflow.jobs[0])
    _, told = second.communicate(timeout=60)
    assert second.returncode == 0, told
    assert f"following the running job {dataflow.jobs[0].asked['name']}" in told
    assert dataflow.made == 1
    write_records(dataclasses.replace(params, beam_options={}), tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")


def test_the_job_is_cancelled_with_its_step_and_another_step_goes_on(dataflow, params, tmp_path):
    first = start(command(params, tmp_path / "records"))
    wait_for(lambda: dataflow.jobs)
    wait_for(lambda: is_asked_for(dataflow, dataflow.jobs[0]))
    first.send_signal(signal.SIGTERM)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 143, told
    assert f"cancelled the job {dataflow.jobs[0].asked['name']}" in told
    assert dataflow.jobs[0].state == "JOB_STATE_CANCELLING"
    dataflow.end(dataflow.jobs[0], "JOB_STATE_CANCELLED")

    thread = threading.Thread(
        target=lambda: (wait_for(lambda: dataflow.made == 2), work(dataflow, dataflow.jobs[1])), daemon=True
    )
    thread.start()
    done = beam.run(command(params, tmp_path / "records"))
    thread.join()
    assert done.returncode == 0, done.stderr
    assert [job.asked["name"] for job in dataflow.jobs] == [dataflow.jobs[0].asked["name"]] * 2


def test_a_mistake_that_a_worker_meets_is_the_steps(dataflow, params, tmp_path, encode):
    (tmp_path / "odd.png").write_bytes(encode(mode="L"))
    storage.upload(tmp_path / "odd.png", "gs://bucket/data/0/odd.png")
    thread = work_on_all(dataflow)
    done = beam.run(command(params, tmp_path / "records"))
    thread.join()
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "error: Grey and colour images are mixed: expected colour images like the first image, received the grey image "
        "'0/odd.png'"
    )
    assert "Traceback" not in done.stderr


def test_what_the_service_refuses_is_one_paragraph(dataflow, params, tmp_path):
    dataflow.faults = [403]
    done = beam.run(command(params, tmp_path / "records"))
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "error: Dataflow refused to run the job in my-project, us-central1: Injected. Switch on dataflow.googleapis"
    )
    assert dataflow.made == 0

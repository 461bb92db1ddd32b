"""Claims about predictions of Dataflow's workers: Beam's own client, and a local service that runs what it is sent."""

import dataclasses
import signal
import threading

import pytest

from tests.components.create_tfrecords.engines.cases import same_files
from tests.support import beam
from tests.support.dataflow import is_asked_for, options_for, start, wait_for, work, work_on_all
from tpu_components.core.component import command_line
from tpu_components.core.files import storage
from tpu_components.predict_batch import PredictParams, predict_batch

pytestmark = pytest.mark.slow  # 30 s each, with Apache Beam.


@pytest.fixture
def params(bucket, image_folder, dataflow):
    """Eleven pictures in a bucket, one of them damaged, in three files."""
    root = image_folder(11, ("a",), mode="L")
    (root / "a" / "0004.png").write_bytes(b"no picture")
    storage.upload(root, "gs://bucket/pictures")
    return PredictParams(
        "images:gs://bucket/pictures", part_examples=4, num_workers=1, engine="beam", beam_options=options_for(dataflow)
    )


def command(params, export, output):
    return beam.answering("--export", export, "--output", output, *command_line.flags_of(params))


def alone(params, export_dir, output):
    predict_batch(dataclasses.replace(params, engine="local", beam_options={}), export_dir, output)
    return output


def test_a_model_on_this_disk_is_copied_for_the_workers_who_write_the_same_bytes(
    dataflow, params, export_dir, tmp_path
):
    thread = work_on_all(dataflow)
    done = beam.run(command(params, export_dir, tmp_path / "out"))
    thread.join()
    assert done.returncode == 0, done.stderr
    (job,) = dataflow.jobs
    name = job.asked["name"]
    assert f"started the job {name}: https://console.cloud.google.com/dataflow/jobs/" in done.stderr
    assert storage.exists(f"gs://bucket/temp/{name}/export/model.tflite")
    assert same_files(tmp_path / "out", alone(params, export_dir, tmp_path / "alone"))
    again = beam.run(command(params, export_dir, tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    assert dataflow.made == 1, "all files are there"
    assert same_files(tmp_path / "again", tmp_path / "alone")


def test_a_model_in_the_bucket_is_read_there_by_a_step_that_is_killed_and_finds_its_job(
    dataflow, params, export_dir, tmp_path
):
    storage.upload(export_dir, "gs://bucket/export")
    words = command(params, "gs://bucket/export", tmp_path / "out")
    first = start(words)
    wait_for(lambda: dataflow.jobs)
    first.kill()
    first.communicate()
    assert not (tmp_path / "out").exists()
    dataflow.calls.clear()
    second = start(words)
    wait_for(lambda: is_asked_for(dataflow, dataflow.jobs[0]))
    work(dataflow, dataflow.jobs[0])
    _, told = second.communicate(timeout=60)
    assert second.returncode == 0, told
    name = dataflow.jobs[0].asked["name"]
    assert f"following the running job {name}" in told
    assert dataflow.made == 1
    assert not storage.names_in(f"gs://bucket/temp/{name}/export")
    assert same_files(tmp_path / "out", alone(params, export_dir, tmp_path / "alone"))


def test_the_job_is_cancelled_with_its_step_and_another_step_goes_on(dataflow, params, export_dir, tmp_path):
    first = start(command(params, export_dir, tmp_path / "out"))
    wait_for(lambda: dataflow.jobs)
    wait_for(lambda: is_asked_for(dataflow, dataflow.jobs[0]))
    first.send_signal(signal.SIGTERM)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 143, told
    assert f"cancelled the job {dataflow.jobs[0].asked['name']}" in told
    dataflow.end(dataflow.jobs[0], "JOB_STATE_CANCELLED")

    thread = threading.Thread(
        target=lambda: (wait_for(lambda: dataflow.made == 2), work(dataflow, dataflow.jobs[1])), daemon=True
    )
    thread.start()
    done = beam.run(command(params, export_dir, tmp_path / "out"))
    thread.join()
    assert done.returncode == 0, done.stderr
    assert same_files(tmp_path / "out", alone(params, export_dir, tmp_path / "alone"))


def test_what_workers_cannot_see_is_refused_before_anything_is_read(dataflow, params, export_dir, tmp_path):
    for export, source, told in (
        (export_dir, f"records:{tmp_path}", rf"expected the source on gs://. Received: '{tmp_path}'"),
        ("s3://bucket/export", params.source, "expected the model on gs://. Received: 's3://bucket/export'"),
    ):
        done = beam.run(command(dataclasses.replace(params, source=source), export, tmp_path / "out"))
        assert done.returncode == 2, done.stderr
        assert told in done.stderr.strip().splitlines()[-1]
    assert dataflow.made == 0

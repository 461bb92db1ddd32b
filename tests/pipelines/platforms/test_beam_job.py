"""Claims about the Beam job that writes records, as each platform gets it."""

import pytest

from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms import beam_job
from tpu_pipelines.platforms.platform import PLATFORMS

SETTINGS = Settings(
    project="my-project",
    region="us-central1",
    bucket="gs://my-bucket/pipelines/",
    service_account="trainer@my-project.iam.gserviceaccount.com",
    labels={"team": "vision"},
)


def options_of(target: str, *overrides: str, settings: Settings = SETTINGS):
    config = load_config("digits", ["data.engine=beam", *(f"data.beam_options.{each}" for each in overrides)])
    return dict(beam_job.with_settings(config, PLATFORMS[target], settings).data.beam_options)


def test_on_vertex_it_is_dataflow_where_the_settings_say():
    assert options_of("vertex", "worker_machine_type=n2-standard-8", "max_num_workers=20") == {
        "runner": "DataflowRunner",
        "project": "my-project",
        "region": "us-central1",
        "temp_location": "gs://my-bucket/pipelines/beam",
        "sdk_container_image": "tpu-pipelines/beam:latest",
        "service_account_email": "trainer@my-project.iam.gserviceaccount.com",
        "labels": '{"team": "vision"}',
        "worker_machine_type": "n2-standard-8",
        "max_num_workers": "20",
    }


def test_what_the_configuration_says_stays():
    options = options_of("vertex", "region=europe-west4", "temp_location=gs://other/temp", "service_account_email=a@b")
    assert (options["region"], options["temp_location"]) == ("europe-west4", "gs://other/temp")
    assert options["service_account_email"] == "a@b"
    assert options_of("vertex", "runner=FlinkRunner", "flink_master=flink:8081", settings=Settings()) == {
        "runner": "FlinkRunner",
        "flink_master": "flink:8081",
    }


def test_a_cluster_is_told_which_runner_to_use():
    with pytest.raises(
        InputError, match=r"digits' for kubeflow: a cluster does not include a Beam runner.*data.engine=fan_out"
    ):
        options_of("kubeflow")
    assert options_of("kubeflow", "runner=DataflowRunner")["temp_location"] == "gs://my-bucket/pipelines/beam"


@pytest.mark.parametrize("setting", ["project", "region", "bucket"])
def test_dataflow_must_know_where_to_run_and_to_write(setting):
    known = {"project": "p-1", "region": "us-central1", "bucket": "gs://b"}
    with pytest.raises(InputError, match=rf"requires TPU_PIPELINES_{setting.upper()} or data.beam_options\."):
        options_of("vertex", settings=Settings(**{**known, setting: ""}))
    with pytest.raises(InputError, match=r"requires TPU_PIPELINES_BUCKET"):
        options_of("kubeflow", "runner=DataflowRunner", settings=Settings(**{**known, "bucket": "s3://b"}))

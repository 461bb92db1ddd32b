import json

import pytest
from google.protobuf import json_format
from kfp import dsl

from tpu_components.core.base.errors import InputError
from tpu_components.kfp import StaleCacheWarning, on_current_data, with_images

PINNED = "docker.io/me/python@sha256:" + 64 * "0"
STEPS = with_images(PINNED)


def tasks_of(pipeline):
    return json_format.MessageToDict(pipeline.pipeline_spec)["root"]["dag"]["tasks"]


@pytest.mark.parametrize("source", ["images:gs://bucket/photos", "csv:s3://bucket/list.csv", "huggingface:me/photos"])
def test_remote_data_without_a_version_are_warned_of(source):
    with pytest.warns(StaleCacheWarning, match=r"create_tfrecords has no data_version.*Use on_current_data"):

        @dsl.pipeline
        def pipeline():
            STEPS.create_tfrecords(source=source)


def test_a_source_that_is_an_input_of_the_pipeline_is_warned_of():
    with pytest.warns(StaleCacheWarning, match=r"predict_batch has no data_version"):

        @dsl.pipeline
        def pipeline(source: str, export: dsl.Input[dsl.Model]):
            STEPS.predict_batch(source=source, export=export)


@pytest.mark.parametrize("inputs", [{"source": "sklearn:digits"}, {"source": "csv:gs://b/l.csv", "data_version": "1"}])
def test_data_of_a_library_and_data_with_a_version_are_not_warned_of(inputs):
    @dsl.pipeline
    def pipeline():
        STEPS.create_tfrecords(**inputs)


def test_an_unknown_source_is_refused_when_the_pipeline_is_written():
    with pytest.raises(InputError, match=r"imags"):

        @dsl.pipeline
        def pipeline():
            STEPS.create_tfrecords(source="imags:gs://bucket/photos")


def test_the_source_is_listed_in_every_run_and_its_digest_is_an_input_of_the_step():
    @dsl.pipeline
    def pipeline(names: list, source: str = "images:gs://bucket/photos", side: int = 8, even: bool = True):
        on_current_data(STEPS.create_tfrecords)(
            source=source, image_size=[side, side], seed=3, class_names=names, stratify=even
        )

    tasks = tasks_of(pipeline)
    assert tasks["list-source"]["cachingOptions"] == {}
    inputs = tasks["create-tfrecords"]["inputs"]["parameters"]
    assert inputs["data_version"]["taskOutputParameter"]["producerTask"] == "list-source"
    assert tasks["create-tfrecords"]["cachingOptions"] == {"enableCache": True}
    data = tasks["list-source"]["inputs"]["parameters"]
    assert {name: value for name, value in inputs.items() if name != "data_version"} == data
    assert data["seed"] == {"runtimeValue": {"constant": 3}}
    assert "side" in json.dumps(data["image_size"])
    assert data["class_names"] == {"componentInputParameter": "names"}, "a text would not be a list"
    assert data["stratify"] == {"componentInputParameter": "even"}
    executors = json_format.MessageToDict(pipeline.pipeline_spec)["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} == {PINNED}


def test_a_component_that_reads_no_source_is_refused():
    with pytest.raises(InputError, match=r"takes create_tfrecords or predict_batch. Received: train_model"):
        on_current_data(STEPS.train_model)


def test_a_component_is_wrapped_once():
    with pytest.raises(InputError, match=r"on_current_data for create_tfrecords. Call on_current_data only once"):
        on_current_data(on_current_data(STEPS.create_tfrecords))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "Cannot use create_tfrecords: expected the input source, received none"),
        ({"sorce": "sklearn:digits"}, "Unknown key 'sorce' in the inputs: .* Did you mean 'source'"),
        ({"source": "sklearn:digits", "image_sise": 8}, "Unknown key 'image_sise'"),
    ],
)
def test_wrong_inputs_are_refused_as_by_the_component(inputs, message):
    with pytest.raises(InputError, match=message):

        @dsl.pipeline
        def pipeline():
            on_current_data(STEPS.create_tfrecords)(**inputs)


def test_inputs_without_a_name_are_refused():
    with pytest.raises(InputError, match=r"create_tfrecords takes its inputs by name. Received: 1 without a name"):
        on_current_data(STEPS.create_tfrecords)("sklearn:digits")

"""Inputs of the importers are checked when a pipeline is written."""

import pytest
from kfp import dsl

from tpu_components.core.base.errors import InputError
from tpu_components.kfp import with_images

STEPS = with_images("docker.io/me/python@sha256:" + "0f" * 32)
SOURCE = {"source": "tfrecords:gs://bucket/own", "data_version": "1"}


def write(**inputs):
    @dsl.pipeline
    def pipeline(engine: str = "local"):
        STEPS.create_tfrecords(**{name: engine if value is dsl else value for name, value in inputs.items()})


def evaluate(**inputs):
    @dsl.pipeline
    def pipeline():
        own = dsl.importer("gs://bucket/own.keras", dsl.Model).output
        records = dsl.importer("gs://bucket/records", dsl.Dataset).output
        STEPS.import_model(records=records, model=own, **inputs)


def test_what_the_step_would_refuse_is_refused_when_the_pipeline_is_written():
    with pytest.raises(InputError, match=r"rewrite=false uses the records as they are, so engine has no effect"):
        write(**SOURCE, rewrite=False, engine="fan_out")


def test_inputs_that_are_known_only_when_the_pipeline_runs_are_left_to_the_step():
    write(**SOURCE, rewrite=False, engine=dsl)


def test_valid_inputs_are_accepted():
    write(**SOURCE, rewrite=False, class_names=["cat", "dog"])
    evaluate(class_names=["cat", "dog"], pixel_range=[0, 1])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"class_names": ["cat", "dog"], "pixel_range": [1, 0]}, r"pixel_range must be \[low, high\]"),
        ({"class_names": ["cat", "dog"], "outputs": "logit"}, r"outputs.*logits"),
    ],
)
def test_an_import_with_a_wrong_input_is_refused(inputs, message):
    with pytest.raises(InputError, match=message):
        evaluate(**inputs)

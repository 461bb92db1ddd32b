import dataclasses
import warnings
from typing import ClassVar

import pytest
from google.protobuf import json_format
from kfp import dsl, local

import tpu_components.kfp as components
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import fields_of
from tpu_components.core.sources.params import WriteParams
from tpu_components.kfp import PipelineWarning, with_image, with_images
from tpu_components.kfp.step_component import StepComponent

PINNED = "docker.io/me/python@sha256:" + 64 * "0"
STEPS = with_images(PINNED)
ALL = sorted(field.name for field in dataclasses.fields(components.Components))


@pytest.fixture(autouse=True)
def for_a_platform(monkeypatch):
    """No other test's `kfp.local.init` counts."""
    monkeypatch.setattr(local.config.LocalExecutionConfig, "instance", None)


def task_of(step, **inputs):
    """The constant inputs of a task in a pipeline; a function is called with the pipeline's own inputs."""

    @dsl.pipeline(name="one-step")
    def pipeline(text: str = "x", number: int = 3):
        records = dsl.importer(artifact_uri="gs://b/r", artifact_class=dsl.Dataset).output
        model = dsl.importer(artifact_uri="gs://b/m", artifact_class=dsl.Model).output
        given = {name: value(text, number) if callable(value) else value for name, value in inputs.items()}
        artifacts = {"records": records, "model": model, "export": model, "evaluation": records}
        needed = [name for name in step.required_inputs if name in artifacts and name not in given]
        step(**given, **{name: artifacts[name] for name in needed})

    tasks = json_format.MessageToDict(pipeline.pipeline_spec)["root"]["dag"]["tasks"]
    (task,) = (task for name, task in tasks.items() if "importer" not in name)
    parameters = task.get("inputs", {}).get("parameters", {})
    return {name: one.get("runtimeValue", {}).get("constant") for name, one in parameters.items()}


@pytest.mark.parametrize(
    ("step", "inputs", "message"),
    [
        ("create_tfrecords", {"source": "imags:gs://b/p"}, r"imags"),
        ("create_tfrecords", {"source": lambda text, _: text, "encoding": "jpg"}, r"encoding must be one of auto, raw"),
        ("create_tfrecords", {"source": lambda text, _: text, "image_size": [0, 8]}, r"image_size must be \[height"),
        ("create_tfrecords", {"source": "sklearn:digits", "test_fraction": 20}, r"test_fraction must be .* below 1"),
        ("create_tfrecords", {"source": "sklearn:digits", "image_size": "224x224"}, r"image_size.*expected a whole"),
        ("train_model", {"model": "mobilenet_v3"}, r"Unknown model 'mobilenet_v3'.*Did you mean 'mobilenet_v2'"),
        (
            "train_model",
            {"model": "digits_cnn", "model_parameters": {"dropuot": 0.1}, "epochs": lambda _, number: number},
            r"Unknown parameter 'dropuot'",
        ),
        ("train_model", {"model": "gs://b/cnn.py"}, r"received 'gs://b/cnn\.py'. Copy the file into the image"),
        ("train_model", {"model": "s3://b/cnn.keras"}, r"received 's3://b/cnn\.keras'. Copy the file into the image"),
        ("train_model", {"model": "digits_cnn", "epochs": 0}, r"epochs must be at least 1. Received: epochs=0"),
        ("train_model", {"model": "digits_cnn", "backend": "torch"}, r"backend must be one of"),
        (
            "train_model",
            {"model": "digits_cnn", "batch_size": 8},
            r"Unknown key 'batch_size' in the inputs.*'batch_size_per_replica'",
        ),
        ("preflight_training", {"training": {"model": "digits_cn"}}, r"Unknown model 'digits_cn'"),
        ("preflight_training", {"training": {"model": "digits_cnn", "epoch": 2}}, r"Unknown key 'epoch' in training"),
        ("evaluate_model", {"minimum": {"accuracy": 95}}, r"minimum.accuracy cannot be above 1.*mean 0.95"),
        (
            "evaluate_model",
            {"minimum": {"loss": 0.5}},
            r"lower is better.*minimum.loss=0.5. Move it to maximum",
        ),
        ("evaluate_model", {"maximum": {"micro_f1": 0.5}}, r"higher is better.*Move it to minimum"),
        (
            "deploy_model",
            {"registry": "gs://b/registry", "model_name": "flowers", "serving_image": "a.b/c@sha256:0"},
            r"Expected serving_image with a digest",
        ),
        (
            "create_tfrecords",
            {"source": "gs://b/photos"},
            r"Did you mean images:gs://b/photos, or text:gs://b/photos\?",
        ),
        (
            "create_tfrecords",
            {"source": "images:gs://b/p", "rewrite": False},
            r"rewrite=False requires a tfrecords",
        ),
        ("evaluate_model", {"split": "tset"}, r"split must be one of"),
        ("export_model", {"formats": ["onnx"]}, r"formats"),
        ("deploy_model", {"registry": "gs://b/registry", "model_name": "a b"}, r"model name 'a b'"),
        ("predict_batch", {"source": "sklearn:digits", "keep": ["id"]}, r"keep must not contain 'id'"),
        ("find_drift", {"against": "gs://b/registry/digits@champion", "effect": -1}, r"effect"),
    ],
)
def test_a_wrong_constant_is_refused_when_the_pipeline_is_written(step, inputs, message):
    with pytest.raises(InputError, match=message) as raised:
        task_of(getattr(STEPS, step), **inputs)
    assert str(raised.value).startswith(f"Cannot use {step}: ")


def test_what_only_a_run_knows_is_not_checked():
    values = task_of(
        STEPS.create_tfrecords,
        source=lambda text, _: f"images:gs://bucket/{text}",
        data_version="1",
        image_size=lambda _, number: [number, number],
        seed=lambda _, number: number,
    )
    assert values["seed"] is None
    assert "channel" in values["source"] or "inputs" in values["source"]
    task_of(STEPS.train_model, model=lambda text, _: f"{text}_cnn")
    task_of(STEPS.train_model, model="/models/model.keras")
    task_of(STEPS.train_model, model="my_package.models:build_model")


@pytest.mark.parametrize("value", [224, 224.0, "224", [224], (224,)])
def test_an_image_size_has_each_form_that_a_configuration_accepts(value):
    assert task_of(STEPS.create_tfrecords, source="sklearn:digits", image_size=value)["image_size"] == [224]


@pytest.mark.parametrize("value", ["224,160", [224, 160], (224, 160), ["224", "160"]])
def test_two_sides_have_each_form_that_a_configuration_accepts(value):
    assert task_of(STEPS.create_tfrecords, source="sklearn:digits", image_size=value)["image_size"] == [224, 160]


@pytest.mark.parametrize(
    ("step", "name", "value", "stored"),
    [
        ("train_model", "learning_rate", 1, 1),  # KFP itself refuses a whole number for a float.
        ("train_model", "learning_rate", "1e-3", 0.001),
        ("train_model", "epochs", 3.0, 3),
        ("train_model", "optimizer_parameters", '{"beta_1": 0.8}', {"beta_1": 0.8}),
        ("train_model", "stages", [{"epochs": 10}], [{"epochs": 10}]),
        ("evaluate_model", "slices", "class,size", ["class", "size"]),
        ("evaluate_model", "minimum", {"accuracy": "0.9"}, {"accuracy": "0.9"}),
    ],
)
def test_every_constant_has_each_form_that_a_configuration_accepts(step, name, value, stored):
    model = {"model": "digits_cnn"} if step == "train_model" else {}
    assert task_of(getattr(STEPS, step), **model, **{name: value})[name] == stored


def test_a_mapping_stays_as_it_was_written():
    """With the defaults of today, the cache would not find what the step has done already."""
    training = {"model": "digits_cnn", "epochs": 2}
    assert task_of(STEPS.preflight_training, training=training)["training"] == training


def test_each_component_checks_its_inputs_by_its_own_params():
    for name in ALL:
        step = getattr(STEPS, name)
        assert isinstance(step, StepComponent)
        assert (
            name in ("list_source", "make_container_model")
            or fields_of(step.params).keys() <= step.component_spec.inputs.keys()
        )


def test_a_metric_that_resembles_a_known_metric_is_warned_of():
    with pytest.warns(PipelineWarning, match=r"'acuracy' in the gate's rules is not a metric.*Did you mean 'accuracy'"):
        task_of(STEPS.evaluate_model, minimum={"acuracy": 0.9, "my_own_score": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task_of(STEPS.evaluate_model, minimum={"accuracy": 0.9, "my_own_score": 1})


@pytest.mark.parametrize(
    ("step", "inputs", "name"),
    [("create_tfrecords", {"source": "images:{}"}, "source"), ("train_model", {"model": "{}/net.py"}, "model")],
)
def test_files_of_this_machine_are_warned_of_in_a_pipeline_for_a_platform(step, inputs, name, tmp_path, monkeypatch):
    place = "to a bucket, or into the image" if name == "source" else "into the image"
    (tmp_path / "net.py").touch()
    here = {key: value.format(tmp_path) for key, value in inputs.items()}
    with pytest.warns(PipelineWarning, match=rf"{step} has {name}='.*{tmp_path}.*Copy it {place}"):
        task_of(getattr(STEPS, step), **here)
    monkeypatch.setattr(local.config.LocalExecutionConfig, "instance", object())
    task_of(getattr(STEPS, step), **here)


def test_a_model_may_be_a_file_in_the_image_or_a_bundle():
    for model in ("/models/cnn.py", "nets.cnn:build_model", f"gs://b/{64 * 'a'}/cnn.keras"):
        assert task_of(STEPS.train_model, model=model)["model"] == model


def test_a_list_that_the_pipeline_determines_is_not_inside_of_an_input():
    """KFP writes it into a text; numbers and texts can be read from a text."""

    @dsl.pipeline
    def accepted(names: list, least: float):
        STEPS.create_tfrecords(source="sklearn:digits", class_names=names)
        STEPS.create_tfrecords(source="sklearn:digits", columns={"label": f"label-{least}"})

    with pytest.raises(
        InputError, match=r"for columns\['label'\], received 'names', whose value is known only when the pipeline"
    ):

        @dsl.pipeline
        def refused(names: list):
            STEPS.create_tfrecords(source="sklearn:digits", columns={"label": names})


def test_an_input_is_missing():
    with pytest.raises(InputError, match=r"Cannot use train_model: expected the input records, received 'model'"):

        @dsl.pipeline
        def pipeline():
            STEPS.train_model(model="digits_cnn")


def test_outside_of_a_pipeline_nothing_is_warned_of():
    checked = components.create_tfrecords.checked({"source": "images:gs://bucket/photos"})
    assert checked == {"source": "images:gs://bucket/photos"}


def test_the_local_image_is_warned_of_in_a_pipeline_for_a_platform():
    with pytest.warns(PipelineWarning, match=r"export_model has the image 'tpu-pipelines/python:latest'.*with_images"):
        task_of(components.export_model)


def test_the_local_image_is_no_mistake_in_a_pipeline_that_runs_here(tmp_path):
    before = local.config.LocalExecutionConfig.instance
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path))
    try:
        task_of(components.export_model)
    finally:
        local.config.LocalExecutionConfig.instance = before


@dataclasses.dataclass(frozen=True)
class _Renamed(WriteParams):
    RENAMED: ClassVar = {"picture_size": "image_size"}


def test_a_renamed_input_keeps_its_old_name_for_a_while():
    step = StepComponent.from_component(with_image(components.create_tfrecords, PINNED), _Renamed)
    with pytest.warns(FutureWarning, match=r"picture_size is now called image_size"):
        assert task_of(step, source="sklearn:digits", picture_size=8)["image_size"] == [8]
    with pytest.raises(InputError, match=r"picture_size is the old name of image_size. Received: both"):
        task_of(step, source="sklearn:digits", picture_size=8, image_size=8)


@pytest.mark.parametrize(
    ("step", "inputs", "message"),
    [
        (
            "train_model",
            {"model_parameters": lambda _, number: {"units": number}},
            r"model_parameters\['units'\], rec",
        ),
        (
            "train_model",
            {"optimizer_parameters": lambda _, number: {"a": [number]}},
            r"Use one input of the pipeline for the whole of optimizer_parameters\.",
        ),
        ("preflight_training", {"training": lambda _, number: {"model": "digits_cnn", "epochs": number}}, ""),
        ("preflight_training", {"training": lambda _, n: {"model_parameters": {"units": n}}}, r"\['units'\], received"),
        ("train_model", {"model_parameters": lambda text, _: {"name": text}}, ""),
        ("evaluate_model", {"minimum": lambda _, number: {"accuracy": number}}, ""),
        ("evaluate_model", {"minimum": lambda _, number: {"loss": number}}, r"lower is better.* Move it to maximum"),
        (
            "evaluate_model",
            {"minimum": lambda text, _: {text: 0.5}},
            r"expected strings as the keys of minimum, received",
        ),
        ("create_tfrecords", {"source": lambda text, _: f"image:{text}"}, r"Unknown source 'image:{…}': expected"),
        ("create_tfrecords", {"source": "images:gs:/b/photos"}, r"'gs:/' has only one slash. Write gs://\."),
        ("create_tfrecords", {"source": "sklearn:digits", "class_names": "[a, b]"}, r"expected a list"),
        ("create_tfrecords", {"source": "csv:a", "columns": {"img": "image"}}, r"Did you mean {'image': 'img'}"),
        ("create_tfrecords", {"source": "sklearn:digits", "image_size": None}, r"image_size cannot be None. Leave"),
    ],
)
def test_what_the_pipeline_determines_inside_of_an_input_must_be_readable_from_a_text(step, inputs, message):
    ready = {"model": "digits_cnn"} if step == "train_model" else {}
    if not message:
        task_of(getattr(STEPS, step), **ready, **inputs)
        return
    with pytest.raises(InputError, match=message):
        task_of(getattr(STEPS, step), **ready, **inputs)


def test_the_pipeline_may_determine_a_whole_mapping_or_list():
    @dsl.pipeline
    def pipeline(rules: dict, parameters: dict, stages: list, records: dsl.Input[dsl.Dataset]):
        trained = STEPS.train_model(
            records=records, model="digits_cnn", model_parameters=parameters, optimizer_parameters=rules, stages=stages
        )
        model = trained.outputs["trained"]
        STEPS.evaluate_model(records=records, model=model, minimum=rules, maximum=rules, max_regression=rules)


def test_a_task_is_not_one_of_its_outputs():
    with pytest.raises(InputError, match=r"received the task 'importer'. Pass one of its outputs: .outputs"):

        @dsl.pipeline
        def pipeline():
            STEPS.train_model(records=dsl.importer("gs://b/r", dsl.Dataset), model="digits_cnn")


def test_inputs_have_names():
    with pytest.raises(InputError, match=r"create_tfrecords takes its inputs by name. Received: 1 without a name"):
        STEPS.create_tfrecords("sklearn:digits")

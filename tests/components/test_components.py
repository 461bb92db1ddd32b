"""Every step's wrapper and command line against its Params, and every wrapper called once with real files."""

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from packaging.utils import canonicalize_name
from sklearn.datasets import load_digits

from tests.evidence.component_interfaces import key_names
from tests.support.cli import REPOSITORY
from tests.support.fakes.vertex_rules import check_outputs
from tests.support.html_page import Page
from tpu_components.core.base.container_images import LOCAL_BEAM_IMAGE, LOCAL_IMAGE
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import fields_of, whole_numbers
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.core.metrics.details import count_confusions
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.train_model import TrainParams

_OF_THE_CACHE = ("data_version", "fingerprint")  # Inputs that no step reads: a platform's cache does.
_STEPS = {
    "create_tfrecords": "WriteParams",
    "preflight_training": "PreflightParams",
    "train_model": "TrainParams",
    "evaluate_model": "EvaluateParams",
    "export_model": "ExportParams",
    "deploy_model": "DeployParams",
    "predict_batch": "PredictParams",
    "find_drift": "DriftParams",
    "import_model": "ImportParams",
}


def _params(step):
    return getattr(importlib.import_module(f"tpu_components.{step}"), _STEPS[step])


def _component(step):
    return getattr(importlib.import_module(f"tpu_components.{step}.component"), step)


def _default(field):
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        return dataclasses.asdict(default) if dataclasses.is_dataclass(default) else default
    return list(field.default) if isinstance(field.default, tuple) else field.default


@pytest.mark.parametrize("step", _STEPS)
def test_component_inputs_are_the_fields_of_params(step):
    inputs = _component(step).component_spec.inputs
    values = {name: given for name, given in inputs.items() if not given.type.startswith("system.")}
    assert {name: values.pop(name).default for name in _OF_THE_CACHE if name in values}["fingerprint"] == {}
    fields = dataclasses.fields(_params(step))
    assert list(values) == [field.name for field in fields]
    for field in fields:
        expected = _default(field)
        if expected is dataclasses.MISSING:
            assert not values[field.name].optional, field.name
        else:
            assert values[field.name].optional, field.name
            assert values[field.name].default == expected, field.name
            assert type(values[field.name].default) is type(expected), field.name


_SENT_AS = {int: "Integer", float: "Float", bool: "Boolean", str: "String", tuple: "List", Mapping: "Dict"}


@pytest.mark.parametrize("step", _STEPS)
def test_component_inputs_have_the_types_of_the_fields(step):
    inputs = _component(step).component_spec.inputs
    hints = typing.get_type_hints(_params(step))
    for name in (field.name for field in dataclasses.fields(_params(step))):
        hint = hints[name]
        kind = typing.get_origin(hint) or (Mapping if dataclasses.is_dataclass(hint) else hint)
        assert inputs[name].type.removeprefix("typing.").partition("[")[0] == _SENT_AS[kind], name


@pytest.mark.parametrize("step", _STEPS)
def test_every_input_reaches_its_field_with_its_type_after_it_has_travelled_as_json(step):
    values = {"PredictParams": {"source": "images:photos", "part_examples": 5}}
    values |= {"WriteParams": {"source": "sklearn:digits", "image_size": (8, 8), "class_names": ("a", "b")}}
    values["TrainParams"] = {"model": "digits_cnn", "model_parameters": {"filters": 4}, "epochs": 7}
    values["TrainParams"]["stages"] = (Stage(3, ("conv*",)), Stage(4, learning_rate=0.5))
    values["PreflightParams"] = {"training": TrainParams(**values["TrainParams"]), "paid": PaidMachine("v6e-1")}
    values["ImportParams"] = {"class_names": ("a", "b"), "pixel_range": (0.0, 1.0)}
    values["DriftParams"] = {"against": "registry/digits@champion"}
    values["EvaluateParams"] = {"minimum": {"accuracy": 1.0}, "top_k": 3}
    values["DeployParams"] = {"registry": "r", "model_name": "m", "lineage": {"config": {"epochs": 4}}}
    params = _params(step)(**values.get(_STEPS[step], {}))
    sent = json.loads(json.dumps(dataclasses.asdict(params)), parse_int=float)  # KFP's numbers are doubles.
    for values_sent in (sent, whole_numbers(sent)):  # Its driver writes them without a fraction that is 0.
        received = params_from({"records": "an artifact", **values_sent}, _params(step))
        assert repr(received) == repr(params)  # To ==, 60 and 60.0 are the same; in a record they are not.


def _every_component():
    """Those of the steps, and those that write or predict with several machines."""
    modules = [importlib.import_module(f"tpu_components.{step}.component") for step in _STEPS]
    members = [member for module in modules for member in vars(module).values()]
    return [member.component_spec for member in members if isinstance(member, BaseComponent)]


def test_a_component_has_the_local_image_whatever_the_environment_says():
    """In a process of its own: variables must have no effect on an import either."""
    code = (
        "import importlib\n"
        f"modules = [importlib.import_module(f'tpu_components.{{step}}.component') for step in {list(_STEPS)}]\n"
        "for part in (part for module in modules for part in vars(module).values()):\n"
        "    if hasattr(part, 'component_spec'):\n"
        "        print(part.name, part.component_spec.implementation.container.image)"
    )
    variables = {f"TPU_PIPELINES_{name}IMAGE": "r.io/other:1" for name in ("", "STEPS_", "BEAM_", "SERVING_")}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | variables)
    images = dict(line.split() for line in done.stdout.splitlines())
    with_beam = {name: images.pop(name) for name in ("write-with-beam", "predict-with-beam")}
    assert set(with_beam.values()) == {LOCAL_BEAM_IMAGE}
    assert len(images) > len(_STEPS)
    assert set(images.values()) == {LOCAL_IMAGE}


def test_every_input_and_output_of_every_component_has_a_description():
    """KFP reads those of inputs in `Args:`, and those of outputs in `Returns:`."""
    described = 0
    missing = []
    for component in _every_component():
        for name, one in {**component.inputs, **(component.outputs or {})}.items():
            described += bool(one.description)
            missing += [] if one.description else [f"{component.name}: {name}"]
    assert missing == []
    assert described > 200


def test_an_input_or_output_that_holds_the_fields_of_a_dataclass_names_them():
    for step in _STEPS:
        inputs = _component(step).component_spec.inputs
        for name, field in fields_of(_params(step)).items():
            assert [key for key in key_names(field.kind) if f"`{key}`" not in inputs[name].description] == [], name
    footprint = _component("preflight_training").component_spec.outputs["footprint"].description
    assert [key for key in key_names(Footprint) if f"`{key}`" not in footprint] == []


def test_no_text_of_a_component_is_a_placeholder_to_a_platform():
    """Argo and Vertex AI replace `{{…}}` in all that a step is sent, Kubernetes `$(…)` in a container's command."""
    for component in _every_component():
        source = component.implementation.container.command[-1]
        specs = {**component.inputs, **(component.outputs or {})}.values()
        for text in (source, *(one.description for one in specs)):
            assert not re.search(r"\{\{|\$\(", text), component.name


@pytest.mark.parametrize("step", _STEPS)
def test_component_defaults_are_literals(step):
    """KFP ships the function alone: a name of its module is not known where it runs."""
    tree = ast.parse(inspect.getsource(_component(step).python_func))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert function.name == step
    for default in filter(None, [*function.args.defaults, *function.args.kw_defaults]):
        ast.literal_eval(default)


@pytest.mark.parametrize("step", _STEPS)
def test_help_lists_every_field_with_its_meaning(step, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [step, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"tpu_components.{step}.__main__").main()
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    fields = {}
    for params in (*((PaidMachine, TrainParams) if step == "preflight_training" else ()), _params(step)):
        fields |= fields_of(params)
    for name, field in fields.items():
        assert field.meaning
        if not dataclasses.is_dataclass(field.kind):
            assert f"--{name.replace('_', '-')}" in text
            assert "".join(field.meaning.split()) in "".join(text.split()), "lines are broken at hyphens too"


def _record(artifact):
    return json.loads((Path(artifact.path).parent / "step.json").read_text())


def _artifact(kind, tmp_path, name):
    (tmp_path / name).mkdir()
    return kind(name=name, uri=str(tmp_path / name / name))


def test_create_tfrecords_component_writes_records(tmp_path):
    written = _artifact(dsl.Dataset, tmp_path, "records")
    # KFP hands whole numbers over as floats, and lists as lists.
    number = _component("create_tfrecords").python_func(
        records=written, source="sklearn:digits", image_size=[8.0, 8.0], num_workers=1
    )
    assert number == written.metadata["num_examples"] == 1797
    assert (Path(written.path) / "dataset.json").is_file()
    assert _record(written)["state"] == "succeeded"


def test_list_source_component_tells_the_same_data_from_others(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}")
    # As a platform hands them on: numbers as floats, tuples as lists.
    data = {"validation_fraction": 0.0, "seed": 3.0, "class_names": ["a", "b"], "num_tokens": 12.0}
    version = importlib.import_module("tpu_components.create_tfrecords.component").list_source.python_func
    first = version(source=f"text:{tmp_path}", **data)
    assert version(source=f"text:{tmp_path}", **data) == first
    (tmp_path / "a" / "0.txt").write_text("another text")
    assert version(source=f"text:{tmp_path}", **data) != first
    assert version(source="sklearn:digits") == "sklearn:digits"


def test_train_model_component_trains(digits_records, tmp_path):
    trained = _artifact(dsl.Model, tmp_path, "trained")
    _component("train_model").python_func(
        records=dsl.Dataset(name="records", uri=str(digits_records)),
        trained=trained,
        model="digits_cnn",
        model_parameters={"filters": 4.0, "units": 8.0, "dropout": 0.5},
        epochs=1,
        accelerator="cpu",
        precision="float32",
    )
    assert trained.metadata["examples_seen"] == 1259
    assert json.loads((Path(trained.path) / "model.json").read_text())["parameters"] == {
        "filters": 4,
        "units": 8,
        "dropout": 0.5,
    }
    assert _record(trained)["state"] == "succeeded"


def test_evaluate_model_component_gives_its_decision(digits_records, trained_digits, tmp_path):
    evaluation, metrics, classification, report = (
        _artifact(kind, tmp_path, kind.__name__)
        for kind in (dsl.Artifact, dsl.Metrics, dsl.ClassificationMetrics, dsl.HTML)
    )
    arguments = {
        "records": dsl.Dataset(name="records", uri=str(digits_records)),
        "model": dsl.Model(name="trained", uri=str(trained_digits)),
        "evaluation": evaluation,
        "metrics": metrics,
        "classification": classification,
        "report": report,
    }
    decide = _component("evaluate_model").python_func
    assert decide(**arguments, accelerator="cpu") is True
    assert decide(**arguments, accelerator="cpu", minimum={"accuracy": 1.0}) is False
    assert evaluation.metadata["promote"] is False
    assert evaluation.metadata["reasons"][0].startswith("failed: accuracy")
    assert metrics.metadata["accuracy"] > 0.5
    assert len(classification.metadata["confusionMatrix"]["rows"]) == 10
    assert Path(report.path).read_text() == (Path(evaluation.path) / "report.html").read_text()
    assert Path(metrics.path).is_file()
    assert Path(classification.path).is_file()
    # A model that is refused is no failure.
    assert _record(evaluation)["state"] == "succeeded"


def test_figures_of_an_evaluation_have_the_names_that_the_pages_of_kfp_and_vertex_ai_draw(
    review_records, trained_reviews, tmp_path
):
    """kubeflow/pipelines at 02a5c70, frontend/src/components/viewers/MetricsVisualizations.tsx."""
    kinds = {"metrics": dsl.Metrics, "classification": dsl.ClassificationMetrics, "report": dsl.HTML}
    outputs = {name: _artifact(kind, tmp_path, name) for name, kind in kinds.items()}
    outputs["evaluation"] = _artifact(dsl.Artifact, tmp_path, "evaluation")
    data = {"records": str(review_records), "model": str(trained_reviews)}
    inputs = {name: dsl.Artifact(name=name, uri=uri) for name, uri in data.items()}
    _component("evaluate_model").python_func(**inputs, **outputs, accelerator="cpu", num_pictures=0)
    drawn = outputs["classification"].metadata
    assert drawn["confusionMatrix"]["annotationSpecs"] == [{"displayName": "neg"}, {"displayName": "pos"}]
    assert [len(row["row"]) for row in drawn["confusionMatrix"]["rows"]] == [2, 2]
    assert drawn["confidenceMetrics"]
    for point in drawn["confidenceMetrics"]:
        assert point.keys() == {"confidenceThreshold", "recall", "falsePositiveRate"}
        assert all(0 <= rate <= 1 for rate in point.values())
    assert all(isinstance(value, float | int) for value in outputs["metrics"].metadata.values())
    assert [output.schema_title for output in outputs.values()] == [
        "system.Metrics",
        "system.ClassificationMetrics",
        "system.HTML",
        "system.Artifact",
    ]


def test_outputs_of_an_evaluation_with_many_classes_stay_within_what_vertex_takes(
    digits_records, trained_digits, tmp_path, monkeypatch
):
    """The confusion matrix of 200 classes alone would fill a task's outputs; the report has the most confused pairs."""

    def returned(num_classes):
        def load(folder):
            names = [f"species_{number:04}" for number in range(num_classes)]
            every = np.arange(num_classes * num_classes).repeat(2)
            figures = count_confusions(every // num_classes, every % num_classes, num_classes)
            return dataclasses.replace(loaded(folder), class_names=names, challenger=figures)

        monkeypatch.setattr(Evaluation, "load", load)
        kinds = {"metrics": dsl.Metrics, "classification": dsl.ClassificationMetrics, "report": dsl.HTML}
        outputs = {name: _artifact(kind, tmp_path, f"{name}-{num_classes}") for name, kind in kinds.items()}
        outputs["evaluation"] = _artifact(dsl.Artifact, tmp_path, f"evaluation-{num_classes}")
        data = {"records": str(digits_records), "model": str(trained_digits)}
        inputs = {name: dsl.Artifact(name=name, uri=uri) for name, uri in data.items()}
        _component("evaluate_model").python_func(**inputs, **outputs, accelerator="cpu", num_pictures=0)
        check_outputs("evaluate-model", json.dumps({name: one.metadata for name, one in outputs.items()}))
        return "confusionMatrix" in outputs["classification"].metadata

    loaded = Evaluation.load
    assert returned(100)
    assert not returned(1000)


def test_export_model_component_exports(exported_digits):
    assert exported_digits.metadata["formats"].keys() == {"saved_model", "float", "int8"}
    assert exported_digits.metadata["num_examples"] == 359
    assert (Path(exported_digits.path) / "export.json").is_file()
    assert _record(exported_digits)["state"] == "succeeded"


def test_deploy_model_component_registers_and_promotes(digits_records, trained_digits, exported_digits, tmp_path):
    evaluation, deployment = (_artifact(dsl.Artifact, tmp_path, name) for name in ("evaluation", "deployment"))
    evaluate_model(EvaluateParams(accelerator="cpu"), digits_records, trained_digits, Path(evaluation.path))
    _component("deploy_model").python_func(
        records=dsl.Dataset(name="records", uri=str(digits_records)),
        model=dsl.Model(name="trained", uri=str(trained_digits)),
        export=exported_digits,
        evaluation=evaluation,
        deployment=deployment,
        registry=str(tmp_path / "registry"),
        model_name="digits",
        lineage={"config": {"training": {"epochs": 4.0, "learning_rate": 0.5}}},
    )
    assert (deployment.metadata["version"], deployment.metadata["alias"]) == ("0001", "champion")
    version = ModelRegistry(tmp_path / "registry", "digits").find("champion")
    assert str(version.lineage["config"]) == "{'training': {'epochs': 4, 'learning_rate': 0.5}}", "whole numbers again"
    assert _record(deployment)["state"] == "succeeded"


def test_predict_batch_component_answers(digits_records, exported_digits, tmp_path):
    predictions = _artifact(dsl.Dataset, tmp_path, "predictions")
    number = _component("predict_batch").python_func(
        export=exported_digits,
        predictions=predictions,
        source=f"records:{digits_records}",
        part_examples=1000.0,
        num_workers=1.0,
    )
    assert number == predictions.metadata["num_predicted"] == 1797
    assert len(list(Path(predictions.path).glob("predictions-*.jsonl"))) == 2
    assert _record(predictions)["state"] == "succeeded"


def test_find_drift_component_says_what_has_drifted_and_fails_only_where_it_is_to(digits_records, tmp_path):
    drift, page = (_artifact(kind, tmp_path, kind.__name__) for kind in (dsl.Artifact, dsl.HTML))
    digits = load_digits()
    np.savez(tmp_path / "pale.npz", x=(digits.images * 9).astype(np.uint8), y=digits.target)
    write_records(WriteParams(f"npz:{tmp_path}/pale.npz", num_workers=1), tmp_path / "pale")
    records = dsl.Dataset(name="records", uri=str(tmp_path / "pale"))
    find = _component("find_drift").python_func
    assert find(records=records, drift=drift, page=page, against=str(tmp_path / "pale")) is False
    assert drift.metadata == {"alike": True, "drifted": []}
    assert find(records=records, drift=drift, page=page, against=str(digits_records)) is True
    assert {"brightness", "contrast"} <= set(drift.metadata["drifted"])
    assert Path(page.path).read_text() == (Path(drift.path) / "drift.html").read_text()
    pictures = Page(Path(page.path).read_text()).values("src")
    assert len(pictures) >= 2 * 6 * 2, "six of either, of each figure of pictures that has drifted"
    assert json.loads((Path(drift.path) / "drift.json").read_text())["drifted"] is True
    assert _record(drift)["state"] == "succeeded"
    with pytest.raises(InputError, match=r"Stopped because the data have drifted from those of .*: "):
        find(records=records, drift=drift, page=page, against=str(digits_records), stop=True)


@pytest.mark.parametrize("step", _STEPS)
def test_component_leaves_a_record_of_its_failure(step, tmp_path):
    """Every step is told to read what is not there."""
    component = _component(step)
    gone = str(tmp_path / "gone")
    artifacts = {
        name: dsl.Artifact(name=name, uri=gone)
        for name, given in component.component_spec.inputs.items()
        if given.type.startswith("system.")
    }
    hints = typing.get_type_hints(component.python_func)
    outputs = [name for name in component.component_spec.outputs if name != "Output"]
    artifacts |= {name: _artifact(dsl.Artifact, tmp_path, name) for name in outputs if name in hints}
    values = {"create_tfrecords": {"source": f"images:{gone}"}, "train_model": {"model": "digits_cnn"}}
    values["preflight_training"] = {"training": values["train_model"]}
    values["deploy_model"] = {"registry": str(tmp_path / "registry"), "model_name": "digits"}
    values["predict_batch"] = {"source": f"images:{gone}"}
    values["find_drift"] = {"against": gone}
    values["import_model"] = {"class_names": ["a", "b"]}
    with pytest.raises(InputError, match="gone"):
        component.python_func(**artifacts, **values.get(step, {}))
    record = _record(artifacts[outputs[0]])
    assert (record["step"], record["state"], record["is_input_error"]) == (step, "failed", True)
    assert "gone" in record["error"]
    assert not Path(artifacts[outputs[0]].path).exists()


def test_records_are_written_and_answered_by_what_beams_image_holds(exported_digits, tmp_path):
    """The image had no SciPy, and every job failed at its first import."""
    lock = (REPOSITORY / "docker" / "beam.lock").read_text()
    held = {"tpu-pipelines", *re.findall(r"^([a-z0-9][^ =\[]*)\S*==", lock, re.MULTILINE)}
    absent = [
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not held & set(map(canonicalize_name, packages))
    ]
    assert {"keras", "sklearn"} <= set(absent)
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({absent})); "
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    steps = (
        ("create_tfrecords.engines", "beam", "--help"),
        ("create_tfrecords", "--source", "sklearn:digits", "--output", tmp_path / "records"),
        ("predict_batch", "--source", "sklearn:digits", "--export", exported_digits.path, "--output", tmp_path / "out"),
    )
    for step, *arguments in steps:
        command = [sys.executable, "-c", code, f"tpu_components.{step}", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

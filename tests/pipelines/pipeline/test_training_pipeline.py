import pytest
import yaml
from kfp import compiler
from kfp import components as kfp_components

from tpu_components.core.base.container_images import Images
from tpu_components.train_model.component import train_model
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.steps import STEPS
from tpu_pipelines.pipeline.training_pipeline import training_pipeline

_REGISTRY = ["deploy.registry=/registry"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    compiler.Compiler().compile(training_pipeline(load_config("digits", _REGISTRY)), str(path))
    return yaml.safe_load(path.read_text())


def test_every_pipeline_input_has_a_default(compiled):
    inputs = compiled["root"]["inputDefinitions"]["parameters"]
    assert sorted(inputs) == ["champion", "epochs", "learning_rate", "source"]
    assert all("defaultValue" in spec for spec in inputs.values())


def test_export_and_deployment_run_only_if_the_gate_says_so(compiled):
    tasks = compiled["root"]["dag"]["tasks"]
    assert sorted(tasks) == [
        "condition-1",
        "create-tfrecords",
        "evaluate-model",
        "list-source",
        "preflight-training",
        "train-model",
    ]
    assert "evaluate-model-Output'] == true" in tasks["condition-1"]["triggerPolicy"]["condition"]
    promoted = compiled["components"]["comp-condition-1"]["dag"]["tasks"]
    assert sorted(promoted) == ["deploy-model", "export-model"]
    assert promoted["deploy-model"]["dependentTasks"] == ["export-model"]


def test_the_registrys_champion_is_the_default_of_the_input(compiled):
    assert compiled["root"]["inputDefinitions"]["parameters"]["champion"]["defaultValue"] == "/registry/digits@champion"


@pytest.mark.parametrize("overrides", [[], ["deploy=false", "gate.champion=gs://bucket/model"]])
def test_without_a_registry_there_is_no_deployment(tmp_path, overrides):
    path = tmp_path / "without.yaml"
    compiler.Compiler().compile(training_pipeline(load_config("digits", overrides)), str(path))
    spec = yaml.safe_load(path.read_text())
    assert "comp-deploy-model" not in spec["components"]
    champion = spec["root"]["inputDefinitions"]["parameters"]["champion"]["defaultValue"]
    assert champion == ("gs://bucket/model" if overrides else "")


def test_without_an_export_the_gate_alone_is_marked(tmp_path):
    def tasks(**options):
        path = tmp_path / "pipeline.yaml"
        compiler.Compiler().compile(training_pipeline(load_config("digits", ["export=false"]), **options), str(path))
        spec = yaml.safe_load(path.read_text())
        inside = spec["components"].get("comp-condition-1", {}).get("dag", {}).get("tasks", {})
        return spec["root"]["dag"]["tasks"].keys(), inside.keys()

    everything = {"list-source", "create-tfrecords", "preflight-training", "train-model", "evaluate-model"}
    assert tasks() == ({*everything, "condition-1"}, {"mark-promoted"})
    keys = dict.fromkeys(STEPS, "key")
    assert tasks(cache_keys=keys) == (everything - {"list-source"}, set())


def test_training_waits_for_preflight(compiled, tmp_path):
    tasks = compiled["root"]["dag"]["tasks"]
    assert "preflight-training" in tasks["train-model"]["dependentTasks"]
    assert "preflight-training" not in tasks["create-tfrecords"].get("dependentTasks", [])
    path = tmp_path / "without.yaml"
    compiler.Compiler().compile(training_pipeline(load_config("digits", ["preflight=false"])), str(path))
    assert "preflight-training" not in yaml.safe_load(path.read_text())["root"]["dag"]["tasks"]


def test_a_train_step_can_be_swapped_without_touching_the_others(compiled, tmp_path):
    compiler.Compiler().compile(train_model, str(tmp_path / "train.yaml"))
    twin = kfp_components.load_component_from_file(str(tmp_path / "train.yaml"))
    compiler.Compiler().compile(
        training_pipeline(load_config("digits", _REGISTRY), on_machines={"train_model": twin}),
        str(tmp_path / "all.yaml"),
    )
    swapped = yaml.safe_load((tmp_path / "all.yaml").read_text())
    assert swapped["root"] == compiled["root"]
    for name, component in compiled["components"].items():
        if name != "comp-train-model":
            assert swapped["components"][name] == component


def test_records_that_beam_writes_are_the_same_step_in_an_image_of_its_own(tmp_path):
    config = load_config("digits", ["data.engine=beam", "data.beam_options.max_num_workers=50"])
    pipeline = training_pipeline(config, images=Images("train:1", beam="beam:1"))
    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    compiled = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())
    task = compiled["root"]["dag"]["tasks"]["create-tfrecords"]
    assert task["inputs"]["parameters"]["data"]["runtimeValue"]["constant"]["beam_options"] == {"max_num_workers": "50"}
    images = {name: each["container"]["image"] for name, each in compiled["deploymentSpec"]["executors"].items()}
    assert images.pop("exec-create-tfrecords") == "beam:1"
    assert set(images.values()) == {"train:1"}


def test_records_are_fanned_out_over_as_many_steps_as_asked_for_and_put_together_as_the_same_step(tmp_path):
    config = load_config("digits", ["data.engine=fan_out", "data.engine_tasks=3"])
    compiler.Compiler().compile(training_pipeline(config), str(tmp_path / "pipeline.yaml"))
    fanned = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())
    tasks = fanned["root"]["dag"]["tasks"]
    (loop,) = (name for name in tasks if name.startswith("for-loop"))
    assert tasks[loop]["parameterIterator"]["items"]["raw"] == "[0, 1, 2]"
    (writer,) = fanned["components"][tasks[loop]["componentRef"]["name"]]["dag"]["tasks"].values()
    assert writer["componentRef"]["name"] == "comp-write-parts"
    merging = tasks["create-tfrecords"]
    assert merging["inputs"]["artifacts"]["parts"]["taskOutputArtifact"]["producerTask"] == loop
    assert tasks["train-model"]["inputs"]["artifacts"]["records"]["taskOutputArtifact"] == {
        "outputArtifactKey": "records",
        "producerTask": "create-tfrecords",
    }
    executors = fanned["deploymentSpec"]["executors"]
    names = ("plan-parts", "write-parts", "create-tfrecords")
    assert len({executors[f"exec-{name}"]["container"]["resources"]["memoryLimit"] for name in names}) == 1


def test_prediction_goes_to_the_evaluation_and_not_to_the_training(compiled):
    """A new prediction must not repeat the training."""
    tasks = compiled["root"]["dag"]["tasks"]
    prediction = tasks["evaluate-model"]["inputs"]["parameters"]["prediction"]["taskOutputParameter"]
    assert prediction == {"outputParameterKey": "prediction", "producerTask": "preflight-training"}
    assert "preflight-training" not in str(tasks["train-model"]["inputs"])


@pytest.mark.parametrize(("place", "variables"), [("gs://bucket/receipts", 1), ("/runs/receipts", 0)])
def test_preflight_of_a_platform_reads_receipts_from_a_bucket_only(tmp_path, monkeypatch, place, variables):
    monkeypatch.setenv("TPU_PIPELINES_RECEIPTS", place)
    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(training_pipeline(load_config("digits", _REGISTRY)), str(path))
    executors = yaml.safe_load(path.read_text())["deploymentSpec"]["executors"]
    environments = {name: executor["container"].get("env", []) for name, executor in executors.items()}
    receiving = [
        name for name, held in environments.items() if {"name": "TPU_PIPELINES_RECEIPTS", "value": place} in held
    ]
    assert receiving == ["exec-preflight-training"] * variables

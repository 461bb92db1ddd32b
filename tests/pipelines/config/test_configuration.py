import datetime
import math
import re

import pytest
import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import PaidMachine, parse_machine
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_pipelines.config.configuration import load_config, parse_config, preflight_params, read_export, ready_examples
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import default_platform

MINIMAL = {"name": "mine", "data": {"source": "sklearn:digits"}, "model": "digits_cnn"}


@pytest.mark.parametrize("name", ready_examples())
def test_every_ready_example_loads_and_is_named_after_its_file(name):
    assert load_config(name).name == name


def test_as_dict_is_a_config_again():
    config = load_config("cifar10_cnn")
    assert parse_config(config.as_dict()) == config


def test_without_an_export_the_run_ends_after_the_gate():
    config = load_config("digits", ["export=false"])
    assert config.steps[-1] == "evaluate_model"
    assert (config.export, config.deploy, config.required_formats) == (None, None, ())
    assert parse_config(config.as_dict()) == config
    assert read_export(config.as_dict()["export"]) == parse_config(MINIMAL).export, "by command all the same"


def test_the_epochs_are_those_of_all_stages():
    stages = [{"epochs": 3, "frozen": "backbone", "learning_rate": "1e-3"}, {"epochs": 5}]
    config = parse_config({**MINIMAL, "training": {"stages": stages}})
    assert config.training.epochs == 8
    assert config.training.stages == (Stage(3, ("backbone",), 1e-3), Stage(5))
    assert parse_config(config.as_dict()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainig": {}}, r"Unknown key 'trainig' .* Did you mean 'training'\?"),
        (
            {"training": {"epoch": 3}},
            r"Unknown key 'epoch' in training: expected one of epochs, .{,200} in total\)\. Did you mean 'epochs'\?",
        ),
        (
            {"data": {"source": "sklearn:digits", "test_fractoin": 0.1}},
            r"'test_fractoin'.*Did you mean 'test_fraction'\?",
        ),
        (
            {"gate": {"minimum": {"acuracy": 0.9}}},
            r"'acuracy' in minimum is not a metric of the task.*Did you mean 'accuracy'\?",
        ),
        ({"gate": {"minimum": {"accuracy": "high"}}}, r"gate.minimum.accuracy is 'high', expected a number"),
        ({"model": "digit_cnn"}, r"Unknown model 'digit_cnn'.*Did you mean 'digits_cnn'\?"),
        ({"model": {"parameters": {}}}, r"model lacks the field 'name'"),
        ({"model": {"name": "digits_cnn", "params": {}}}, r"Unknown key 'params' .* Did you mean 'parameters'\?"),
        ({"training": {"epochs": "ten"}}, r"training.epochs is 'ten', expected a whole number"),
        ({"training": {"epochs": True}}, r"training.epochs is True, expected a whole number"),
        ({"training": {"epochs": 0}}, r"^training.epochs must be at least 1. Received: training.epochs=0.$"),
        ({"training": {"stages": "3"}}, r"training.stages is '3', expected a list"),
        ({"training": {"stages": [3]}}, r"training.stages\[0\] is 3, expected a mapping of epochs, frozen, "),
        ({"training": {"stages": [{"frozen": "a"}]}}, r"training.stages\[0\] lacks the field 'epochs'"),
        ({"training": {"stages": [{"epoch": 3}]}}, r"'epoch' in training.stages\[0\].* mean 'epochs'\?"),
        (
            {"training": {"stages": [{"epochs": 3}], "epochs": 2}},
            r"the sum of the epochs of all stages. Received: epochs=2, and 3 in",
        ),
        ({"training": {"precision": "half"}}, r"precision must be one of .*Received: training.precision='half'"),
        ({"training": {"model": "digits_cnn"}}, r"Unknown key 'model' in training"),
        ({"training": [1]}, r"training is \[1\], expected a mapping of epochs, "),
        ({"data": {}}, r"data lacks the field 'source'"),
        ({"data": {"source": "sklearn:digits", "stratify": "yes"}}, r"data.stratify is 'yes', expected true or false"),
        (
            {"data": {"source": "sklearn:digits", "image_size": True}},
            r"data.image_size is True, expected a list, or values separated by commas",
        ),
        ({"machine": "v5e-12"}, r"Cannot use machine: .*no machine 'v5e-12'. Expected one of v5e-1, "),
        ({"machine": {"name": "v5e-8", "regoin": "us-west1"}}, r"'regoin' in machine.* Did you mean 'region'\?"),
        ({"preflight": {"max_step": 3}}, r"Unknown key 'max_step' in preflight.* Did you mean 'max_step_ms'\?"),
        ({"preflight": {"machine": "v5e-1"}}, r"Unknown key 'machine' in preflight"),
        ({"preflight": {"max_host_wait": 2.0}}, r"max_host_wait must be at least 0 and below 1. Received: .*=2.0"),
        ({"preflight": "on"}, r"Cannot use preflight: expected a mapping, or false to skip the step\. Received: 'on'"),
        ({"export": "no"}, r"Cannot use export: expected a mapping, or false to skip the step\. Received: 'no'"),
        (
            {"export": False, "deploy": {"alias": "a"}},
            r"Cannot deploy a model that is not exported.*deploy=\{'alias': 'a'\}",
        ),
        ({"deploy": {"registri": "r"}}, r"Unknown key 'registri' in deploy.* Did you mean 'registry'\?"),
        ({"deploy": {"lineage": {}}}, r"Unknown key 'lineage' in deploy"),
        (
            {"deploy": {"endpoint_network": "projects/p/global/networks/n"}},
            r"deploy\.endpoint_network was removed\. Leave deploy\.endpoint out, .*gcloud ai endpoints deploy-model",
        ),
        (
            {"deploy": {"endpoint_projects": ["p"]}},
            r"deploy\.endpoint_projects was removed\. Leave deploy\.endpoint out",
        ),
        (
            {"deploy": {"endpoint_access": "private"}},
            r"deploy\.endpoint_access=private was removed\. Leave deploy\.endpoint out",
        ),
        ({"deploy": {"alias": "Best"}}, r"Cannot use deploy: Cannot use the alias 'Best'"),
        ({"deploy": "on"}, r"Cannot use deploy: expected a mapping, or false to skip the step\. Received: 'on'"),
        ({"gate": False}, r"gate is False, expected a mapping"),
        ({"export": []}, r"Cannot use export: expected a mapping, or false to skip the step\. Received: \[\]"),
        (
            {"model": {"name": "digits_cnn", "parameters": {"filters": datetime.date(2024, 1, 1)}}},
            r"Cannot use model.parameters: expected .* Received: .*datetime.date\(2024, 1, 1\)",
        ),
        ({"model": {"name": "digits_cnn", "parameters": {1: 2}}}, r"mappings with string keys\. Received: \{1: 2\}"),
        (
            {"model": {"name": "digits_cnn", "parameters": {"dropout": [math.nan]}}},
            r"Cannot use model.parameters: expected .* finite numbers, .* Received: .*nan",
        ),
        ({"name": "../elsewhere"}, r"name must be at most 64 letters, .* Received: name='../elsewhere'"),
        ({"name": "-rf"}, r"name must be .* without '-' or '.' at the start, .* Received: name='-rf'"),
        ({"name": ".hidden"}, r"Received: name='.hidden'"),
        ({"name": "digits.runs"}, r"ends in '\.runs', which a workspace reserves.* Received: name='digits\.runs'"),
        ({"name": "registry"}, r"not 'registry', .* Received: name='registry'"),
        ({"name": "index.html"}, r"Received: name='index\.html'"),
    ],
)
def test_parse_config_refuses_and_says_what_is_right(change, message):
    with pytest.raises(InputError, match=message):
        parse_config(MINIMAL | change)


def test_the_registrys_champion_is_to_be_beaten_unless_the_gate_names_another():
    def champion(**sections):
        return parse_config(MINIMAL | sections).champion

    assert champion() == ""
    assert champion(deploy={"registry": "/registry"}) == "/registry/mine@champion"
    assert champion(deploy={"registry": "/registry", "model_name": "ours", "alias": "best"}) == "/registry/ours@best"
    assert champion(deploy={"registry": "/registry"}, gate={"champion": "/model"}) == "/model"
    assert champion(deploy=False) == ""


def test_a_removed_setting_that_an_earlier_configuration_left_empty_is_read():
    earlier = {"deploy": {"endpoint_network": "", "endpoint_projects": []}}
    assert parse_config(MINIMAL | earlier) == parse_config(MINIMAL)


def test_deploy_can_be_left_out():
    config = parse_config(MINIMAL | {"deploy": False})
    assert config.deploy is None
    assert config.as_dict()["deploy"] is False
    assert parse_config(config.as_dict()) == config


def test_preflight_takes_the_training_and_the_machine_as_they_stand():
    training = {"epochs": 3, "batch_size_per_replica": 32, "optimizer": "sgd"}
    config = parse_config(MINIMAL | {"training": training, "machine": {"name": "v5e-4", "region": "us-west1"}})
    assert config.preflight.training.optimizer == "sgd"
    assert config.preflight.training == config.training
    assert config.preflight.paid == PaidMachine("v5e-4", "us-west1")
    assert parse_config(MINIMAL | {"preflight": True}).preflight.paid.machine == "v5e-1", "the cheapest"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("training", "epochs", 2), ("preflight", "max_step_ms", 5.0), ("gate", "split", "train")],
)
@pytest.mark.parametrize("empty", [None, {}])
def test_a_section_without_content_is_all_defaults_and_takes_overrides(tmp_path, section, key, value, empty):
    path = tmp_path / "mine.yaml"
    with_machine = MINIMAL | {"machine": "v5e-4"}
    path.write_text(yaml.safe_dump(with_machine | {section: empty}))
    assert load_config(str(path)) == parse_config(with_machine)
    changed = load_config(str(path), [f"{section}.{key}={value}"])
    assert getattr(getattr(changed, section), key) == value


def test_a_step_that_is_switched_on_takes_overrides(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"preflight": True, "machine": None}))
    config = load_config(str(path), ["preflight.max_step_ms=5", "machine.name=v5e-4"])
    assert (config.preflight.max_step_ms, config.preflight.paid.machine) == (5.0, "v5e-4")


def test_preflight_is_for_who_names_a_machine_or_asks_for_it():
    assert parse_config(MINIMAL).preflight is None
    assert parse_config(MINIMAL | {"preflight": None}).preflight, "the section, empty"
    assert parse_config(MINIMAL | {"machine": "v5e-4"}).preflight.paid.machine == "v5e-4"
    assert load_config("digits").preflight.paid.machine == "v5e-1", "the first example shows it"
    assert load_config("mnist_cnn").preflight is None


def test_preflight_can_be_left_out():
    config = parse_config(MINIMAL | {"preflight": False})
    assert config.preflight is None
    assert parse_config(config.as_dict()) == config
    v6e = parse_machine("v6e-4")
    assert place_training(config, v6e, default_platform()).config.preflight is None
    assert preflight_params(config, v6e.paid).paid.machine == "v6e-4", "asked for by command"


def test_preflight_checks_the_machine_that_a_run_is_moved_to():
    config = parse_config(MINIMAL | {"machine": "v5e-4", "preflight": {"max_price_usd": 5.0}})
    moved = place_training(config, parse_machine({"name": "v6e-4", "spot": True}), default_platform()).config
    assert (moved.machine.name, moved.preflight.paid) == ("v6e-4", PaidMachine("v6e-4", spot=True))
    assert moved.preflight.max_price_usd == 5.0


def test_machine_is_a_short_name_or_a_mapping_and_shown_only_if_set():
    config = parse_config(MINIMAL | {"machine": {"name": "v5e-8", "fallbacks": ["v6e-8"]}})
    assert (config.machine.name, config.machine.fallbacks[0].name) == ("v5e-8", "v6e-8")
    assert parse_config(config.as_dict()) == config
    assert parse_config(MINIMAL | {"machine": "v3-8"}).machine.accelerator_type == "TPU_V3"
    assert parse_config(MINIMAL | {"machine": None}).machine is None
    assert "machine" not in parse_config(MINIMAL).as_dict()


def test_machine_is_checked_with_the_backend_that_trains_on_it():
    tensorflow = {"training": {"backend": "tensorflow"}}
    assert parse_config(MINIMAL | tensorflow | {"machine": "v3-8"}).machine.name == "v3-8"
    assert parse_config(MINIMAL | {"machine": "v6e-8"}).machine.name == "v6e-8"
    with pytest.raises(InputError, match=r"Cannot use machine: .*Received: v6e-8, backend='tensorflow'"):
        parse_config(MINIMAL | tensorflow | {"machine": "v6e-8"})


def test_overrides_reach_the_machine_and_its_short_form(tmp_path):
    assert load_config("digits", ["machine=v5e-8"]).machine.name == "v5e-8"
    assert load_config("digits", ["machine=v5e-8", "machine.spot=true"]).machine.spot
    (tmp_path / "mine.yaml").write_text("{name: a, data: {source: 'sklearn:digits'}, model: digits_cnn, machine: v3-8}")
    assert load_config(str(tmp_path / "mine.yaml"), ["machine.region=europe-west4"]).machine.region == "europe-west4"


def test_parse_config_names_all_missing_sections_at_once():
    with pytest.raises(InputError, match="Missing in the configuration: name, data, model"):
        parse_config({})


def test_all_mistakes_of_a_configuration_are_shown_at_once():
    wrong = {
        "name": "-rf",
        "model": "digit_cnn",
        "training": {"epoch": 3, "seed": "one", "stages": 3, "precision": "half"},
        "gate": {"confidence": 2.0, "slice_minimum": 0.5},
        "preflight": {"max_step": 3},
        "machine": {"name": "v5e-8", "regoin": "us-west1", "spot": 1},
        "resources": {"train": {}, "export_model": {"cpu": -1}},
        "machines": "v5e-8",
    }
    with pytest.raises(InputError) as refused:
        parse_config(MINIMAL | wrong)
    lines = str(refused.value).splitlines()
    expected = ["'machines' .*Did you mean 'machine'", "name='-rf'", "Did you mean 'digits_cnn'", "mean 'epochs'"]
    expected += ["stages is 3", "seed is 'one'", "precision must be", "confidence must be", "mean 'region'"]
    expected += ["spot is 1", "mean 'max_step_ms'", "'train' in resources", "cpu must be at least 0"]
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.search(pattern, line), (pattern, line)


def test_numbers_that_yaml_takes_for_strings_are_numbers():
    assert parse_config(MINIMAL | {"training": {"learning_rate": "1e-4"}}).training.learning_rate == 1e-4


def test_overrides_reach_sections_and_the_short_form_of_model():
    config = load_config("digits", ["training.epochs=3", "model.parameters.filters=8", "name=other"])
    assert (config.training.epochs, config.training.model_parameters, config.name) == (3, {"filters": 8}, "other")


@pytest.mark.parametrize("override", ["training.epochs", "=3", "name.x=1", "training.epochs=[1"])
def test_malformed_overrides_are_refused(override):
    with pytest.raises(InputError, match=re.escape(f"Cannot use the override {override!r}")):
        load_config("digits", [override])


def test_unknown_example_names_the_nearest():
    with pytest.raises(InputError, match=r"Unknown configuration 'digts'.*Did you mean 'digits'\?"):
        load_config("digts")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("a: [", "it is not YAML"),
        ("- 1", "expected sections, received list"),
        ("name: a\nname: b\n", "the key 'name' appears twice"),
    ],
)
def test_missing_and_malformed_files_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(InputError, match=message):
        load_config(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("name=2024-13-45", "the value is not valid YAML"),
        ("name=", "name is None, expected a text"),
        ("gate.minimum=3", "gate.minimum is 3, expected a mapping"),
        ("training.seed=-1", "seed must be at least 0"),
        ("training.warmup_epochs=.nan", "training.warmup_epochs is nan, expected a finite number"),
        ("model.parameters.unitz=3", r"Unknown parameter 'unitz'.*Did you mean 'units'\?"),
        ("model=nosuch.module:build", "it does not exist"),
    ],
)
def test_settings_that_only_look_right_are_refused(override, message):
    with pytest.raises(InputError, match=message):
        load_config("digits", [override])


@pytest.mark.parametrize(
    ("task", "judged"), [("classification", "accuracy"), ("multi_label", "micro_f1"), ("regression", "r2")]
)
def test_a_champion_is_compared_by_the_tasks_own_figure_unless_another_is_named(task, judged):
    raw = {"name": "x", "data": {"source": "npz:data.npz", "task": task}, "model": "digits_cnn"}
    assert parse_config(raw).gate.max_regression == {judged: 0.0}
    assert parse_config({**raw, "gate": {"max_regression": {"loss": 0.1}}}).gate.max_regression == {"loss": 0.1}
    assert parse_config(parse_config(raw).as_dict()) == parse_config(raw)


def test_slices_that_there_will_not_be_are_refused_before_anything_is_trained():
    raw = {"name": "x", "data": {"source": "csv:data.csv", "slice_columns": ["site"]}, "model": "digits_cnn"}
    for name in ("site", "length", "size"):
        assert parse_config({**raw, "gate": {"slices": ["class", name]}}).gate.slices == ("class", name)
    with pytest.raises(
        InputError, match=r"Cannot use gate: Cannot divide the examples into slices by 'sit'.* Did you mean 'site'\?"
    ):
        parse_config({**raw, "gate": {"slices": ["class", "sit"]}})
    numbers = {**raw, "data": {**raw["data"], "task": "regression"}, "gate": {"slice_minimum": 0.5}}
    with pytest.raises(InputError, match=r"Cannot use gate: slice_minimum=0\.5 is not supported"):
        parse_config(numbers)


def test_a_corpus_asks_for_a_language_model_and_is_compared_by_its_bits():
    raw = {"name": "x", "data": {"source": "corpus:text.txt"}, "model": "shakespeare_lstm"}
    assert parse_config(raw).gate.max_regression == {"bits_per_character": 0.0}
    with pytest.raises(InputError, match=r"'roc_auc' in minimum is not a metric of the task language_model"):
        parse_config({**raw, "gate": {"minimum": {"roc_auc": 0.9}}})


def test_a_metric_of_another_task_is_refused_with_those_of_the_task():
    raw = {"name": "x", "data": {"source": "npz:data.npz", "task": "regression"}, "model": "digits_cnn"}
    with pytest.raises(
        InputError, match=r"Cannot use gate: 'accuracy' in minimum is not a metric of the task regression.* r2,"
    ):
        parse_config({**raw, "gate": {"minimum": {"accuracy": 0.9}}})


def test_the_export_section_is_read_alone():
    params = read_export({"split": "validation"}, ["export.required=[float]"])
    assert (params.split, params.required) == ("validation", ("float",))
    with pytest.raises(InputError, match=r"Unknown key 'gate' in the overrides"):
        read_export({}, ["gate.split=test"])


@pytest.mark.parametrize("value", ["{acuracy:0.9}", "{acuracy: 0.9}", "{macro_f1:0.5,acuracy:0.9}"])
def test_a_mapping_without_spaces_is_read_and_its_typo_corrected(value, tmp_path):
    """YAML reads `{acuracy:0.9}` as a key `acuracy:0.9` without a value; in a file as well as with --set."""
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        load_config("digits", [f"gate.minimum={value}"])
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nmodel: digits_cnn\ndata: {{source: 'sklearn:digits'}}\ngate: {{minimum: {value}}}\n")
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        load_config(path)


def test_a_mapping_without_spaces_keeps_its_values():
    config = load_config("digits", ["gate.minimum={accuracy:0.9,macro_f1: 0.5}", "training={epochs:3,optimizer:sgd}"])
    assert config.gate.minimum == {"accuracy": 0.9, "macro_f1": 0.5}
    assert (config.training.epochs, config.training.optimizer) == (3, "sgd")
    uri = load_config("digits", ["data={source: sklearn:digits}"])
    assert uri.data.source == "sklearn:digits"


def test_a_text_that_lacks_a_space_after_a_colon_gets_the_advice(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nmodel: digits_cnn\ndata: {source: 'sklearn:digits'}\ngate:\n  minimum:\n    accuracy:0.9\n"
    )
    with pytest.raises(InputError, match=r"expected a mapping.*\. Write a space after the colon: accuracy: 0\.9"):
        load_config(path)

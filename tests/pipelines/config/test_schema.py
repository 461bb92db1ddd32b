"""The schema and the table of settings say what the code takes."""

import jsonschema
import pytest
import yaml

from tests.evidence.generated import interfaces, texts
from tests.support.cli import tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import allowed_by
from tpu_pipelines.config import schema
from tpu_pipelines.config.configuration import CONFIGS_DIR, load_config, parse_config, ready_examples

VALIDATOR = jsonschema.Draft7Validator(schema.as_json_schema())
BASE = {"name": "x", "data": {"source": "sklearn:digits"}, "model": "digits_cnn"}


def test_what_is_made_from_the_code_is_as_the_code_says():
    for make in (interfaces, texts):  # The texts follow from the interfaces.
        for path, content in make().items():
            assert path.read_text() == content, f"Write {path.name} anew: python -m tests.evidence.generated"


def test_it_is_a_schema():
    jsonschema.Draft7Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("name", ready_examples())
def test_ready_examples_fit_and_say_where_the_schema_is(name):
    text = (CONFIGS_DIR / f"{name}.yaml").read_text()
    VALIDATOR.validate(yaml.safe_load(text))
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")


def test_it_has_every_setting_with_its_default():
    """A configuration with all defaults written out is the same configuration."""
    full = load_config("digits", ["machine=v5e-4", "resources.export_model.cpu=2"]).as_dict()
    VALIDATOR.validate(full)
    for section in ("data", "training", "gate", "export", "deploy", "preflight", "machine"):
        known = {one.name.partition(".")[2] for one in schema.settings() if one.name.startswith(f"{section}.")}
        assert set(full[section]) <= known, section
    assert parse_config(full).as_dict() == full


@pytest.mark.parametrize("setting", [*schema.settings()], ids=lambda setting: setting.name)
def test_a_setting_has_a_meaning(setting):
    assert setting.meaning.endswith(".")


_CHOICES = {one.name: allowed for one in schema.settings() if isinstance(allowed := allowed_by(one.kind), tuple)}


@pytest.mark.parametrize(("name", "choices"), [*_CHOICES.items()])
def test_choices_are_those_that_are_taken(name, choices):
    section, _, key = name.partition(".")
    given = {**BASE, "machine": {"name": "v5e-8"}}.get(section, {})

    def said(value):
        try:
            parse_config({**BASE, section: {**given, key: value}})
        except InputError as error:
            return str(error)
        return ""

    stranger = 7 if isinstance(choices[0], int) else "stranger"
    for choice in choices:
        assert f"Received: {name}" not in said(choice)
    assert f"Received: {name}" in said(stranger)
    assert not VALIDATOR.is_valid({**BASE, section: {**given, key: stranger}})


@pytest.mark.parametrize(
    "change",
    [
        {"trainig": {}},
        {"training": {"epoch": 3}},
        {"training": {"epochs": "three"}},
        {"training": {"epochs": 0}},
        {"data": {"source": "x:y", "test_fraction": 1}},
        {"machine": "v5e-12"},
        {"resources": {"train": {}}},
        {"data": {}},
    ],
)
def test_what_the_code_refuses_an_editor_marks(change):
    assert not VALIDATOR.is_valid({**BASE, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "v5e-4"},
        {"machine": {"name": "v5e-4", "fallbacks": ["v6e-4"]}},
        {"preflight": False, "deploy": True, "gate": None},
        {"data": {"source": "x:y", "image_size": 64, "class_names": "a,b"}},
        {"model": {"name": "digits_cnn", "parameters": {"filters": 3}}},
    ],
)
def test_shorter_ways_to_write_are_not_marked(change):
    VALIDATOR.validate({**BASE, **change})


def test_the_command_prints_both_forms():
    assert tpu_pipelines_here("schema").stdout == schema.as_text()
    table = tpu_pipelines_here("schema", "--markdown").stdout
    assert "| `training.epochs` | `10` | Largest number of passes over the training split. |" in table

import dataclasses
import subprocess
import sys
import warnings

import pytest
import yaml
from kfp import compiler, dsl

import tpu_components.kfp as steps
from tests.support.cli import COMPONENTS
from tpu_components.core.base.container_images import LOCAL_IMAGE, check_image_name, load_images
from tpu_components.core.base.errors import InputError
from tpu_components.kfp import StaleCacheWarning, with_image, with_images

PINNED = "docker.io/me/python@sha256:" + 64 * "0"


def image_of(component):
    return component.component_spec.implementation.container.image


def test_every_component_of_a_step_is_imported_from_one_place():
    names = {field.name for field in dataclasses.fields(steps.Components)}
    assert names == {
        "create_tfrecords",
        "deploy_model",
        "evaluate_model",
        "export_model",
        "find_drift",
        "import_model",
        "list_source",
        "make_container_model",
        "predict_batch",
        "preflight_training",
        "train_model",
    }
    assert names < set(steps.__all__)
    for name in names:
        assert getattr(steps, name).component_spec.name == name.replace("_", "-")
        assert image_of(getattr(steps, name)) == LOCAL_IMAGE


def test_an_import_needs_no_framework():
    code = "import sys, tpu_components.kfp; print([m for m in ('tensorflow', 'keras', 'jax') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_one_call_gives_all_components_an_image_and_leaves_the_others_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pinned = with_images(PINNED)
    assert {image_of(getattr(pinned, name)) for name in vars(pinned)} == {PINNED}
    assert image_of(steps.train_model) == LOCAL_IMAGE


def test_the_image_of_any_component_can_be_changed():
    @dsl.component(base_image="python:3.11")
    def foreign() -> int:
        return 1

    assert image_of(with_image(foreign, PINNED)) == PINNED
    assert image_of(foreign) == "python:3.11"


@pytest.mark.parametrize("change", [with_images, lambda image: with_image(steps.train_model, image)])
def test_an_image_with_a_tag_may_be_another_one_tomorrow(change):
    with pytest.warns(
        StaleCacheWarning, match=r"'docker.io/me/python:1' is not named by digest.*results of the old code"
    ):
        change("docker.io/me/python:1")


@pytest.mark.parametrize("change", [with_images, lambda image: with_image(steps.train_model, image)])
@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("", "Expected the image as REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, in lower case. Received: ''."),
        ("docker.io/Me/python:1", "Expected the image as .* Received: 'docker.io/Me/python:1'"),
        ("docker.io/me/python:1 ", "Expected the image as .* Received: 'docker.io/me/python:1 '"),
        ("docker.io/me/python@sha256:0f", "Expected the image with a digest of `sha256:` and 64 hexadecimal digits"),
        ("docker.io/me/python@sha256:…", "Expected the image with a digest of `sha256:` and 64 hexadecimal digits"),
        ("docker.io/me/python:1@", "Expected the image with a digest of `sha256:` and 64 hexadecimal digits"),
    ],
)
def test_a_malformed_name_of_an_image_is_refused(change, image, message):
    """The empty one may come from an environment variable that is not set."""
    with pytest.raises(InputError, match=message):
        change(image)


@pytest.mark.parametrize(
    "image", ["python", "localhost:5000/python:1", "a.b/c/d__e/f-g:V_1.0", f"x/y:1@sha256:{'0f' * 32}"]
)
def test_other_names_of_images_are_accepted(image):
    check_image_name(image)


def test_a_variable_with_a_malformed_name_of_an_image_is_named():
    with pytest.raises(InputError, match=r"Expected TPU_PIPELINES_STEPS_IMAGE with a digest .*'a/b@sha256:0'"):
        load_images({"TPU_PIPELINES_STEPS_IMAGE": "a/b@sha256:0"})


def test_a_component_compiles_alone(tmp_path):
    compiler.Compiler().compile(steps.create_tfrecords, str(tmp_path / "component.yaml"))
    assert "create-tfrecords" in (tmp_path / "component.yaml").read_text()


@pytest.mark.parametrize("path", sorted(COMPONENTS.glob("*/metadata.yaml")), ids=lambda path: path.parent.name)
def test_the_catalogue_entry_has_the_fields_that_kubeflows_catalogue_checks(path):
    """kubeflow/pipelines-components at fab64a9, scripts/validate_metadata/validate_metadata.py."""
    entry = yaml.safe_load(path.read_text())
    assert list(entry) == ["name", "stability", "dependencies", "tags", "lastVerified"]
    assert entry["name"] == path.parent.name
    assert entry["stability"] in ("experimental", "alpha", "beta", "stable")
    assert entry["dependencies"] == {"kubeflow": [{"name": "Pipelines", "version": ">=2.14.6"}]}
    assert all(isinstance(tag, str) for tag in entry["tags"])
    assert entry["lastVerified"].tzinfo is not None


def test_every_component_has_a_catalogue_entry():
    names = {field.name for field in dataclasses.fields(steps.Components)} - {"list_source", "make_container_model"}
    assert {path.parent.name for path in COMPONENTS.glob("*/metadata.yaml")} == names

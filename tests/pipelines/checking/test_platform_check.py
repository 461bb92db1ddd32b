"""What `tpu-pipelines check --target` says of a platform that nobody asks."""

import dataclasses

import pytest

from tpu_components.core.base.container_images import LOCAL_IMAGE
from tpu_pipelines.checking.check_list import UNASKED, examine, platform_checks
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.doctor.findings import CheckCost, ask_all, errors_in
from tpu_pipelines.pipeline import compile as compiling

_PINNED = f"europe-docker.pkg.dev/p/r/step@sha256:{'0' * 64}"
_SETTINGS = Settings(project="my-project", region="us-west1", bucket="gs://my-bucket")
_MODEL = "def build_model(image_shape, num_classes): ...\n"


@pytest.fixture
def image(monkeypatch):
    monkeypatch.setattr(compiling, "IMAGE", _PINNED)
    return _PINNED


def _found(config, settings=_SETTINGS, target="vertex"):
    findings = ask_all(platform_checks(config, target, settings))
    return [(finding.about, finding.state, finding.said) for finding in findings]


def test_what_is_missing_is_found_at_once(monkeypatch):
    monkeypatch.setattr(compiling, "IMAGE", LOCAL_IMAGE)
    found = _found(load_config("cifar10_cnn", ["machine=v5e-4"]), Settings())
    assert [(about, state) for about, state, _ in found] == [
        ("vertex", "error"),
        ("image", "error"),
        ("vertex", "error"),
    ]
    for (_, _, said), words in zip(
        found, ("TPU_PIPELINES_PROJECT", "cannot fetch", "data.source must be on"), strict=True
    ):
        assert words in said


def test_what_is_there_is_said(image, tmp_path):
    (tmp_path / "mine.py").write_text(_MODEL)
    config = load_config("digits", ["machine=v5e-4", f"model={tmp_path}/mine.py"])
    found = _found(config)
    assert [state for _, state, _ in found] == ["ok"] * 4
    assert found[0][2] == "project my-project, region us-west1, bucket gs://my-bucket"
    assert found[1][2] == image
    assert "v5e-4" in found[2][2]
    assert "mine.py travels as gs://my-bucket/models/" in found[3][2]
    assert _found(load_config("digits", ["machine=v5e-4"]))[3][2] == "digits_cnn is in the image"


def test_a_registry_of_the_project_is_a_mistake_only_of_a_run_here(image, quick_models, tmp_path):
    deploy = f"deploy={{registry: vertex, serving_image: '{image}'}}"
    config = load_config("digits", ["machine=v5e-4", deploy])
    assert errors_in(examine(config, UNASKED, "vertex", _SETTINGS, workspace=tmp_path)) == []
    (here,) = errors_in(examine(config, (CheckCost.FILE,), workspace=tmp_path))
    assert (here.about, here.said.startswith("A run on this machine knows no project.")) == ("deploy", True)


def test_a_tag_that_may_move_is_a_hint(monkeypatch):
    monkeypatch.setattr(compiling, "IMAGE", "europe-docker.pkg.dev/p/r/step:latest")
    settings = dataclasses.replace(Settings(), kfp_host="http://127.0.0.1:9")
    found = _found(load_config("digits", ["machine=v5e-4"]), settings, "kubeflow")
    assert found[1][:2] == ("image", "hint")

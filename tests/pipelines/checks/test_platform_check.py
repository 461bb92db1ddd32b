"""What `tpu-pipelines check --target` says of a platform that nobody asks."""

import os

import pytest

from tests.support.cli import tpu_pipelines_here
from tpu_components.core.base.container_images import Images
from tpu_pipelines.checks.check_list import UNASKED, examine, first_checks, platform_checks
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.findings import CheckCost, ask_all, errors_in
from tpu_pipelines.platforms.platform import PLATFORMS

_PINNED = f"europe-docker.pkg.dev/p/r/step@sha256:{'0' * 64}"
_SETTINGS = Settings(project="my-project", region="us-west1", bucket="gs://my-bucket", images=Images(_PINNED))
_MODEL = "def build_model(image_shape, num_classes): ...\n"


def _found(config, settings=_SETTINGS, target="vertex"):
    findings = ask_all(platform_checks(config, PLATFORMS[target], settings))
    return [(finding.about, finding.state, finding.said) for finding in findings]


_IN_ORDER = ("image", "variables", "data", "machine", "model", "registry")


@pytest.mark.parametrize(
    "command", [("check",), ("doctor",), ("submit", "--dry-run"), ("submit",), ("schedule", "--cron", "0 3 * * *")]
)
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_every_command_names_all_that_is_missing_in_the_order_of_doing(
    command, target, models_here, tmp_path, monkeypatch
):
    """They came one at a time: first the settings, then the data, then the image. Nothing signs in for them."""
    for name in [name for name in os.environ if name.startswith("TPU_PIPELINES_")]:
        if name not in ("TPU_PIPELINES_CACHE_DIR", "TPU_PIPELINES_TESTS_SOCKET"):
            monkeypatch.delenv(name)
    write_texts(tmp_path)
    done = tpu_pipelines_here(*command[:1], "texts.yaml", "--target", target, *command[1:], cwd=tmp_path)
    assert done.returncode == 2
    told = done.stdout + done.stderr
    words = ["cannot pull the step image", "Missing settings: ", "cannot read 'texts.csv'", "expected a machine"]
    places = [told.index(word) for word in words]
    assert places == sorted(places)
    assert all(told.count(word) == 1 for word in words)
    assert "gcloud storage cp texts.csv gs://your-bucket/data/texts.csv" in told
    if target == "kubeflow":
        assert "uploading the model 'texts_model.py' requires a bucket" in told


@pytest.mark.parametrize("registry", ["vertex", "projects/p/locations/us-west1/models"])
def test_an_initial_model_of_the_registry_can_be_read_by_the_steps(registry):
    overrides = ["machine=v5e-4", f"deploy.registry={registry}", "training.initial_model=digits@champion"]
    checks = first_checks(load_config("digits", overrides), PLATFORMS["vertex"], Settings())
    assert errors_in(ask_all([check for check in checks if check.about == "data"])) == []


def write_texts(folder):
    rows = [f"a text of number {i},{('neg', 'pos')[i % 2]}" for i in range(60)]
    (folder / "texts.csv").write_text("\n".join(["text,label", *rows]))
    assert tpu_pipelines_here("init", "texts.csv", cwd=folder).returncode == 0


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
def test_a_check_names_each_mistake_once_and_leaves_out_what_depends_on_it(platform):
    deploy = "deploy={registry: vertex}"
    found = _found(load_config("cifar10_cnn", [deploy]), Settings(), platform)
    states = {about: state for about, state, _ in found}
    assert [about for about in states if about in _IN_ORDER] == list(_IN_ORDER)
    wanted = dict.fromkeys(("image", "variables", "data", "machine"), "error")
    wanted |= {"model": "ok", "registry": "unknown" if platform == "vertex" else "error", "pipeline": "unknown"}
    assert states == wanted


def test_what_is_there_is_said(tmp_path):
    (tmp_path / "mine.py").write_text(_MODEL)
    config = load_config("digits", ["machine=v5e-4", f"model={tmp_path}/mine.py"])
    found = {about: said for about, state, said in _found(config) if state == "ok"}
    assert list(found) == ["image", "variables", "data", "machine", "model", "pipeline"]
    assert found["variables"] == "project my-project, region us-west1, bucket gs://my-bucket"
    assert found["image"] == _PINNED
    assert "v5e-4" in found["pipeline"]
    assert "mine.py is uploaded as gs://my-bucket/models/" in found["model"]
    assert _found(load_config("digits", ["machine=v5e-4"]))[-1][2] == "digits_cnn is in the image"


@pytest.mark.parametrize(
    ("source", "bucket", "command", "uri"),
    [
        (
            "images:a b/photos",
            "gs://mine/x/",
            "gcloud storage rsync --recursive 'a b/photos'",
            "gs://mine/x/data/photos",
        ),
        ("csv:a b/t.csv", "gs://mine", "gcloud storage cp 'a b/t.csv'", "gs://mine/data/t.csv"),
        ("images:a b/photos", "s3://mine", "aws s3 sync 'a b/photos'", "s3://mine/data/photos"),
    ],
)
def test_the_copy_of_local_data_is_a_command_and_its_setting(source, bucket, command, uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b" / "photos").mkdir(parents=True)
    (tmp_path / "a b" / "t.csv").touch()
    config = load_config("cifar10_cnn", [f"data.source={source}", "machine=v5e-4"])
    checks = first_checks(config, PLATFORMS["kubeflow"], Settings(kfp_host="https://k", bucket=bucket))
    (finding,) = ask_all([check for check in checks if check.about == "data"])
    kind = source.partition(":")[0]
    assert finding.remedy == f"{command} {uri}, and set data.source={kind}:{uri}"
    assert [each.text for each in finding.commands] == [f"{command} {uri}"]
    copied = first_checks(
        load_config("cifar10_cnn", [f"data.source={kind}:{uri}", "machine=v5e-4"]), PLATFORMS["kubeflow"], Settings()
    )
    assert errors_in(ask_all([check for check in copied if check.about == "data"])) == []


def test_a_registry_of_the_project_is_a_mistake_only_of_a_run_here(quick_models, tmp_path):
    deploy = f"deploy={{registry: vertex, serving_image: '{_PINNED}'}}"
    config = load_config("digits", ["machine=v5e-4", deploy])
    assert errors_in(examine(config, UNASKED, PLATFORMS["vertex"], _SETTINGS, workspace=tmp_path)) == []
    (here,) = errors_in(examine(config, (CheckCost.FILE,), workspace=tmp_path))
    assert here.about == "deploy"
    assert "is not supported for a run on this machine, which has no project." in here.said


def test_a_tag_that_may_move_is_a_hint():
    settings = Settings(kfp_host="http://127.0.0.1:9", images=Images("europe-docker.pkg.dev/p/r/step:latest"))
    found = _found(load_config("digits", ["machine=v5e-4"]), settings, "kubeflow")
    assert found[0][:2] == ("image", "hint")

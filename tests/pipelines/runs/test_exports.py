import json
import shutil

import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.registry.versions import Version, fetch_folder
from tpu_components.serving.params import ServeParams
from tpu_components.serving.server import load_export
from tpu_pipelines.cli.main import main
from tpu_pipelines.runs.exports import find_compared, find_export


@pytest.fixture
def workspace(finished_run, tmp_path):
    """A copy of the finished run's registry and of its export."""
    shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
    shutil.copytree(finished_run[0] / "digits" / "export", tmp_path / "digits" / "export")
    return tmp_path


@pytest.mark.parametrize("name", ["digits", "digits@champion", "digits@1", "{0}/registry/digits@01"])
def test_a_registered_model_is_found_by_name(workspace, name):
    expected = workspace / "registry" / "digits" / "versions" / "0001" / "export"
    assert find_export(name.format(workspace), workspace) == str(expected)


def test_folders_come_before_names(workspace, monkeypatch):
    run = workspace / "digits"
    for name in (run, run / "export"):
        assert find_export(str(name), workspace) == str(run / "export")
    monkeypatch.chdir(workspace)
    assert find_export("digits", workspace) == "digits/export"
    shutil.rmtree("digits/export")
    assert "versions" in find_export("digits", workspace)
    assert find_export("gs://bucket/export", workspace) == "gs://bucket/export"


@pytest.mark.parametrize("name", ["digits", "digits@0001", "{0}/registry/digits@champion", "{0}/{1}", "{0}/{1}/export"])
def test_a_damaged_version_is_refused_however_it_is_named(workspace, name):
    version = "registry/digits/versions/0001"
    file = workspace / version / "export" / "model.tflite"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"is damaged: export/model\.tflite"):
        fetch_folder(find_export(name.format(workspace, version), workspace), workspace)


@pytest.mark.parametrize("verb", ["serve", "predict"])
def test_every_file_of_a_version_is_hashed_once_before_it_is_loaded(workspace, monkeypatch, tmp_path, verb):
    checked, check_files = [], Version.check_files
    monkeypatch.setattr(Version, "check_files", lambda version: checked.append(version.number) or check_files(version))
    if verb == "serve":
        load_export(find_export("digits", workspace), ServeParams(), tmp_path)
    else:
        Image.new("L", (8, 8)).save(tmp_path / "0.png")
        assert main(["predict", "digits", str(tmp_path / "0.png"), "--workspace", str(workspace)]) == 0
    assert checked == ["0001"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits@best", r"Cannot find digits@best: no version in .* has this alias\. .*registry list"),
        ("digits@0009", r"has no version '0009'"),
        ("nothing", r"Received: no such folder\. .*registry contains digits\. `tpu-pipelines registry list`"),
        ("rejected", r"expected .* the path of a run's folder"),
        ("{0}/rejected", r"a folder without export\.json, directly or in export/.*`tpu-pipelines export "),
        ("{0}/nowhere", r"Received: no such folder"),
    ],
)
def test_what_cannot_be_found_is_named_with_what_can(workspace, name, message):
    (workspace / "rejected").mkdir()
    with pytest.raises(InputError, match=message):
        find_export(name.format(workspace), workspace)


def test_a_failed_run_is_named_with_the_last_one_that_has_an_export(workspace):
    (workspace / "texts").mkdir()
    (workspace / "texts" / "summary.json").write_text(json.dumps({"status": "failed"}))
    with pytest.raises(InputError, match=r"Received: a run without an export, failed\. .*registry contains"):
        find_export(f"{workspace}/texts", workspace)
    earlier = workspace / "texts.runs" / "0003" / "export"
    earlier.mkdir(parents=True)
    (earlier / "export.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"a run without an export, failed; .*/texts\.runs/0003 has an export\. .*registry"
    ):
        find_export(f"{workspace}/texts", workspace)


def test_what_is_compared_with_is_found_by_name_in_the_workspace(workspace, monkeypatch):
    registry = f"{workspace}/registry"
    for version in ("champion", "0001"):
        for name in (f"digits@{version}", f"{registry}/digits@{version}"):
            assert find_compared(name, workspace) == f"{registry}/digits@{version}"
    monkeypatch.chdir(workspace)
    for name in (
        "digits",
        f"{workspace}/digits",
        "gs://bucket/records",
        "projects/p/locations/us-west1/models/digits@1",
    ):
        assert find_compared(name, workspace, "records") == name


@pytest.mark.parametrize("name", ["digits", "flowers@champion", "digits@", "nowhere/records", "gs://bucket/records"])
def test_what_cannot_be_compared_with_is_told_how_it_is_named(workspace, name):
    with pytest.raises(
        InputError, match=r"Expected NAME@VERSION .*, or REGISTRY/NAME@VERSION in another .*/registry contains digits"
    ):
        find_compared(name, workspace)
    if not name.startswith("gs://"):
        with pytest.raises(
            InputError, match=r"because it does not exist\. Expected .* in another registry, or records"
        ):
            find_compared(name, workspace, "records")


def test_every_command_that_compares_takes_the_name_of_a_version(workspace, finished_run, capsys):
    records, there = f"{finished_run[0]}/digits/records", ["--workspace", str(workspace)]
    assert main(["drift", records, "--against", "digits@champion", *there]) == 0
    for command in (["drift", records], ["preflight", "digits"]):
        assert main([*command, "--against", "flowers@champion", *there]) == 2
        assert "Cannot compare with 'flowers@champion'" in capsys.readouterr().err
        assert main([*command, "--against", "digits@best", *there]) == 2
        assert "has the alias 'best'" in capsys.readouterr().err

"""Claims about what Kubeflow's launcher does around a step."""

import json
import sys

import pytest

from tests.fakes.kfp_launcher import copy_objects, launch

STEP = """
import json, pathlib, sys
task = json.loads(sys.argv[2])
given, made = (task[part]["artifacts"]["a"]["artifacts"][0]["uri"] for part in ("inputs", "outputs"))
folder = pathlib.Path(made)
(folder / "empty").mkdir(parents=True)
(folder / "file").write_text(pathlib.Path(given, "file").read_text())
pathlib.Path(task["outputs"]["outputFile"]).write_text(json.dumps({"uri": made}))
(pathlib.Path(given) / "file").write_text("spoiled")
sys.exit(int(sys.argv[3]))
"""


def run(folder, code):
    (folder / "in").mkdir()
    (folder / "in" / "file").write_text("content")
    parts = {"inputs": folder / "in", "outputs": folder / "out"}
    task = {part: {"artifacts": {"a": {"artifacts": [{"uri": str(path)}]}}} for part, path in parts.items()}
    task["outputs"]["outputFile"] = str(folder / "told.json")
    return launch({}, [sys.executable, "-c", STEP, "--executor_input", json.dumps(task), str(code)])


def test_a_step_reads_a_copy_and_leaves_its_files(tmp_path):
    assert run(tmp_path, 0) == 0
    assert (tmp_path / "in" / "file").read_text() == "content"
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["file"]
    assert json.loads((tmp_path / "told.json").read_text()) == {"uri": str(tmp_path / "out")}


def test_a_step_that_fails_leaves_nothing(tmp_path):
    assert run(tmp_path, 1) == 1
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_folder_fails(tmp_path):
    (tmp_path / "given" / "folder").mkdir(parents=True)
    (tmp_path / "given" / "link").symlink_to(tmp_path / "given" / "folder")
    with pytest.raises(IsADirectoryError, match=r"is a link to a folder"):
        copy_objects(tmp_path / "given", tmp_path / "copy")


def test_a_pod_signs_in_with_what_its_secrets_say_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "mine too")
    code = (
        "import os, sys; sys.exit((os.environ['AWS_ACCESS_KEY_ID'], os.getenv('AWS_SESSION_TOKEN')) != ('pod', None))"
    )
    task = json.dumps({"outputs": {"outputFile": str(tmp_path / "told.json")}})
    assert launch({"AWS_ACCESS_KEY_ID": "pod"}, [sys.executable, "-c", code, "--executor_input", task]) == 0

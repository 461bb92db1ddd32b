"""Claims about the launcher of Kubeflow's steps."""

import json
import sys

import pytest

from tests.support.fakes.kfp_launcher import copy_objects, launch, launch_here, local_path, result_file

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


IN_A_POD = """
import json, pathlib, sys
task = json.loads(sys.argv[1])
given, made = (task[part]["artifacts"]["a"]["artifacts"][0]["uri"][5:] for part in ("inputs", "outputs"))
here = pathlib.Path(sys.argv[2], "s3")
(here / made).write_text((here / given).read_text() + str(task["inputs"]["parameterValues"]))
print("a line")
pathlib.Path(task["outputs"]["outputFile"]).write_text(json.dumps({"parameterValues": {"told": 1}}))
pathlib.Path(task["outputs"]["parameters"]["written"]["outputFile"]).write_text("2")
sys.exit(int(sys.argv[3]))
"""


def run_here(folder, code, monkeypatch):
    """Run a step with the launcher in a container whose root is a folder."""
    monkeypatch.setattr(
        "tests.support.fakes.kfp_launcher.local_path",
        lambda uri, real=local_path: folder / "pod" / real(uri).relative_to("/"),
    )
    (folder / "store" / "b").mkdir(parents=True)
    (folder / "store" / "b" / "in").write_text("content ")

    def artifact(name):
        return {"artifacts": [{"uri": f"s3://b/{name}"}]}

    outputs = {
        "artifacts": {"a": artifact("made/out"), "executor-logs": artifact("made/logs")},
        "parameters": {name: {"outputFile": str(folder / "pod" / "outputs" / name)} for name in ("told", "written")},
        "outputFile": str(folder / "pod" / "s3" / "b" / "made" / "output_metadata.json"),
    }
    task = {"inputs": {"parameterValues": {"x": 1}, "artifacts": {"a": artifact("in")}}, "outputs": outputs}
    component = {
        "inputDefinitions": {"parameters": {"x": {"defaultValue": 0}, "y": {"defaultValue": 3}}},
        "outputDefinitions": {"parameters": {"written": {"parameterType": "NUMBER_INTEGER"}}},
    }
    options = {"--executor_input": json.dumps(task), "--component_spec": json.dumps(component), "--execution_id": "7"}
    words = [word for pair in options.items() for word in pair]
    step = [sys.executable, "-c", IN_A_POD, "{{$}}", str(folder / "pod"), str(code)]
    return launch_here([*words, "--", *step], folder / "store")


def test_a_container_is_its_own_pod(tmp_path, monkeypatch):
    assert run_here(tmp_path, 0, monkeypatch) == 0
    store = tmp_path / "store"
    assert (store / "b" / "made" / "out").read_text() == "content {'x': 1, 'y': 3}"
    assert (store / "b" / "made" / "logs").read_text() == "a line\n"
    told = json.loads(result_file(store, "7").read_text())
    assert told == {"code": 0, "parameters": {"told": 1, "written": 2}, "artifacts": {}}


def test_of_a_container_that_fails_what_it_printed_is_kept_and_the_launcher_ends_with_1(tmp_path, monkeypatch):
    assert run_here(tmp_path, 3, monkeypatch) == 1
    assert [path.name for path in (tmp_path / "store" / "b" / "made").iterdir()] == ["logs"]
    assert json.loads(result_file(tmp_path / "store", "7").read_text())["code"] == 3


def test_an_address_that_no_pod_has_is_refused():
    with pytest.raises(KeyError, match=r"https"):
        local_path("https://host/bucket")

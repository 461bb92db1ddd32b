"""The whole pipeline through kfp.local: few runs, each asked much, and of those few in processes of their own."""

import builtins
import fcntl
import importlib.metadata
import json
import os
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from docker.errors import APIError, ImageNotFound

from tests.components.conftest import judged_here
from tests.support.browser import assert_opens, needs_browser
from tests.support.cli import QUICK, assert_user_error, steps_here, tpu_pipelines, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import LOUDNESS_VARIABLE, VERBOSE
from tpu_components.core.component.step_record import RUN_VARIABLE
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.registry.signing import PASSWORD_VARIABLE
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.steps import STEPS
from tpu_pipelines.platforms.local import runner
from tpu_pipelines.platforms.local.runner import Runner
from tpu_pipelines.runs import run_local

_IMAGE = "docker.io/me/steps:1"


def run_in_processes(workspace, *arguments):
    """Run as a user's command does: every step in a process of its own."""
    done = tpu_pipelines_here("run", "digits", "--workspace", str(workspace), "--json", *QUICK, *arguments)
    return done, json.loads(done.stdout) if done.stdout else None


def run(workspace, *arguments):
    with steps_here():
        return run_in_processes(workspace, *arguments)


def test_print_is_as_before_though_steps_at_the_same_time_took_turns_with_it():
    from kfp.local.logging_utils import indented_print

    before = builtins.print
    with runner.print_as_before():
        first, second = indented_print(), indented_print()
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None), second.__exit__(None, None, None)
        assert builtins.print is not before, "kfp.local no longer leaves it so"
    assert builtins.print is before


class _Docker(BaseHTTPRequestHandler):
    """A Docker daemon with one image, which neither pulls others nor creates containers.

    The server's `pulled` has the names of the images that were requested, `created` the requests for containers.
    """

    def do_GET(self):
        held = {"Id": "sha256:1", "RepoTags": [_IMAGE], "RepoDigests": []}
        if "/images/json" in self.path:
            self._answer(200, [held])
        else:
            self._answer(200, held if "/images/" in self.path else {"ApiVersion": "1.44"})

    def do_POST(self):
        if "/containers/create" in self.path:
            self.server.created.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(500, {"message": "no container today"})
        else:
            query = parse_qs(urlsplit(self.path).query)
            self.server.pulled.append(f"{query['fromImage'][0]}:{query['tag'][0]}")
            self._answer(404, {"message": "no such image"})

    def _answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def docker_daemon(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Docker) as server:
        server.pulled = []
        server.created = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


def test_the_docker_runner_uses_an_image_that_the_environment_names_after_the_import(
    tmp_path, monkeypatch, docker_daemon
):
    monkeypatch.setenv("TPU_PIPELINES_STEPS_IMAGE", "docker.io/me/steps:2")
    with pytest.raises(ImageNotFound):
        run_local.run_local(load_config("digits", ["preflight=false"]), tmp_path, runner=Runner.DOCKER)
    assert docker_daemon.pulled == ["docker.io/me/steps:2"]


def test_a_container_gets_the_variables_that_a_step_reads_and_no_others(tmp_path, monkeypatch, docker_daemon):
    monkeypatch.setenv("TPU_PIPELINES_STEPS_IMAGE", _IMAGE)
    monkeypatch.setenv(LOUDNESS_VARIABLE, VERBOSE)
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    config = load_config("digits", ["preflight=false", "name=autumn"])
    with pytest.raises(APIError, match="no container today"):
        run_local.run_local(config, tmp_path, runner=Runner.DOCKER)
    (container,) = docker_daemon.created
    variables = dict(line.split("=", 1) for line in container["Env"])
    assert Path(variables.pop("AIP_CHECKPOINT_DIR")).is_relative_to(tmp_path)
    assert variables == {RUN_VARIABLE: "autumn", LOUDNESS_VARIABLE: VERBOSE, PASSWORD_VARIABLE: "secret"}


@pytest.fixture
def workspace(finished_run, tmp_path):
    """A copy of the workspace with the finished run, to run in."""
    return shutil.copytree(finished_run[0], tmp_path / "workspace", symlinks=True)


@pytest.fixture
def registry(finished_run):
    """The registry in which the finished run is the champion already: the copy's own would be deployed to anew."""
    return "--set", f"deploy.registry={finished_run[0] / 'registry'}"


def test_a_run_leaves_what_the_contract_names(finished_run):
    workspace, summary, _ = finished_run
    folder = workspace / "digits"
    assert json.loads((folder / "summary.json").read_text()) == summary
    for path in (
        "records/dataset.json",
        "preflight/preflight.json",
        "preflight/preflight.html",
        "model/best.weights.h5",
        "evaluation/report.html",
        "export/saved_model/saved_model.pb",
        "export/model.tflite",
        "export/model_int8.tflite",
        "export/export.json",
        "deployment/deployment.json",
    ):
        assert (folder / path).is_file(), path
    assert summary["status"] == "succeeded"
    assert summary["gate"]["promote"] is True
    assert {name: step["state"] for name, step in summary["steps"].items()} == dict.fromkeys(STEPS, "succeeded")
    assert all(step["seconds"] > 0 and not step["cached"] for step in summary["steps"].values())
    assert summary["metrics"]["num_examples"] == Manifest.load(folder / "records").splits["test"].num_examples
    assert summary["export"]["formats"]["saved_model"]["agreement"] == 1.0
    assert summary["preflight"]["machine"] == "v5e-1"
    assert summary["preflight"]["verdict"] == "fits"
    names = ["deployment", "evaluation", "export", "model", "preflight", "preflight_report", "records", "report"]
    assert sorted(summary["artifacts"]) == [*names, "version"]
    version = workspace / "registry" / "digits" / "versions" / "0001"
    assert summary["artifacts"]["version"] == summary["deployment"]["version_dir"] == str(version)
    assert (summary["deployment"]["version"], summary["deployment"]["alias"]) == ("0001", "champion")
    recorded = json.loads((version / "version.json").read_text())
    assert recorded["lineage"]["config"] == summary["config"]
    assert recorded["lineage"]["code"].keys() == set(STEPS)
    assert recorded["metrics"] == summary["metrics"]


@needs_browser
@pytest.mark.parametrize("page", ["evaluation/report.html", "preflight/preflight.html"])
def test_pages_open_in_a_browser_without_a_complaint(finished_run, tmp_path, page):
    assert_opens(finished_run[0] / "digits" / page, tmp_path)


def test_with_json_stdout_is_the_summary_alone_and_progress_goes_to_stderr(finished_run):
    _, summary, done = finished_run
    assert json.loads(done.stdout) == summary
    assert "[train_model] epoch 1/4" in done.stderr


def test_a_second_run_takes_every_step_from_the_cache(finished_run, workspace, registry):
    done, summary = run(workspace, *registry)
    assert done.returncode == 0
    assert all(step["cached"] for step in summary["steps"].values())
    assert summary["metrics"] == finished_run[1]["metrics"]
    assert "[train_model] unchanged, taken from the cache" in done.stderr


def test_a_gate_that_says_no_gives_exit_code_3_and_runs_no_export_and_trains_nothing_again(workspace, registry):
    done, summary = run(workspace, "--set", "gate.minimum={accuracy: 1.0, macro_f1: 0.5}", "--set", "gate.top_k=3")
    assert done.returncode == 3
    assert summary["status"] == "rejected"
    assert summary["steps"]["train_model"]["cached"]
    for step in ("export_model", "deploy_model"):
        assert summary["steps"][step] == {"seconds": 0.0, "state": "skipped", "cached": False}
    assert summary["deployment"] == {}
    assert not (workspace / "digits" / "export").exists()
    verdicts = {rule["metric"]: rule["passed"] for rule in summary["gate"]["reasons"][:2]}
    assert verdicts == {"accuracy": False, "macro_f1": True}
    assert f"to try the model anyway: tpu-pipelines export {os.path.relpath(workspace / 'digits')}" in done.stderr
    with judged_here():
        exported = tpu_pipelines_here("export", str(workspace / "digits"), "--set", "export.required=[float]", "--json")
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["formats"].keys() >= {"saved_model", "float"}
    assert (workspace / "digits" / "export" / "model.tflite").is_file()
    done, summary = run(workspace, *registry)
    assert (done.returncode, summary["status"]) == (0, "succeeded"), "the promoted run is found in the cache again"


@pytest.mark.slow  # Eleven runs, three of which train: a minute.
def test_retraining_is_judged_against_the_registrys_champion(workspace, tmp_path):
    """A registry of its own through a model's life: first, beaten, not beaten, rolled back, promoted by hand."""
    registry = tmp_path / "registry"

    def after(epochs):
        settings = ("preflight=false", f"training.epochs={epochs}", f"deploy.registry={registry}")
        return run(workspace, *(word for setting in settings for word in ("--set", setting)))

    def champion():
        done = tpu_pipelines_here("registry", "list", "digits", "--registry", str(registry), "--json")
        (number,) = (row["version"] for row in json.loads(done.stdout) if row["aliases"] == ["champion"])
        return number

    def unchanged(summary):
        return all(step["cached"] or step["state"] == "skipped" for step in summary["steps"].values())

    _, first = after(1)
    assert first["gate"]["reasons"][0]["text"] == "there is no other champion to beat"
    assert after(1)[1]["gate"] == first["gate"], "not compared with itself"
    done, better = after(4)
    assert done.returncode == 0
    assert better["gate"]["reasons"][0]["passed"]
    assert f"beats the champion's {first['metrics']['accuracy']:.4f}" in better["gate"]["reasons"][0]["text"]
    assert (better["deployment"]["version"], better["deployment"]["previous"], champion()) == ("0002", "0001", "0002")
    _, again = after(4)
    assert unchanged(again)
    assert (again["gate"], again["deployment"]) == (better["gate"], better["deployment"])

    done, worse = after(1)
    assert (done.returncode, worse["status"], worse["deployment"], champion()) == (3, "rejected", {}, "0002")
    assert worse["steps"]["train_model"]["cached"]
    assert any("is worse than the champion's" in reason["text"] for reason in worse["gate"]["reasons"])

    by_hand = ("--registry", str(registry), "--reason", "it calls every 7 a 1")
    assert tpu_pipelines_here("registry", "rollback", "digits", *by_hand).returncode == 0
    assert champion() == "0001"
    done, refused = after(4)
    assert (done.returncode, refused["status"], champion()) == (2, "failed", "0001")
    assert "it was rolled back on" in refused["error"]
    assert "it calls every 7 a 1" in refused["error"]
    assert (workspace / "digits" / "export" / "export.json").is_file(), "what was done is kept"

    assert tpu_pipelines_here("registry", "promote", "digits", "0002", *by_hand).returncode == 0
    _, insisted = after(4)
    assert (insisted["status"], insisted["deployment"]["version"], champion()) == ("succeeded", "0002", "0002")
    assert unchanged(after(4)[1])

    aliases = registry / "digits" / "aliases.json"
    aliases.write_text(aliases.read_text()[:-20])
    done, summary = after(4)
    assert (done.returncode, summary) == (2, None)
    assert "error: Cannot read" in done.stderr
    assert "aliases.json" in done.stderr


@pytest.mark.slow  # Six runs, two of which train: half a minute.
def test_a_training_that_starts_with_the_champion_goes_on_from_it_and_is_found_again(workspace, tmp_path):
    registry = tmp_path / "registry"

    def after(epochs):
        settings = (
            f"training.epochs={epochs}",
            f"deploy.registry={registry}",
            "training.initial_model=digits@champion",
        )
        words = (word for setting in ("preflight=false", *settings) for word in ("--set", setting))
        _, summary = run(workspace, *words)
        return summary, (workspace / "digits" / "run.log").read_text()

    def is_found_again(epochs):
        return all(step["cached"] or step["state"] == "skipped" for step in after(epochs)[0]["steps"].values())

    first, log = after(1)
    assert "digits@champion does not have a version yet, so training starts with new weights" in log
    assert first["deployment"]["version"] == "0001"
    assert is_found_again(1), "the champion is this run's own model"
    second, log = after(3)
    assert "starting with the weights of digits@0001" in log
    assert second["deployment"]["version"] == "0002"
    version = registry / "digits" / "versions" / "0002"
    lineage = json.loads((version / "version.json").read_text())["lineage"]
    assert lineage["initial_model"]["name"] == "digits@0001"
    assert (
        "| `initial_model` | digits&#64;0001 |" in (registry / "digits" / "versions" / "0002" / "README.md").read_text()
    )
    assert "digits@0001" in (workspace / "digits" / "evaluation" / "report.html").read_text()
    assert is_found_again(3)


@pytest.mark.slow  # Two runs in processes of their own, which train to the same bytes: a minute.
def test_forced_again_the_model_is_promoted_again_and_not_compared_with_itself(tmp_path):
    sets = ("--set", "preflight=false", "--set", "training.epochs=2")
    done, first = run_in_processes(tmp_path, *sets)
    assert done.returncode == 0, done.stderr
    done, summary = run_in_processes(tmp_path, *sets, "--force")
    assert (done.returncode, summary["status"]) == (0, "succeeded"), done.stderr
    assert summary["gate"] == first["gate"]
    assert summary["deployment"]["version"] == "0001"
    assert not any(step["cached"] for step in summary["steps"].values())


def test_a_local_run_has_no_project_for_a_registry(tmp_path):
    with pytest.raises(
        InputError, match=r"deploy\.registry=vertex is not supported .* has no project\. Use deploy\.registry="
    ):
        run_local.run_local(load_config("digits", ["deploy.registry=vertex"]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_deployment_there_is_no_registry(workspace):
    before = (workspace / "registry" / "digits" / "aliases.json").read_bytes()
    done, summary = run(workspace, "--set", "deploy=false")
    assert done.returncode == 0
    assert summary["steps"]["deploy_model"]["state"] == "skipped"
    assert summary["deployment"] == {}
    assert "version" not in summary["artifacts"]
    assert (workspace / "registry" / "digits" / "aliases.json").read_bytes() == before


def test_damaged_cached_records_are_written_again(workspace):
    shard = next((workspace / ".cache" / "digits").glob("training-*/create-tfrecords/records/train-*.tfrecord"))
    content = shard.read_bytes()
    assert content == (workspace / "digits" / "records" / shard.name).read_bytes()
    shard.write_bytes(content[:-1])
    done, summary = run(workspace, "--set", "deploy=false")
    assert done.returncode == 0, done.stderr
    assert "cached records are not used" in done.stderr
    assert not summary["steps"]["create_tfrecords"]["cached"]
    assert summary["steps"]["train_model"]["cached"], "the same records again: their key is that of their content"
    assert (workspace / "digits" / "records" / shard.name).read_bytes() == content


@pytest.mark.slow  # 30 s: steps in processes of their own.
def test_records_that_are_fanned_out_are_the_same_bytes_and_are_found_again(workspace, tmp_path):
    """Whatever wrote them: the engine is no part of what they are known by."""
    names = ("data.engine=fan_out", "data.engine_tasks=3", "preflight=false", "export=false")
    sets = [word for name in names for word in ("--set", name)]
    done, summary = run_in_processes(tmp_path / "fanned", *sets)
    assert done.returncode == 0, done.stderr
    assert "parts, to be written in 3 ranges" in done.stderr
    assert not summary["steps"]["create_tfrecords"]["cached"]
    fanned, alone = tmp_path / "fanned" / "digits" / "records", workspace / "digits" / "records"
    assert {path.name: path.read_bytes() for path in fanned.iterdir()} == {
        path.name: path.read_bytes() for path in alone.iterdir()
    }
    done, summary = run(workspace, *sets, "--set", "training.learning_rate=0.001")
    assert summary["steps"]["create_tfrecords"]["cached"]
    assert not summary["steps"]["train_model"]["cached"]


@pytest.mark.skipif((Path(sys.prefix).parent / ".beam").exists(), reason="Apache Beam is found here")
@pytest.mark.slow  # 5 s: a step in a process of its own.
def test_records_that_beam_is_to_write_where_it_is_not_installed_are_a_mistake(tmp_path):
    done, summary = run_in_processes(tmp_path / "runs", "--set", "data.engine=beam")
    assert done.returncode == 2
    assert "Apache Beam is not installed. Run make beam-env" in done.stderr
    assert summary["steps"]["create_tfrecords"]["state"] == "failed"


@pytest.mark.slow  # 15 s: steps in processes of their own.
def test_a_task_that_fails_is_the_runs_failure(tmp_path, image_folder, encode):
    folder = image_folder()
    (folder / "dog" / "odd.png").write_bytes(encode(size=(9, 9)))
    sets = ("--set", "data.engine=fan_out", "--set", "data.engine_tasks=2", "--set", f"data.source=images:{folder}")
    done, summary = run_in_processes(tmp_path / "runs", *sets, "--set", "training.batch_size_per_replica=4")
    assert done.returncode == 2
    assert "Images differ in size" in done.stderr
    assert summary["steps"]["create_tfrecords"]["state"] == "failed"


def test_a_copied_workspace_works_and_touches_nothing_outside_itself(finished_run, tmp_path):
    """Not even a folder that its cache names: that of somebody else, or that of the workspace it was copied from."""
    original = finished_run[0]
    workspace = shutil.copytree(original, tmp_path / "copy", symlinks=True)
    for folder in ("digits", "registry"):
        shutil.rmtree(workspace / folder)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "mine.jpg").write_bytes(b"the only copy")
    for path in (workspace / ".cache" / "digits" / "steps").glob("*.json"):
        entry = json.loads(path.read_text())
        for name, output in entry.items():
            if name == "records":
                output["uri"] = str(photos)
        path.write_text(json.dumps(entry))
    before = sorted((path, path.stat().st_mtime_ns) for path in original.rglob("*"))
    done, summary = run(workspace, "--set", "deploy=false")
    assert done.returncode == 0, done.stderr
    assert (photos / "mine.jpg").read_bytes() == b"the only copy"
    assert sorted((path, path.stat().st_mtime_ns) for path in original.rglob("*")) == before
    assert not summary["steps"]["create_tfrecords"]["cached"]
    assert summary["steps"]["train_model"]["cached"]
    weights = workspace / "digits" / "model" / "best.weights.h5"
    own = (workspace / ".cache").glob("digits/training-*/train-model/trained/best.weights.h5")
    assert any(os.path.samefile(weights, path) for path in own), "its own, not the original's"


def test_a_broken_budget_stops_the_run_before_training_and_leaves_the_report(tmp_path, warm):
    with warm.takes_over():
        done, summary = run(tmp_path, "--set", "preflight.max_step_ms=0.0001")
    assert done.returncode == 2
    assert "Stopped before training: a step takes" in done.stderr
    assert "max_step_ms=0.0001" in done.stderr.strip().splitlines()[-1]
    states = {name: step["state"] for name, step in summary["steps"].items()}
    assert states["create_tfrecords"] == "succeeded"
    assert states["preflight_training"] == "failed"
    assert {states[name] for name in STEPS[2:]} == {"skipped"}
    assert summary["preflight"]["broken"][0].startswith("a step takes")
    assert (tmp_path / "digits" / "preflight" / "preflight.html").is_file()


def test_what_a_training_needs_is_named_before_the_records_are_written(tmp_path, monkeypatch):
    """A package with the vertex extra alone has kfp, wrote the records, and failed at the training."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(InputError, match=r"The library tensorflow is not installed\."):
        run_local.run_local(load_config("digits"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_tpu_compiler_preflight_is_left_out_and_says_what_to_install(
    tmp_path, empty_steps, monkeypatch, capsys
):
    version = importlib.metadata.version

    def version_without_compiler(name):
        if name == "libtpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("importlib.metadata.version", version_without_compiler)
    summary = run_local.run_local(load_config("digits", ["deploy=false"]), tmp_path).summary
    assert empty_steps.ran == ["create_tfrecords", "train_model", "evaluate_model"]
    assert (summary.status, summary.config["preflight"]) == ("rejected", False)
    assert "[preflight_training] skipped: " in (said := capsys.readouterr().err)
    assert "pip install 'tpu-pipelines[preflight]'" in said


@pytest.mark.slow  # A run of its own: 15 s.
def test_divergence_is_reported_with_exit_code_2_and_the_last_checkpoint_kept(tmp_path):
    # In a process of its own: KFP's logger keeps the stderr of a first run, which in this one is closed by now.
    done = tpu_pipelines("run", "digits", "--workspace", str(tmp_path), *QUICK, "--set", "training.learning_rate=1e30")
    assert done.returncode == 2
    assert "Training diverged" in done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "digits" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["steps"]["create_tfrecords"]["state"] == "succeeded"
    assert summary["steps"]["train_model"]["state"] == "failed"
    assert (tmp_path / "digits" / "records" / "dataset.json").is_file(), "what was done is kept"
    assert not (tmp_path / "digits" / "model").exists()


def test_a_second_run_at_the_same_time_is_refused(tmp_path):
    (tmp_path / ".cache" / "digits").mkdir(parents=True)
    with open(tmp_path / ".cache" / "digits" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_user_error(
            tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path)), "Another run is writing to"
        )


def bad_sources(root):
    images = root / "one_class"
    (images / "a").mkdir(parents=True)
    (images / "a" / "1.png").write_bytes(b"")
    (root / "empty").mkdir()
    np.savez(root / "floats.npz", x=np.full((4, 8, 8), 1000, np.float32), y=np.arange(4))
    (root / "list.csv").write_text("path,label\n../secret.png,a\n")
    (root / "columns.csv").write_text("picture,tag\na.png,a\n")
    return {
        f"images:{root}/empty": "Found no files",
        f"images:{root}/missing": "Cannot list",
        f"images:{images}": "at least two classes",
        f"npz:{root}/floats.npz": "expected uint8",
        f"csv:{root}/list.csv": "Cannot use the path",
        f"csv:{root}/columns.csv": "Missing columns",
        "sklearn:digit": "expected sklearn:digits",
        "image:here": "Did you mean 'images'",
    }


def test_bad_sources_are_refused_before_any_work(tmp_path):
    for source, words in bad_sources(tmp_path).items():
        done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path / "w"), "--set", f"data.source={source}")
        assert_user_error(done, words)
        assert not (tmp_path / "w" / "digits").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.batch_size_per_replica=5000", "The batch is larger than the training split"),
        ("training.epoch=3", "Did you mean 'epochs'"),
        ("model=cifar_cnn", "Did you mean 'cifar10_cnn'"),
        ("gate.champion=/nowhere", "there is no such file"),
        ("name=registry", "which a workspace reserves"),
        ("deploy.registry=w/digits/export", "it overlaps with"),
        ("deploy.registry=gs://bucket/registry", "The registry must be a folder on this machine"),
        ("deploy.registry=file:///registry", "The registry must be a folder on this machine"),
        ("data.test_fraction=0", "gate.split='test' has no examples"),
        ("data.source=images:/opt/python3/data", "replaces the text 'python3'"),
    ],
)
def test_bad_settings_are_refused_before_any_work(tmp_path, override, words):
    done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path / "w"), "--set", override, cwd=tmp_path)
    assert_user_error(done, words)
    assert not (tmp_path / "w" / "digits").exists()


def test_a_run_never_writes_where_its_source_or_champion_lies(tmp_path):
    pictures = tmp_path / "flowers" / "records"
    pictures.mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "flowers" / name).mkdir()
        (tmp_path / "flowers" / name / "1.png").write_bytes(b"")
    name = ("--workspace", str(tmp_path), "--set", "name=flowers")
    source = ("--set", f"data.source=images:{tmp_path / 'flowers'}")
    assert_user_error(tpu_pipelines_here("run", "digits", *name, *source), "received other files")
    (tmp_path / "flowers" / "run.log").write_text("")
    assert_user_error(tpu_pipelines_here("run", "digits", *name, *source), "it overlaps with data.source")
    (pictures / "train-0.tfrecord").write_bytes(b"")
    pattern = ("--set", f"data.source=tfrecords:{pictures}/train-*")
    assert_user_error(tpu_pipelines_here("run", "digits", *name, *pattern), "it overlaps with data.source")
    champion = ("--set", f"gate.champion={tmp_path / 'flowers' / 'a'}")
    assert_user_error(tpu_pipelines_here("run", "digits", *name, *champion), "it overlaps with gate.champion")
    assert pictures.is_dir()


def test_a_champion_that_knows_other_classes_is_refused_before_any_work(finished_run, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(30):
            (tmp_path / "pets" / name / f"{i}.png").write_bytes(b"")
    registry = f"deploy.registry={finished_run[0] / 'registry'}"
    source = ("--set", f"data.source=images:{tmp_path / 'pets'}", "--set", registry)
    done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path / "w"), *source)
    assert_user_error(
        done,
        "the classes ['0', '1'",
        "but the task of the data set is classification with the classes ['cat', 'dog']",
        " set deploy.model_name",
    )
    start = ("--set", "deploy=false", "--set", f"training.initial_model={finished_run[0] / 'digits' / 'model'}")
    done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path / "w"), *source, *start)
    assert_user_error(done, "Cannot use the initial model", "the classes ['0', '1'", "start with new weights")
    assert not (tmp_path / "w" / "digits").exists()


@pytest.mark.parametrize("workspace", ["file", "file/below", "/proc/nowhere"])
def test_a_workspace_that_cannot_be_written_is_refused(tmp_path, workspace):
    (tmp_path / "file").write_text("")
    done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path / workspace))
    assert_user_error(done, "Cannot write to")


def test_a_machine_of_several_hosts_is_refused_before_any_work(tmp_path):
    with pytest.raises(
        InputError, match=r"trains on one host .*, but v5e-16 has 4 hosts\. Use v5e-1, v5e-4, v5e-8, or"
    ):
        run_local.run_local(load_config("digits", ["machine=v5e-16"]), tmp_path)
    assert list(tmp_path.iterdir()) == []

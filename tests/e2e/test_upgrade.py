"""What an earlier version left behind is read and continued: a workspace, a registry, and what a platform was sent."""

import ast
import importlib
import json
import os
import re
import tarfile

import numpy as np
import pytest
import tensorflow as tf
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp import local
from kfp.components import load_component_from_file, load_component_from_text
from sklearn.datasets import load_digits

from tests.components.conftest import judged_here
from tests.golden.earlier.splits import splits_of
from tests.support.cli import REPOSITORY, steps_here, tpu_pipelines_here
from tests.support.fakes.execution import Simulate
from tests.support.fakes.vertex import FakeVertex
from tpu_components.core.component.step_record import RUNNER_VARIABLE
from tpu_components.core.examples.artifacts import SPLITS, Manifest
from tpu_components.core.examples.example_ids import are_among, load_identities, load_trained_on
from tpu_components.core.examples.records import load_split
from tpu_components.core.files.vertex_clients import VertexService
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.serving.exported import load_model

EARLIER = REPOSITORY / "tests" / "golden" / "earlier"
ARCHIVES = sorted(EARLIER.glob("*.tar.xz"))
# What 545e9cc has compiled imports modules that have moved since, and must be compiled again.
COMPILED = [path for path in ARCHIVES if not path.name.startswith("545e9cc")]
SPLITS_OF_NAMES = sorted(EARLIER.glob("*.splits.json"))
ON_VERTEX = ("digits", "--target", "vertex", "--set", "machine=v5e-4")


def commit_of(path):
    return path.name.partition(".")[0]


@pytest.fixture(params=ARCHIVES, ids=commit_of)
def project(request, tmp_path):
    """A user's folder as `make.py` left it, somewhere else than it was made."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path / "project"


@pytest.fixture
def command(project):
    """Runs a command in the folder; gives its stdout, once its exit code is what it should be."""

    def run(*words, code=0):
        done = tpu_pipelines_here(*words, cwd=project)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return run


@pytest.fixture
def vertex(project, tmp_path, monkeypatch):
    """Vertex AI with the job and the schedule that the earlier version sent."""
    state = json.loads((project / "vertex.json").read_text())
    with FakeVertex(Simulate()) as fake:
        for kind, made in (("pipeline_jobs", v1.PipelineJob), ("schedules", v1.Schedule)):
            for sent in state[kind]:
                getattr(fake, kind)[sent["name"]] = made(json_format.ParseDict(sent, made.pb(made())))
        for name, value in fake.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield fake


of_compiled = pytest.mark.parametrize("project", COMPILED, ids=commit_of, indirect=True)


def test_there_is_an_earlier_version():
    assert COMPILED
    assert SPLITS_OF_NAMES


def test_its_runs_versions_decisions_and_records_are_read(project, command):
    assert "promoted" in command("runs")
    (version,) = command("registry", "list", "--json")
    assert (version["version"], version["aliases"]) == ("0001", ["champion"])
    assert "→ 0001" in command("registry", "show", "small")
    (decision,) = command("retrain", "small.yaml", "--target", "local", "--history", "--json")
    assert decision["outcome"] == "promoted"
    assert command("drift", "runs/small/records", "--against", "small@champion", "--json")["drifted"] is False


def test_its_records_are_written_again_with_the_same_splits_and_its_model_knows_what_it_was_trained_on(
    project, tmp_path
):
    earlier = project / "runs" / "small" / "records"
    write_records(WriteParams("sklearn:digits", num_workers=1), tmp_path / "records")
    manifests = [Manifest.load(folder) for folder in (earlier, tmp_path / "records")]
    trained_on = load_trained_on(project / "runs" / "small" / "model")
    for split in SPLITS:
        before, now = (
            load_split(folder, manifest, split, with_keys=True).keys
            for folder, manifest in zip((earlier, tmp_path / "records"), manifests, strict=True)
        )
        assert now == before
        ids = load_identities(tmp_path / "records", split)
        assert are_among(ids, load_identities(earlier, split)).all()
        assert are_among(ids, trained_on).all() == (split == "train")
        assert are_among(ids, trained_on).any() == (split == "train")


@pytest.mark.parametrize("golden", SPLITS_OF_NAMES, ids=commit_of)
def test_data_sets_whose_names_are_in_nfd_keep_their_splits(golden, tmp_path):
    assert splits_of(tmp_path) == json.loads(golden.read_text(encoding="utf-8"))


def test_its_export_answers_as_it_did(project, command):
    before = json.loads((project / "answer.json").read_text())
    for model in ("small@champion", "runs/small"):
        assert command("predict", model, "digit.png", "--json")["classes"] == pytest.approx(before["classes"], abs=1e-5)
    export = project / "runs" / "small" / "export"
    pixels = np.round(load_digits().images[:100, ..., np.newaxis] * (255 / 16)).astype(np.uint8)
    answers = load_model(export).predict(pixels)
    assert np.mean(answers.argmax(1) == load_digits().target[:100]) > 0.9
    assert np.mean(answers.argmax(1) == load_model(export, use_int8=True).predict(pixels).argmax(1)) > 0.95
    saved = tf.saved_model.load(str(export / "saved_model")).signatures["serving_default"](tf.constant(pixels))
    np.testing.assert_allclose(saved["probabilities"].numpy(), answers, atol=1e-4)


@pytest.mark.heavy  # Trains and exports: half a minute on a busy machine.
def test_its_next_run_has_its_champion_to_beat_and_the_number_after_it(project, command):
    reason = command("retrain", "small.yaml", "--target", "local", "--dry-run")
    assert re.search("changed since runs/small: (configuration and )?code", reason)
    with steps_here(), judged_here():
        better = ("training.epochs=12", "gate.max_regression={accuracy: 0.02}")
        run = command("run", "small.yaml", "--json", *(word for each in better for word in ("--set", each)))
    assert any("champion's 0.9331" in reason["text"] for reason in run["gate"]["reasons"])
    assert [version["version"] for version in command("registry", "list", "small", "--json")] == ["0001", "0002"]
    compared = command("compare", "runs/small", "runs/small.runs/0001")
    assert "0.9331" in compared
    command("registry", "rollback", "small")
    assert command("predict", "small@champion", "digit.png", "--json") == json.loads(
        (project / "answer.json").read_text()
    )


def test_its_submitted_run_is_followed_and_the_next_one_says_what_changed(vertex, command):
    (job,) = vertex.pipeline_jobs.values()
    job_id = job.name.rpartition("/")[2]
    assert command("status", job_id, "--target", "vertex", "--json")["state"] == "succeeded"
    decision = command("retrain", *ON_VERTEX, "--wait", "--poll-seconds", "0.01", "--no-doctor", "--json")["retrain"]
    assert (decision["since"], "code" in decision["changed"]) == (job_id, True)
    assert len(vertex.pipeline_jobs) == 2
    job.state = v1.PipelineState.PIPELINE_STATE_RUNNING
    command("cancel", job_id, "--target", "vertex")
    assert job.state != v1.PipelineState.PIPELINE_STATE_RUNNING


def test_its_schedule_is_changed_and_no_second_one_made(vertex, command):
    command("schedule", *ON_VERTEX, "--cron", "0 4 * * *", "--no-doctor")
    (schedule,) = vertex.schedules.values()
    assert schedule.cron == "0 4 * * *"


def test_its_compiled_pipeline_is_still_taken(vertex, project):
    compiled = project / "digits-vertex.yaml"
    assert load_component_from_file(str(compiled)).component_spec.name == "training-pipeline"
    spec = yaml.safe_load(compiled.read_text().partition("\n---\n")[0])
    job = v1.PipelineJob(json_format.ParseDict({"pipelineSpec": spec}, v1.PipelineJob.pb(v1.PipelineJob())))
    job.runtime_config.gcs_output_directory = "gs://my-bucket/pipelines"
    service = VertexService("my-project", "us-central1", vertex.url, AnonymousCredentials())
    sent = {"parent": "projects/my-project/locations/us-central1", "pipeline_job": job, "pipeline_job_id": "again"}
    service.call("PipelineService", "create_pipeline_job", sent)
    assert any(name.endswith("/again") for name in vertex.pipeline_jobs)


@of_compiled
def test_all_that_its_compiled_components_import_is_still_there(project):
    """A schedule sends the compiled steps again every night, also after their image's tag has moved to a newer one."""
    names = set()
    uses = set()
    for path in (project / "components").iterdir():
        for executor in yaml.safe_load(path.read_text())["deploymentSpec"]["executors"].values():
            source = executor["container"]["command"][-1]
            tree = ast.parse(source if "def " in source else "")
            imported = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("tpu_"):
                    imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            names |= set(imported.values())
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                    uses.add((*imported[node.value.id], node.attr))
    assert len(names) > 30
    for module, name in sorted(names):
        # With `fromlist`, a module that only `from package import module` loads is loaded, too.
        assert hasattr(importlib.__import__(module, fromlist=[name]), name), f"from {module} import {name}"
    assert any(attribute == "load" for *_, attribute in uses)
    for module, name, attribute in sorted(uses):
        value = getattr(importlib.__import__(module, fromlist=[name]), name)
        assert hasattr(value, attribute), f"{module}.{name}.{attribute}"


@pytest.mark.heavy  # Compiles for a TPU, trains and exports: half a minute.
@of_compiled
@pytest.mark.filterwarnings("ignore")  # As in every run on this machine.
def test_its_compiled_steps_run_with_the_package_of_today(project, tmp_path, monkeypatch):
    spec = yaml.safe_load((project / "digits.yaml").read_text())
    registry = tmp_path / "registry"
    promoted = spec["components"]["comp-condition-1"]["dag"]["tasks"]
    promoted["deploy-model"]["inputs"]["parameters"]["registry"]["runtimeValue"]["constant"] = str(registry)
    monkeypatch.setenv(RUNNER_VARIABLE, str(os.getpid()))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)
    with steps_here(), judged_here():
        load_component_from_text(yaml.safe_dump(spec))(champion="")
    assert {path.parent.name for path in tmp_path.glob("root/*/*/executor_output.json")} == {
        *("list-source", "create-tfrecords", "preflight-training", "train-model", "evaluate-model", "export-model"),
        "deploy-model",
    }
    (version,) = (registry / "digits" / "versions").iterdir()
    assert load_model(version / "export").predict(np.zeros((1, 8, 8, 1), np.uint8)).shape == (1, 10)

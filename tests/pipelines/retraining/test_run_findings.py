"""Claims about the findings of a run that was on a platform: read from its bucket, they are those of a run here."""

import dataclasses
import html
import json
import types
import xml.etree.ElementTree as ET

import pytest

from tests.support.fakes.execution import Simulate
from tests.support.fakes.kubeflow import FakeKubeflow
from tests.support.fakes.kubeflow import Simulate as SimulateKubeflow
from tpu_components.core.base.states import State
from tpu_components.core.files import storage
from tpu_components.core.results.evaluation_info import Evaluation, RegisteredChampion
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Submission
from tpu_pipelines.platforms.kubeflow.client import KubeflowClient
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.retraining.job_summary import RunFindings, render_runs
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.submission.submit import plan_submission, submit

_FOLDER = "gs://bucket/artifacts"
_ARTIFACTS = {
    "evaluate-model": {"evaluation": f"{_FOLDER}/evaluation", "report": f"{_FOLDER}/report"},
    "preflight-training": {"preflight": f"{_FOLDER}/preflight"},
}
_ENDED = Submission("digits-1", "digits", State.SUCCEEDED)


@pytest.fixture
def here(finished_run):
    """Findings of a run here."""
    return RunFindings.of_folder(finished_run[0] / "digits")


@pytest.fixture
def stored(finished_run, bucket):
    """The same run's evaluation and preflight in a bucket."""
    for name in ("evaluation/evaluation.json", "preflight/preflight.json"):
        storage.upload(finished_run[0] / "digits" / name, f"{_FOLDER}/{name}")


@pytest.fixture
def retrain(fake, federated, tmp_path, capfd):
    """Runs the command for Vertex AI; gives its exit code, the Markdown, and the JUnit XML."""
    markdown, junit = tmp_path / "summary.md", tmp_path / "gate.xml"

    def run(*arguments):
        command = ["retrain", "digits", "--set", "machine=v5e-4", "--poll-seconds", "0.01", "--no-doctor"]
        code = main([*command, "--markdown", str(markdown), "--junit", str(junit), *arguments])
        shown = html.unescape(markdown.read_text())
        markdown.unlink()
        return code, shown, ET.parse(junit).getroot()

    return run


def find(platform, submission=_ENDED, overrides=()):
    config = load_config("digits", ["machine=v5e-4", *overrides])
    return RunFindings.of_job(submission, platform, config, Settings())


def platform(**places):
    """A platform that says where the outputs of these names lie."""
    return types.SimpleNamespace(find_output=lambda job_id, step, output: places.get(output, ""))


def test_a_run_on_vertex_ai_is_shown_with_the_figures_of_its_bucket(fake, retrain, stored, here):
    fake.execution = Simulate(artifacts=_ARTIFACTS)
    code, shown, suite = retrain("--wait")
    assert code == 0
    assert shown.startswith("### ✓ digits: passed\n")
    accuracy = here.evaluation.metrics["accuracy"]
    assert f"| Accuracy | {accuracy:.2%}".replace("%", "% | ") in shown
    assert f"Preflight: {here.preflight.machines[0].summary}" in shown.replace("\\", "")
    assert [case.get("name") for case in suite] == [rule.text for rule in here.reasons]
    assert retrain()[1].count(f"| Accuracy | {accuracy:.2%}".replace("%", "% | ")) == 1, "also of a run that was there"


def test_of_a_run_that_goes_on_or_tells_nothing_the_rest_is_shown(fake, retrain, bucket):
    fake.execution = Simulate(hold=True, artifacts=_ARTIFACTS)
    assert "not shown" not in retrain()[1]
    fake.execution = Simulate(artifacts=_ARTIFACTS)
    code, shown, suite = retrain("--wait", "--set", "training.epochs=31")
    assert code == 0
    (line,) = [line for line in shown.splitlines() if "not shown" in line]
    assert line.startswith("The metrics are not shown: Cannot read 'gs://bucket/artifacts/evaluation/evaluation.json'")
    assert [case.get("name") for case in suite] == ["run: passed"]


def test_what_a_run_on_kubeflow_has_written_is_found_where_its_driver_has_it_written(stored, here, bucket, no_sign_in):
    with FakeKubeflow(SimulateKubeflow()) as fake:
        settings = Settings(kfp_host=fake.url, bucket="gs://bucket/runs/")
        kubeflow = KubeflowClient(settings)
        submission = submit(
            plan_submission(load_config("digits", ["machine=v5e-4"]), PLATFORMS["kubeflow"], settings), kubeflow
        )
        submission = kubeflow.get(submission.job_id)
        assert "Found no files in 'gs://bucket/runs/training-pipeline/" in find(kubeflow, submission).unread
        (run_id,) = fake.runs
        for step, salt in (("evaluate-model", "8f1c/"), ("preflight-training", "")):  # Older drivers have no salt.
            (name,) = set(_ARTIFACTS[step]) - {"report"}
            place = f"gs://bucket/runs/training-pipeline/{run_id}/{step}/{salt}{name}/{name}.json"
            storage.write_file(place, storage.read_bytes(f"{_FOLDER}/{name}/{name}.json"))
        assert find(kubeflow, submission) == here
        fake.runs[run_id].runtime_config.pipeline_root = "minio://mlpipeline/artifacts"
        unread = find(kubeflow, submission).unread
        assert unread == ("this machine cannot read the output of evaluate_model: minio://mlpipeline/artifacts")


def test_a_run_without_preflight_has_its_figures_and_one_that_failed_has_its_error(stored, here):
    found = find(platform(evaluation=f"{_FOLDER}/evaluation"))
    assert found == dataclasses.replace(here, preflight=None)
    failed = dataclasses.replace(_ENDED, state=State.FAILED, error="deploy_model: 403")
    assert find(platform(evaluation=f"{_FOLDER}/evaluation"), failed) == dataclasses.replace(found, error=failed.error)
    assert find(platform(), failed) == RunFindings(error=failed.error)
    assert find(platform()).unread == "the platform does not report where the output of evaluate_model is stored"


def test_the_expected_price_beside_other_runs_is_that_of_the_report(here):
    machine = here.preflight.machines[0]
    waiting = dataclasses.replace(machine.cost, usd_per_run=9.0, low_usd_per_run=8.0, high_usd_per_run=10.0)
    report = dataclasses.replace(here.preflight, machines=(dataclasses.replace(machine, cost=waiting),))
    shown = render_runs({"a": here, "waits for data": dataclasses.replace(here, preflight=report)})
    assert f"| {waiting.text}, Vertex AI's price |" in shown.replace("\\", "")


def test_the_training_is_held_against_that_of_the_champion_that_was_compared_with(stored, finished_run, tmp_path):
    workspace, *_ = finished_run
    evaluation = json.loads(storage.read_bytes(f"{_FOLDER}/evaluation/evaluation.json"))
    compared = dataclasses.replace(Evaluation.parse(evaluation), registered_champion=RegisteredChampion("0001", "abc"))
    compared.save(tmp_path)
    storage.upload(tmp_path / "evaluation.json", f"{_FOLDER}/evaluation/evaluation.json")
    places = {name: f"{_FOLDER}/{name}" for name in ("evaluation", "preflight")}
    registry = f"deploy={{registry: {workspace}/registry, model_name: digits}}"
    assert find(platform(**places), overrides=[registry]).champion.name == "digits 0001"
    assert find(platform(**places), overrides=["deploy=false"]).champion is None


def test_a_run_of_which_every_step_was_there_before_is_the_same_as_its_version(finished_run, tmp_path):
    summary = Summary.load(finished_run[0] / "digits")
    steps = {name: dataclasses.replace(step, cached=True) for name, step in summary.steps.items()}
    for cached, version in ((steps, "0001"), (steps | {"export_model": summary.steps["export_model"]}, "")):
        dataclasses.replace(summary, steps=cached).save(tmp_path)
        assert RunFindings.of_folder(tmp_path).same_as == version

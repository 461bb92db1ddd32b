"""A platform is a folder and one line: a third one works with every command that takes `--target`."""

import json

import pytest
import yaml

from tests.pipelines.toy_platform.platform import Toy
from tests.support.cli import assert_user_error, tpu_pipelines_here
from tpu_pipelines.platforms.platform import PLATFORMS

QUICK = ("digits", "--target", "toy", "--set", "machine=v5e-4", "--set", "preflight=false", "--set", "export=false")
QUICK += ("--set", "training.epochs=2", "--set", "gate.minimum={}")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    folder = tmp_path / "jobs"
    folder.mkdir()
    monkeypatch.setenv("TPU_PIPELINES_PROJECT", "my-project")
    monkeypatch.setitem(PLATFORMS, "toy", Toy(folder))  # The line that registers it.
    return folder


def test_it_compiles(toy, tmp_path):
    done = tpu_pipelines_here("compile", *QUICK, "--output", str(tmp_path / "pipeline.yaml"))
    assert done.returncode == 0, done.stderr
    assert "digits for toy, to train on v5e-4" in done.stdout
    spec = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())
    inputs = spec["components"]["comp-exit-handler-1"] if "comp-exit-handler-1" in spec["components"] else spec["root"]
    assert inputs["dag"]["tasks"]["train-model"]["inputs"]["parameters"]["accelerator"] == {
        "runtimeValue": {"constant": "cpu"}
    }


def test_a_dry_run_says_what_is_sent_and_sends_nothing(toy):
    done = tpu_pipelines_here("submit", *QUICK, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    (request,) = json.loads(done.stdout)
    assert (request["name"], request["machine"]) == ("digits", "v5e-4")
    assert "digits for toy, not sent (dry run)" in done.stderr
    assert list(toy.iterdir()) == []


def test_doctor_makes_its_checks(toy):
    done = tpu_pipelines_here("doctor", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    assert [(one["about"], one["state"]) for one in json.loads(done.stdout)] == [("folder", "ok")]
    toy.rmdir()
    done = tpu_pipelines_here("doctor", *QUICK)
    assert done.returncode == 2
    assert f"there is no {toy}" in done.stdout
    assert f"mkdir {toy}" in done.stdout


def test_it_names_the_setting_that_it_needs_and_those_that_only_other_platforms_have(toy, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_KUEUE_QUEUE", "tpus")
    monkeypatch.setenv("TPU_PIPELINES_EXPERIMENT", "digits-models")
    monkeypatch.delenv("TPU_PIPELINES_PROJECT")
    done = tpu_pipelines_here("submit", *QUICK)
    assert_user_error(done, "Missing settings: project.")
    for name in ("kueue_queue", "experiment"):
        assert f"The setting {name} (TPU_PIPELINES_{name.upper()}) is not supported on the platform toy" in done.stderr


def test_check_says_so_if_no_setting_is_required(toy, quick_models, monkeypatch):
    monkeypatch.setattr(Toy, "required_settings", ())
    done = tpu_pipelines_here("check", *QUICK, "--json")
    assert [one["said"] for one in json.loads(done.stdout) if one["about"] == "variables"] == ["none is required"]


def test_messages_take_its_words(toy):
    done = tpu_pipelines_here("submit", *QUICK, "--set", "data.engine=beam", "--dry-run")
    assert_user_error(done, "for toy: the toy platform does not include a Beam runner")
    done = tpu_pipelines_here("schedule", *QUICK, "--cron", "0 3 * * *", "--no-doctor")
    assert_user_error(done, "The toy platform has no schedules.")
    done = tpu_pipelines_here("status", "flowers", "--target", "toy")
    assert_user_error(done, "There is no run 'flowers' with project my-project")


@pytest.mark.slow  # Five steps, each in a process of its own: 30 s.
def test_a_run_is_submitted_followed_and_found_again(toy):
    done = tpu_pipelines_here("submit", *QUICK, "--wait", "--poll-seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["state"], run["passed_gate"], run["machine"]) == ("succeeded", True, "v5e-4")
    assert set(run["steps"].values()) == {"succeeded"}
    assert {"create_tfrecords", "train_model", "evaluate_model", "mark_promoted"} <= run["steps"].keys()
    again = tpu_pipelines_here("submit", *QUICK, "--json")
    assert json.loads(again.stdout) == run, "found, not started again"
    done = tpu_pipelines_here("status", "digits", "--target", "toy", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, run)

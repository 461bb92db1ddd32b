"""Claims about what makes another run necessary: on Vertex AI, through its real client, and on this machine."""

import dataclasses
import datetime
import json
import os
import shutil
from unittest.mock import ANY

import pytest
from google.cloud import aiplatform_v1 as v1

from tests.support.cli import QUICK, steps_here, tpu_pipelines_here
from tests.support.fakes import execution
from tests.support.fakes.execution import Simulate
from tests.support.html_page import Page
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.kinds import list_examples
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.pipeline import cache_keys
from tpu_pipelines.retraining import retrain as deciding
from tpu_pipelines.retraining.retrain import Occasion, decide_here
from tpu_pipelines.runs.resolution import fingerprints_here

OVERRIDES = QUICK[1::2]


@pytest.fixture
def retrain(fake, federated, capfd):
    """Runs the command for Vertex AI; gives its exit code, the decision, and what it says of the run."""
    fake.require_tokens()

    def run(*arguments, machine="machine=v5e-4"):
        command = ["retrain", "digits", "--set", machine, "--poll-seconds", "0.01", "--json", "--no-doctor"]
        code = main([*command, *arguments])
        out, err = capfd.readouterr()
        said = json.loads(out)
        decision = said.pop("retrain")
        assert decision["reason"] in err or "--dry-run" in arguments
        return code, decision, said

    return run


def test_what_was_run_before_is_not_run_again(fake, retrain):
    code, decision, first = retrain("--wait")
    assert (code, decision["needed"], decision["since"]) == (0, True, "")
    assert decision["reason"] == "there is no earlier run of 'digits'"
    assert (first["state"], first["result"]) == ("succeeded", "passed")
    code, decision, second = retrain("--wait")
    assert (code, decision["needed"], decision["since"]) == (0, False, first["job_id"])
    assert decision["reason"] == f"nothing has changed since {first['job_id']} (succeeded)"
    assert second == first
    assert len(fake.pipeline_jobs) == 1


def test_a_changed_configuration_is_run_and_named_and_where_else_it_may_run_is_no_change(fake, retrain):
    _, _, first = retrain("--wait")
    # A step that is left out is no other code.
    for override in ("training.epochs=31", "machine.boot_disk_size_gb=200", "preflight=false"):
        _, decision, _ = retrain("--dry-run", "--set", override)
        assert (decision["needed"], decision["changed"]) == (True, ["configuration"])
    machine = "machine={name: v5e-4, fallbacks: [v6e-4], max_wait_seconds: 60}"
    assert not retrain("--wait", machine=machine)[1]["needed"]
    _, decision, second = retrain("--wait", "--set", "gate.minimum.accuracy=0.5")
    assert (decision["needed"], decision["changed"]) == (True, ["configuration"])
    assert decision["since"] == first["job_id"] != second["job_id"]
    assert len(fake.pipeline_jobs) == 2


def test_changed_code_is_run_and_named(fake, retrain, monkeypatch):
    retrain("--wait")
    monkeypatch.setattr(cache_keys, "code_version", lambda step: f"another {step}")
    _, decision, _ = retrain("--wait")
    assert decision["changed"] == ["code"]
    assert len(fake.pipeline_jobs) == 2


def test_changed_data_are_run_and_named(fake, retrain, bucket):
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png", "dogs/2.png"):
        bucket.blob(f"photos/train/{name}").upload_from_string(b"picture")
        bucket.blob(f"photos/test/{name}").upload_from_string(b"picture")
    options = ("--wait", "--set", "data.source=images:gs://bucket/photos", "--set", "training.batch_size_per_replica=1")
    options += ("--set", "data.validation_fraction=0")
    assert retrain(*options)[1]["needed"]
    assert not retrain(*options)[1]["needed"]
    bucket.blob("photos/train/dogs/3.png").upload_from_string(b"picture")
    _, decision, _ = retrain(*options)
    assert (decision["needed"], decision["changed"]) == (True, ["data"])


def test_on_a_platform_drift_is_looked_for_where_the_registry_is(fake, retrain):
    vertex = ("--set", "deploy.registry=vertex", "--when", "drifted")
    image = ("--set", f"deploy.serving_image=europe-docker.pkg.dev/p/i/serving@sha256:{'0' * 64}")
    retrain("--wait", *vertex, *image)
    _, decision, _ = retrain("--dry-run", *vertex, *image, "--set", "training.epochs=31")
    assert not decision["needed"]
    (job,) = fake.pipeline_jobs.values()
    job.labels["tpu_pipelines_data"] = "another"
    _, decision, _ = retrain("--dry-run", *vertex, *image, "--set", "training.epochs=31")
    assert decision["needed"]
    assert decision["reason"].endswith("there is no registered champion to compare the data with")


def test_another_place_to_run_is_another_run_of_the_same(fake, retrain, monkeypatch):
    retrain("--wait")
    monkeypatch.setenv("TPU_PIPELINES_SERVICE_ACCOUNT", "other@my-project.iam.gserviceaccount.com")
    _, decision, _ = retrain("--wait")
    assert (decision["needed"], decision["changed"]) == (True, [])
    assert decision["reason"].endswith(": the machine, image or settings")


def test_what_the_gate_refused_stays_refused(fake, retrain):
    fake.execution = Simulate(promote=False)
    assert retrain("--wait")[0] == 3
    code, decision, _ = retrain("--wait")
    assert (code, decision["needed"]) == (3, False)
    assert len(fake.pipeline_jobs) == 1


def test_what_failed_is_started_again(fake, retrain):
    fake.execution = Simulate(failures={"evaluate-model": "Out of cheese."})
    code, _, first = retrain("--wait")
    assert (code, first["state"]) == (1, "failed")
    fake.execution = Simulate()
    code, decision, second = retrain("--wait")
    assert (code, decision["needed"], decision["changed"]) == (0, True, [])
    assert decision["reason"] == f"nothing has changed since {first['job_id']} (failed), but the last run has no result"
    assert second["job_id"] == f"{first['job_id']}-r2"
    assert not retrain("--wait")[1]["needed"]


@pytest.mark.parametrize("when", ["drifted", "older-than=30d"])
def test_what_failed_is_started_again_with_a_corrected_configuration_on_any_occasion(fake, retrain, when):
    """The failed run was needed, for example because the data had drifted, and its model was never trained."""
    fake.execution = Simulate(failures={"evaluate-model": "Out of cheese."})
    _, _, first = retrain("--wait")
    fake.execution = Simulate()
    correction = ("--when", when, "--set", "training.epochs=31")
    code, decision, _ = retrain("--wait", *correction)
    assert (code, decision["needed"], decision["changed"]) == (0, True, ["configuration"])
    assert decision["reason"] == f"changed since {first['job_id']}: configuration, and the last run has no result"
    assert not retrain("--dry-run", *correction)[1]["needed"]


@pytest.mark.parametrize("when", [(), ("--when", "always,older-than=0h")])
def test_what_still_runs_is_waited_for_on_any_occasion(fake, retrain, when):
    fake.execution = Simulate(hold=True)
    _, _, first = retrain()
    code, decision, second = retrain(*when)
    assert (code, decision["needed"], second["state"]) == (0, False, "running")
    assert second["job_id"] == first["job_id"]
    assert len(fake.pipeline_jobs) == 1


def test_where_the_machine_was_missing_the_next_one_is_tried_before_the_run_starts_again(fake, retrain):
    fake.stock_out = {"ct5lp-hightpu-4t"}
    machine = "machine={name: v5e-4, fallbacks: [v6e-4]}"
    _, _, first = retrain(machine=machine)
    _, decision, _ = retrain("--dry-run", machine=machine)
    assert decision["needed"]
    assert len(fake.pipeline_jobs) == 1, "a dry run starts nothing"
    code, _, second = retrain("--wait", machine=machine)
    assert (code, second["job_id"], second["machine"]) == (0, f"{first['job_id']}-f1", "v6e-4")


def test_a_run_that_does_not_say_what_it_was_made_of_is_out_of_date(fake, retrain):
    retrain("--wait")
    (job,) = fake.pipeline_jobs.values()
    for name in ("data", "configuration", "code"):
        del job.labels[f"tpu_pipelines_{name}"]
    _, decision, _ = retrain("--dry-run", "--set", "training.epochs=31")
    assert (decision["needed"], decision["changed"]) == (True, [])
    assert decision["reason"].endswith(": unknown, because the last run has no fingerprints")


def test_what_a_schedule_has_started_is_not_started_again(fake, retrain, capfd):
    assert main(["schedule", "digits", "--set", "machine=v5e-4", "--cron", "0 3 * * *", "--no-doctor"]) == 0
    capfd.readouterr()
    (name,) = fake.schedules
    started = fake.fire(name)
    code, decision, said = retrain()
    assert (code, decision["needed"]) == (0, False)
    assert said["job_id"] == decision["since"] == started.name.rpartition("/")[2]
    assert len(fake.pipeline_jobs) == 1


def test_forced_it_runs_every_step_though_nothing_has_changed(fake, retrain):
    retrain("--wait")
    assert len(fake.pipeline_jobs) == 1
    _, decision, _ = retrain("--wait", "--force")
    assert decision["needed"]
    assert decision["reason"].startswith("--force was set, although nothing has changed since ")
    first, second = fake.pipeline_jobs.values()
    cached = [json.dumps(execution.specification(job)).count('"enableCache": true') for job in (first, second)]
    assert cached[0] > 4
    assert cached[1] == 0


def test_a_run_is_needed_on_the_occasions_that_are_asked_for(fake, retrain, monkeypatch):
    created = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(fake, "clock", lambda: created)
    _, _, first = retrain("--wait", "--when", "older-than=30d")
    code, decision, said = retrain("--when", "older-than=30d", "--set", "training.epochs=31")
    assert (code, decision["needed"], decision["changed"]) == (0, False, ["configuration"])
    assert (
        "configuration, which is not a reason to run according to --when; the last run is 0 minutes old"
        in decision["reason"]
    )
    assert said["job_id"] == first["job_id"]
    monkeypatch.setattr("tpu_pipelines.retraining.retrain.now", lambda: created + datetime.timedelta(days=30, hours=1))
    _, decision, _ = retrain("--dry-run", "--when", "older-than=30d", "--set", "training.epochs=31")
    assert decision["needed"]
    assert decision["reason"].startswith("the last run is 30 days old, more than 30 days; changed since")
    _, decision, _ = retrain("--dry-run", "--when", "older-than=31d,changed")
    assert not decision["needed"]
    assert decision["reason"].endswith("(succeeded); the last run is 30 days old, not more than 31 days")
    assert retrain("--dry-run", "--when", "older-than=0d")[1]["needed"]
    assert retrain("--dry-run", "--when", "older-than=12h,changed")[1]["needed"]
    assert len(fake.pipeline_jobs) == 1
    _, decision, second = retrain("--wait", "--when", "always")
    assert decision["reason"].startswith("--when always, although nothing has changed since")
    assert second["job_id"] == f"{first['job_id']}-r2"


@pytest.mark.parametrize(
    "text", ["", "sometimes", "older-than=30", "older-than=d", "older-than=999999999999d", "changed;always", "changed,"]
)
def test_an_occasion_that_is_none_is_named(text):
    with pytest.raises(InputError, match=f"Cannot use --when {text}: expected one or more of changed"):
        Occasion.parse(text)


def test_every_decision_is_kept_with_its_reasons_run_price_and_outcome(
    fake, retrain, bucket, capfd, tmp_path, monkeypatch
):
    monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
    retrain("--wait")
    retrain("--wait")
    fake.execution = Simulate(promote=False)
    retrain("--wait", "--set", "training.epochs=31")
    fake.execution = Simulate(hold=True)
    retrain("--set", "training.epochs=32")
    retrain("--dry-run", "--set", "training.epochs=33")

    def history(*arguments):
        code = main(["retrain", "digits", "--set", "machine=v5e-4", "--history", *arguments])
        return code, capfd.readouterr().out

    known = json.loads(history("--json")[1])
    assert [(entry["needed"], entry["outcome"]) for entry in known] == [
        (True, ANY),
        (True, "not promoted"),
        (False, "passed"),
        (True, "passed"),
    ]
    assert known[0]["outcome"] in ("pending", "running")
    assert known[0]["changed"] == ["configuration"]
    assert {entry["machine"] for entry in known} == {"v5e-4"}
    price = load_config("digits", ["machine=v5e-4"]).machine.paid.price.usd_per_hour
    assert (known[2]["training_hours"], known[2]["usd"]) == (0, None), "an earlier run is not paid again"
    for entry in known[:2]:
        assert entry["usd"] == pytest.approx(entry["training_hours"] * price, abs=0.01)
    (custom_job,) = (job.name for job in fake.custom_jobs.values() if not job.end_time)
    fake.end_custom_job(custom_job, v1.JobState.JOB_STATE_SUCCEEDED)
    fake.execution.start_pipeline_job(fake, list(fake.pipeline_jobs)[-1])
    page = tmp_path / "retrain.html"
    code, table = history("--output", str(page))
    assert code == 0
    assert "running" not in table, "what went on is asked for again"
    assert len(table.splitlines()) == 5
    assert "4 decisions, 3 runs" in " ".join(Page(page.read_text()).words)


def test_a_run_that_ends_later_has_the_price_of_the_region_in_which_it_trained(
    fake, retrain, bucket, capfd, monkeypatch
):
    """A spot v5e-4 costs 1.37 $ an hour at Vertex AI's price in the cheapest region, and 2.42 $ in us-west4."""
    monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://bucket/pipelines")
    monkeypatch.setenv("TPU_PIPELINES_REGION", "us-west4")
    machine = "machine={name: v5e-4, spot: true}"
    fake.execution = Simulate(hold=True)
    retrain(machine=machine)
    later = fake.clock() + datetime.timedelta(hours=100)
    monkeypatch.setattr(fake, "clock", lambda: later)
    (custom_job,) = (job.name for job in fake.custom_jobs.values() if not job.end_time)
    fake.end_custom_job(custom_job, v1.JobState.JOB_STATE_SUCCEEDED)
    fake.execution.start_pipeline_job(fake, list(fake.pipeline_jobs)[-1])
    assert main(["retrain", "digits", "--set", machine, "--history", "--json"]) == 0
    (entry,) = json.loads(capfd.readouterr().out)
    assert entry["usd"] == pytest.approx(entry["training_hours"] * 2.4166, abs=0.01)
    assert entry["usd"] > 100


def test_a_run_that_two_found_needed_at_once_is_paid_once(tmp_path):
    run = deciding.RunDecision("", True, ("data",), "changed", "digits-1", "promoted", "v5e-4", 0.5, 2.4)
    for second in (1, 2):
        at = f"2026-11-23T03:07:0{second}+00:00"
        deciding.record(Location(tmp_path), dataclasses.replace(run, at=at))
    later, first = deciding.entries(Location(tmp_path), lambda run: None, lambda machine: None, print)
    assert (first.training_hours, first.usd) == (0.5, 2.4)
    assert (later.needed, later.run, later.training_hours, later.usd) == (True, "digits-1", 0.0, None)
    deciding.write_page([later, first], "digits", tmp_path / "page.html")
    assert "2 decisions, 1 run, $2.40" in " ".join((tmp_path / "page.html").read_text().split())


def test_a_dry_run_says_it_in_words(fake, federated, capfd):
    assert main(["retrain", "digits", "--set", "machine=v5e-4", "--dry-run"]) == 0
    assert capfd.readouterr().out == "needed: there is no earlier run of 'digits'\n"
    assert not fake.pipeline_jobs


# On this machine


def test_a_workspace_says_what_has_changed(finished_run, tmp_path):
    workspace, _, _ = finished_run
    run_dir = tmp_path / "digits"
    run_dir.mkdir()
    shutil.copy(workspace / "digits" / "summary.json", run_dir)

    def decide(*overrides):
        config = load_config("digits", [*OVERRIDES, *overrides])
        decision = decide_here(config, tmp_path, list_examples(config.data))
        return decision.needed, decision.changed

    assert decide() == (False, ())
    assert decide("training.epochs=5") == (True, ("configuration",))
    assert decide("data.seed=1") == (True, ("configuration",))
    summary = json.loads((run_dir / "summary.json").read_text())
    for changed in ("data", "code"):
        other = summary["fingerprints"] | {changed: "another"}
        (run_dir / "summary.json").write_text(json.dumps(summary | {"fingerprints": other}))
        assert decide() == (True, (changed,))
    (run_dir / "summary.json").write_text(json.dumps(summary | {"status": "failed"}))
    assert decide() == (True, ())


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_an_interrupted_or_damaged_run_is_no_earlier_run(tmp_path, content):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "run.log").touch()
    if content is not None:
        (tmp_path / "digits" / "summary.json").write_text(content)
    config = load_config("digits")
    decision = decide_here(config, tmp_path, list_examples(config.data))
    assert (decision.needed, decision.run) == (True, "")


def test_a_run_from_before_there_were_fingerprints_is_out_of_date(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "summary.json").write_text('{"status": "succeeded"}')
    config = load_config("digits")
    decision = decide_here(config, tmp_path, list_examples(config.data))
    assert (decision.needed, decision.run) == (True, str(tmp_path / "digits"))
    assert decision.reason.endswith("unknown, because the last run has no fingerprints")


def test_files_count_by_their_content_not_their_time(tmp_path):
    table = tmp_path / "reviews.csv"
    rows = "text,label\n" + "".join(f"film {i},{'pos' if i % 2 else 'neg'}\n" for i in range(40))
    config = load_config("imdb_lstm", [f"data.source=csv:{table}", "training.batch_size_per_replica=1"])

    def fingerprints(content, time):
        table.write_text(content)
        os.utime(table, (time, time))
        return fingerprints_here(config, tmp_path / "runs", list_examples(config.data))

    first = fingerprints(rows, 1)
    assert fingerprints(rows, 2) == first
    assert fingerprints(rows.replace("film 3", "book 3"), 3) == first | {"data": ANY}
    assert fingerprints(rows.replace("film 3", "book 3"), 3)["data"] != first["data"]


def test_a_local_run_is_made_once(finished_run, tmp_path):
    """In a workspace that was trained in, with a gate that lets no such model through."""
    workspace = shutil.copytree(finished_run[0], tmp_path / "workspace", symlinks=True)
    command = ("retrain", "digits", "--target", "local", "--workspace", str(workspace), "--json", *QUICK)
    command += ("--set", "preflight=false", "--set", "deploy=false", "--set", "gate.minimum.accuracy=0.9999")
    command += ("--markdown", str(tmp_path / "summary.md"), "--junit", str(tmp_path / "gate.xml"))
    command += ("--outputs", str(tmp_path / "outputs"))
    with steps_here():
        first, second = (tpu_pipelines_here(*command) for _ in range(2))
    assert first.returncode == second.returncode == 3, first.stderr
    ran, told = json.loads(first.stdout), json.loads(second.stdout)
    assert (ran["status"], ran.pop("retrain")["needed"], told.pop("retrain")["needed"]) == ("rejected", True, False)
    assert told == ran
    shown = (tmp_path / "summary.md").read_text()
    assert shown.count("### ✗ digits: not") == 2, "what other steps of a job have written stays"
    assert "✗ accuracy 0." in shown
    assert 'failures="1"' in (tmp_path / "gate.xml").read_text()
    outcome = f"outcome=not promoted\nrun={workspace}/digits\n"
    assert (tmp_path / "outputs").read_text() == f"needed=true\n{outcome}needed=false\n{outcome}"
    assert "[" not in second.stderr, "no step ran, nor was looked for in the cache"


def test_a_run_that_is_refused_is_kept_and_told_as_failed(tmp_path, capsys):
    files = [tmp_path / "made" / "summary.md", tmp_path / "made" / "gate.xml"]
    command = ["retrain", "digits", "--target", "local", "--workspace", str(tmp_path)]
    command += ["--markdown", str(files[0]), "--junit", str(files[1])]
    assert main([*command, "--set", "gate.slices=length"]) == 2
    (tmp_path / ".cache" / "digits").mkdir(parents=True, exist_ok=True)
    with storage.locked(tmp_path / ".cache" / "digits" / "lock"):
        assert main([*command, "--set", "preflight=false"]) == 2
    shown = files[0].read_text()
    assert shown.count("### ✗ digits: failed") == 2
    assert "divide the examples into slices by 'length'" in shown
    assert "Another run is writing to" in shown
    assert 'failures="1"' in files[1].read_text()
    second, first = deciding.entries(
        Location(tmp_path / "registry/digits/decisions"), lambda run: None, lambda name: None, print
    )
    assert (first.outcome, first.run, "'length'" in first.reason) == ("failed", "", True)
    assert (second.outcome, second.run) == ("failed", str(tmp_path / "digits"))
    assert "there is no earlier run of 'digits'; Another run is writing to" in second.reason


def test_a_run_here_that_is_killed_stands_as_started(tmp_path, capsys, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("kfp.local.subprocess_task_handler.run_local_subprocess", killed)
    command = ["retrain", "digits", "--target", "local", "--workspace", str(tmp_path)]
    assert main(command) == 1
    assert main([*command, "--history"]) == 0
    assert " digits  started " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["retrain", "digits", "--markdown"],
        ["retrain", "digits", "--junit"],
        ["retrain", "digits", "--outputs"],
        ["retrain", "digits", "--history", "--output"],
        ["preflight", "digits", "--markdown"],
        ["drift", "records", "--against", "others", "--output"],
        ["submit", "digits", "--dry-run", "--output"],
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(words, tmp_path, capsys):
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path, "it is a folder"), (tmp_path / "file" / "a.md", "is a file, not a folder")):
        with pytest.raises(SystemExit, match="2"):
            main([*words, str(path)])
        assert f"{reason}" in capsys.readouterr().err


def test_a_dry_run_adds_its_decision_to_the_jobs_summary(tmp_path):
    (tmp_path / "summary.md").write_text("before\n")
    command = ["retrain", "digits", "--target", "local", "--workspace", str(tmp_path / "runs"), "--dry-run"]
    assert main([*command, "--markdown", str(tmp_path / "summary.md")]) == 0
    said = "before\n### ▶️ digits: needed (dry run)\n\nthere is no earlier run of 'digits'\n"
    assert (tmp_path / "summary.md").read_text() == said
    assert not (tmp_path / "runs" / "registry").exists()


def test_an_empty_history_is_no_mistake(tmp_path, capsys):
    command = ["retrain", "digits", "--target", "local", "--workspace", str(tmp_path), "--history"]
    page = tmp_path / "history.html"
    assert main([*command, "--output", str(page)]) == 0
    said = capsys.readouterr()
    assert said.out == "No retraining decisions yet.\n"
    assert f"looked for decisions about 'digits' in {tmp_path}/registry/digits/decisions" in said.err
    assert "0 decisions, 0 runs" in page.read_text()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_file_that_is_no_decision_is_named_and_left_out_of_the_history(tmp_path, capsys):
    command = ["retrain", "digits", "--target", "local", "--workspace", str(tmp_path)]
    assert main([*command, "--set", "gate.slices=length"]) == 2
    decisions = tmp_path / "registry" / "digits" / "decisions"
    (kept,) = decisions.iterdir()
    strays = {"zzz.json": b"no", "2026.json": b"{}", "a.png": b"\x89PNG\r\n", "copy.json": kept.read_bytes()}
    for name, content in strays.items():
        (decisions / name).write_bytes(content)
    assert main([*command, "--history", "--json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1
    for name in strays:
        assert f"hint: ignored {name}, because it is not a decision\n" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--history", "--markdown", "a.md", "--when", "always"],
            "--history cannot be combined with --when and --markdown.",
        ),
        (["--dry-run", "--junit", "a.xml"], "--dry-run cannot be combined with --junit."),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words, message, capsys):
    assert main(["retrain", "digits", "--target", "local", *words]) == 2
    assert message in capsys.readouterr().err


def test_limits_without_a_training_to_hold_against_are_refused(capsys):
    assert main(["preflight", "digits", "--slower", "0.1"]) == 2
    assert "require --against," in capsys.readouterr().err

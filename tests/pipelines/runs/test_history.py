import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import assert_user_error, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_pipelines import cli
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.runs import history, run_local
from tpu_pipelines.runs.comparison import compare
from tpu_pipelines.runs.summary import Summary, as_trained
from tpu_pipelines.runs.workspace import check_history


@pytest.fixture
def workspace(tmp_path):
    return tmp_path / "runs"


def write_run(workspace, accuracy, name="digits", status="succeeded"):
    """A run as it is left, with a file that its cache shares; the run before it is numbered."""
    folder = workspace / name
    history.set_aside(folder)
    artifact = workspace / ".cache" / name / f"training-pipeline-{accuracy}" / "train-model" / "trained"
    for place in (folder / "model", artifact, artifact.parents[2] / "steps"):
        place.mkdir(parents=True, exist_ok=True)
    (artifact / "weights").write_text(str(accuracy))
    os.link(artifact / "weights", folder / "model" / "weights")
    entry = {"trained": {"uri": str(artifact.relative_to(artifact.parents[2]))}}
    (artifact.parents[2] / "steps" / f"{accuracy}.json").write_text(json.dumps(entry))
    summary = {"status": status, "metrics": {"accuracy": accuracy}, "gate": {"promote": True, "reasons": []}}
    summary["artifacts"] = {"model": str(folder / "model"), "version": "/elsewhere/0001"}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def weights(workspace, name="digits"):
    return {number: (run / "model" / "weights").read_text() for number, run in history.runs_of(workspace / name)}


def test_earlier_runs_are_numbered_and_the_latest_stays_where_it_was(workspace):
    for accuracy in (0.5, 0.6, 0.7):
        latest = write_run(workspace, accuracy)
    assert weights(workspace) == {"0001": "0.5", "0002": "0.6", "latest": "0.7"}
    first = workspace / "digits.runs" / "0001"
    assert json.loads((first / "summary.json").read_text())["artifacts"] == {
        "model": str(first / "model"),
        "version": "/elsewhere/0001",
    }
    assert (workspace / "digits.runs" / "latest").samefile(latest)


def test_a_run_that_was_killed_takes_no_number(workspace):
    folder = write_run(workspace, 0.5)
    (folder / "summary.json").unlink()
    history.set_aside(folder)
    assert not (workspace / "digits.runs").exists()
    assert (folder / "model" / "weights").is_file()


def test_killed_while_a_run_is_numbered_it_is_numbered_the_next_time(workspace, monkeypatch):
    folder = write_run(workspace, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            history.set_aside(folder)
    history.set_aside(folder)
    first = workspace / "digits.runs" / "0001"
    assert json.loads((first / "summary.json").read_text())["artifacts"]["model"] == str(first / "model")


def test_the_oldest_go_and_no_number_is_used_twice(workspace):
    for accuracy in range(12):
        write_run(workspace, accuracy)
    numbers = [f"{number:04d}" for number in range(2, 12)]
    assert list(weights(workspace)) == [*numbers, "latest"]
    history.delete_earlier(workspace / "digits", 1)
    write_run(workspace, 0.5)
    assert list(weights(workspace)) == ["0011", "0012", "latest"]


def test_failed_runs_go_before_those_that_have_trained(workspace):
    write_run(workspace, 0.9)
    for accuracy in range(12):
        write_run(workspace, accuracy, status="failed")
    write_run(workspace, 0.8)
    assert list(weights(workspace).values()) == ["0.9", *map(str, range(3, 12)), "0.8"]
    history.delete_earlier(workspace / "digits", 1)
    assert list(weights(workspace)) == ["0013", "latest"], "no number is used twice"


@pytest.mark.parametrize("make", [lambda path: path.write_text(""), lambda path: path.symlink_to("/"), None])
def test_what_is_no_place_for_earlier_runs_is_refused(workspace, make):
    folder = write_run(workspace, 0.5)
    if make is None:
        write_run(workspace, 0.5, name="digits.runs")
    else:
        make(workspace / "digits.runs")
    with pytest.raises(InputError, match=r"Cannot store earlier runs in .*digits\.runs: expected a folder"):
        check_history(folder)


def test_links_among_earlier_runs_are_neither_followed_nor_deleted(workspace, tmp_path):
    write_run(workspace, 0.5)
    write_run(workspace, 0.6)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_text("mine")
    (workspace / "digits.runs" / "0000").symlink_to(tmp_path / "photos")
    history.delete_earlier(workspace / "digits", 0)
    assert (tmp_path / "photos" / "mine.jpg").read_text() == "mine"


def test_a_run_that_registered_nothing_has_passed_and_is_not_promoted(workspace):
    """The gate says the same about all of them; the registry does not."""
    for name, status, artifacts in (
        ("registered", "succeeded", {"version": "/elsewhere/0001"}),
        ("unregistered", "succeeded", {}),
        ("undeployed", "failed", {}),  # deploy_model failed.
    ):
        folder = write_run(workspace, 0.9, name=name, status=status)
        summary = json.loads((folder / "summary.json").read_text()) | {"artifacts": artifacts}
        (folder / "summary.json").write_text(json.dumps(summary))
    rows = history.as_rows(workspace)
    assert {row["name"]: row["result"] for row in rows} == {
        "registered": "promoted",
        "unregistered": "passed",
        "undeployed": "failed",
    }
    lines = history.as_table(rows).splitlines()
    assert [line.split()[4] for line in lines if line.startswith("unregistered")] == ["passed"]
    page = history.write_index(workspace, rows).read_text()
    assert page.count(">promoted<") == page.count(">passed<") == 1


def test_the_command_lists_and_cleans(workspace, capsys):
    for accuracy in (0.5, 0.6, 0.7):
        write_run(workspace, accuracy)
    write_run(workspace, 0.1, name="flowers", status="rejected")

    def call(*words):
        code = cli.main(["runs", *words, "--workspace", str(workspace)])
        said = capsys.readouterr()
        return code, said.out or said.err

    code, out = call()
    assert code == 0
    header, *lines = out.splitlines()
    assert header.split() == ["run", "number", "ended,", "UTC", "result", "score", "loss", "MiB"]
    assert [line.split()[:2] for line in lines] == [
        ["digits", "0001"],
        ["digits", "0002"],
        ["digits", "latest"],
        ["flowers", "latest"],
    ]
    assert lines[2].split()[4:] == ["promoted", "accuracy", "0.7000", "-", "0.0"]
    assert "not promoted" in lines[3]
    rows = json.loads(call("list", "digits", "--json")[1])
    assert [row["metrics"]["accuracy"] for row in rows] == [0.5, 0.6, 0.7]
    assert call("digits", "--json") == call("list", "digits", "--json")
    code, out = call("claen", "digits")
    assert (code, "Unknown action 'claen': expected list, clean or delete. Did you mean 'clean'?" in out) == (2, True)

    line, place = call("clean", "digits", "--keep", "1", "--yes")[1].splitlines()
    assert re.fullmatch(r"deleted: 1 run, \d+ B freed", line)
    assert place == str(workspace / "digits.runs" / "0001")
    cached = {path.parts[-3].removeprefix("training-pipeline-") for path in workspace.glob(".cache/digits/*/*/trained")}
    assert cached == {"0.6", "0.7"}, "what the runs that are kept are made of"
    assert call("clean", "--yes")[0] == 0
    assert weights(workspace) == {"latest": "0.7"}
    assert (workspace / "flowers" / "model" / "weights").is_file()
    for words, message in (
        (("clean", "digit"), "There is no run named 'digit'"),
        (("clean", "../runs/digits"), "There is no run named"),
        (("list", "digit"), "expected one of digits, flowers"),
        (("clean", "--keep", "-1"), "--keep must be at least 0"),
    ):
        code, error = call(*words)
        assert code == 2, words
        assert message in error


def test_cleaning_after_a_failed_run_keeps_the_last_good_one(workspace, capsys):
    for accuracy, status in ((0.5, "succeeded"), (0.6, "rejected"), (0.1, "failed"), (0.2, "failed")):
        write_run(workspace, accuracy, status=status)
    assert cli.main(["runs", "clean", "--workspace", str(workspace)]) == 2
    assert "Add --yes to delete 2 earlier runs of digits" in capsys.readouterr().err
    assert cli.main(["runs", "clean", "--yes", "--workspace", str(workspace)]) == 0
    assert weights(workspace) == {"0002": "0.6", "latest": "0.2"}


def test_a_run_that_is_going_on_is_not_cleaned(workspace):
    write_run(workspace, 0.5)
    lock = workspace / ".cache" / "digits" / "lock"
    with storage.locked(lock), pytest.raises(InputError, match="Another run is writing to"):
        run_local.delete_runs(workspace, "digits")


def test_one_run_is_deleted_by_name_with_what_the_cache_holds_of_it(workspace, capsys, monkeypatch):
    for accuracy in (0.5, 0.6, 0.7):
        write_run(workspace, accuracy)
    large = workspace / "digits" / "model" / "large"
    large.write_bytes(bytes(2**20))
    os.link(large, next(workspace.glob(".cache/digits/*-0.7/*/trained")) / "large")
    (killed := workspace / "flowers").mkdir()
    (killed / "run.log").write_text("")
    (checkpoint := workspace / ".cache" / "flowers" / "checkpoints" / "1").mkdir(parents=True)

    def call(*words, answer=None):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer or ""))
        monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
        code = cli.main(["runs", *words, "--workspace", str(workspace)])
        said = capsys.readouterr()
        return code, said.out + said.err

    for words in (("delete", "digits"), ("delete", "digits@2"), ("clean", "digits")):
        code, said = call(*words)
        assert (code, "Nothing was deleted, because a confirmation is missing. Add --yes" in said) == (2, True)
        assert "nothing was deleted" in call(*words, answer="\n")[1]
        assert "nothing was deleted" in call(*words, answer="")[1], "the terminal was closed"
    assert weights(workspace) == {"0001": "0.5", "0002": "0.6", "latest": "0.7"}

    code, said = call("delete", "digits@2", answer="y\n")
    assert (code, "Delete run digits, 0002? y or n [n]: " in said) == (0, True)
    assert weights(workspace) == {"0001": "0.5", "latest": "0.7"}
    assert "deleted: 1 run, 1.00 MiB freed" in call("delete", "digits", "--yes")[1]
    assert [path.name for path in workspace.glob(".cache/digits/training-pipeline-*")] == ["training-pipeline-0.5"]
    assert not (workspace / "digits").exists()
    assert "digits@1" in (error := call("delete", "digits", "--yes"))[1]
    assert error[0] == 2
    assert call("delete", "digits@0001", "--yes")[0] == 0
    assert not (workspace / "digits.runs").exists()
    assert call("delete", "flowers", "--yes")[0] == 0
    assert not killed.exists()
    assert not checkpoint.exists()
    for name in ("../runs/digits", "digits@1", ""):
        assert call("delete", name, "--yes")[0] == 2


def test_runs_that_differ_in_the_optimizer_alone_are_told_apart(workspace):
    for name in ("adam", "sgd"):
        folder = write_run(workspace, 0.5, name)
        summary = json.loads((folder / "summary.json").read_text())
        training = {"optimizer": name, "learning_rate": 0.1}
        (folder / "summary.json").write_text(json.dumps({**summary, "config": {"training": training}}))
    rows = history.as_rows(workspace)
    assert [row["training"] for row in rows] == ["adam, lr 0.1", "sgd, lr 0.1"]
    assert [line.rsplit("  ")[-1] for line in history.as_table(rows).splitlines()] == [
        "training",
        "adam, lr 0.1",
        "sgd, lr 0.1",
    ]


def test_runs_are_listed_with_what_their_training_used_and_not_with_replaceable_defaults(workspace):
    """The second run has failed before it trained: its model may have been compiled with another rate."""
    defaults = {"optimizer": "auto", "learning_rate": 0.001, "batch_size_per_replica": 32, "stages": [], "metrics": {}}
    for name in ("trained", "untrained"):
        folder = write_run(workspace, 0.5, name)
        summary = json.loads((folder / "summary.json").read_text()) | {"config": {"training": defaults}}
        (folder / "summary.json").write_text(json.dumps(summary))
    used = {"optimizer": "sgd", "learning_rate": 0.05, "batch_size_per_replica": 32, "metrics": {"loss": 0.1}}
    model = {"training": used, "dataset_fingerprint": ""}
    (workspace / "trained" / "model" / "model.json").write_text(json.dumps(model))
    rows = history.as_rows(workspace)
    assert [row["training"] for row in rows] == ["sgd, lr 0.05, batch 32", "batch 32"]
    found = compare([workspace / "trained", workspace / "untrained"])
    training = {row.name: row.texts for row in found.sections["training"]}
    assert (training["optimizer"], training["learning rate"]) == (("sgd", "–"), ("0.05", "–"))
    assert training["batch per replica"] == ("32", "32")
    settings = as_trained(Summary.load(workspace / "trained"), workspace / "trained").settings
    assert settings["training.learning_rate"] == 0.05
    assert "training.metrics.loss" not in settings


def test_a_run_in_stages_is_listed_with_the_rates_of_its_stages(workspace):
    folder = write_run(workspace, 0.5)
    stages = [{"epochs": 1, "learning_rate": 0.01}, {"epochs": 1, "learning_rate": 1e-05}]
    training = {"optimizer": "adam", "learning_rate": 0.001, "stages": stages}
    (folder / "model" / "model.json").write_text(json.dumps({"training": training, "dataset_fingerprint": ""}))
    summary = json.loads((folder / "summary.json").read_text()) | {"config": {"training": training}}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert history.as_rows(workspace)[0]["training"] == "adam, lr 0.01 then 1e-05"


@pytest.fixture
def run_here(workspace, empty_steps):
    """A function that runs digits with steps that compute nothing; returns which of them ran."""

    def run(*overrides):
        empty_steps.ran.clear()
        run_local.run_local(load_config("digits", ["deploy=false", "preflight=false", *overrides]), workspace)
        return list(empty_steps.ran)

    return run


def test_another_run_numbers_the_one_before_and_the_same_again_does_not(run_here, workspace):
    assert run_here() == ["create_tfrecords", "train_model", "evaluate_model"]
    first = json.loads((workspace / "digits" / "summary.json").read_text())
    assert run_here() == []
    assert not (workspace / "digits.runs").exists()
    assert run_here("gate.top_k=3") == ["evaluate_model"]
    numbered = json.loads((workspace / "digits.runs" / "0001" / "summary.json").read_text())
    assert numbered["ended"] >= first["ended"]
    assert numbered["config"] == first["config"]
    assert run_here() == [], "found in the cache, and another run than the one before all the same"
    assert [number for number, _ in history.runs_of(workspace / "digits")] == ["0001", "0002", "latest"]


def test_runs_of_the_same_data_share_their_records(run_here, workspace):
    run_here()
    assert run_here("name=other", "training.epochs=1") == ["train_model", "evaluate_model"]
    assert run_here("name=third", "data.seed=1")[0] == "create_tfrecords"
    one, other = (workspace / name / "records" / "dataset.json" for name in ("digits", "other"))
    assert os.path.samefile(one, other)


@pytest.mark.parametrize(
    "content",
    [
        *("{}", "[]", '{"status": 3, "metrics": {}}', '{"status": "failed", "metrics": []}', "not JSON"),
        *("[" * 100_000, '{"status": "succeeded", "host": "\\ud800"}'),
    ],
    ids=range(7),
)
def test_a_summary_of_something_else_is_no_run(workspace, content):
    write_run(workspace, 0.5)
    (workspace / "other").mkdir()
    (workspace / "other" / "summary.json").write_text(content)
    assert [row["name"] for row in history.as_rows(workspace)] == ["digits"]
    history.set_aside(workspace / "other")
    assert (workspace / "other" / "summary.json").read_text() == content


def test_a_run_that_has_not_ended_is_listed_as_running_or_interrupted(workspace):
    write_run(workspace, 0.5)
    (workspace / "flowers").mkdir()
    (lock := workspace / ".cache" / "flowers" / "lock").parent.mkdir(parents=True)
    log = "some library\n    [train_model] epoch 3/20: loss 0.5, 12 min left\n[other] 4\n"
    (workspace / "flowers" / "run.log").write_text(log)
    with storage.locked(lock):
        table = history.as_table(history.as_rows(workspace)).splitlines()
        listed, _ = (line.split() for line in table if line.startswith("flowers "))
        assert listed[:4] == ["flowers", "latest", "-", "running"]
        assert table[-1] == "flowers is running: train_model epoch 3/20: loss 0.5, 12 min left"
    (row,) = history.as_rows(workspace, "flowers")
    assert (row["status"], row["metrics"]) == ("interrupted", {})
    assert history.as_table([row]).splitlines()[-1] == (
        "flowers was interrupted after: train_model epoch 3/20: loss 0.5, 12 min left. Run `tpu-pipelines run` with "
        "its configuration to continue."
    )


def test_the_curves_of_a_run_are_found_while_it_trains(workspace):
    write_run(workspace, 0.5)
    assert history.curves_of(workspace, "digits") is None
    (training := workspace / ".cache" / "digits" / "checkpoints" / "0123" / "tensorboard").mkdir(parents=True)
    assert history.curves_of(workspace, "digits") == training


def test_a_summary_from_before_with_negative_seconds_is_a_run(workspace):
    folder = write_run(workspace, 0.5)
    raw = json.loads((folder / "summary.json").read_text())
    steps = {"train_model": {"seconds": -1.5, "state": "succeeded", "cached": False}}
    (folder / "summary.json").write_text(json.dumps(raw | {"seconds": -2.0, "steps": steps}))
    assert [row["status"] for row in history.as_rows(workspace)] == ["succeeded"]


@pytest.fixture
def three_runs(tmp_path):
    """Three runs of two names, of which one was rejected; with a report each but for the failed one."""
    for place, status, ended in (
        ("photos", "succeeded", "2026-11-22T08:00:00+00:00"),
        ("photos.runs/0001", "rejected", "2026-11-21T08:00:00+00:00"),
        ("texts", "failed", "2026-11-20T08:00:00+00:00"),
    ):
        folder = tmp_path / "runs" / place
        (folder / "evaluation").mkdir(parents=True)
        if status != "failed":
            (folder / "evaluation" / "report.html").touch()
        training = {"learning_rate": 0.002, "batch_size_per_replica": 32}
        summary = {"status": status, "ended": ended, "host": "2 × <CPU>", "config": {"training": training}}
        summary |= {"metrics": {"accuracy": 0.9, "loss": 0.3} if status != "failed" else {}, "artifacts": {}}
        (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "runs"


def test_every_run_is_listed_the_newest_first_and_linked(three_runs):
    page = history.write_index(three_runs, history.as_rows(three_runs)).read_text()
    assert "<title>runs: 3 runs</title>" in page
    rows = page[page.index("<tbody>") :].split("<tr>")[1:]
    assert [row.split("<bdi")[1].split(">")[1].split("<")[0] for row in rows] == ["photos", "photos", "texts"]
    assert 'href="photos/evaluation/report.html"' in rows[0]
    assert 'href="photos.runs/0001/evaluation/report.html"' in rows[1]
    assert "href" not in rows[2]
    assert "accuracy 0.9000" in rows[0]
    assert "not promoted" in rows[1]
    assert "lr 0.002, batch 32, 2 × &lt;CPU&gt;" in rows[0]


def test_listing_all_runs_writes_the_page(three_runs):
    done = tpu_pipelines_here("runs", "--workspace", str(three_runs))
    assert done.returncode == 0
    assert "index.html" in done.stderr
    (three_runs / "index.html").unlink()
    assert tpu_pipelines_here("runs", "list", "photos", "--workspace", str(three_runs)).returncode == 0
    assert not (three_runs / "index.html").exists()


@pytest.mark.heavy  # TensorBoard and the command, each in a process of its own: 7 s of CPU time.
def test_tensorboard_ends_with_the_board(three_runs):
    (three_runs / "photos/model/tensorboard").mkdir(parents=True)
    command = [sys.executable, "-m", "tpu_pipelines.cli", "board", "--workspace", str(three_runs), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as board:
        assert any("http://" in line for line in board.stderr)  # It serves.
        (child,) = Path(f"/proc/{board.pid}/task/{board.pid}/children").read_text().split()
        board.terminate()
        board.stderr.read()  # Ends when no process has it open.
    assert board.returncode == 143
    assert not Path(f"/proc/{child}").exists()


def test_the_board_shows_the_runs_that_have_curves(three_runs, monkeypatch):
    started = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: started.append(command) or _Done())
    assert_user_error(tpu_pipelines_here("board", "--workspace", str(three_runs)), "There are no curves of any run")
    (three_runs / "photos/model/tensorboard").mkdir(parents=True)
    assert tpu_pipelines_here("board", "--workspace", str(three_runs), "--port", "0").returncode == 0
    (command,) = started
    assert command[-3:] == [f"photos:{three_runs}/photos/model/tensorboard", "--port", "0"]
    assert_user_error(tpu_pipelines_here("board", "text", "--workspace", str(three_runs)), "expected one of photos")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert_user_error(
        tpu_pipelines_here("board", "--workspace", str(three_runs)),
        "The library tensorboard is not installed",
        "[local]",
    )


class _Done:
    returncode = 0

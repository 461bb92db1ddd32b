"""The page of a workspace, and the board."""

import json

import pytest

from tests.cli import assert_user_error, tpu_pipelines_here
from tpu_pipelines.runs import history
from tpu_pipelines.runs.history import write_index


@pytest.fixture
def workspace(tmp_path):
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


def test_every_run_is_listed_the_newest_first_and_linked(workspace):
    page = write_index(workspace, history.as_rows(workspace)).read_text()
    assert "<title>runs: 3 runs</title>" in page
    rows = page[page.index("<tbody>") :].split("<tr>")[1:]
    assert [row.split("<bdi")[1].split(">")[1].split("<")[0] for row in rows] == ["photos", "photos", "texts"]
    assert 'href="photos/evaluation/report.html"' in rows[0]
    assert 'href="photos.runs/0001/evaluation/report.html"' in rows[1]
    assert "href" not in rows[2]
    assert "accuracy 0.9000" in rows[0]
    assert "not promoted" in rows[1]
    assert "lr 0.002, batch 32, 2 × &lt;CPU&gt;" in rows[0]


def test_listing_all_runs_writes_the_page(workspace):
    done = tpu_pipelines_here("runs", "--workspace", str(workspace))
    assert done.returncode == 0
    assert "index.html" in done.stderr
    (workspace / "index.html").unlink()
    assert tpu_pipelines_here("runs", "list", "photos", "--workspace", str(workspace)).returncode == 0
    assert not (workspace / "index.html").exists()


def test_the_board_shows_the_runs_that_have_curves(workspace, monkeypatch):
    started = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: started.append(command) or _Done())
    assert_user_error(tpu_pipelines_here("board", "--workspace", str(workspace)), "No curves of any run")
    (workspace / "photos/model/tensorboard").mkdir(parents=True)
    assert tpu_pipelines_here("board", "--workspace", str(workspace), "--port", "0").returncode == 0
    (command,) = started
    assert command[-3:] == [f"photos:{workspace}/photos/model/tensorboard", "--port", "0"]
    assert_user_error(tpu_pipelines_here("board", "text", "--workspace", str(workspace)), "expected some of photos")


class _Done:
    returncode = 0

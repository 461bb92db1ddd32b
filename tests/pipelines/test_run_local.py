"""The whole pipeline through kfp.local. Every run starts processes that import TensorFlow: a few, each asked much."""

import fcntl
import json

import numpy as np
import pytest

from components.artifacts import Manifest
from pipelines.caching import STEPS
from tests.cli import QUICK, assert_user_error, tpu_pipelines


def run(workspace, *arguments):
    done = tpu_pipelines("run", "digits", "--workspace", str(workspace), "--json", *QUICK, *arguments)
    return done, json.loads(done.stdout) if done.stdout else None


def test_a_run_leaves_what_the_contract_names(finished_run):
    workspace, summary, _ = finished_run
    folder = workspace / "digits"
    assert json.loads((folder / "summary.json").read_text()) == summary
    for path in (
        "records/dataset.json",
        "model/best.weights.h5",
        "evaluation/report.html",
        "export/saved_model/saved_model.pb",
        "export/model.tflite",
        "export/model_int8.tflite",
        "export/export.json",
    ):
        assert (folder / path).is_file(), path
    assert summary["status"] == "succeeded"
    assert summary["gate"]["promote"] is True
    assert {name: step["state"] for name, step in summary["steps"].items()} == dict.fromkeys(STEPS, "succeeded")
    assert all(step["seconds"] > 0 and not step["cached"] for step in summary["steps"].values())
    assert summary["metrics"]["num_examples"] == Manifest.load(folder / "records").splits["test"].num_examples
    assert summary["export"]["formats"]["saved_model"]["agreement"] == 1.0
    assert sorted(summary["artifacts"]) == ["evaluation", "export", "model", "records", "report"]


def test_with_json_stdout_is_the_summary_alone_and_progress_goes_to_stderr(finished_run):
    _, summary, done = finished_run
    assert json.loads(done.stdout) == summary
    assert "[train_model] epoch 1/4" in done.stderr


def test_a_second_run_takes_every_step_from_the_cache(finished_run):
    workspace, first, _ = finished_run
    done, summary = run(workspace)
    assert done.returncode == 0
    assert all(step["cached"] for step in summary["steps"].values())
    assert summary["metrics"] == first["metrics"]
    assert "[train_model] unchanged, taken from the cache" in done.stderr


def test_a_gate_that_says_no_gives_exit_code_3_and_runs_no_export_and_trains_nothing_again(finished_run):
    workspace, _, _ = finished_run
    done, summary = run(workspace, "--set", "gate.minimum={accuracy: 1.0, macro_f1: 0.5}", "--set", "gate.top_k=3")
    assert done.returncode == 3
    assert summary["status"] == "rejected"
    assert summary["steps"]["train_model"]["cached"]
    assert summary["steps"]["export_model"] == {"seconds": 0.0, "state": "skipped", "cached": False}
    assert not (workspace / "digits" / "export").exists()
    assert any(reason.startswith("failed: accuracy") for reason in summary["gate"]["reasons"])
    assert any(reason.startswith("passed: macro_f1") for reason in summary["gate"]["reasons"])
    done, summary = run(workspace)
    assert (done.returncode, summary["status"]) == (0, "succeeded"), "the promoted run is found in the cache again"


def test_damaged_cached_records_are_written_again(finished_run):
    workspace, _, _ = finished_run
    shard = next((workspace / ".cache" / "digits").glob("training-*/create-tfrecords/records/train-*.tfrecord"))
    content = shard.read_bytes()
    published = (workspace / "digits" / "records" / shard.name).read_bytes()
    assert content == published
    # The published file is a hard link: write a new file, as a broken copy would.
    shard.unlink()
    shard.write_bytes(content[:-1])
    done, summary = run(workspace)
    assert done.returncode == 0, done.stderr
    assert "cached records are not used" in done.stderr
    assert not summary["steps"]["create_tfrecords"]["cached"]
    assert summary["steps"]["train_model"]["cached"], "the same records again: their key is that of their content"
    assert (workspace / "digits" / "records" / shard.name).read_bytes() == content


def test_divergence_is_reported_with_exit_code_2_and_the_last_checkpoint_kept(tmp_path):
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
        assert_user_error(tpu_pipelines("run", "digits", "--workspace", str(tmp_path)), "Another run is writing to")


def bad_sources(root):
    images = root / "one_class"
    (images / "a").mkdir(parents=True)
    (images / "a" / "1.png").write_bytes(b"")
    (root / "empty").mkdir()
    np.savez(root / "floats.npz", x=np.zeros((4, 8, 8), np.float32), y=np.arange(4))
    (root / "list.csv").write_text("path,label\n../secret.png,a\n")
    (root / "columns.csv").write_text("file,class\na.png,a\n")
    return {
        f"images:{root}/empty": "Found no files",
        f"images:{root}/missing": "Cannot list",
        f"images:{images}": "at least two classes",
        f"npz:{root}/floats.npz": "expected uint8",
        f"csv:{root}/list.csv": "Refused the path",
        f"csv:{root}/columns.csv": "Missing columns",
        "sklearn:digit": "expected sklearn:digits",
        "image:here": "Did you mean 'images'",
    }


def test_bad_sources_are_refused_before_any_work(tmp_path):
    for source, words in bad_sources(tmp_path).items():
        done = tpu_pipelines("run", "digits", "--workspace", str(tmp_path / "w"), "--set", f"data.source={source}")
        assert_user_error(done, words)
        assert not (tmp_path / "w" / "digits").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.batch_size_per_replica=5000", "The batch is larger than the training split"),
        ("training.epoch=3", "Did you mean 'epochs'"),
        ("model=cifar_cnn", "Did you mean 'cifar10_cnn'"),
        ("gate.champion=/nowhere", "there is no such file"),
        ("data.test_fraction=0", "gate.split='test' has no examples"),
        ("data.source=images:/opt/python3/data", "rewrites the text 'python3'"),
    ],
)
def test_bad_settings_are_refused_before_any_work(tmp_path, override, words):
    done = tpu_pipelines("run", "digits", "--workspace", str(tmp_path / "w"), "--set", override)
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
    assert_user_error(tpu_pipelines("run", "digits", *name, *source), "received other files")
    (tmp_path / "flowers" / "run.log").write_text("")
    assert_user_error(tpu_pipelines("run", "digits", *name, *source), "data.source", "lies there")
    champion = ("--set", f"gate.champion={tmp_path / 'flowers' / 'a'}")
    assert_user_error(tpu_pipelines("run", "digits", *name, *champion), "gate.champion", "lies there")
    assert pictures.is_dir()


@pytest.mark.parametrize("workspace", ["file", "file/below", "/proc/nowhere"])
def test_a_workspace_that_cannot_be_written_is_refused(tmp_path, workspace):
    (tmp_path / "file").write_text("")
    done = tpu_pipelines("run", "digits", "--workspace", str(tmp_path / workspace))
    assert_user_error(done, "Cannot write to")

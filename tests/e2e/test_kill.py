"""Killed at any moment, run again: the same records and weights, and never half an artifact under its final name."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from components.artifacts import ARCHITECTURE_FILE, BEST_WEIGHTS_FILE, LAST_WEIGHTS_FILE, Manifest, ModelInfo
from tests.cli import QUICK

KILLS = int(os.environ.get("KILLS", "20"))
# A checkpoint after every step, so that a kill falls into every part of writing one too.
COMMAND = [sys.executable, "-m", "pipelines.cli", "run", "digits", *QUICK, "--set", "training.checkpoint_seconds=0"]


def start(workspace):
    return subprocess.Popen(
        [*COMMAND, "--workspace", str(workspace)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def finish(workspace):
    begin = time.monotonic()
    done = subprocess.run([*COMMAND, "--workspace", str(workspace)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - begin


def weights(path):
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


def outcome(workspace):
    folder = workspace / "digits"
    records = {path.name: path.read_bytes() for path in sorted((folder / "records").iterdir())}
    return records, weights(folder / "model" / LAST_WEIGHTS_FILE), weights(folder / "model" / BEST_WEIGHTS_FILE)


def assert_same(one, other):
    assert one[0] == other[0]
    for ours, theirs in zip(one[1:], other[1:], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def check_visible(workspace):
    """Whatever lies under a final name is whole; a folder that is being replaced may vanish while we look."""
    with contextlib.suppress(FileNotFoundError):
        for records in [*workspace.glob("digits/records"), *workspace.glob(".cache/digits/training-*/*/records")]:
            if records.exists():
                Manifest.load(records)
        for model in [*workspace.glob("digits/model"), *workspace.glob(".cache/digits/training-*/*/trained")]:
            if model.exists():
                ModelInfo.load(model)
                json.loads((model / ARCHITECTURE_FILE).read_text())
                weights(model / BEST_WEIGHTS_FILE)
        for checkpoint in workspace.glob(".cache/digits/checkpoints/*/*.npz"):
            with np.load(checkpoint) as arrays:
                [arrays[name] for name in arrays.files]
        for name in ("summary.json", "evaluation/evaluation.json", "export/export.json"):
            for path in workspace.glob(f"digits/{name}"):
                json.loads(path.read_text())
        for export in [*workspace.glob("digits/export"), *workspace.glob(".cache/digits/training-*/*/exported")]:
            if export.exists():
                assert (export / "export.json").is_file()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("reference")
    seconds = finish(workspace)
    return outcome(workspace), seconds


@pytest.mark.slow  # 40 s a kill.
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_any_moment_a_run_continues_to_the_same_records_and_weights(reference, number, tmp_path):
    expected, seconds = reference
    # One moment in each of KILLS equal parts of a run: spread over all steps, and still by chance.
    moment = (number + random.Random(number).random()) / KILLS * seconds
    process = start(tmp_path)
    problems, done = [], threading.Event()

    def watch():
        while not done.wait(0.02):
            try:
                check_visible(tmp_path)
            except Exception as error:
                problems.append(error)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    time.sleep(moment)
    if number % 2:  # The machine dies, or only the command does: its step then lives on for a moment.
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    done.set()
    watcher.join()
    assert not problems, problems
    check_visible(tmp_path)
    finish(tmp_path)
    assert_same(outcome(tmp_path), expected)

"""Claims about `python -m tpu_components.create_tfrecords.engines`."""

import json
import os
import subprocess
import sys

import pytest

from tests.components.create_tfrecords.engines.cases import same_files
from tests.support.fakes import gcsfuse
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.engines.__main__ import main


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command in this process; gives its exit code and what it printed."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["engines", *map(str, words)])
        code = main()
        return code, *capsys.readouterr()

    return run


def test_the_commands_write_what_the_step_alone_writes(command, image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = f"images:{image_folder()}"
    asked = ("--source", source, "--engine-tasks", 2, "--num-workers", 1)
    assert command("plan", *asked, "--output", "plan")[0] == 0
    for number in range(2):
        words = ("--plan", "plan", "--number", number, "--output", f"parts/{number}")
        code, printed, _ = command("write", *asked, *words)
        assert code == 0
        assert json.loads(printed)["num_kept"] == 0
    code, printed, _ = command("merge", *asked, "--plan", "plan", "--parts", "parts/0", "parts/1", "--output", "out")
    assert code == 0
    alone = write_records(WriteParams(source, num_workers=1), tmp_path / "alone")
    assert json.loads(printed)["fingerprint"] == alone.fingerprint


def test_a_range_without_a_plan_is_a_mistake(command, image_folder, tmp_path):
    words = ("--plan", tmp_path / "none", "--number", 0, "--output", tmp_path / "parts")
    code, _, told = command("write", "--source", f"images:{image_folder()}", *words)
    assert code == 2
    assert "plan.json': there is no such file. Check the path. Expected a file that plan_parts wrote" in told
    assert not (tmp_path / "parts").exists()


@pytest.mark.slow  # 10 s: processes of their own.
def test_a_mounted_bucket_gets_the_same(image_folder, tmp_path):
    asked = ["--source", f"images:{image_folder()}", "--engine-tasks", "2", "--num-workers", "1"]
    bucket = tmp_path / "gcs" / "bucket"
    bucket.mkdir(parents=True)
    parts = [bucket / f"parts-{number}" for number in range(2)]
    commands = [
        ["plan", "--output", bucket / "plan"],
        *(["write", "--plan", bucket / "plan", "--number", i, "--output", parts[i]] for i in (0, 1, 1)),
        ["merge", "--plan", bucket / "plan", "--parts", *parts, "--output", bucket / "out"],
    ]
    printed = []
    for words in commands:
        command = [sys.executable, "-m", "tpu_components.create_tfrecords.engines", *map(str, words), *asked]
        environment = {**os.environ, **gcsfuse.environment(tmp_path / "gcs")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(json.loads(done.stdout))
    assert printed[3]["num_kept"] == printed[3]["num_parts"] > 0
    write_records(WriteParams(asked[1], num_workers=1), tmp_path / "alone")
    assert same_files(bucket / "out", tmp_path / "alone")

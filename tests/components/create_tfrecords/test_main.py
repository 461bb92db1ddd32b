"""Claims about `python -m tpu_components.create_tfrecords`."""

import json
import subprocess
import sys

from tests.support.cli import REPOSITORY
from tpu_components.core.examples.artifacts import Manifest


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpu_components.create_tfrecords", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_success_prints_one_json_line_and_exits_with_0(image_folder, tmp_path):
    done = _run(
        *("--source", f"images:{image_folder()}", "--output", tmp_path / "out", "--no-stratify", "--seed", 4),
        *("--image-size", 6, 7, "--class-names", "dog", "cat", "--test-fraction", 0.3),
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    manifest = Manifest.load(tmp_path / "out")
    assert result["num_examples"] == 20
    assert result["fingerprint"] == manifest.fingerprint
    assert manifest.class_names == ("dog", "cat")
    assert manifest.input.image_shape == (6, 7, 3)
    assert "by hash, seed 4" in manifest.split_rule


def test_a_mistake_exits_with_2_and_a_paragraph_and_writes_nothing(run_step_here, tmp_path):
    done = run_step_here("create_tfrecords", {"source": "imagse:x"}, output=tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    log, message = done.stderr.splitlines()
    assert log == "[create_tfrecords] started"
    assert message.startswith("error: Unknown source 'imagse:x'")
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_newline_does_not_forge_lines_of_the_log(image_folder, tmp_path):
    folder = image_folder()
    (folder / "cat" / "x\nerror: all is well.png").write_bytes(b"text")
    done = _run("--source", f"images:{folder}", "--output", tmp_path / "out")
    assert done.returncode == 2
    assert r"'cat/x\nerror: all is well.png' (not an image)" in done.stderr
    assert not any(line.startswith("error: all is well") for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr

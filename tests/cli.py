"""Runs the command line as a user does, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
DATA = REPOSITORY.parent / "shared" / "data"
# A digits run that takes half the time; its own name for nothing: the workspace is what keeps runs apart.
QUICK = ("--set", "training.epochs=4", "--set", "gate.minimum={}", "--set", "export.calibration_examples=50")


def tpu_pipelines(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tpu-pipelines` to its end, with the package's own interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def assert_user_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one paragraph on stderr, no stack trace, and every one of `words` in it."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    for word in words:
        assert word in last


def readme_model(name):
    """The README's model file of that name."""
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    return {file: block for block, file in blocks}[name]

"""Runs the command line as a user does."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

from pipelines.cli.main import main

REPOSITORY = Path(__file__).parent.parent
DATA = REPOSITORY.parent / "shared" / "data"
# A digits run that takes half the time; its own name for nothing: the workspace is what keeps runs apart.
QUICK = ("--set", "training.epochs=4", "--set", "gate.minimum={}", "--set", "export.calibration_examples=50")


def tpu_pipelines(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tpu-pipelines` to its end, with the package's own interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def tpu_pipelines_here(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tpu-pipelines` to its end in this process, which has imported its libraries already."""
    stdout, stderr, path = io.StringIO(), io.StringIO(), list(sys.path)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), contextlib.chdir(cwd or Path.cwd()):
        try:
            code = main(arguments)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        finally:
            sys.path[:] = path
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


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

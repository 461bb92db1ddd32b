"""Runs the command line as a user does."""

import contextlib
import io
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tpu_components.core.component.step_record import RUNNER_VARIABLE
from tpu_pipelines.cli.main import main

REPOSITORY = Path(__file__).parents[2]
COMPONENTS = REPOSITORY / "components" / "tpu_components"
PIPELINES = REPOSITORY / "pipelines" / "tpu_pipelines"
MODELS = COMPONENTS / "core" / "models" / "ready" / "README.md"
FOLDERS = ("components", "pipelines", "docker", "tests", ".ci")
READMES = [REPOSITORY / "README.md", REPOSITORY / ".github" / "SECURITY.md"]
READMES += sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("README.md"))
DATA = REPOSITORY.parent / "shared" / "data"
# A digits run that takes half the time; its own name for nothing: the workspace is what keeps runs apart.
QUICK = ("--set", "training.epochs=4", "--set", "gate.minimum={}", "--set", "export.calibration_examples=50")


def tpu_pipelines(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tpu-pipelines` to its end, with the package's own interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "tpu_pipelines.cli", *arguments], capture_output=True, text=True, cwd=cwd, check=False
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


@contextlib.contextmanager
def steps_here() -> Iterator[None]:
    """Run the steps of local runs in this process, which has TensorFlow, where no test asks about theirs.

    They are run by KFP's executor with the same arguments, and what they print is read as ever, if only at their end.
    """
    import keras
    from kfp.dsl.executor_main import executor_main

    def run_here(full_command: Sequence[str], env_vars: Mapping[str, str] | None = None) -> int:
        source, *arguments = full_command[3:]  # After a script for the shell that puts the source into a file.
        printed, code = io.StringIO(), 0
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            component = Path(folder) / "ephemeral_component.py"
            component.write_text(source)
            patch.delenv(RUNNER_VARIABLE)  # With which a step ends: this process.
            for name, value in (env_vars or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [executor_main.__name__, "--component_module_path", str(component), *arguments])
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                try:
                    executor_main()
                except Exception:
                    traceback.print_exc()
                    code = 1
        print(printed.getvalue())
        return code

    policy = keras.config.dtype_policy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kfp.local.subprocess_task_handler.run_local_subprocess", run_here)
        yield
    keras.config.set_dtype_policy(policy)


def set_environment(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Set several variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


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
    """The model file of that name in the README of the models."""
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", MODELS.read_text(), re.DOTALL)
    return {file: block for block, file in blocks}[name]

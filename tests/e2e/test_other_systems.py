"""What is known of macOS and Windows from a machine with Linux: the code runs without what only Linux has."""

import os
import subprocess
import sys

import pytest

# Takes away what Windows has not, from this project's modules alone: libraries choose by the system's name.
# `msvcrt.locking` locks bytes from where the file stands, for one process: https://docs.python.org/3/library/msvcrt.html
WITHOUT = """
import builtins, fcntl, importlib.metadata, os, types

versions = importlib.metadata.version

def version(name):
    if name == "libtpu":
        raise importlib.metadata.PackageNotFoundError(name)
    return versions(name)

importlib.metadata.version = version

msvcrt = types.SimpleNamespace(
    LK_NBLCK=2, locking=lambda file, mode, count: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count)
)
lacking = {"O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "geteuid", "getuid", "getgid", "getgroups", "killpg", "sysconf"}
windows_os = types.ModuleType("os")
windows_os.__dict__.update({name: value for name, value in os.__dict__.items() if name not in lacking})
own = builtins.__import__

def imported(name, names=None, *rest, **named):
    if (names or {}).get("__name__", "").startswith(("tpu_components", "tpu_pipelines")):
        if name in {"msvcrt", "os"}:
            return msvcrt if name == "msvcrt" else windows_os
        if name in {"fcntl", "resource", "pwd", "grp", "termios", "tty"}:
            raise ImportError(f"no {name} here")
    return own(name, names, *rest, **named)

builtins.__import__ = imported
"""
HOLD = """
import pathlib, sys
from tpu_components.core.files import storage
try:
    with storage.locked(pathlib.Path(sys.argv[1]), wait=False):
        print("held", flush=True)
        sys.stdin.read()
except BlockingIOError:
    print("refused")
"""


@pytest.fixture
def windows(tmp_path):
    """The environment of a process that lacks what Windows lacks."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def test_a_lock_holds_where_only_windows_locks_are(windows, tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": windows}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout.readline() == "held\n"
        assert subprocess.run(command, env=windows, capture_output=True, text=True).stdout == "refused\n"
        first.communicate()
    assert subprocess.run(command, env=windows, capture_output=True, text=True, input="").stdout == "held\n"


@pytest.mark.heavy
def test_a_whole_run_needs_nothing_that_only_linux_has(windows, tmp_path):
    program = "import sys; from tpu_pipelines.cli.main import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        program,
        "run",
        "digits",
        "--workspace",
        str(tmp_path / "runs"),
        "--set",
        "training.epochs=4",
        "--set",
        "gate.minimum.accuracy=0.5",
    ]
    done = subprocess.run(command, env=windows, capture_output=True, text=True, cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs" / "digits" / "export" / "model.tflite").is_file()

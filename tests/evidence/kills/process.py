"""Commands in forked processes of one that has imported their libraries, to be killed at a moment or before a change.

What a command reads, computes and writes is its own as in a fresh process; only the seconds of its imports are saved.
"""

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What Python itself tells of every change of the disk, before it is made (what C++ writes, it does not see).
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_LOOK_EVERY_SECONDS = 0.002


def warm_up() -> None:
    """Import what the steps import, once for all of them; nothing is computed, and no thread of theirs started."""
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    for name in (
        "tensorflow",
        "keras",
        "h5py",
        "joblib",
        "sklearn.datasets",
        "PIL.Image",
        "matplotlib.figure",
        "jinja2",
    ):
        importlib.import_module(name)
    for name in (
        "ai_edge_litert.interpreter",
        "google.cloud.storage",
        "kfp.local",
        "tpu_pipelines.pipeline.training_pipeline",
    ):
        importlib.import_module(name)


@dataclasses.dataclass(frozen=True)
class Command:
    """A module's command line.

    Attributes:
        module: A package with a command line, as `tpu_components.train_model`, or a module; run as `python -m` does.
        words: Its arguments.
        environment: What it sees beside our own.
        folder: Where it writes; changes elsewhere are not counted.
    """

    module: str
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


class Process:
    """A command that runs, with all that it starts in a session of its own.

    Args:
        command: What to run.
        log: Gets what it prints.
        dies_at: It kills itself, and its session, just before this change, counted from 0; None is never.
    """

    def __init__(self, command: Command, log: Path, dies_at: int | None = None) -> None:
        self._changes_file = log.with_suffix(".changes")
        self._changes_file.unlink(missing_ok=True)
        self.start = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(command, log, dies_at, self._changes_file)

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if it still runs when the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.end_session()  # Workers that wait for more work.
                return os.waitstatus_to_exitcode(status)
            time.sleep(_LOOK_EVERY_SECONDS)
        return None

    def kill(self, alone: bool = False) -> bool:
        """Kill it and its session, or itself alone; False if it had ended."""
        os.kill(self.pid, signal.SIGKILL)
        if not alone:
            self.end_session()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == -signal.SIGKILL

    def end_session(self) -> None:
        """Kill what it has left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def num_changes(self) -> int:
        """Changes that it has made to its folder, once it has ended by itself."""
        return int(self._changes_file.read_text())


def _become(command: Command, log: Path, dies_at: int | None, changes_file: Path) -> None:
    """Be the command, to the end of this process."""
    code = 1
    try:
        os.setsid()
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update(command.environment)
        tempfile.tempdir = None  # As the environment says now.
        count = _count_changes(command.folder, dies_at)
        sys.argv = [command.module, *command.words]
        module = importlib.import_module(command.module)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{command.module}.__main__")
        code = int(module.main() or 0)
        changes_file.write_text(str(count[0]))
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _count_changes(folder: Path, dies_at: int | None) -> list[int]:
    """Count the changes of the disk below a folder from now on, in a list of one number."""
    top, seen = f"{folder}/", [0]

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & _WRITING:
                return
        elif event not in _CHANGES:
            return
        if any(isinstance(word, str | os.PathLike) and os.fspath(word).startswith(top) for word in arguments[:2]):
            if seen[0] == dies_at:
                os.killpg(0, signal.SIGKILL)
            seen[0] += 1

    sys.addaudithook(see)
    return seen

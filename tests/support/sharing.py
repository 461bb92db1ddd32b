"""What several tests only read, made once for all the processes of a test session."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled, in whichever process of the session came first.

    Args:
        temporary: Names the folder of this process; that of the session lies around it.
        name: Of the folder; one for each thing that is made.
        make: Fills an empty folder. If it raises, the next who asks tries again.
    """
    base = temporary.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = session / f"shared-{name}", session / f"shared-{name}.finished"
    with open(session / f"shared-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            finished.touch()
    return folder

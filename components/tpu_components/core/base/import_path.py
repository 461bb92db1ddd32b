"""Python's import path without the current folder, except while a user's own model is imported.

Otherwise anyone who can write to a folder could run code in a command that is started in that folder, by adding a
file or folder named like a library.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_VARIABLE = "PYTHONSAFEPATH"  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH


def leave_current_folder() -> None:
    """Remove the current folder, which `python -m` adds, from the import path."""
    if not sys.flags.safe_path and sys.path and Path(sys.path[0]).resolve() == Path.cwd():
        del sys.path[0]


@contextlib.contextmanager
def safe_children() -> Iterator[None]:
    """Prevent the processes that the block starts from importing modules of the current folder."""
    with with_variables({_VARIABLE: "1"}):
        yield


@contextlib.contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs, for this process and processes that it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def with_folders(*folders: Path) -> Iterator[None]:
    """Append folders to the import path while the block runs."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)

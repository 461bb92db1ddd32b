"""Functions that keep the current folder off Python's import path, except while a user's code is imported.

With the current folder on the import path, anyone who can write to that folder could make a command run their code: a
file or folder with the name of a library would be imported instead of the library.
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
    """Prevent processes that are started in the `with` block from importing modules from the current folder."""
    with with_variables({_VARIABLE: "1"}):
        yield


@contextlib.contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the `with` block, for this process and the processes that it starts."""
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
    """Append folders to the import path during the `with` block."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)

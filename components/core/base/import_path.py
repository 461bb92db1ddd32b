"""Where Python imports from: never the current folder, but while a user's own model is imported that may lie there.

Else whoever can write to a folder could have their code run by a command that is started there: by a folder
`components/`, or a file of a library's name.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_OWN_FOLDER = Path(__file__).parent.parent
_VARIABLE = "PYTHONSAFEPATH"  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH


def leave_current_folder() -> None:
    """Import nothing from the current folder any more, which `python -m` puts first; our own sources may lie there."""
    here = Path.cwd()
    if not sys.flags.safe_path and sys.path and Path(sys.path[0]).resolve() == here and here != _OWN_FOLDER:
        del sys.path[0]


@contextlib.contextmanager
def safe_children() -> Iterator[None]:
    """Let processes that are started in the block import nothing from the current folder either."""
    with with_variables({_VARIABLE: "1"}):
        yield


@contextlib.contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block, for this process and those that it starts."""
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
    """Import from these folders too in the block, after all others."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)

"""The process that compiles: receives one program after another on stdin, and sends each outcome through a pipe.

The process may die: an internal error of the compiler aborts it, and a compilation can take gigabytes. `sandbox` starts
it.
"""

import contextlib
import os
import pickle
import sys
from multiprocessing.connection import Connection

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.termination import end_with


def main() -> None:
    """Compile the programs on stdin until it ends, and send each outcome through the pipe that the argument names."""
    cache_dir, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    with Connection(int(sys.argv[1]), readable=False) as pipe, contextlib.suppress(BrokenPipeError, EOFError):
        try:
            while True:
                pipe.send(pickle.load(sys.stdin.buffer).compile(cache_dir))
        except InputError as error:
            pipe.send(InputError(str(error)))
    os._exit(0)  # Nothing is left to save, and libtpu's exit handlers can hang.

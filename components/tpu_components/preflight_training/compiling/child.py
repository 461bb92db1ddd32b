"""The process that compiles: receives one program after another on stdin, and sends each outcome through a pipe.

Compilation has a process of its own, because an internal compiler error aborts the process, and because a compilation
can take gigabytes of memory. `sandbox` starts the process.
"""

import contextlib
import os
import pickle
import sys
from multiprocessing.connection import Connection

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.termination import end_with


def main() -> None:
    """Compile programs from stdin until stdin ends, and send each outcome through a pipe.

    The argument of the process is the file descriptor of the pipe.
    """
    cache_dir, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    with Connection(int(sys.argv[1]), readable=False) as pipe, contextlib.suppress(BrokenPipeError, EOFError):
        try:
            while True:
                pipe.send(pickle.load(sys.stdin.buffer).compile(cache_dir))
        except InputError as error:
            pipe.send(InputError(str(error)))
    os._exit(0)  # Nothing is left to save, and libtpu's exit handlers can hang.

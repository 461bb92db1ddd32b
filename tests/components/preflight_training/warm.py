"""A process that has imported JAX once, for all processes of a test session.

Every request is met by a copy of it, which is cold but for its imports.
"""

import base64
import contextlib
import functools
import gc
import io
import json
import os
import pickle
import runpy
import select
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import pytest

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.compiling import sandbox, stablehlo
from tpu_components.preflight_training.compiling.outcome import Outcome

SOCKET_VARIABLE = "TPU_PIPELINES_TESTS_SOCKET"  # Path of the socket on which tests/conftest.py has it listen.


class WarmCompiler:
    """Stands in for `Sandbox.run_child` where no test asks about the death, time or memory of the process.

    It also runs code that needs the TPU compiler, or Keras on JAX, each time in a process of its own.
    """

    @functools.cached_property
    def _connection(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[SOCKET_VARIABLE])
        return connection

    @functools.cached_property
    def _words(self) -> TextIO:
        return self._connection.makefile("rw")

    def __call__(self, box: sandbox.Sandbox, program: sandbox.Program) -> Outcome:
        """What came of a compilation."""
        pickled = base64.b64encode(pickle.dumps(program)).decode()
        (message,) = self._ask({"program": pickled, "cache_dir": str(box.cache_dir)})
        if "input_error" in message:
            raise InputError(message["input_error"])
        return typed_values.read(message["outcome"], Outcome)

    @contextlib.contextmanager
    def takes_over(self) -> Iterator[None]:
        """Compile JAX's steps in copies of this process; TensorFlow's as ever."""
        cold = sandbox.Sandbox.run_child
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sandbox.Sandbox,
                "run_child",
                lambda box, one: (self if one.backend == "jax" else cold)(box, one),
            )
            yield

    def run(self, code: str, *arguments: Any) -> str:
        """What Python code prints, given its arguments."""
        (message,) = self._ask({"code": code, "arguments": [*map(str, arguments)]})
        assert "printed" in message, message["failed"]
        return message["printed"]

    def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        print(json.dumps(request), file=self._words, flush=True)
        messages = []
        while "ended" not in (message := json.loads(self._words.readline())):
            messages.append(message)
        assert message["ended"] == 0, messages
        return messages

    def leave(self) -> None:
        """Ask no more."""
        if "_connection" in vars(self):
            self._words.close()
            self._connection.close()


def serve(listener: socket.socket) -> None:
    """Meet the requests of whoever connects, in a copy of this process each, until stdin ends."""
    os.environ.update(stablehlo.COMPILER_ENVIRONMENT, KERAS_BACKEND="jax")
    import jax  # noqa: F401 (what takes seconds)
    import keras  # noqa: F401
    import tensorflow  # noqa: F401 (Keras asks for it when it writes a model's configuration)

    gc.freeze()  # A copy would look through all of it, and copy it, whenever it collects.
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _converse(connection.makefile("rw"))
            os._exit(0)
        connection.close()


def _converse(words: TextIO) -> None:
    for line in words:
        if (child := os.fork()) == 0:
            for message in _answer(json.loads(line)):
                print(json.dumps(message), file=words, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), file=words, flush=True)


def _answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "code" in request:
        yield _run(request["code"], request["arguments"])
        return
    cache_dir = Path(request["cache_dir"])
    try:
        yield {"outcome": asdict(pickle.loads(base64.b64decode(request["program"])).compile(cache_dir))}
    except InputError as error:
        yield {"input_error": str(error)}


def _run(code: str, arguments: list[str]) -> dict[str, Any]:
    import jax

    # What one test has compiled for the CPU no other compiles again.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{os.environ[sandbox.CACHE_VARIABLE]}/jax"
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    sys.argv = ["-c", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.py"
        path.write_text(code)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except BaseException:
            return {"failed": traceback.format_exc()}
    return {"printed": printed.getvalue()}

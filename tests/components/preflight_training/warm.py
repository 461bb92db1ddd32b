"""The compiler's process, its libraries imported once: every request is compiled by a copy of it, real but warm."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from components.errors import InputError
from components.preflight_training import compiler, sandbox
from components.preflight_training.compiler import Compilation, Outcome, Task


class WarmCompiler:
    """Stands in for `sandbox._run_child` where no test asks about the death, time or memory of the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | sandbox._ENVIRONMENT | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __call__(
        self, task: Task, compilations: Sequence[Compilation], limits: sandbox.Limits, cache_dir: Path
    ) -> Iterator[tuple[int, Outcome]]:
        """What came of each compilation."""
        some = [asdict(compilation) for compilation in compilations]
        request = {"task": asdict(task), "compilations": some, "cache_dir": str(cache_dir)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        messages = []
        for line in self._process.stdout:
            messages.append(json.loads(line))
            if "ended" in messages[-1]:
                break
        assert messages[-1] == {"ended": 0}
        for message in messages:
            if "input_error" in message:
                raise InputError(message["input_error"])
            if "outcome" in message:
                yield message["done"], compiler.read_outcome(message["outcome"])

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Compile what stdin asks for, a JSON line each, in a copy of this process each."""
    import jax  # noqa: F401 (what takes seconds)
    import keras  # noqa: F401

    for line in sys.stdin:
        if (child := os.fork()) == 0:
            request = json.loads(line)
            task, cache_dir = Task.from_dict(request["task"]), Path(request["cache_dir"])
            for message in compiler._serve(task, [Compilation(**one) for one in request["compilations"]], cache_dir):
                print(json.dumps(message), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()

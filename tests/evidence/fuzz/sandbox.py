"""Calls a reader in a process of its own, with a limit of processor time and of memory."""

import gc
import multiprocessing
import os
import re
import resource
import signal
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MOST_SECONDS = 2.0  # Of the processor.
MOST_MIB = 1024  # Beyond what the process held before.
_ADDRESS_MIB = 2048  # Address space beside: every thread reserves a stack and an arena.
_PATIENCE_SECONDS = 120.0
_CALLS_PER_PROCESS = 1000
_FORK = multiprocessing.get_context("fork")

READ, REFUSED, FAULT = "read", "refused", "fault"


class Outcome(NamedTuple):
    """What became of an input: `read`, `refused` or `fault`; and the message, the fault, or the stack trace."""

    kind: str
    said: str = ""
    seconds: float = 0.0
    mib: float = 0.0


class Sandbox:
    """A process that reads one input after the other. It is started anew after a fault.

    Args:
        read: Reads a file.
        path: The file; what a reader expects beside it is there.
        refusals: Exceptions by which the reader refuses.
    """

    def __init__(self, read: Callable[[Path], Any], path: Path, refusals: tuple[type[Exception], ...]) -> None:
        self._read, self._path, self._refusals = read, path, refusals
        self._process: Any = None
        self._num_calls = 0

    def call(self, content: bytes) -> Outcome:
        """Read an input."""
        if self._process is None or self._num_calls >= _CALLS_PER_PROCESS:
            self.close()
            self._start()
        self._num_calls += 1
        self._path.write_bytes(content)
        self._pipe.send_bytes(b"go")
        try:
            if self._pipe.poll(_PATIENCE_SECONDS):
                outcome: Outcome = self._pipe.recv()
                if outcome.kind == FAULT:
                    self.close()
                return outcome
            fault = f"no end after {_PATIENCE_SECONDS:.0f} s"
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            fault = f"more than {MOST_SECONDS} s" if code == -signal.SIGPROF else f"the process ended with {code}"
        self.close()
        return Outcome(FAULT, fault)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process, self._num_calls = None, 0

    def _start(self) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _serve(self, pipe: Any) -> None:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        while True:
            pipe.recv_bytes()
            outcome = self._call()  # A message may hold what is no Unicode.
            pipe.send(outcome._replace(said=outcome.said.encode("ascii", "backslashreplace").decode()))

    def _call(self) -> Outcome:
        gc.collect(0)
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins at what is held now.
        before = _memory()
        most = (MOST_MIB + _ADDRESS_MIB << 20) + (before["VmSize"] << 10)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        start = sum(os.times()[:2])
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        kind, said = READ, ""
        try:
            self._read(self._path)
        except self._refusals as error:
            kind, said = REFUSED, str(error)
            if any(isinstance(cause, MemoryError) for cause in _causes(error)):
                kind, said = FAULT, "".join(traceback.format_exception(error))
        except BaseException as error:
            kind, said = FAULT, "".join(traceback.format_exception(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        mib = (_memory()["VmHWM"] - before["VmRSS"]) / 1024
        if kind != FAULT and mib > MOST_MIB:
            kind, said = FAULT, f"{mib:.0f} MiB"
        return Outcome(kind, said, sum(os.times()[:2]) - start, mib)


def _memory() -> Mapping[str, int]:
    """Return sizes in KiB: address space, memory now, and its peak."""
    status = Path("/proc/self/status").read_text()
    return {name: int(size) for name, size in re.findall(r"(VmSize|VmRSS|VmHWM):\s+(\d+)", status)}


def _causes(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

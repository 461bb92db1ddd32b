"""Compiles programs in child processes with limits on time and memory.

If a child process dies, the result is an outcome, not an error.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import Slice
from tpu_components.preflight_training.compiling import child, compile_cache
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_FIT, FITS, MAY_FIT, Outcome, versions
from tpu_components.preflight_training.compiling.stablehlo import COMPILER_ENVIRONMENT

TIMED_OUT, OUT_OF_MEMORY, CRASHED = "timed_out", "out_of_memory", "crashed"
_ENDS = (TIMED_OUT, OUT_OF_MEMORY, CRASHED)  # After these outcomes, the child has ended or must be ended.
CACHE_VARIABLE = "TPU_PIPELINES_CACHE_DIR"
_LOOK_EVERY_SECONDS = 0.2
SAY_EVERY_SECONDS = 30.0


def default_cache_dir() -> Path:
    """Return the folder in which outcomes are cached.

    It is in the folder TPU_PIPELINES_CACHE_DIR or, if this variable is not set, in the user's cache folder.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(os.environ.get(CACHE_VARIABLE) or f"{home}/tpu-pipelines") / "preflight"
    return directory if compile_cache.is_own(directory) else directory.with_name(f"preflight-{compile_cache.user_id()}")


def require_compiler(machines: Iterable[Slice], extra: str = "preflight") -> None:
    """Check that JAX is installed and, if one of the machines is a TPU, also the TPU compiler.

    Args:
        machines: Machines to compile for.
        extra: Extra of this package that the error message recommends to install.

    Raises:
        InputError: If JAX or the TPU compiler is missing.
    """
    needed = {"jax", *("libtpu" for machine in machines if not machine.is_gpu)}
    if needed - versions().keys():
        raise InputError(
            "Cannot compile the training step: the TPU compiler (libtpu) or JAX is not installed. "
            f"Run: pip install 'tpu-pipelines[{extra}]' (Linux on x86-64)."
        )


class Program(Protocol):
    """A program that is pickled, sent to a child process, and compiled there."""

    @property
    def backend(self) -> str:
        """Keras backend of the process."""

    @property
    def machine(self) -> Slice:
        """Slice to compile for."""

    def key(self) -> str:
        """Return a digest of everything on which the outcome depends."""

    def compile(self, cache_dir: Path) -> Outcome:
        """Compile the program in this process."""


class Sandbox:
    """Compiles programs in a child process with limits on time and memory.

    The child imports JAX and Keras, which takes longer than many compilations. Therefore, the child lives until the end
    of the `with` block, or of `compile_all` if there is no such block. If the child dies, the next compilation starts a
    new child.

    Args:
        timeout_seconds: Time limit of one compilation; see `Clock`.
        memory_mib: Memory limit of a child, in MiB.
        cache_dir: Folder in which outcomes are cached.
    """

    def __init__(self, timeout_seconds: float, memory_mib: int, cache_dir: Path) -> None:
        self.timeout_seconds = timeout_seconds
        self.memory_mib = memory_mib
        self.cache_dir = cache_dir
        self._child: _Child | None = None
        self._blocks = 0

    def __enter__(self) -> "Sandbox":
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self._end_child()

    def compile_all(self, programs: Sequence[Program]) -> list[Outcome]:
        """Compile each program in turn. A cached outcome is returned without starting a process.

        Only outcomes that say whether a program fits are cached. After any other outcome, such as a timeout, the next
        call compiles the program again.

        Raises:
            InputError: If the model cannot be built.
        """
        with self:
            return [self._recall_or_compile(program) for program in programs]

    def _recall_or_compile(self, program: Program) -> Outcome:
        path = self.cache_dir / f"request-{program.key()}.json"
        known: Outcome | None = compile_cache.recall(path, Outcome)
        if known is not None:
            return dataclasses.replace(known, is_cached=True)
        outcome = self.run_child(program)
        if outcome.verdict in (FITS, MAY_FIT, DOES_NOT_FIT):
            compile_cache.keep(path, dataclasses.asdict(outcome))
        return outcome

    def run_child(self, program: Program) -> Outcome:
        """Compile a program in the child process. End the child if it exceeds a limit or crashes."""
        child = self._child = self._child or _Child(program.backend, self.cache_dir)
        try:
            outcome = self._receive(child, program)
        except InputError:  # The child has sent it as its last message.
            self._end_child()
            raise
        if outcome.verdict in _ENDS:
            self._end_child()
        return outcome

    def _end_child(self) -> None:
        if self._child:
            self._child.kill()
        self._child = None

    def _receive(self, child: "_Child", program: Program) -> Outcome:
        """Send a program to the child, and return the outcome.

        If the child sends no outcome, return an outcome that says why.
        """
        started = reported_at = time.monotonic()
        clock = Clock(Path(f"/proc/{child.pid}/task"))
        child.send(program)
        while True:
            seconds = time.monotonic() - started
            computed = clock.read()
            try:
                message = child.receive(_LOOK_EVERY_SECONDS)
            except (EOFError, OSError):  # The process has ended. The exit code may be 0, if the model calls sys.exit.
                return Outcome(CRASHED, child.describe_death(), compile_seconds=seconds)
            if isinstance(message, InputError):
                raise message
            if isinstance(message, Outcome):
                return message
            if time.monotonic() - reported_at > SAY_EVERY_SECONDS:
                reported_at = time.monotonic()
                progress.say(
                    "preflight_training",
                    f"{program.machine.name}: still compiling after {seconds:,.0f} s, {computed:,.0f} s without "
                    "waiting for a CPU. Unusual shapes take minutes, but only the first time. The limit is "
                    f"{self.timeout_seconds:,.0f} s",
                )
            if computed > self.timeout_seconds:
                reason = f"not compiled after {self.timeout_seconds:,.0f} s. Raise preflight.compile_timeout_seconds"
                return Outcome(TIMED_OUT, reason, compile_seconds=seconds)
            if _resident_mib(child.pid) > self.memory_mib:
                reason = (
                    f"compiling takes more than {self.memory_mib:,} MiB of this machine's memory. Raise "
                    "preflight.compile_memory_mib, or compile on a larger machine"
                )
                return Outcome(OUT_OF_MEMORY, reason, compile_seconds=seconds)


class _Child:
    """A process that runs `child.main`, with its output in a temporary file.

    Args:
        backend: Keras backend of the programs.
        cache_dir: Folder in which outcomes are cached.
    """

    def __init__(self, backend: str, cache_dir: Path) -> None:
        environment = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._pipe, sending = multiprocessing.Pipe(duplex=False)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (`kill` closes it)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {child.__name__} import main; main()", str(sending.fileno())],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(sending.fileno(),),
            env=os.environ | COMPILER_ENVIRONMENT | environment,
            start_new_session=True,
        )
        sending.close()
        self.pid = self._process.pid
        self.send((cache_dir, os.getpid()))

    def send(self, message: Any) -> None:
        """Send a message. If the process has ended, do nothing, because `receive` reports the end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()

    def receive(self, seconds: float) -> Any:
        """Return the next message, or None if none arrives within `seconds`.

        Raises:
            EOFError: If the process has ended.
        """
        return self._pipe.recv() if self._pipe.poll(seconds) else None

    def describe_death(self) -> str:
        """Return how the process ended, with the most informative line of its output."""
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "Check failed" in line or "Error" in line] or lines[-1:]
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the TPU compiler's process ended with {cause}" + (f": {telling[-1][:400]}" if telling else "")

    def kill(self) -> None:
        """Kill the process. A normal exit can take minutes after a large program."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()
        self._log.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


class Clock:
    """Measures the time that a process takes, without the time in which it waits for a CPU on a busy machine.

    While a thread of the process runs or waits for a CPU, the process's CPU time counts, but at most the wall time.
    While all threads sleep, the wall time counts, so that a process that hangs reaches its limit. If there is no /proc,
    the wall time always counts.

    Args:
        tasks: Folder of the process's threads in /proc.
        now: Function that returns the wall time in seconds.
    """

    def __init__(self, tasks: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._now = now
        self._seconds = 0.0
        self._wall, self._cpu = now(), self._sample()[0]

    def read(self) -> float:
        """Return the seconds that count since the clock was created.

        Call this method often, because it samples the states of the threads.
        """
        wall, (cpu, is_runnable) = self._now(), self._sample()
        passed = wall - self._wall
        computed = max(cpu - self._cpu, 0.0)
        self._seconds += min(passed, computed) if is_runnable else passed
        self._wall = wall
        self._cpu = cpu
        return self._seconds

    def _sample(self) -> tuple[float, bool]:
        """Return the CPU seconds of all threads, and whether one of them runs or waits for a CPU.

        Fields of /proc/PID/task/TID/stat, counted from 0 after the name in parentheses: 0 is the state, 11 and 12 are
        the CPU time in user and in kernel mode (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html).
        """
        ticks = 0
        is_runnable = False
        with contextlib.suppress(OSError):  # The process, or a thread, has just ended.
            for task in self._tasks.iterdir():
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
                is_runnable |= fields[0] == "R"
        return ticks / os.sysconf("SC_CLK_TCK"), is_runnable


def _resident_mib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # It has just ended.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20

"""Compiles in child processes with limits on time and memory; a child that dies gives an outcome, not an error."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.machines.machine_spec import Slice
from tpu_components.core.models.lookup import model_code
from tpu_components.preflight_training.compiling import compile_cache, compiler
from tpu_components.preflight_training.compiling.compiler import Compilation, Outcome

TIMED_OUT, OUT_OF_MEMORY, CRASHED = "timed_out", "out_of_memory", "crashed"
_ENDS = (TIMED_OUT, OUT_OF_MEMORY, CRASHED)  # A child has ended, or is ended, with these outcomes.
CACHE_VARIABLE = "TPU_PIPELINES_CACHE_DIR"
_LOOK_EVERY_SECONDS = 0.2
SAY_EVERY_SECONDS = 30.0
# Without these libtpu asks a metadata server which TPU it is on, and lets one process at a time load it.
COMPILER_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def default_cache_dir() -> Path:
    """Return the folder that caches outcomes: below TPU_PIPELINES_CACHE_DIR, or by default in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(os.environ.get(CACHE_VARIABLE) or f"{home}/tpu-pipelines") / "preflight"
    return directory if compile_cache.is_own(directory) else directory.with_name(f"preflight-{compile_cache.user_id()}")


def require_compiler(machines: Iterable[Slice]) -> None:
    """Check that JAX is installed and, if one of the machines is a TPU, the TPU compiler.

    Raises:
        InputError: If one of them is not installed; the message says what to install.
    """
    needed = {"jax", *("libtpu" for machine in machines if not machine.is_gpu)}
    if needed - compiler.versions().keys():
        raise InputError(
            "Cannot compile the training step: the TPU compiler (libtpu) or JAX is not installed. "
            "Run: pip install 'tpu-pipelines[preflight]' (Linux on x86-64)."
        )


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """Compiles programs in child processes with limits.

    Attributes:
        timeout_seconds: Time limit of one compilation; see `Clock`.
        memory_mib: Memory limit of a child, in MiB.
        cache_dir: Folder that keeps outcomes and compiled programs' figures.
    """

    timeout_seconds: float
    memory_mib: int
    cache_dir: Path

    def compile_all(self, compilations: Sequence[Compilation]) -> list[Outcome]:
        """Compile each program of one training in turn, or take its outcome from the cache without starting a process.

        Only outcomes that say whether a program fits are cached. Other programs are compiled again by the next call.

        Raises:
            InputError: If the model cannot be built.
        """
        paths = [self.cache_dir / f"request-{_key(compilation)}.json" for compilation in compilations]
        outcomes: dict[int, Outcome] = {}
        for i, path in enumerate(paths):
            if (known := compile_cache.recall(path, Outcome)) is not None:
                outcomes[i] = dataclasses.replace(known, is_cached=True)
        while missing := [i for i in range(len(compilations)) if i not in outcomes]:
            # A child that dies ends one compilation; the next child does the others.
            children = self.run_child([compilations[i] for i in missing])
            for outcome, i in zip(children, missing, strict=False):
                outcomes[i] = outcome
                if outcome.verdict in (compiler.FITS, compiler.MAY_FIT, compiler.DOES_NOT_FIT):
                    compile_cache.keep(paths[i], dataclasses.asdict(outcome))
        return [outcomes[i] for i in range(len(compilations))]

    def run_child(self, compilations: Sequence[Compilation]) -> Iterator[Outcome]:
        """Yield the outcome of each compilation in one child process; ends early with one that ended the process."""
        request = pickle.dumps((compilations, self.cache_dir, os.getpid()))
        environment = {"KERAS_BACKEND": compilations[0].training.backend, "PYTHONPATH": os.pathsep.join(sys.path)}
        receiving, sending = multiprocessing.Pipe(duplex=False)
        with tempfile.TemporaryFile() as log, receiving:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {compiler.__name__} import main; main()", str(sending.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(sending.fileno(),),
                env=os.environ | COMPILER_ENVIRONMENT | environment,
                start_new_session=True,
            )
            sending.close()
            try:
                assert child.stdin is not None
                child.stdin.write(request)
                child.stdin.close()
                for compilation in compilations:  # Afterwards, the child may take minutes to exit.
                    outcome = self._receive(compilation.machine.name, child, receiving, log)
                    yield outcome
                    if outcome.verdict in _ENDS:
                        return
            finally:
                _kill(child)

    def _receive(self, machine: str, child: subprocess.Popen[bytes], pipe: "Connection[Any, Any]", log: Any) -> Outcome:
        """Return the next outcome that a child sends; if it sends none, an outcome that says why."""
        started = said = time.monotonic()
        clock = Clock(Path(f"/proc/{child.pid}/task"))
        while True:
            seconds = time.monotonic() - started
            computed = clock.read()
            try:
                message = pipe.recv() if pipe.poll(_LOOK_EVERY_SECONDS) else None
            except (EOFError, OSError):  # The process has ended; even with exit code 0: the model may call sys.exit.
                return Outcome(CRASHED, _describe_death(child.wait(), log), compile_seconds=seconds)
            if isinstance(message, InputError):
                raise message
            if isinstance(message, Outcome):
                return message
            if time.monotonic() - said > SAY_EVERY_SECONDS:
                said = time.monotonic()
                progress.say(
                    "preflight_training",
                    f"{machine}: still compiling after {seconds:,.0f} s, {computed:,.0f} s without waiting for a CPU. "
                    f"Unusual shapes take minutes, but only once. The limit is {self.timeout_seconds:,.0f} s",
                )
            if computed > self.timeout_seconds:
                reason = f"not compiled after {self.timeout_seconds:,.0f} s; raise preflight.compile_timeout_seconds"
                return Outcome(TIMED_OUT, reason, compile_seconds=seconds)
            if _resident_mib(child.pid) > self.memory_mib:
                reason = (
                    f"compiling takes more than {self.memory_mib:,} MiB of this machine's memory; raise "
                    "preflight.compile_memory_mib, or compile on a larger machine"
                )
                return Outcome(OUT_OF_MEMORY, reason, compile_seconds=seconds)


class Clock:
    """Measures the time of a process without the time in which a loaded machine gives it no CPU.

    While a thread of the process runs or waits for a CPU, the process's CPU time counts, at most the wall time. While
    all threads sleep, the wall time counts, so that a process that hangs reaches its limit. Without /proc, the wall
    time counts.

    Args:
        tasks: Folder of the process's threads in /proc.
        now: Returns the wall time in seconds.
    """

    def __init__(self, tasks: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._now = now
        self._seconds = 0.0
        self._wall, self._cpu = now(), self._sample()[0]

    def read(self) -> float:
        """Return the seconds since the clock was made. Call it often, because it samples the threads' states."""
        wall, (cpu, is_runnable) = self._now(), self._sample()
        passed, computed = wall - self._wall, max(cpu - self._cpu, 0.0)
        self._seconds += min(passed, computed) if is_runnable else passed
        self._wall, self._cpu = wall, cpu
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


def _key(compilation: Compilation) -> str:
    model = model_code(compilation.training.model, compilation.training.model_parameters)
    digests = [code_of([compiler.__name__]).digest, model.digest]
    return digest_of([dataclasses.asdict(compilation), digests, compiler.versions()])


def _describe_death(code: int, log: Any) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Check failed" in line or "Error" in line] or lines[-1:]
    cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the TPU compiler's process ended with {cause}" + (f": {telling[-1][:400]}" if telling else "")


def _resident_mib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # It has just ended.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()

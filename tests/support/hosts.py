"""A training on several hosts, each a process of this machine."""

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


class HostProcesses:
    """Processes that train together; those still running are killed at the end of the block.

    Args:
        count: How many.
        command: Words of the command of `train_model`, the same for all.
        logs: Folder of what they print.
    """

    def __init__(self, count: int, command: list[str], logs: Path) -> None:
        self._count, self._command, self._logs = count, command, logs
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "HostProcesses":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._logs.mkdir(parents=True, exist_ok=True)
        for index in range(self._count):
            hosts = ["--hosts", f"{index}/{self._count}@127.0.0.1:{port}"] if self._count > 1 else []
            with open(self._log(index, "out"), "wb") as out, open(self._log(index, "err"), "wb") as err:
                words = [*self._command, *hosts]
                self.processes.append(subprocess.Popen(words, stdout=out, stderr=err))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _log(self, index: int, name: str) -> Path:
        return self._logs / f"{index}.{name}"

    def wait(self, seconds: float = 300.0) -> list[int]:
        """Return the exit codes of all, as a shell tells them; fails where one has not ended in time."""
        end = time.monotonic() + seconds
        codes = [process.wait(max(end - time.monotonic(), 0.1)) for process in self.processes]
        return [code if code >= 0 else 128 - code for code in codes]

    def is_over(self) -> bool:
        """Return whether one has ended."""
        return any(process.poll() is not None for process in self.processes)

    def send(self, index: int, number: signal.Signals) -> None:
        """Send a host a signal."""
        self.processes[index].send_signal(number)

    def said(self, index: int) -> str:
        """Return what a host has written on stderr."""
        return self._log(index, "err").read_text(errors="replace")

    def result(self) -> Any:
        """Return what host 0 has printed."""
        return json.loads(self._log(0, "out").read_text().splitlines()[-1])

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 180.0) -> None:
        """Wait until something is so, or a host has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.is_over() and not is_so():
            time.sleep(0.05)

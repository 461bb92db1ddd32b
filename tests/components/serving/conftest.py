"""A server in a process of its own, spoken to over HTTP."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: Any


@dataclasses.dataclass(frozen=True)
class Server:
    """A running server. `line` is what it printed when it was ready, `log` what it writes to stderr."""

    process: subprocess.Popen[str]
    line: str
    log: Path

    @property
    def port(self) -> int:
        return int(re.search(r"http://[^:]+:(\d+)/", self.line)[1])

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on a connection of its own; what is not bytes is sent as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request(method, path, content, headers or {})
            response = connection.getresponse()
            received = response.read()
            return Answer(response.status, response.headers, json.loads(received) if received else None)

    def predict(self, body: Any) -> Answer:
        return self.request("POST", "/predict", body)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(30)


Start = Callable[..., contextlib.AbstractContextManager[Server]]


@contextlib.contextmanager
def _start(log: Path, module: str, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    with open(log, "w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    with process:
        line = process.stdout.readline()
        assert " now responds on " in line, log.read_text()
        server = Server(process, line, log)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def start_server(export_dir, tmp_path_factory) -> Start:
    """`tpu-pipelines serve` on a free port, with more flags."""

    def with_flags(*flags: str) -> contextlib.AbstractContextManager[Server]:
        log = tmp_path_factory.mktemp("server") / "stderr"
        return _start(log, "tpu_pipelines.cli", "serve", str(export_dir), "--port", "0", *flags)

    return with_flags


@pytest.fixture
def start_container(tmp_path) -> Start:
    """What the image runs, told everything by environment variables."""

    def with_variables(**variables: str) -> contextlib.AbstractContextManager[Server]:
        return _start(tmp_path / "stderr", "tpu_components.serving", environment=variables)

    return with_variables


@pytest.fixture(scope="module")
def server(start_server) -> Iterator[Server]:
    with start_server() as running:
        yield running


@pytest.fixture(scope="module")
def digits(digits_records):
    """The test split, uint8[359, 8, 8, 1]."""
    return records.load_split(digits_records, Manifest.load(digits_records), "test").inputs

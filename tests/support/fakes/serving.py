"""Serving containers as Vertex AI starts them: processes on this machine."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as v1


class Containers:
    """Starts the serving image's command with the variables of Vertex AI, for `FakeVertex(serve=…)`.

    Args:
        folder: Folder for the containers' logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[str]]()

    def __call__(self, model: v1.Model) -> str:
        """Start a container for a model; returns the URL of its predictions once it is ready."""
        container = model.container_spec
        variables = {
            "AIP_STORAGE_URI": model.artifact_uri,
            "AIP_HTTP_PORT": "0",  # Any: all of them are on this machine.
            "AIP_HEALTH_ROUTE": container.health_route,
            "AIP_PREDICT_ROUTE": container.predict_route,
        }
        log = self._folder / f"container-{len(self._processes)}.log"
        with open(log, "w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tpu_components.serving"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **variables},
            )
        self._processes.append(process)
        assert process.stdout
        found = re.search(r"now responds on http://[^:]+:(\d+)/", process.stdout.readline())
        if not found:
            raise RuntimeError(log.read_text())
        return f"http://127.0.0.1:{found[1]}{container.predict_route}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """End all containers at the end of the block."""
        try:
            yield self
        finally:
            for process in self._processes:
                process.kill()
                process.communicate()

import json
import os

import pytest

from tests.cli import QUICK, tpu_pipelines
from tests.fakes.clock import Clock
from tests.pictures import encode, image_folder  # noqa: F401 (fixtures)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fake(clock):
    """Vertex AI, which does not run what it is sent, at the clock's time."""
    from tests.fakes.execution import Simulate
    from tests.fakes.vertex import FakeVertex

    with FakeVertex(Simulate(), clock=clock.now) as fake:
        yield fake


@pytest.fixture
def federated(fake, tmp_path, monkeypatch):
    """What a user sets in a CI system, with the fake in the service's place."""
    for name, value in fake.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pipelines.compile.IMAGE", os.environ["TPU_PIPELINES_IMAGE"])  # It was read by now.


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A workspace with one finished digits run in it, and what the command printed."""
    workspace = tmp_path_factory.mktemp("workspace")
    done = tpu_pipelines("run", "digits", "--workspace", str(workspace), "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    return workspace, json.loads(done.stdout), done

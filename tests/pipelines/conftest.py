import functools
import json
import os
import subprocess

import dateutil.parser
import kfp_server_api
import pytest

from tests.cli import QUICK, steps_here, tpu_pipelines_here
from tests.components.conftest import judged_here
from tests.fakes.clock import Clock
from tests.pictures import encode, image_folder  # noqa: F401 (fixtures)
from tests.sharing import made_once


@pytest.fixture(scope="session", autouse=True)
def quick_client():
    """KFP's client reads answers as ever, but parses a time once, and leaves the loggers alone.

    It sets all of them for every part of an answer, of which a run has hundreds: twice the time of all else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kfp_server_api.Configuration, "debug", False)
        parse, cached = dateutil.parser.parse, functools.cache(dateutil.parser.parse)
        # S3's client asks with a mapping of zones, which no cache takes.
        patch.setattr(dateutil.parser, "parse", lambda text, **how: parse(text, **how) if how else cached(text))
        yield


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
    monkeypatch.setattr(
        "tpu_pipelines.pipeline.compile.IMAGE", os.environ["TPU_PIPELINES_IMAGE"]
    )  # It was read by now.


@pytest.fixture(scope="session")
def finished_run(warm, tmp_path_factory):
    """A workspace with one finished digits run in it, and what the command printed. Not to be written to."""

    def make(folder):
        with steps_here(), judged_here(), warm.takes_over():
            done = tpu_pipelines_here("run", "digits", "--workspace", str(folder / "workspace"), "--json", *QUICK)
        assert done.returncode == 0, done.stderr
        (folder / "printed.json").write_text(json.dumps([done.args, done.returncode, done.stdout, done.stderr]))

    folder = made_once(tmp_path_factory, "digits-run", make)
    done = subprocess.CompletedProcess(*json.loads((folder / "printed.json").read_text()))
    return folder / "workspace", json.loads(done.stdout), done

import json

import pytest

from tests.cli import QUICK, tpu_pipelines


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A workspace with one finished digits run in it, and what the command printed."""
    workspace = tmp_path_factory.mktemp("workspace")
    done = tpu_pipelines("run", "digits", "--workspace", str(workspace), "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    return workspace, json.loads(done.stdout), done

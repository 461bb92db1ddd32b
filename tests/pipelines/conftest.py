import contextlib
import datetime
import functools
import io
import json
import multiprocessing
import os
import subprocess
import types
from pathlib import Path

import dateutil.parser
import kfp_server_api
import pytest

from tests.components.conftest import judged_here
from tests.support.cli import QUICK, set_environment, steps_here, tpu_pipelines_here
from tests.support.drawings import drawn
from tests.support.fakes.clock import Clock
from tests.support.pictures import encode, image_folder  # noqa: F401 (fixtures)
from tests.support.sharing import made_once
from tpu_components.core.examples.artifacts import Manifest, Split
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.results.evaluation_info import Decision, EvaluatedModel, Evaluation
from tpu_components.export_model.exporting import Trial
from tpu_pipelines.config.steps import STEP_TABLE
from tpu_pipelines.runs import prerequisites


@pytest.fixture(scope="session", autouse=True)
def quick_client():
    """KFP's client reads answers as ever, but parses times in C, counts the CPUs once, and leaves the loggers alone.

    It does all this for every part of an answer, of which a run has hundreds: twice the time of all else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kfp_server_api.Configuration, "debug", False)
        patch.setattr(multiprocessing, "cpu_count", functools.cache(multiprocessing.cpu_count))
        parse = dateutil.parser.parse

        def parse_quickly(text, **how):
            """As dateutil does; S3's client asks for zones of its own."""
            with contextlib.suppress(ValueError, TypeError):
                if not how:
                    return datetime.datetime.fromisoformat(text)
            return parse(text, **how)

        patch.setattr(dateutil.parser, "parse", parse_quickly)
        yield


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fake(clock):
    """Vertex AI, which does not run what it is sent, at the clock's time."""
    from tests.support.fakes.execution import Simulate
    from tests.support.fakes.vertex import FakeVertex

    with FakeVertex(Simulate(), clock=clock.now) as fake:
        yield fake


@pytest.fixture
def federated(fake, tmp_path, monkeypatch):
    """What a user sets in a CI system, with the fake in the service's place."""
    set_environment(monkeypatch, fake.environment(tmp_path))


@pytest.fixture
def no_sign_in(tmp_path, monkeypatch):
    """KFP's client finds no sign-in of whoever runs the tests."""
    monkeypatch.setattr("kfp.client.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    for name in [name for name in os.environ if name.startswith(("KF_PIPELINES_", "TPU_PIPELINES_KFP"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def models_here(monkeypatch):
    """Checks of a configuration build its model in this process, which has TensorFlow; they print nothing."""
    monkeypatch.setattr(prerequisites, "in_fresh_process", _call_in_silence)


def _call_in_silence(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return function(*arguments)


@pytest.fixture
def quick_models(monkeypatch):
    """Checks of a configuration build no model: the process that does has tests of its own."""
    monkeypatch.setattr("tpu_pipelines.checks.check_list.check_model", lambda config, interface, is_timed: Trial(()))


@pytest.fixture
def empty_steps(monkeypatch):
    """Local runs whose steps compute nothing: kfp.local starts them, and they leave the files that a run reads.

    `ran` are the steps that did not come from the cache. `failure` is what the first step leaves instead, if set.
    """
    steps = types.SimpleNamespace(ran=[], failure=None)
    split, kind = Split(3, (2, 1), ()), ImageInput((8, 8, 1), "raw")
    manifest = Manifest("f" * 64, "made", "none", kind, "classification", {}, ("a", "b"), {"train": split})
    evaluation = Evaluation(
        split="test",
        dataset_fingerprint="f" * 64,
        model=EvaluatedModel("cnn", {}, "best", "d" * 64),
        class_names=("a", "b"),
        gate=Decision(False, ()),
        challenger={},
        champion=None,
        registered_champion=None,
    )

    def run_step(full_command, env_vars=None):
        given = json.loads(full_command[full_command.index("--executor_input") + 1])["outputs"]
        step = full_command[-1]
        print(f"a library speaks\n[{step}] starts")
        steps.ran.append(step)
        artifacts = {name: listed["artifacts"][0] for name, listed in given["artifacts"].items()}
        for artifact in artifacts.values():
            Path(artifact["uri"]).mkdir(parents=True)
        output = Path(artifacts[STEP_TABLE[step].artifact]["uri"])
        if steps.failure:
            steps.failure.save(output.parent)
            return 1
        if step == "create_tfrecords":
            manifest.save(output)
        if step == "evaluate_model":
            evaluation.save(output)
        answer = {"artifacts": given["artifacts"], "parameterValues": {"Output": 0}}
        Path(given["outputFile"]).write_text(json.dumps(answer))
        return 0

    monkeypatch.setattr("kfp.local.subprocess_task_handler.run_local_subprocess", run_step)
    return steps


@pytest.fixture(scope="session")
def finished_run(warm, tmp_path_factory):
    """A workspace with one finished digits run in it, and what the command printed. Not to be written to."""

    def make(folder):
        with drawn(), steps_here(), judged_here(), warm.takes_over():
            done = tpu_pipelines_here("run", "digits", "--workspace", str(folder / "workspace"), "--json", *QUICK)
        assert done.returncode == 0, done.stderr
        (folder / "printed.json").write_text(json.dumps([done.args, done.returncode, done.stdout, done.stderr]))

    folder = made_once(tmp_path_factory, "digits-run", make)
    done = subprocess.CompletedProcess(*json.loads((folder / "printed.json").read_text()))
    return folder / "workspace", json.loads(done.stdout), done

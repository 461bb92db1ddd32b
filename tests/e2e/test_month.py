"""A month of retraining by the real clients, steps and commands, on local servers: the right runs, and each once."""

import contextlib
import datetime
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.support.cli import set_environment
from tests.support.fakes.execution import RunOnCpu
from tests.support.fakes.vertex import FakeVertex, canonical
from tpu_components.core.base.retries import Backoff
from tpu_pipelines.cli.main import main
from tpu_pipelines.pipeline import cache_keys
from tpu_pipelines.platforms import jobs
from tpu_pipelines.retraining import retrain

ROOT = "projects/my-project/locations/us-central1/models"
NUM_TESTED = 400
# A quarter of a minute each; whoever trains on shuffled or dark pictures must be found out by 400 examples.
CONFIG = """
name: digits
data: {source: "npz:gs://bucket/data/digits.npz", validation_fraction: 0.0}
model: {name: digits_cnn, parameters: {filters: 8, units: 32}}
training: {epochs: 3, learning_rate: 0.002}
machine: v5e-4
preflight: false
export: {calibration_examples: 50}
"""
REGISTRY = (
    f"deploy.registry=vertex deploy.serving_image=europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}"
)
# In a process of its own, as a runner has it, and on the day that the test says.
_AS_CI = """
import datetime, sys
from tpu_pipelines.retraining import retrain
from tpu_pipelines.platforms import jobs
shift = datetime.timedelta(seconds=float(sys.argv.pop(1)))
for module in (jobs, retrain):
    module.now = lambda: datetime.datetime.now(datetime.UTC) + shift
from tpu_pipelines.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Month:
    """A clock that goes on by itself, and by whole days where the test says so."""

    def __init__(self) -> None:
        self.shift = datetime.timedelta()

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + self.shift

    def seconds(self) -> float:
        return self.now().timestamp()

    def sleep(self, seconds: float) -> None:
        self.shift += datetime.timedelta(seconds=seconds)


def store(bucket, num_trained, shuffled=False, dark=False):
    """The digits of a day: the tests stay, examples to train on come at the end, and some days they are spoilt."""
    data = load_digits()
    images, labels = data.images.astype(np.uint8)[..., None] * 15, data.target
    test, train = slice(0, NUM_TESTED), slice(NUM_TESTED, NUM_TESTED + num_trained)
    spoilt_labels = np.random.default_rng(0).permutation(labels[train]) if shuffled else labels[train]
    spoilt_images = images[train] // 16 if dark else images[train]
    content = io.BytesIO()
    np.savez(content, x_train=spoilt_images, y_train=spoilt_labels, x_test=images[test], y_test=labels[test])
    bucket.blob("data/digits.npz").upload_from_string(content.getvalue())


@pytest.fixture
def month():
    return Month()


@pytest.fixture
def cloud(bucket, month, tmp_path, monkeypatch):
    """Vertex AI, on which every job really runs, and what a CI system sets to reach it."""
    with FakeVertex(RunOnCpu(tmp_path / "jobs"), clock=month.now) as fake:
        set_environment(monkeypatch, {**fake.environment(tmp_path), "TPU_PIPELINES_BUCKET": "gs://bucket/pipelines"})
        for module in (jobs, retrain):
            monkeypatch.setattr(module, "now", month.now)

        class Patient(Backoff):  # A class, because annotations name it.
            def __init__(self, *options, **named):
                super().__init__(*options, **{"sleep": month.sleep, "clock": month.seconds, **named})

        monkeypatch.setattr("tpu_components.core.base.retries.Backoff", Patient)
        yield fake


@pytest.fixture
def ci(cloud, month, tmp_path, capfd):
    """A function that does what CI does on a day; gives the exit code, whether a run was needed, and the run."""
    (tmp_path / "digits.yaml").write_text(CONFIG)
    waiting = ["--when", "changed,older-than=60d", "--wait", "--poll-seconds", "0.5", "--json"]

    def command(*overrides):
        words = ["retrain", str(tmp_path / "digits.yaml"), "--target", "vertex"]
        return [*words, *(word for text in (*REGISTRY.split(), *overrides) for word in ("--set", text))]

    def run(*overrides):
        code = main([*command(*overrides), *waiting])
        out, err = capfd.readouterr()
        run.said = err
        said = json.loads(out) if out else {"retrain": {"needed": None}}
        return code, said["retrain"]["needed"], said.get("job_id")

    def process(*overrides):
        """The same in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", _AS_CI, str(month.shift.total_seconds()), *command(*overrides), *waiting],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def history(*arguments):
        assert main([*command(), "--history", *arguments]) == 0
        return capfd.readouterr().out

    run.process, run.history = process, history
    return run


def champion(fake):
    """The number of the version that is the champion; empty if there is none."""
    versions = fake.models.get(canonical(f"{ROOT}/digits"), [])
    return "".join(one.version_id for one in versions if "champion" in one.version_aliases)


@pytest.mark.slow  # Ten trainings as jobs of their own: eight minutes on 2 idle cores.
@pytest.mark.timeout(3600)
def test_a_month_has_the_right_runs_and_each_once(cloud, ci, month, bucket, monkeypatch, tmp_path, capfd):
    began: dict[int, list[str]] = {}
    champions: dict[int, str] = {}

    @contextlib.contextmanager
    def day(number):
        """One day: what began on it, and who is the champion at its end, is kept."""
        month.shift += datetime.timedelta(days=number - 1) - (month.now() - first_day)
        before = set(cloud.pipeline_jobs)
        yield
        began[number] = sorted(set(cloud.pipeline_jobs) - before)
        champions[number] = champion(cloud)
        with capfd.disabled():
            print(f"day {number}: {len(began[number])} runs, champion {champions[number] or 'none'}", flush=True)

    first_day = month.now()
    quiet: list[int] = []

    def nothing_new(*days, overrides=()):
        for number in days:
            quiet.append(number)
            with day(number):
                _, needed, _ = ci(*overrides)
                assert needed is False, ci.said

    store(bucket, 500)
    with day(1):
        code, needed, _ = ci()
        assert (code, needed) == (0, True), ci.said
    nothing_new(2, 3, 4)

    with day(5):  # The data have grown.
        store(bucket, 800)
        _, needed, _ = ci()
        assert needed, ci.said
    nothing_new(6, 7)

    with day(8):  # Somebody has shuffled the labels.
        store(bucket, 800, shuffled=True)
        code, needed, _ = ci()
        assert (code, needed) == (3, True), ci.said
    with day(9):  # And put them right: that run has been.
        store(bucket, 800)
        _, needed, job_id = ci()
        assert not needed, ci.said
        assert [name.rpartition("/")[2] for name in began[5]] == [job_id]
    quiet.append(9)
    nothing_new(10)

    with day(11):  # The pictures are far too dark.
        store(bucket, 800, dark=True)
        code, needed, _ = ci()
        assert (code, needed) == (3, True), ci.said
    quiet.append(12)
    with day(12):
        store(bucket, 800)
        assert ci()[1] is False, ci.said
    nothing_new(13)

    with day(14):  # CI starts the job twice.
        store(bucket, 1000)
        both = [ci.process(), ci.process()]
        said = [json.loads(one.communicate(timeout=600)[0]) for one in both]
        assert len({one["job_id"] for one in said}) == 1
    nothing_new(15)

    with day(16):  # The runner is killed while it waits.
        store(bucket, 1200)
        before = len(cloud.pipeline_jobs)
        killed = ci.process()
        while len(cloud.pipeline_jobs) == before:
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.2)
        time.sleep(2)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        _, needed, _ = ci()
        assert not needed, "it goes on"
    nothing_new(17)

    with day(18):  # An hour without an answer: one call gives up, the next goes on.
        store(bucket, 1300)
        over = month.now() + datetime.timedelta(hours=1)
        cloud.fail_while(lambda: month.now() < over, "UNAVAILABLE")
        tries = 0
        while (result := ci())[0] == 1:
            tries += 1
            assert "Gave up after" in ci.said
        assert 3 <= tries <= 5
        assert result[1], ci.said
        cloud.recover()
    nothing_new(19, 20)

    stronger = ("training.epochs=12",)
    with day(21):  # A better model.
        code, needed, _ = ci(*stronger)
        assert (code, needed) == (0, True), ci.said
    nothing_new(22, overrides=stronger)

    equal = (*stronger, "training.seed=7")
    with day(23):  # Another that is as good.
        code, needed, _ = ci(*equal)
        assert (code, needed) == (3, True), ci.said
    nothing_new(24, 25, overrides=equal)

    version = cache_keys.code_version
    monkeypatch.setattr(cache_keys, "code_version", lambda step: f"{version(step)} and a change")
    with day(26):  # The code of the steps is another.
        _, needed, _ = ci(*equal)
        assert needed, ci.said
        assert "code" in ci.said
    nothing_new(27, 28, 29, 30, overrides=equal)

    assert {number for number, names in began.items() if names} == {1, 5, 8, 11, 14, 16, 18, 21, 23, 26}
    assert all(len(names) <= 1 for names in began.values()), began
    assert (champions[8], champions[11]) == (champions[7], champions[10]), "a bad model was promoted"
    assert champions[21] != champions[20], "a better one was not"
    assert champions[23] == champions[21], "an equal one was"
    assert all(champions[number] == champions[number - 1] for number in quiet)

    known = json.loads(ci.history("--json"))
    ran = {entry["run"] for entry in known if entry["needed"]}
    assert ran == {name.rpartition("/")[2] for names in began.values() for name in names}
    assert {entry["outcome"] for entry in known} <= {"promoted", "not promoted"}, "each is known to its end"
    page = Path(os.environ.get("MONTH_PAGE") or tmp_path / "retrain.html")
    ci.history("--output", str(page))
    text = " ".join(page.read_text().split())
    assert f"{len(known)} decisions, 10 runs, " in text
    assert text.count("not promoted") >= 3

"""Claims about what is sent, found, waited for and tried again; the platform is a dictionary."""

import dataclasses
import operator
import re
import subprocess
import sys

import pytest
import yaml

from tests.support.fakes.clock import Clock
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, OutageError, PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import parse_machine
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline import compile as compiling
from tpu_pipelines.platforms.jobs import Job, Retrying, Submission, comparable
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.submission.submit import RunPlan, describe, plan_submission, submit, wait, without_cache

SETTINGS = Settings(project="my-project", region="us-central1", bucket="gs://my-bucket")  # Has v5e and v6e.
MACHINES = ("v5e-4", "v6e-4", "v5e-8")


class Platform:
    """A `Platform` that keeps its jobs in a dictionary; `script` says what becomes of one at each look at it."""

    def __init__(self, script=None, outages=0):
        self.jobs, self.created, self.cancelled = {}, [], []
        self.script, self.outages = script or {}, outages

    def _outage(self):
        if self.outages:
            self.outages -= 1
            raise OutageError("503 Try later.")

    def create(self, job):
        self._outage()
        if job.job_id not in self.jobs:
            self.created.append(job.job_id)
            self.jobs[job.job_id] = Submission(job.job_id, job.name, State.PENDING, job.machine.name)
        return self.jobs[job.job_id]

    def get(self, job_id):
        self._outage()
        if job_id in self.jobs and self.script.get(job_id):
            self.jobs[job_id] = dataclasses.replace(self.jobs[job_id], **self.script[job_id].pop(0))
        return self.jobs.get(job_id)

    def latest(self, name):
        return None

    def cancel(self, job_id):
        self._outage()
        self.cancelled.append(job_id)

    def find_output(self, job_id, step, output):
        return ""

    def describe(self, job):
        return {}


def make_plan(*, machines=MACHINES, max_wait_seconds=100):
    fallbacks = list(machines[1:])
    first = parse_machine({"name": machines[0], "max_wait_seconds": max_wait_seconds, "fallbacks": fallbacks})
    return RunPlan(
        tuple(
            Job("digits-0" + (f"-f{i}" if i else ""), "digits", "", machine, {})
            for i, machine in enumerate([first, *first.fallbacks])
        )
    )


def follow(plan, platform, **arguments):
    """Submit and wait, without waiting; the states that were seen."""
    seen, clock = [], Clock()
    end = wait(plan, submit(plan, platform), platform, seen.append, sleep=clock.sleep, **arguments)
    return end, [(one.job_id, str(one.state)) for one in seen]


LACKING = {"state": State.FAILED, "lacks_machine": True}
FAILED = {"state": State.FAILED, "error": "evaluate_model: no"}
DONE = {"state": State.SUCCEEDED}


def test_a_run_is_followed_to_its_end():
    platform = Platform({"digits-0": [{"state": State.RUNNING}, DONE]})
    end, seen = follow(make_plan(), platform)
    assert end.state is State.SUCCEEDED
    assert seen == [("digits-0", "pending"), ("digits-0", "running"), ("digits-0", "succeeded")]
    assert platform.created == ["digits-0"]


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_what_was_sent_before_is_found_however_it_fares(state):
    plan, platform = make_plan(), Platform()
    submit(plan, platform)
    platform.jobs["digits-0"] = dataclasses.replace(platform.jobs["digits-0"], state=state)
    assert submit(plan, platform).state is state
    assert platform.created == ["digits-0"]


def test_a_run_that_has_ended_starts_again_only_when_asked_to():
    plan, platform = make_plan(), Platform()
    submit(plan, platform)
    for number, state in ((2, State.FAILED), (3, State.SUCCEEDED), (4, State.CANCELLED)):
        current = submit(plan, platform).job_id
        platform.jobs[current] = dataclasses.replace(platform.jobs[current], state=state)
        assert submit(plan, platform, again=True).job_id == f"digits-0-r{number}"
        assert submit(plan, platform, again=True).job_id == f"digits-0-r{number}"  # It runs: there is nothing to start.
        assert submit(plan, platform).job_id == f"digits-0-r{number}"
    assert platform.created == ["digits-0", "digits-0-r2", "digits-0-r3", "digits-0-r4"]


def test_where_a_machine_cannot_be_had_the_next_is_tried():
    platform = Platform({"digits-0": [LACKING], "digits-0-f1": [LACKING], "digits-0-f2": [DONE]})
    end, _ = follow(make_plan(), platform)
    assert (end.state, end.machine) == (State.SUCCEEDED, "v5e-8")
    assert platform.created == ["digits-0", "digits-0-f1", "digits-0-f2"]


def test_where_no_machine_can_be_had_the_run_fails():
    platform = Platform({"digits-0": [LACKING], "digits-0-f1": [LACKING], "digits-0-f2": [LACKING]})
    end, _ = follow(make_plan(), platform)
    assert (end.job_id, end.state, end.lacks_machine) == ("digits-0-f2", State.FAILED, True)
    assert submit(make_plan(), platform).job_id == "digits-0-f2"
    assert submit(make_plan(), platform, again=True).job_id == "digits-0-r2"
    platform.script = {"digits-0-r2": [LACKING], "digits-0-r2-f1": [DONE]}
    assert follow(make_plan(), platform)[0].job_id == "digits-0-r2-f1"


def test_another_failure_tries_no_other_machine():
    platform = Platform({"digits-0": [FAILED]})
    assert follow(make_plan(), platform)[0].error == "evaluate_model: no"
    assert platform.created == ["digits-0"]


def test_a_machine_that_is_waited_for_too_long_is_given_up_and_the_next_one_tried():
    looks = [{"waited_seconds": 60.0}, {"waited_seconds": 120.0}, {"waited_seconds": 140.0}, {"state": State.CANCELLED}]
    platform = Platform({"digits-0": looks, "digits-0-f1": [DONE]})
    end, _ = follow(make_plan(), platform)
    assert end.job_id == "digits-0-f1"
    assert set(platform.cancelled) == {"digits-0"}


def test_a_run_that_succeeds_while_it_is_given_up_is_kept():
    platform = Platform({"digits-0": [{"waited_seconds": 120.0}, {"state": State.SUCCEEDED, "waited_seconds": 0.0}]})
    assert follow(make_plan(), platform)[0].job_id == "digits-0"
    assert platform.created == ["digits-0"]


def test_who_is_killed_between_giving_up_and_the_next_machine_goes_on_there():
    plan, platform = make_plan(), Platform({"digits-0-f1": [DONE]})
    submit(plan, platform)
    ended = {"state": State.CANCELLED, "waited_seconds": 120.0}
    platform.jobs["digits-0"] = dataclasses.replace(platform.jobs["digits-0"], **ended)
    assert follow(plan, platform)[0].job_id == "digits-0-f1"


def test_a_job_on_the_next_machine_is_found_whatever_the_first_one_says_of_its_end():
    plan, platform = make_plan(), Platform()
    submit(plan, platform)
    platform.create(plan.jobs[1])
    platform.jobs["digits-0"] = dataclasses.replace(platform.jobs["digits-0"], state=State.FAILED)
    assert submit(plan, platform).job_id == "digits-0-f1"
    assert platform.created == ["digits-0", "digits-0-f1"]


def test_a_run_that_somebody_cancels_stays_cancelled():
    platform = Platform({"digits-0": [{"waited_seconds": 60.0}, {"state": State.CANCELLED, "waited_seconds": 60.0}]})
    assert follow(make_plan(), platform)[0].state is State.CANCELLED
    assert platform.created == ["digits-0"]


@pytest.mark.parametrize(("machines", "max_wait_seconds"), [(MACHINES, 0), (MACHINES[:1], 100)])
def test_without_a_limit_or_another_machine_one_waits_on(machines, max_wait_seconds):
    platform = Platform({"digits-0": [{"waited_seconds": 1e6}, DONE]})
    end, _ = follow(make_plan(machines=machines, max_wait_seconds=max_wait_seconds), platform)
    assert end.job_id == "digits-0"
    assert platform.cancelled == []


def test_a_run_that_is_deleted_meanwhile_is_an_error():
    plan, platform = make_plan(), Platform()
    submission = submit(plan, platform)
    del platform.jobs["digits-0"]
    with pytest.raises(PlatformError, match=r"The run digits-0 was deleted"):
        wait(plan, submission, platform, sleep=Clock().sleep)


def test_outages_are_waited_out_longer_and_longer(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    clock, told = Clock(), []
    backoff = Backoff(sleep=clock.sleep, clock=clock.seconds, report=told.append)
    platform = Platform({"digits-0": [DONE]}, outages=8)
    plan = make_plan()
    assert submit(plan, Retrying(platform, backoff)).job_id == "digits-0"
    assert clock.slept == [1, 2, 4, 8, 16, 32, 60, 60]
    assert told[2] == "503 Try later. Trying again in 4 s."
    assert platform.created == ["digits-0"]


def test_waits_differ_between_those_who_wait(monkeypatch):
    monkeypatch.setattr("random.random", iter([0.0, 0.5, 1.0]).__next__)
    clock = Clock()
    backoff = Backoff(sleep=clock.sleep, clock=clock.seconds)
    Retrying(Platform(outages=3), backoff).get("digits-0")
    assert clock.slept == [0.5, 1.5, 4.0]


def test_an_outage_without_end_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    clock = Clock()
    backoff = Backoff(sleep=clock.sleep, clock=clock.seconds)
    with pytest.raises(
        PlatformError, match=r"Gave up after 903 s\. Last error: 503 Try later\. .* run the same command again"
    ):
        Retrying(Platform(outages=1000), backoff).get("digits-0")


def test_a_refusal_is_not_tried_again():
    class Refusing(Platform):
        def get(self, job_id):
            raise InputError("403 No.")

    clock = Clock()
    with pytest.raises(InputError, match=r"403 No"):
        Retrying(Refusing(), Backoff(sleep=clock.sleep, clock=clock.seconds)).get("digits-0")
    assert clock.slept == []


def plan_digits(*overrides, settings=SETTINGS):
    return plan_submission(load_config("digits", overrides), PLATFORMS["vertex"], settings)


def preflighted(job):
    """The machine, region and spot that the preflight of a job's pipeline is told."""
    tasks = yaml.safe_load(job.package)["root"]["dag"]["tasks"]
    inputs = tasks["preflight-training"]["inputs"]["parameters"]
    return tuple(inputs["paid"]["runtimeValue"]["constant"][name] for name in ("machine", "region", "spot"))


def test_a_plan_has_a_job_for_each_machine():
    machine = "machine={name: v5e-4, spot: true, fallbacks: [v6e-4, {name: v5e-4, region: us-east1}]}"
    jobs = plan_digits(machine).jobs
    assert [job.machine.name for job in jobs] == ["v5e-4", "v6e-4", "v5e-4"]
    assert [job.machine.region for job in jobs] == ["us-central1", "us-central1", "us-east1"]
    assert [job.labels["tpu_pipelines_fallback"] for job in jobs] == ["0", "1", "2"]
    assert [job.labels["tpu_pipelines_machine"] for job in jobs] == ["v5e-4", "v6e-4", "v5e-4"]
    first = jobs[0].job_id
    assert re.fullmatch(r"digits-[0-9a-f]{12}", first)
    assert [job.job_id for job in jobs] == [first, f"{first}-f1", f"{first}-f2"]
    assert "ct6e-standard-4t" in jobs[1].package
    assert "ct6e-standard-4t" not in jobs[2].package
    expected = [(job.machine.name, job.machine.region, True) for job in jobs]
    assert [preflighted(job) for job in jobs] == expected, "each for its own price and memory"


@pytest.mark.parametrize(
    ("target", "machine", "root"),
    [
        ("vertex", "v5e-4", "gs://my-bucket"),
        ("kubeflow", "v5e-4", "/mnt/shared"),
        ("kubeflow", "v5e-16", "/mnt/shared"),
    ],
)
def test_a_run_that_is_forced_trains_anew(target, machine, root):
    """It ignores the checkpoints of earlier runs; its restarts and fallbacks share a folder of checkpoints."""
    settings = Settings(region="us-central1", bucket="gs://my-bucket")
    if target == "kubeflow":
        settings = dataclasses.replace(settings, volumes={"shared": "/mnt/shared"})
    overrides = [f"machine={{name: {machine}, fallbacks: [v5e-8]}}"]
    plan = plan_submission(load_config("digits", overrides), PLATFORMS[target], settings)

    def folders(plan):
        found = [re.findall(rf"{root}/{plan.checkpoints}([\w/]*)", job.package) for job in plan.jobs]
        assert all(found)
        return {folder.removesuffix("/hosts") for of_job in found for folder in of_job}

    assert folders(plan) == {""}
    (folder,) = folders(without_cache(plan))
    assert re.fullmatch(r"/\d{8}T\d{12}", folder)


def test_the_same_run_has_the_same_id_in_another_process_and_folder(tmp_path):
    code = (
        "from tpu_components.core.base.container_images import Images\n"
        "from tpu_pipelines.config.configuration import load_config\n"
        "from tpu_pipelines.config.settings import Settings\n"
        "from tpu_pipelines.platforms.platform import PLATFORMS\n"
        "from tpu_pipelines.submission.submit import plan_submission\n"
        f"settings = {SETTINGS!r}\n"
        "plan = plan_submission(load_config('digits', ['machine=v5e-4']), PLATFORMS['vertex'], settings)\n"
        "print(plan.jobs[0].job_id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    here = plan_digits("machine=v5e-4").jobs[0].job_id
    assert re.fullmatch(r"digits-[0-9a-f]{12}", here)
    assert done.stdout.strip() == here


@pytest.mark.parametrize("override", ["training.epochs=31", "gate.minimum.accuracy=0.5", "name=other", "machine=v5e-8"])
def test_another_configuration_has_another_id(override):
    assert plan_digits("machine=v5e-4", override).jobs[0].job_id != plan_digits("machine=v5e-4").jobs[0].job_id


def test_where_else_it_may_run_and_how_long_to_wait_make_it_no_other_run():
    patient = "machine={name: v5e-4, max_wait_seconds: 60, fallbacks: [v6e-4]}"
    assert plan_digits(patient).jobs[0].job_id == plan_digits("machine=v5e-4").jobs[0].job_id


def test_how_long_to_wait_makes_no_other_run_of_one_that_is_registered():
    deploy = (
        "deploy.registry=projects/my-project/locations/us-central1/models",
        "deploy.serving_image=europe-docker.pkg.dev/p/r/i@sha256:" + 64 * "0",
    )
    ids = {
        plan_digits(f"machine={{name: v5e-4, max_wait_seconds: {seconds}}}", *deploy).jobs[0].job_id
        for seconds in (60, 600)
    }
    assert len(ids) == 1


def test_a_cluster_has_no_region():
    """Settings of both platforms side by side: us-east5 does not train on v5e, which is Vertex's affair."""
    settings = Settings(kfp_host="https://kfp.example.com", region="us-east5")
    plan = plan_submission(load_config("digits", ["machine=v5e-4"]), PLATFORMS["kubeflow"], settings)
    assert plan.jobs[0].machine.region == ""
    with pytest.raises(InputError, match="us-east5 does not offer v5e for training"):
        plan_digits("machine=v5e-4", settings=dataclasses.replace(SETTINGS, region="us-east5"))


def test_data_on_cloud_storage_are_known_by_what_the_bucket_says_of_them(bucket):
    overrides = ("machine=v5e-4", "data.source=images:gs://bucket/photos", "training.batch_size_per_replica=1")

    def put(name, content):
        bucket.blob(f"photos/{name}").upload_from_string(content)

    for name in (f"{kind}/{number}.png" for kind in ("cats", "dogs") for number in range(10, 20)):
        put(name, b"picture")
    first = plan_digits(*overrides).jobs[0].job_id
    assert plan_digits(*overrides).jobs[0].job_id == first
    put("dogs/3.png", b"picture")
    more = plan_digits(*overrides).jobs[0].job_id
    put("dogs/3.png", b"another")
    assert len({first, more, plan_digits(*overrides).jobs[0].job_id}) == 3


def test_a_run_without_a_machine_is_refused():
    with pytest.raises(InputError, match=r"expected a machine to train on, received none"):
        plan_digits("machine=null")


def test_a_fallback_that_cannot_be_compiled_is_refused_before_anything_is_sent():
    machine = "machine={name: v5e-4, region: us-west1, fallbacks: [{name: v6e-4, region: us-west1}]}"
    with pytest.raises(InputError, match=r"fallbacks\[0\]: us-west1 does not offer v6e for training"):
        plan_digits(machine)


@pytest.mark.parametrize("setting", ["secrets", "volumes"])
def test_what_a_pod_mounts_makes_it_another_run(setting):
    settings = Settings(kfp_host="http://kfp", bucket="gs://my-bucket/runs")
    config = load_config("digits", ["machine=v5e-4"])
    plain, mounting = (
        plan_submission(config, PLATFORMS["kubeflow"], one).jobs[0]
        for one in (settings, dataclasses.replace(settings, **{setting: {"mine": "/mnt/mine"}}))
    )
    assert plain.job_id != mounting.job_id
    contents = [{"labels": job.labels, "pipelineSpec": job.package} for job in (plain, mounting)]
    assert operator.ne(*comparable(*contents)), "a schedule of the one is not left as it is for the other"


def _plan_of(config, platform="vertex"):
    return plan_submission(config, PLATFORMS[platform], SETTINGS)


def _prices(config, plan):
    """What a dry run says of the price."""
    return [finding.said for finding in describe(config, plan) if finding.about == "price"]


@pytest.mark.slow  # Compiles for two TPUs: half a minute.
def test_prices_are_those_of_preflight_for_every_machine():
    config = load_config("digits", ["machine={name: v5e-4, fallbacks: [v6e-4]}", "training.epochs=1"])
    first, second, *_ = _prices(config, _plan_of(config))
    assert first.startswith("fits v5e-4 (<1% of its memory), ")
    assert second.startswith("fits v6e-4 ")
    # Four hours, after which the training is stopped, of 4 × $1.20 × 1.15.
    assert first.endswith(" expected per run, plus start-up, at most $22.08, at Vertex AI's price")
    machine = _prices(config, _plan_of(config, "kubeflow"))[0]
    # A cluster takes no estimate: a day of 4 × $1.20.
    assert machine.endswith(" expected per run, plus start-up, at most $115.20, at Compute Engine's list price")


def test_of_a_gpu_the_price_of_an_hour_and_of_the_time_limit_are_told():
    config = load_config("digits", ["machine={name: l4-1, region: us-central1, spot: true}"])
    (told,) = _prices(config, _plan_of(config))
    assert told.startswith("may fit l4-1: weights, optimizer state and a batch take <1% of its memory;")
    # A day of $0.43623 × 1.15.
    assert told.endswith("; $0.50 per hour, at most $12.04, at Vertex AI's price")


def test_a_price_that_cannot_be_known_says_why():
    config = load_config("digits", ["machine=v5e-4"])
    plan = dataclasses.replace(_plan_of(config), data=None)
    assert _prices(config, plan) == ["unknown until the data are downloaded: tpu-pipelines preflight digits"]
    config = load_config("digits", ["machine=v5e-4", "preflight=false"])
    plan = _plan_of(config)
    assert _prices(config, plan) == ["preflight is switched off"]


def test_a_bucket_is_listed_once_and_before_any_machine_is_compiled_for(bucket, monkeypatch):
    for name in (f"{kind}/{number}.png" for kind in ("cats", "dogs") for number in range(10)):
        bucket.blob(f"photos/{name}").upload_from_string(b"picture")
    done = []

    def record(module, name, word):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (done.append(word), real(*arguments))[1])

    record(storage, "each_file", "list")
    record(compiling, "compile_pipeline", "compile")
    machine, batch = "machine={name: v5e-4, fallbacks: [v6e-4]}", "training.batch_size_per_replica=1"
    source = "images:gs://bucket/photos"
    config = load_config("digits", [machine, batch, f"data.source={source}", "preflight=false"])
    said = "\n".join(map(str, describe(config, _plan_of(config))))
    assert f"{source}, " in said
    assert "v5e-4 in us-central1, then v6e-4 in us-central1" in said
    assert done == ["list", "compile", "compile"]

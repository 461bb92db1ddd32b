"""The command `doctor`, and what `submit`, `schedule` and `retrain` ask by themselves."""

import json
import re

import pytest

from tests.pipelines.checks.test_doctor_script import AGENT
from tests.support.fakes.google_cloud import COMPUTE, Account, bind
from tpu_pipelines.cli.main import main

MACHINE = ("--set", "machine=v5e-4")
SUBMIT = ("submit", "digits", *MACHINE)


@pytest.fixture
def cloud(fake, federated):
    """A project in which nothing is missing, and whoever submits signed in as a CI system does."""
    member = f"serviceAccount:{COMPUTE}"
    cloud = fake.cloud
    cloud.policy = bind("roles/aiplatform.user", member)
    cloud.buckets["my-bucket"].policy = bind("roles/storage.objectAdmin", member)
    cloud.accounts[COMPUTE] = Account(policy=bind("roles/iam.serviceAccountUser", member))
    return cloud


def test_a_table_says_what_is_there_and_what_to_do(cloud, capfd):
    assert main(["doctor", "digits", "--target", "vertex", *MACHINE]) == 0
    out, err = capfd.readouterr()
    assert "ok       sign-in" in out
    assert re.search(rf"ok       service account +{COMPUTE}\n", out)
    assert "error" not in out + err
    cloud.quotas["CustomModelTrainingV5ETPUPerProjectPerRegion"]["us-central1"] = 0
    assert main(["doctor", "digits", *MACHINE]) == 2
    lines = capfd.readouterr().out.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("error    quota v5e-4"))
    assert lines[place].endswith("CustomModelTrainingV5ETPUPerProjectPerRegion in us-central1 is 0, but 4 are needed")
    assert lines[place + 1].strip().startswith("→ request more: https://console.cloud.google.com/iam-admin/quotas")


def test_the_json_says_the_same(cloud, capfd):
    cloud.images.clear()
    assert main(["doctor", "digits", *MACHINE, "--json"]) == 2
    found = {one["about"]: one for one in json.loads(capfd.readouterr().out)}
    assert found["bucket"]["state"] == "ok"
    assert (found["image"]["state"], "docker push" in found["image"]["remedy"]) == ("error", True)


def test_the_image_of_the_steps_without_a_tpu_is_asked_for_where_it_is_named(cloud, capfd, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_STEPS_IMAGE", f"europe-docker.pkg.dev/my-project/images/small@sha256:{'1' * 64}")
    assert main(["doctor", "digits", *MACHINE, "--json"]) == 2
    found = {one["about"]: one for one in json.loads(capfd.readouterr().out)}
    assert found["image"]["state"] == "ok"
    assert found["steps' image"]["state"] == "error"
    assert "set TPU_PIPELINES_STEPS_IMAGE" in found["steps' image"]["remedy"]
    assert found["steps' image's reader"]["state"] == "ok"


def test_submit_refuses_what_cannot_work_before_it_is_sent(fake, cloud, capfd):
    cloud.images.clear()
    cloud.accounts.pop(COMPUTE)
    assert main([*SUBMIT]) == 2
    _, err = capfd.readouterr()
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: The run was not sent, because it would fail. Missing: image: europe-docker.pkg.dev/")
    assert f"service account: there is no {COMPUTE} → set TPU_PIPELINES_SERVICE_ACCOUNT" in last
    assert fake.calls == []
    assert main([*SUBMIT, "--no-doctor"]) == 0
    assert len(fake.pipeline_jobs) == 1


@pytest.mark.parametrize("command", [("retrain",), ("schedule", "--cron", "0 3 * * *")])
def test_what_sends_a_run_later_or_again_asks_the_same_first(fake, cloud, capfd, command):
    cloud.images.clear()
    assert main([*command, *SUBMIT[1:]]) == 2
    assert "error: The run was not sent, because it would fail. Missing: image: " in capfd.readouterr().err
    assert (fake.pipeline_jobs, fake.schedules) == ({}, {})
    assert main([*command, *SUBMIT[1:], "--dry-run"]) == 0
    assert main([*command, *SUBMIT[1:], "--no-doctor"]) == 0
    assert len(fake.pipeline_jobs) + len(fake.schedules) == 1


def test_submit_hints_at_what_may_do_all_the_same(fake, cloud, capfd):
    cloud.buckets["my-bucket"].location = "EUROPE-WEST4"
    cloud.forbidden = [r"docker\.pkg\.dev"]
    assert main([*SUBMIT]) == 0
    err = capfd.readouterr().err
    assert "hint: bucket: gs://my-bucket is in europe-west4, but runs are in us-central1 → use one in us-" in err
    assert "hint: image: europe-docker.pkg.dev rejected the request: 403" in err
    assert len(fake.pipeline_jobs) == 1


def test_submit_asks_only_what_is_quick(cloud, capfd):
    assert main([*SUBMIT]) == 0
    assert "does not show" not in capfd.readouterr().err
    hosts = {target.split("/")[1] for _, target in cloud.calls}
    assert hosts == {
        "storage.googleapis.com",
        "europe-docker.pkg.dev",
        "iam.googleapis.com",
        "cloudresourcemanager.googleapis.com",  # For the project's number, which is in its default account's name.
    }


def test_the_script_is_a_file_of_commands_for_what_is_missing(cloud, capfd, tmp_path):
    script = tmp_path / "setup.sh"
    cloud.services.discard("aiplatform.googleapis.com")
    assert main(["doctor", "digits", *MACHINE, "--script", str(script)]) == 2
    assert f"bash {script}" in capfd.readouterr().err
    lines = script.read_text().splitlines()
    assert lines[lines.index("# APIs: aiplatform.googleapis.com is not enabled") + 1 :] == [
        "gcloud services enable aiplatform.googleapis.com --project=my-project",
        "gcloud services enable cloudresourcemanager.googleapis.com --project=my-project",
        "gcloud services enable iam.googleapis.com --project=my-project",
        "gcloud beta services identity create --service=aiplatform.googleapis.com --project=my-project",
        f"gcloud projects add-iam-policy-binding my-project --member={AGENT} --role=roles/aiplatform.serviceAgent "
        "--condition=None",
    ]

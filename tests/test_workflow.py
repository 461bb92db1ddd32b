"""The README's workflow gives nobody more than it has to."""

import re

import pytest
import yaml

from pipelines.cli.main import main
from pipelines.starting import _render
from tests.cli import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
BRANCH = "refs/heads/main"


@pytest.fixture(scope="module")
def workflow():
    (text,) = re.findall(r"```yaml\n(# \.github/workflows/.*?)```", README, re.DOTALL)
    return yaml.safe_load(text)


@pytest.fixture(scope="module")
def job(workflow):
    (job,) = workflow["jobs"].values()
    return job


def test_it_runs_on_one_branch_and_one_at_a_time(workflow, job):
    starts = workflow[True]  # YAML 1.1 reads `on` so.
    assert set(starts) == {"push", "schedule"}  # A schedule runs on the default branch.
    assert [f"refs/heads/{branch}" for branch in starts["push"]["branches"]] == [BRANCH]
    assert job["if"] == f"github.ref == '{BRANCH}'"
    assert workflow["concurrency"] == {"group": "retrain", "cancel-in-progress": False}


def test_init_writes_the_same():
    (text,) = re.findall(r"```yaml\n(# \.github/workflows/.*?)```", README, re.DOTALL)
    paths = '[flowers.yaml, "my_models/**"]'
    assert _render("retrain.yml.jinja", config="flowers.yaml", paths=paths) == text


def test_it_may_do_no_more_than_it_has_to(workflow, job):
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read", "id-token": "write"}
    assert job["steps"][0]["with"] == {"persist-credentials": False}
    assert "secrets." not in str(workflow)


def test_what_it_uses_cannot_be_changed_behind_it(job):
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 3
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert "@sha256:" in job["env"]["TPU_PIPELINES_IMAGE"]
    assert "latest" not in job["runs-on"]


def test_it_installs_the_checkout_by_the_lock_before_it_can_get_a_token(job, capsys):
    install, retrain = (step["run"] for step in job["steps"] if "run" in step)
    assert install == "make install"
    recipe = (REPOSITORY / "Makefile").read_text().partition("$(VENV)/.installed:")[2].partition("\n\n")[0]
    first, second = (line for line in recipe.splitlines() if " install " in line)
    assert "--require-hashes -r requirements.lock" in first
    assert {"--no-deps", "--no-build-isolation", "--editable"} <= set(second.split())
    order = [step.get("uses", step.get("run")).split("@")[0] for step in job["steps"]]
    assert order.index("make install") < order.index("google-github-actions/auth")
    program, command, *words = retrain.split()
    assert program == ".venv/bin/tpu-pipelines"
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


def test_the_identity_provider_takes_this_workflow_on_this_branch_alone():
    (condition,) = re.findall(r'--attribute-condition="([^"]+)"', README)
    asked = dict(part.split(" == ") for part in condition.split(" && "))
    assert asked["assertion.ref"] == f"'{BRANCH}'"
    assert asked["assertion.repository_id"].strip("'").isdigit()  # A name can be taken by somebody else one day.
    assert re.fullmatch(rf"'[\w/-]+/\.github/workflows/retrain\.yml@{BRANCH}'", asked["assertion.workflow_ref"])
    (member,) = re.findall(r"--member=(principal\S+)", README)
    assert member.endswith(f":ref:{BRANCH}")
    assert "principalSet" not in README

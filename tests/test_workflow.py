"""Claims about the workflows for CI: they give nobody more than they have to, and every line that they run works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.cli import REPOSITORY, tpu_pipelines_here
from tests.support.fakes.execution import Simulate
from tests.support.fakes.vertex import FakeVertex
from tpu_pipelines.starting.first_configuration import retraining_workflow

WORKFLOWS = {path.stem: path.read_text() for path in (REPOSITORY / ".github" / "workflows").glob("*.yml")}
PARSED = {name: yaml.safe_load(text) for name, text in WORKFLOWS.items()}
JOBS = {(name, job): facts for name, parsed in PARSED.items() for job, facts in parsed["jobs"].items()}
EXAMPLES = REPOSITORY / ".ci" / "examples"
README = (REPOSITORY / ".ci" / "README.md").read_text()
BRANCH = "refs/heads/main"
# Run by `.ci/run` itself, of which this test is a part; in their place stands that they are the very same.
TESTS = "bash .ci/run"
# What a runner has: https://github.com/actions/runner-images, and in a container of Debian apt-get.
ON_RUNNER = {
    # https://cli.github.com/manual/gh_pr_comment
    # https://cli.github.com/manual/gh_release_create
    "gh": """
case "$*" in
  "pr comment 7 --edit-last --create-if-none --body-file -") cat >"$HOME/comment" ;;
  "release create v"*" --verify-tag --notes-file "*)
    echo "$3" >"$HOME/released" && cat "$6" >>"$HOME/released" && shift 6 && ls "$@" >>"$HOME/released" ;;
  *) exit 1 ;;
esac""",
    # A push prints nothing of use; the digest is asked for: https://docs.docker.com/reference/cli/docker/image/inspect/
    "docker": """
case "$1" in
  login) [ "$(cat)" = token ] ;;
  tag) echo "$3" >>"$HOME/pushed" ;;
  push) grep -qx "$2" "$HOME/pushed" ;;
  image) for name; do :; done; echo "${name%:*}@sha256:$(printf 'a%.0s' $(seq 64))" ;;
  *) exit 1 ;;
esac""",
    "apt-get": 'case "$1" in update|install) ;; *) exit 100;; esac',
}
MINE = "name: digits\ndata: {source: sklearn:digits}\nmodel: digits_cnn\nmachine: v5e-4\n"


def steps(job, key):
    return [step for step in JOBS[job]["steps"] if key in step]


@pytest.mark.parametrize(
    ("schema", "files", "more"),
    [
        ("github-workflows", [str(path) for path in (REPOSITORY / ".github" / "workflows").glob("*.yml")], []),
        ("gitlab-ci", [str(EXAMPLES / "gitlab-ci.yml")], ["--data-transform", "gitlab-ci"]),
        ("cloudbuild", [str(EXAMPLES / "cloudbuild.yaml")], []),
    ],
)
def test_each_service_takes_its_files_by_its_own_schema(schema, files, more):
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *more, *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_linter_of_workflows_finds_nothing():
    words = [Path(sys.executable).parent / "zizmor", "--offline", "--no-progress", "--persona", "pedantic"]
    done = subprocess.run([*words, REPOSITORY / ".github"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_retraining_runs_on_one_branch_and_one_at_a_time():
    workflow, submit = PARSED["retrain"], JOBS["retrain", "submit"]
    starts = workflow[True]  # YAML 1.1 reads `on` so.
    assert set(starts) == {"push", "schedule", "workflow_dispatch"}  # A schedule runs on the default branch.
    assert [f"refs/heads/{branch}" for branch in starts["push"]["branches"]] == [BRANCH]
    assert submit["if"].startswith(f"github.ref == '{BRANCH}' && ")
    assert JOBS["retrain", "wait"]["needs"] == "submit"
    assert workflow["concurrency"] == {"group": "retrain", "cancel-in-progress": False}


def test_a_push_to_main_keeps_what_pull_requests_find_and_starts_nothing_else_of_theirs():
    (kept,), (found,) = (
        [step for step in steps(("pull-request", job), "uses") if step["uses"].startswith("actions/cache@")]
        for job in ("warm", "preflight")
    )
    assert kept == found
    assert PARSED["pull-request"][True]["push"] == {"branches": [BRANCH.rpartition("/")[2]]}
    events = {job: JOBS["pull-request", job]["if"] for job in ("warm", "test", "preflight")}
    assert events == {
        "warm": "github.event_name == 'push'",
        "test": "github.event_name == 'pull_request'",
        "preflight": "github.event_name == 'pull_request'",
    }


def test_init_writes_the_ready_workflow_for_a_configuration_of_ones_own():
    assert retraining_workflow("digits") == WORKFLOWS["retrain"]


@pytest.mark.parametrize("config", ["my 'flowers'.yaml", "o #x/flowers.yaml", "a: b.yaml", 'say "x".yaml', "ü\n.yaml"])
def test_the_workflow_names_any_file(config):
    assert yaml.safe_load(retraining_workflow(config))["env"]["CONFIG"] == (
        "${{{{ vars.TPU_PIPELINES_CONFIG || '{}' }}}}".format(config.replace("'", "''"))
    )


def test_no_job_may_do_more_than_it_has_to():
    rights = {name: job["permissions"] for name, job in JOBS.items()}
    assert all(workflow["permissions"] == {} for workflow in PARSED.values())
    assert rights == {
        ("pull-request", "test"): {"contents": "read"},
        ("pull-request", "preflight"): {"contents": "read"},
        ("pull-request", "warm"): {"contents": "read"},
        ("pull-request", "comment"): {"pull-requests": "write"},
        ("release", "test"): {"contents": "read"},
        ("release", "publish"): {"contents": "write", "packages": "write"},
        ("retrain", "submit"): {"contents": "read", "id-token": "write"},
        ("retrain", "wait"): {"contents": "read", "id-token": "write"},
    }
    assert "secrets." not in "".join(WORKFLOWS.values())
    assert "pull_request_target" not in WORKFLOWS["pull-request"]
    assert not steps(("pull-request", "comment"), "uses"), "it may write, so it runs no code of the pull request"


@pytest.mark.parametrize("job", JOBS)
def test_nothing_that_a_job_uses_can_be_changed_behind_it(job):
    for step in steps(job, "uses"):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "latest" not in JOBS[job]["runs-on"]
    assert "${{" not in "".join(step["run"] for step in steps(job, "run")), "a value is no code"
    assert JOBS[job]["timeout-minutes"] < 360  # GitHub ends a job then.


@pytest.mark.parametrize("job", ["submit", "wait"])
def test_the_checkout_is_installed_by_the_lock_before_there_is_a_token(job):
    order = [step.get("uses", step.get("run")).split("@")[0] for step in JOBS["retrain", job]["steps"]]
    assert order.index("make -C .tpu-pipelines install") < order.index("google-github-actions/auth")
    _, ours = (step["with"] for step in steps(("retrain", job), "uses") if "checkout" in step["uses"])
    assert (ours["path"], ours["ref"]) == (".tpu-pipelines", "${{ vars.TPU_PIPELINES_COMMIT || github.sha }}")
    recipe = (REPOSITORY / "Makefile").read_text().partition("$(VENV)/.installed:")[2].partition("\n\n")[0]
    first, second = (line for line in recipe.splitlines() if " install " in line)
    assert "--require-hashes -r requirements.lock" in first
    assert {"--no-deps", "--no-build-isolation", "--editable"} <= set(second.split())


@pytest.mark.parametrize("name", ["cloudbuild.yaml", "gitlab-ci.yml"])
def test_the_examples_run_in_the_images_base_by_digest(name):
    (base,) = re.findall(r"ARG BASE=(\S+)", (REPOSITORY / "docker" / "Dockerfile").read_text())
    used = re.findall(r"(?:image|name): (python\S+)", (EXAMPLES / name).read_text())
    assert set(used) == {base}


def test_the_identity_provider_takes_this_workflow_on_this_branch_alone():
    (condition,) = re.findall(r'--attribute-condition="([^"]+)"', README)
    asked = dict(part.split(" == ") for part in condition.split(" && "))
    assert asked["assertion.ref"] == f"'{BRANCH}'"
    assert asked["assertion.repository_id"].strip("'").isdigit()  # A name can be taken by somebody else one day.
    assert re.fullmatch(rf"'[\w/-]+/\.github/workflows/retrain\.yml@{BRANCH}'", asked["assertion.workflow_ref"])
    (member,) = re.findall(r"--member=(principal\S+)", README)
    assert member.endswith(f":ref:{BRANCH}")
    assert "principalSet" not in README


@pytest.fixture
def runner(tmp_path, storage_server, bucket):
    """A checkout on a runner of CI, signed in to a Vertex AI of its own: a function that runs lines as a step does."""
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    for folder in (checkout, checkout / "base"):
        folder.mkdir()
        for name in ("components", "pipelines", "Makefile", ".venv"):
            (folder / name).symlink_to(Path(sys.prefix) if name == ".venv" else REPOSITORY / name)
        for name in ("pyproject.toml", "requirements.lock"):
            (folder / name).write_bytes((REPOSITORY / name).read_bytes())
            os.utime(folder / name, (0, 0))  # Older than the environment, which `make install` leaves as it is then.
    tools.mkdir()
    for name, script in ON_RUNNER.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    with FakeVertex(Simulate()) as fake:
        fake.require_tokens()
        told = {
            **fake.environment(tmp_path),
            "TPU_PIPELINES_BUCKET": "gs://bucket/pipelines",
            "TPU_PIPELINES_CACHE_DIR": str(tmp_path / "cache"),
            "HOME": str(tmp_path),
            "PATH": f"{tools}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        }

        def run(lines, **environment):
            """The exit code of a step, as GitHub starts one: `bash -e`."""
            (tmp_path / "output").write_text("")
            environment = {**os.environ, **told, **environment}
            lines = lines.replace("https://sts.googleapis.com/v1/token", f"{fake.url}/token")
            done = subprocess.run(
                ["bash", "-e", "-c", lines], cwd=checkout, env=environment, capture_output=True, text=True, check=False
            )
            run.said = done.stdout + done.stderr
            return done.returncode

        run.fake, run.folder, run.checkout = fake, tmp_path, checkout
        yield run


def outputs(runner):
    """What a step has left for those after it."""
    text = (runner.folder / "output").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    return values | dict(re.findall(r"^(\w+)<<END_OF_COMMENT\n(.*)\nEND_OF_COMMENT$", text, re.MULTILINE | re.DOTALL))


def lines_of(workflow, job):
    return [step["run"] for step in steps((workflow, job), "run")]


def test_the_wheels_commands_succeed_in_an_empty_folder(tmp_path):
    recipe = (REPOSITORY / "Makefile").read_text().partition("\nwheel-test: ")[2].partition("\n\n")[0]
    before, _, after = recipe.partition("[local]")  # Then come the commands that train.
    asked = re.findall(r"env/bin/tpu-pipelines (\w+)", before)
    assert asked
    assert "tpu-pipelines run digits" in after
    for command in asked:
        done = tpu_pipelines_here(command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("tag", "dated", "refused"),
    [
        ("v0.1.0", "2026-12-01", ""),
        ("v0.1.0", "unreleased", "still says '## 0.1.0 (unreleased)'"),
        ("v0.1.1", "2026-12-01", "the tag is v0.1.1, and pyproject.toml has version 0.1.0"),
    ],
)
def test_a_tag_of_this_version_is_released_with_its_notes_wheel_and_images_by_digest(runner, tag, dated, refused):
    make, publish = lines_of("release", "publish")
    targets = re.findall(r"^([\w-]+): .*##|^(sbom-|image-)%:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert all(any(word.startswith(name) for pair in targets for name in pair if name) for word in make.split()[1:])
    (runner.checkout / "docker").symlink_to(REPOSITORY / "docker")
    changelog = re.sub(
        r"^(## 0\.1\.0) \(.*\)$", rf"\1 ({dated})", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.M
    )
    (runner.checkout / "CHANGELOG.md").write_text(changelog)
    for name in ("build/wheel/tpu_pipelines-0.1.0-py3-none-any.whl", "build/sbom/steps.cdx.json"):
        (runner.checkout / name).parent.mkdir(parents=True)
        (runner.checkout / name).touch()
    facts = {"GITHUB_REF_NAME": tag, "GITHUB_REPOSITORY": "Me/TPU", "GITHUB_ACTOR": "me", "GH_TOKEN": "token"}
    if refused:
        assert runner(publish, **facts) == 2
        assert refused in runner.said
        return
    assert runner(publish, **facts) == 0, runner.said
    first, *released = (runner.folder / "released").read_text().splitlines()
    assert (first, "The first release." in "".join(released), released[-2:]) == (
        tag,
        True,
        [
            "build/sbom/steps.cdx.json",
            "build/wheel/tpu_pipelines-0.1.0-py3-none-any.whl",
        ],
    )
    digest = "a" * 64
    assert [line for line in released if "@sha256:" in line] == [
        f"- `ghcr.io/me/tpu/{image}@sha256:{digest}`" for image in ("steps", "serving")
    ]
    assert not any(line.startswith("## ") for line in released), "only the section of this version"


def test_what_is_merged_or_released_is_tested_as_ci_does():
    assert lines_of("pull-request", "test") == lines_of("release", "test") == [TESTS]
    assert (REPOSITORY / TESTS.split()[1]).is_file()


@pytest.mark.heavy  # Compiles twice in processes of their own: half a minute.
def test_every_line_for_a_pull_request_runs(runner):
    install, check, before, compare = lines_of("pull-request", "preflight")
    again, warm = lines_of("pull-request", "warm")
    (comment,) = lines_of("pull-request", "comment")
    assert install == again
    assert runner(install) == 0, runner.said
    assert runner(warm, CONFIG="digits") == 0, runner.said
    assert runner(check, CONFIG="digits") == 0, runner.said
    assert runner(before, CONFIG="digits") == 0, runner.said
    report = outputs(runner)["report"]
    assert report == "before/digits-preflight"
    assert runner(compare, CONFIG="digits", REPORT=report) == 0, runner.said
    said = outputs(runner)["comment"]
    assert said.startswith("### ✓ preflight of digits: the same as digits, still fits v5e-1\n")
    assert (runner.folder / "summary").read_text().strip() == said.strip()
    assert runner(comment, COMMENT=said, NUMBER="7") == 0, runner.said
    assert (runner.folder / "comment").read_text() == said + "\n"
    (runner.checkout / "dear.yaml").write_text(MINE + "training: {epochs: 90}\n")
    assert runner(compare, CONFIG="dear.yaml", REPORT=report) == 3, runner.said
    assert "a run at Vertex AI's price costs " in outputs(runner)["comment"], "a refusal is told too"


@pytest.mark.heavy  # Four commands in processes of their own: half a minute.
def test_every_line_of_retraining_runs_and_nothing_is_sent_twice(runner):
    install, retrain = lines_of("retrain", "submit")
    again, wait = lines_of("retrain", "wait")
    asked = {"CONFIG": "mine.yaml", "WHEN": "changed", "FORCE": ""}
    (runner.checkout / "mine.yaml").write_text(MINE)
    assert install == again == "make -C .tpu-pipelines install"
    # As in a repository of the user's own, which has neither a Makefile nor an environment.
    (runner.checkout / ".tpu-pipelines").mkdir()
    for name in ("components", "pipelines", "Makefile", ".venv", "pyproject.toml", "requirements.lock"):
        (runner.checkout / name).rename(runner.checkout / ".tpu-pipelines" / name)
    assert runner(install) == 0, runner.said
    assert runner(retrain, **asked) == 0, runner.said
    assert outputs(runner)["needed"] == "true"
    assert runner(wait, **asked) == 0, runner.said
    assert (runner.checkout / "gate.xml").is_file()
    assert runner(retrain, **asked) == 0, runner.said
    assert outputs(runner)["needed"] == "false"
    assert len(runner.fake.pipeline_jobs) == 1
    assert (runner.folder / "summary").read_text().count("### ") == 3


@pytest.mark.heavy  # Two commands in processes of their own: 15 s.
def test_every_line_of_cloud_build_runs(runner):
    build = yaml.safe_load((EXAMPLES / "cloudbuild.yaml").read_text())
    (runner.checkout / "mine.yaml").write_text(MINE)
    known = {f"${name}": value for name, value in build["substitutions"].items()}
    known |= {"$PROJECT_ID": "my-project", "$_CONFIG": "mine.yaml", "$_REGION": "us-central1"}
    known |= {"$_BUCKET": "gs://bucket/pipelines", "$_IMAGE": os.environ.get("TPU_PIPELINES_IMAGE", "image@sha256:1")}
    for step in build["steps"]:
        environment = dict(entry.split("=", 1) for entry in step.get("env", []))
        environment = {name: known[value] for name, value in environment.items()}
        environment.pop("TPU_PIPELINES_IMAGE", None)  # The runner has one that its registry has.
        assert runner(step["script"], **environment) == 0, runner.said
    assert len(runner.fake.pipeline_jobs) == 1


@pytest.mark.heavy  # Three commands in processes of their own: half a minute.
def test_every_line_of_gitlab_runs(runner):
    jobs = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    (runner.checkout / "mine.yaml").write_text(MINE)
    (runner.checkout / "base" / "mine.yaml").symlink_to(runner.checkout / "mine.yaml")
    check, fetch, *preflight = jobs["preflight"]["script"]
    assert runner("\n".join(jobs["default"]["before_script"])) == 0, runner.said
    assert jobs["test"]["script"] == [TESTS]
    assert fetch.startswith("git fetch ")  # The runner's second checkout stands for it.
    assert runner("\n".join([check, *preflight]), CONFIG="mine.yaml") == 0, runner.said
    assert (runner.checkout / "preflight.md").read_text().startswith("### ✓ preflight of digits: the same as digits")
    signed_in = {
        "GOOGLE_TOKEN": "a token of GitLab's",
        # Without a project, of which google-auth would ask the real Resource Manager.
        "WORKLOAD_IDENTITY_PROVIDER": "workloadIdentityPools/ci/providers/gitlab",
        "GOOGLE_APPLICATION_CREDENTIALS": str(runner.checkout / ".google.json"),
    }
    assert jobs[".vertex"]["before_script"][:2] == jobs["default"]["before_script"]
    for job in ("submit", "wait"):
        lines = "\n".join(jobs[".vertex"]["before_script"] + jobs[job]["script"])
        told = {"CONFIG": "mine.yaml", "WHEN": "changed", "FORCE": "", **signed_in}
        if job == "wait":
            told |= dict(line.split("=", 1) for line in (runner.checkout / "retrain.env").read_text().splitlines())
        assert runner(lines, **told) == 0, runner.said
    assert told["needed"] == "true"
    assert len(runner.fake.pipeline_jobs) == 1
    assert (runner.checkout / "gate.xml").is_file()

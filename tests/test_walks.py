"""READMEs that are walked from an empty project: every step in order, each with its command, against local servers."""

import os
import re
import shlex

import pytest
import yaml
from PIL import Image

from tests.support.cli import REPOSITORY, set_environment, tpu_pipelines_here
from tests.support.fakes.execution import Simulate
from tests.support.fakes.google_cloud import COMPUTE, Account, bind
from tests.support.fakes.vertex import FakeVertex
from tpu_pipelines.starting.first_configuration import WORKFLOW_FILE

BUCKET = "my-bucket"
_SETTING = re.compile(r"([a-z_.]+)=(\S+?)(?= and |\.$)")


def block_below(readme, heading):
    """The lines of the first shell block below a heading."""
    text = (REPOSITORY / readme).read_text().partition(f"\n## {heading}\n")[2]
    return [line.strip() for line in text.partition("```sh\n")[2].partition("```")[0].splitlines()]


@pytest.fixture
def project(tmp_path, storage_server, bucket, monkeypatch):
    """A folder of pictures, on a machine without variables, beside a Google Cloud that lacks nothing."""
    for name in [name for name in os.environ if name.startswith("TPU_PIPELINES_")]:
        if name not in ("TPU_PIPELINES_CACHE_DIR", "TPU_PIPELINES_TESTS_SOCKET"):
            monkeypatch.delenv(name)
    folder = tmp_path / "project"
    for number, name in enumerate(("daisy", "rose")):
        (folder / "flowers" / name).mkdir(parents=True)
        for i in range(40):
            Image.new("RGB", (16, 16), (200 * number, 5 * i, 60)).save(folder / "flowers" / name / f"{i}.png")
    if not bucket.client.bucket(BUCKET).exists():
        bucket.client.create_bucket(BUCKET)
    with FakeVertex(Simulate()) as fake:
        member = f"serviceAccount:{COMPUTE}"
        fake.cloud.policy = bind("roles/aiplatform.user", member)
        fake.cloud.buckets[BUCKET].policy = bind("roles/storage.objectAdmin", member)
        fake.cloud.accounts[COMPUTE] = Account(policy=bind("roles/iam.serviceAccountUser", member))
        yield Walk(folder, fake, bucket.client, monkeypatch)


class Walk:
    """A user who does what each line says. A line that nobody could do is an error of the test."""

    def __init__(self, folder, fake, storage, monkeypatch):
        self.folder = folder
        self.fake = fake
        self.storage = storage
        self.monkeypatch = monkeypatch
        self.done = []
        self.variables = {}

    def __call__(self, lines):
        """Do the lines in order."""
        for line in lines:
            self._do(line)

    def _do(self, line):
        command = line.partition("  #")[0].strip()
        if command.startswith("# In "):
            file, _, settings = command.removeprefix("# In ").partition(", set ")
            found = _SETTING.findall(settings)
            assert found, line
            self._edit(file, found)
        elif command.startswith("# Push an image, and set the variables"):
            environment = self.fake.environment(self.folder.parent)
            set_environment(self.monkeypatch, environment | {"TPU_PIPELINES_BUCKET": f"gs://{BUCKET}"})
        elif command.startswith("gcloud storage rsync --recursive "):
            *_, source, destination = shlex.split(command)
            self._copy(source, destination)
        elif command.startswith("gh variable set "):
            _, _, _, name, flag, body = shlex.split(command)
            assert flag == "--body"
            self.variables[name] = body
        else:
            assert command.startswith("tpu-pipelines "), line
            self.run(shlex.split(command)[1:])

    def run(self, words):
        self.done.append(tpu_pipelines_here(*words, cwd=self.folder))

    def _edit(self, file, settings):
        path = self.folder / file
        config = yaml.safe_load(path.read_text())
        for name, value in settings:
            *sections, key = name.split(".")
            place = config
            for section in sections:
                place = place[section]
            place[key] = value
        path.write_text(yaml.safe_dump(config))

    def _copy(self, source, destination):
        bucket, _, prefix = destination.removeprefix("gs://").partition("/")
        for path in (self.folder / source).rglob("*.*"):
            name = f"{prefix}/{path.relative_to(self.folder / source)}"
            self.storage.bucket(bucket).blob(name).upload_from_filename(path)


def told(done):
    return f"{done.args}: {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.heavy  # Builds the model in processes of its own, and compiles it for the price: half a minute.
def test_on_a_tpu_is_walked_from_an_empty_project(project):
    project.run(["init", "flowers"])
    project(block_below("README.md", "On a TPU"))
    init, check, doctor, dry, submit, status = project.done
    assert init.returncode == 0, told(init)
    errors = [line.split()[1] for line in check.stdout.splitlines() if line.startswith("error")]
    assert errors == ["image", "variables"], told(check)
    lacking = [line for line in doctor.stdout.splitlines() if line.startswith(("error", "hint"))]
    assert all("bucket" in line for line in lacking), "the local Cloud Storage has no region and no policy"
    for done in (dry, submit, status):
        assert done.returncode == 0, told(done)
    assert "not sent (dry run)" in dry.stdout
    assert not [line for line in dry.stdout.splitlines() if line.startswith("error")]
    assert len(project.fake.pipeline_jobs) == 1


@pytest.mark.heavy  # As above.
def test_retraining_from_ci_is_walked_from_an_empty_project(project):
    """The workflow's own lines run at the end, with the variables of the repository as GitHub would pass them."""
    (init,) = block_below(".ci/README.md", "Which workflows are ready?")
    project([init])
    assert project.done[0].returncode == 0, told(project.done[0])
    project(block_below(".ci/README.md", "How do I set up GitHub?"))
    errors = [line.split()[1] for line in project.done[1].stdout.splitlines() if line.startswith("error")]
    assert errors == ["image", "variables"], told(project.done[1])
    workflow = yaml.safe_load((project.folder / WORKFLOW_FILE).read_text())
    read = set(re.findall(r"vars\.(\w+)", (project.folder / WORKFLOW_FILE).read_text()))
    assert read <= project.variables.keys(), "the README names each variable that the workflow reads"
    config = project.variables["TPU_PIPELINES_CONFIG"]
    assert f"|| '{config}' }}}}" in workflow["env"]["CONFIG"], "init has written the same name"
    signed_in = project.fake.environment(project.folder.parent)
    set_environment(
        project.monkeypatch, signed_in | {"TPU_PIPELINES_BUCKET": project.variables["TPU_PIPELINES_BUCKET"]}
    )
    for job in ("submit", "wait"):
        lines = workflow["jobs"][job]["steps"][-1 if job == "submit" else -2]["run"].replace("\\\n", " ")
        values = {
            "$CONFIG": config,
            "$WHEN": "changed",
            "$FORCE": "",
            "$GITHUB_OUTPUT": "out",
            "$GITHUB_STEP_SUMMARY": "md",
        }
        for name, value in values.items():
            lines = lines.replace(f'"{name}"', value).replace(name, value)
        _, *words = shlex.split(lines.partition("||")[0])
        project.run(words)
        assert project.done[-1].returncode == 0, told(project.done[-1])
    assert len(project.fake.pipeline_jobs) == 1

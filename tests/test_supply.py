"""What comes from others: the licence of every locked package, its known weaknesses, and images by their digests."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.evidence import licences
from tests.support.cli import REPOSITORY
from tests.support.fakes.dataflow import can_boot


def test_every_locked_package_may_be_in_an_image_that_others_get():
    said = {name: licences.licence_of(name) for name, _ in licences.locked() if name not in licences.KNOWN}
    assert len(said) > 100
    assert [name for name, licence in said.items() if licence is not None and not licences.is_welcome(licence)] == []


def test_what_is_not_for_this_machine_is_locked_for_another_one():
    absent = [name for name, _ in licences.locked() if licences.licence_of(name) is None]
    lock = licences.LOCK.read_text()
    for name in absent:
        for_others = re.search(rf"^{re.escape(name)}==\S+ ;", lock, re.MULTILINE)
        assert for_others, f"{name} is locked, and not installed: run make install"


@pytest.mark.parametrize("licence", ["AGPL-3.0", "GNU Lesser General Public License v3 (LGPLv3)", "Proprietary", ""])
def test_what_asks_more_or_says_nothing_is_not_welcome(licence):
    assert not licences.is_welcome(licence)


def test_licences_are_listed_one_for_each_package():
    done = subprocess.run(
        [sys.executable, "-m", "tests.evidence.licences"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == [name for name, _ in licences.locked()]


def test_the_images_are_built_on_one_of_a_known_digest():
    texts = [(REPOSITORY / "docker" / name).read_text() for name in ("Dockerfile", "serving.Dockerfile")]
    bases = {base for text in texts for base in re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.13-slim-trixie@sha256:[0-9a-f]{64}", *bases)
    for text in texts:
        stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
        assert {source for source, _ in stages} <= {"${BASE}", "${BEAM}", *(name for _, name in stages)}


def test_root_runs_only_where_nobody_else_was_seen_to_work():
    """A TPU's driver, as far as is known, for which a build may try another user; and Dataflow's workers."""
    text = (REPOSITORY / "docker" / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.M | re.S)
    defaults = dict(re.findall(r"^ARG (\w+)=(\d+)$", text, re.MULTILINE))
    users = {name: found for _, name, body in stages if (found := re.findall(r"^USER (\S+)$", body, re.MULTILINE))}
    assert [can_boot(user) for user in users.pop("beam")] == [True]
    assert users == {"user": ["${RUN_AS}"], "train": ["${TRAIN_AS}"]}
    assert (defaults["RUN_AS"], defaults["TRAIN_AS"]) == ("1000", "0")
    assert {"steps", "train", "train-gpu"} <= {name for base, name, _ in stages if base == "user"}


def pins(name):
    """The version of every package in a lock."""
    return dict(re.findall(r"^([a-z0-9][^ =]*)==(\S+)", (REPOSITORY / name).read_text(), re.MULTILINE))


def test_what_an_image_holds_is_a_part_of_what_is_locked():
    images = [f"docker/{name}.lock" for name in ("serving", "steps", "train", "train-gpu")]
    for name in ("requirements.lock", *images):
        assert "://" not in (REPOSITORY / name).read_text()
    everything, serving, steps, train, on_gpu = map(pins, ("requirements.lock", *images))
    assert serving.items() <= everything.items()
    for pinned in (steps, train, on_gpu):  # The same TensorFlow, built without what a GPU needs.
        assert pinned.pop("tensorflow-cpu") == everything["tensorflow"]
    assert steps.items() | train.items() <= everything.items()
    assert train.keys() - steps.keys() == {"jax", "jaxlib", "libtpu"}
    of_cuda = {name for name in on_gpu if name.startswith(("jax-cuda12-", "nvidia-"))}
    assert {"jax-cuda12-plugin", "nvidia-cudnn-cu12"} <= of_cuda
    assert dict(on_gpu.items() - {(name, on_gpu[name]) for name in of_cuda}) | {"libtpu": train["libtpu"]} == train
    assert not {"tensorflow", "tensorflow-cpu", "keras", "kfp", "jax", "jaxlib", "scikit-learn"} & serving.keys()
    assert not {"tensorflow", "pytest", "ruff", "mypy"} & train.keys()


def test_beams_image_holds_what_the_others_have_but_what_beam_excludes():
    beam, steps = pins("docker/beam.lock"), pins("docker/steps.lock")
    assert {name for name in beam.keys() & steps.keys() if beam[name] != steps[name]} == {"pillow", "pyarrow"}
    assert not {"tensorflow", "tensorflow-cpu", "keras", "jax"} & beam.keys()
    assert "ai-edge-litert" in beam, "a worker answers with an exported model"
    released = beam["apache-beam"]
    assert f"ARG BEAM=apache/beam_python3.13_sdk:{released}\n" in (REPOSITORY / "docker" / "Dockerfile").read_text()


def test_an_image_holds_what_its_part_of_the_project_asks_for():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]

    def names(lines):
        return {re.match(r"[\w-]+", line)[0] for line in lines if isinstance(line, str)}

    assert names(extras["serving"]) <= names(groups["serving-image"])
    # Not the command line's own: Docker's client, and what makes a shell complete it.
    asked = names([*project["project"]["dependencies"], *extras["local"]])
    asked -= {"docker", "jax", "shtab", "tensorflow", "tpu-pipelines"}
    of_sources = names(extras["s3"]) | names(extras["parquet"])
    assert asked | {"tensorflow-cpu"} | of_sources <= names(groups["steps-image"])


def test_vulnerabilities_are_asked_of_everything_that_is_locked():
    makefile = (REPOSITORY / "Makefile").read_text()
    asked = re.search(r"pip-audit@\d\S+ --strict (.*\\\n.*)", makefile)[1]
    of_images = [
        "docker/serving.lock",
        "docker/train.lock",
        "docker/train-gpu.lock",
        "docker/beam.lock",
        "docker/sbom.lock",
    ]
    assert re.findall(r"-r (\S+)", asked) == ["requirements.lock", *of_images]

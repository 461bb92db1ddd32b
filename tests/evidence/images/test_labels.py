"""Claims about the labels that `make image-NAME` gives an image."""

import re
import shutil
import subprocess

import pytest

from tests.support.cli import REPOSITORY


def _source(origin, folder):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    for words in (["init", "--quiet"], ["remote", "add", "origin", origin]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    command = ["make", "--dry-run", "image-steps", "ENGINE=docker"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return re.findall(r"--label org\.opencontainers\.image\.source=(\S+)", done.stdout)


@pytest.mark.parametrize(
    ("origin", "source"),
    {
        "https://github.com/owner/name.git": "https://github.com/owner/name.git",
        "https://user:password@example.com/name.git": "https://example.com/name.git",
        "git@github.com:owner/name.git": "git@github.com:owner/name.git",
    }.items(),
)
def test_the_source_is_the_origin_without_its_password(origin, source, tmp_path):
    assert _source(origin, tmp_path) == [source]


@pytest.mark.parametrize("origin", ["/home/me/name", "../name", "file:///home/me/name"])
def test_a_folder_on_this_machine_is_not_published_as_the_source(origin, tmp_path):
    assert _source(origin, tmp_path) == []

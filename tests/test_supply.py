"""What comes from others: the licence of every locked package, its known weaknesses, and images by their digests."""

import re
import subprocess
import sys

import pytest

from tests import licences
from tests.cli import REPOSITORY


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
    done = subprocess.run([sys.executable, "-m", "tests.licences"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == [name for name, _ in licences.locked()]


def test_the_images_are_built_on_one_of_a_known_digest():
    texts = [(REPOSITORY / "docker" / name).read_text() for name in ("Dockerfile", "serving.Dockerfile")]
    bases = [re.findall(r"^ARG BASE=(\S+)\nFROM \$\{BASE\}$", text, re.MULTILINE) for text in texts]
    assert bases[0] == bases[1]
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", *bases[0])
    assert all(len(re.findall(r"^FROM ", text, re.MULTILINE)) == 1 for text in texts)


def test_vulnerabilities_are_asked_of_everything_that_is_locked():
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"pip-audit@\d\S+ --strict .*-r requirements.lock .*-r docker/serving.lock", makefile)

"""Claims about what is added to an image's bill of materials."""

import importlib.util
import sys

import pytest

from tests.support.cli import REPOSITORY

_STATUS = """Package: zlib1g
Status: install ok installed
Architecture: amd64
Source: zlib (1:1.2.13.dfsg-1)
Version: 1:1.2.13.dfsg-1+b1
Description: compression library
 runtime

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: base-files
Status: install ok installed
Architecture: all
Version: 12.4
"""
_COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: Zlib

Files: debian/*
License: GPL-2+
 Some text.

License: Zlib
 Its text.
"""


@pytest.fixture(scope="module")
def bill():
    spec = importlib.util.spec_from_file_location("bill", REPOSITORY / "docker" / "bill.py")
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.fixture
def system(tmp_path):
    files = {
        "var/lib/dpkg/status": _STATUS,
        "etc/os-release": 'NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
        "usr/share/doc/zlib1g/copyright": _COPYRIGHT,
        "usr/share/doc/base-files/copyright": "It is free.\nLicense: as it says\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_debian_packages_are_named_as_scanners_read_them(bill, system):
    base_files, zlib = bill.debian_packages(system)
    assert base_files["purl"] == "pkg:deb/debian/base-files@12.4?arch=all&distro=debian-12"
    assert (zlib["name"], zlib["version"]) == ("zlib1g", "1:1.2.13.dfsg-1+b1")
    assert zlib["purl"] == (
        "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1%2Bb1?arch=amd64&distro=debian-12&upstream=zlib%401%3A1.2.13.dfsg-1"
    )


def test_licences_are_those_of_copyright_files_for_machines(bill, system):
    base_files, zlib = bill.debian_packages(system)
    assert [licence["license"]["name"] for licence in zlib["licenses"]] == ["Zlib", "GPL-2+"]
    assert "licenses" not in base_files


def test_a_system_without_dpkg_has_none(bill, tmp_path):
    assert bill.debian_packages(tmp_path) == []


def test_a_licence_in_words_is_the_packages_own(bill, tmp_path, monkeypatch):
    for name, told in {"wordy": "License: Own words\n", "silent": ""}.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{told}")
    monkeypatch.syspath_prepend(tmp_path)
    (licence,) = bill.in_words("wordy")
    assert (licence["license"]["name"], bill.in_words("silent")) == ("Own words", [])

"""Completes an environment's software bill of materials with free-text licences, Python, and Debian's packages.

Usage: ENVIRONMENT/bin/python bill.py BILL
"""

import importlib.metadata
import json
import platform
import re
import sys
import urllib.parse
from pathlib import Path
from typing import Any

Part = dict[str, Any]


def in_words(name: str) -> list[Part]:
    """Return the free-text licence (not an SPDX identifier) of an installed Python package, or an empty list."""
    words = importlib.metadata.metadata(name).get("License", "").partition("\n")[0]
    return _named([words] if words else [])


def debian_packages(root: Path) -> list[Part]:
    """Return the packages that Debian's dpkg has installed below a folder, or an empty list if there is no dpkg.

    Licences are taken from the package's copyright file if it is machine-readable:
    https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
    """
    status = root / "var" / "lib" / "dpkg" / "status"
    if not status.is_file():
        return []
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', (root / "etc" / "os-release").read_text(), re.MULTILINE))
    paragraphs = (
        dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE)) for text in status.read_text().split("\n\n")
    )
    installed = [fields for fields in paragraphs if fields.get("Status", "").endswith(" installed")]
    return [_debian_package(root, fields, system) for fields in sorted(installed, key=lambda fields: fields["Package"])]


def _debian_package(root: Path, fields: dict[str, str], system: dict[str, str]) -> Part:
    name, version = fields["Package"], fields["Version"]
    # https://github.com/package-url/purl-spec/blob/main/types-doc/deb-definition.md. Security advisories name source
    # packages, which scanners read from `upstream`.
    source, _, of_source = fields.get("Source", name).partition(" ")
    qualifiers = {"arch": fields["Architecture"], "distro": f"{system['ID']}-{system.get('VERSION_ID', '')}"}
    qualifiers |= (
        {"upstream": f"{source}@{of_source.strip('()')}" if of_source else source} if "Source" in fields else {}
    )
    purl = f"pkg:deb/{system['ID']}/{name}@{urllib.parse.quote(version, safe='')}?{urllib.parse.urlencode(qualifiers)}"
    part = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    text = root / "usr" / "share" / "doc" / name / "copyright"
    words = text.read_text(errors="replace") if text.is_file() else ""
    licences = re.findall(r"^License: *(\S.*)$", words, re.MULTILINE) if words.startswith("Format:") else []
    return {**part, **({"licenses": _named(licences)} if licences else {})}


def _named(licences: list[str]) -> list[Part]:
    return [{"license": {"name": name.strip(), "acknowledgement": "declared"}} for name in dict.fromkeys(licences)]


def _python() -> Part:
    purl = f"pkg:generic/python@{platform.python_version()}"
    licence = {"license": {"id": "PSF-2.0", "acknowledgement": "declared"}}
    named = {"type": "application", "bom-ref": purl, "name": "python", "version": platform.python_version()}
    return {**named, "purl": purl, "licenses": [licence]}


def main(path: Path) -> None:
    """Add missing licences, Python and Debian's packages to the bill of materials in a file."""
    bill = json.loads(path.read_text())
    for part in bill["components"]:
        if "licenses" not in part and (licences := in_words(part["name"])):
            part["licenses"] = licences
    bill["components"] += [_python(), *debian_packages(Path("/"))]
    path.write_text(json.dumps(bill, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

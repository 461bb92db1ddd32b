"""`make licences`: under which licence each locked package is, as the package itself says."""

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LOCK = Path(__file__).parents[2] / "requirements.lock"
# They ask for their notice to be kept; of MPL, for changes of its own files.
_WELCOME = r"\b(MIT|MIT-0|MIT-CMU|0?BSD|ISC|Apache|PSF|Python Software Foundation|MPL|Mozilla Public|Unlicense)\b"
# They would ask something of whoever passes the images on, or nothing says what they ask.
_UNWELCOME = r"GPL|General Public|SSPL|Server Side|Business Source|BUSL|Commons Clause|Proprietary|Commercial"
# Looked at by hand: what the package does not say in its metadata, or not in these words.
KNOWN = {
    "libtpu": "Google Cloud Platform Terms of Service: installed by whoever wants it, in no image that is passed on",
    "sigstore-models": "MIT, by the LICENSE file that it brings",
    "namex": "Apache License 2.0, by the LICENSE file that it brings",
}


def locked() -> Iterator[tuple[str, str]]:
    """Name and version of each locked package, once."""
    yield from dict(re.findall(r"^([a-z0-9][^ =\[]*)(?:\[[^]]*\])?==(\S+)", LOCK.read_text(), re.MULTILINE)).items()


def licence_of(name: str) -> str | None:
    """What an installed package says of its licence, empty if nothing; None if it is not for this machine."""
    try:
        about = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    classifiers = [text.split(" :: ")[-1] for text in about.get_all("Classifier", []) if text.startswith("License")]
    first_line = about.get("License", "").strip().split("\n")[0]
    return "; ".join(dict.fromkeys(filter(None, [about.get("License-Expression"), *classifiers, first_line])))


def is_welcome(licence: str) -> bool:
    """Whether software under a licence may be in an image that others get.

    Example:
        >>> is_welcome("Apache-2.0 OR BSD-3-Clause"), is_welcome("GPL-3.0-only"), is_welcome("")
        (True, False, False)
    """
    return bool(re.search(_WELCOME, licence)) and not re.search(_UNWELCOME, licence)


def main() -> int:
    """Print them all; returns 1 if one is unwelcome or unknown."""
    doubtful = 0
    for name, version in locked():
        licence = licence_of(name)
        is_fine = licence is None or name in KNOWN or is_welcome(licence)
        doubtful += not is_fine
        said = KNOWN.get(name) or ("not for this machine" if licence is None else licence or "says nothing")
        print(f"{'' if is_fine else '! '}{name} {version}: {said}")
    return int(doubtful > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Unicode forms of names, so that names that look equal compare equal.

A name such as `Café` has two forms: NFC, with one code point for `é`, and NFD, with `e` and a combining accent. macOS
writes file names in NFD, and most other programs write NFC: https://unicode.org/reports/tr15/.
"""

import unicodedata
from collections.abc import Iterable


def as_nfc(name: str) -> str:
    r"""Return a name in NFC.

    Example:
        >>> as_nfc("Cafe\u0301") == "Caf\u00e9"
        True
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def other_forms(name: str) -> list[str]:
    r"""Return the NFC and NFD forms of a name, but leave out a form that equals the name.

    For an ASCII name, return an empty list.

    Example:
        >>> other_forms("a.png"), other_forms("\u00e9.png") == ["e\u0301.png"]
        ([], True)
    """
    forms = () if name.isascii() else (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    return [form for form in dict.fromkeys(forms) if form != name]


def by_nfc(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from the NFC form of each name to the first name that has this form."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(as_nfc(name), name)
    return first

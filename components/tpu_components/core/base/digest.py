"""Digests of numbers, texts, lists and mappings, for use as keys. Equal values have equal digests on all machines."""

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's JSON, in hexadecimal.

    The order of a mapping's keys does not matter. Values that JSON cannot represent, such as paths, are converted to
    text.

    Example:
        >>> digest_of({"a": 1, "b": (2,)}) == digest_of({"b": [2], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

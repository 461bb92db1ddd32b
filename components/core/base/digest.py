"""The digest of plain values: a key under which something is found again wherever the values are equal."""

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, in hexadecimal; a mapping's order does not count.

    What JSON cannot hold, as a path, counts by its text.

    Example:
        >>> digest_of({"a": 1, "b": (2,)}) == digest_of({"b": [2], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

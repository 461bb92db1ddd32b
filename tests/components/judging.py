"""What the gate said, as text that a claim can be compared with."""

from typing import Any


def said(judged: Any) -> tuple[str, ...]:
    """Return the rules of a decision, or of what holds its `reasons`, each as `passed: …` or `failed: …`."""
    return tuple(map(str, judged.reasons))

"""Largest lengths of texts that a platform accepts. Each text is checked before it is sent.

Texts that must match a pattern are checked when they are read: labels, volumes, secrets and accounts by
`config.settings`, the model's name, alias and endpoint by `deploy_model.params`, and machines by `machine_spec`.
"""

import dataclasses
from collections.abc import Mapping

from tpu_components.core.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class Limit:
    """Limit of the length of a text in a field of a platform.

    Attributes:
        what: Name of the field, for messages.
        most: Largest number of characters or bytes.
        source: Place in the platform's code or documentation.
        counts_bytes: Whether bytes of UTF-8 are counted instead of characters.
        advice: Advice for a longer text.
    """

    what: str
    most: int
    source: str
    counts_bytes: bool = False
    advice: str = "Choose a shorter name."

    def length(self, text: str) -> int:
        """Return the length of a text, counted as the platform counts."""
        return len(text.encode()) if self.counts_bytes else len(text)


def check_texts(limits: Mapping[str, Limit], texts: Mapping[str, str]) -> None:
    """Check the texts of a request.

    Args:
        limits: Limits of the platform, by field.
        texts: Texts by field.

    Raises:
        InputError: If a text is longer than the limit of its field.
    """
    for field, text in texts.items():
        limit = limits[field]
        if (length := limit.length(text)) > limit.most:
            unit = "bytes" if limit.counts_bytes else "characters"
            raise InputError(
                f"The {limit.what} is too long: expected at most {limit.most:,} {unit}, received {length:,}: "
                f"{text[:60]!r}{'…' * (len(text) > 60)}. {limit.advice}"
            )

"""Maximum lengths of the texts that a platform accepts. Each text is checked before it is sent.

Texts that must match a pattern are checked earlier, when they are read. `config.settings` checks labels, volumes,
secrets and accounts; `deploy_model.params` checks the model's name, alias and endpoint; `machine_spec` checks machines.
"""

import dataclasses
from collections.abc import Mapping

from tpu_components.core.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class Limit:
    """Maximum length of the text in one field of a request to a platform.

    Attributes:
        what: Name of the field in messages.
        most: Maximum number of characters, or of bytes if `counts_bytes` is true.
        source: Where the platform's code or documentation states the limit.
        counts_bytes: Whether the platform counts bytes of UTF-8 instead of characters.
        advice: What to do if the text is too long.
    """

    what: str
    most: int
    source: str
    counts_bytes: bool = False
    advice: str = "Choose a shorter name."

    def length(self, text: str) -> int:
        """Return the length of a text in the unit that the platform counts: characters or bytes."""
        return len(text.encode()) if self.counts_bytes else len(text)


def check_texts(limits: Mapping[str, Limit], texts: Mapping[str, str]) -> None:
    """Check that the texts of a request are not too long.

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

"""`SourceRef`: the kind and the place of a source, parsed from the text `KIND:PLACE` in a setting."""

import dataclasses
import re
from typing import Self

from tpu_components.core.files.location import Location


@dataclasses.dataclass(frozen=True)
class SourceRef:
    """Kind and place of a source, such as `csv:gs://bucket/list.csv`.

    `str()` returns the text from which it was parsed.

    Attributes:
        kind: Name of the kind, which may be unknown. Empty if the text does not begin with a kind and a colon.
        place: Path, URI or pattern of the data, or the name of a library's data set; may be empty.
    """

    kind: str
    place: Location

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text `KIND:PLACE`, or a place without a kind.

        A colon in the URI of an object store, or after a slash, does not separate a kind from a place.

        Example:
            >>> SourceRef.parse("csv:gs://bucket/list.csv")
            SourceRef(kind='csv', place='gs://bucket/list.csv')
            >>> SourceRef.parse("gs://bucket/flowers")
            SourceRef(kind='', place='gs://bucket/flowers')
        """
        match = None if Location(text).is_remote else re.fullmatch(r"([\w-]+):(.*)", text, re.DOTALL)
        return cls(match[1], Location(match[2])) if match else cls("", Location(text))

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" if self.kind else str(self.place)

"""The share that a host has of examples, when several train together."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """A host's share of a split: one of as many ranges, equal but for one example, as there are hosts.

    Attributes:
        index: Number of this one, from 0.
        count: Number of all.

    Example:
        >>> [Share(host, 3).within(10) for host in range(3)]
        [range(0, 3), range(3, 6), range(6, 10)]
    """

    index: int = 0
    count: int = 1

    def within(self, num_examples: int) -> range:
        """Return the places of its examples among so many."""
        return range(num_examples * self.index // self.count, num_examples * (self.index + 1) // self.count)


WHOLE = Share()

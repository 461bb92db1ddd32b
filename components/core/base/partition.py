"""The share that one of several has: a host of examples to train on, a command of files to write."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """One of as many ranges, equal but for one item, as there are hosts, or commands.

    Attributes:
        index: Number of this one, from 0.
        count: Number of all.

    Example:
        >>> [Share(host, 3).within(10) for host in range(3)]
        [range(0, 3), range(3, 6), range(6, 10)]
    """

    index: int = 0
    count: int = 1

    def within(self, num_items: int) -> range:
        """Return the places of its items, as examples or files, among so many."""
        return range(num_items * self.index // self.count, num_items * (self.index + 1) // self.count)


WHOLE = Share()

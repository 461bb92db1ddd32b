"""Division of items among hosts or parallel commands. Items are, for example, training examples or files to write."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """One of `count` contiguous ranges of items. The sizes of the ranges differ by at most one.

    Attributes:
        index: Number of the range, from 0.
        count: Number of ranges.

    Example:
        >>> [Share(host, 3).within(10) for host in range(3)]
        [range(0, 3), range(3, 6), range(6, 10)]
    """

    index: int = 0
    count: int = 1

    def within(self, num_items: int) -> range:
        """Return the indices, in [0, num_items), of the items in this range."""
        return range(num_items * self.index // self.count, num_items * (self.index + 1) // self.count)


WHOLE = Share()

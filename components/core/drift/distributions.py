"""Merges and compares histograms with different bins, without interpolation.

Only exact cumulative counts are used. The number of values below a point is exact if the point is an edge, lies in an
empty bin, or lies outside the range of the values.
"""

from collections.abc import Sequence

import numpy as np

from tpu_components.core.examples.artifacts import Distribution

_UNKNOWN = -1


def count_bins(lows: np.ndarray, highs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build a histogram from the bin of each value.

    Args:
        lows: Lower edge of each value's bin; bins must not overlap.
        highs: Upper edge of each value's bin.

    Returns:
        The edges, ascending, and the counts between them; adjacent empty bins are merged.

    Example:
        >>> count_bins(np.array([4, 4, 8]), np.array([6, 6, 10]))
        (array([ 4,  6,  8, 10]), array([2, 0, 1]))
    """
    edges = np.unique(np.concatenate([lows, highs]))
    return edges, np.bincount(np.searchsorted(edges, lows), minlength=len(edges) - 1)


def pool_bins(parts: Sequence[Distribution]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Merge histograms; returns edges and counts, which do not depend on the division into parts."""
    edges = np.unique(np.concatenate([part.edges for part in parts]))
    below = np.array([_count_below(part, edges) for part in parts])
    # Values outside of the edges belong to the first or last bin.
    below[:, 0], below[:, -1] = 0, [part.num_examples for part in parts]
    is_known = (below != _UNKNOWN).all(axis=0)
    edges, counts = edges[is_known], np.diff(below[:, is_known].sum(axis=0))
    is_filled = counts > 0
    beside_filled = np.append(is_filled, False) | np.insert(is_filled, 0, False)
    edges, below_edges = edges[beside_filled], np.insert(np.cumsum(counts), 0, 0)[beside_filled]
    return tuple(edges.tolist()), tuple(np.diff(below_edges).tolist())


def find_distance(ours: Distribution, theirs: Distribution) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions.

    Only points where both functions are exact are compared, so the result is a lower bound of the statistic.
    """
    ends = [np.nextafter(each.maximum, np.inf) for each in (ours, theirs)]
    points = np.unique(np.concatenate([ours.edges, theirs.edges, [ours.minimum, theirs.minimum], ends]))
    below = [_count_below(each, points) for each in (ours, theirs)]
    are_known = (below[0] != _UNKNOWN) & (below[1] != _UNKNOWN)
    shares = [some[are_known] / each.num_examples for some, each in zip(below, (ours, theirs), strict=True)]
    return float(np.abs(shares[0] - shares[1]).max())


def _count_below(distribution: Distribution, points: np.ndarray) -> np.ndarray:
    """Return int[points], the number of values below each point; -1 if the number is not exact."""
    edges, counts = np.array(distribution.edges), np.array(distribution.counts)
    total = np.insert(np.cumsum(counts), 0, 0)
    after = np.searchsorted(edges, points, side="right")  # Edges up to the point.
    is_inner = (after > 0) & (after < len(edges))
    place = np.clip(after - 1, 0, len(counts) - 1)
    is_known = is_inner & ((counts[place] == 0) | (edges[place] == points)) & (place > 0)
    below = np.where(is_known, total[place], _UNKNOWN)
    below[points <= distribution.minimum] = 0
    below[points > distribution.maximum] = distribution.num_examples
    return below

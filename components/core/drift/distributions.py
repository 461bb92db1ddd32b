"""Merges and compares histograms without interpolation: only cumulative counts that are known exactly are used.

The bins of two histograms may differ. The number of values below a point is known where the point is an edge, lies in
an empty bin, or is outside the range of the values.
"""

from collections.abc import Sequence

import numpy as np

from tpu_components.core.examples.artifacts import Distribution

_UNKNOWN = -1


def count_bins(lows: np.ndarray, highs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count values by the bin that each is in.

    Args:
        lows: Lower edge of each value's bin; bins do not overlap.
        highs: Upper edge of each value's bin.

    Returns:
        The edges, ascending, and the counts between them; neighbouring empty bins are one bin.

    Example:
        >>> count_bins(np.array([4, 4, 8]), np.array([6, 6, 10]))
        (array([ 4,  6,  8, 10]), array([2, 0, 1]))
    """
    edges = np.unique(np.concatenate([lows, highs]))
    return edges, np.bincount(np.searchsorted(edges, lows), minlength=len(edges) - 1)


def pool_bins(parts: Sequence[Distribution]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the edges and counts of all values together: the same, however the values are divided into parts."""
    edges = np.unique(np.concatenate([part.edges for part in parts]))
    below = np.array([_count_below(part, edges) for part in parts])
    # Values beyond the first and the last edge count in the bins beside them.
    below[:, 0], below[:, -1] = 0, [part.num_examples for part in parts]
    is_known = (below != _UNKNOWN).all(axis=0)
    edges, counts = edges[is_known], np.diff(below[:, is_known].sum(axis=0))
    is_filled = counts > 0
    beside_filled = np.append(is_filled, False) | np.insert(is_filled, 0, False)
    edges, below_edges = edges[beside_filled], np.insert(np.cumsum(counts), 0, 0)[beside_filled]
    return tuple(edges.tolist()), tuple(np.diff(below_edges).tolist())


def find_distance(ours: Distribution, theirs: Distribution) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions.

    Only points where both functions are known are compared, so it is a lower bound of the statistic of the values.
    """
    ends = [np.nextafter(each.maximum, np.inf) for each in (ours, theirs)]
    points = np.unique(np.concatenate([ours.edges, theirs.edges, [ours.minimum, theirs.minimum], ends]))
    below = [_count_below(each, points) for each in (ours, theirs)]
    are_known = (below[0] != _UNKNOWN) & (below[1] != _UNKNOWN)
    shares = [some[are_known] / each.num_examples for some, each in zip(below, (ours, theirs), strict=True)]
    return float(np.abs(shares[0] - shares[1]).max())


def _count_below(distribution: Distribution, points: np.ndarray) -> np.ndarray:
    """Return int[points]: how many values are below each point; -1 where the counts do not say."""
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

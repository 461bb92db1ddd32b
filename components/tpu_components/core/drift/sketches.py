"""Sketches: statistics of a data set, for drift detection.

The lineage of a registered model version contains the sketch of the version's data.

Histograms with different bins are merged and compared without interpolation: only exact cumulative counts are used. The
number of values below a point is known exactly if the point is an edge of a bin, lies in an empty bin, or is outside
the range of the values.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

import numpy as np

from tpu_components.core.examples.artifacts import TRAIN, Distribution, Manifest, Split
from tpu_components.core.examples.interface import REGRESSION, TASKS, TextInput
from tpu_components.core.examples.text import WORDS

SKETCH = "sketch"  # In the lineage of a version: the sketch of its data.
ANSWERS = "answers"  # In the lineage of old versions: the sketch of the trained model's predictions.
_UNKNOWN = -1  # No exact number.


@dataclasses.dataclass(frozen=True)
class Moments:
    """Number, mean, population standard deviation and range of values.

    Sketches of older versions have no range.
    """

    num_examples: int
    mean: float
    std: float
    minimum: float | None = None
    maximum: float | None = None

    @property
    def most_kurtosis(self) -> float:
        """Upper bound on the kurtosis: the square of the largest distance from the mean, in standard deviations.

        The bound is 0 if the range is unknown, or if all values are equal.
        """
        if self.minimum is None or self.maximum is None or not self.std > 0:
            return 0.0
        return (max(self.maximum - self.mean, self.mean - self.minimum) / self.std) ** 2


@dataclasses.dataclass(frozen=True)
class DataSketch:
    """Statistics of a data set, over all splits together.

    Attributes:
        source: Source of the examples.
        fingerprint: Fingerprint of the data set.
        kind: Kind of example, for example `image`.
        task: Task of the data set.
        num_examples: Number of examples.
        num_set_aside: Number of quarantined inputs.
        class_counts: Number of examples by class. In multi-label data, every label of an example counts. Empty for a
            regression.
        targets: Moments of each target of a regression; otherwise empty.
        distributions: Distributions by name; see `Split.distributions`.
        num_training: Number of training examples.
        common_words: Counts of the most frequent words of the training examples, as in `Manifest`.
        independence: Effective sample size divided by the number of examples, by name of the distribution; see `Split`.
        tokenization: Name of the rule that split the texts into words. Empty for images, and in files of older
            versions, which always used the rule `words`.
    """

    source: str
    fingerprint: str
    kind: str
    task: Annotated[str, tuple(TASKS)]
    num_examples: int
    num_set_aside: int
    class_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    targets: Mapping[str, Moments] = dataclasses.field(default_factory=dict)
    distributions: Mapping[str, Distribution] = dataclasses.field(default_factory=dict)
    num_training: int = 0
    common_words: Mapping[str, int] = dataclasses.field(default_factory=dict)
    independence: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tokenization: str = ""

    @property
    def words_rule(self) -> str:
        """Name of the rule that split the texts into words. It is `words` if `tokenization` is empty."""
        return self.tokenization or WORDS

    def divides_like(self, other: Self) -> bool:
        """Return whether the words of this sketch and of another sketch can be compared.

        This is the case if both data sets use the same tokenization rule, or if all common words are ASCII, because all
        rules treat ASCII words in the same way.
        """
        words = "".join((*self.common_words, *other.common_words))
        return self.words_rule == other.words_rule or words.isascii()

    def count_independent(self, figure: str, num_examples: float) -> float:
        """Return the effective sample size of `num_examples` examples for the statistic with the name `figure`.

        If `independence` does not contain the name, the smallest value in `independence` is used. If `independence` is
        empty, the result is `num_examples`.
        """
        return num_examples * self.independence.get(figure, min(self.independence.values(), default=1.0))

    @classmethod
    def make(cls, manifest: Manifest) -> Self:
        """Return the sketch of the data set that a manifest describes."""
        splits = [*manifest.splits.values()]
        names = manifest.class_names
        counts = [] if manifest.task == REGRESSION else np.sum([split.class_counts for split in splits], axis=0)
        figures = dict.fromkeys(name for split in splits for name in split.distributions)
        targets = [(split.num_examples, split.targets) for split in splits]
        return cls(
            source=manifest.source,
            fingerprint=manifest.fingerprint,
            kind=manifest.input.kind,
            task=manifest.task,
            num_examples=sum(split.num_examples for split in splits),
            num_set_aside=len(manifest.quarantined),
            class_counts={name: int(count) for name, count in zip(names, counts, strict=False)},
            targets={
                name: dataclasses.replace(
                    _pool_moments([Moments(n, own[i].mean, own[i].std) for n, own in targets]),
                    minimum=min(own[i].minimum for _, own in targets),
                    maximum=max(own[i].maximum for _, own in targets),
                )
                for i, name in enumerate(names)
                if splits[0].targets
            },
            distributions={name: _pool_figure(splits, name) for name in figures},
            num_training=manifest.splits[TRAIN].num_examples if TRAIN in manifest.splits else 0,
            common_words=manifest.common_words,
            tokenization=manifest.input.tokenization if isinstance(manifest.input, TextInput) else "",
            independence={
                name: float(
                    np.average(
                        [split.independence.get(name, 1.0) for split in splits],
                        weights=[split.num_examples for split in splits],
                    )
                )
                for name in dict.fromkeys(name for split in splits for name in split.independence)
            },
        )


def _pool_figure(splits: Sequence[Split], figure: str) -> Distribution:
    parts = [split.distributions[figure] for split in splits if figure in split.distributions]
    pooled = _pool_moments([Moments(part.num_examples, part.mean, part.std) for part in parts])
    edges, counts = pool_bins(parts)
    return Distribution(
        num_examples=pooled.num_examples,
        mean=pooled.mean,
        std=pooled.std,
        minimum=min(part.minimum for part in parts),
        maximum=max(part.maximum for part in parts),
        edges=edges,
        counts=counts,
    )


def _pool_moments(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all values together, without their range, from the moments of several sets of values."""
    sizes, means, stds = np.array([(part.num_examples, part.mean, part.std) for part in parts], float).T
    mean = float((sizes * means).sum() / sizes.sum())
    variance = float((sizes * (stds**2 + (means - mean) ** 2)).sum() / sizes.sum())
    return Moments(int(sizes.sum()), mean, math.sqrt(variance))


def find_independence(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the effective sample size of grouped examples, as a fraction of their number.

    The effective sample size is the number of independent examples whose mean would have the same variance. The
    fraction is 1 divided by Kish's design effect, which is the variance of the mean of the grouped examples, relative
    to independent examples. Several columns are pooled.

    Args:
        values: float[examples, columns].
        groups: int[examples]: the group that each example belongs to.
    """
    apart = values - values.mean(axis=0)
    codes = np.unique(groups, return_inverse=True)[1]
    sums = np.stack([np.bincount(codes, column) for column in apart.T])
    single, grouped = float(np.square(apart).sum()), float(np.square(sums).sum())
    num_groups = sums.shape[1]
    return min(1.0, single / grouped * (1 - 1 / num_groups)) if grouped > 0 else num_groups / len(values)


def count_bins(lows: np.ndarray, highs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build a histogram from the bin of each value.

    Args:
        lows: Lower edge of each value's bin. Bins must not overlap.
        highs: Upper edge of each value's bin.

    Returns:
        The edges, ascending, and the counts between them. Adjacent empty bins are merged.

    Example:
        >>> count_bins(np.array([4, 4, 8]), np.array([6, 6, 10]))
        (array([ 4,  6,  8, 10]), array([2, 0, 1]))
    """
    edges = np.unique(np.concatenate([lows, highs]))
    return edges, np.bincount(np.searchsorted(edges, lows), minlength=len(edges) - 1)


def pool_bins(parts: Sequence[Distribution]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Merge histograms, and return the edges and counts of the result.

    The result does not depend on how the values were divided among the histograms.
    """
    edges = np.unique(np.concatenate([part.edges for part in parts]))
    below = np.array([_count_below(part, edges) for part in parts])
    # Values outside of the edges belong to the first or last bin.
    below[:, 0], below[:, -1] = 0, [part.num_examples for part in parts]
    is_known = (below != _UNKNOWN).all(axis=0)
    edges = edges[is_known]
    counts = np.diff(below[:, is_known].sum(axis=0))
    is_filled = counts > 0
    beside_filled = np.append(is_filled, False) | np.insert(is_filled, 0, False)
    edges = edges[beside_filled]
    below_edges = np.insert(np.cumsum(counts), 0, 0)[beside_filled]
    return tuple(edges.tolist()), tuple(np.diff(below_edges).tolist())


def find_distance(ours: Distribution, theirs: Distribution) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic: the largest difference between two distribution functions.

    Only points where both functions are known exactly are compared, so the result is a lower bound on the statistic.
    """
    ends = [np.nextafter(each.maximum, np.inf) for each in (ours, theirs)]
    points = np.unique(np.concatenate([ours.edges, theirs.edges, [ours.minimum, theirs.minimum], ends]))
    below = [_count_below(each, points) for each in (ours, theirs)]
    are_known = (below[0] != _UNKNOWN) & (below[1] != _UNKNOWN)
    shares = [some[are_known] / each.num_examples for some, each in zip(below, (ours, theirs), strict=True)]
    return float(np.abs(shares[0] - shares[1]).max())


def _count_below(distribution: Distribution, points: np.ndarray) -> np.ndarray:
    """Return the number of values below each point, int[points], or -1 where the number is not known exactly."""
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

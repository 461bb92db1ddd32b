"""Data sketch: the statistics of a data set that drift detection needs, small enough for a registered version."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

import numpy as np

from tpu_components.core.drift.distributions import pool_bins
from tpu_components.core.examples.artifacts import TRAIN, Distribution, Manifest, Split
from tpu_components.core.examples.interface import REGRESSION, TASKS

SKETCH = "sketch"  # In the lineage of a version: the sketch of its data.


@dataclasses.dataclass(frozen=True)
class Moments:
    """Number, mean and population standard deviation of values."""

    num_examples: int
    mean: float
    std: float


@dataclasses.dataclass(frozen=True)
class DataSketch:
    """Statistics of a data set, all splits together.

    Attributes:
        source: Source of the examples.
        fingerprint: Fingerprint of the data set.
        kind: Kind of example, for example `image`.
        task: Task of the data set.
        num_examples: Number of examples.
        num_set_aside: Number of inputs that were set aside.
        class_counts: Number of examples by class; of multi-label examples each label counts. Empty for a regression.
        targets: Moments of each target of a regression; otherwise empty.
        distributions: Distributions by name, as in `Split`.
        num_training: Number of training examples.
        common_words: Counts of the most frequent words of the training examples, as in `Manifest`.
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

    @classmethod
    def make(cls, manifest: Manifest) -> Self:
        """Return the sketch of a data set."""
        splits, names = [*manifest.splits.values()], manifest.class_names
        counts = [] if manifest.task == REGRESSION else np.sum([split.class_counts for split in splits], axis=0)
        figures = dict.fromkeys(name for split in splits for name in split.distributions)
        return cls(
            source=manifest.source,
            fingerprint=manifest.fingerprint,
            kind=manifest.input.kind,
            task=manifest.task,
            num_examples=sum(split.num_examples for split in splits),
            num_set_aside=len(manifest.quarantined),
            class_counts={name: int(count) for name, count in zip(names, counts, strict=False)},
            targets={name: _pool_target(splits, i) for i, name in enumerate(names)} if splits[0].targets else {},
            distributions={name: _pool_figure(splits, name) for name in figures},
            num_training=manifest.splits[TRAIN].num_examples if TRAIN in manifest.splits else 0,
            common_words=manifest.common_words,
        )


def _pool_target(splits: Sequence[Split], place: int) -> Moments:
    parts = [(split.num_examples, split.targets[place]) for split in splits]
    return _pool_moments([Moments(count, target.mean, target.std) for count, target in parts])


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
    """Combine the moments of parts to those of all values."""
    sizes, means, stds = np.array([dataclasses.astuple(part) for part in parts], float).T
    mean = float((sizes * means).sum() / sizes.sum())
    variance = float((sizes * (stds**2 + (means - mean) ** 2)).sum() / sizes.sum())
    return Moments(int(sizes.sum()), mean, math.sqrt(variance))

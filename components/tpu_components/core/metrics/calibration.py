"""Calibration error: the distance between a classifier's confidence and its accuracy."""

import functools
import math
from typing import Any

import numpy as np

from tpu_components.core.base.frameworks import sparse, special
from tpu_components.core.metrics.estimates import Estimate, mean
from tpu_components.core.metrics.intervals import bisect

_EDGES = np.linspace(0, 1, 16)
_NUM_DRAWS = 1000
_NUM_HALVINGS = 12


def calibration_bins(hit: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    """Return the confidence bins that contain examples.

    Each bin (lower, upper] has the keys `lower`, `upper`, `count`, `confidence` (mean) and `accuracy`.

    Args:
        hit: bool[examples]: whether each prediction is correct.
        probabilities: float[examples, classes].
    """
    confidence, places = _confidence(probabilities)
    return [
        {
            "lower": float(_EDGES[i]),
            "upper": float(_EDGES[i + 1]),
            "count": int(np.sum(places == i)),
            "confidence": float(confidence[places == i].mean()),
            "accuracy": float(hit[places == i].mean()),
        }
        for i in np.unique(places)
    ]


def _confidence(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence of every prediction, float64[examples], and the index of its bin, int[examples]."""
    confidence = probabilities.max(axis=1).astype(np.float64).clip(0, 1)
    return confidence, np.digitize(confidence, _EDGES[1:-1], right=True)


def calibration_error(hit: np.ndarray, probabilities: np.ndarray, members: Any) -> Estimate:
    """Estimate the calibration error: the distance between confidence and accuracy, averaged over the examples.

    The confidence and accuracy of an example are the means of its bin; see `calibration_bins`.

    Args:
        hit: bool[examples]: whether each prediction is correct.
        probabilities: float[examples, classes].
        members: Groups of dependent examples, as `members_of` returns them. None if all examples are independent.
    """
    bins = calibration_bins(hit, probabilities)
    value = sum(item["count"] * abs(item["accuracy"] - item["confidence"]) for item in bins) / len(hit)
    confidence, places = _confidence(probabilities)
    gap = hit - confidence
    influence = mean(gap * np.sign(np.bincount(places, gap))[places]).influence
    shared = np.eye(len(bins))
    num_drawn = math.inf
    if members is not None:
        own = sparse.csr_array((np.ones(len(gap)), (np.arange(len(gap)), np.unique(places, return_inverse=True)[1])))
        means = own @ np.array([item["accuracy"] - item["confidence"] for item in bins])
        apart = own.multiply((gap - means)[:, None]).tocsr()
        grouped = members @ apart
        single = np.maximum(apart.multiply(apart).sum(axis=0), 1e-12)
        shared = (grouped.T @ grouped).toarray() / np.sqrt(np.outer(single, single))
        np.fill_diagonal(shared, np.maximum(shared.diagonal(), 1))
        num_drawn = members.shape[0] - 1
    return Estimate(value, influence, interval_method=functools.partial(_interval, bins, shared, num_drawn))


def _interval(
    bins: list[dict[str, Any]], shared: np.ndarray, freedom: float, sure: float
) -> tuple[float, float] | None:
    """Return the confidence interval of the calibration error, or None if all examples belong to one group.

    The error is a weighted sum of absolute gaps between confidence and accuracy, one for each bin. Chance alone gives
    every bin a gap, so the error is too high, especially for a calibrated model. For the lower bound, the gaps are
    scaled down until, with noise from Student's distribution, an error as high as the computed one has the probability
    (1 - `sure`) / 2. The upper bound does not correct for the error's upward bias.

    Args:
        bins: See `calibration_bins`.
        shared: float64[bins, bins]: covariance of the gaps, in units of the standard errors of independent examples.
        freedom: Degrees of freedom.
        sure: Two-sided confidence.
    """
    if freedom == 0:
        return None
    counts, middle, accuracy = (np.array([item[name] for item in bins]) for name in ("count", "confidence", "accuracy"))
    gaps = accuracy - middle
    weights = counts / counts.sum()
    smoothed = (accuracy * counts + 1) / (counts + 2)
    errors = np.sqrt(np.maximum(middle * (1 - middle), smoothed * (1 - smoothed)) / counts)
    values, vectors = np.linalg.eigh(shared)
    spread = errors[:, None] * vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(0)
    noises = rng.normal(size=(_NUM_DRAWS, len(bins))) @ spread.T
    if freedom < math.inf:
        noises /= np.sqrt(rng.chisquare(freedom, (_NUM_DRAWS, 1)) / freedom)
    error = float(np.abs(gaps) @ weights)

    def is_as_high(size: float) -> bool:
        return bool(np.quantile(np.abs(size * gaps + noises) @ weights, (1 + sure) / 2) >= error)

    least, _ = bisect(is_as_high, 0.0, 1.0, _NUM_HALVINGS)  # True size of the gaps, relative to the computed size.
    reach = float(
        special.stdtrit(min(freedom, 1e9), (1 + sure) / 2) * np.linalg.norm((weights * np.sign(gaps)) @ spread)
    )
    return least * error, min(error + reach, 1.0)

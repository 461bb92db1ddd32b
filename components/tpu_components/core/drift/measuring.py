"""Measurements of examples (called figures) and their distribution over a split, for reports and drift detection.

A bin of a distribution is one unit wide or, for large values, at most 1/128 of the value. Empty bins are not stored.
Only integers are summed, so the results do not depend on the number of workers or on the order of the examples.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tpu_components.core.drift.shifts import CLASSES
from tpu_components.core.drift.sketches import count_bins, find_independence
from tpu_components.core.examples.artifacts import Distribution
from tpu_components.core.examples.images import LOSSES
from tpu_components.core.examples.interface import IMAGE, TEXT

# In larger data sets, only a share of the examples is measured, selected by hash: enough for every bin that matters.
MOST_MEASURED = 5_000
NOT_MEASURED = -1
MOST_COUNTED = 2**15 - 1
_SAMPLED_BITS = 16
_GREY = np.array([1, 2, 1], np.uint16)  # Weights of four grey levels: near those of JPEG, and exact in integers.
_GREY_SHARE = 333  # A third, in thousandths.
_QUARTILES = (0.25, 0.5, 0.75)
_MAX_SIDE = 64  # Larger pictures are subsampled first, to at least this number of pixels per side.
_EXACT_BITS = 8  # Number of leading bits of a value that determine its bin.


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measurement of an example.

    Attributes:
        name: Name of the figure, for example `brightness`.
        unit: Description of the values for reports, for example `mean grey level of a picture`.
        scale: Factor that converts the stored integers to values.
    """

    name: str
    unit: str
    scale: float = 1.0


FIGURES: Mapping[str, tuple[Figure, ...]] = {
    IMAGE: (
        Figure("brightness", "mean grey level of a picture", 0.1),
        Figure("contrast", "standard deviation of the grey levels of a picture", 0.1),
        Figure("sharpness", "mean difference of neighbouring grey levels", 0.1),
        Figure("red", "share of red in the picture's light; one third for a grey picture", 0.001),
        Figure("blue", "share of blue in the picture's light; one third for a grey picture", 0.001),
        Figure("height", "height of the picture in the file, in pixels"),
        Figure("width", "width of the picture in the file, in pixels"),
    ),
    TEXT: (
        Figure("words", "number of words in a text"),
        Figure("unknown_share", "share of unknown words in a text", 0.001),
        Figure("word_length", "number of bytes per word of a text", 0.1),
    ),
}
LABELS = Figure("labels", "number of labels of an example")  # For multi-label data.

# Counts of an example that are added up over a split.
COUNTS: Mapping[str, tuple[str, ...]] = {
    IMAGE: ("num_turned", *(loss.statistic for loss in LOSSES)),
    TEXT: ("num_truncated", "num_padded", "num_tokens", "num_unknown"),
}


def is_measured(identity: bytes, share: float) -> bool:
    """Return whether to measure an example, if only the fraction `share` of all examples is measured.

    The choice depends only on the example's ID, `identity`.
    """
    return share >= 1 or int.from_bytes(identity[:2], "little") < share * 2**_SAMPLED_BITS


def thin_out(pixels: np.ndarray) -> np.ndarray:
    """Return an image, uint8[height, width, channels], subsampled to at most 127 pixels per side."""
    height, width, _ = pixels.shape
    if height < 2 * _MAX_SIDE and width < 2 * _MAX_SIDE:
        return pixels
    # A copy, since a view would keep all pixels in memory.
    return pixels[:: max(1, height // _MAX_SIDE), :: max(1, width // _MAX_SIDE)].copy()


def measure_pictures(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Measure images of any sizes.

    Args:
        pictures: uint8[height, width, 1 or 3] each, with at most 127 pixels per side, as `thin_out` returns them.

    Returns:
        int16[num_pictures, 5]: brightness, contrast and sharpness in tenths of a grey level, and the shares of red and
        blue in the image's light, in thousandths.
    """
    measured = np.empty((len(pictures), 5), np.int16)
    shapes = [picture.shape for picture in pictures]
    for shape in set(shapes):
        places = [i for i, own in enumerate(shapes) if own == shape]
        values = np.stack([pictures[i] for i in places])
        if shape[2] == 3:
            grey = values[..., 0] * _GREY[0] + values[..., 1] * _GREY[1] + values[..., 2] * _GREY[2]
        else:
            grey = values[..., 0].astype(np.uint16) * 4
        measured[places, :3] = _measure(grey)
        measured[places, 3:] = _measure_colours(values) if shape[2] == 3 else _GREY_SHARE
    return measured


def _measure(grey: np.ndarray) -> np.ndarray:
    """Return brightness, contrast and sharpness in tenths of a grey level, int16[N, 3].

    `grey` contains the grey levels times 4, which are integers, uint16[N, height, width].
    """
    _, height, width = grey.shape
    flat = grey.reshape(len(grey), -1)
    count = height * width
    # Sums in int32 are twice as fast, and int32 holds the sum over 127 x 127 pixels.
    total = flat.sum(1, dtype=np.int32).astype(np.int64)
    squares = np.einsum("ij,ij->i", flat, flat, dtype=np.int64, casting="unsafe")
    deviation = np.sqrt((count * squares - total**2).astype(np.float64)) / count
    signed = grey.astype(np.int16)
    steps = sum(np.abs(np.diff(signed, axis=axis)).sum((1, 2), dtype=np.int32) for axis in (1, 2))
    num_steps = max((height - 1) * width + height * (width - 1), 1)
    return np.rint(np.stack([total / count, deviation, steps / num_steps], axis=1) * 2.5).astype(np.int16)


def _measure_colours(values: np.ndarray) -> np.ndarray:
    """Return the shares of red and blue in the light of images, uint8[N, height, width, 3].

    The shares are in thousandths, int16[N, 2].
    """
    # Add up rows first, in uint16, which holds the sum of 127 rows. Rows and columns at once take ten times as long.
    columns = values.reshape(*values.shape[:2], -1).sum(1, dtype=np.uint16)
    light = columns.reshape(len(values), -1, 3).sum(1, dtype=np.int64)
    whole = light.sum(1)
    shares = 1000 * light[:, ::2] // np.maximum(whole, 1)[:, None]
    return np.where(whole[:, None] > 0, shares, _GREY_SHARE).astype(np.int16)


def distributions(kind: str, rows: np.ndarray) -> dict[str, Distribution]:
    """Return {figure: distribution} for each measurement (figure), over the measured examples.

    Return an empty dict if no example was measured.

    Args:
        kind: Kind of example, for example `image`.
        rows: Measurements, int[num_examples, figures], in the order of `FIGURES[kind]`. `NOT_MEASURED` in the first
            column marks an example that was not measured.
    """
    known = rows[rows[:, 0] != NOT_MEASURED].astype(np.int64)
    return {figure.name: _describe(figure, known[:, place]) for place, figure in enumerate(FIGURES[kind]) if len(known)}


def count_labels(labels: np.ndarray) -> dict[str, Distribution]:
    """Return the distribution of the number of labels per example. `labels` is 0 or 1, [num_examples, classes]."""
    return {LABELS.name: _describe(LABELS, labels.reshape(len(labels), -1).sum(axis=1).astype(np.int64))}


def count_independent(kind: str, rows: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Return the effective sample size of grouped examples, as a fraction of their number, for each figure.

    A figure is a measurement, such as brightness. The fraction is computed for the mean and for each quartile of the
    figure, and the smallest of these is returned. The key `classes` has the fraction for the class shares. The result
    is stored as `Split.independence`.

    Args:
        kind: Kind of example, `image` or `text`.
        rows: Measurements, int[num_examples, figures]; see `distributions`.
        labels: Class of each example, int[num_examples]. For multi-label data, the labels of each example, and for a
            regression, its targets: [num_examples, …].
        groups: Number of each example's group, int[num_examples].
    """
    classes = labels if labels.ndim > 1 else labels[:, None] == np.unique(labels)
    result = {CLASSES: find_independence(classes.astype(float), groups)}
    known = rows[:, 0] != NOT_MEASURED
    for figure, values in zip(FIGURES[kind], rows[known].T.astype(float), strict=True):
        if len(values):
            below = [values <= quartile for quartile in np.quantile(values, _QUARTILES)]
            columns = [values, *(column for column in below if not column.all())]
            shares = [find_independence(column.astype(float)[:, None], groups[known]) for column in columns]
            result[figure.name] = min(shares)
    return result


def _describe(figure: Figure, values: np.ndarray) -> Distribution:
    widths = 1 << np.maximum(np.frexp(values)[1] - _EXACT_BITS, 0)
    lows = values // widths * widths
    edges, counts = count_bins(lows, lows + widths)
    mean = values.sum() / len(values)
    variance = (len(values) * (values**2).sum() - values.sum() ** 2) / len(values) ** 2
    return Distribution(
        num_examples=len(values),
        mean=_round(mean * figure.scale),
        std=_round(float(np.sqrt(variance)) * figure.scale),
        minimum=_round(values.min() * figure.scale),
        maximum=_round(values.max() * figure.scale),
        edges=tuple(_round(edge * figure.scale) for edge in edges.tolist()),
        counts=tuple(counts.tolist()),
    )


def _round(value: float) -> float:
    return round(float(value), 6)

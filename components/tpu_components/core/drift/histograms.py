"""Histograms as SVG images, for HTML pages."""

import math
from collections.abc import Mapping, Sequence

import markupsafe
import numpy as np

from tpu_components.core.examples.artifacts import Distribution

_CHART_WIDTH, _CHART_HEIGHT, _MOST_BARS, _LEAST_BARS = 320, 120, 32, 8
SWATCH = markupsafe.Markup('<span class="swatch" style="background: var(--{})"></span>')
_SERIES = SWATCH + markupsafe.Markup("<bdi>{}</bdi><br>")
_TAIL = 0.005  # Share of the values at each end that are put into the first or last bar.


def draw_histograms(name: str, by_series: Mapping[str, Distribution], colours: Mapping[str, str]) -> markupsafe.Markup:
    """Return an SVG with the histograms of several distributions. All use the same bins of equal width.

    Args:
        name: Name of the statistic.
        by_series: Distributions by name. The height of a bar is the share of the distribution's values in the bin.
        colours: For each distribution, the name of a colour in `page.css`.
    """
    edges = _choose_edges(list(by_series.values()))
    counts = np.array([_rebin(distribution, edges) for distribution in by_series.values()])
    shares = counts / counts.sum(1, keepdims=True)
    bins = range(len(edges) - 1)
    width = _CHART_WIDTH / len(bins)
    bar = 0.86 * _CHART_WIDTH / len(bins) / len(by_series)
    parts = []
    for row, (series, distribution) in enumerate(by_series.items()):
        for number in bins:
            height = shares[row, number] / shares.max() * _CHART_HEIGHT
            low = edges[number] if number else min(edges[0], distribution.minimum)
            high = edges[number + 1] if number < bins[-1] else max(edges[-1], distribution.maximum)
            said = f"{series}: {counts[row, number]:,.0f} from {low:g} to {high:g}"
            x = number * width + row * bar
            y = _CHART_HEIGHT - height
            parts.append(
                f'<g><title>{said}</title><rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{height:.1f}" '
                f'fill="var(--{colours[series]})"/></g>'
            )
    every = max(1, -(-len(bins) // 6))
    for place, edge in enumerate(edges):
        if place % every == 0:
            x = place * width
            anchor = "start" if not place else "end" if place >= len(bins) - 1 else "middle"
            place_of_text = f'x="{x:.1f}" y="{_CHART_HEIGHT + 14}" text-anchor="{anchor}"'
            parts.append(f'<text {place_of_text} font-size="11" fill="var(--muted)">{edge:g}</text>')
    return markupsafe.Markup(
        f'<svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT + 18}" role="img" '
        f'aria-label="Histogram of {markupsafe.escape(name)}">{"".join(parts)}</svg>'
    )


def draw_legend(colours: Mapping[str, str]) -> markupsafe.Markup:
    """Return an HTML legend for {name: colour}. A colour is a name from `page.css`."""
    series = (_SERIES.format(colour, name) for name, colour in colours.items())
    return markupsafe.Markup("<p>{}</p>").format(markupsafe.Markup("").join(series))


def _choose_edges(distributions: Sequence[Distribution]) -> list[float]:
    """Return the edges of bars that cover nearly all values. The edges are round numbers.

    Bars are at least as wide as the narrowest bin with values.
    """
    ends = np.array([_quantiles(distribution) for distribution in distributions])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    narrowest = min(
        float(np.diff(distribution.edges)[np.array(distribution.counts) > 0].min()) for distribution in distributions
    )
    step = _round_up(max((high - low) / (_MOST_BARS - 1), narrowest))
    start = math.floor(low / step)
    stop = max(math.ceil(high / step), start + _LEAST_BARS)
    return [float(f"{i * step:.12g}") for i in range(start, stop + 1)]


def _quantiles(distribution: Distribution) -> np.ndarray:
    """Return the quantiles `_TAIL` and 1 - `_TAIL` of a distribution, float[2]."""
    below = np.insert(np.cumsum(distribution.counts), 0, 0) / sum(distribution.counts)
    return np.interp([_TAIL, 1 - _TAIL], below, distribution.edges)


def _round_up(step: float) -> float:
    """Return the smallest number of the series 1, 2, 5, 10, 20, … that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _rebin(distribution: Distribution, edges: Sequence[float]) -> np.ndarray:
    """Return the number of values per bar, float[len(edges) - 1].

    The values of a bin that spans several bars are divided among them.
    """
    below = np.interp(edges, distribution.edges, np.insert(np.cumsum(distribution.counts), 0, 0))
    below[0], below[-1] = 0, sum(distribution.counts)
    return np.diff(below)

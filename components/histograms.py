"""Drawings of distributions, for pages."""

from collections.abc import Mapping

import markupsafe
import numpy as np

from components.artifacts import Distribution

_CHART_WIDTH, _CHART_HEIGHT, _LEAST_BINS = 320, 120, 8


def draw_histograms(name: str, by_series: Mapping[str, Distribution], colours: Mapping[str, str]) -> markupsafe.Markup:
    """Return histograms of the same bins beside each other as SVG, without their empty ends.

    Args:
        name: Name of the figure.
        by_series: Distributions by name; a bar is a share of its own.
        colours: Colour of each, by the names of `page.css`.
    """
    first, *_ = by_series.values()
    counts = np.array([distribution.counts for distribution in by_series.values()])
    filled = np.flatnonzero(counts.sum(0))
    start = max(0, min(int(filled[0]), counts.shape[1] - _LEAST_BINS))
    bins = range(start, min(max(int(filled[-1]) + 1, start + _LEAST_BINS), counts.shape[1]))
    shares = counts / counts.sum(1, keepdims=True)
    width, bar = _CHART_WIDTH / len(bins), 0.86 * _CHART_WIDTH / len(bins) / len(by_series)
    parts = []
    for row, (series, distribution) in enumerate(by_series.items()):
        for place, number in enumerate(bins):
            height = shares[row, number] / shares.max() * _CHART_HEIGHT
            low, high = first.edges[number], first.edges[number + 1]
            said = f"{series}: {distribution.counts[number]:,} from {low:g} to {high:g}"
            x, y = place * width + row * bar, _CHART_HEIGHT - height
            parts.append(
                f'<g><title>{said}</title><rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{height:.1f}" '
                f'fill="var(--{colours[series]})"/></g>'
            )
    every = max(1, -(-len(bins) // 6))
    for place, number in enumerate([*bins, bins[-1] + 1]):
        if place % every == 0:
            x, anchor = place * width, "start" if not place else "end" if place == len(bins) else "middle"
            parts.append(
                f'<text x="{x:.1f}" y="{_CHART_HEIGHT + 14}" text-anchor="{anchor}">{first.edges[number]:g}</text>'
            )
    return markupsafe.Markup(
        f'<svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT + 18}" role="img" aria-label="Histogram of {name}">'
        f"{''.join(parts)}</svg>"
    )

"""Claims about drawn histograms."""

import itertools
import re

import numpy as np
import pytest

from tpu_components.core.drift.histograms import draw_histograms
from tpu_components.core.drift.measuring import distributions
from tpu_components.core.drift.sketches import pool_bins
from tpu_components.core.examples.artifacts import Distribution
from tpu_components.core.examples.interface import IMAGE

_COLOURS = {"new": "orange", "old": "blue"}


def distribution(values):
    return distributions(IMAGE, np.tile(np.rint(values).astype(np.int16)[:, None], 7))["width"]


def bars(drawing):
    """Return (series, count, low, high) of each bar."""
    said = re.findall(r"<title>(\w+): ([\d,]+) from (\S+) to (\S+)</title>", drawing)
    return [(name, int(count.replace(",", "")), float(low), float(high)) for name, count, low, high in said]


@pytest.mark.parametrize(("mean", "std"), [(500, 120), (120, 0), (3000, 900), (30, 2)])
def test_bars_are_the_same_for_both_and_hold_every_value(mean, std):
    generator = np.random.default_rng(0)
    new, old = (distribution(generator.normal(mean, std, count).clip(1)) for count in (900, 4000))
    drawn = bars(draw_histograms("width", {"new": new, "old": old}, _COLOURS))
    for series, total in (("new", 900), ("old", 4000)):
        own = [bar for bar in drawn if bar[0] == series]
        assert sum(count for _, count, _, _ in own) == pytest.approx(total, abs=len(own) / 2), "each is rounded"
        inner = [(high, low) for (*_, high), (_, _, low, _) in itertools.pairwise(own)]
        assert all(high == low for high, low in inner)
        assert 8 <= len(own) <= 33
    edges = [low for name, _, low, _ in drawn if name == "new"][1:]
    assert edges == [low for name, _, low, _ in drawn if name == "old"][1:]
    step = edges[1] - edges[0]
    assert step in (1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert all(edge % step == 0 for edge in edges)


def test_the_wide_bins_of_an_older_version_are_drawn_beside_narrow_ones():
    old = Distribution(4, 300.0, 50.0, 260.0, 360.0, (181.0, 256.0, 362.0, 512.0), (0, 4, 0))
    drawn = bars(draw_histograms("width", {"new": distribution(np.full(10, 300)), "old": old}, _COLOURS))
    assert sum(count for name, count, _, _ in drawn if name == "old") == pytest.approx(4, abs=4)
    assert [(count, low) for name, count, low, _ in drawn if name == "new" and count] == [(10, 300)]


def test_histograms_with_other_bins_are_pooled_at_the_edges_that_both_know():
    """How many of the four values below 10 are below 5 is unknown."""
    one = Distribution(4, 4.0, 1.0, 1.0, 9.0, (0.0, 10.0), (4,))
    other = Distribution(3, 12.0, 8.0, 5.0, 19.0, (5.0, 10.0, 20.0), (1, 2))
    assert pool_bins([one, other]) == ((0.0, 10.0, 20.0), (5, 2))


def test_a_name_is_text_and_no_markup():
    drawn = draw_histograms('"><b>', {"new": distribution(np.full(10, 300))}, _COLOURS)
    assert 'aria-label="Histogram of &#34;&gt;&lt;b&gt;"' in drawn

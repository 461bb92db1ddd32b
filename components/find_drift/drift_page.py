"""The page of a comparison of data: every figure with both histograms, what has drifted first."""

from collections.abc import Sequence
from pathlib import Path

from components import storage
from components.data_sketch import DataSketch
from components.drift import Shift, figures_of
from components.histograms import draw_histograms

NEW, OLD = "these", "those before"
_COLOURS = {NEW: "orange", OLD: "blue"}


def write_page(new: DataSketch, old: DataSketch, shifts: Sequence[Shift], path: Path) -> None:
    """Write the page of two data sets and of the differences between them, which `find_shifts` has found."""
    from components import page

    pairs = figures_of(new, old)
    charts = {
        name: draw_histograms(name.replace("_", " "), {NEW: ours, OLD: theirs}, _COLOURS)
        for name, (ours, theirs) in pairs.items()
    }
    template = page.environment(Path(__file__).parent).get_template("drift.html.jinja")
    text = template.render(new=new, old=old, shifts=shifts, charts=charts, colours=_COLOURS)
    storage.write_bytes(path, text.encode())

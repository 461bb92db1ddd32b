"""The page of a comparison of data: every figure with both histograms, what has drifted first, and with pictures."""

from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.drift.comparison import Shift, figures_of, say_power, say_rule, say_verdict
from tpu_components.core.drift.data_sketch import DataSketch
from tpu_components.core.drift.histograms import draw_histograms
from tpu_components.core.files import storage
from tpu_components.find_drift.pictures import choose_pictures

NEW, OLD = "these", "those before"
_COLOURS = {NEW: "orange", OLD: "blue"}


def write_page(
    new: DataSketch, old: DataSketch, shifts: Sequence[Shift], path: Path, places: tuple[str, str] = ("", "")
) -> None:
    """Write the page of two data sets and of the differences between them, which `find_shifts` has found.

    Args:
        new: Sketch of the data.
        old: Sketch of those that they are held against.
        shifts: The differences.
        path: File to write.
        places: Folders of both; of records on this machine the page shows pictures of what has drifted.
    """
    from tpu_components.core.pages import page

    pairs = figures_of(new, old)
    charts = {
        name: draw_histograms(name.replace("_", " "), {NEW: ours, OLD: theirs}, _COLOURS)
        for name, (ours, theirs) in pairs.items()
    }
    drifted = [shift.figure for shift in shifts if shift.drifted]
    pictures = {
        series: choose_pictures(place, drifted) for series, place in zip((NEW, OLD), places, strict=True) if place
    }
    template = page.environment(Path(__file__).parent).get_template("drift.html.jinja")
    verdict = say_verdict(shifts)
    text = template.render(
        new=new,
        old=old,
        shifts=shifts,
        charts=charts,
        colours=_COLOURS,
        pictures=pictures,
        title=verdict[0].upper() + verdict[1:],
        subtitle="",
        head=(),
        rule=f"{say_rule(shifts)} {say_power(new, old, shifts, 'examples')}",
    )
    storage.write_bytes(path, text.encode())

"""HTML page of a drift comparison: both histograms of every statistic, drifted ones first, with example images."""

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
    """Write the HTML page of a comparison.

    Args:
        new: Sketch of the new data.
        old: Sketch of the data to compare with.
        shifts: Differences, from `find_shifts`.
        path: File to write.
        places: Folders of new and old records. For local folders the page shows images by drifted statistic.
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

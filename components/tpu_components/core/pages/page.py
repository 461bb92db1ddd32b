"""Style, drawings and templates of all HTML pages. Templates escape every text.

A page is a single HTML file without scripts, which needs no network.
"""

import datetime
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import markupsafe
import numpy as np

from tpu_components.core.base.terminal import visible
from tpu_components.core.component.step_record import RUN_VARIABLE
from tpu_components.core.pages.blocks import SIGNS, Block

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure

_HOVERED_POINTS = 400  # Largest number of points of a line with tooltips; more would overlap.
# Placeholder colours for matplotlib. The page replaces them, so that a drawing fits the light and the dark theme.
INK, LINE, BLUE, ORANGE, GREEN, VIOLET, RED, TEAL = (f"#0000a{i}" for i in range(1, 9))
SERIES = (BLUE, ORANGE, GREEN, VIOLET, RED, TEAL)
_VARIABLES = {
    INK: "var(--muted)",
    LINE: "var(--line)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    VIOLET: "var(--violet)",
    RED: "var(--red)",
    TEAL: "var(--teal)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
# Named here, so that they are part of the code fingerprint of every module that renders a page.
_FILES = [Path(__file__).parent / name for name in ("page.css", "page.html.jinja", "blocks.html.jinja")]


def render(title: str, blocks: Sequence[Block], head: Sequence[Block] = (), subtitle: str = "") -> str:
    """Return a page as HTML. All texts are escaped, and equal arguments give equal pages.

    Args:
        title: Heading and page title.
        blocks: Blocks of the page.
        head: Blocks in the page's header, below title and subtitle.
        subtitle: Text below the title that distinguishes this page from others with the same title.
    """
    page = _templates().get_template("page.html.jinja")
    # Text from the data must not reorder or hide other text on the page, not even in drawings and other markup.
    return visible(page.render(signs=SIGNS, title=title, subtitle=subtitle, head=head, blocks=blocks))


@functools.cache
def _templates() -> "jinja2.Environment":
    import jinja2  # Imported here, because it takes 30 ms, and most commands write no page.

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # Names of classes, files, models and layers are untrusted.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def run_name() -> str:
    """Return the name of the run that this step is part of, or an empty string if unknown."""
    return os.environ.get(RUN_VARIABLE, "")


def now() -> str:
    """Return the time in the format of page titles, for example `2026-11-22 09:30 UTC`."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def draw(name: str, x_label: str, y_label: str, plot: Callable[["Axes"], None]) -> markupsafe.Markup:
    """Draw a plot with matplotlib and return it as SVG for a page.

    Args:
        name: Name of the plot.
        x_label: Label of the x-axis.
        y_label: Label of the y-axis.
        plot: Function that draws on the axes, only with colours of this module and without text from users.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        plot(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        hovered = "".join(_hovered(figure, axes))
    text = buffer.getvalue()
    view_box = re.search(r'viewBox="[^"]*"', text)
    # The first definitions are a style sheet that would apply to the whole page.
    body = text[text.index("</defs>") + len("</defs>") : text.rindex("</svg>")]
    # Nothing refers to the ids of groups, and they recur in every drawing. The font is the page's.
    body = re.sub(r'(?<=<g) id="[^"]*"| font-family:[^;]*;', "", body).replace("xlink:href", "href")
    body = re.sub("|".join(_VARIABLES), lambda match: _VARIABLES[match[0]], body)
    label = f"{name}: {y_label} by {x_label}"
    return markupsafe.Markup(
        f'<svg {view_box[0] if view_box else ""} role="img" aria-label="{label}">{body}{hovered}</svg>'
    )


def legend(axes: "Axes") -> None:
    """Move the legend below the drawing, so that it does not cover a curve. The drawing becomes taller."""
    from matplotlib.figure import Figure

    _, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    if labels and isinstance(figure, Figure):
        rows = -(-len(labels) // 2)
        figure.set_figheight(figure.get_figheight() + 0.2 * rows)
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)


def mark_epochs(axes: "Axes") -> None:
    """Put the ticks of the horizontal axis at whole epochs, even if there is only one epoch."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _hovered(figure: "Figure", axes: "Axes") -> Iterator[str]:
    """Yield SVG circles with tooltips for the points of labelled lines and scatter plots, at most 400 for each plot."""
    from matplotlib.ticker import PercentFormatter

    def say(axis: Any, value: float) -> str:
        return f"{value:.2%}" if isinstance(axis.get_major_formatter(), PercentFormatter) else f"{value:.4g}"

    points = [(line.get_label(), np.asarray(line.get_xydata())) for line in axes.lines if line.get_linestyle() != "--"]
    points += [(dots.get_label(), np.asarray(dots.get_offsets())) for dots in axes.collections]
    scale = 72 / figure.dpi
    height = 72 * figure.get_figheight()  # SVG counts in points, from the top.
    for label, values in points:
        if str(label).startswith("_"):
            continue
        for x, y in values[:: -(-len(values) // _HOVERED_POINTS) or 1]:
            across, up = axes.transData.transform((x, y)) * scale
            text = f"{label}: {axes.get_xlabel()} {say(axes.xaxis, x)}, {axes.get_ylabel()} {say(axes.yaxis, y)}"
            yield (
                f'<circle class="point" cx="{across:.1f}" cy="{height - up:.1f}" r="4.5">'
                f"<title>{markupsafe.escape(text)}</title></circle>"
            )

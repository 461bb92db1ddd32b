"""What pages have in common: a style, drawings in it, and templates that trust nobody's text.

A page is one HTML file that needs nothing else: no network, no script, no second file.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import markupsafe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Stand-ins that matplotlib can draw in; the page replaces them, so that one drawing suits light and dark.
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


def environment(templates: Path, **filters: Callable[..., Any]) -> jinja2.Environment:
    """Return the templates of a folder; they may include `page.css`, and every text in them is escaped."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates, Path(__file__).parent]),
        autoescape=True,  # Names of classes, files, models and layers come from strangers.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(filters)
    return jinja


def draw(name: str, x_label: str, y_label: str, plot: Callable[["Axes"], None]) -> markupsafe.Markup:
    """Return a drawing as SVG to put into a page.

    Args:
        name: Name of what it shows.
        x_label: Label of the axis.
        y_label: Label of the axis.
        plot: Draws in the colours of this module, and none of the user's text.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        plot(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    view_box = re.search(r'viewBox="[^"]*"', text)
    # The first definitions are a style sheet that would apply to the whole page.
    body = text[text.index("</defs>") + len("</defs>") : text.rindex("</svg>")]
    # Nothing refers to the ids of groups, and they recur in every drawing. The font is the page's.
    body = re.sub(r'(?<=<g) id="[^"]*"| font-family:[^;]*;', "", body).replace("xlink:href", "href")
    body = re.sub("|".join(_VARIABLES), lambda match: _VARIABLES[match[0]], body)
    label = f"{name}: {y_label} by {x_label}"
    return markupsafe.Markup(f'<svg {view_box[0] if view_box else ""} role="img" aria-label="{label}">{body}</svg>')

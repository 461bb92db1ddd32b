"""Plots of pages, which tests leave out where they do not look at them."""

import contextlib
from collections.abc import Callable, Iterator

import markupsafe
import pytest

from tpu_components.core.pages import page


def outline(name: str, x_label: str, y_label: str, plot: Callable[..., None]) -> markupsafe.Markup:
    """An empty picture with the label of the plot. matplotlib takes a fourth of an evaluation's time."""
    return markupsafe.Markup(f'<svg role="img" aria-label="{name}: {y_label} by {x_label}"></svg>')


@contextlib.contextmanager
def drawn(draw: Callable[..., markupsafe.Markup] = page.draw) -> Iterator[None]:
    """Draw the plots of pages, or draw them with another function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "draw", draw)
        yield

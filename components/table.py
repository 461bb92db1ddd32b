"""Columns of text for a terminal."""

from collections.abc import Mapping, Sequence


def lay_out(columns: Mapping[str, str], rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """A line of headings and one for each row, every column as wide as it needs.

    Args:
        columns: Headings, and on which side each column is aligned: `<` or `>`.
        rows: A cell for every column.
        width: Of the terminal, where columns are to stand closer rather than reach beyond it; 0 is any.

    Example:
        >>> lay_out({"name": "<", "chips": ">"}, [("v5e-4", "4")])
        ['name   chips', 'v5e-4      4']
    """
    lines = [tuple(columns), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    formats = [f"{side}{width}" for side, width in zip(columns.values(), widths, strict=True)]
    gap = " " if width and sum(widths) + 2 * (len(widths) - 1) > width else "  "
    return [gap.join(map(format, line, formats)).rstrip() for line in lines]

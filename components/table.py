"""Text for a terminal: in columns, and without what a terminal would obey."""

import re
from collections.abc import Mapping, Sequence


def lay_out(columns: Mapping[str, str], rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """Return a line of headings and one for each row, every column as wide as it needs.

    Args:
        columns: Headings, and on which side each column is aligned: `<` or `>`.
        rows: A cell for every column.
        width: Width of the terminal, where columns are to stand closer rather than reach beyond it; 0 is any.

    Example:
        >>> lay_out({"name": "<", "chips": ">"}, [("v5e-4", "4")])
        ['name   chips', 'v5e-4      4']
    """
    lines = [tuple(columns), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    formats = [f"{side}{width}" for side, width in zip(columns.values(), widths, strict=True)]
    gap = " " if width and sum(widths) + 2 * (len(widths) - 1) > width else "  "
    return [gap.join(map(format, line, formats)).rstrip() for line in lines]


# Those of C0 but tab and line end, DEL, those of C1, separators of lines, and what turns the direction of a text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return the text with control characters escaped: names out of data are not to write on a terminal by themselves.

    Example:
        >>> printable("cat\x1b[2J")
        'cat\\x1b[2J'
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)

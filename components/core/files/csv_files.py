"""CSV files of spreadsheet programs: delimiters, decimal commas, and common names of columns."""

import re
from collections.abc import Sequence

DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}  # Delimiters other than the comma, and their names in messages.
ALIASES = {
    "path": ("path", "filename", "file_name", "file", "filepath", "file_path", "image", "image_path"),
    "text": ("text", "review", "sentence", "comment", "content", "message"),
    "label": ("label", "labels", "class", "category", "sentiment", "target"),
}
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")


def find_delimiter(text: str) -> str:
    r"""Find the delimiter in the first line: a comma if the line has one, else `;`, a tab or `|`.

    Example:
        >>> find_delimiter("review;sentiment\n"), find_delimiter("a,b;c\n")
        (';', ',')
    """
    header = text.partition("\n")[0]
    return "," if "," in header else next((delimiter for delimiter in DELIMITERS if delimiter in header), ",")


def has_decimal_comma(cell: str) -> bool:
    """Return whether a cell is a number with a decimal comma, perhaps with points between thousands.

    Example:
        >>> [has_decimal_comma(cell) for cell in ("80,50", "-1.250,5", "80.50", "1,2,3")]
        [True, True, False, False]
    """
    return _DECIMAL_COMMA.fullmatch(cell) is not None


def with_points(cells: Sequence[str]) -> Sequence[str]:
    """Convert a column of numbers to decimal points, if one of the numbers has a decimal comma.

    Example:
        >>> with_points(["80,50", "1.250", "7"]), with_points(["80.5", "7"])
        (['80.50', '1250', '7'], ['80.5', '7'])
    """
    if not any(map(has_decimal_comma, cells)):
        return cells
    return [
        cell.replace(".", "").replace(",", ".") if has_decimal_comma(f"{cell},0") or has_decimal_comma(cell) else cell
        for cell in cells
    ]


def find_column(name: str, columns: Sequence[str]) -> str:
    """Return `name` if it is a column, else the only column that is an alias (see `ALIASES`), else `name`.

    Example:
        >>> find_column("text", ["review", "stars"]), find_column("text", ["text", "review"])
        ('review', 'text')
    """
    alike = [column for column in columns if column.strip().lower() in ALIASES.get(name, ())]
    return alike[0] if name not in columns and len(alike) == 1 else name

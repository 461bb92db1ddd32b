"""CSV files from spreadsheet programs: encodings, line endings, delimiters, quoting, and common column names."""

import codecs
import contextlib
import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.names import as_nfc

DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}  # Delimiters other than the comma, and their names in messages.
ALIASES = {
    "path": ("path", "filename", "file_name", "file", "filepath", "file_path", "image", "image_path"),
    "text": ("text", "review", "sentence", "comment", "content", "message"),
    "label": ("label", "labels", "class", "category", "sentiment", "target"),
}
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOST_CELL_CHARACTERS = 1 << 20  # Limits a quote that is never closed.
_HEADER_BYTES = 1 << 16  # Searched for the delimiter.
_SHOWN_CHARACTERS = 60
_QUOTED = re.compile(r'(?:^|(?<=[,;\t|\r\n]))"[^"]*(?:""[^"]*)*"')
# Excel reads this first line but does not write it. Other programs may pad the line with delimiters.
_NAMED_DELIMITER = re.compile(r'"?sep=([^\r\n])"?[,;\t|]*(?:\r\n|\r|\n)', re.IGNORECASE)
_BACKSLASH = "\\"
_ESCAPED = re.compile(rb'\\([\\"]?)')
# Other files that are named .csv: their first bytes, what they are, and what to do.
_OTHER_FILES = (
    (b"\x1f\x8b", "a file compressed with gzip", "Decompress it with gunzip"),
    (b"PK\x03\x04", "a ZIP file, such as .xlsx", "Save the sheet as the type CSV UTF-8 in Excel, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "an .xls file of Excel", "Save the sheet as the type CSV UTF-8 in Excel"),
    (b"PAR1\x15", "a Parquet file", "Use the source parquet:FILE"),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd", "Decompress it with unzstd"),
)
# The longer marks come first, because a mark of UTF-32 begins with a mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclasses.dataclass(frozen=True)
class CsvFile:
    r"""An opened CSV file with a header line.

    Attributes:
        location: Place of the file, for messages.
        content: The file in UTF-8, without a byte order mark and without Excel's line `sep=;`.
        delimiter: Character between the cells.
        newline: Argument of `open`. With `\n`, lines end only at `\n`; with the empty string, also at `\r`.
        escape: Character that escapes a quotation mark in a cell, or None if quotation marks are doubled instead.
        first_line: Line number in the file at which `content` starts.
    """

    location: str
    content: bytes
    delimiter: str
    newline: str = "\n"
    escape: str | None = None
    first_line: int = 1

    @property
    def columns(self) -> list[str]:
        """Names of the columns in Unicode NFC. A column without a name has an empty string."""
        with self._reading():
            _, _, header = next(self._records(), (0, [], []))
        return [as_nfc(name.strip()) for name in header]

    @property
    def has_rows(self) -> bool:
        """Whether a row follows the header."""
        with self._reading():
            return any(itertools.islice(self._records(), 1, None))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each row as a pair: the number of its first line, and its cells, one for each column.

        Raises:
            InputError: If the rest of the file cannot be read, a row has too few or too many cells, or an unclosed
                quotation mark joins several lines into one row.
        """
        columns = self.columns
        with self._reading():
            for number, lines, cells in itertools.islice(self._records(), 1, None):
                if len(lines) > 1:
                    self._check_quotes(lines, number)
                yield number, cells if len(cells) == len(columns) else self._fit(cells, columns, lines, number)

    def readable_characters(self) -> float:
        """Return the number of characters that are readable before the first malformed row.

        `open_csv` uses this number to choose among possible delimiters, line endings and escapes. Return infinity if
        every row is well-formed. The characters of the malformed row are included if the row has the wrong number of
        cells, but not if the strict mode of the module `csv` rejects the row.
        """
        count = 0
        try:
            columns = self.columns
            for number, lines, cells in self._records(strict=True):
                count += sum(map(len, lines))
                self._fit(cells, columns, lines, number)
        except (csv.Error, InputError):
            return count
        return math.inf

    def _records(self, strict: bool = False) -> Iterator[tuple[int, list[str], list[str]]]:
        """Yield the first line number, the lines and the cells of the header and of each row. Empty lines are left out.

        The list of lines is reused for the next row.
        """
        lines: list[str] = []

        def each_line() -> Iterator[str]:
            for line in io.TextIOWrapper(io.BytesIO(self.content), "utf-8", newline=self.newline):
                lines.append(line)
                yield line

        reader = csv.reader(each_line(), delimiter=self.delimiter, escapechar=self.escape, strict=strict)
        for cells in reader:
            if cells:
                yield reader.line_num - len(lines) + self.first_line, lines, cells
            lines.clear()

    def _fit(self, cells: list[str], columns: Sequence[str], lines: Sequence[str], number: int) -> list[str]:
        """Return the cells of a row, one for each column.

        Empty cells without a column name may be missing or extra.

        Raises:
            InputError: If other cells are missing or extra.
        """
        count = len(columns)
        if not any(map(str.strip, cells[count:])) and not any(columns[len(cells) :]):
            return cells[:count] + [""] * (count - len(cells))
        advice = "Correct the line."
        if any('\\"' in line for line in lines):
            advice = 'Inside a cell in quotation marks, write each quotation mark twice, not as \\".'
        elif any(f'{self.delimiter} "' in line for line in lines):
            advice = f"Remove the space between {self.delimiter!r} and the quotation mark that begins the cell."
        elif lines[-1].endswith("\r"):
            advice = "A carriage return ends the line: remove it, or put the cell that contains it in quotation marks."
        raise InputError(
            f"Malformed line {number} of {self.location}: expected values for {list(columns)}, received "
            f"{list(map(shortened, cells))}. {advice}"
        )

    def _check_quotes(self, lines: Sequence[str], number: int) -> None:
        """Check that no unclosed quotation mark joins several lines into one row.

        Raises:
            InputError: If there is an unclosed quotation mark. The message names the first line of the row.
        """
        try:
            for _ in csv.reader(lines, delimiter=self.delimiter, escapechar=self.escape, strict=True):
                pass
        except csv.Error as error:
            raise InputError(
                f"Malformed line {number} of {self.location}: an unclosed quotation mark would join {len(lines):,} "
                f"lines into one row ({error}). Remove the quotation mark, or put the whole cell in quotation marks "
                "and double each quotation mark inside the cell."
            ) from error

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return reading(self.location, "a CSV file in UTF-8", "Save the file as CSV in UTF-8.", csv.Error)


def open_csv(location: str, content: bytes) -> CsvFile:
    r"""Open a CSV file that a spreadsheet program wrote, and detect its dialect.

    - The encoding is UTF-8, or UTF-16 or UTF-32 with a byte order mark.
    - The delimiter is named in Excel's first line, such as `sep=;`, or detected in the header. If the header contains
      a comma and other delimiters, the comma is used, unless more rows are well-formed with another delimiter.
    - Lines end with `\n`, `\r\n` or `\r`.
    - A quotation mark in a cell is written twice. It may instead have the form `\"` if more rows are then well-formed.

    Args:
        location: Place of the file, for messages.
        content: Content of the file.

    Raises:
        InputError: If the file has another encoding.
    """
    csv.field_size_limit(_MOST_CELL_CHARACTERS)
    content = _as_utf8(location, content)
    head = content[:_HEADER_BYTES].decode("utf-8", "ignore")
    if match := _NAMED_DELIMITER.match(head):
        file = CsvFile(location, content[len(match[0].encode()) :], match[1], first_line=2)
    else:
        file = CsvFile(location, content, find_delimiter(head))
    candidates = [file]
    if not match and file.delimiter == ",":
        # A comma may also be part of a column's name, as in `size, cm;label`.
        header = _header_of(head)
        candidates += [dataclasses.replace(file, delimiter=other) for other in DELIMITERS if other in header]
    if content.count(b"\r") > content.count(b"\r\n"):
        candidates += [dataclasses.replace(candidate, newline="") for candidate in candidates]
    if b'\\"' in content:
        # A backslash is an escape only before a quotation mark or another backslash, and not in C:\data.
        escaped = _ESCAPED.sub(lambda match: match[0] if match[1] else rb"\\", file.content)
        candidates += [dataclasses.replace(each, content=escaped, escape=_BACKSLASH) for each in candidates]
    return file if len(candidates) == 1 else max(candidates, key=CsvFile.readable_characters)


def _as_utf8(location: str, content: bytes) -> bytes:
    """Return the content of a CSV file in UTF-8, without a byte order mark.

    Raises:
        InputError: If the content is neither UTF-8 nor in the encoding that its byte order mark indicates. Where
            possible, the message names the likely encoding or kind of file.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            expected = f"a CSV file in {encoding}, which its byte order mark indicates"
            with reading(location, expected, "Save it as UTF-8.", UnicodeError):
                return content.decode(encoding).encode()
    for start, kind, advice in _OTHER_FILES:
        if content.startswith(start):
            raise InputError(f"Cannot read {location}: expected a CSV file in UTF-8, received {kind}. {advice}.")
    content = content.removeprefix(codecs.BOM_UTF8)
    nulls = [content[place : place + 200 : 2].count(0) for place in (0, 1)]
    if max(nulls) > len(content[:200]) // 4:
        encoding = "UTF-16BE" if nulls[0] > nulls[1] else "UTF-16LE"
        raise InputError(
            f"Cannot read {location}: expected a CSV file in UTF-8. Its content looks like {encoding} without a byte "
            f"order mark. Save it as UTF-8, or convert it with `iconv -f {encoding} -t UTF-8`."
        )
    try:
        content.decode()  # The whole file, so that an error names the position in it.
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        line = content.split(b"\n", number)[number - 1].decode("cp1252", "replace").strip()
        raise InputError(
            f"Cannot read {location}: {error} in line {number}. Expected a CSV file in UTF-8. Save it as UTF-8 (in "
            f"Excel, choose the file type CSV UTF-8). If the line should be {shortened(line)!r}, the file is in "
            "Windows-1252: convert it with `iconv -f WINDOWS-1252 -t UTF-8`."
        ) from error
    return content


def shortened(value: Any) -> Any:
    """Shorten a long text for a message. Other values are returned unchanged."""
    is_long = isinstance(value, str) and len(value) > _SHOWN_CHARACTERS
    return f"{value[:_SHOWN_CHARACTERS]}… ({len(value):,} characters)" if is_long else value


def find_delimiter(text: str) -> str:
    r"""Find the delimiter of a header line.

    The delimiter is a comma if there is one outside quotation marks, otherwise `;`, a tab or `|`.

    Example:
        >>> find_delimiter("review;sentiment\n"), find_delimiter("a,b;c\n"), find_delimiter('"a, b";c\n')
        (';', ',', ';')
    """
    header = _header_of(text)
    return "," if "," in header else next((delimiter for delimiter in DELIMITERS if delimiter in header), ",")


def _header_of(text: str) -> str:
    """Return the first line that is not empty, without the cells that are in quotation marks."""
    return re.split(r"[\r\n]", _QUOTED.sub("", text.lstrip("\r\n")), maxsplit=1)[0]


def has_decimal_comma(cell: str) -> bool:
    """Return whether a cell is a number with a decimal comma, perhaps with points between thousands.

    Example:
        >>> [has_decimal_comma(cell) for cell in ("80,50", "-1.250,5", "80.50", "1,2,3")]
        [True, True, False, False]
    """
    return _DECIMAL_COMMA.fullmatch(cell) is not None


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a decimal point or comma.

    Example:
        >>> [is_number(cell) for cell in ("1,0", "-1.250,5", "7", "1e3", "007a", "nan")]
        [True, True, True, True, False, False]
    """
    return has_decimal_comma(cell) or _NUMBER.fullmatch(cell) is not None


def with_points(cells: Sequence[str], where: str) -> Sequence[str]:
    """Convert a column of numbers to decimal points if one of the numbers has a decimal comma.

    Args:
        cells: The numbers.
        where: Place of the column, for messages.

    Raises:
        InputError: If the commas or points may separate thousands instead, as in `1,250` next to `950`, or if some
            numbers have a decimal comma and others a decimal point.

    Example:
        >>> with_points(["80,50", "1.250", "7"], "a.csv"), with_points(["80.5", "7"], "a.csv")
        (['80.50', '1250', '7'], ['80.5', '7'])
    """
    separated = [cell for cell in cells if "," in cell or "." in cell]
    # If every number has a point, points are decimal: a column with separators of thousands would usually also have
    # numbers below 1,000.
    for sign in "," if len(separated) == len(cells) else ",.":
        if separated and all(_in_thousands(cell, sign) for cell in separated):
            raise InputError(
                f"The number {separated[0]!r} in {where} is ambiguous: {sign!r} may be a decimal separator or separate "
                f"thousands, because three digits follow every {sign!r} in the column. Remove thousands "
                f"separators, or write decimal numbers with a fourth decimal place, such as 1{sign}2500."
            )
    with_comma = next(filter(has_decimal_comma, cells), None)
    if with_comma is None:
        return cells
    if with_point := next(
        (cell for cell in separated if _POINT.fullmatch(cell) and not _in_thousands(cell, ".")), None
    ):
        raise InputError(
            f"Some numbers in {where} have a decimal comma and others a decimal point, such as {with_comma!r} and "
            f"{with_point!r}. Write all numbers in the same way."
        )
    return [
        cell.replace(".", "").replace(",", ".") if has_decimal_comma(f"{cell},0") or has_decimal_comma(cell) else cell
        for cell in cells
    ]


def _in_thousands(cell: str, sign: str) -> bool:
    """Return whether a sign in a number may separate thousands: `1,250` or `12.300.000`, but not `0.125`."""
    return re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(\{sign}\d{{3}})+", cell) is not None


def find_column(name: str, columns: Sequence[str]) -> str:
    """Return `name` if it is the name of a column, otherwise the only column that is an alias of `name`; see `ALIASES`.

    If there is no alias among the columns, or more than one, return `name`.

    Example:
        >>> find_column("text", ["review", "stars"]), find_column("text", ["text", "review"])
        ('review', 'text')
    """
    alike = [column for column in columns if column.strip().lower() in ALIASES.get(name, ())]
    return alike[0] if name not in columns and len(alike) == 1 else name

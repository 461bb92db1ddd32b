"""Blocks of a report. They are rendered as HTML, for a terminal or as Markdown.

`Block` lists the types. A plain string is a paragraph. Figures, cards, passages or drawings in a list are shown side by
side. `page.render` renders blocks as an HTML page, `as_text` for a terminal, and `as_markdown` as Markdown. `as_text`
and `as_markdown` leave out matrices and everything that is shown side by side. A `Markup` is not escaped, so it must be
written in the language of the output, HTML or Markdown. `as_text` leaves it out, too.
"""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.pages.markdown import in_markdown

SIGNS = {True: "✓", False: "✗"}  # Success and failure, in pages and Markdown.


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text.
        look: CSS classes: `good`, `bad`, `note`, `best`, or `path` for a text that may be wrapped at any character.
        share: Length of a bar next to the text, or strength of its colour, from 0 to 1. None means no bar and no
            colour.
        hint: Tooltip on a page, for cells of a `Matrix` and a `Passage`.
        link: URL of a link. Empty for plain text.
        strong: Whether Markdown shows it in bold type.
    """

    text: str
    look: str = ""
    share: float | None = None
    hint: str = ""
    link: str = ""
    strong: bool = False

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells. The first cell of a row is the name of the row.

    Attributes:
        columns: Heading of each column, a string or a `Cell`, mapped to its alignment, `<` (left) or `>` (right).
        rows: Rows of the table, with a cell for every column.
    """

    columns: Mapping[Any, str]
    rows: Sequence[Sequence[str | Cell]]

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, with every text converted to a `Cell`."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

    def lines(self, width: int = 0) -> list[str]:
        """Return the table as lines of text, with the headings first. Every column is as wide as its longest cell.

        Args:
            width: Width of the terminal, in characters. 0 means no limit. A table that is wider gets narrower gaps
                between its columns. If it is still too wide, its lines are truncated.

        Example:
            >>> Table({"name": "<", "chips": ">"}, [("v5e-4", "4")]).lines()
            ['name   chips', 'v5e-4      4']
        """
        lines = [[in_one_line(str(cell)) for cell in row] for row in (tuple(self.columns), *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        formats = [f"{side}{width}" for side, width in zip(self.columns.values(), widths, strict=True)]
        gap = " " if width and sum(widths) + 2 * (len(widths) - 1) > width else "  "
        laid_out = [gap.join(map(format, line, formats)).rstrip() for line in lines]
        return [cut(line, width) for line in laid_out] if width else laid_out

    def markdown(self) -> str:
        """Return the table as Markdown, or an empty string if it has no rows."""
        if not self.rows:
            return ""
        sides = "|".join("--:" if side == ">" else "---" for side in self.columns.values())
        rows = [
            [f"**{in_markdown(cell.text)}**" if cell.strong else in_markdown(cell.text) for cell in row]
            for row in self.cells
        ]
        lines = [f"| {' | '.join(row)} |" for row in [[in_markdown(str(name)) for name in self.columns], *rows]]
        return "\n".join([lines[0], f"|{sides}|", *lines[1:]])


@dataclasses.dataclass(frozen=True)
class Fields:
    """A list of names with values.

    A pair with an empty value is left out. A value with an empty name continues the previous value.
    """

    pairs: Sequence[tuple[str, str]]

    @property
    def known(self) -> list[tuple[str, str]]:
        """The pairs that have a value."""
        return [(name, value) for name, value in self.pairs if value]

    def lines(self, width: int) -> list[str]:
        """Return aligned lines with the names and values, for a terminal that is `width` columns wide."""
        indent = max((len(name) for name, _ in self.pairs), default=0) + 2
        return [line for name, value in self.known for line in _wrap(value, f"{name:<{indent}}", " " * indent, width)]

    def markdown(self) -> str:
        """Return the names and values as a Markdown list."""
        return "\n".join(f"- **{in_markdown(name)}:** {in_markdown(value)}" for name, value in self.known)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A list of sentences.

    Attributes:
        texts: The sentences.
        title: Heading of the list; may be empty.
        passed: Whether the sentences report a success, or None if they report neither success nor failure.
    """

    texts: Sequence[str | Cell]
    title: str = ""
    passed: bool | None = None

    def lines(self, width: int) -> list[str]:
        """Return the sentences for a terminal, each after a dash."""
        lines = [line for text in self.texts for line in _wrap(str(text), "- ", "  ", width)]
        return [self.title, *lines] if self.title and lines else lines

    def markdown(self) -> str:
        """Return the sentences as a Markdown list, below the title."""
        items = "\n".join(f"- {in_markdown(str(text))}" for text in self.texts)
        return f"{in_markdown(self.title)}\n\n{items}" if self.title and items else items


@dataclasses.dataclass(frozen=True)
class Figure:
    """A named value in large type, for example a metric.

    Attributes:
        name: Name of the value.
        value: The value, formatted.
        details: Remarks below the value.
        look: CSS class of the value, from `page.css`. May be empty.
    """

    name: str
    value: str
    details: Sequence[str | Cell] = ()
    look: str = ""


@dataclasses.dataclass(frozen=True)
class Card:
    """An example of the data, with its image or text.

    Attributes:
        name: Name of the example, for example the path of its file.
        content: A text, or the markup of an image.
        lines: Named values below the content, one in each line.
    """

    name: str
    content: str
    lines: Sequence[Figure]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A square matrix whose rows and columns have the same names, for example a confusion matrix.

    The CSS class of a cell is `hit`, `miss` or `none`; the colour of a cell shows its share of the row.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclasses.dataclass(frozen=True)
class Passage:
    """A text in coloured parts, shown with its line breaks.

    Each part is a `Cell`: `share` is the strength of its colour, and the look `read` means that the model did not
    predict the part.
    """

    title: str
    parts: Sequence[Cell]


@dataclasses.dataclass(frozen=True)
class Section:
    """Blocks under a heading.

    Attributes:
        title: The heading.
        blocks: Content of the section.
        is_folded: Whether the section is collapsed when a page is opened.
    """

    title: str
    blocks: "Sequence[Block]"
    is_folded: bool = False

    def lines(self, width: int) -> list[str]:
        """Return the blocks for a terminal, below the heading."""
        return [self.title, as_text(self.blocks, width)]


SideBySide = list[Figure] | list[Card] | list[Passage] | list[markupsafe.Markup]
Block = str | Table | Fields | Sentences | Section | Matrix | SideBySide


def as_text(blocks: Sequence[Block], width: int) -> str:
    """Return blocks for a terminal, separated by empty lines.

    Args:
        blocks: The blocks. Empty blocks are left out.
        width: Width of the terminal, in characters.
    """
    shown = [block for block in blocks if not isinstance(block, markupsafe.Markup | Matrix | list)]
    texts = [textwrap.wrap(block, width) if isinstance(block, str) else block.lines(width) for block in shown]
    return "\n\n".join("\n".join(lines) for lines in texts if lines)


def as_markdown(blocks: Sequence[Block], level: int = 1) -> str:
    """Return blocks as Markdown, separated by empty lines.

    Args:
        blocks: The blocks. Sections and tables without content are left out. A `Markup` must be Markdown.
        level: Level of the headings of sections, from 1 to 6.
    """
    return "\n\n".join(filter(None, (_render(block, level) for block in blocks)))


def _render(block: Block, level: int) -> str:
    if isinstance(block, str):
        return in_markdown(block)
    if isinstance(block, Section):
        content = as_markdown(block.blocks, level + 1)
        return f"{'#' * level} {in_markdown(block.title)}\n\n{content}" if content else ""
    return "" if isinstance(block, Matrix | list) else block.markdown()


def cut(text: str, width: int) -> str:
    """Return a text, truncated with an ellipsis if it is longer than `width`."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _wrap(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)

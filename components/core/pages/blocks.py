"""Blocks that people read: described once, and shown on a page, in a terminal or as Markdown.

A block is one of `Block`. A text by itself is a paragraph. Figures, cards, passages or drawings stand beside each other
in a list. `page.render` makes a page of blocks, `as_text` lines, which leave lists, matrices and markup out.
"""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from tpu_components.core.base.terminal import lay_out
from tpu_components.core.pages.markdown import in_markdown


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text, in a terminal all of it.
        look: Classes of `page.css`: `good`, `bad`, `note` or `best`.
        share: Length of a bar beside the text, or strength of its colour, from 0 to 1; None for neither.
        hint: Text under the pointer; a page shows it in a matrix or a passage.
        link: Address that the text leads to; empty for none.
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
    """Rows of cells; the first cell of a row names it.

    Attributes:
        columns: Headings, each a text or a `Cell`, and the side to which each column is aligned: `<` or `>`.
        rows: A cell for every column.
    """

    columns: Mapping[Any, str]
    rows: Sequence[Sequence[str | Cell]]

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, with a `Cell` for every text."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

    def lines(self, width: int = 0) -> list[str]:
        """Return the table for a terminal; longer lines than `width` are cut, unless it is 0."""
        columns = {str(name): side for name, side in self.columns.items()}
        laid_out = lay_out(columns, [[str(cell) for cell in row] for row in self.rows], width)
        return [cut(line, width) for line in laid_out] if width else laid_out

    def markdown(self) -> markupsafe.Markup:
        """Return the table as Markdown, in which every text is shown as it is."""
        sides = "|".join("--:" if side == ">" else "---" for side in self.columns.values())
        rows = [
            [f"**{in_markdown(cell.text)}**" if cell.strong else in_markdown(cell.text) for cell in row]
            for row in self.cells
        ]
        lines = [f"| {' | '.join(row)} |" for row in [[in_markdown(str(name)) for name in self.columns], *rows]]
        return markupsafe.Markup("\n".join([lines[0], f"|{sides}|", *lines[1:]]))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Names with values; one without a value is left out, one without a name goes on with the one before it."""

    pairs: Sequence[tuple[str, str]]

    @property
    def known(self) -> list[tuple[str, str]]:
        """The pairs that have a value."""
        return [(name, value) for name, value in self.pairs if value]

    def lines(self, width: int) -> list[str]:
        """Return the names and values for a terminal, aligned."""
        indent = max((len(name) for name, _ in self.pairs), default=0) + 2
        return [line for name, value in self.known for line in _wrap(value, f"{name:<{indent}}", " " * indent, width)]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A list of sentences.

    Attributes:
        texts: The sentences.
        title: Heading of the list; empty for none.
        passed: Whether they say that something is well; None where they give no verdict.
    """

    texts: Sequence[str | Cell]
    title: str = ""
    passed: bool | None = None

    def lines(self, width: int) -> list[str]:
        """Return the sentences for a terminal, each after a dash."""
        lines = [line for text in self.texts for line in _wrap(str(text), "- ", "  ", width)]
        return [self.title, *lines] if self.title and lines else lines


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that stands out.

    Attributes:
        name: Its name.
        value: The figure, as it is shown.
        details: Remarks below it.
        look: Class of `page.css` for the value; empty for none.
    """

    name: str
    value: str
    details: Sequence[str | Cell] = ()
    look: str = ""


@dataclasses.dataclass(frozen=True)
class Card:
    """An example.

    Attributes:
        name: Name of the example, such as its file's path.
        content: A text, or the markup of a picture.
        lines: Lines below it. The details of a line stand before its name.
    """

    name: str
    content: str
    lines: Sequence[Figure]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Cells by row and column of the same names, each of the look `hit`, `miss` or `none`, coloured by its share."""

    names: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclasses.dataclass(frozen=True)
class Passage:
    """A text whose line breaks are kept: parts that are coloured by their share, or only read (`read`)."""

    title: str
    parts: Sequence[Cell]


@dataclasses.dataclass(frozen=True)
class Section:
    """Blocks under a heading.

    Attributes:
        title: The heading.
        blocks: Content of the section.
        is_folded: Whether a page opens it only when it is asked to.
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
    """Return blocks for a terminal, an empty line between two.

    Args:
        blocks: The blocks; those that are empty are left out.
        width: Width of the terminal.
    """
    shown = [block for block in blocks if not isinstance(block, markupsafe.Markup | Matrix | list)]
    texts = [textwrap.wrap(block, width) if isinstance(block, str) else block.lines(width) for block in shown]
    return "\n\n".join("\n".join(lines) for lines in texts if lines)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that is longer than `width`, with a sign of it."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _wrap(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)

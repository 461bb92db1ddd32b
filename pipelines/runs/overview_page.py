"""The page of a workspace: every run that is kept, the newest first, its headline figures and its own pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE, REPORT_FILE
from tpu_components.core.files import storage
from tpu_components.core.pages.blocks import Block, Cell, Sentences, Table
from tpu_pipelines.runs import history

INDEX_FILE, COMPARISON_FILE = "index.html", "comparison.html"
_PAGES = {"report": f"evaluation/{REPORT_FILE}", "preflight": f"preflight/{PREFLIGHT_REPORT_FILE}"}
_COLUMNS = history.COLUMNS | dict.fromkeys(["training", *_PAGES], "<")


def write_index(workspace: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a workspace's runs; returns where.

    Args:
        workspace: Folder for runs.
        rows: Rows of `history.as_rows`.
    """
    from tpu_components.core.pages import page

    rows = sorted(rows, key=lambda row: row["ended"], reverse=True)
    # A page of the same place as that of `compare`, and linked where there is one.
    is_compared = (workspace / COMPARISON_FILE).is_file()
    head: list[Block] = [Sentences([Cell("The last comparison", link=COMPARISON_FILE)])] if is_compared else []
    title = f"{workspace.resolve().name}: {len(rows)} runs"
    text = page.render(title, [Table(_COLUMNS, [_row(workspace, row) for row in rows])], head)
    storage.write_bytes(workspace / INDEX_FILE, text.encode())
    return workspace / INDEX_FILE


def _row(workspace: Path, row: Mapping[str, Any]) -> list[str | Cell]:
    folder = Path(row["directory"])
    place = folder.relative_to(workspace).as_posix()
    links: list[str | Cell] = [
        Cell(name, link=quote(f"{place}/{file}")) if (folder / file).is_file() else "" for name, file in _PAGES.items()
    ]
    return [*history.cells_of(row), Cell(row["training"], "note"), *links]

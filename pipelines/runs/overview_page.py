"""The page of a workspace: every run that is kept, the newest first, its headline figures and its own pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.states import result_of
from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE, REPORT_FILE
from tpu_components.core.examples.interface import judged_figure
from tpu_components.core.files import storage
from tpu_pipelines.runs import history

INDEX_FILE = "index.html"
_PAGES = {"report": f"evaluation/{REPORT_FILE}", "preflight": f"preflight/{PREFLIGHT_REPORT_FILE}"}


def write_index(workspace: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a workspace's runs; returns where.

    Args:
        workspace: Folder for runs.
        rows: Rows of `history.as_rows`.
    """
    from tpu_components.core.pages import page

    template = page.environment(Path(__file__).parent).get_template("overview.html.jinja")
    shown = [_shown(workspace, row) for row in sorted(rows, key=lambda row: row["ended"], reverse=True)]
    # A page of the same place as that of `compare`, and linked where there is one.
    has_comparison = (workspace / "comparison.html").is_file()
    text = template.render(rows=shown, name=workspace.resolve().name, has_comparison=has_comparison)
    storage.write_bytes(workspace / INDEX_FILE, text.encode())
    return workspace / INDEX_FILE


def _shown(workspace: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    metrics, folder = row["metrics"], Path(row["directory"])
    judged = judged_figure(metrics)
    place = folder.relative_to(workspace).as_posix()
    return {
        "name": row["name"],
        "number": "" if row["number"] == history.LATEST else row["number"],
        "ended": row["ended"][:16].replace("T", " "),
        "result": result_of(row["status"]),
        "score": f"{judged.replace('_', ' ')} {metrics[judged]:.4f}" if judged else "–",
        "loss": f"{metrics['loss']:.4f}" if "loss" in metrics else "–",
        "training": row["training"],
        "mib": f"{row['num_bytes'] / 2**20:,.1f}",
        "pages": {name: f"{place}/{file}" for name, file in _PAGES.items() if (folder / file).is_file()},
    }

"""The export of a run's model by command, whatever the gate says of it: to try it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.artifacts import EXPORT_FILE
from components.errors import InputError
from pipelines.config import read_export
from pipelines.history import SUMMARY_FILE


def export_run(run_dir: Path, overrides: Sequence[str], output: Path) -> dict[str, Any]:
    """Export the model that a run has trained.

    Args:
        run_dir: The run's folder, with `records/` and `model/` in it.
        overrides: `export.key=value` each, over what the run was configured with.
        output: The export's folder; an export that it holds is replaced.

    Returns:
        What `export.json` holds.

    Raises:
        InputError: If it is no run's folder, or its model cannot be exported.
    """
    summary = run_dir / SUMMARY_FILE
    missing = [name for name in (SUMMARY_FILE, "records", "model") if not (run_dir / name).exists()]
    if missing:
        raise InputError(
            f"Cannot export {run_dir}: it has no {missing[0]}, as the folder of a run that has trained does. Name "
            "one, as runs/digits."
        )
    params = read_export(json.loads(summary.read_bytes())["config"]["export"], overrides)
    from components.export_model import export_model

    export_model(params, run_dir / "records", run_dir / "model", output)
    return json.loads((output / EXPORT_FILE).read_bytes())

"""The export of a run's model by command, whatever the gate says of it: to try it."""

from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.results.export_info import ExportInfo
from tpu_pipelines.checking.workspace import SUMMARY_FILE
from tpu_pipelines.config.configuration import read_export
from tpu_pipelines.runs.summary import Summary


def export_run(run_dir: Path, overrides: Sequence[str], output: Path) -> ExportInfo:
    """Export the model that a run has trained.

    Args:
        run_dir: The run's folder, with `records/` and `model/` in it.
        overrides: `export.key=value` each, over what the run was configured with.
        output: The export's folder; an export that it holds is replaced.

    Raises:
        InputError: If it is no run's folder, or its model cannot be exported.
    """
    missing = [name for name in (SUMMARY_FILE, "records", "model") if not (run_dir / name).exists()]
    if missing:
        raise InputError(
            f"Cannot export {run_dir}: it has no {missing[0]}, as the folder of a run that has trained does. Name "
            "one, as runs/digits."
        )
    params = read_export(Summary.load(run_dir).config.get("export", {}), overrides)
    from tpu_components.export_model import export_model

    export_model(params, run_dir / "records", run_dir / "model", output)
    return ExportInfo.load(output)

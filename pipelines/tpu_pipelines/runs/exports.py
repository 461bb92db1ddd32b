"""Finds exports by the name of a run or of a registered version, and exports a run's model on request."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import EXPORT_FILE
from tpu_components.core.files.location import Location
from tpu_components.core.registry.folder import list_models
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import (
    CHAMPION,
    EXPORT_DIR,
    MODEL_NAME,
    VERSION_OR_ALIAS,
    VERTEX_MODEL_NAME,
    VERTEX_ROOT,
)
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.core.sources.kinds import RECORDS, SOURCES
from tpu_components.core.sources.source_ref import SourceRef
from tpu_pipelines.config.configuration import read_export
from tpu_pipelines.runs import history
from tpu_pipelines.runs.summary import Summary
from tpu_pipelines.starting.data_overview import source_of


def find_export(name: str, workspace: Path) -> str:
    """Return the export folder, local or on gs://, for a name. Its files are not checked.

    Args:
        name: An export folder, a run's folder, a version's folder, or `NAME`, `NAME@ALIAS` or `NAME@VERSION` in the
            workspace's registry. For another registry, the name begins with its path. NAME alone means the champion.
        workspace: Folder for runs, with the registry.

    Raises:
        InputError: If there is no export with this name.
    """
    path = Path(name)
    if (named := parse_reference(name)) is None:
        if Location(name).is_remote:
            return name
        if folder := next((place for place in (path, path / EXPORT_DIR) if (place / EXPORT_FILE).is_file()), None):
            return str(folder)
        named = parse_reference(_in_workspace(name if "@" in name else f"{name}@{CHAMPION}", workspace))
    if named is None:
        raise InputError(
            f"Cannot find {name}: expected an export, the path of a run's folder, or NAME, NAME@ALIAS or NAME@VERSION "
            f"of the registry. Received: {_describe(path)}. The registry {workspace / 'registry'} contains "
            f"{', '.join(_models(workspace)) or 'no model'}. `tpu-pipelines registry list` shows the registered "
            "models, and `tpu-pipelines export RUN` exports the model of a run that the gate has rejected."
        )
    if (version := named.find()) is None:
        raise InputError(
            f"Cannot find {name}: no version in {named.registry.root} has this alias. `tpu-pipelines registry list` "
            "shows the versions."
        )
    return f"{version.uri}/{EXPORT_DIR}"


def _describe(path: Path) -> str:
    """Describe a path without an export, for an error message.

    If other runs with the same name have an export, the text names the latest of them.
    """
    if not path.exists():
        return "no such folder"
    if (summary := Summary.find(path)) is None:
        return f"a folder without {EXPORT_FILE}, directly or in {EXPORT_DIR}/"
    others = [folder for _, folder in history.runs_of(path) if (folder / EXPORT_DIR / EXPORT_FILE).is_file()]
    return f"a run without an export, {summary.status}" + "".join(f"; {other} has an export" for other in others[-1:])


def _in_workspace(text: str, workspace: Path) -> str:
    """Return `REGISTRY/NAME@VERSION` for `NAME@VERSION` in the workspace's registry.

    Return an empty string if the registry does not contain the model.
    """
    match = re.fullmatch(f"({MODEL_NAME})@({VERSION_OR_ALIAS})", text)
    return f"{workspace / 'registry'}/{text}" if match and match[1] in _models(workspace) else ""


def _models(workspace: Path) -> list[str]:
    return [model.model_name for model in list_models(workspace / "registry")]


def name_on_vertex(name: str) -> str:
    """Return the model's name from a version's resource name on Vertex AI.

    The signature of the version contains this name. Return an empty string for any other `name`.

    Example:
        >>> name_on_vertex("projects/my-project/locations/us-west1/models/digits@champion")
        'digits'
        >>> name_on_vertex("digits@champion")
        ''
    """
    match = re.fullmatch(rf"{VERTEX_ROOT}/({VERTEX_MODEL_NAME})@.+", name)
    return match[1] if match else ""


def find_compared(name: str, workspace: Path, others: str = "") -> str:
    """Find what the option `--against` refers to, and return it in a form that needs no workspace.

    For a version in the workspace's registry, return `REGISTRY/NAME@VERSION` or `REGISTRY/NAME@ALIAS`. Return other
    values unchanged.

    Args:
        name: `NAME@ALIAS` or `NAME@VERSION` in the workspace's registry, `REGISTRY/NAME@…` in another registry, or a
            path.
        workspace: Folder for runs, with the registry.
        others: Description of other accepted values, for the error message. Empty if only versions are accepted.

    Raises:
        InputError: If the workspace's registry does not contain the model, and there is no file or folder with this
            name. Whether the version exists is not checked.
    """
    if parse_reference(name) is not None or (
        others and (Location(name).is_remote or os.path.exists(os.path.expanduser(name)))
    ):
        return name
    if here := _in_workspace(name, workspace):
        return here
    raise InputError(
        f"Cannot compare with {name!r}, because it does not exist. Expected NAME@VERSION or NAME@ALIAS in the "
        "workspace's registry, such as digits@champion, or REGISTRY/NAME@VERSION in another "
        f"registry{others and f', or {others}'}. The registry {workspace / 'registry'} contains "
        f"{', '.join(_models(workspace)) or 'no model'}."
    )


def is_source(text: str) -> bool:
    """Return whether an input of `predict` is a data source instead of a single example.

    A data source is a Parquet file, or a kind and a path such as `csv:FILE`. The file or folder must exist.
    """
    ref = SourceRef.parse(text)
    is_parquet = text.lower().endswith(".parquet") and os.path.exists(text)
    return is_parquet or (ref.kind in SOURCES and os.path.exists(ref.place))


def source_to_answer(inputs: Sequence[str]) -> str:
    """Return the only input of `predict --output` as a source, for example `images:DIR`.

    Raises:
        InputError: If there are several inputs, or if the kind of the source cannot be determined.
    """
    if len(inputs) != 1:
        raise InputError(
            "--output requires exactly one INPUT: a folder, a table or a source such as csv:FILE. Received: "
            f"{len(inputs)} inputs. Put them into one folder, or list them in a CSV file."
        )
    return inputs[0] if SourceRef.parse(inputs[0]).kind == RECORDS else source_of(inputs[0])


def export_run(run_dir: Path, overrides: Sequence[str], output: Path) -> ExportInfo:
    """Export the model that a run has trained.

    Args:
        run_dir: Folder of the run, with `records/` and `model/`.
        overrides: Changes to the run's configuration, each as `export.key=value`.
        output: Folder of the export. An existing export is replaced.

    Raises:
        InputError: If `run_dir` is not a run's folder, or its model cannot be exported.
    """
    params = read_export(Summary.load(run_dir).config.get("export", {}), overrides)
    from tpu_components.export_model import export_model

    export_model(params, run_dir / "records", run_dir / "model", output)
    return ExportInfo.load(output)

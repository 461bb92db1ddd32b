"""Paths of a workspace, and checks that a run may write to them.

The paths are those of a run's results, of earlier runs and of the registry.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.models.lookup import named_files
from tpu_components.core.registry.reference import is_on_vertex
from tpu_components.core.sources.containers import split_pattern
from tpu_components.deploy_model.params import VERTEX
from tpu_pipelines.config.configuration import Config

SUMMARY_FILE = "summary.json"
LOG_FILE = "run.log"  # Output of the steps of a local run.
HISTORY_SUFFIX = ".runs"  # Suffix of the folder of earlier runs, after their name.


def history_dir(run_dir: Path) -> Path:
    """Return the folder that contains the earlier runs with the same name as `run_dir`."""
    return run_dir.with_name(run_dir.name + HISTORY_SUFFIX)


def check_history(run_dir: Path) -> None:
    """Check that earlier runs can be kept next to a run.

    Raises:
        InputError: If `history_dir` is a file, a link or a run.
    """
    directory = history_dir(run_dir)
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()) or (directory / SUMMARY_FILE).exists():
        raise InputError(
            f"Cannot store earlier runs in {directory}: expected a folder of earlier runs, received a file, a link "
            "or a single run. Use another workspace or run name."
        )


def with_registry(config: Config, workspace: Path) -> Config:
    """Return the configuration with the full path of its registry. The default is `workspace/registry`."""
    named = config.deploy.registry if config.deploy else ""
    config = config.on_registry(named or str((workspace / "registry").absolute()))
    if not config.deploy or is_on_vertex(config.deploy.registry) or not Location(config.deploy.registry).is_path:
        return config
    if config.deploy.registry == VERTEX:
        raise InputError(
            "deploy.registry=vertex is not supported for a run on this machine, which has no project. Use "
            "deploy.registry=projects/PROJECT/locations/REGION/models, or remove the setting."
        )
    registry = Path(config.deploy.registry or workspace / "registry").absolute()
    return config.changed("deploy", registry=str(registry))


def check_run_dir(config: Config, run_dir: Path) -> None:
    """Check that a run may write to a folder.

    The folder must be writable, and either empty or the folder of an earlier run. It must not overlap with the inputs
    or the registry of this run.

    Raises:
        InputError: If the run may not write to the folder.
    """
    storage.require_writable(run_dir)
    check_history(run_dir)
    is_run = any((run_dir / name).is_file() for name in (SUMMARY_FILE, LOG_FILE))
    if run_dir.is_dir() and any(run_dir.iterdir()) and not is_run:
        raise InputError(
            f"Cannot write to {run_dir}: expected an empty folder or an earlier run, received other files. "
            "Use another workspace or name."
        )
    for place in (run_dir, history_dir(run_dir)):
        _check_apart(config, place)


def _check_apart(config: Config, place: Path) -> None:
    """Check that a folder that the run replaces or cleans does not overlap with the run's inputs and registry."""
    ours = place.resolve()
    for what, named in _others(config):
        theirs = Path(named).resolve()
        if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
            raise InputError(
                f"Cannot write to {place}: it overlaps with {what} {named!r}, and a run replaces, moves and deletes "
                f"files in its folder. Use another workspace or name, or another place for {what}."
            )


def _others(config: Config) -> Iterator[tuple[str, str]]:
    """Yield key and path of every setting with a local file or folder: the registry, and inputs that exist."""
    if config.deploy and not config.deploy.is_on_vertex and Location(config.deploy.registry).is_path:
        yield "deploy.registry", config.deploy.registry
    data = config.data_location
    if not os.path.exists(data):  # A name may contain the signs of a pattern.
        data, _ = split_pattern(data)
    inputs = [
        ("data.source", data),
        ("gate.champion", config.gate.champion),
        ("training.initial_model", config.training.initial_model),
        ("model", config.training.model if config.training.model.endswith((".py", ".keras")) else ""),
        *(("model.files", file) for file in config.model_files),
        *(("model.parameters", file) for file in named_files(config.training.model_parameters)),
    ]
    yield from ((what, path) for what, path in inputs if Location(path).is_path and os.path.exists(path))

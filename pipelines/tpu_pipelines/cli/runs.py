"""Commands about runs on this machine: run, export, compare, runs, board."""

import argparse
import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import termination
from tpu_components.core.base.errors import BAD_INPUT, DONE, FAILED, REJECTED, InputError, did_you_mean
from tpu_components.core.base.formatting import byte_size
from tpu_components.core.base.states import COLOURS, State
from tpu_components.core.base.terminal import in_one_line
from tpu_pipelines.cli.output import show, show_text, tell_error, tell_hint
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.platforms.local.runner import Runner
from tpu_pipelines.retraining.job_summary import RunFindings, render_runs
from tpu_pipelines.runs import comparison, history
from tpu_pipelines.runs.exports import export_run
from tpu_pipelines.runs.run_local import RunOutcome, delete_runs, run_local
from tpu_pipelines.runs.summary import as_text, describe_export

_ACTIONS = ("list", "clean", "delete")  # Actions of the command `runs`.


def run(arguments: argparse.Namespace) -> int:
    """Run the pipeline on this machine and return the exit code."""
    config = load_config(arguments.config, arguments.overrides)
    outcome = run_local(
        config,
        arguments.workspace,
        Runner(arguments.runner),
        arguments.force,
        tell=lambda outcome: tell_outcome(outcome, arguments.json),
    )
    return code_of(outcome)


def tell_outcome(outcome: RunOutcome, as_json: bool, facts: Mapping[str, Any] = {}) -> None:
    """Print the outcome of a local run. As JSON, it also contains `facts`."""
    summary = outcome.summary
    if as_json:
        show({**summary.as_dict(), **facts}, "", as_json)
    else:
        show_text(as_text(summary), colours=COLOURS)
    if summary.status == State.FAILED:
        tell_error(summary.error)
    if summary.status == State.REJECTED:
        run_dir = os.path.relpath(Path(summary.artifacts["evaluation"]).parent)
        tell_hint(f"to try the model anyway: tpu-pipelines export {shlex.quote(run_dir)}")
    sys.stdout.flush()


def code_of(outcome: RunOutcome) -> int:
    """Return the exit code of a local run.

    The code is 0 for succeeded, 1 for failed, 2 for failed because of a user's mistake, and 3 for rejected by the gate.
    """
    if outcome.summary.status == State.FAILED:
        return BAD_INPUT if outcome.is_input_error else FAILED
    return DONE if outcome.summary.status == State.SUCCEEDED else REJECTED


def export(arguments: argparse.Namespace) -> int:
    """Export the model of a run, even if the gate has rejected it. Return the exit code."""
    output = arguments.output or arguments.run / "export"
    exported = export_run(arguments.run, arguments.overrides, output)
    text = "\n".join([*describe_export(exported), "", os.path.relpath(output)])
    show(exported.as_dict(), text, arguments.json)
    return DONE


def compare(arguments: argparse.Namespace) -> int:
    """Show runs side by side and return the exit code."""
    folders, others = comparison.select_runs(arguments.runs)
    path = arguments.output or folders[0].resolve().parent / "comparison.html"
    comparison.check_page(path)
    result = comparison.compare(folders)
    if others:
        tell_hint(f"left out because they are not finished runs: {', '.join(map(str, others))}")
    comparison.write_page(result, path)
    if not arguments.markdown:
        show(result.as_dict(), f"{comparison.as_text(result)}\n\n{os.path.relpath(path)}", arguments.json)
        return DONE
    show_text(comparison.as_markdown(result))
    if len(folders) > 1:
        labels = (run.label for run in result.runs)
        if more := render_runs(dict(zip(labels, map(RunFindings.of_folder, folders), strict=True))):
            show_text(f"\n{more}")
    return DONE


def runs(arguments: argparse.Namespace) -> int:
    """List the runs of a workspace, or delete some. Return the exit code."""
    action, name, workspace = arguments.action, arguments.name, arguments.workspace
    if action not in _ACTIONS:
        if name:
            raise InputError(
                f"Unknown action {action!r}: expected list, clean or delete.{did_you_mean(action, _ACTIONS)}"
            )
        action, name = "list", action
    if action == "list":
        rows = history.as_rows(workspace, name)
        if not name:
            try:
                tell_hint(f"the list as a page: {os.path.relpath(history.write_index(workspace, rows))}")
            except (InputError, OSError) as error:  # For example on a read-only disk: the list is printed nevertheless.
                tell_hint(f"cannot write the page: {error}")
        show(rows, history.as_table(rows), arguments.json)
        return DONE
    if action == "delete":
        if not name:
            raise InputError("The name of the run to delete is missing. Use tpu-pipelines runs delete NAME, or NAME@3.")
        run, number = history.find_run(workspace, name)
        if not _is_confirmed(f"run {run}, {number}", arguments):
            return DONE
        deleted = [delete_runs(workspace, run, number)]
    else:
        if arguments.keep < 0:
            raise InputError(f"--keep must be at least 0. Received: {arguments.keep}.")
        known = history.names(workspace)
        if name and name not in known:
            raise InputError(
                f"There is no run named {name!r} in {workspace}: {history.expect_one_of(known)}. Check the name and "
                "--workspace."
            )
        names = [name] if name else known
        surplus = sum(len(history.find_surplus(workspace / name, arguments.keep)) for name in names)
        if surplus and not _is_confirmed(f"{surplus} earlier runs of {', '.join(names)}", arguments):
            return DONE
        deleted = [delete_runs(workspace, name, keep=arguments.keep) for name in names]
    places = [str(place) for each in deleted for place in each.places]
    freed = byte_size(sum(each.num_bytes for each in deleted))
    line = f"deleted: {len(places)} {'run' if len(places) == 1 else 'runs'}, {freed} freed"
    show(places, "\n".join([line, *places]), arguments.json)
    return DONE


def _is_confirmed(what: str, arguments: argparse.Namespace) -> bool:
    """Return whether the user confirms a deletion, with --yes or with an answer on the terminal.

    Raises:
        InputError: If there is neither a terminal nor --yes.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(f"Nothing was deleted, because a confirmation is missing. Add --yes to delete {what}.")
    print(in_one_line(f"Delete {what}? y or n [n]: "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    show_text("nothing was deleted", sys.stderr)
    return False


def board(arguments: argparse.Namespace) -> int:
    """Show the curves of runs in TensorBoard and return the exit code."""
    known = sorted({*history.names(arguments.workspace), *history.unfinished(arguments.workspace)})
    logs = {
        name: folder
        for name in arguments.names or known
        if (folder := history.curves_of(arguments.workspace, name)) is not None
    }
    if not logs or set(arguments.names) - set(logs):
        raise InputError(
            f"There are no curves of {', '.join(arguments.names) or 'any run'} in {arguments.workspace}: "
            f"{history.expect_one_of(logs or known)}. Check the names and --workspace."
        )
    importlib.import_module("tensorboard")  # If it is missing, the error names the extra to install.
    where = ",".join(f"{name}:{folder.resolve()}" for name, folder in logs.items())
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir_spec", where, "--port", str(arguments.port)]
    with termination.heard():  # The error ends TensorBoard, too.
        return subprocess.run(command, check=False).returncode and FAILED

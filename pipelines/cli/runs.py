"""Commands about runs on this machine: run, compare."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base.states import COLOURS, NOT_PROMOTED, PROMOTED, State
from tpu_pipelines.cli.options import (
    BAD_INPUT,
    DONE,
    FAILED,
    REJECTED,
    add_config,
    add_workspace,
    show_text,
    tell_error,
    tell_hint,
    user_path,
)

_ACTIONS = ("list", "clean", "delete")  # Of `runs`.
_HEADLINES = (
    "bits_per_character",
    "accuracy",
    "micro_f1",
    "r2",
    "mean_absolute_error",
    "loss",
    "macro_f1",
    "mean_average_precision",
)


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        epilog="Example: tpu-pipelines run digits --set training.epochs=3",
        help="run the whole pipeline on this machine",
        description="Run the whole pipeline on this machine. Unchanged steps are taken from the last run.",
    )
    add_config(run, default="digits")
    add_workspace(run)
    run.add_argument("--json", action="store_true", help="print the summary, and nothing else, on stdout")
    run.add_argument("--runner", choices=("subprocess", "docker"), default="subprocess")
    run.add_argument("--force", action="store_true", help="run every step, also those that are unchanged")
    run.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.runs.run_local import run_local

    config = load_config(arguments.config, arguments.overrides)
    return tell_outcome(run_local(config, arguments.workspace, arguments.runner, arguments.force), arguments.json)


def tell_outcome(outcome: Any, as_json: bool, facts: Mapping[str, Any] = {}) -> int:
    """Print what became of a local run; the exit code that goes with it."""
    summary = outcome.summary
    if as_json:
        print(json.dumps({**summary.as_dict(), **facts}))
    else:
        show_text(_describe(summary), colours=COLOURS)
    if summary.status == State.FAILED:
        tell_error(summary.error)
        return BAD_INPUT if outcome.is_input_error else FAILED
    if summary.status == State.REJECTED:
        run_dir = os.path.relpath(Path(summary.artifacts["evaluation"]).parent)
        tell_hint(f"to try the model all the same: tpu-pipelines export {run_dir}")
    return DONE if summary.status == State.SUCCEEDED else REJECTED


def _describe(summary: Any) -> str:
    from tpu_components.core.base.terminal import in_one_line

    lines = [f"{summary.config.get('name', 'run')}: {summary.status} in {summary.seconds:.1f} s", ""]
    for name, step in summary.steps.items():
        time = State.CACHED if step.cached else f"{step.seconds:.1f} s" if step.seconds else ""
        lines.append(f"  {name:<20}{step.state:<11}{time:>8}")
    if summary.preflight:
        lines += ["", f"  preflight: {summary.preflight.summary}"]
    if metrics := summary.metrics:
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in _HEADLINES if metrics.get(name) is not None)
        lines += ["", f"  test: {shown} ({metrics.get('num_examples') or 0:,} examples)"]
        lines += [f"  gate: {PROMOTED if summary.gate.promote else NOT_PROMOTED}"]
        lines += [f"        {rule}" for rule in summary.gate.reasons]
    if summary.export:
        lines += _describe_export(summary.export)
    if deployment := summary.deployment:
        line = f"  {deployment.model_name} version {deployment.version} is the {deployment.alias}"
        lines += ["", line + (f", after {deployment.previous}" if deployment.previous else "")]
    if summary.artifacts:
        lines += [""] + [f"  {name:<18}{os.path.relpath(path)}" for name, path in summary.artifacts.items()]
    return "\n".join(map(in_one_line, lines))


def _describe_export(export: Any) -> list[str]:
    lines = []
    for name, facts in export.formats.items():
        judged = "" if facts.score is None else f"{export.judged} {facts.score:.4f}  "
        lines.append(f"  {name:<12}{facts.bytes / 2**20:8.2f} MiB  {judged}{facts.latency} ms for one  {facts.rate}/s")
    return lines + [f"  {name:<12}left out: {reason}" for name, reason in export.left_out.items()]


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        epilog="Example: tpu-pipelines export runs/digits --set export.max_int8_accuracy_drop=0.02",
        help="export a run's model whatever the gate says, to try it",
        description="Export the model that a run has trained, also one that the gate has rejected, to try it with "
        "`predict` and `serve`. Registers and promotes nothing; the next run of that name takes the export away.",
    )
    export.add_argument("run", type=user_path, metavar="RUN", help="the folder of a run, as runs/digits")
    export.add_argument("--set", action="append", default=[], metavar="EXPORT.KEY=VALUE", dest="overrides")
    export.add_argument("--output", type=user_path, metavar="DIR", help="the export (default: RUN/export)")
    export.add_argument("--json", action="store_true", help="print export.json, and nothing else, on stdout")
    export.set_defaults(command=_export)


def _export(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.runs.export_run import export_run

    output = arguments.output or arguments.run / "export"
    export = export_run(arguments.run, arguments.overrides, output)
    show_text(
        json.dumps(export.as_dict())
        if arguments.json
        else "\n".join([*_describe_export(export), "", os.path.relpath(output)])
    )
    return DONE


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        epilog="Example: tpu-pipelines compare runs/digits runs/mnist_cnn",
        help="several runs side by side",
        description="Show runs side by side: metrics, speed, sizes, and in what their configurations differ; and write "
        "a page that shows their training curves too.",
    )
    compare.add_argument(
        "runs",
        nargs="+",
        type=user_path,
        metavar="RUN",
        help="the folder of a run, as runs/digits; others are left out",
    )
    compare.add_argument(
        "--output", type=user_path, metavar="FILE", help="the page (default: comparison.html beside the first run)"
    )
    forms = compare.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    forms.add_argument("--markdown", action="store_true", help="print Markdown tables, for a pull request")
    compare.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.runs import comparison

    runs, others = comparison.select_runs(arguments.runs)
    path = arguments.output or runs[0].resolve().parent / "comparison.html"
    comparison.check_page(path)
    result = comparison.compare(runs)
    if others:
        tell_hint(f"left out, as no run that has ended: {', '.join(map(str, others))}")
    comparison.write_page(result, path)
    if arguments.json:
        print(json.dumps(result.as_dict()))
    elif arguments.markdown:
        show_text(comparison.as_markdown(result))
        if len(runs) > 1:
            from tpu_pipelines.retraining.job_summary import render_runs
            from tpu_pipelines.runs.run_findings import RunFindings

            labels = (run.label for run in result.runs)
            if more := render_runs(dict(zip(labels, map(RunFindings.of_folder, runs), strict=True))):
                show_text(f"\n{more}")
    else:
        show_text(f"{comparison.as_text(result)}\n\n{os.path.relpath(path)}")
    return DONE


def _add_runs(commands: Any) -> None:
    runs = commands.add_parser(
        "runs",
        epilog="Example: tpu-pipelines runs clean digits --keep 5",
        help="list the runs of a workspace, or delete some",
        description="[list] [NAME]: every run that is kept, of one name or all: when it ended, what became of it, its "
        "figures and its size; of all also as a page, index.html. clean [NAME]: delete earlier runs, and cached steps "
        "that no run is made of any more. delete NAME: delete the latest run of a name; NAME@3 the earlier one of that "
        "number. Both ask first.",
    )
    runs.add_argument("action", nargs="?", default="list", metavar="list|clean|delete", help="(default: list)")
    runs.add_argument("name", nargs="?", default="", metavar="NAME", help="of the configuration (default: all)")
    add_workspace(runs)
    runs.add_argument("--keep", type=int, default=0, metavar="N", help="clean: earlier runs to keep (default: 0)")
    runs.add_argument("--yes", action="store_true", help="clean, delete: do not ask; needed without a terminal")
    runs.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    runs.set_defaults(command=_runs)


def _runs(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError, did_you_mean
    from tpu_pipelines.runs import history

    action, name = arguments.action, arguments.name
    if action not in _ACTIONS:
        if name:
            raise InputError(
                f"Unknown action {action!r}: expected list, clean or delete.{did_you_mean(action, _ACTIONS)}"
            )
        action, name = "list", action
    if action == "list":
        rows = history.as_rows(arguments.workspace, name)
        if not name:
            from tpu_pipelines.runs.overview_page import write_index

            try:
                index = write_index(arguments.workspace, rows)
                tell_hint(f"the same as a page: {os.path.relpath(index)}")
            except (InputError, OSError) as error:  # As on a disk that is read-only: the list is there all the same.
                tell_hint(f"no page is written: {error}")
        if arguments.json:
            print(json.dumps(rows))
        else:
            show_text(history.as_table(rows))
        return DONE
    from tpu_pipelines.runs.run_local import clean_runs, delete_run

    workspace = arguments.workspace
    if action == "delete":
        if not name:
            raise InputError("Missing: the run to delete. Expected tpu-pipelines runs delete NAME, or NAME@3.")
        run, number = history.find_run(workspace, name)
        if not _is_confirmed(f"run {run}, {number}", arguments):
            return DONE
        deleted = [delete_run(workspace, name)]
    else:
        if arguments.keep < 0:
            raise InputError(f"Expected --keep of 0 or more. Received: {arguments.keep}.")
        names = [name] if name else history.names(workspace)
        earlier = sum(max(0, len([*history.runs_of(workspace / name)]) - 1 - arguments.keep) for name in names)
        if earlier and not _is_confirmed(f"{earlier} earlier runs of {', '.join(names)}", arguments):
            return DONE
        deleted = [clean_runs(workspace, name, arguments.keep) for name in names]
    places = [str(place) for each in deleted for place in each.places]
    if arguments.json:
        print(json.dumps(places))
    else:
        freed = sum(each.num_bytes for each in deleted) / 2**20
        show_text(
            "\n".join(
                [f"deleted: {len(places)} {'run' if len(places) == 1 else 'runs'}, {freed:,.1f} MiB freed", *places]
            )
        )
    return DONE


def _is_confirmed(what: str, arguments: argparse.Namespace) -> bool:
    """Ask on a terminal whether something may be deleted, unless --yes says so.

    Raises:
        InputError: If there is neither a terminal nor --yes.
    """
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.base.terminal import in_one_line

    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(f"Nothing was deleted: expected --yes, which confirms that this may go: {what}.")
    print(in_one_line(f"Delete {what}? y or n [n]: "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    show_text("nothing was deleted", sys.stderr)
    return False


def _add_board(commands: Any) -> None:
    board = commands.add_parser(
        "board",
        epilog="Example: tpu-pipelines board digits mnist_cnn",
        help="show the curves of runs in TensorBoard",
        description="Start TensorBoard on the curves of the latest runs, also of one that trains; ends with Ctrl-C.",
    )
    board.add_argument("names", nargs="*", metavar="NAME", help="of the configurations (default: all)")
    add_workspace(board)
    board.add_argument("--port", type=int, default=6006, metavar="N", help="0 takes a free one (default: 6006)")
    board.set_defaults(command=_board)


def _board(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_pipelines.runs import history

    known = sorted({*history.names(arguments.workspace), *history.unfinished(arguments.workspace)})
    logs = {
        name: folder
        for name in arguments.names or known
        if (folder := history.curves_of(arguments.workspace, name)) is not None
    }
    if not logs or set(arguments.names) - set(logs):
        raise InputError(
            f"No curves of {', '.join(arguments.names) or 'any run'} in {arguments.workspace}: expected some of "
            f"{', '.join(logs or known) or 'none'}. Check --workspace."
        )
    where = ",".join(f"{name}:{folder.resolve()}" for name, folder in logs.items())
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir_spec", where, "--port", str(arguments.port)]
    return subprocess.run(command, check=False).returncode and FAILED


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_run,
    _add_export,
    _add_compare,
    _add_runs,
    _add_board,
)

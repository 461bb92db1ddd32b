"""Commands before a run: init, check, preflight."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from tpu_components.core.base.errors import BAD_INPUT, DONE, REJECTED, InputError
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
from tpu_components.preflight_training.receipts.store import ReceiptStore
from tpu_components.preflight_training.report import as_text
from tpu_pipelines.checks.check_list import UNASKED, examine
from tpu_pipelines.cli.arguments import LIMIT, MODEL
from tpu_pipelines.cli.output import show, show_findings, show_text, tell_hint
from tpu_pipelines.config.configuration import load_config, read_data
from tpu_pipelines.config.settings import load_settings
from tpu_pipelines.platforms.findings import errors_in
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.retraining.job_summary import append, render_preflight
from tpu_pipelines.runs.exports import find_compared
from tpu_pipelines.sizing import preflight as compiling
from tpu_pipelines.sizing.footprints import FootprintComparison, load_baseline
from tpu_pipelines.starting.data_overview import look_at, source_of
from tpu_pipelines.starting.first_configuration import name_of, plan_start


def init(arguments: argparse.Namespace) -> int:
    """Write a first configuration and model for data and return the exit code."""
    chosen = arguments if arguments.place or not sys.stdin.isatty() else _ask(arguments)
    kind, place, model = chosen.kind, chosen.place, chosen.model
    if kind == MODEL or place.endswith((".py", ".keras")):
        kind, place, model = "", chosen.data, place
    if not place:
        raise InputError(
            "The data location is missing. Use tpu-pipelines init DIR, or tpu-pipelines init MODEL --data DIR."
        )
    source = source_of(place, kind)
    show_text(f"inspecting {source}", sys.stderr)
    overview = look_at(read_data(source, chosen.overrides), chosen.overrides)
    name = chosen.name or name_of(source)
    start = plan_start(overview, name, model, chosen.output, chosen.overrides, chosen.workflow)
    start.write(chosen.force)
    try:
        load_config(str(start.config_path))
    except InputError:
        start.remove()
        raise
    show_text("\n".join([*map(in_one_line, overview.lines()), "", *(f"wrote {path}" for path in start.files)]))
    for hint in start.hints:
        tell_hint(hint)
    show_text(f"\nnext: tpu-pipelines check {shlex.quote(str(start.config_path))}")
    return DONE


def _ask(arguments: argparse.Namespace) -> argparse.Namespace:
    """Ask for missing arguments on the terminal. Return all arguments."""

    def ask(question: str, default: str) -> str:
        return input(f"{question} [{default}]: ").strip() or default

    place = ask("Where are your data? A folder, or a .csv, .npz or .txt file", ".")
    model = arguments.model or input("Your model's .py or .keras file, if you have one: ").strip()
    name = arguments.name or ask("A name for the runs", name_of(str(Path(place).resolve())))
    workflow = arguments.workflow or ask("Write a GitHub workflow that retrains? y or n", "n").lower().startswith("y")
    answers = {"place": place, "model": model, "name": name, "workflow": workflow}
    return argparse.Namespace(**{**vars(arguments), **answers})


def check(arguments: argparse.Namespace) -> int:
    """Find everything that would stop a run or bias its result and return the exit code."""
    config = load_config(arguments.config, arguments.overrides)
    platform = PLATFORMS.get(arguments.target)  # None without --target.
    settings = load_settings(os.environ, arguments.settings)
    findings = examine(config, UNASKED, platform, settings, workspace=arguments.workspace)
    show_findings(findings, arguments.json)
    if errors_in(findings):
        return BAD_INPUT
    if not arguments.json:
        command = ["submit", "--target", platform.name] if platform else ["run"]
        overrides = [word for override in arguments.overrides for word in ("--set", override)]
        show_text(f"\nnext: tpu-pipelines {shlex.join([*command, arguments.config, *overrides])}")
    return DONE


def preflight(arguments: argparse.Namespace) -> int:
    """Compile the training step for a TPU, or compute a lower bound of its memory on a GPU. Return the exit code."""
    limits = [LIMIT if limit is None else limit for limit in (arguments.slower, arguments.dearer)]
    if not arguments.against and (arguments.slower, arguments.dearer) != (None, None):
        raise InputError(
            "--slower and --dearer require --against, which names the training run to compare with. Add --against."
        )
    names = [name.strip() for name in (arguments.compare or arguments.machine or "").split(",") if name.strip()]
    config = load_config(arguments.config, arguments.overrides)
    baseline = None
    if arguments.against and arguments.quick:
        raise InputError(
            "--against compares times and prices, but --quick does not estimate them. Remove one of these flags."
        )
    if arguments.against:
        named = find_compared(arguments.against, arguments.workspace, "a preflight.json or its folder")
        baseline = load_baseline(named)
    directory = arguments.workspace / f"{config.name}-preflight"
    planned = _planned(arguments)
    like = baseline.footprint if baseline else None
    region = load_settings(os.environ, arguments.settings).region
    is_timed = not arguments.quick
    platforms = [PLATFORMS[name] for name in arguments.target]
    store = ReceiptStore.of_workspace(arguments.workspace)
    report = compiling.preflight(config, names, directory, like, platforms, planned, region, is_timed, store)
    comparison = FootprintComparison.make(report, baseline, *limits) if baseline else None
    if baseline and not comparison and report.machines[0].passed:
        tell_hint(f"not compared with {baseline.name}: the time on {report.machines[0].machine} is unknown")
    if baseline and len(report.machines) > 1:
        tell_hint(f"only the first machine, {report.machines[0].machine}, is compared with {baseline.name}")
    compared = {"against": comparison.as_dict()} if comparison else {}
    text = as_text(report) + (f"\n\n{comparison.as_text()}" if comparison else "")
    page = os.path.relpath(directory / PREFLIGHT_REPORT_FILE)
    show(report.as_dict() | compared, f"{text}\n\n{page}", arguments.json)
    if arguments.markdown:
        append(arguments.markdown, render_preflight(config.name, report, comparison))
    enough = (
        any if arguments.compare else all
    )  # With --compare, one machine that passes is enough; otherwise a run may get any of the machines.
    passed = enough(machine.passed for machine in report.machines) and not (comparison and comparison.broken)
    return DONE if passed else REJECTED


def _planned(arguments: argparse.Namespace) -> compiling.PlannedData | None:
    """Return the expected size of the data from --examples, or None without this flag."""
    if arguments.examples is None:
        if arguments.image_bytes is not None:
            raise InputError("--image-bytes requires --examples, the expected number of examples. Add --examples.")
        return None
    if arguments.against:
        raise InputError(
            "--against uses the number of examples in the compared training run, so --examples is not allowed. Remove "
            "one of these flags."
        )
    return compiling.PlannedData(arguments.examples, arguments.image_bytes or 0)

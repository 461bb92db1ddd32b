"""Commands to begin with: init, check, schema."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_pipelines.cli.options import (
    BAD_INPUT,
    DONE,
    add_config,
    add_target,
    add_workspace,
    show_findings,
    show_text,
    tell_hint,
    user_path,
)

# As in tpu_pipelines.starting.data_overview, which --help does without.
_KINDS = ("images", "csv", "texts", "arrays", "corpus", "archives", "parquet", "tfrecords")
_MODEL = "model"


def _add_init(commands: Any) -> None:
    init = commands.add_parser(
        "init",
        epilog="Example: tpu-pipelines init ~/flowers --name flowers",
        help="look at your data, and write a first configuration and model for them",
        description="Look at data, and write a configuration for them, with the reasons for what it sets, and a model "
        "to start from. On a terminal, what is not said is asked for.",
    )
    init.add_argument(
        "place",
        nargs="?",
        default="",
        metavar="DIR",
        help="a folder of images, texts, .tar, .parquet or .tfrecord files, or a .csv, .npz or .txt file; gs:// too. "
        "With --from model: its file",
    )
    init.add_argument(
        "--from", choices=(*_KINDS, _MODEL), default="", dest="kind", help="what DIR is (default: what it looks like)"
    )
    init.add_argument("--data", default="", metavar="DIR", help="with --from model: the data")
    init.add_argument("--model", default="", metavar="MODEL", help="a ready model, or your .py or .keras file")
    init.add_argument("--name", default="", metavar="NAME", help="of the runs and of the files (default: that of DIR)")
    init.add_argument("--output", type=user_path, default=Path(), metavar="DIR", help="for the files (default: here)")
    init.add_argument("--workflow", action="store_true", help="also write a GitHub workflow that retrains")
    init.add_argument("--force", action="store_true", help="overwrite files that are there")
    init.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")
    init.set_defaults(command=_init)


def _init(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.base.terminal import in_one_line
    from tpu_pipelines.config.configuration import read_data
    from tpu_pipelines.starting.data_overview import guess_task, look_at, source_of
    from tpu_pipelines.starting.first_configuration import check_start, name_of, plan_start

    asked = arguments if arguments.place or not sys.stdin.isatty() else _ask(arguments)
    kind, place, model = asked.kind, asked.place, asked.model
    if kind == _MODEL or place.endswith((".py", ".keras")):
        kind, place, model = "", asked.data, place
    if not place:
        raise InputError(
            "Missing: where the data are. Expected tpu-pipelines init DIR, or tpu-pipelines init MODEL --data DIR."
        )
    source = source_of(place, kind)
    show_text(f"looking at {source}", sys.stderr)
    overview = look_at(*guess_task(read_data(source, asked.overrides)))
    name = asked.name or name_of(source)
    start = plan_start(overview, name, model, asked.output, asked.overrides, asked.workflow)
    start.write(asked.force)
    show_text("\n".join([*map(in_one_line, overview.lines()), "", *(f"wrote {path}" for path in start.files)]))
    for hint in start.hints:
        tell_hint(hint)
    check_start(start)
    show_text(f"\nnext: tpu-pipelines check {shlex.quote(str(start.config_path))}")
    return DONE


def _ask(arguments: argparse.Namespace, answer: Callable[[str], str] = input) -> argparse.Namespace:
    """Ask on the terminal for what the command line does not say."""
    from tpu_pipelines.starting.first_configuration import name_of

    def ask(question: str, default: str) -> str:
        return answer(f"{question} [{default}]: ").strip() or default

    place = ask("Where are your data? A folder, or a .csv, .npz or .txt file", ".")
    model = arguments.model or answer("Your model's .py or .keras file, if you have one: ").strip()
    name = arguments.name or ask("A name for the runs", name_of(str(Path(place).resolve())))
    workflow = arguments.workflow or ask("Write a GitHub workflow that retrains? y or n", "n").lower().startswith("y")
    said = {"place": place, "model": model, "name": name, "workflow": workflow}
    return argparse.Namespace(**{**vars(arguments), **said})


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        epilog="Example: tpu-pipelines check flowers.yaml",
        help="find out in seconds what would stop a run, or spoil it",
        description="Check a configuration as far as seconds allow: the settings, the data and some examples of them, "
        "the model, which is imported and built, the machine, and settings that contradict each other; with --target "
        "also what a platform needs. Trains nothing, and asks no platform.",
    )
    add_config(check)
    add_workspace(check)
    add_target(check, first="")
    check.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    check.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.checking.check_list import UNASKED, examine
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.config.settings import load_settings
    from tpu_pipelines.doctor.findings import errors_in

    config, target = load_config(arguments.config, arguments.overrides), arguments.target
    settings = load_settings(os.environ, arguments.settings) if target else None
    findings = examine(config, UNASKED, target, settings, workspace=arguments.workspace)
    show_findings(findings, arguments.json)
    if errors_in(findings):
        return BAD_INPUT
    if not arguments.json:
        command = ["submit", "--target", target] if target else ["run"]
        overrides = [word for override in arguments.overrides for word in ("--set", override)]
        show_text(f"\nnext: tpu-pipelines {shlex.join([*command, arguments.config, *overrides])}")
    return DONE


def _add_schema(commands: Any) -> None:
    schema = commands.add_parser(
        "schema",
        epilog="Example: tpu-pipelines schema --markdown",
        help="print what a configuration may hold, for editors or as a table",
        description="Print the JSON Schema of a configuration. An editor that speaks YAML completes and explains the "
        "settings of a file that begins with: # yaml-language-server: $schema=FILE",
    )
    schema.add_argument("--markdown", action="store_true", help="print a table of all settings instead")
    schema.set_defaults(command=_schema)


def _schema(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.config.schema import as_markdown, as_text

    print(as_markdown() if arguments.markdown else as_text(), end="")
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_init,
    _add_check,
    _add_schema,
)

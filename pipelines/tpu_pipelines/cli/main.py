"""`tpu-pipelines`: parses the arguments, runs the command, and converts errors to exit codes."""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.errors import DONE
from tpu_components.core.base.import_path import leave_current_folder, with_variables
from tpu_components.core.base.progress import LOUDNESS_VARIABLE, QUIET, VERBOSE
from tpu_components.core.component.command_line import ArgumentParser, exit_code
from tpu_pipelines.cli.arguments import LOUDNESS
from tpu_pipelines.cli.commands import COMMANDS
from tpu_pipelines.cli.output import tell_error
from tpu_pipelines.cli.removed import REMOVED, removed_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    The code is 0 for done, 1 for failed, 2 for wrong arguments or data, and 3 for rejected or drifted.
    """
    leave_current_folder()
    _open_output()
    arguments = make_parser().parse_args(argv)
    loudness = QUIET if arguments.quiet else VERBOSE
    with with_variables({LOUDNESS_VARIABLE: loudness} if arguments.quiet or arguments.verbose else {}):
        return exit_code(lambda: _run(arguments), tell_error)


def _open_output() -> None:
    """Replace closed standard streams by os.devnull. Escape characters that the encoding of stdout or stderr lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # Otherwise the next opened file gets the stream's descriptor, and its output.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for as long as this process lives)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = ArgumentParser(
        prog="tpu-pipelines",
        description="Labelled data to a Keras model trained on a Cloud TPU and served on CPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, configuration or data, 3 rejected by the gate or by "
        "preflight, or drift.",
    )
    parser.removed = REMOVED
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    parsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        epilog = f"Example: tpu-pipelines {command.name} {command.example}"
        own = parsers.add_parser(
            command.name,
            epilog=epilog,
            help=command.help,
            description=command.description,
            formatter_class=_HelpFormatter,
        )
        for add in (*command.arguments, LOUDNESS):
            add(own)
        own.removed = removed_flags(command.name)
        own.set_defaults(work=command.work, parser=parser)
    return parser


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps lines only at spaces, so that a name or option with a hyphen is not split."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap  # Only for help, as argparse does.

        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


class _Version(argparse.Action):
    """Prints the version. `importlib.metadata` is imported only when the version is printed."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        print(f"tpu-pipelines {importlib.metadata.version('tpu-pipelines')}")
        parser.exit()


def _run(arguments: argparse.Namespace) -> int:
    """Import and call the command's function and return the exit code."""
    module, function = arguments.work.split(".")
    work = getattr(importlib.import_module(f"tpu_pipelines.cli.{module}"), function)
    try:
        code = int(work(arguments))
        sys.stdout.flush()  # An error of writing is reported now, not when Python ends.
        return code
    except BrokenPipeError:  # The reader of the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE

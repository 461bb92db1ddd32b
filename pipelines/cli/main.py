"""`tpu-pipelines`: finds the command, and turns what went wrong into an exit code."""

import argparse
import contextlib
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_components.core.base.import_path import leave_current_folder
from tpu_pipelines.cli import completion, data, doctor, exports, platforms, registry, retraining, runs, start, tpus
from tpu_pipelines.cli.options import BAD_INPUT, DONE, FAILED, add_loudness, tell_error

_GROUPS = (start, data, runs, exports, registry, tpus, platforms, retraining, doctor, completion)
_COMMANDS = tuple(add for group in _GROUPS for add in group.COMMANDS)

# Imports and long lists make no garbage: looking for it as often as Python does takes a tenth of a short command.
_GARBAGE = (100_000, 20, 20)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong arguments or data, 3 the gate said no."""
    leave_current_folder()
    _open_output()
    gc.set_threshold(*_GARBAGE)
    arguments = make_parser().parse_args(argv)
    with _as_loud_as(arguments):
        return _run(arguments)


def _open_output() -> None:
    """Have streams to write to that take any character, also where whoever started this has closed them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # Else the next file that is opened would get its number, and what is printed.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for as long as this process lives)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="tpu-pipelines",
        description="Labelled data to a Keras model trained on a Cloud TPU and served on CPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, configuration or data, 3 the gate said no.",
    )
    parser.add_argument("--version", action=_Version, help="say which version this is, and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    for command in commands.choices.values():
        add_loudness(command)
    parser.set_defaults(parser=parser)
    return parser


class _Version(argparse.Action):
    """Says the version; what knows it is imported only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        print(f"tpu-pipelines {importlib.metadata.version('tpu-pipelines')}")
        parser.exit()


@contextlib.contextmanager
def _as_loud_as(arguments: argparse.Namespace) -> Iterator[None]:
    """Have this process and those of the steps be as loud as the flags say."""
    from tpu_components.core.base.progress import LOUDNESS_VARIABLE, QUIET, VERBOSE

    saved = os.environ.get(LOUDNESS_VARIABLE)
    if arguments.quiet or arguments.verbose:
        os.environ[LOUDNESS_VARIABLE] = QUIET if arguments.quiet else VERBOSE
    try:
        yield
    finally:
        os.environ.pop(LOUDNESS_VARIABLE, None)
        if saved is not None:
            os.environ[LOUDNESS_VARIABLE] = saved


def _run(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.files import storage

    try:
        with storage.naming_faults():
            code = int(arguments.command(arguments))
            sys.stdout.flush()  # What cannot be written is said now, not when Python ends.
            return code
    except InputError as error:
        tell_error(error)
        return BAD_INPUT
    except BrokenPipeError:  # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        tell_error("interrupted; run the same command again to continue")
        return FAILED
    except _platform_error() as error:
        tell_error(error)
        return FAILED


def _platform_error() -> type[Exception]:
    """Return the error's class; asked for only when something was raised."""
    from tpu_components.core.base.retries import PlatformError

    return PlatformError

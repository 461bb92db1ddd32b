"""`tpu-pipelines`: finds the command, and turns what went wrong into an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence

from components.safe_path import leave_current_folder
from pipelines.cli import exports, platforms, registry, runs, start, tpus
from pipelines.cli.options import BAD_INPUT, DONE, FAILED, show_text

_COMMANDS = (
    *start.COMMANDS,
    *runs.COMMANDS,
    *exports.COMMANDS,
    *registry.COMMANDS,
    *tpus.COMMANDS,
    *platforms.COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong arguments or data, 3 the gate said no."""
    leave_current_folder()
    parser = argparse.ArgumentParser(
        prog="tpu-pipelines",
        description="Labelled data to a Keras model trained on a Cloud TPU and served on CPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, configuration or data, 3 the gate said no.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    arguments = parser.parse_args(argv)
    from components.errors import InputError

    try:
        return int(arguments.command(arguments))
    except InputError as error:
        show_text(f"error: {error}", sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to continue", file=sys.stderr)
        return FAILED
    except _platform_error() as error:
        show_text(f"error: {error}", sys.stderr)
        return FAILED


def _platform_error() -> type[Exception]:
    """Asked for only when something was raised."""
    from components.outages import PlatformError

    return PlatformError

"""Options that commands share."""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.states import COLOURS, Status

# The same numbers as tpu_components.core.step.command_line, whose import `--help` does without.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3


# How a registered version is named to be compared with.
VERSION_FORMS = "NAME@VERSION or NAME@ALIAS of the workspace's registry, or REGISTRY/NAME@VERSION"


HERE = "local"  # Where a run may be, beside the platforms.


_CODES = {"red": 31, "green": 32, "yellow": 33}


def is_coloured(stream: Any) -> bool:
    """Return whether to write in colours: on a terminal with colours, unless NO_COLOR (https://no-color.org) is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_text(text: str, stream: Any = None, colours: Mapping[str, str] = {}, end: str = "\n") -> None:
    """Print text that may hold names out of data or what a service says.

    Args:
        text: Text to print.
        stream: Stream to print to; stdout by default.
        colours: Words, and the colour of each where it stands by itself, on a terminal.
        end: Text that follows it.
    """
    from tpu_components.core.base.terminal import printable

    stream, text = stream or sys.stdout, printable(text)
    if colours and is_coloured(stream):
        # The longest first: `not promoted` is not `promoted`.
        words = "|".join(map(re.escape, sorted(colours, key=len, reverse=True)))
        text = re.sub(rf"(?<!\S)(?:{words})(?!\S)", lambda word: _paint(word[0], colours[word[0]]), text)
    print(text, file=stream, end=end, flush=True)


def _paint(text: str, colour: str) -> str:
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def show_findings(findings: Sequence[Any], as_json: bool = False, stream: Any = None) -> None:
    """Print what checks found: a line each, and below it what to do; or a JSON list."""
    from tpu_components.core.base.terminal import in_one_line
    from tpu_pipelines.doctor.findings import as_lines

    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
        return
    for state, text in as_lines(findings):
        show_text(f"{state:<9}", stream, COLOURS, end="")
        show_text(in_one_line(text), stream)


def tell_findings(findings: Iterable[Any]) -> None:
    """Say on stderr what checks found that is not as it should be."""
    for finding in findings:
        if finding.state != Status.OK:
            tell_hint(str(finding))


def tell_error(error: Any) -> None:
    """Say on stderr what failed."""
    _tell("error:", "red", error)


def tell_hint(text: str) -> None:
    """Say on stderr what helps to know, unless --quiet."""
    from tpu_components.core.base.progress import is_quiet

    if not is_quiet():
        _tell("hint:", "yellow", text)


def _tell(label: str, colour: str, text: Any) -> None:
    from tpu_components.core.base.terminal import paragraph

    label = _paint(label, colour) if is_coloured(sys.stderr) else label
    print(label, paragraph(str(text)), file=sys.stderr, flush=True)


def user_path(text: str) -> Path:
    """Return a path as a user writes it; the shell leaves the `~` of `--workspace=~/runs` alone."""
    return Path(os.path.expanduser(text))  # That of Path raises where the user is not known.


def output_file(text: str, is_added_to: bool = False) -> Path:
    """Return the path of a file that a command writes, or adds to, once its work is done.

    Raises:
        argparse.ArgumentTypeError: If it cannot be written, which is better said before the work.
    """
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.files import storage

    try:
        storage.require_file(path := user_path(text), is_added_to)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def added_to(text: str) -> Path:
    """Return the path of a file that earlier steps of a job may have written too; see `output_file`."""
    return output_file(text, is_added_to=True)


def add_loudness(command: Any) -> None:
    """Add `--quiet` and `--verbose`."""
    group = command.add_mutually_exclusive_group()
    group.add_argument("--quiet", action="store_true", help="say nothing but the result and what went wrong")
    group.add_argument("--verbose", action="store_true", help="say on stderr all that steps and libraries say")


def add_config(command: Any, default: str = "") -> None:
    """Add the configuration, and `--set`."""
    command.add_argument(
        "config",
        nargs="?" if default else None,
        default=default,
        metavar="CONFIG",
        help="a ready example or a YAML file" + (f" (default: {default})" if default else ""),
    )
    add_set(command)


def add_set(command: Any) -> None:
    """Add `--set`."""
    command.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")


def add_workspace(command: Any) -> None:
    """Add `--workspace`."""
    command.add_argument(
        "--workspace", type=user_path, default=Path("runs"), metavar="DIR", help="folder for runs (default: runs)"
    )


def add_target(command: Any, required: bool = False, also: tuple[str, ...] = (), first: str = "vertex") -> None:
    """Add `--target`; where it is not required, `first` is its default, empty for none."""
    from tpu_pipelines.config.settings import TARGET_SETTINGS

    targets, default = (*TARGET_SETTINGS, *also), None if required else first
    note = f"(default: {default})" if default else ""
    command.add_argument("--target", choices=targets, required=required, default=default, help=note)
    command.add_argument(
        "--settings", type=user_path, metavar="FILE", help="YAML; TPU_PIPELINES_… variables come first"
    )


def number(expected: str, allows: Callable[[float], bool]) -> Callable[[str], float]:
    """Return what reads the number that an option gives.

    Args:
        expected: Numbers that are taken, in words.
        allows: Returns whether a number is one of them.
    """

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if allows(value := float(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, received {text}")

    return read


def add_markdown(command: Any) -> None:
    """Add `--markdown`."""
    command.add_argument(
        "--markdown", type=added_to, metavar="FILE", help="add what CI shows to a file, as $GITHUB_STEP_SUMMARY"
    )


def add_wait(command: Any) -> None:
    """Add what waiting for a run takes."""
    command.add_argument("--wait", action="store_true", help="until it ends; may be killed and started again at will")
    add_poll(command)


def add_poll(command: Any) -> None:
    """Add how often a run is looked at."""
    seconds = number("a number of seconds above 0", lambda seconds: 0 < seconds < math.inf)
    command.add_argument("--poll-seconds", type=seconds, default=20.0, metavar="N", help="between looks (default: 20)")

"""Arguments of commands: types of values, parsing functions, and arguments that several commands share."""

import argparse
import dataclasses
import functools
import math
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base.typed_values import Amount, Range, read_by_hand
from tpu_components.core.component.command_line import local_path, parse_argument
from tpu_components.core.files import storage
from tpu_pipelines.platforms.platform import HERE, PLATFORMS, default_platform

MODEL = "model"  # Value of `init --from` for an argument that is a model, not data.
TIME = Annotated[float, Range(above=0, below=math.inf)]
LIMIT = 0.2  # Share by which a training run may be slower or more expensive than another.
# Kinds of data, copied from tpu_pipelines.starting.data_overview so that --help need not import that module.
KINDS = ("images", "csv", "texts", "arrays", "corpus", "archives", "parquet", "tfrecords")
# Forms of the name of a registered version.
VERSION_FORMS = "NAME@VERSION or NAME@ALIAS of the workspace's registry, or REGISTRY/NAME@VERSION"


# Adds an argument, or several, to a parser of argparse.
Argument = Callable[[Any], object]


@dataclasses.dataclass(frozen=True)
class Command:
    """Description of a command.

    Attributes:
        name: Name of the command.
        help: Line in the list of all commands.
        description: First paragraph of the command's help.
        example: Example of the arguments.
        work: Function that runs the command, `module.function` in this folder.
        arguments: Arguments of the command.
    """

    name: str
    help: str
    description: str
    example: str
    work: str
    arguments: tuple[Argument, ...]


def user_path(text: str) -> Path:
    """Return a path with `~` expanded. The shell does not expand it in `--workspace=~/runs`."""
    return local_path(os.path.expanduser(text))  # `Path.expanduser` raises if the user is unknown.


def output_file(text: str, is_added_to: bool = False) -> Path:
    """Return the path of a file that a command writes, or appends to, at the end of its work.

    Raises:
        argparse.ArgumentTypeError: If the file cannot be written. The error is raised before the work begins.
    """
    path = user_path(text)
    parse_argument(lambda _: storage.require_file(path, is_added_to), text)
    return path


def targets(text: str) -> tuple[str, ...]:
    """Parse names of platforms, for example `vertex,kubeflow`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in PLATFORMS]:
        raise argparse.ArgumentTypeError(
            f"unknown target {unknown[0]!r}: expected {' or '.join(PLATFORMS)}, or several separated by commas"
        )
    return names


def argument(*names: str, **settings: Any) -> Argument:
    """Return a function that adds an argument to a parser. It passes all values to argparse's `add_argument`."""
    return operator.methodcaller("add_argument", *names, **settings)


def typed(name: str, kind: Any, metavar: str, text: str, **settings: Any) -> Argument:
    """Return an argument whose value is converted to the type `kind`. `text` is its help text."""
    read = functools.partial(parse_argument, lambda value: read_by_hand(value, kind, metavar))
    return argument(name, type=read, metavar=metavar, help=text, **settings)


def flag(name: str, text: str) -> Argument:
    """Return a flag with its help text."""
    return argument(name, action="store_true", help=text)


def either(*arguments: Argument, is_required: bool = False) -> Argument:
    """Return arguments that exclude each other: a user can pass at most one of them."""
    return _grouped(operator.methodcaller("add_mutually_exclusive_group", required=is_required), arguments)


def headed(title: str, description: str, *arguments: Argument) -> Argument:
    """Return arguments that the help lists under a heading."""
    return _grouped(operator.methodcaller("add_argument_group", title, description), arguments)


def _grouped(make_group: Callable[[Any], Any], arguments: Iterable[Argument]) -> Argument:
    def add(parser: Any) -> None:
        group = make_group(parser)
        for add_argument in arguments:
            add_argument(group)

    return add


def json_flag(text: str = "print JSON, and nothing else, on stdout") -> Argument:
    """Return the flag `--json` with its help text."""
    return flag("--json", text)


def confidence(what: str) -> Argument:
    """Return the option `--confidence`.

    Args:
        what: Continuation of the help text "probability that no drift is reported …".
    """
    text = f"probability that no drift is reported {what} (default: 0.99)"
    return typed("--confidence", Annotated[float, Range(0.5, below=1)], "SHARE", text, default=0.99)


def limit(name: str, what: str) -> Argument:
    """Return an option that sets a limit for the comparison that `--against` requests.

    Args:
        name: Name of the option.
        what: Continuation of the help text "how much …".
    """
    text = f"with --against: how much {what}, as a fraction (default: {LIMIT})"
    return typed(name, Amount, "SHARE", text)


def target(is_required: bool = False, is_here_too: bool = False) -> tuple[Argument, Argument]:
    """Return the options `--target` and `--settings`.

    Args:
        is_required: Whether `--target` is required. Otherwise, the default platform is used.
        is_here_too: Whether `HERE` (this machine) is also a value of `--target`.
    """
    default = None if is_required else default_platform().name
    text = f"platform (default: {default})" if default else "platform"
    names = (*PLATFORMS, HERE) if is_here_too else PLATFORMS
    return argument("--target", choices=names, default=default, required=is_required, help=text), SETTINGS


# Parser of a file that a command appends to, because earlier steps of a CI job may have written to it.
added_to = functools.partial(output_file, is_added_to=True)
SETTINGS = argument(
    "--settings",
    type=user_path,
    metavar="FILE",
    help="YAML file with settings; TPU_PIPELINES_… environment variables override it",
)
SET = argument(
    "--set",
    action="append",
    default=[],
    metavar="SECTION.KEY=VALUE",
    dest="overrides",
    help="change one setting; may be repeated",
)
CONFIG = (argument("config", metavar="CONFIG", help="a ready example or a YAML file"), SET)
WORKSPACE = argument(
    "--workspace", type=user_path, default=Path("runs"), metavar="DIR", help="folder for runs (default: runs)"
)
MARKDOWN = argument(
    "--markdown",
    type=added_to,
    metavar="FILE",
    help="append a report for CI to a file, for example $GITHUB_STEP_SUMMARY",
)
POLL = typed("--poll-seconds", TIME, "N", "seconds between requests (default: 20)", default=20.0)
WAIT = (flag("--wait", "wait until the run ends; may be interrupted and repeated"), POLL)
NO_DOCTOR = flag("--no-doctor", "skip the checks of sign-in, bucket, image and service account")
EXPORTED = (
    argument(
        "model",
        metavar="MODEL",
        help=(
            "an export folder, local or on gs://, a run's folder, or a registered model: NAME, NAME@ALIAS or "
            "NAME@VERSION"
        ),
    ),
    WORKSPACE,
)
JOB = argument("name", metavar="NAME", help="name of the runs, or the ID of a job")
# Arguments of every command.
LOUDNESS = either(
    flag("--quiet", "print only the result and errors"),
    flag("--verbose", "also print the output of steps and libraries, on stderr"),
)

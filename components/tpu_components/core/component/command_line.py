"""Command lines of the steps: flags from a Params dataclass, one JSON line on stdout, and exit codes."""

import argparse
import dataclasses
import functools
import json
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import BAD_INPUT, DONE, FAILED, REJECTED, InputError, did_you_mean
from tpu_components.core.base.import_path import leave_current_folder
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.terminal import paragraph
from tpu_components.core.base.typed_values import as_json, fields_of, removed_fields, renamed_fields
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location

T = TypeVar("T")


class ArgumentParser(argparse.ArgumentParser):
    """Parser whose errors show the usage of the called command and suggest similar names.

    Attributes:
        removed: Commands and flags of earlier versions, each with a sentence that says what replaces it.
    """

    removed: Mapping[str, str] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. If some are unknown, exit with the usage of this parser, not of the main parser."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            if gone := [self.removed[option] for option in dict.fromkeys(options) if option in self.removed]:
                self.error(" ".join(gone))
            similar = did_you_mean(options[0], self._option_string_actions) if options else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{similar}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(value, str) and value in self.removed:
            self.error(self.removed[value])
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += f".{did_you_mean(str(value), map(str, action.choices or ()))}"
            raise


def parse_argument(parse: Callable[[str], T], text: str) -> T:
    """Parse the text of an argument.

    Raises:
        argparse.ArgumentTypeError: If `parse` raises an InputError. argparse adds the argument's name to the message.
    """
    try:
        return parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def local_path(text: str) -> Path:
    """Return an argument as a local path.

    Raises:
        argparse.ArgumentTypeError: If the argument is a URI, for example `gs://BUCKET/FOLDER`.
    """
    return parse_argument(lambda text: Location(text).as_path(), text)


def add_params(parser: argparse.ArgumentParser, params: type) -> None:
    """Add a flag for every field of a Params dataclass. The flag of a field without a default is required.

    For a field that is a dataclass, the flags of its fields are added, except flags that exist already. The values
    remain strings until `params_from` converts them.
    """
    renamed = renamed_fields(params)
    for field in sorted(fields_of(params).values(), key=lambda field: dataclasses.is_dataclass(field.kind)):
        flag = "--" + field.name.replace("_", "-")
        if dataclasses.is_dataclass(field.kind):
            add_params(parser, typing.cast(type, field.kind))
        elif flag not in parser._option_string_actions:
            parser.add_argument(
                flag,
                help=field.meaning.replace("%", "%%"),
                required=field.is_required and field.name not in renamed.values(),
                default=argparse.SUPPRESS,
                **_form(field.kind),
            )
    for name in removed_fields(params):  # `params_from` refuses them, and says what to use instead.
        if "=" in name:
            continue
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, nargs="*", help=argparse.SUPPRESS, default=argparse.SUPPRESS)
    for old, new in renamed.items():
        flag = "--" + old.replace("_", "-")
        form = _form(fields_of(params)[new].kind)
        parser.add_argument(flag, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **form)


def _form(kind: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a field of type `kind`."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is tuple:
        return {**_form(typing.get_args(kind)[0]), "nargs": "*"}
    is_json = typing.get_origin(kind) is Mapping or dataclasses.is_dataclass(kind)
    return {"metavar": "JSON"} if is_json else {}


def flags_of(params: Any) -> list[str]:
    """Return the command-line flags for the values of a Params dataclass, in the form that `add_params` reads."""
    words = []
    for field in dataclasses.fields(params):
        flag = field.name.replace("_", "-")
        value = getattr(params, field.name)
        if dataclasses.is_dataclass(value):
            words += flags_of(value)
        elif isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", *map(_as_word, value)]
        else:
            words.append(f"--{flag}={_as_word(value)}")
    return words


def _as_word(value: Any) -> str:
    plain = as_json(value)
    return json.dumps(plain) if isinstance(plain, dict) else str(plain)


def run_step(
    work: Callable[..., Any],
    params: type,
    reads: Mapping[str, str],
    example: str,
    folder: Callable[[str], Any] = local_path,
    accepted: str = "",
    optional: Mapping[str, tuple[Callable[[str], Any], str]] = {},
) -> int:
    """Run a step with the arguments of the command line, and return the exit code.

    The exit code is 3 if the step's result is negative, such as a model that does not pass the gate (see `accepted`).
    In all other cases, the function `exit_code` determines the exit code.

    Args:
        work: Function of the step. It takes the parameters, the input folders and the output folder.
        params: Dataclass of the parameters.
        reads: Input folders, as {flag: name of the step that writes the folder}.
        example: Example of the arguments, for the help.
        folder: Function that converts the text of an input folder's flag, for example to a path.
        accepted: Name of the boolean field of the result that says whether the result is accepted. If empty, every
            result is accepted.
        optional: Further flags, as {name: (parser, help)}. Their values are keyword arguments of `work`.
    """
    program = f"python -m {work.__module__.rpartition('.')[0]}"
    parser = ArgumentParser(
        prog=program,
        description=(work.__doc__ or "").partition("\n\n")[0],
        epilog=f"Example: {program} {example}",
    )
    for flag, step in reads.items():
        parser.add_argument(f"--{flag}", required=True, type=folder, help=f"Folder that {step} wrote.")
    parser.add_argument(
        "--output", required=True, type=local_path, help="Folder to write. It is written completely or not at all."
    )
    for flag, (kind, text) in optional.items():
        parser.add_argument(f"--{flag.replace('_', '-')}", type=functools.partial(parse_argument, kind), help=text)
    add_params(parser, params)

    def call(arguments: argparse.Namespace) -> tuple[Any, int]:
        folders = [getattr(arguments, flag) for flag in (*reads, "output")]
        more = {flag: getattr(arguments, flag) for flag in optional}
        read: Any = params_from(vars(arguments), params)
        with progress.never_silent(program.rpartition(".")[2]):
            result = work(read, *folders, **more)
        return result, REJECTED if accepted and not getattr(result, accepted) else DONE

    return run(parser, call)


class StepCommand(NamedTuple):
    """A command for `run_commands`.

    Attributes:
        work: Function that takes the parameters, then the values of the flags in the order of `flags`.
        params: Dataclass of the parameters.
        help: Description of the command.
        flags: Flags, as {name: keyword arguments of `add_argument`}. A flag without a default is required.
    """

    work: Callable[..., Any]
    params: type
    help: str
    flags: Mapping[str, Mapping[str, Any]]


def run_commands(program: str, description: str, commands: Mapping[str, StepCommand]) -> int:
    """Run the command that the first argument of the command line names. Return the exit code."""
    parser = ArgumentParser(prog=program, description=description)
    parsers = parser.add_subparsers(dest="command", required=True)
    for name, command in commands.items():
        own = parsers.add_parser(name, help=command.help)
        for flag, options in command.flags.items():
            own.add_argument(f"--{flag}", required="default" not in options, **options)
        add_params(own, command.params)

    def call(arguments: argparse.Namespace) -> tuple[Any, int]:
        command = commands[arguments.command]
        values = [getattr(arguments, flag.replace("-", "_")) for flag in command.flags]
        return command.work(params_from(vars(arguments), command.params), *values), DONE

    return run(parser, call)


def run(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], tuple[Any, int]]) -> int:
    """Parse the arguments, call `work`, print the result as one JSON line, and return the exit code.

    `work` takes the parsed arguments. It returns the result, a dataclass, and the exit code.
    """

    def call() -> int:
        with termination.heard():
            result, code = work(arguments)
        print(json.dumps(dataclasses.asdict(result)))
        return code

    leave_current_folder()
    arguments = parser.parse_args()
    return exit_code(call, print_error)


def print_error(error: Any) -> None:
    """Print an error on stderr."""
    print(paragraph(f"error: {error}"), file=sys.stderr)


def exit_code(work: Callable[[], int], tell: Callable[[Any], None]) -> int:
    """Run a command and return its exit code.

    The exit code after an error is 2 for a user's mistake, 1 for a failure or Ctrl-C, and `Terminated.exit_code` after
    SIGTERM or the loss of another host.

    Args:
        work: The command, which returns its exit code.
        tell: Function that prints an error.
    """
    try:
        with storage.naming_faults():
            return work()
    except (InputError, PlatformError) as error:
        tell(error)
        return BAD_INPUT if isinstance(error, InputError) else FAILED
    except KeyboardInterrupt:
        tell("The command was interrupted. Run the same command again to continue.")
        return FAILED
    except termination.Terminated as error:
        tell(error)
        return error.exit_code

"""Checks of everything that a run needs, and their findings: state, reason and remedy."""

import contextlib
import dataclasses
import enum
import itertools
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError, PlatformError
from tpu_components.core.base.states import Status
from tpu_components.core.base.terminal import hide_credentials

_THREADS = 8
_SCRIPT_WIDTH = 120
_COMMENT: dict[str, Any] = {"initial_indent": "# ", "subsequent_indent": "#   ", "break_on_hyphens": False}


class CheckCost(enum.IntEnum):
    """How expensive a check is, from reading a file to sending a request. Commands choose checks by their cost."""

    FILE = 1  # Settings and small files are read.
    SECONDS = 2  # The data are listed, the pipeline is compiled, the model is built.
    REQUEST = 3  # A request of about a second for something that every run needs; `submit` sends it too.
    NETWORK = 4  # Any other request to the platform.


@dataclasses.dataclass(frozen=True)
class CommandOutput:
    """A word in a shell command: a prefix, followed by the output of another command.

    Attributes:
        prefix: The prefix, for example `--member=`.
        words: Words of the other command.
    """

    prefix: str
    words: tuple[str, ...]


Words = tuple[str | CommandOutput, ...]


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """Shell command that creates or grants something that a check reports as missing.

    The command is stored as separate words. Only this class converts them to text, and it quotes each word, so a
    resource's name cannot inject another command.

    Attributes:
        words: The program and its arguments.
        unless: Command that succeeds if nothing needs to be done. Empty if running `words` twice does no harm.
        otherwise: Command that runs if `words` fails. Empty if there is none.
        stdin: One line that the command reads from stdin. Empty if it reads nothing.

    Example:
        >>> print(ShellCommand(("gcloud", "projects", "undelete", "my project;")))
        gcloud projects undelete 'my project;'
    """

    words: Words
    unless: Words = ()
    otherwise: Words = ()
    stdin: str = ""

    @property
    def text(self) -> str:
        """The command as text for a shell, without its condition `unless`."""
        text = _quote(self.words)
        if self.stdin:
            text = f"{_quote(('echo', self.stdin))} |\n  {text}"
        return f"{text} ||\n  {_quote(self.otherwise)}" if self.otherwise else text

    def __str__(self) -> str:
        return f"{_quote(self.unless)} >/dev/null 2>&1 ||\n  {self.text}" if self.unless else self.text


def _quote(words: Words) -> str:
    """Return a command as text for a shell. Words are quoted where necessary."""
    return " ".join(
        f'{shlex.quote(word.prefix)}"$({_quote(word.words)})"' if isinstance(word, CommandOutput) else shlex.quote(word)
        for word in words
    )


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        about: Subject of the check, for example `bucket`.
        state: `ok`, `hint`, `error` or `unknown`.
        said: Sentence with the result, or with the reason why the check was not possible.
        remedy: Advice if the state is not `ok`. It is a shell command if one command is enough.
        commands: The remedy as commands, for a script.
    """

    about: str
    state: Status
    said: str
    remedy: str = ""
    commands: tuple[ShellCommand, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values. Its commands are text for a shell."""
        commands = [{"text": command.text, "unless": _quote(command.unless)} for command in self.commands]
        shown = dataclasses.replace(self, said=hide_credentials(self.said), commands=())
        return {**dataclasses.asdict(shown), "commands": commands}

    def __str__(self) -> str:
        return f"{self.about}: {self.said}" + (f" → {self.remedy}" if self.remedy else "")


class _CheckError(Exception):
    """Base class of the errors of checks.

    If `remedy` is empty, the check's first command is the remedy.
    """

    def __init__(self, said: str, remedy: str = "") -> None:
        super().__init__(said)
        self.remedy = remedy


class LackError(_CheckError):
    """Raised by a check if something that a run needs is missing."""


class CannotAskError(_CheckError):
    """Raised by a check if the state is unknown, because a service does not give this user the information."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of something that a run needs.

    Attributes:
        about: Subject of the check, for example `bucket`.
        ask: Function that runs the check. It returns a sentence for the state `ok`, or findings, or raises `LackError`
            or `CannotAskError`.
        cost: Cost of the check.
        needs: Name of a check that must succeed first, for example `sign-in`. Empty if there is none.
        commands: Function that returns the commands that create or grant what is missing, in order. It is called if
            `ask` raises an error.
        when: Condition of the check, for example a setting. If it is false or empty, the run does not need the check.
    """

    about: str
    ask: Callable[[], str | Iterable[Finding]]
    cost: CheckCost = CheckCost.NETWORK
    needs: str = ""
    commands: Callable[[], tuple[ShellCommand, ...]] = tuple
    when: object = True


@contextlib.contextmanager
def lacking(said: str, remedy: str = "", error: type[Exception] = MissingError) -> Iterator[None]:
    """Convert errors that are raised in the `with` block to a `LackError`.

    Args:
        said: Message of the `LackError`. If it is empty, the message of the original error is used.
        remedy: Advice for the user. If it is empty, the advice is the first of the check's `commands`, if there are
            any.
        error: Type of the errors to convert.
    """
    try:
        yield
    except error as cause:
        raise LackError(said or str(cause), remedy) from cause


def answer(check: Check) -> Iterator[Finding]:
    """Run a check and yield its findings.

    The state is `error` if something is missing, or if a local check finds a user's mistake. The state is `unknown` if
    a service rejects a request or does not respond.
    """
    try:
        said = check.ask()
        yield from [Finding(check.about, Status.OK, said)] if isinstance(said, str) else said
    except (_CheckError, PlatformError, InputError) as error:
        is_mistake = check.cost < CheckCost.REQUEST and isinstance(error, InputError)
        state = Status.ERROR if is_mistake or isinstance(error, LackError) else Status.UNKNOWN
        commands: tuple[ShellCommand, ...] = ()
        with contextlib.suppress(CannotAskError, PlatformError):  # A name in the commands cannot be looked up.
            commands = check.commands()
        remedy = getattr(error, "remedy", "") or (commands[0].text if commands else "")
        yield Finding(check.about, state, str(error), remedy, commands)


def ask_all(checks: Sequence[Check]) -> list[Finding]:
    """Run all checks whose condition `when` is true. Return their findings. Those of local checks come first.

    Checks that send requests run at the same time, in threads.
    """
    checks = [check for check in checks if check.when]
    needed = {check.needs for check in checks}
    first = {check.about: list(answer(check)) for check in checks if check.about in needed}
    failed = {about for about, findings in first.items() if errors_in(findings)}

    def ask(check: Check) -> list[Finding]:
        if check.needs in failed:
            return [Finding(check.about, Status.UNKNOWN, f"not checked, because the check of the {check.needs} failed")]
        return first.get(check.about) or list(answer(check))

    here = [finding for check in checks if check.cost < CheckCost.REQUEST for finding in ask(check)]
    with ThreadPoolExecutor(_THREADS) as pool:
        answers = pool.map(ask, [check for check in checks if check.cost >= CheckCost.REQUEST])
        return here + [finding for findings in answers for finding in findings]


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the state `error`, which would stop a run."""
    return [finding for finding in findings if finding.state is Status.ERROR]


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge consecutive findings that differ only in `about` into one."""
    merged = []
    for _, alike in itertools.groupby(findings, lambda each: (each.state, each.said, each.remedy, each.commands)):
        first, *others = alike
        names = ", ".join(each.about for each in (first, *others))
        said = f"{first.said}: {names}"
        merged.append(dataclasses.replace(first, about=f"{len(others) + 1} checks", said=said) if others else first)
    return merged


def as_lines(findings: Sequence[Finding]) -> Iterator[tuple[Status | str, str]]:
    """Yield the lines of a report as (state, text). A remedy is a second line with an empty state."""
    findings = _merged(findings)
    width = max((len(finding.about) for finding in findings), default=0)
    for finding in findings:
        yield finding.state, f"{finding.about:<{width}}  {finding.said}"
        if finding.remedy:
            yield "", f"{'':<{width}}  → {finding.remedy}"


def as_script(findings: Iterable[Finding], title: str) -> str:
    """Return a shell script with the commands of all findings that are not ok. Each command is below its reason.

    Remedies that are not commands are comments.
    """
    lines = [
        "#!/usr/bin/env bash",
        *textwrap.wrap(title, _SCRIPT_WIDTH, **_COMMENT),
        "# Needs a project with a billing account. Running this script again changes nothing. A new service account",
        "# can take a minute to become visible. If a command fails, run the script again.",
        "set -euo pipefail",
    ]
    for finding in _merged(findings):
        if finding.state is Status.OK:
            continue
        is_command = any(command.text == finding.remedy for command in finding.commands)
        reason = str(dataclasses.replace(finding, remedy="") if is_command else finding)
        lines += ["", *textwrap.wrap(reason, _SCRIPT_WIDTH, **_COMMENT)]
        lines += map(str, finding.commands)
    return "\n".join(lines) + "\n"

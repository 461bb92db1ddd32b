"""Checks and their findings: what is as a run needs it, what is not, and what to do about that."""

import contextlib
import dataclasses
import enum
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import MissingError, PlatformError
from tpu_components.core.base.states import Status

_THREADS = 8
_SCRIPT_WIDTH = 120
_COMMENT: dict[str, Any] = {"initial_indent": "# ", "subsequent_indent": "#   ", "break_on_hyphens": False}


class Cost(enum.IntEnum):
    """The cost of a check, by which commands choose."""

    FILE = 1  # Settings and small files are read.
    SECONDS = 2  # The data are listed, the pipeline is compiled, the model is built.
    REQUEST = 3  # The platform is asked within a second for what every run needs; `submit` asks these too.
    NETWORK = 4  # The platform is asked for everything else.


@dataclasses.dataclass(frozen=True)
class Command:
    """Shell command that creates or grants what a check misses.

    Attributes:
        text: The command.
        unless: Command that succeeds if there is nothing left to do; empty if a repeated `text` changes nothing.
    """

    text: str
    unless: str = ""

    def __str__(self) -> str:
        return f"{self.unless} >/dev/null 2>&1 ||\n  {self.text}" if self.unless else self.text


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        about: Name of what was checked, as `bucket`.
        state: Whether it meets the needs of a run.
        said: Sentence with the result, or with the reason why it could not be checked.
        remedy: Advice if it does not meet them; a command if one is enough.
        commands: The remedy as commands, for a script.
    """

    about: str
    state: Status
    said: str
    remedy: str = ""
    commands: tuple[Command, ...] = ()

    def __str__(self) -> str:
        return f"{self.about}: {self.said}" + (f" → {self.remedy}" if self.remedy else "")


class _CheckError(Exception):
    """Base of the errors of a check; without a remedy, the check's commands are one."""

    def __init__(self, said: str, remedy: str = "") -> None:
        super().__init__(said)
        self.remedy = remedy


class LackError(_CheckError):
    """Error for something that a run needs and that is missing."""


class CannotAskError(_CheckError):
    """Error for a question that a service does not answer to this user, with what to do nevertheless."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A question about something that a run needs.

    Attributes:
        about: Name of what is asked for.
        ask: Returns the sentence on what is there, or several findings; raises `LackError` or `CannotAskError`.
        cost: Cost of asking.
        needs: Name of the check without which this one cannot be asked, as the sign-in; empty for none.
        commands: Returns the commands that create or grant what is asked for, in their order; called if it is missing
            or unknown.
    """

    about: str
    ask: Callable[[], str | Iterable[Finding]]
    cost: Cost = Cost.NETWORK
    needs: str = ""
    commands: Callable[[], tuple[Command, ...]] = tuple


@contextlib.contextmanager
def lacking(said: str, remedy: str = "", error: type[Exception] = MissingError) -> Iterator[None]:
    """Turn an error of the block into a `LackError`; an empty `said` stands for the error's own message."""
    try:
        yield
    except error as cause:
        raise LackError(said or str(cause), remedy) from cause


def answer(check: Check) -> Iterator[Finding]:
    """Ask a check and yield its findings.

    A mistake of the user's becomes an error. If a platform refuses to answer, its finding is unknown.
    """
    try:
        said = check.ask()
        yield from [Finding(check.about, Status.OK, said)] if isinstance(said, str) else said
    except (_CheckError, PlatformError, InputError) as error:
        is_mistake = check.cost < Cost.REQUEST and isinstance(error, InputError)
        state = Status.ERROR if is_mistake or isinstance(error, LackError) else Status.UNKNOWN
        commands: tuple[Command, ...] = ()
        with contextlib.suppress(CannotAskError, PlatformError):  # A name in them cannot be looked up.
            commands = check.commands()
        remedy = getattr(error, "remedy", "") or (commands[0].text if commands else "")
        yield Finding(check.about, state, str(error), remedy, commands)


def ask_all(checks: Sequence[Check]) -> list[Finding]:
    """Ask every check, those of a platform side by side; returns the findings in the order of the checks."""
    needed = {check.needs for check in checks}
    first = {check.about: list(answer(check)) for check in checks if check.about in needed}
    failed = {about for about, findings in first.items() if errors_in(findings)}

    def ask(check: Check) -> list[Finding]:
        if check.needs in failed:
            return [Finding(check.about, Status.UNKNOWN, f"not asked without the {check.needs}")]
        return first.get(check.about) or list(answer(check))

    here = [finding for check in checks if check.cost < Cost.REQUEST for finding in ask(check)]
    with ThreadPoolExecutor(_THREADS) as pool:
        answers = pool.map(ask, [check for check in checks if check.cost >= Cost.REQUEST])
        return here + [finding for findings in answers for finding in findings]


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that would stop a run."""
    return [finding for finding in findings if finding.state is Status.ERROR]


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in which those in a row that say the same are one."""
    merged = []
    for _, alike in itertools.groupby(findings, lambda each: (each.state, each.said, each.remedy, each.commands)):
        first, *others = alike
        names = ", ".join(each.about for each in (first, *others))
        said = f"{first.said}: {names}"
        merged.append(dataclasses.replace(first, about=f"{len(others) + 1} others", said=said) if others else first)
    return merged


def as_lines(findings: Sequence[Finding]) -> Iterator[tuple[Status | str, str]]:
    """Yield for each finding its state and the rest of its line, and below it what to do."""
    findings = _merged(findings)
    width = max((len(finding.about) for finding in findings), default=0)
    for finding in findings:
        yield finding.state, f"{finding.about:<{width}}  {finding.said}"
        if finding.remedy:
            yield "", f"{'':<{width}}  → {finding.remedy}"


def as_script(findings: Iterable[Finding], title: str) -> str:
    """Return a shell script of the commands for everything that is missing or unknown, each below its reason.

    What no command can do is a comment.
    """
    lines = [
        "#!/usr/bin/env bash",
        *textwrap.wrap(title, _SCRIPT_WIDTH, **_COMMENT),
        "# Needs a project with a billing account. Running this script again changes nothing. A new service account",
        "# can take a minute to become visible: if a command fails, run the script again.",
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

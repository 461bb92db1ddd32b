"""Findings: whether something that a run needs is there, and what to do where it is not."""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError

_THREADS = 8


class Verdict(enum.StrEnum):
    """The answer whether something is there; `UNKNOWN` where nobody would say."""

    THERE = "✓"
    MISSING = "✗"
    UNKNOWN = "?"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a run needs.

    Attributes:
        what: Its name, as `bucket`.
        verdict: Whether it is there.
        said: Sentence on the outcome, or on why it could not be asked.
        remedy: Advice for one that is missing; a command where one does it.
        is_fatal: Whether a run without it surely fails, so that `submit` refuses to send one.
    """

    what: str
    verdict: Verdict
    said: str
    remedy: str = ""
    is_fatal: bool = True


class CannotAskError(Exception):
    """A question that the service does not answer to whoever asks; says why."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A question, and the name of what is missing where the answer is no.

    Attributes:
        what: That name.
        ask: Gives the findings; raises `CannotAskError` where nobody answers.
        is_cheap: Whether `submit` asks it, too.
        is_apart: Whether it can be asked where the first has failed.
    """

    what: str
    ask: Callable[[], Iterable[Finding]]
    is_cheap: bool = False
    is_apart: bool = False


def there(what: str, said: str) -> Finding:
    """Return that something is there."""
    return Finding(what, Verdict.THERE, said)


def missing(what: str, said: str, remedy: str, is_fatal: bool = True) -> Finding:
    """Return that something is missing, and what to do."""
    return Finding(what, Verdict.MISSING, said, remedy, is_fatal)


def unknown(what: str, said: str, remedy: str = "") -> Finding:
    """Return that something cannot be known, and why."""
    return Finding(what, Verdict.UNKNOWN, said, remedy)


def ask_all(first: Check | None, others: Sequence[Check]) -> list[Finding]:
    """Ask every check, the others side by side.

    Args:
        first: Check that the others need, as the sign-in: where it fails, only what is apart from it can be asked. None
            is taken to be there.
        others: The rest.

    Returns:
        The findings in the order of the checks; what could not be asked is unknown, whatever the reason.
    """
    findings = _ask(first) if first else []
    stops = any(earlier.verdict is Verdict.MISSING for earlier in findings)

    def ask(check: Check) -> list[Finding]:
        if first and stops and not check.is_apart:
            return [unknown(check.what, f"not asked without the {first.what}")]
        return _ask(check)

    with ThreadPoolExecutor(_THREADS) as pool:
        return findings + [finding for answers in pool.map(ask, others) for finding in answers]


def _ask(check: Check) -> list[Finding]:
    try:
        return list(check.ask())
    except (CannotAskError, PlatformError, InputError) as error:
        return [unknown(check.what, str(error))]


def as_table(findings: Sequence[Finding]) -> str:
    """Return the findings, a line each, and below what is not there what to do."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict}  {finding.what:<{width}}  {finding.said}")
        if finding.remedy:
            lines.append(f"   {'':<{width}}  → {finding.remedy}")
    return "\n".join(lines)


def missing_of(findings: Sequence[Finding]) -> list[Finding]:
    """Return those that are missing."""
    return [finding for finding in findings if finding.verdict is Verdict.MISSING]

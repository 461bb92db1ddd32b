"""Exit codes, and the exception for mistakes of the user, which command lines print without a stack trace."""

import difflib
from collections.abc import Iterable

# Exit codes of commands and steps. REJECTED: the model did not pass the gate.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3


class InputError(ValueError):
    """A mistake of the user: bad data, a bad parameter, or a machine that is too small.

    The message says what failed, what was expected and received, and what to do. Command lines print it and exit with
    code 2. Other exceptions are defects and keep their stack trace.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: "Did you mean …?" with the nearest known word; empty if none is near.

    Example:
        >>> did_you_mean("epoch", ["epochs", "seed"])
        " Did you mean 'epochs'?"
    """
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and its causes: the errors that it was raised from, or while they were handled."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def describe(error: BaseException) -> str:
    r"""Return an error's kind and the first line of its message.

    Example:
        >>> describe(ValueError("bad shape\nand many details"))
        'ValueError: bad shape'
    """
    line, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {line}"

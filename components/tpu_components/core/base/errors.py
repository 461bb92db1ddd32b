"""Exit codes, and the exception for users' mistakes. Commands print its message without a stack trace."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Exit codes of commands and steps. REJECTED: the model did not pass the gate.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3


class InputError(ValueError):
    """A user's mistake: bad data, a bad parameter, or a machine that is too small.

    The message says what failed, what was expected and received, and what to do. Commands print it and exit with
    code 2. Other exceptions, except `PlatformError`, indicate defects and keep their stack trace.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with the known word that is most similar to `word`, as the end of an error message.

    Return an empty string if no known word is similar.

    Example:
        >>> did_you_mean("epoch", ["epochs", "seed"])
        " Did you mean 'epochs'?"
    """
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


@contextlib.contextmanager
def reading(place: str | Path, expected: str, advice: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise an InputError that names a file if the `with` block fails to read the file.

    An InputError whose message already contains the file's name is not changed.

    Args:
        place: Path or URI of the file.
        expected: Expected content, for example `a CSV file in UTF-8`.
        advice: Advice to the user, as a sentence.
        errors: Exceptions to convert to an InputError. By default, these are the exceptions that damaged JSON and array
            files cause.

    Example:
        >>> with reading("a.npz", "ids", "Write it."):
        ...     {}["ids"]
        Traceback (most recent call last):
        tpu_components.core.base.errors.InputError: Cannot read a.npz: expected ids, received KeyError: 'ids'. Write it.
        >>> with reading("a.npz", "ids", "Write it."):
        ...     raise InputError("a.npz is empty.")
        Traceback (most recent call last):
        tpu_components.core.base.errors.InputError: a.npz is empty.
    """
    caught = errors or (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError)
    try:
        yield
    except caught as error:
        if isinstance(error, InputError) and str(place) in str(error):
            raise
        received = describe(error).rstrip(".")
        # The messages of other exceptions are clear without the type.
        if not isinstance(error, LookupError | TypeError | AttributeError):
            received = received.partition(": ")[2] or received
        raise InputError(f"Cannot read {place}: expected {expected}, received {received}. {advice}") from error


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and the chain of its causes. The cause of an error is its `__cause__`, or else `__context__`."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def describe(error: BaseException) -> str:
    r"""Return an error's type and the first line of its message.

    Example:
        >>> describe(ValueError("bad shape\nand many details"))
        'ValueError: bad shape'
    """
    line, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {line}"


def message_of(error: BaseException) -> str:
    """Return an error's message.

    If Keras has wrapped the error of a layer, return only the layer's message, which Keras prints in bold.
    """
    wrapped = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return wrapped[1] if wrapped else str(error)

"""Functions that make text safe to print on a terminal, and a filter for the output of libraries on stderr.

Control characters are escaped, and credentials in URLs are hidden.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

# C0 controls except tab and line feed, DEL, C1 controls, line separators, bidirectional controls, lone surrogates (from
# file names that are not UTF-8), and invisible characters, which can make different names look equal. U+200C and U+200D
# are left out, because they shape Persian and Indic words and emoji.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# Workflow commands of GitHub in a log: a line that begins with optional white space and `::`, or contains `##[`:
# https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs, TryParseV2 and TryParse.
_COMMANDS = re.compile(r"(?m)^(?P<indent>\s*):(?=:)|#(?=#\[)")
# The part of a URL before the last `@` of its authority (RFC 3986, section 3.2.1). An unescaped slash in a password
# ends the authority too early. The text after the colon is then not a port, so everything up to an `@` is hidden, too.
_LENGTH = "{0,1024}"  # Bounded, so that a hostile text does not take quadratic time.
_CREDENTIALS = re.compile(rf"(://)(?:[^/\s]{_LENGTH}@|[^/\s@]{_LENGTH}:(?!\d*(?:[/\s'\",;)]|$))\S{_LENGTH}@)")


def hide_credentials(text: str, mark: str = "***@") -> str:
    """Return the text with `mark` in place of the credentials in URLs.

    Example:
        >>> hide_credentials("no answer from http://me:secret@kubeflow:8080/pipeline")
        'no answer from http://***@kubeflow:8080/pipeline'
        >>> hide_credentials("no answer from http://kubeflow:8080/@me")
        'no answer from http://kubeflow:8080/@me'
    """
    return _CREDENTIALS.sub(rf"\g<1>{mark}", text) if "@" in text else text


def visible(text: str) -> str:
    r"""Return the text with control characters and invisible characters escaped, for HTML, Markdown or a terminal.

    Example:
        >>> visible("cat\u202e\ufeff")
        'cat\\u202e\\ufeff'
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def printable(text: str) -> str:
    r"""Return the text in a form that is safe to print.

    Control characters and workflow commands of GitHub are escaped, and credentials in URLs are hidden.

    Everything that is printed passes through this function, so that names in data cannot control a terminal.

    Example:
        >>> printable("cat\x1b[2J")
        'cat\\x1b[2J'
        >>> printable("::error::cat")
        '\\x3a:error::cat'
    """
    text = visible(hide_credentials(text))
    return _COMMANDS.sub(lambda match: f"{match['indent'] or ''}\\x{ord(match[0][-1]):x}", text)


def in_one_line(text: str) -> str:
    r"""Return the text on one line, in a form that is safe to print. Line breaks and tabs are escaped.

    See `printable` for the other characters.

    Example:
        >>> in_one_line("cat\n[deploy_model] done")
        'cat\\n[deploy_model] done'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def paragraph(text: str) -> str:
    """Return the text in a form that is safe to print (see `printable`), with all lines but the first indented."""
    return printable(text).replace("\n", "\n  ")


@contextlib.contextmanager
def filter_stderr(keep: Callable[[bytes], bool]) -> Iterator[None]:
    """Capture stderr during the `with` block, then print the lines that `keep` selects. C++ output is captured, too.

    Args:
        keep: Function that takes a line and returns whether to print it.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            os.write(2, b"".join(line for line in said if keep(line)))

"""Printing of commands: results on stdout, everything else on stderr, with colours on a terminal."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_components.core.base.progress import is_quiet
from tpu_components.core.base.states import COLOURS
from tpu_components.core.base.terminal import in_one_line, paragraph, printable
from tpu_pipelines.platforms.findings import Finding, as_lines

_CODES = {"red": 31, "green": 32, "yellow": 33}


def show(value: Any, text: str, as_json: bool) -> None:
    """Print a result on stdout, as JSON or as text."""
    if as_json:
        print(json.dumps(value))
    else:
        show_text(text)


def show_text(text: str, stream: Any = None, colours: Mapping[str, str] = {}, end: str = "\n") -> None:
    """Print text that may contain untrusted names from data, or messages of a service.

    Args:
        text: Text to print.
        stream: Stream to print to. The default is stdout.
        colours: Colours by word, for example `{"failed": "red"}`. They are used on a terminal.
        end: Text to print after `text`.
    """
    stream = stream or sys.stdout
    text = printable(text)
    if colours and _is_coloured(stream):
        # The longest words first, because `not promoted` contains `promoted`.
        words = "|".join(map(re.escape, sorted(colours, key=len, reverse=True)))
        text = re.sub(rf"(?<!\S)(?:{words})(?!\S)", lambda word: _paint(word[0], colours[word[0]]), text)
    print(text, file=stream, end=end, flush=True)


def _is_coloured(stream: Any) -> bool:
    """Return whether the stream is a terminal with colours and NO_COLOR (https://no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint(text: str, colour: str) -> str:
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def show_findings(findings: Sequence[Finding], as_json: bool = False, stream: Any = None) -> None:
    """Print the findings of checks as text, each on one line with its remedy on the next, or as a JSON list."""
    if as_json:
        show([finding.as_dict() for finding in findings], "", as_json)
        return
    for state, text in as_lines(findings):
        show_text(f"{state:<9}", stream, COLOURS, end="")
        show_text(in_one_line(text), stream)


def tell_error(error: Any) -> None:
    """Print an error on stderr."""
    _tell("error:", "red", error)


def tell_hint(text: str) -> None:
    """Print a hint on stderr, unless --quiet is set."""
    if not is_quiet():
        _tell("hint:", "yellow", text)


def _tell(label: str, colour: str, text: Any) -> None:
    label = _paint(label, colour) if _is_coloured(sys.stderr) else label
    print(label, paragraph(str(text)), file=sys.stderr, flush=True)

"""Markdown from untrusted text, such as names of classes, columns and files. The text is escaped."""

import re

import markupsafe

from tpu_components.core.base.terminal import visible

_LONGEST = 1000  # Longest value, in characters.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Characters with a meaning in CommonMark and its extensions; `_` only at the edge of a word.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
# Starts of a heading, a list or a thematic break.
_START = re.compile(r"^(?:(?=[-+=#])|(\d{1,9})(?=[.)](?:\s|$)))")
# GitHub and Hugging Face turn addresses and names after `@` into links.
# https://github.github.com/gfm/#autolinks-extension-
_LINKS = re.compile(r"@|:(?=//)|(?<=www)\.", re.IGNORECASE)


def plain(text: str, longest: int = _LONGEST) -> str:
    r"""Return a text on one line, truncated to `longest` characters.

    Line breaks and other white space become single spaces. Control characters are escaped as in HTML reports.

    Example:
        >>> plain("a\n---\nb"), plain("abcdef", 4), plain("a\u202e")
        ('a --- b', 'abc…', 'a\\u202e')
    """
    shown = visible(" ".join(text.split()))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def escape(text: str) -> str:
    r"""Escape a single line of text for Markdown.

    https://spec.commonmark.org/0.31.2/#backslash-escapes

    Example:
        >>> print(escape("# <b>digits_cnn</b> | *1*"))
        \# &lt;b&gt;digits_cnn&lt;/b&gt; \| \*1\*
        >>> print(escape("@octocat http://a.example www.a.example"))
        &#64;octocat http&#58;//a.example www&#46;a.example
    """
    marked = _MARKS.sub(lambda match: f"\\{match[0]}", text)
    marked = _START.sub(lambda match: f"{match[1] or ''}\\", marked)
    marked = re.sub("[&<>]", lambda match: _ENTITIES[match[0]], marked)
    return _LINKS.sub(lambda match: f"&#{ord(match[0])};", marked)


def in_markdown(text: str) -> str:
    """Return Markdown that shows a text unchanged, on one line.

    A `Markup`, which is Markdown already, is returned unchanged.
    """
    return text if isinstance(text, markupsafe.Markup) else escape(plain(text))


def quote(text: str) -> markupsafe.Markup:
    """Return a text as a Markdown block quote. Line breaks are kept, and all other Markdown is escaped."""
    lines = [escape(plain(line, len(line) + 1)) for line in text.strip().splitlines()]
    ends = ["\\" if line and after else "" for line, after in zip(lines, [*lines[1:], ""], strict=True)]
    return markupsafe.Markup("\n".join(f"> {line}{end}".rstrip() for line, end in zip(lines, ends, strict=True)))


def fence(text: str, language: str = "") -> markupsafe.Markup:
    """Return a text as a Markdown code block. Backticks that would end the block are replaced by apostrophes."""
    inside = visible(text).replace("```", "'''")
    return markupsafe.Markup(f"```{language}\n{inside}\n```")

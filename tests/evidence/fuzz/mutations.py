"""Changes to a file, as strategies of Hypothesis: to its bytes, or to a value of its JSON."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

VALUES = (None, True, -1, 0, 1.5, float("nan"), 1e400, 10**400, "text", "", "\ud800", [], [None], {}, {"a": None})
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = (b"", b"\0", b"\xff\xfe", b"\n", b'"', b"[" * 2000, b"{" * 2000, b"9" * 5000, b"-1", b"NaN", b"1e999", b"../")
_MOST_GROWN = 1 << 16


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in parsed JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the same JSON with another value in one place."""
    if not path:
        return value
    copy = dict(raw) if isinstance(raw, dict) else list(raw)
    copy[path[0]] = changed(raw[path[0]], path[1:], value)
    return copy


@st.composite
def mutated_bytes(draw: Any, seeds: Sequence[bytes]) -> bytes:
    """Draw one of some files with some of its bytes changed, cut, doubled, moved or replaced by odd ones."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        kind = draw(st.sampled_from(["byte", "number", "word", "cut", "end", "double", "move", "digits"]))
        before, after = content[:place], content[place:]
        if kind == "byte":
            content = before + bytes([draw(st.integers(0, 255))]) + after[1:]
        elif kind == "number":
            size, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
            number = draw(st.sampled_from(_NUMBERS)) & ((1 << 8 * size) - 1)
            content = before + number.to_bytes(size, order) + after[size:]
        elif kind == "word":
            content = before + draw(st.sampled_from(_WORDS)) + after[draw(st.integers(0, 4)) :]
        elif kind == "cut":
            content = before + after[draw(st.integers(0, 64)) :]
        elif kind == "end":
            content = before
        elif kind == "double":
            content = before + after[: draw(st.integers(1, 64))] + after
        elif kind == "move":
            size = draw(st.integers(1, 64))
            content = before + after[size : 2 * size] + after[:size] + after[2 * size :]
        elif numbers := list(re.finditer(rb"\d+", content)):
            found = draw(st.sampled_from(numbers))
            digits = draw(st.sampled_from((b"-1", b"0", b"1", b"99999999", b"9" * 25, b"1e400", b"0.5")))
            content = content[: found.start()] + digits + content[found.end() :]
        content = content[: len(content) if len(content) < _MOST_GROWN else max(map(len, seeds)) + _MOST_GROWN]
    return content


@st.composite
def mutated_json(draw: Any, seeds: Sequence[bytes]) -> bytes:
    """Draw one of some JSON files with other values in some places, or without some of them."""
    raw = json.loads(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(raw))))
        if path and draw(st.booleans()):
            parent = raw
            for key in path[:-1]:
                parent = parent[key]
            if isinstance(parent, dict) and draw(st.booleans()):
                raw = changed(raw, path[:-1], {key: value for key, value in parent.items() if key != path[-1]})
                continue
        other = st.sampled_from(list(places(raw))).map(functools.partial(_at, raw))
        scalars = st.one_of(st.integers(), st.floats(), st.text(max_size=8))
        raw = changed(raw, path, draw(st.one_of(st.sampled_from(VALUES), scalars, other)))
    return json.dumps(raw).encode()


def _at(raw: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        raw = raw[key]
    return raw

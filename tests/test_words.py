"""The words of the code and of its help: what of the house style a machine can hold."""

import ast
import re
import shlex

import pytest

from tests.test_repository import ROOT, sources
from tpu_pipelines.cli.main import make_parser

# A name says what it holds.
EMPTY_NAMES = {"one", "found", "given", "of"}
# Words with which no sentence begins that has a verb: its subject would have to be guessed.
NO_VERBS = {"A", "An", "All", "As", "At", "Both", "By", "Each", "Every", "Everything", "For", "From", "How", "In", "Of"}
NO_VERBS |= {"On", "One", "Several", "Some", "Such", "That", "The", "These", "This", "Those", "To", "Two", "What"}
NO_VERBS |= {"When", "Where", "Whether", "Which", "Who", "Why", "With", "Within", "Without"}
NO_NOUNS = {"As", "By", "From", "How", "Of", "There", "To", "What", "When", "Where", "Which", "Who", "Why"}
FILES = [*sources("components"), *sources("pipelines")]


def documented(path):
    """Every documented class and function of a file, with the text of its documentation."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node, text


def is_property(node):
    return any("property" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", []))


def unclear(path):
    """What in a file's documentation leaves its reader to guess what it speaks of."""
    for node, text in documented(path):
        first, line = re.match(r"\S+", text)[0].rstrip(",.:"), text.splitlines()[0]
        if isinstance(node, ast.ClassDef) or is_property(node):
            if first in NO_NOUNS:
                yield f"{node.name}: a noun phrase is expected, received {line!r}"
        elif not re.fullmatch(r"[A-Z][a-z-]+", first) or first in NO_VERBS:
            yield f"{node.name}: a sentence that begins with its verb is expected, received {line!r}"
        for name, line in re.findall(r"^ +(\w+): ((?:As|By|How|Of|To|What|Where|Which)\b.*)", text, re.MULTILINE):
            yield f"{node.name}: a noun is expected for {name}, received {line!r}"


def test_docstrings_say_of_what_they_speak():
    assert [f"{path.relative_to(ROOT)}: {words}" for path in FILES for words in unclear(path)] == []


def bound_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name


def test_names_say_what_they_hold():
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for line, name in bound_names(path)
        if name in EMPTY_NAMES
    ] == []


def commands():
    (action,) = (action for action in make_parser()._actions if isinstance(action.choices, dict))
    return action.choices


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_ends_with_an_example_of_it(name):
    epilog = commands()[name].epilog or ""
    assert epilog.startswith(f"Example: tpu-pipelines {name}"), f"{name}: epilog={epilog!r}"
    make_parser().parse_args(shlex.split(epilog.removeprefix("Example: tpu-pipelines ")))

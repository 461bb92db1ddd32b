"""Claims about names in the code, and about the help of commands."""

import ast
import shlex

import pytest

from tests.test_repository import ROOT, sources
from tpu_pipelines.cli.main import make_parser

# A name says what it holds.
EMPTY_NAMES = {"one", "found", "given", "of"}
FILES = [*sources("components"), *sources("pipelines")]


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

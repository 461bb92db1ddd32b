"""Claims about names in the code, and about the help of commands."""

import ast
import re
import shlex

import pytest

from tests.test_repository import ROOT, sources
from tpu_pipelines.cli.commands import COMMANDS
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


# Modules with errors that only a command causes, which has these flags.
OF_COMMANDS = {
    "core/machines/device.py",
    "platforms/vertex/checks.py",
    "retraining/retrain.py",
    "runs/data_drift.py",
    "runs/exports.py",
    "serving/server.py",
    "starting/first_configuration.py",
    "submission/schedule.py",
}
FLAG = re.compile(r"(?<![\w-])--[a-z]")
VARIABLE = re.compile(r"TPU_PIPELINES_[A-Z]")


def texts_of_errors(path):
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        name = getattr(getattr(call, "func", None), "id", getattr(getattr(call, "func", None), "attr", ""))
        if name in ("InputError", "add", "unknown_key"):
            yield from (part.value for part in ast.walk(call) if isinstance(part, ast.Constant))


def test_an_error_of_a_function_names_settings_and_arguments_and_no_flag_of_a_command():
    """The Python API, components and commands raise the same errors."""
    for path in FILES:
        _, name = str(path.relative_to(ROOT)).removeprefix("components/").removeprefix("pipelines/").split("/", 1)
        if name not in OF_COMMANDS and not name.startswith("cli/"):
            assert [text for text in texts_of_errors(path) if isinstance(text, str) and FLAG.search(text)] == [], path


def test_an_error_of_a_platform_names_a_setting_by_its_name_and_its_variable():
    """`setting` of `config.settings` writes both."""
    for path in sources("pipelines/tpu_pipelines/platforms"):
        if path.name not in ("checks.py", "images.py"):  # Of `doctor`, whose commands set variables.
            assert [text for text in texts_of_errors(path) if isinstance(text, str) and VARIABLE.search(text)] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_every_command_ends_with_an_example_of_it(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # No example is wrapped.
    with pytest.raises(SystemExit):
        make_parser().parse_args([command.name, "--help"])
    example = f"{command.name} {command.example}".strip()
    assert " ".join(capsys.readouterr().out.split()).endswith(f"Example: tpu-pipelines {example}")
    make_parser().parse_args(shlex.split(example))

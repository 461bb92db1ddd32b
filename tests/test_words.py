"""The words of the code and of its help: what of the house style a machine can hold."""

import shlex

import pytest

from pipelines.cli.main import make_parser


def commands():
    (action,) = (action for action in make_parser()._actions if isinstance(action.choices, dict))
    return action.choices


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_ends_with_an_example_of_it(name):
    epilog = commands()[name].epilog or ""
    assert epilog.startswith(f"Example: tpu-pipelines {name}"), f"{name}: epilog={epilog!r}"
    make_parser().parse_args(shlex.split(epilog.removeprefix("Example: tpu-pipelines ")))

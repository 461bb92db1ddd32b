"""The numbers and mappings of commands are read as types, and refused by argparse."""

import pytest

from tpu_pipelines.cli import arguments
from tpu_pipelines.cli.main import make_parser
from tpu_pipelines.starting import data_overview


def test_the_help_of_init_names_the_kinds_that_it_recognises():
    assert tuple(data_overview.KINDS) == arguments.KINDS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict export a --length 0", "argument --length: N must be at least 1. Received: N=0."),
        ("predict export a --temperature -1", "--temperature: T must be at least 0 and finite. Received: T=-1.0."),
        ("predict export a --temperature nan", "--temperature: T is nan, expected a finite number"),
        ("predict export a --seed 4294967296", "--seed: N must be at least 0 and below 4294967296. Received: N="),
        ("predict export a --columns 5", "argument --columns: JSON is 5, expected a mapping"),
        ("drift a --against b --confidence 1", "SHARE must be at least 0.5 and below 1. Received: SHARE=1.0."),
        ("drift a --against b --confidence x", "argument --confidence: SHARE is 'x', expected a number"),
    ],
)
def test_values_of_the_wrong_form_are_refused_by_the_name_of_the_argument(capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args(words.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        ("chek digits", "tpu-pipelines", "Did you mean 'check'?"),
        ("prefligth digits", "tpu-pipelines", "Did you mean 'preflight'?"),
        ("check digits --foo", "tpu-pipelines check", "unrecognized arguments: --foo."),
        ("check digits --targt=vertex", "tpu-pipelines check", "--targt=vertex. Did you mean '--target'?"),
        ("check digits --target vertx", "tpu-pipelines check", "Did you mean 'vertex'?"),
        ("registry promot digits", "tpu-pipelines registry", "Did you mean 'promote'?"),
        ("run digits photos", "tpu-pipelines run", "unrecognized arguments: photos."),
        ("compare", "tpu-pipelines compare", "the following arguments are required: RUN"),
    ],
)
def test_a_mistake_shows_the_usage_of_its_command_and_a_similar_name(capsys, words, usage, message):
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args(words.split())
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: {usage} [-h]")
    assert message in told

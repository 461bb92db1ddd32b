"""What earlier commits had is refused with exit code 2 and the name of what replaces it."""

import sys

import pytest

from tpu_components.serving import __main__ as serving_main
from tpu_components.serving.params import REMOVED_FLAGS
from tpu_pipelines.cli.main import make_parser
from tpu_pipelines.cli.removed import REMOVED


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("value", [[], ["x"]])
def test_a_removed_command_or_flag_is_refused_with_what_replaces_it(name, value, capsys):
    command, *flag = name.split()
    words = [command, *(["digits", *flag] if flag else []), *value]
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args(words)
    assert stopped.value.code == 2
    assert REMOVED[name] in capsys.readouterr().err


@pytest.mark.parametrize("flag", REMOVED_FLAGS)
def test_the_image_refuses_the_servers_removed_flags_too(flag, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serving", "export", f"{flag}=1"])
    with pytest.raises(SystemExit) as stopped:
        serving_main.main()
    assert stopped.value.code == 2
    assert REMOVED_FLAGS[flag] in capsys.readouterr().err


def test_all_removed_flags_of_a_command_are_named_at_once(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["serve", "digits", "--log", "x", "--max-connections=3"])
    said = capsys.readouterr().err
    assert REMOVED_FLAGS["--log"] in said
    assert REMOVED_FLAGS["--max-connections"] in said


def test_every_sentence_names_a_replacement():
    assert all(" was removed. Use " in sentence for sentence in REMOVED.values())

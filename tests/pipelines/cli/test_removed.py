"""Removed commands and flags are refused with exit code 2 and one sentence that names the replacement."""

import pytest

from tpu_pipelines.cli.main import main, make_parser
from tpu_pipelines.cli.removed import REMOVED


@pytest.mark.parametrize(
    ("words", "replacement"),
    [
        ("smoke --target vertex --machine v5e-1 --yes", "tpu-pipelines submit smoke --target vertex --wait"),
        ("smoke", "tpu-pipelines submit smoke --target vertex --wait"),
    ],
)
def test_a_removed_command_is_refused_and_its_replacement_is_named(words, replacement, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: `tpu-pipelines {words.split()[0]}` was removed: ")
    assert replacement in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", REMOVED)
def test_what_is_removed_is_no_longer_parsed(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args([*name.split(), "--help"] if " " not in name else name.split())
    assert stopped.value.code == 2
    capsys.readouterr()

"""What earlier commits had is refused with exit code 2 and the name of what replaces it."""

import pytest

from tpu_pipelines.cli.main import main, make_parser
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


def test_a_removed_command_is_refused_whatever_its_flags_are(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["smoke", "--target", "vertex", "--machine", "v5e-1", "--yes"])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "smoke was removed. Use `tpu-pipelines submit smoke --target vertex --wait`." in err


def test_every_sentence_names_a_replacement():
    assert all(" was removed. Use " in sentence for sentence in REMOVED.values())

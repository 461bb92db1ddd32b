import argparse
import dataclasses
import json
import os
import shlex
import signal
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pytest

from tpu_components.core.base.errors import REJECTED, InputError
from tpu_components.core.base.typed_values import read_by_hand
from tpu_components.core.component import command_line
from tpu_components.core.component.step_inputs import params_from


@dataclasses.dataclass(frozen=True)
class _Params:
    """Everything that a flag can be.

    Attributes:
        name: Needed; 100% of the time,
            on two lines.
        rate: A float.
        verbose: A flag.
        sides: Some whole numbers.
        options: Anything by name.
    """

    name: str
    rate: float = 0.5
    count: int = 3
    verbose: bool = True
    sides: tuple[int, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="step")
    command_line.add_params(parser, _Params)
    return parser


def _parse(parser, *words):
    return params_from(vars(parser.parse_args(words)), _Params)


def test_defaults_are_those_of_the_dataclass(parser):
    assert _parse(parser, "--name", "a") == _Params("a")


def test_field_without_a_default_is_required(parser, capsys):
    with pytest.raises(SystemExit) as stopped:
        _parse(parser)
    assert stopped.value.code == 2
    assert "required: --name" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class _Shorter:
    """Parameters that were more."""

    name: str
    access: Annotated[str, ("public",)] = "public"
    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(("network", "projects", "access=private"), "Use `gcloud`.")


@pytest.mark.parametrize(
    "words", [["--network", "inside"], ["--network=inside"], ["--projects", "a", "b"], ["--access=private"]]
)
def test_a_removed_flag_is_refused_and_its_replacement_is_named(words):
    parser = argparse.ArgumentParser(prog="step")
    command_line.add_params(parser, _Shorter)
    with pytest.raises(InputError, match=r"^(network|projects|access=private) was removed\. Use `gcloud`\.$"):
        params_from(vars(parser.parse_args(["--name", "a", *words])), _Shorter)
    assert "network" not in parser.format_help()


def test_a_removed_input_of_an_earlier_compiled_component_must_be_empty():
    earlier = {"name": "a", "network": "", "projects": []}
    assert params_from(earlier, _Shorter) == _Shorter("a")
    with pytest.raises(InputError, match=r"^projects was removed\. Use `gcloud`\.$"):
        params_from({**earlier, "projects": ["b"]}, _Shorter)


@dataclasses.dataclass(frozen=True)
class _Renamed:
    """Parameters of which one had another name."""

    sides: tuple[int, ...]
    RENAMED: ClassVar[Mapping[str, str]] = {"edges": "sides"}


def test_a_renamed_flag_input_or_setting_is_accepted_with_a_warning_until_it_is_removed():
    parser = argparse.ArgumentParser(prog="step")
    command_line.add_params(parser, _Renamed)
    assert "edges" not in parser.format_help()
    with pytest.warns(FutureWarning, match=r"^edges is now called sides\. .* Use sides\.$"):
        assert params_from(vars(parser.parse_args(["--edges", "1", "2"])), _Renamed) == _Renamed((1, 2))
    with pytest.warns(FutureWarning, match=r"edges is now called sides"):  # A component that was compiled earlier.
        assert params_from({"edges": [1.0], "records": ...}, _Renamed) == _Renamed((1,))
    with pytest.warns(FutureWarning, match=r"data\.edges is now called sides"):
        assert read_by_hand({"edges": "1,2"}, _Renamed, "data") == _Renamed((1, 2))
    with pytest.raises(InputError, match=r"^data\.edges is the old name of sides\. Received: both"):
        read_by_hand({"edges": [1], "sides": [1]}, _Renamed, "data")
    assert params_from({"sides": [3]}, _Renamed) == _Renamed((3,))


def test_every_kind_of_value_is_read(parser):
    words = shlex.split("""--name a --rate 2 --count 4 --no-verbose --sides 1 2 --options '{"b": [1]}'""")
    received = _parse(parser, *words)
    assert received == _Params("a", 2.0, 4, False, (1, 2), {"b": [1]})
    assert isinstance(received.rate, float)


def test_empty_tuple_can_be_given(parser):
    assert _parse(parser, "--name", "a", "--sides").sides == ()


def test_all_values_that_cannot_be_read_are_named(parser):
    with pytest.raises(InputError) as refused:
        _parse(parser, "--name", "a", "--count", "x", "--options", "{", "--sides", "1", "2.5")
    assert str(refused.value).splitlines() == [
        "count is 'x', expected a whole number.",
        "sides[1] is '2.5', expected a whole number.",
        "options is '{', expected a mapping.",
    ]


def test_unknown_flag_is_named(parser, capsys):
    with pytest.raises(SystemExit) as stopped:
        _parse(parser, "--name", "a", "--rat", "1", "--wrong", "2")
    assert stopped.value.code == 2
    assert "--wrong" in capsys.readouterr().err


def test_help_is_the_docstring(parser):
    text = " ".join(parser.format_help().split())
    assert "Needed; 100% of the time, on two lines." in text
    assert "--verbose, --no-verbose A flag." in text
    assert "Some whole numbers." in text


def _run(work, monkeypatch):
    monkeypatch.setattr("sys.argv", ["step"])
    return command_line.run(argparse.ArgumentParser(prog="step"), work)


def test_result_is_one_json_line_on_stdout(monkeypatch, capsys):
    assert _run(lambda _: (_Params("a"), REJECTED), monkeypatch) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {**dataclasses.asdict(_Params("a")), "sides": []}
    assert captured.out.count("\n") == 1
    assert captured.err == ""


def test_mistake_is_a_paragraph_on_stderr_and_exit_code_2(monkeypatch, capsys):
    def work(_):
        raise InputError("epochs must be at least 1. Received: epochs=0.")

    assert _run(work, monkeypatch) == 2
    assert capsys.readouterr() == ("", "error: epochs must be at least 1. Received: epochs=0.\n")


def test_sigterm_is_a_line_on_stderr_and_exit_code_143(monkeypatch, capsys):
    assert _run(lambda _: os.kill(os.getpid(), signal.SIGTERM), monkeypatch) == 143
    assert capsys.readouterr() == (
        "",
        "error: The process ended because of SIGTERM. Run the same step again to continue.\n",
    )


def test_defect_keeps_its_stack_trace(monkeypatch):
    def work(_):
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        _run(work, monkeypatch)


@pytest.mark.parametrize(("text", "received"), [("5", "5"), ("[1]", "[1]"), ("{", "'{'")])
def test_a_mapping_that_is_no_json_object_is_refused(run_step_here, text, received):
    result = run_step_here("evaluate_model", {"minimum": text}, records="r", model="m", output="o")
    assert result.returncode == 2
    assert result.stderr == f'error: minimum is {received}, expected a mapping, such as {{"NAME": 0.5}}.\n'


@pytest.mark.parametrize("flag", ["--records", "--output"])
def test_a_step_refuses_a_uri_where_it_reads_or_writes_a_local_folder(flag, tmp_path, monkeypatch, capsys):
    """As a path, gs://bucket/x is a new folder named gs: on this machine."""
    monkeypatch.chdir(tmp_path)
    words = {"--records": "records", "--output": "output", "--name": "a"} | {flag: "gs://bucket/x"}
    monkeypatch.setattr("sys.argv", ["step", *(word for pair in words.items() for word in pair)])
    with pytest.raises(SystemExit) as raised:
        command_line.run_step(test_defaults_are_those_of_the_dataclass, _Params, {"records": "another"}, "")
    assert raised.value.code == 2
    assert "argument " + flag in (said := capsys.readouterr().err)
    assert "expected a path on this machine, received a URI" in " ".join(said.split())
    assert os.listdir() == []

"""How the command speaks: how loud, in which colours, and how it helps who types it."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr

import pytest

from tests.support.cli import assert_user_error, tpu_pipelines_here
from tpu_components.core.base import progress
from tpu_components.core.base.states import COLOURS
from tpu_pipelines.cli import arguments
from tpu_pipelines.cli.commands import COMMANDS
from tpu_pipelines.cli.output import show_text, tell_error, tell_hint
from tpu_pipelines.config.configuration import load_config


class Terminal(io.StringIO):
    """A terminal with colours."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_a_terminal_gets_colours(terminal):
    with redirect_stderr(terminal):
        tell_error("no such file \x1b[2J")
        tell_hint("look again")
    assert terminal.getvalue() == "\x1b[31merror:\x1b[0m no such file \\x1b[2J\n\x1b[33mhint:\x1b[0m look again\n"


def test_words_are_coloured_where_they_stand_alone(terminal):
    show_text("run-failed: failed, gate: not promoted", terminal, COLOURS)
    assert terminal.getvalue() == "run-failed: failed, gate: \x1b[33mnot promoted\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_left_out_where_they_are_not_wanted(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with redirect_stderr(terminal):
        tell_error("x")
    show_text("it failed", terminal, COLOURS)
    assert terminal.getvalue() == "error: x\nit failed\n"


def test_a_pipe_gets_no_colours():
    with redirect_stderr(pipe := io.StringIO()):
        tell_error("x")
    assert pipe.getvalue() == "error: x\n"


def test_quiet_leaves_hints_and_progress_out_but_no_error(terminal, monkeypatch):
    monkeypatch.setenv(progress.LOUDNESS_VARIABLE, progress.QUIET)
    with redirect_stderr(terminal):
        tell_hint("never mind")
        progress.say("train_model", "epoch 1")
        with progress.track("train_model", 10, "steps") as bar:
            bar.update(5, "loss 1")
        tell_error("x")
    assert terminal.getvalue() == "\x1b[31merror:\x1b[0m x\n"


@pytest.mark.parametrize(
    ("flags", "passed_on"), [([], (True, False)), (["--quiet"], (False, False)), (["--verbose"], (True, True))]
)
def test_flags_say_how_much_of_what_the_steps_print_is_passed_on(tmp_path, empty_steps, monkeypatch, flags, passed_on):
    monkeypatch.delenv(progress.LOUDNESS_VARIABLE, raising=False)
    done = tpu_pipelines_here("run", "digits", "--workspace", str(tmp_path), "--set", "preflight=false", *flags)
    log = (tmp_path / "digits" / "run.log").read_text()
    for line, is_passed_on in zip(("[train_model] starts", "a library speaks"), passed_on, strict=True):
        assert line in log
        assert (line in done.stderr) == is_passed_on, done.stderr
    assert progress.LOUDNESS_VARIABLE not in os.environ, "a flag is for one command"


def test_quiet_and_verbose_exclude_each_other():
    both = tpu_pipelines_here("machines", "--quiet", "--verbose")
    assert (both.returncode, "not allowed with argument" in both.stderr) == (2, True)


def test_the_version_is_that_of_the_package():
    done = tpu_pipelines_here("--version")
    assert (done.returncode, done.stdout) == (0, "tpu-pipelines 0.1.0\n")


_COMPLETED = """
eval "$({python} -m tpu_pipelines.cli completion bash)"
complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_tpu_pipelines; echo "${{COMPREPLY[@]}}"; }}
complete_words tpu-pipelines pref
complete_words tpu-pipelines run dig
complete_words tpu-pipelines run min
complete_words tpu-pipelines compile digits --target v
"""


def test_bash_completes_commands_examples_files_and_choices(tmp_path):
    (tmp_path / "mine.yaml").touch()
    script = _COMPLETED.format(python=sys.executable)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["preflight", "digits", "mine.yaml", "vertex"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_too(shell):
    done = tpu_pipelines_here("completion", shell)
    assert done.returncode == 0
    assert "preflight" in done.stdout


@pytest.mark.parametrize(("text", "size"), [("64,48", (64, 48)), ("64", (64, 64)), ("[64, 48]", (64, 48)), ("", ())])
def test_a_list_is_taken_as_people_type_it(text, size):
    assert load_config("digits", [f"data.image_size={text or '[]'}"]).data.image_size == size


def test_names_with_commas_between_them_are_names():
    assert load_config("imdb_lstm", ["data.class_names=no, yes"]).data.class_names == ("no", "yes")
    done = tpu_pipelines_here("check", "digits", "--set", "data.image_size=64x64")
    assert_user_error(done, "data.image_size[0] is '64x64', expected a whole number")


def test_the_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text("def build_model(image_shape, num_classes): ...\n")
    config = load_config(
        "digits",
        ["data.source=images:~/photos", "model=~/mine.py", "gate.champion=~/old", "deploy.registry=~/registry"],
    )
    assert config.data.source == f"images:{tmp_path}/photos"
    assert config.training.model == f"{tmp_path}/mine.py"
    assert config.gate.champion == f"{tmp_path}/old"
    assert config.deploy.registry == f"{tmp_path}/registry"
    assert arguments.user_path("~/runs") == tmp_path / "runs"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("runs", ["--workspace", "gs://bucket/runs"]),
        ("compile", ["digits", "--output", "gs://bucket/pipeline.yaml"]),
        ("predict", ["digits", "images:x", "--output", "GS://bucket/x.jsonl"]),
    ],
)
def test_a_uri_is_no_local_folder(command, words, tmp_path):
    done = tpu_pipelines_here(command, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "expected a path on this machine, received a URI" in " ".join(done.stderr.split())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("override", "words"),
    [("epochs=3", "Did you mean training.epochs?"), ("seed=1", "Did you mean data.seed or training.seed?")],
)
def test_a_setting_without_its_section_is_told_it(override, words):
    assert_user_error(tpu_pipelines_here("check", "digits", "--set", override), words)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_an_example_in_the_help_breaks_at_spaces_alone(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    printed = tpu_pipelines_here(command.name, "--help").stdout
    assert command.example.split() == printed.rpartition(f"Example: tpu-pipelines {command.name}")[2].split()


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "{}", "photo.png"),
        ("serve", "{}"),
        ("check", "digits", "--workspace", "/tmp/{}"),
        ("run", "digits", "--workspace", "/tmp/{}"),
        ("runs", "{}"),
        ("runs", "--workspace", "/tmp/{}"),
        ("runs", "delete", "{}", "--yes"),
        ("compare", "{}"),
        ("board", "{}"),
        ("export", "{}"),
        ("registry", "list", "--registry", "/tmp/{}"),
        ("init", "{}"),
        ("check", "{}"),
        ("check", "{}.yaml"),
        ("check", "digits", "--set", "data.source=images:{}"),
        ("check", "digits", "--set", "model={}.py"),
        ("drift", "{}", "{}"),
        ("compile", "digits", "--target", "vertex", "--output", "/tmp/{}.yaml"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_for_a_file_is_a_mistake_and_no_fault(words, tmp_path, quick_models):
    done = tpu_pipelines_here(*(word.format("x" * 300) for word in words), cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr

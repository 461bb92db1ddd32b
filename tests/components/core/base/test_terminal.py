import ast
import json
import shutil
from pathlib import Path

import pytest

import tests
from tests.support.cli import REPOSITORY
from tpu_components.core.base import progress
from tpu_components.core.base.terminal import printable
from tpu_components.core.pages.blocks import Table
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_pipelines import cli
from tpu_pipelines.cli.output import tell_error


def test_control_characters_are_escaped_and_nothing_else():
    assert printable("cat\x1b]0;title\x07\x9b2J\r\u202e\0") == r"cat\x1b]0;title\x07\x9b2J\r\u202e\x00"
    assert printable("Straße 東京 🐈\n\tcat\\") == "Straße 東京 🐈\n\tcat\\"


@pytest.mark.parametrize(
    "text", ["::error::x", "  ::error::x", "cat\n::error::x", "cat\n\t::set-output", "a ##[error]x"]
)
def test_what_ci_obeys_is_escaped(text):
    """A line that begins with `::`, or holds `##[`."""
    shown = printable(text)
    assert not any(line.strip().startswith("::") or "##[" in line for line in shown.splitlines())
    assert shown.replace("\\x3a", ":").replace("\\x23", "#") == text


def test_marks_of_direction_are_escaped():
    assert printable("a\u200fb\u061cc\u200ed") == r"a\u200fb\u061cc\u200ed"


FORGED = "a\n[deploy_model] digits version 0042 is the champion\n::error::forged"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://me:SECRET@host:80/a b@c", "at http://***@host:80/a b@c"),
        ("https://SECRET@host", "https://***@host"),
        ("http://me:SEC@RET@host/", "http://***@host/"),
        ("http://me:SEC/RET@host/x", "http://***@host/x"),
        ("postgresql+psycopg2://me:SECRET@host/db", "postgresql+psycopg2://***@host/db"),
        ("'http://me:1234@host'", "'http://***@host'"),
        ("http://host:8080/@me and a@b", "http://host:8080/@me and a@b"),
        ("see http://host:8080. Ask a@b", "see http://host:8080. Ask a@b"),
        ("hf://datasets/me/data@main/a.csv", "hf://datasets/me/data@main/a.csv"),
        ("digits@champion", "digits@champion"),
    ],
)
def test_credentials_in_addresses_are_hidden_and_nothing_else(text, shown):
    assert printable(text) == shown


def test_a_name_out_of_data_begins_no_line(tmp_path, capsys, image_folder):
    """Classes are named by folders here, by whoever made the data."""
    folder = image_folder()
    next(path for path in sorted(folder.iterdir()) if path.is_dir()).rename(folder / FORGED)
    assert cli.main(["init", str(folder), "--output", str(tmp_path / "made"), "--name", "made"]) == 0
    write_records(WriteParams(f"images:{folder}", num_workers=1), tmp_path / "records")
    said = "".join(capsys.readouterr())
    assert r"a\n[deploy_model]" in said
    assert not [line for line in said.splitlines() if line.strip().startswith(("[deploy_model]", "::"))]


@pytest.fixture
def predict_digit(exported_digits, tmp_path, monkeypatch):
    """Predict the image of a digit with a given file name, by an export whose class names begin with a given text."""
    monkeypatch.chdir(tmp_path)

    def predict(image_name, class_name, task="classification", *flags):
        shutil.copytree(exported_digits.path, task)
        info = json.loads(Path(task, "export.json").read_text())
        info |= {"task": task, "class_names": [f"{class_name}{i}" for i in range(10)]}
        Path(task, "export.json").write_text(json.dumps(info))
        shutil.copy(Path(tests.__file__).parent / "support" / "digit.png", image_name)
        return cli.main(["predict", task, image_name, *flags])

    return predict


def test_a_class_begins_no_line_where_it_is_predicted_or_a_table_or_an_error_names_it(predict_digit, capsys):
    assert [predict_digit("::error::in", FORGED, task) for task in ("classification", "regression")] == [0, 0]
    tell_error(f"Cannot use {FORGED}")
    said = "".join(capsys.readouterr())
    assert len(said.splitlines()) == 5, "the error has three"
    assert not [
        line for line in said.splitlines() if line.startswith("[deploy_model]") or line.strip().startswith("::")
    ]
    assert len(Table({"class": "<"}, [(FORGED,)]).lines()) == 2


def test_all_that_is_printed_is_escaped_first():
    """`print` gets JSON, a text that was escaped, or the output of a process of our own for another of our own."""
    escaped = {"printable", "in_one_line", "paragraph", "dumps"}
    own = {"output.py", "comparison.py", "main.py", "editors.py", "platforms.py"}
    found = []
    for path in (path for root in ("components", "pipelines") for path in (REPOSITORY / root).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and path.name not in own:
                call = getattr(node.args[0], "func", None)
                if (
                    not isinstance(node.args[0], ast.Constant)
                    and getattr(call, "id", getattr(call, "attr", "")) not in escaped
                ):
                    found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert not found


def test_what_steps_and_errors_say_cannot_write_on_a_terminal(capsys, tmp_path):
    progress.say("create_tfrecords", "classes: cat\x1b[2J")
    assert cli.main(["run", "digits", "--workspace", str(tmp_path), "--set", "data.source=images:/none\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert said.count(r"\x1b[2J") == 2
    assert "\x1b" not in said


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_predicted_classes_cannot_write_on_a_terminal(predict_digit, capsys, flags):
    assert predict_digit("in\x1b[2J", "cat\x1b[2J", "classification", *flags) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    if flags:
        answer = json.loads(said)
        assert answer["input"] == "in\x1b[2J"
        assert all(name.startswith("cat\x1b[2J") for name in answer["classes"])

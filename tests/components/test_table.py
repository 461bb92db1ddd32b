import json

import pytest

from components import progress
from components.table import printable
from pipelines import cli


def test_control_characters_are_escaped_and_nothing_else():
    assert printable("cat\x1b]0;title\x07\x9b2J\r\u202e\0") == r"cat\x1b]0;title\x07\x9b2J\r\u202e\x00"
    assert printable("Straße 東京 🐈\n\tcat\\") == "Straße 東京 🐈\n\tcat\\"


def test_what_steps_and_errors_say_cannot_write_on_a_terminal(capsys, tmp_path):
    progress.say("create_tfrecords", "classes: cat\x1b[2J")
    assert cli.main(["run", "digits", "--workspace", str(tmp_path), "--set", "data.source=images:/none\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert said.count(r"\x1b[2J") == 2
    assert "\x1b" not in said


@pytest.mark.parametrize("as_json", [False, True])
def test_predicted_classes_cannot_write_on_a_terminal(monkeypatch, capsys, tmp_path, as_json):
    from components.serving import inputs
    from pipelines import exports

    monkeypatch.setattr(exports, "find_export", lambda *_: str(tmp_path))
    named = inputs.ExamplePrediction("in\x1b[2J", (("cat\x1b[2J", 1.0),), "classification")
    monkeypatch.setattr(inputs, "predict_inputs", lambda *_, **__: [named])
    monkeypatch.setattr(inputs, "is_language_model", lambda _: False)
    assert cli.main(["predict", str(tmp_path), "x.png", *(["--json"] if as_json else [])]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    if as_json:
        assert json.loads(said) == {"input": "in\x1b[2J", "classes": {"cat\x1b[2J": 1.0}}

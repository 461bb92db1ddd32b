"""Claims about the log of predictions: what it holds, and that no answer waits for it."""

import asyncio
import base64
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tests
from tests.components.serving.test_application import BODY, Model, call
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.registry.reference import version_at
from tpu_components.serving import prediction_log
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.params import ServeParams
from tpu_components.serving.prediction_log import PredictionLog

_INPUT = ImageInput((1, 1, 1), "raw")
_SURE = np.array([[0.25, 0.75]], np.float32)


def model_of(task="classification"):
    return ExportedModel("pets", ("cat", "dog"), _INPUT, None, _INPUT, task)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ask(tmp_path, with_content):
    """Answer a request with a log; returns the log's line."""
    path = tmp_path / "log.jsonl"
    log = PredictionLog(str(path), 1.0, with_content, ("pets-at-home", "0003"))
    app = Application(ServeParams(), log)

    async def run():
        async with app.ready(Model().exported):
            assert (await call(app, "POST", "/predict", BODY))[0] == 200

    asyncio.run(run())
    log.close()
    (line,) = lines_of(path)
    return line


def test_a_line_says_what_was_answered_and_not_what_was_asked(tmp_path):
    line = ask(tmp_path, with_content=False)
    assert line.pop("time").endswith("+00:00")
    assert line.pop("ms") > 0
    answer = {"class": "cat", "confidence": 1.0, "instance": 0, "share": 1.0}
    assert line == {"model": "pets-at-home", "version": "0003", "format": "float", **answer}


def test_what_was_asked_is_logged_where_that_is_wanted(tmp_path):
    assert ask(tmp_path, with_content=True)["content"] == [[7]]


def test_a_line_names_the_registered_version_where_the_export_lies_in_a_registry(tmp_path):
    path = tmp_path / "log.jsonl"
    for place in (
        "runs/registry/flowers/versions/0002/export",
        "gs://bucket/registry/flowers/versions/0002/export",
        "e",
    ):
        log = PredictionLog(str(path), 1.0, registered=version_at(place))
        log.add(model_of(), _SURE, 0.001)
        log.close()
    names = [(line["model"], line["version"]) for line in lines_of(path)]
    assert names == [("flowers", "0002"), ("flowers", "0002"), ("pets", "")]


@pytest.mark.parametrize(
    ("task", "answer"),
    [("multi_label", {"labels": {"dog": 0.75}}), ("regression", {"values": {"cat": 0.25, "dog": 0.75}})],
)
def test_other_tasks_log_their_own_answers(tmp_path, task, answer):
    log = PredictionLog(str(tmp_path / "log.jsonl"), 1.0)
    log.add(model_of(task), _SURE, 0.001)
    log.close()
    (line,) = lines_of(tmp_path / "log.jsonl")
    assert answer.items() <= line.items()


def test_a_share_is_drawn(tmp_path):
    log = PredictionLog(str(tmp_path / "log.jsonl"), 0.1)
    for _ in range(50):
        log.add(model_of(), np.tile(_SURE, (100, 1)), 0.001)
    log.close()
    assert 350 < len(lines_of(tmp_path / "log.jsonl")) < 650


def test_no_answer_waits_for_a_file_that_takes_nothing(tmp_path, monkeypatch):
    """A pipe that nobody reads: it takes 64 KiB, some 350 lines."""
    path = tmp_path / "log.jsonl"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe, ThreadPoolExecutor(1) as pool:
        log = PredictionLog(str(path), 1.0)
        monkeypatch.setattr(prediction_log, "END_SECONDS", 0.1)
        for _ in range(5000):
            log.add(model_of(), _SURE, 0.001)
        log.close()
        os.set_blocking(pipe.fileno(), True)
        written = pool.submit(pipe.read)
        monkeypatch.setattr(prediction_log, "END_SECONDS", 60)
        log.close()
        assert 1000 <= written.result().count(b"\n") <= 1500, "a thousand wait at most"


def test_a_full_disk_is_told_once_and_ends_nothing(capsys):
    log = PredictionLog("/dev/full", 1.0)
    for _ in range(3):
        log.add(model_of(), _SURE, 0.001)
    log.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "Predictions are missing from the log: OSError(28, 'No space left on device'); told once." in line


@pytest.mark.parametrize(("with_content", "mode"), [(True, 0o600), (False, 0o644)])
def test_what_was_asked_is_for_its_owner_alone(tmp_path, with_content, mode):
    before = os.umask(0o022)
    try:
        PredictionLog(str(tmp_path / "log.jsonl"), 1.0, with_content).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log.jsonl").stat().st_mode) == mode


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_served(tmp_path):
    with pytest.raises(InputError, match=r"Cannot log predictions to .*nowhere/log.jsonl: No such file or directory"):
        PredictionLog(str(tmp_path / "nowhere" / "log.jsonl"), 1.0)


def test_the_command_logs_an_image_with_its_bytes(start_server, tmp_path):
    digit_png = (Path(tests.__file__).parent / "digit.png").read_bytes()
    path = tmp_path / "log.jsonl"
    with start_server("--log", str(path), "--log-share", "1", "--log-content") as server:
        answer = server.request("POST", "/predict", digit_png, {"content-type": "image/png"})
        assert answer.status == 200
        assert server.stop() == 0
    (line,) = lines_of(path)
    (prediction,) = answer.body["predictions"]
    assert (line["class"], line["confidence"]) == (prediction["class"], prediction["confidence"])
    assert base64.b64decode(line["content"]["b64"]) == digit_png
    assert line["version"] == ""

import contextlib
import os
import select
import termios
import time

import pytest

from tpu_components.core.base import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.delenv(progress.TERMINAL_VARIABLE, raising=False)
    return now


def test_say_marks_the_step_on_stderr(capsys):
    progress.say("train_model", "epoch 1")
    assert capsys.readouterr() == ("", "[train_model] epoch 1\n")


def test_without_a_terminal_there_is_a_line_now_and_then(clock, capsys):
    with progress.track("train_model", 4000, "images") as bar:
        for _ in range(80):
            clock[0] += 0.125
            bar.update(25, "loss 0.5000")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "[train_model] 1,000/4,000 images, 200 images/s, 15 s left, loss 0.5000",
        "[train_model] 2,000/4,000 images, 200 images/s, 10 s left, loss 0.5000",
    ]


def test_short_work_says_nothing(clock, capsys):
    with progress.track("train_model", 10, "images") as bar:
        bar.update(10)
    assert capsys.readouterr() == ("", "")


class Terminal:
    """A terminal of 120 columns, in the place of stderr.

    Attributes:
        file: What writes to it.
    """

    def __init__(self, file, screen):
        self.file, self._screen = file, screen

    def read_until(self, end):
        """Everything that is shown, once it contains `end`, or after 5 s without anything new."""
        self.file.flush()
        shown = b""
        # The system hands a terminal's output over piece by piece, in its own time.
        while end not in shown and select.select([self._screen], [], [], 5)[0]:
            shown += os.read(self._screen.fileno(), 65536)
        return shown


@contextlib.contextmanager
def open_terminal(monkeypatch):
    """No fixture: pytest sets stderr again between a fixture and its test."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    with os.fdopen(theirs, "w") as file, os.fdopen(ours, "rb") as screen:
        monkeypatch.setattr("sys.stderr", file)
        yield Terminal(file, screen)


def test_terminal_shows_a_bar_with_rate_and_note(monkeypatch):
    with open_terminal(monkeypatch) as terminal:
        with progress.track("train_model", 1000, "images") as bar:
            time.sleep(1.2)  # It is drawn ten times a second, after the first.
            bar.update(500, "loss 0.5000")
        shown = terminal.read_until(b"loss 0.5000").decode()
        assert "train_model" in shown
        assert "500/1.00k" in shown
        assert "loss 0.5000" in shown


def test_a_line_takes_the_place_of_a_bar(monkeypatch):
    """A step draws bars on the terminal, and the process that runs the steps prints their lines there."""
    with open_terminal(monkeypatch) as terminal:
        monkeypatch.setenv("TERM", "xterm")
        terminal.file.write("train_model epoch 2/4:  50%|#####     |")
        progress.show_line("[train_model] epoch 1/4")
        monkeypatch.setenv("TERM", "dumb")
        progress.show_line("plain")
        shown = terminal.read_until(b"plain\r\n")
        assert shown.endswith(b"|\r\x1b[K[train_model] epoch 1/4\r\nplain\r\n")


def test_a_short_epoch_has_no_bar(monkeypatch):
    with open_terminal(monkeypatch) as terminal:
        with progress.track("train_model epoch 1/4", 10, "images") as bar:
            bar.update(10)
        terminal.file.write("end")
        assert b"images" not in terminal.read_until(b"end")


def test_a_step_that_says_nothing_says_every_20_seconds_that_it_runs(clock, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_shown_at", [0.0])
    heartbeat = progress.Heartbeat("export_model")
    for _ in range(100):
        clock[0] += 1
        heartbeat.beat()
        if clock[0] == 150:
            progress.say("export_model", "converted")
    lines = capsys.readouterr().err.splitlines()
    numbers = [20, 40, 70, 90]
    expected = [f"[export_model] still running, {number} s after its start" for number in numbers]
    assert lines == [*expected[:2], "[export_model] converted", *expected[2:]]


def test_a_step_says_that_it_starts(capsys):
    with progress.never_silent("export_model"):
        assert capsys.readouterr().err == "[export_model] started\n"


def test_a_terminal_without_a_width_gets_lines(clock, monkeypatch):
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb") as screen:
        monkeypatch.setattr("sys.stderr", terminal)
        with progress.track("train_model", 100, "images") as bar:
            clock[0] += 5.0
            bar.update(50)
        assert os.read(screen.fileno(), 65536) == b"[train_model] 50/100 images, 10 images/s, 5 s left\r\n"


def test_terminal_variable_without_a_terminal_falls_back_to_lines(clock, monkeypatch, capsys):
    monkeypatch.setenv(progress.TERMINAL_VARIABLE, "1")
    monkeypatch.setattr("builtins.open", _refuse)
    with progress.track("train_model", 10, "images") as bar:
        clock[0] += 6
        bar.update(5)
    assert "5/10 images" in capsys.readouterr().err


def _refuse(*_, **__):
    raise OSError("no terminal")

import dataclasses
import json
import time

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.train_model import goodput
from tpu_components.train_model.goodput import SESSIONS_FILE, PaidSeconds, Sessions


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_what_is_paid_is_divided_into_what_trained_and_what_did_not(tmp_path):
    """A session is killed 10 s after its last checkpoint, one before its first step, one is the present one."""
    clock = Clock()
    clock.now = 1040.0
    first = Sessions(tmp_path, "s", 990.0, clock)
    first.claim("a", None, lambda: 1000.0)
    first.sign()  # The last one: 10 s of start-up, and a checkpoint at 1030.
    clock.now = 1520.0
    Sessions(tmp_path, "s", 1500.0, clock).sign()
    clock.now = 2050.0
    third = Sessions(tmp_path, "s", 2000.0, clock)
    third.claim("a", 1030.0, lambda: 2005.0)
    paid = third.paid_seconds(trained=60.0, waiting=8.0)
    assert third.count == 3
    assert paid == PaidSeconds(trained=60.0, start_up=10.0 + 20.0 + 5.0, waiting=8.0, lost=10.0, other=7.0)
    assert paid.goodput == 0.5


def test_steps_of_a_session_that_was_killed_before_it_told_of_its_first_are_counted_once(tmp_path):
    """It told of itself before its first step, made a checkpoint 8 s later, and was killed."""
    clock = Clock()
    first = Sessions(tmp_path, "s", 990.0, clock)
    first.claim("a", None)
    first.sign()  # At 1000.
    clock.now = 2010.0
    second = Sessions(tmp_path, "s", 2000.0, clock)
    second.claim("a", 1008.0, lambda: 2004.0)
    # Of the first 18 s, 6 trained; of the second 10 s, 4 were start-up and 6 trained.
    paid = second.paid_seconds(trained=12.0, waiting=0.0)
    assert paid == PaidSeconds(trained=12.0, start_up=4.0, waiting=0.0, lost=0.0, other=12.0)
    assert sum(dataclasses.astuple(paid)) == 28.0, "no second is counted twice"


def test_the_first_step_is_told_at_once_and_not_at_the_next_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "_SIGN_EVERY_SECONDS", 3600.0)
    first_step = []
    sessions = Sessions(tmp_path, "s", time.time())
    sessions.claim("a", None, lambda: first_step[0] if first_step else None)
    with sessions.signed(is_writer=True):
        first_step.append(time.time())
        until = time.monotonic() + 60.0  # It takes half a second, on a machine that is not busy.
        told = None
        while told is None and time.monotonic() < until:
            time.sleep(0.05)
            told = json.loads((tmp_path / SESSIONS_FILE).read_text())["steps"][-1][0]
    assert told == first_step[0]


def test_steps_of_a_session_that_left_no_checkpoint_are_lost_and_stay_so(tmp_path):
    clock = Clock()
    for start, continued_from in ((1000.0, None), (2000.0, None), (3000.0, 2080.0)):
        clock.now = start + 90.0
        sessions = Sessions(tmp_path, "s", start, clock)
        sessions.claim("a", continued_from, lambda start=start: start + 10.0)
        sessions.sign()
    assert sessions.paid_seconds(150.0, 0.0) == PaidSeconds(150.0, start_up=30.0, lost=80.0 + 10.0, other=0.0)


def test_a_checkpoint_is_a_sign_of_life_too(tmp_path):
    clock = Clock()
    first = Sessions(tmp_path, "s", 990.0, clock)
    first.claim("a", None, lambda: 995.0)
    first.sign()
    clock.now = 2001.0
    second = Sessions(tmp_path, "s", 2000.0, clock)
    second.claim("a", 1008.0)
    assert second.paid_seconds(10.0, 0.0) == PaidSeconds(10.0, start_up=5.0 + 1.0, lost=0.0, other=3.0)


def test_books_of_before_tell_how_long_sessions_were(tmp_path):
    (tmp_path / SESSIONS_FILE).write_text('{"identity": "a", "sessions": [[900.0, 950.0]]}')
    sessions = Sessions(tmp_path, "s", 990.0, Clock())
    sessions.claim("a", 0.0, lambda: 995.0)
    assert sessions.count == 2
    assert sessions.paid_seconds(40.0, 0.0) == PaidSeconds(40.0, start_up=5.0, other=15.0)
    sessions.sign()
    content = json.loads((tmp_path / SESSIONS_FILE).read_text())
    assert content["sessions"] == [[900.0, 950.0], [990.0, 1000.0]]  # As before, for who reads it so.


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"identity": "a"}', b'{"identity": "a", "sessions": [[1]]}'])
def test_books_that_cannot_be_read_begin_anew(tmp_path, content):
    (tmp_path / SESSIONS_FILE).write_bytes(content)
    sessions = Sessions(tmp_path, "s", 0.0)
    sessions.claim("a", None)
    assert sessions.count == 1


def _count(folder, settings, identity):
    sessions = Sessions(folder, settings, 1990.0, Clock())
    sessions.claim(identity, None)
    return sessions.count


def test_sessions_of_another_training_do_not_count(tmp_path):
    ours = Sessions(tmp_path, "s", 990.0, Clock())
    ours.claim("a", None)
    ours.sign()
    assert (_count(tmp_path, "s", "b"), _count(tmp_path, "s", "a")) == (1, 2)
    Sessions(tmp_path, "other settings", 991.0, Clock()).sign()
    assert (_count(tmp_path, "s", "a"), _count(tmp_path, "other settings", "b")) == (2, 2)


def test_host_0_alone_gives_signs_of_life_also_while_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "_SIGN_EVERY_SECONDS", 0.01)
    with Sessions(tmp_path, "s", 0.0).signed(is_writer=False):
        time.sleep(0.05)
    assert not (tmp_path / SESSIONS_FILE).exists()
    ends = []
    with Sessions(tmp_path, "s", 0.0).signed(is_writer=True):
        while len(set(ends)) < 3:
            if (tmp_path / SESSIONS_FILE).exists():
                ends.append(json.loads((tmp_path / SESSIONS_FILE).read_text())["early"]["sessions"][-1][1])
            time.sleep(0.01)
    assert sorted(ends) == ends


@pytest.mark.parametrize("before", [None, b'{"identity": "a", "sessions": [[900.0, 950.0]]}'])
def test_a_refusal_leaves_the_books_as_they_were(tmp_path, before):
    path = tmp_path / "checkpoints" / SESSIONS_FILE
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)

    def refuse():
        with Sessions(path.parent, "s", 0.0).signed(is_writer=True):
            assert path.is_file()
            raise InputError("refused")

    with pytest.raises(InputError):
        refuse()
    assert (path.read_bytes() if path.is_file() else None) == before
    assert path.parent.exists() == (before is not None)

import errno
import json
import os
import time

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.train_model import goodput
from tpu_components.train_model.goodput import SESSIONS_FILE, GoodputRecorder


def _paid(trained, start_up, waiting=0.0, lost=0.0, other=0.0):
    return {"trained": trained, "start_up": start_up, "waiting": waiting, "lost": lost, "other": other}


def _session(folder, start, first_step=None, end=None, continued_from=0.0, settings="s"):
    """Record a session whose last heartbeat is at `end`; returns it."""
    now = [start]
    session = GoodputRecorder(folder, settings, start, clock=lambda: now[0])
    session.accept(continued_from)
    if first_step is not None:
        now[0] = first_step
        session.begin()
    now[0] = end or now[0]
    session.save()
    return session


def test_paid_time_is_divided_by_use(tmp_path):
    """A session is killed 10 s after its last checkpoint, one before its first step, one is the present one."""
    _session(tmp_path, 990.0, 1000.0, 1040.0)
    _session(tmp_path, 1500.0, None, 1520.0)
    third = _session(tmp_path, 2000.0, 2005.0, 2050.0, continued_from=1030.0)
    paid = third.paid_seconds(trained=60.0, waiting=8.0)
    assert third.num_sessions == 3
    # The checkpoint is of the first session, though a later one started before this one.
    assert paid == _paid(trained=60.0, start_up=10.0 + 20.0 + 5.0, waiting=8.0, lost=10.0, other=7.0)


def test_seconds_of_a_session_without_a_recorded_first_step_are_counted_once(tmp_path):
    """Its last heartbeat was before its first step; it saved a checkpoint 8 s later and was killed."""
    _session(tmp_path, 990.0, None, 1000.0)
    second = _session(tmp_path, 2000.0, 2004.0, 2010.0, continued_from=1008.0)
    # Of the first 18 s, 6 trained; of the second 10 s, 4 were start-up and 6 trained.
    paid = second.paid_seconds(trained=12.0, waiting=0.0)
    assert paid == _paid(trained=12.0, start_up=4.0, waiting=0.0, lost=0.0, other=12.0)
    assert sum(paid.values()) == 28.0


def test_steps_of_a_session_without_a_checkpoint_are_lost_and_stay_lost(tmp_path):
    for start, continued_from in ((1000.0, 0.0), (2000.0, 0.0), (3000.0, 2080.0)):
        sessions = _session(tmp_path, start, start + 10.0, start + 90.0, continued_from)
    assert sessions.paid_seconds(150.0, 0.0) == _paid(150.0, start_up=30.0, lost=80.0 + 10.0, other=0.0)


def test_a_checkpoint_is_a_heartbeat_too(tmp_path):
    _session(tmp_path, 990.0, 995.0, 1000.0)
    second = _session(tmp_path, 2000.0, None, 2001.0, continued_from=1008.0)
    assert second.paid_seconds(10.0, 0.0) == _paid(10.0, start_up=5.0 + 1.0, lost=0.0, other=3.0)


@pytest.mark.parametrize(
    ("more", "count", "paid"),
    [
        ({}, 2, _paid(40.0, start_up=5.0, other=15.0)),
        (
            {"steps": [[910.0, None]], "early": {"settings": "s", "sessions": [[960.0, 965.0]]}},
            3,
            _paid(5.0, start_up=10.0 + 5.0 + 5.0, lost=40.0),
        ),
        (
            {"steps": [[910.0, None]], "early": {"settings": "others", "sessions": []}},
            1,
            _paid(5.0, start_up=5.0),
        ),
    ],
)
def test_files_of_older_versions_are_read(tmp_path, more, count, paid):
    """The oldest say only how long sessions were. Later ones keep apart the sessions that ended early."""
    (tmp_path / SESSIONS_FILE).write_text(json.dumps({"identity": "a", "sessions": [[900.0, 950.0]], **more}))
    sessions = _session(tmp_path, 990.0, 995.0, 1000.0)
    assert sessions.num_sessions == count
    assert sessions.paid_seconds(paid["trained"], 0.0) == paid
    assert json.loads((tmp_path / SESSIONS_FILE).read_text())["sessions"][-1] == [990.0, 1000.0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"identity": "a"}', b'{"identity": "a", "sessions": [[1]]}'])
def test_a_file_that_cannot_be_read_is_replaced(tmp_path, content):
    (tmp_path / SESSIONS_FILE).write_bytes(content)
    assert _session(tmp_path, 990.0).num_sessions == 1
    assert _session(tmp_path, 991.0).num_sessions == 2


def test_a_full_disk_fails_no_training(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sessions = GoodputRecorder(tmp_path, "s", 0.0)
    monkeypatch.setattr(os, "fsync", refuse)
    with sessions.recorded():
        sessions.begin()
    assert not (tmp_path / SESSIONS_FILE).exists()


def test_sessions_of_another_training_do_not_count(tmp_path):
    _session(tmp_path, 990.0)
    assert GoodputRecorder(tmp_path, "s", 991.0).num_sessions == 2
    assert GoodputRecorder(tmp_path, "other settings", 991.0).num_sessions == 1
    changed_model = GoodputRecorder(tmp_path, "s", 991.0)
    changed_model.forget()
    assert changed_model.num_sessions == 1


def test_only_host_0_records_heartbeats_while_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "EVERY_SECONDS", 0.01)
    with GoodputRecorder(tmp_path, "s", 0.0, is_writer=False).recorded():
        time.sleep(0.05)
    assert not (tmp_path / SESSIONS_FILE).exists()
    ends = set()
    with GoodputRecorder(tmp_path, "s", 0.0).recorded():
        while len(ends) < 3:
            ends.add(json.loads((tmp_path / SESSIONS_FILE).read_text())["sessions"][-1][1])
            time.sleep(0.01)


@pytest.mark.parametrize("before", [None, b'{"identity": "a", "sessions": [[900.0, 950.0]]}'])
def test_a_session_that_is_refused_does_not_count(tmp_path, before):
    path = tmp_path / "checkpoints" / SESSIONS_FILE
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)

    def refuse():
        with GoodputRecorder(path.parent, "s", 0.0).recorded():
            assert path.is_file()
            raise InputError("refused")

    with pytest.raises(InputError):
        refuse()
    assert (path.read_bytes() if path.is_file() else None) == before
    assert path.parent.exists() == (before is not None)

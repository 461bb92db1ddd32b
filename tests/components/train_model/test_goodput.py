import json
import time

import pytest

from components.train_model import goodput
from components.train_model.goodput import SESSIONS_FILE, Sessions


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_goodput_is_the_share_of_all_sessions_time_that_trained(tmp_path):
    clock = Clock()
    first = Sessions(tmp_path, "a", 990.0, clock)
    first.sign()
    clock.now = 1040.0  # It made 40 s of steps, and is killed 50 s after its start; 10 s are lost with it.
    first.sign()
    second = Sessions(tmp_path, "a", 2000.0, clock)
    clock.now = 2050.0
    assert (second.count, second.paid_seconds) == (2, 100.0)
    assert second.goodput(30 + 40) == 0.7


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"identity": "a"}', b'{"identity": "a", "sessions": [[1]]}'])
def test_books_that_cannot_be_read_begin_anew(tmp_path, content):
    (tmp_path / SESSIONS_FILE).write_bytes(content)
    assert Sessions(tmp_path, "a", 0.0).count == 1


def test_sessions_of_another_training_do_not_count(tmp_path):
    Sessions(tmp_path, "a", 990.0, Clock()).sign()
    assert Sessions(tmp_path, "b", 990.0, Clock()).count == 1
    assert Sessions(tmp_path, "a", 990.0, Clock()).count == 2


def test_host_0_alone_gives_signs_of_life_also_while_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "_SIGN_EVERY_SECONDS", 0.01)
    with Sessions(tmp_path, "a", 0.0).signed(is_writer=False):
        time.sleep(0.05)
    assert not (tmp_path / SESSIONS_FILE).exists()
    ends = []
    with Sessions(tmp_path, "a", 0.0).signed(is_writer=True):
        while len(set(ends)) < 3:
            if (tmp_path / SESSIONS_FILE).exists():
                ends.append(json.loads((tmp_path / SESSIONS_FILE).read_text())["sessions"][-1][1])
            time.sleep(0.01)
    assert sorted(ends) == ends

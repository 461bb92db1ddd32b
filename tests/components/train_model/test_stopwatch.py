import time

import pytest

from tpu_components.train_model.stopwatch import CHECKPOINT, COMPUTE, HOST, Stopwatch
from tpu_components.train_model.training import _time_line


def test_every_second_counts_once_and_what_nobody_measures_is_the_hosts():
    clock, begun = Stopwatch(COMPUTE, CHECKPOINT), time.monotonic()
    with clock.measure(COMPUTE):
        time.sleep(0.02)
        with clock.measure(CHECKPOINT):
            time.sleep(0.03)
    time.sleep(0.01)
    taken, passed = clock.take(), time.monotonic() - begun
    assert taken.keys() == {COMPUTE, CHECKPOINT, HOST}
    assert taken[COMPUTE] >= 0.02
    assert taken[CHECKPOINT] >= 0.03
    assert taken[HOST] >= 0.01
    assert sum(taken.values()) == pytest.approx(passed, abs=0.005)
    assert sum(clock.take().values()) < passed


def test_a_block_that_fails_is_counted_too():
    clock = Stopwatch(COMPUTE)
    with pytest.raises(ValueError, match="no"), clock.measure(COMPUTE):
        raise ValueError("no")
    with clock.measure(COMPUTE):
        pass
    assert clock.take()[HOST] >= 0


def test_the_line_about_time_says_what_held_the_device_back():
    with_input = _time_line({"compute": 9.0, "input": 0.5, "checkpoint": 0.0, "host": 0.5})
    assert with_input == (
        "time of epochs 10.0 s: 90% computing; waiting: 5% for input, 0% for checkpoints, 5% for the host"
    )
    without = _time_line({"compute": 3.0, "checkpoint": 0.0, "host": 1.0})
    assert without == ("time of epochs 4.0 s: 75% computing and input; waiting: 0% for checkpoints, 25% for the host")

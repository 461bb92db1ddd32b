"""The stopwatch of a training, and its profile for TensorBoard."""

import time
from pathlib import Path

import pytest

from tpu_components.train_model.profiling import CHECKPOINT, COMPUTE, HOST, StepProfile, Stopwatch, profiler
from tpu_components.train_model.training import describe_time


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
    with_input = describe_time({"compute": 9.0, "input": 0.5, "checkpoint": 0.0, "host": 0.5})
    assert with_input == (
        "the epochs took 10.0 s: 90% computing; waiting: 5% for input, 0% for checkpoints, 5% for the host"
    )
    without = describe_time({"compute": 3.0, "checkpoint": 0.0, "host": 1.0})
    assert without == ("the epochs took 4.0 s: 75% computing and input; waiting: 0% for checkpoints, 25% for the host")


class Silent:
    def update(self, count, note=""):
        pass


def profile_epochs(num_steps, *epochs, batch_size=10):
    """What is told of a profile, and of the steps of each epoch by their examples."""
    told = []
    folder = Path("logs")
    profile = StepProfile(num_steps, batch_size, folder, lambda place: told.append(place), lambda: told.append("end"))
    for steps in epochs:
        with profile.watching(Silent(), sum(steps)) as bar:
            for count in steps:
                told.append(count)
                bar.update(count)
        told.append("epoch")
    return told


@pytest.mark.parametrize(
    ("num_steps", "epochs", "told"),
    [
        (0, [[10, 10]], [10, 10, "epoch"]),
        (2, [[10, 10, 10, 10]], [10, "logs", 10, 10, "end", 10, "epoch"]),
        (5, [[10, 10, 5], [10, 10, 5]], [10, "logs", 10, 5, "end", "epoch", 10, 10, 5, "epoch"]),
        # All of an epoch is one program, as where the data lie in the device's memory.
        (2, [[25], [25], [25]], [25, "epoch", "logs", 25, "end", "epoch", 25, "epoch"]),
    ],
)
def test_steps_after_the_first_are_profiled_once_and_never_across_epochs(num_steps, epochs, told):
    assert profile_epochs(num_steps, *epochs) == told


def test_a_training_that_breaks_ends_its_profile():
    told = []
    profile = StepProfile(9, 1, Path("logs"), lambda place: None, lambda: told.append("end"))

    def break_off():
        with profile.watching(Silent(), 9) as bar:
            bar.update(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert told == ["end"]


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_profile_is_where_tensorboard_looks_for_it(backend, tmp_path):
    start, stop = profiler(backend)
    start(str(tmp_path))
    stop()
    (profile,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 0

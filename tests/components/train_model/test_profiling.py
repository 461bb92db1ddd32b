"""Claims about when a training is profiled, and that both backends leave what TensorBoard reads."""

from pathlib import Path

import pytest

from tpu_components.train_model.profiling import StepProfile, profiler


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

import dataclasses

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training import PreflightParams
from tpu_components.train_model import TrainParams


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": -1}, "epochs=-1"),
        ({"paid": PaidMachine("v6e-8"), "training": TrainParams("digits_cnn", backend="tensorflow")}, "v6e"),
        ({"max_step_ms": -1.0}, "max_step_ms=-1.0"),
        ({"max_price_usd": float("nan")}, "max_price_usd=nan"),
        ({"max_host_wait": float("inf")}, "max_host_wait=inf"),
        ({"max_host_wait": 50.0}, "max_host_wait=50.0"),
        ({"compile_timeout_seconds": 0.0}, "compile_timeout_seconds=0.0"),
        ({"compile_memory_mib": -1}, "compile_memory_mib=-1"),
    ],
)
def test_mistakes_are_refused_with_their_value(values, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        PreflightParams(**{"training": TrainParams("digits_cnn"), **values})


def test_a_training_of_the_same_program_is_the_same_whatever_its_seed_and_host():
    training = TrainParams("digits_cnn", seed=1, shuffle_buffer=5, checkpoint_seconds=1.0)
    assert training.program == TrainParams("digits_cnn").program
    for changes in ({"ema_decay": 0.9}, {"batch_size_per_replica": 8}):
        assert dataclasses.replace(training, **changes).program != training.program


def test_a_run_is_priced_by_its_own_epochs_or_the_trainings():
    training = TrainParams("digits_cnn", epochs=7)
    assert [PreflightParams(training, epochs=epochs).run_epochs for epochs in (0, 3)] == [7, 3]

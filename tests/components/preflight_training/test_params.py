import dataclasses

import pytest

from components.errors import InputError
from components.preflight_training import PreflightParams
from components.train_model import TrainParams


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size_per_replica": 0}, "batch_size_per_replica=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"optimizer": "lion"}, "optimizer='lion'"),
        ({"weight_decay": 0.1}, "weight_decay=0.1 needs optimizer=adamw"),
        ({"backend": "torch"}, "backend='torch'"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"machine": "v5e-7"}, "v5e-7"),
        ({"machine": "v6e-8", "backend": "tensorflow"}, "v6e"),
        ({"machine": "v5e-8", "region": "mars-west1"}, "mars-west1"),
        ({"machine": "v3-32", "spot": True}, "spot"),
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
        PreflightParams(model="digits_cnn", **values)


def test_what_training_takes_too_has_the_same_default():
    """Else preflight would compile another step than the one that training runs."""
    ours = {field.name: field.default for field in dataclasses.fields(PreflightParams)}
    theirs = {field.name: field.default for field in dataclasses.fields(TrainParams)}
    shared = ours.keys() & theirs.keys()
    assert {"batch_size_per_replica", "optimizer", "learning_rate_schedule", "precision", "backend"} <= shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}

"""Claims about a training that ends between two steps that make one update."""

from dataclasses import replace

import pytest

from tests.components.train_model.interrupting import continue_training, train_alone, train_until_sigterm
from tests.components.train_model.weights import assert_equal_models
from tpu_components.core.base.errors import InputError
from tpu_components.train_model import train_model


@pytest.mark.heavy  # Three trainings for each optimizer.
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lion", "adamw", "rmsprop", "adafactor", "muon"])
def test_a_training_ended_within_an_accumulation_continues_to_the_same_weights(
    tiny, digits_records, tmp_path, optimizer, capfd
):
    parameters = {"gradient_accumulation_steps": 4, "global_clipnorm": 1.0}
    params = replace(tiny, epochs=1, optimizer=optimizer, optimizer_parameters=parameters)
    train_alone(params, digits_records, tmp_path / "whole")
    assert train_until_sigterm(params, digits_records, tmp_path / "ended", looks=6) == (0, 6)
    continue_training(params, digits_records, tmp_path / "ended", capfd)
    assert_equal_models(tmp_path / "whole", tmp_path / "ended")


def test_a_training_without_an_update_is_refused(tiny, digits_records, tmp_path):
    params = replace(tiny, epochs=1, optimizer_parameters={"gradient_accumulation_steps": 1000})
    with pytest.raises(InputError, match=r"gradient_accumulation_steps=1000 .* never be updated\. Reduce it"):
        train_model(params, digits_records, tmp_path / "model")

"""The training step of every task and optimizer against the one by hand in float64, on both backends."""

import pytest

from tests.evidence.oracles import steps

# Shares of the greatest weight after 12 steps in float32. Adam divides by roots of squares and amplifies rounding.
_TOLERANCES = {"loss": 1e-5, "weights, sgd": 1e-5, "weights, adam": 1e-4, "weights, adamw": 1e-4, "averages": 1e-4}


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("tensorflow", marks=pytest.mark.heavy),  # Traces a step for every task and optimizer: 7 s.
        pytest.param("jax", marks=pytest.mark.slow),  # Compiles a step for every task and optimizer: 20 s.
    ],
)
def test_steps_are_those_by_hand(backend):
    found = steps.deviations(backend) if backend == "tensorflow" else steps.deviations_elsewhere(backend)
    assert found.keys() == _TOLERANCES.keys()
    for quantity, deviation in found.items():
        assert deviation < _TOLERANCES[quantity], quantity

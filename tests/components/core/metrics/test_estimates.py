"""An influence is what it is taken for, and groups count as what they are."""

import numpy as np
import pytest

from tests.components.core.metrics.drawing import CASES, draw_patients
from tpu_components.core.examples.interface import Classification
from tpu_components.core.metrics.definitions import estimators
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics

_NOT_SMOOTH = {"median_absolute_error"}  # One example moves it by a whole distance between two errors, or not at all.


@pytest.mark.parametrize("case", CASES)
def test_an_influence_is_what_leaving_an_example_out_takes_away(case):
    """To the first order, n - 1 times."""
    task, draw = CASES[case]
    targets, (outputs,) = draw(np.random.default_rng(0), 300, [1.5])
    some = np.arange(0, 300, 25)
    found = estimators(task, targets, outputs, 1)
    without = [estimators(task, np.delete(targets, i, 0), np.delete(outputs, i, 0), 1) for i in some]
    for metric, make in found.items():
        if (estimate := make()) is None or metric in _NOT_SMOOTH:
            continue
        assert abs(estimate.influence.mean()) < 1e-9 * max(1, np.abs(estimate.influence).max()), metric
        left_out = (estimate.value - np.array([left[metric]().value for left in without])) * 299
        assert np.corrcoef(estimate.influence[some], left_out)[0, 1] > 0.99, metric
        assert left_out.std() == pytest.approx(estimate.influence[some].std(), rel=0.1), metric


def test_groups_of_one_example_each_are_independent_examples():
    labels, outputs, _ = draw_patients(np.random.default_rng(0), 0.0)
    alone = np.arange(len(labels))
    without, grouped = (
        compute_metrics(GroundTruth(Classification(), labels, "abcd", rows), outputs[0], 2) for rows in (None, alone)
    )
    assert grouped.metrics == without.metrics
    for name, (low, high) in grouped.intervals.items():
        assert (low, high) == pytest.approx(without.intervals[name], abs=2e-3), name
        assert grouped.estimates[name].num_independent == pytest.approx(1000)

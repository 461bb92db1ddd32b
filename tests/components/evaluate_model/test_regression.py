import dataclasses
import json

import numpy as np
import pytest
from sklearn import metrics as judge

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import Regression
from tpu_components.core.results.metric_table import scalars, task_metrics
from tpu_components.evaluate_model.regression import compute_regression_metrics


def _random(num_examples, num_targets, seed=0):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** np.arange(num_targets)
    targets = (rng.normal(size=(num_examples, num_targets)) * scale + 5 * scale).astype(np.float32)
    return targets, (targets + 0.3 * rng.normal(size=targets.shape) * scale).astype(np.float32)


@pytest.mark.parametrize(("num_examples", "num_targets"), [(2, 1), (300, 1), (501, 4)])
def test_metrics_agree_with_scikit_learn(num_examples, num_targets):
    targets, values = _random(num_examples, num_targets)
    names = [f"target {i}" for i in range(num_targets)]
    result = compute_regression_metrics(targets, values, names, Regression((0.0,) * num_targets, (2.0,) * num_targets))

    true, predicted = targets.astype(np.float64), values.astype(np.float64)
    expected = {
        "mean_absolute_error": judge.mean_absolute_error,
        "root_mean_squared_error": judge.root_mean_squared_error,
        "median_absolute_error": judge.median_absolute_error,
        "r2": judge.r2_score,
    }
    for name, reference in expected.items():
        assert getattr(result, name) == pytest.approx(reference(true, predicted)), name
        each = reference(true, predicted, multioutput="raw_values")
        assert [getattr(target, name) for target in result.per_target] == pytest.approx(each), name
    assert result.loss == pytest.approx(judge.mean_squared_error(true, predicted) / 4)
    assert [target.name for target in result.per_target] == names


def test_a_target_that_never_changes_has_no_r2():
    targets, values = _random(20, 2)
    targets[:, 1] = 7
    result = compute_regression_metrics(targets, values, ["a", "b"], Regression((0.0, 0.0), (1.0, 1.0)))
    assert result.per_target[0].r2 is not None
    assert (result.per_target[1].r2, result.r2) == (None, None)
    assert set(scalars(result)) == set(task_metrics("regression")) - {"r2"}


def test_every_scalar_is_a_metric_that_a_gate_may_name():
    result = compute_regression_metrics(*_random(50, 1), ["a"], Regression((0.0,), (1.0,)))
    assert set(scalars(result)) == set(task_metrics("regression"))
    json.dumps(dataclasses.asdict(result), allow_nan=False)


@pytest.mark.parametrize(
    ("targets", "values", "message"),
    [
        (np.zeros((0, 1)), np.zeros((0, 1)), "received 0 examples"),
        (np.zeros((3, 1)), np.zeros((3, 2)), r"Received: \[3, 1\] and \[3, 2\], with 1 names"),
        (
            np.zeros((3, 1)),
            np.array([[0.0], [np.inf], [0.0]]),
            "1 of 3 rows hold NaN or infinity, the first at index 1",
        ),
    ],
)
def test_what_is_no_answer_is_refused(targets, values, message):
    with pytest.raises(InputError, match=message):
        compute_regression_metrics(targets, values, ["a"], Regression((0.0,), (1.0,)))

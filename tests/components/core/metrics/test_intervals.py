"""Intervals hold the true value as often as they promise."""

import math

import numpy as np
import pytest
from scipy import stats

from tpu_components.core.examples.interface import Classification, Regression
from tpu_components.core.metrics.calibration import calibration_error
from tpu_components.core.metrics.definitions import estimators
from tpu_components.core.metrics.intervals import find_interval
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics


@pytest.mark.parametrize(("num_examples", "num_targets"), [(50, 1), (50, 2), (500, 1)])
def test_the_interval_of_a_median_holds_it_as_often_as_promised(num_examples, num_targets):
    generator = np.random.default_rng(0)
    scale = np.arange(1, num_targets + 1) * 3.0
    task = Regression((0.0,) * num_targets, (1.0,) * num_targets)
    median = stats.norm.ppf(0.75) * scale.mean()
    missed = 0
    for _ in range(500):
        errors = generator.normal(size=(num_examples, num_targets)) * scale
        make = estimators(task, np.zeros_like(errors), errors)["median_absolute_error"]
        low, high = find_interval(make(), 0.95)
        missed += not low <= median <= high
    assert missed / 500 <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 500)


def test_answers_that_are_all_right_still_have_an_interval():
    labels = np.zeros(50, int)
    outputs = np.tile([0.9, 0.1], (50, 1))
    low, high = compute_metrics(GroundTruth(Classification(), labels, "ab"), outputs).intervals["accuracy"]
    expected = stats.binomtest(50, 50).proportion_ci(method="exact")
    assert (low, high) == pytest.approx((expected.low, 1.0))


def test_examples_of_a_single_group_have_metrics_and_no_interval():
    """Nothing tells how much another group would differ."""
    labels = np.arange(60) % 3
    outputs = np.tile([0.5, 0.3, 0.2], (60, 1))
    truth = GroundTruth(Classification(), labels, "abc", np.zeros(60, int))
    metrics = compute_metrics(truth, outputs, 2)
    assert metrics.metrics["calibration_error"] == pytest.approx(0.5 - 1 / 3)
    assert metrics.intervals == {}


def test_a_calibration_error_far_from_chance_has_the_normal_interval():
    """In one bin whose gap is many standard errors, the error is nearly normal."""
    hit = np.arange(1000) % 10 > 0
    estimate = calibration_error(hit, np.tile([0.7, 0.3], (1000, 1)), None)
    half = stats.norm.ppf(0.975) * math.sqrt(0.7 * 0.3 / 1000)  # The larger of both variances.
    assert find_interval(estimate, 0.95) == pytest.approx((0.2 - half, 0.2 + half), abs=0.003)

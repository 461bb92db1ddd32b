"""The closed form of the intervals beside whole matrices of covariance, and what people expect of them."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from tests.components.preflight_training.receipts.runs import OTHER, PROGRAM, predict, receive
from tpu_components.preflight_training.estimate import WELL_USED, StepTime, accuracy_at
from tpu_components.preflight_training.receipts import calibration
from tpu_components.preflight_training.receipts.calibration import (
    Calibration,
    Prior,
    Run,
    calibrated,
    runs_of,
)

_WELL, _LITTLE = (Prior.from_accuracy(accuracy_at(share)) for share in (WELL_USED, 0.0))
_STEP = StepTime(8.0, 2.0, 0.0, 0.6, 1e12, 8.7, 15.4)


def _by_matrices(runs, program, prior):
    """The 5%, 50% and 95% quantile of the next run's log, from the joint normal distribution of all runs."""
    everyone = [*runs, Run(program, 1.0, prior)]
    values = np.log([run.ratio for run in runs])
    parts = []
    grid = itertools.product(calibration.NOISES, calibration.PROJECT_SHARES.items(), calibration.SCALES.items())
    for noise, (share, share_weight), (scale, scale_weight) in grid:
        centres = np.array([run.prior.centre for run in everyone])
        spreads = np.array([run.prior.spread * scale for run in everyone])
        same = np.array([[one.program == other.program for other in everyone] for one in everyone])
        covariance = np.outer(spreads, spreads) * (share + (1 - share) * same) + noise**2 * np.eye(len(everyone))
        known = covariance[:-1, :-1]
        likelihood = stats.multivariate_normal(centres[:-1], known).pdf(values)
        gain = np.linalg.solve(known, covariance[:-1, -1])
        mean = centres[-1] + gain @ (values - centres[:-1])
        spread = math.sqrt(covariance[-1, -1] - gain @ covariance[:-1, -1])
        parts.append((share_weight * scale_weight * likelihood, mean, spread))
    weights, means, spreads = np.array(parts).T

    def exceeds(value, share):
        return weights @ stats.norm.cdf(value, means, spreads) / weights.sum() - share

    return [optimize.brentq(exceeds, -5, 5, args=(share,)) for share in (0.05, 0.5, 0.95)]


@pytest.mark.parametrize(("program", "prior"), [("a", _WELL), ("b", _LITTLE), ("new", _WELL), ("new", _LITTLE)])
def test_interval_is_that_of_the_joint_distribution(program, prior):
    runs = [Run("a", 1.31, _WELL), Run("a", 1.27, _WELL), Run("b", 0.8, _LITTLE), Run("a", 1.4, _WELL)]
    interval = Calibration(runs).interval(program, prior)
    low, middle, high = _by_matrices(runs, program, prior)
    assert np.log([interval.low, interval.factor, interval.high]) == pytest.approx([low, middle, high], abs=1e-6)


def test_interval_of_a_program_closes_in_on_its_own_runs():
    widths = []
    for count in (1, 3, 10, 30):
        interval = Calibration([Run("a", ratio, _WELL) for ratio in (1.48, 1.5, 1.52) * count]).interval("a", _WELL)
        assert interval.low < 1.5 < interval.high
        widths.append(interval.high / interval.low)
    assert sorted(widths, reverse=True) == widths
    assert interval.factor == pytest.approx(1.5, rel=0.005)
    assert widths[-1] < 1.06


def test_new_program_learns_from_others_less_than_they_do_themselves():
    runs = [Run(str(i), 1.4, _LITTLE) for i in range(8) for _ in range(2)]
    known, new = (Calibration(runs).interval(name, _LITTLE) for name in ("0", "new"))
    published = accuracy_at(0.0)
    assert known.high / known.low < new.high / new.low < published.high / published.low
    assert 1.2 < new.factor < 1.4
    assert (known.basis, new.basis) == ("2 runs of this program, 14 of others", "no runs of this program, 16 of others")


def test_without_receipts_a_step_stays_as_it_is():
    assert calibrated(_STEP, runs_of([receive(prediction=None)]), PROGRAM, "v5e-8") == _STEP


def test_receipts_of_the_same_program_move_the_time_of_its_step():
    receipts = [receive(ms, predict()) for ms in (12.9, 13.0, 13.1)] + [receive(11.0, predict(), program=OTHER)]
    step = calibrated(_STEP, runs_of(receipts), PROGRAM, "v5e-8")
    assert step.compiler_ms == 10.0
    assert step.total_ms == pytest.approx(13.0, rel=0.02)
    assert 12.0 < step.low_ms < 12.9 < 13.1 < step.high_ms < 14.0
    assert step.basis == "3 runs of this program, 1 of others"
    elsewhere = calibrated(_STEP, runs_of(receipts), PROGRAM, "v5e-4")
    assert elsewhere.basis == "no runs of this program, 4 of others", "another slice is another program"

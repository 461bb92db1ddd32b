"""Chance is measured as it is: by comparisons whose truth is known, drawn again and again."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tests.components.core.metrics.drawing import CASES, draw_models, draw_patients
from tpu_components.core.examples.interface import Classification
from tpu_components.core.metrics.comparisons import compare, compare_metrics, compare_shares
from tpu_components.core.metrics.definitions import METRICS, NO_CONFIDENCE, direction, estimators
from tpu_components.core.metrics.intervals import find_interval

_NUM_COMPARISONS = 2000
_NUM_OF_ALL_FIGURES = 10_000
# A share of so many whose expectation is 5% is above these once in a thousand.
_MOST_FALSE, _MOST_FALSE_OF_ALL = (
    0.05 + 3.1 * math.sqrt(0.05 * 0.95 / number) for number in (_NUM_COMPARISONS, _NUM_OF_ALL_FIGURES)
)


def test_every_metric_of_every_task_can_be_compared_and_has_an_interval():
    known = set()
    for case in CASES:
        models = draw_models(case, np.random.default_rng(1), 400, [1.6, 1.5])
        differences, intervals = compare_metrics(*models, 0.95), models[0].intervals
        assert set(differences) == set(models[0].metrics) == set(intervals)
        for difference in differences.values():
            assert difference.least < difference.advantage < difference.most
        for metric, (low, high) in intervals.items():
            assert low < models[0].metrics[metric] < high or metric == "calibration_error", metric
        known |= {(models[0].task, metric) for metric in differences}
    assert {(metric.task, metric.name) for metric in METRICS if metric.task != "language_model"} == known


@pytest.mark.parametrize(("num_examples", "differ"), [(100, 0.05), (1000, 0.03), (10_000, 0.01)])
def test_of_equal_classifiers_one_in_twenty_is_promoted_and_of_detectably_better_ones_four_in_five(
    num_examples, differ
):
    generator = np.random.default_rng(2)
    half = round(num_examples * differ / 2)
    detectable = compare_shares(half, half, num_examples, 0.95).detectable

    def promoted(advantage):
        share = max(differ, advantage)
        shares = [(share + advantage) / 2, (share - advantage) / 2, 1 - share]
        counts = Counter(map(tuple, generator.multinomial(num_examples, shares, _NUM_COMPARISONS)[:, :2].tolist()))
        luck = {pair: compare_shares(*pair, num_examples, 0.5).luck for pair in counts}  # Whatever the confidence.
        return sum(count for pair, count in counts.items() if luck[pair] <= 0.05) / _NUM_COMPARISONS

    assert promoted(0.0) <= _MOST_FALSE
    assert 0.77 <= promoted(detectable) <= 0.93  # Few examples that differ allow few significance levels.


def test_without_confidence_the_bounds_of_a_difference_are_the_difference():
    difference = compare_shares(8, 5, 100, NO_CONFIDENCE)
    assert difference.least == difference.advantage == difference.most == 0.03


def test_of_classifiers_that_are_worse_by_the_margin_one_in_twenty_is_promoted():
    generator, margin = np.random.default_rng(3), 0.02
    shares = [(0.05 - margin) / 2, (0.05 + margin) / 2, 0.95]
    counts = generator.multinomial(1000, shares, _NUM_COMPARISONS)[:, :2].tolist()
    least = {pair: compare_shares(*pair, 1000, 0.95).least for pair in map(tuple, counts)}
    assert np.mean([least[tuple(pair)] > -margin for pair in counts]) <= _MOST_FALSE


def test_the_bounds_of_answers_that_do_not_differ_have_a_closed_form():
    """A share of 44 examples differs of which none does with a probability of 2.5%."""
    difference = compare_shares(0, 0, 44, 0.975)
    share = 1 - 0.025 ** (1 / 44)
    assert (difference.least, difference.most) == pytest.approx((-share, share))


@pytest.mark.parametrize(("better", "worse", "num_examples"), [(1, 0, 1), (3, 1, 20), (0, 4, 20), (12, 5, 300)])
def test_the_bounds_of_shares_are_where_so_great_an_advantage_is_as_rare_as_asked(better, worse, num_examples):
    """The probability is summed once more here, over every number of better and worse answers."""
    least = compare_shares(better, worse, num_examples, 0.95).least
    shares = np.linspace(max(0, -least), (1 - least) / 2, 4001)  # Of what the champion alone has right.
    log_likelihood = stats.multinomial.logpmf(
        [better, worse, num_examples - better - worse],
        num_examples,
        np.stack([shares + least, shares, 1 - least - 2 * shares], 1).clip(0, 1),
    )
    share = shares[np.nanargmax(log_likelihood)]
    probability = sum(
        stats.binom.pmf(i, num_examples, share)
        * stats.binom.sf(i + better - worse - 1, num_examples - i, (share + least) / (1 - share))
        for i in range(num_examples + 1)
    )
    assert probability == pytest.approx(0.05, rel=0.02)


@pytest.mark.slow  # 10,000 data sets of every task, with all figures that have a formula, of both models.
@pytest.mark.parametrize("case", CASES)
def test_of_equal_models_one_in_twenty_is_promoted_by_any_figure(case, capsys):
    generator = np.random.default_rng(4)
    (task, draw), promoted, advantages, detectable = CASES[case], Counter(), {}, {}
    for _ in range(_NUM_OF_ALL_FIGURES):
        labels, outputs = draw(generator, 500, [1.5, 1.5])
        ours, theirs = (estimators(task, labels, of_one, of_one.shape[1] // 2) for of_one in outputs)
        for metric in ours:
            if (estimate := ours[metric]()) is None:
                continue
            difference = compare(estimate, theirs[metric](), direction(metric), 0.95)
            promoted[metric] += difference.luck <= 0.05
            advantages.setdefault(metric, []).append(difference.advantage)
            detectable.setdefault(metric, []).append(difference.detectable)
    quantiles = stats.norm.ppf(0.95) + stats.norm.ppf(0.8)
    with capsys.disabled():
        for metric in advantages:
            share, power = (
                promoted[metric] / _NUM_OF_ALL_FIGURES,
                np.median(detectable[metric]) / np.std(advantages[metric]),
            )
            print(f"{case}, {metric}: {share:.2%} promoted, detectable {power / quantiles:.2f} of what its spread says")
            assert share <= _MOST_FALSE_OF_ALL, metric
            assert metric == "calibration_error" or 0.9 <= power / quantiles <= 1.2, metric


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_detectably_better_model_is_seen_four_times_in_five_by_any_figure(case, capsys):
    """The judged figure of models whose true difference, measured on very many examples, is what is detectable."""
    generator = np.random.default_rng(5)
    metric = CASES[case][0].judged
    equals = [compare_metrics(*draw_models(case, generator, 500, [1.5, 1.5]), 0.95)[metric] for _ in range(50)]
    found = float(np.median([difference.detectable for difference in equals]))
    skills = np.linspace(1.5, 1.9, 9)
    truth = [
        compare_metrics(*draw_models(case, generator, 200_000, [skill, 1.5]), 0.95)[metric].advantage
        for skill in skills
    ]
    skill = float(np.interp(found, truth, skills))
    lucks = [
        compare_metrics(*draw_models(case, generator, 500, [skill, 1.5]), 0.95)[metric].luck
        for _ in range(_NUM_COMPARISONS)
    ]
    share = float(np.mean(np.array(lucks) <= 0.05))
    with capsys.disabled():
        print(
            f"{case}, {metric}: a difference of {found:.4f} is seen in {share:.1%} of {_NUM_COMPARISONS:,} comparisons"
        )
    assert 0.72 <= share <= 0.93


@pytest.mark.parametrize("metric", ["accuracy", "macro_recall", "loss"])
def test_of_equal_models_of_forty_patients_one_in_twenty_is_promoted(metric):
    """Without the groups 18 to 22% are promoted, at a correlation of 0.3 within a patient."""
    generator, promoted, missed, true = np.random.default_rng(0), 0, 0, stats.norm.cdf(1)
    for _ in range(repetitions := 200):
        labels, outputs, patients = draw_patients(generator, 0.3)
        ours, theirs = (estimators(Classification(), labels, each, 2, patients)[metric]() for each in outputs)
        promoted += compare(ours, theirs, direction(metric), 0.95).luck <= 0.05
        low, high = find_interval(ours, 0.95)
        missed += metric != "loss" and not low <= true <= high
    assert promoted <= repetitions * (0.05 + 3.1 * math.sqrt(0.05 * 0.95 / repetitions))
    assert missed <= repetitions * (0.05 + 3.1 * math.sqrt(0.05 * 0.95 / repetitions))
    assert 150 < ours.num_independent < 350, "of 1,000"

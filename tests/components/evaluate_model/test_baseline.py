"""What a model has to beat: the best answer that does not look at the input."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from sklearn import metrics as judge

from tests.components.judging import decide_on, said
from tpu_components.core.examples.interface import TASKS, Regression
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.core.results.evaluation_info import Baseline
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.evaluate_model.baseline import find_baseline

_NAMES = ("pos", "neg", "other")


def _classes(labels, predicted, num_classes=3):
    return find_baseline(
        GroundTruth(TASKS["classification"], np.array(labels), _NAMES[:num_classes]), np.eye(num_classes)[predicted]
    )


def _gate(baseline, **changes):
    return decide_on(EvaluateParams(max_regression={}, **changes), {}, baseline=baseline)


def test_a_classifier_has_to_beat_the_most_frequent_class():
    labels = [0] * 30 + [1] * 60 + [2] * 10
    good = _classes(labels, labels[:95] + [0] * 5)
    assert (good.metric, good.value, good.answer) == ("accuracy", 0.6, "always predicting 'neg'")
    assert good.advantage == pytest.approx(0.35)
    assert said(_gate(good))[-1] == "passed: accuracy 0.9500 beats the 0.6000 of always predicting 'neg'"


def test_a_coin_toss_is_refused_though_it_may_be_above_the_baseline_by_chance():
    labels = np.arange(60) % 2
    tossed = labels.copy()
    tossed[:28] = 1 - tossed[:28]
    baseline = _classes(labels, tossed, 2)
    assert baseline.advantage == pytest.approx(2 / 60)
    decision = _gate(baseline)
    assert not decision.promote
    assert said(decision)[-1] == (
        "failed: accuracy 0.5333 does not beat the 0.5000 of always predicting 'pos' by more than "
        f"{baseline.margin:.4f}, which chance can explain"
    )
    assert _gate(baseline, beat_baseline=False).promote


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_at_most_one_coin_toss_in_twenty_passes(share):
    rng = np.random.default_rng(0)
    labels, tossed = (rng.random((2, 1000, 200)) < share).astype(int)
    assert np.mean([_classes(*pair, 2).is_beaten for pair in zip(labels, tossed, strict=True)]) < 0.05


def test_the_margin_of_a_rare_label_is_the_spread_of_the_advantage():
    """It was divided by 1 where examples have fewer labels than that on average: less than half of it."""
    rng = np.random.default_rng(0)
    true = (rng.random((2000, 200, 1)) < 0.1).astype(np.float32)
    said = np.where(rng.random(true.shape) < 0.05, 1 - true, true)
    baselines = [
        find_baseline(GroundTruth(TASKS["multi_label"], labels, ["a"]), answers)
        for labels, answers in zip(true, said, strict=True)
    ]
    margins, advantages = np.array([(own.margin, own.advantage) for own in baselines]).T
    assert np.mean(margins) == pytest.approx(1.645 * np.std(advantages), rel=0.1)


def test_a_collapsed_model_is_named_with_its_answer():
    decision = _gate(_classes([0, 1, 1, 2], [1, 1, 1, 1]))
    assert said(decision)[-1] == (
        "failed: accuracy 0.5000 does not beat the 0.5000 of always predicting 'neg'; the model predicts the same for "
        "every example: 'neg'"
    )


def test_a_perfect_model_of_few_examples_passes():
    assert _classes([0, 0, 1, 1], [0, 0, 1, 1], 2).is_beaten
    assert not _classes([0, 0, 0, 0], [0, 0, 0, 0], 2).is_beaten, "there is nothing to tell apart"


def test_labels_have_to_beat_the_constant_set_with_the_greatest_f1():
    rng = np.random.default_rng(1)
    true = rng.random((80, 5)) < [0.7, 0.5, 0.3, 0.1, 0.05]
    sets = [np.isin(np.arange(5), some) for size in range(1, 6) for some in itertools.combinations(range(5), size)]
    best = max(judge.f1_score(true, np.tile(some, (80, 1)), average="micro", zero_division=0) for some in sets)
    said = np.where(rng.random(true.shape) < 0.1, ~true, true)
    baseline = find_baseline(GroundTruth(TASKS["multi_label"], true.astype(np.float32), list("abcde")), said * 0.9)
    assert baseline.value == pytest.approx(best)
    assert baseline.value + baseline.advantage == pytest.approx(judge.f1_score(true, said, average="micro"))
    assert baseline.is_beaten
    nothing = find_baseline(
        GroundTruth(TASKS["multi_label"], true.astype(np.float32), list("abcde")), np.zeros(true.shape)
    )
    assert not nothing.is_beaten
    assert nothing.collapsed_to == "no label"


def test_the_margin_of_f1_agrees_with_resampling():
    rng = np.random.default_rng(2)
    true = rng.random((300, 3)) < 0.4
    said = np.where(rng.random(true.shape) < 0.3, ~true, true)
    baseline = find_baseline(GroundTruth(TASKS["multi_label"], true.astype(np.float32), list("abc")), said * 0.9)
    always = np.ones_like(true)  # The best set here.
    assert baseline.answer == "always predicting 'a', 'b', 'c'"

    def advantage(rows):
        scores = [judge.f1_score(true[rows], given[rows], average="micro") for given in (said, always)]
        return scores[0] - scores[1]

    draws = [advantage(rng.integers(0, 300, 300)) for _ in range(100)]
    assert baseline.margin == pytest.approx(1.645 * np.std(draws), rel=0.25)


def test_numbers_have_to_beat_their_mean():
    rng = np.random.default_rng(3)
    targets = rng.normal(50, 10, (40, 2))
    near, far = targets + rng.normal(0, 2, targets.shape), targets + rng.normal(0, 12, targets.shape)
    good, bad = (find_baseline(GroundTruth(Regression(), targets, ["a", "b"]), values) for values in (near, far))
    assert (good.metric, good.value) == ("r2", 0.0)
    assert good.advantage == pytest.approx(judge.r2_score(targets, near))
    assert good.is_beaten
    assert bad.advantage == pytest.approx(judge.r2_score(targets, far))
    assert not bad.is_beaten
    mean = find_baseline(GroundTruth(Regression(), targets, ["a", "b"]), np.full((40, 2), [50.0, 49.0]))
    assert mean.rule.text.endswith("the model predicts the same for every example: 50, 49")
    perfect = find_baseline(GroundTruth(Regression(), targets[:3], ["a", "b"]), targets[:3])
    assert perfect.is_beaten


def test_a_baseline_that_names_no_answer_has_not_collapsed():
    """Evaluations of earlier versions do not say whether the model predicted the same for every example."""
    rule = Baseline("accuracy", "always predicting 'cat'", 0.3, 0.2, 0.1).rule
    assert (rule.passed, rule.text) == (True, "accuracy 0.5000 beats the 0.3000 of always predicting 'cat'")


def test_targets_that_never_change_tell_nothing():
    targets = np.ones((5, 1))
    baseline = find_baseline(GroundTruth(Regression(), targets, ["a"]), targets + np.arange(5)[:, None])
    assert said(_gate(baseline))[-1] == (
        "failed: r2 cannot distinguish the model from always predicting the mean, because this requires "
        "targets with different values within the split"
    )


def test_a_language_model_has_to_beat_the_frequencies_of_characters():
    rng = np.random.default_rng(4)
    targets = rng.choice([0, 2, 3, 4], (20, 50), p=[0.1, 0.5, 0.3, 0.1])
    counted = targets[targets > 0]
    shares = np.bincount(counted) / len(counted)
    entropy = -sum(share * math.log2(share) for share in shares if share)
    unigram = np.where(targets > 0, -np.log(np.where(targets > 0, shares[targets], 1)), 0)
    language, nothing = TASKS["language_model"], np.zeros_like(unigram)
    same = find_baseline(GroundTruth(language, targets, ()), np.stack([unigram, nothing], -1))
    assert (same.metric, same.value) == ("bits_per_character", pytest.approx(entropy))
    assert not same.is_beaten
    better = find_baseline(GroundTruth(language, targets, ()), np.stack([0.8 * unigram, nothing], -1))
    assert better.is_beaten
    assert better.rule.text.startswith(
        f"bits_per_character {0.8 * entropy:.4f} beats the {entropy:.4f} of predicting every character"
    )


def test_a_single_example_is_judged_without_a_margin():
    assert _classes([1], [1], 2).margin == 0
    assert dataclasses.asdict(_classes([1], [1], 2))["collapsed_to"] == ""

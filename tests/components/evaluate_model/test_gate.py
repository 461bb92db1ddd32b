import math
import re

import numpy as np
import pytest
from scipy import stats

from tests.components.judging import decide_on, said
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import Classification
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.intervals import find_probability
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics
from tpu_components.core.results.evaluation_info import Decision, Rule
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.evaluate_model.gate import decide

_GOOD, _BAD = {"accuracy": 0.98, "loss": 0.1}, {"accuracy": 0.95, "loss": 0.2}


def _raw(**changes):
    """Compare figures as they are."""
    return EvaluateParams(confidence=0.5, **changes)


def test_first_run_has_no_champion_to_beat():
    decision = decide_on(EvaluateParams(champion="registry/digits@champion"), _BAD)
    assert decision.promote
    assert said(decision) == ("passed: there is no other champion to beat",)


def test_without_a_registry_no_champion_is_said_to_be_missing():
    """As with `deploy: false`: the registry may have a champion, but it is not consulted."""
    decision = decide_on(EvaluateParams(), _BAD)
    assert decision.promote
    assert said(decision) == ("passed: no champion was given to compare with",)


def test_challenger_that_beats_the_champion_is_promoted():
    decision = decide_on(_raw(), _GOOD, _BAD)
    assert decision.promote
    assert said(decision) == ("passed: accuracy 0.9800 beats the champion's 0.9500; it may be worse by 0.0000",)


def test_without_confidence_a_tie_is_promoted():
    decision = decide_on(_raw(max_regression={"accuracy": 0.0, "loss": 0.0}), _GOOD, dict(_GOOD))
    assert decision.promote
    assert said(decision)[0].startswith("passed: accuracy 0.9800 ties with the champion's 0.9800")


def test_rounding_does_not_undo_a_tie():
    assert decide_on(_raw(), {"accuracy": 0.1 + 0.2}, {"accuracy": 0.3}).promote
    assert decide_on(_raw(), {"accuracy": 0.3}, {"accuracy": 0.1 + 0.2}).promote


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_rounding_is_a_share_of_the_value_whatever_its_unit(unit):
    """A loss of 3e-10 is three times one of 1e-10; one of 1e12 has no digits below 1e-4."""
    params = _raw(max_regression={"mean_absolute_error": 0.0})
    champion = {"mean_absolute_error": unit}
    assert decide_on(params, {"mean_absolute_error": unit * (1 + 1e-12)}, champion).promote
    decision = decide_on(params, {"mean_absolute_error": unit * 1.0001}, champion)
    assert not decision.promote
    assert "is worse than the champion's" in said(decision)[0]


def test_what_differs_is_shown_in_digits_that_differ():
    decision = decide_on(_raw(), {"accuracy": 0.9}, {"accuracy": 0.90001})
    assert said(decision) == (
        "failed: accuracy 0.90000 is worse than the champion's 0.90001; it may be worse by 0.0000",
    )


def test_a_figure_that_is_no_number_beats_nothing():
    nan, known = {"accuracy": math.nan}, {"accuracy": 0.9}
    text = "accuracy not a number is worse than the champion's 0.9000; it may be worse by 0.0000"
    assert decide_on(_raw(), nan, known) == Decision(False, (Rule(False, "accuracy", text),))
    assert not decide_on(_raw(), nan, nan).promote


def test_challenger_that_is_worse_is_rejected():
    decision = decide_on(_raw(), _BAD, _GOOD)
    assert not decision.promote
    assert said(decision) == ("failed: accuracy 0.9500 is worse than the champion's 0.9800; it may be worse by 0.0000",)


def test_regression_is_allowed_up_to_its_limit():
    assert decide_on(_raw(max_regression={"accuracy": 0.03}), _BAD, _GOOD).promote
    assert not decide_on(_raw(max_regression={"accuracy": 0.0299}), _BAD, _GOOD).promote


def test_a_lower_loss_is_better():
    params = _raw(max_regression={"loss": 0.0})
    assert decide_on(params, _GOOD, _BAD).promote
    decision = decide_on(params, _BAD, _GOOD)
    assert not decision.promote
    assert "loss 0.2000 is worse than the champion's 0.1000" in said(decision)[0]


def test_no_regression_limit_means_that_any_challenger_may_follow():
    decision = decide_on(EvaluateParams(max_regression={}), _BAD, _GOOD)
    assert decision.promote


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"minimum": {"accuracy": 0.95}}, "passed: accuracy 0.9500, required at least 0.9500"),
        ({"minimum": {"accuracy": 0.9500001}}, "failed: accuracy 0.9500000, required at least 0.9500001"),
        ({"maximum": {"loss": 0.2}}, "passed: loss 0.2000, required at most 0.2000"),
        ({"maximum": {"loss": 0.1999}}, "failed: loss 0.2000, required at most 0.1999"),
    ],
)
def test_a_bound_includes_its_value(bounds, reason):
    assert said(decide_on(EvaluateParams(**bounds), _BAD))[0] == reason


def test_predictions_that_are_not_finite_are_refused_whatever_the_metrics_say():
    decision = decide_on(EvaluateParams(), _GOOD, num_not_finite=3)
    assert not decision.promote
    assert said(decision)[0] == "failed: 3 predictions are not finite numbers"


@pytest.mark.parametrize(
    ("thresholds", "reason"),
    [
        ({"minimum": {"r2": 0.5}}, "failed: r2 not a number, required at least 0.5000"),
        ({"maximum": {"loss": 0.5}}, "failed: loss not a number, required at most 0.5000"),
    ],
)
def test_metric_that_is_nan_fails_its_bound(thresholds, reason):
    assert said(decide_on(EvaluateParams(**thresholds), {"loss": math.nan, "r2": math.nan}))[0] == reason


def test_metric_that_could_not_be_measured_fails_its_minimum():
    decision = decide_on(EvaluateParams(minimum={"roc_auc": 0.9}), _GOOD)
    assert not decision.promote
    assert said(decision)[0] == "failed: roc_auc was not measured: this metric requires both classes in the split"
    other = decide_on(EvaluateParams(maximum={"bits_per_character": 2.3}), _GOOD)
    assert said(other)[0] == "failed: bits_per_character was not measured: this metric belongs to another task"


def test_what_is_to_be_known_of_a_metric_is_said_where_it_is_bounded():
    params = EvaluateParams(minimum={"macro_f1": 0.9, "accuracy": 0.9})
    row = {"support": 1, "precision": 0.9, "recall": 0.9, "f1": 0.9}
    details = {"num_absent_classes": 1, "per_class": [row, row, dict.fromkeys(row, 0)]}
    decision = decide_on(params, {"macro_f1": 0.6, "accuracy": 0.95}, details=details)
    assert said(decision)[:2] == (
        "failed: macro_f1 0.6000, required at least 0.9000 (1 of 3 classes have no examples and count as 0; the mean "
        "of the other classes is 0.9000)",
        "passed: accuracy 0.9500, required at least 0.9000",
    )


@pytest.mark.parametrize(
    ("num_right", "confidence", "reason"),
    [
        (349, 0.5, "passed: accuracy 0.9721, required at least 0.9700; {} scores as high in 49% of cases"),
        (349, 0.95, "failed: accuracy 0.9721, required at least 0.9700{}; {} scores as high in 49% of cases"),
        (355, 0.95, "passed: accuracy 0.9889, required at least 0.9700{}; {} scores as high in 2% of cases"),
        (345, 0.5, "failed: accuracy 0.9610, required at least 0.9700; {} scores as low in 19% of cases"),
    ],
)
def test_a_bound_says_how_often_chance_gives_as_much_and_asks_for_the_confidence(num_right, confidence, reason):
    """The probability is the exact binomial test's."""
    right = np.arange(359) < num_right
    figures = compute_metrics(GroundTruth(Classification(), np.zeros(359, int), "ab"), np.eye(2)[(~right).astype(int)])
    params = EvaluateParams(minimum={"accuracy": 0.97}, bound_confidence=confidence)
    exact = stats.binom.cdf(345, 359, 0.97) if num_right == 345 else stats.binom.sf(num_right - 1, 359, 0.97)
    assert find_probability(figures.estimates["accuracy"], 0.97) == pytest.approx(exact, abs=1e-6)
    decision = decide(params, figures)
    words = [" with 95% confidence", "a model with a true value of 0.9700"][-reason.count("{}") :]
    assert said(decision)[0] == reason.format(*words)


def test_a_bound_with_confidence_refuses_what_too_few_examples_measure():
    labels = (np.arange(500) < 3).astype(int)
    figures = compute_metrics(GroundTruth(Classification(), labels, "ab"), np.eye(2)[labels])
    params = EvaluateParams(minimum={"roc_auc": 0.9}, bound_confidence=0.95)
    decision = decide(params, figures)
    assert said(decision)[0] == (
        "failed: roc_auc 1.0000, required at least 0.9000 with 95% confidence, which cannot be tested with so few "
        "examples"
    )


def test_every_check_gives_its_reason_in_words():
    params = _raw(minimum={"accuracy": 0.99}, maximum={"loss": 0.5}, max_regression={"accuracy": 0.0, "loss": 0.0})
    decision = decide_on(params, _BAD, _GOOD)
    assert not decision.promote
    assert [reason.partition(":")[0] for reason in said(decision)] == ["failed", "passed", "failed", "failed"]
    for reason in said(decision):
        assert re.fullmatch(r"(passed|failed): (accuracy|loss) \d\.\d{4}\W? [a-z].*\d\.\d{4}", reason), reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum": {"acuracy": 0.9}}, "'acuracy' in minimum is not a metric of the task.*Did you mean 'accuracy'"),
        ({"maximum": {"los": 0.9}}, "'los' in maximum is not a metric of the task.*Did you mean 'loss'"),
        (
            {"max_regression": {"macro_f": 0.9}},
            "'macro_f' in max_regression is not a metric of the task.*Did you mean 'macro_f1'",
        ),
        ({"minimum": {"accuracy": math.nan}}, "minimum.accuracy must be finite. Received: minimum.accuracy=nan"),
        ({"minimum": {"accuracy": 90}}, r"minimum\.accuracy cannot be above 1\. Received: 90\. Did you mean 0\.9\?"),
        (
            {"minimum": {"loss": 0.5}},
            r"loss cannot have a minimum: lower is better.*\.loss=0\.5\. Move it to maximum",
        ),
        ({"maximum": {"accuracy": 0.5}}, r"accuracy cannot have a maximum: higher is better.*Move it to minimum"),
        (
            {"max_regression": {"loss": -0.1}},
            r"max_regression\.loss must be at least 0 and finite.*max_regression\.loss=-0\.1",
        ),
        ({"split": "dev"}, "train, validation, test.*split='dev'"),
        ({"confidence": 0.4}, "at least 0.5.*confidence=0.4"),
        ({"bound_confidence": 95}, "below 1. Received: bound_confidence=95"),
        ({"confidence": 1}, "below 1. Received: confidence=1"),
        ({"top_k": 0}, "top_k=0"),
        ({"batch_size_per_replica": 0}, "batch_size_per_replica=0"),
        ({"num_replicas": -1}, "num_replicas=-1"),
        ({"num_pictures": -1}, "num_pictures=-1"),
        ({"backend": "torch"}, "backend='torch'"),
        ({"accelerator": "npu"}, "accelerator='npu'"),
    ],
)
def test_params_refuse_a_value_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        EvaluateParams(**changes).check_task("classification")


def test_an_error_is_better_when_it_is_smaller_and_is_shown_in_its_own_unit():
    params = _raw(
        minimum={"r2": 0.5}, maximum={"mean_absolute_error": 2e-5}, max_regression={"mean_absolute_error": 1e-6}
    )
    decision = decide_on(params, {"r2": 0.9, "mean_absolute_error": 1.25e-5}, {"r2": 0.8, "mean_absolute_error": 1e-5})
    assert not decision.promote
    assert said(decision) == (
        "passed: r2 0.9000, required at least 0.5000",
        "passed: mean_absolute_error 1.25e-05, required at most 2e-05",
        "failed: mean_absolute_error 1.25e-05 is worse than the champion's 1e-05; it may be worse by 1e-06",
    )


def test_a_figure_that_is_not_defined_fails_the_gate_that_asks_for_it():
    params = EvaluateParams(minimum={"r2": 0.5}, max_regression={"r2": 0.0})
    decision = decide_on(params, {"loss": 0.1}, {"loss": 0.1})
    assert said(decision) == (
        "failed: r2 was not measured: this metric requires targets with different values within the split",
        "failed: r2 cannot be compared: this metric requires targets with different values within the split",
    )


@pytest.mark.parametrize(
    ("changes", "task", "message"),
    [
        (
            {"max_regression": {"accuracy": 0.1}},
            "multi_label",
            "'accuracy' in max_regression is not a metric of the task multi_label: expected one of micro_f1",
        ),
        ({"minimum": {"r2": 0.5}}, "classification", "'r2' in minimum is not a metric of the task classification"),
        (
            {"maximum": {"hamming_loss": 0.5}, "max_regression": {"r2": 0.0}},
            "regression",
            "'hamming_loss' in maximum is not a metric of the task regression: expected one of mean_absolute_error",
        ),
    ],
)
def test_a_metric_of_another_task_is_refused(changes, task, message):
    with pytest.raises(InputError, match=message):
        EvaluateParams(**changes).check_task(task)


def _difference(**changes):
    fields = {"advantage": 0.03, "least": 0.01, "most": 0.05, "luck": 0.004, "detectable": 0.02}
    return {"accuracy": Difference(**{**fields, **changes})}


@pytest.mark.parametrize(
    ("difference", "allowed", "reason"),
    [
        ({}, 0.0, "passed: accuracy 0.9800 beats the champion's 0.9500, with 95% confidence by more than 0.0100"),
        (
            {"num_better": 4, "num_worse": 1, "luck": 0.1875, "least": -0.01},
            0.0,
            "failed: accuracy 0.9800 beats the champion's 0.9500 (4 newly correct, 1 newly wrong), "
            "but chance alone gives this difference in 19% of cases; it must be better with 95% confidence. "
            "These examples reveal a difference of 0.0200 in 80% of cases",
        ),
        (
            {"least": -0.01},
            0.02,
            "passed: accuracy 0.9800 beats the champion's 0.9500; it may be worse by 0.0200, and is worse by at most "
            "0.0100 with 95% confidence",
        ),
        (
            {"least": 0.01},
            0.02,
            "passed: accuracy 0.9800 beats the champion's 0.9500; it may be worse by 0.0200, and is no worse with 95% "
            "confidence",
        ),
        (
            {"least": -0.02},
            0.02,
            "failed: accuracy 0.9800 beats the champion's 0.9500; it may be worse by 0.0200, but a loss of 0.0200 is "
            "not ruled out with 95% confidence. These examples reveal a difference of 0.0200 in 80% of cases",
        ),
        (
            {"least": None, "detectable": None},
            0.02,
            "failed: accuracy 0.9800 beats the champion's 0.9500; it may be worse by 0.0200, which cannot be tested "
            "with 95% confidence with so few examples",
        ),
    ],
)
def test_a_challenger_passes_by_what_chance_leaves_of_its_advantage(difference, allowed, reason):
    params = EvaluateParams(max_regression={"accuracy": allowed})
    decision = decide_on(params, _GOOD, _BAD, differences=_difference(**difference))
    assert said(decision) == (reason,)
    assert decision.promote == reason.startswith("passed")


def test_a_tie_is_no_better():
    decision = decide_on(
        EvaluateParams(), _GOOD, dict(_GOOD), differences=_difference(advantage=0.0, least=0.0, luck=1.0)
    )
    assert not decision.promote
    assert said(decision)[0].startswith(
        "failed: accuracy 0.9800 ties with the champion's 0.9800; it must be better with 95% confidence"
    )
    assert said(decision)[0].endswith("With gate.max_regression.accuracy above 0, an equal model may pass")


def test_a_bound_offers_only_metrics_that_can_have_it():
    """The lists offered `loss` for a minimum, which is refused."""
    with pytest.raises(InputError, match="expected one of accuracy, ") as refused:
        EvaluateParams(minimum={"acuracy": 0.9}).check_task("classification")
    assert "loss" not in str(refused.value)
    with pytest.raises(InputError, match=r"expected one of loss, .*calibration_error, .* Did you mean 'loss'\?"):
        EvaluateParams(maximum={"los": 0.9}).check_task("classification")
    with pytest.raises(InputError, match=r"Did you mean 'loss'\? This metric can only have a maximum\."):
        EvaluateParams(minimum={"los": 0.9}).check_task("classification")


@pytest.mark.parametrize(
    ("changes", "task", "rules"),
    [
        ({}, "classification", {"accuracy": 0.0}),
        ({}, "multi_label", {"micro_f1": 0.0}),
        ({}, "regression", {"r2": 0.0}),
        ({"max_regression": {}}, "regression", {}),
        ({"max_regression": {"accuracy": 0.1}}, "regression", {"accuracy": 0.1}),
    ],
)
def test_the_default_rule_is_about_the_main_metric_of_the_task(changes, task, rules):
    """Also if the component is used alone, without a configuration."""
    assert EvaluateParams(**changes).of_task(task).max_regression == rules

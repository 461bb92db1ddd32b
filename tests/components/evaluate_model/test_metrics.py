import dataclasses
import json

import numpy as np
import pytest
from sklearn import metrics as judge

from tpu_components.core.base.errors import InputError
from tpu_components.core.results.metric_table import scalars
from tpu_components.evaluate_model.metrics import compute_metrics, macro_notes


def _names(num_classes):
    return [f"class {i}" for i in range(num_classes)]


def _random(num_examples, num_classes, seed=0, absent=None):
    """Labels, and probabilities that lean towards them; nobody has the label `absent`."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([i for i in range(num_classes) if i != absent], num_examples)
    logits = rng.normal(size=(num_examples, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    odds = np.exp(logits)
    return labels, odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("num_examples", "num_classes", "absent"), [(1, 3, None), (40, 2, None), (500, 10, 7), (2000, 100, 0), (7, 50, 3)]
)
def test_metrics_agree_with_scikit_learn(num_examples, num_classes, absent):
    labels, probabilities = _random(num_examples, num_classes, absent=absent)
    result = compute_metrics(labels, probabilities, _names(num_classes))

    classes, predicted = range(num_classes), probabilities.argmax(axis=1)
    assert result.num_examples == num_examples
    assert result.accuracy == pytest.approx(judge.accuracy_score(labels, predicted))
    assert result.loss == pytest.approx(judge.log_loss(labels, probabilities, labels=classes))
    score = probabilities[:, 1] if num_classes == 2 else probabilities
    top_k = judge.top_k_accuracy_score(labels, score, k=result.top_k, labels=classes) if num_classes > 2 else None
    assert result.top_k_accuracy == pytest.approx(result.accuracy if top_k is None else top_k)
    np.testing.assert_array_equal(result.confusion_matrix, judge.confusion_matrix(labels, predicted, labels=classes))
    per_class = judge.precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0)
    for name, expected in zip(("precision", "recall", "f1", "support"), per_class, strict=True):
        np.testing.assert_allclose([getattr(item, name) for item in result.per_class], expected)
    assert [result.macro_precision, result.macro_recall, result.macro_f1] == pytest.approx(
        [values.mean() for values in per_class[:3]]
    )


def test_macro_figures_say_which_classes_they_count_as_nothing():
    labels, probabilities = _random(500, 10, absent=7)
    result = compute_metrics(labels, probabilities, _names(10))
    assert result.num_absent_classes == 1
    others = judge.f1_score(labels, probabilities.argmax(axis=1), average=None, labels=[*range(7), 8, 9])
    assert macro_notes(result)["macro_f1"] == (
        f"1 of 10 classes have no examples and count 0; the mean of the others is {others.mean():.4f}"
    )
    assert macro_notes(compute_metrics(*_random(500, 10), _names(10))) == {}


@pytest.mark.parametrize("decimals", [1, 2, 6])
def test_roc_agrees_with_scikit_learn_with_and_without_ties(decimals):
    labels, probabilities = _random(150, 2)
    score = probabilities[:, 1].round(decimals)
    result = compute_metrics(labels, np.stack([1 - score, score], axis=1), _names(2))

    assert result.roc_auc == pytest.approx(judge.roc_auc_score(labels, score))
    false_rate, true_rate, thresholds = judge.roc_curve(labels, score, drop_intermediate=False)
    expected = np.stack([thresholds, false_rate, true_rate], axis=1)[1:]  # The first threshold is infinite.
    np.testing.assert_allclose([dataclasses.astuple(point) for point in result.roc], expected)


def test_roc_of_many_scores_is_at_most_200_points_and_keeps_the_area():
    labels, probabilities = _random(20_000, 2)
    result = compute_metrics(labels, probabilities, _names(2))
    assert len(result.roc) <= 200
    assert (result.roc[-1].false_positive_rate, result.roc[-1].true_positive_rate) == (1.0, 1.0)
    rates = [(0.0, 0.0), *((point.false_positive_rate, point.true_positive_rate) for point in result.roc)]
    assert np.trapezoid(*zip(*[rate[::-1] for rate in rates], strict=True)) == pytest.approx(result.roc_auc, abs=1e-3)


def test_roc_is_for_two_classes_that_both_occur():
    labels, probabilities = _random(20, 2)
    only_one = compute_metrics(np.zeros_like(labels), probabilities, _names(2))
    three = compute_metrics(*_random(20, 3), _names(3))
    assert (only_one.roc_auc, only_one.roc, three.roc_auc, three.roc) == (None, (), None, ())


def test_ties_go_to_the_first_class_in_accuracy_and_top_k_alike():
    labels = np.arange(4)
    result = compute_metrics(labels, np.full((4, 4), 0.25), _names(4), top_k=3)
    assert (result.accuracy, result.top_k_accuracy) == (0.25, 0.75)
    assert compute_metrics(labels, np.full((4, 4), 0.25), _names(4), top_k=1).top_k_accuracy == 0.25


@pytest.mark.parametrize(("num_classes", "expected"), [(2, 1), (3, 2), (6, 5), (10, 5)])
def test_top_k_is_below_the_number_of_classes(num_classes, expected):
    assert compute_metrics(*_random(20, num_classes), _names(num_classes)).top_k == expected


def test_calibration_error_agrees_with_a_naive_loop():
    labels, probabilities = _random(600, 4)
    probabilities[:15, 0] = np.arange(1, 16) / 15  # Right on the edges.
    result = compute_metrics(labels, probabilities, _names(4))

    expected, counts = 0.0, []
    for i in range(15):
        members = [
            (row.max(), row.argmax() == label)
            for row, label in zip(probabilities, labels, strict=True)
            if np.linspace(0, 1, 16)[i] < row.max() <= np.linspace(0, 1, 16)[i + 1]
        ]
        if members:
            counts.append(len(members))
            confidence, correct = np.mean(members, axis=0)
            expected += len(members) / 600 * abs(confidence - correct)
    assert result.calibration_error == pytest.approx(expected)
    assert [item.count for item in result.calibration] == counts
    assert all(item.lower < item.confidence <= item.upper for item in result.calibration)


def test_loss_of_a_certain_mistake_is_finite():
    result = compute_metrics(np.array([0]), np.array([[0.0, 1.0]]), _names(2))
    assert result.loss == pytest.approx(-np.log(1e-7))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_metrics_are_plain_json(dtype):
    labels, probabilities = _random(30, 2)
    result = compute_metrics(labels.astype(np.uint8), probabilities.astype(dtype), _names(2))
    assert json.loads(json.dumps(dataclasses.asdict(result), allow_nan=False))["num_examples"] == 30
    assert {type(value) for value in scalars(result).values()} == {float}


def test_scalar_metrics_name_the_area_only_where_there_is_one():
    binary = scalars(compute_metrics(*_random(30, 2), _names(2)))
    assert set(binary) - set(scalars(compute_metrics(*_random(30, 3), _names(3)))) == {"roc_auc"}
    assert len(binary) == 8


def test_metrics_refuse_an_empty_split():
    with pytest.raises(InputError, match="received 0 examples"):
        compute_metrics(np.zeros(0, int), np.zeros((0, 3)), _names(3))


@pytest.mark.parametrize(("rows", "columns", "names"), [(4, 3, 3), (5, 2, 3), (5, 3, 4)])
def test_metrics_refuse_shapes_that_disagree(rows, columns, names):
    with pytest.raises(InputError, match=rf"\[5\] and \[{rows}, {columns}\], with {names} class names"):
        compute_metrics(np.zeros(5, int), np.full((rows, columns), 1 / columns), _names(names))


@pytest.mark.parametrize("label", [-1, 3])
def test_metrics_refuse_a_label_without_a_class(label):
    with pytest.raises(InputError, match=rf"in \[0, 3\).* label {label} at index 2"):
        compute_metrics(np.array([0, 1, label]), np.full((3, 3), 1 / 3), _names(3))


def test_metrics_refuse_probabilities_that_are_no_numbers():
    labels, probabilities = _random(10, 3)
    probabilities[4, 1], probabilities[9] = np.inf, np.nan
    with pytest.raises(InputError, match="refused: 2 of 10 rows hold NaN or infinity, the first at index 4"):
        compute_metrics(labels, probabilities, _names(3))


def test_metrics_refuse_logits():
    with pytest.raises(InputError, match=r"received -7.5 at index 1 \(1 of 2 rows\)"):
        compute_metrics(np.array([0, 1]), np.array([[0.5, 0.5], [-7.5, 3.0]]), _names(2))

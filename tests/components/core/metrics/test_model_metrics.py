"""The figures of every task, beside scikit-learn's."""

import json

import numpy as np
import pytest
from sklearn import metrics as judge

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import TASKS, Regression
from tpu_components.core.metrics.definitions import task_metrics
from tpu_components.core.metrics.details import MAX_MATRIX_CLASSES, list_confusions, macro_notes
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics


def _names(num):
    return [f"name {i}" for i in range(num)]


def _compute(task, targets, outputs, names=None, top_k=5):
    names = names or _names(outputs.shape[1])
    asked = Regression((0.0,) * len(names), (2.0,) * len(names)) if task == "regression" else TASKS[task]
    return compute_metrics(GroundTruth(asked, targets, names), outputs, top_k)


def _classes(num_examples, num_classes, seed=0, absent=None):
    """Labels, and probabilities that lean towards them; nobody has the label `absent`."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([i for i in range(num_classes) if i != absent], num_examples)
    odds = np.exp(rng.normal(size=(num_examples, num_classes)) + 1.5 * np.eye(num_classes)[labels])
    return labels, odds / odds.sum(axis=1, keepdims=True)


def _labels(num_examples, num_classes, digits=6):
    rng = np.random.default_rng(0)
    labels = rng.random((num_examples, num_classes)) < np.linspace(0.1, 0.8, num_classes)
    logits = rng.normal(size=labels.shape) + 1.5 * (labels - 0.5)
    return labels.astype(np.float32), np.round(1 / (1 + np.exp(-logits)), digits).astype(np.float32)


def _numbers(num_examples, num_targets):
    rng, scale = np.random.default_rng(0), 10.0 ** np.arange(num_targets)
    targets = (rng.normal(size=(num_examples, num_targets)) * scale + 5 * scale).astype(np.float32)
    return targets, (targets + 0.3 * rng.normal(size=targets.shape) * scale).astype(np.float32)


def _column(figures, name, rows="per_class"):
    return [row[name] for row in figures.details[rows]]


@pytest.mark.parametrize(
    ("num_examples", "num_classes", "absent"),
    [(1, 3, None), (40, 2, None), (500, 10, 7), (2000, 100, 0), (7, 50, 3), (900, 300, 5)],
)
def test_figures_of_classes_agree_with_scikit_learn(num_examples, num_classes, absent):
    labels, probabilities = _classes(num_examples, num_classes, absent=absent)
    figures = _compute("classification", labels, probabilities)
    classes, predicted, top_k = range(num_classes), probabilities.argmax(axis=1), figures.details["top_k"]
    expected = {
        "accuracy": judge.accuracy_score(labels, predicted),
        "loss": judge.log_loss(labels, probabilities, labels=classes),
    }
    if num_classes > 2:
        expected["top_k_accuracy"] = judge.top_k_accuracy_score(labels, probabilities, k=top_k, labels=classes)
    matrix = judge.confusion_matrix(labels, predicted, labels=classes)
    if num_classes <= MAX_MATRIX_CLASSES:
        np.testing.assert_array_equal(figures.details["confusion_matrix"], matrix)
    assert _as_matrix(figures.details, num_classes).tolist() == matrix.tolist()
    per_class = judge.precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0)
    for name, values in zip(("precision", "recall", "f1"), per_class, strict=False):
        np.testing.assert_allclose(_column(figures, name), values)
        expected[f"macro_{name}"] = values.mean()
    assert _column(figures, "support") == per_class[3].tolist()
    assert {name: figures.metrics[name] for name in expected} == pytest.approx(expected)


def _as_matrix(details, num_classes):
    matrix = np.zeros((num_classes, num_classes), int)
    for true, predicted, count in list_confusions(details):
        matrix[true, predicted] = count
    return matrix


def test_details_of_many_classes_grow_with_the_examples_and_not_with_the_square_of_the_classes():
    num_classes = 3000
    labels, probabilities = np.arange(50), np.eye(num_classes, dtype=np.float32)[np.arange(50) // 2]
    details = _compute("classification", labels, probabilities).details
    assert "confusion_matrix" not in details
    assert list_confusions(details) == [(i, i // 2, 1) for i in range(50)]
    assert sum(map(len, details["confusions"].values())) == 3 * 50
    assert len(json.dumps(details)) < 200 * num_classes


def test_a_confusion_matrix_of_an_earlier_version_is_read_for_any_number_of_classes():
    dense = np.zeros((300, 300), int)
    dense[[0, 7], [5, 7]] = [2, 3]
    assert list_confusions({"confusion_matrix": dense.tolist()}) == [(0, 5, 2), (7, 7, 3)]


# Of one digit, many probabilities are equal.
@pytest.mark.parametrize(("num_examples", "num_classes", "digits"), [(50, 2, 6), (400, 7, 6), (300, 4, 1), (60, 1, 2)])
def test_figures_of_labels_agree_with_scikit_learn(num_examples, num_classes, digits):
    labels, probabilities = _labels(num_examples, num_classes, digits)
    figures = _compute("multi_label", labels, probabilities)
    true, said = labels.astype(int), (probabilities > 0.5).astype(int)
    columns = list(zip(true.T, said.T, probabilities.T, strict=True))
    per_class = {
        **{
            name: [score(own, given, zero_division=0) for own, given, _ in columns]
            for name, score in {
                "precision": judge.precision_score,
                "recall": judge.recall_score,
                "f1": judge.f1_score,
            }.items()
        },
        "support": true.sum(axis=0).tolist(),
        "average_precision": [judge.average_precision_score(own, each) for own, _, each in columns],
        "roc_auc": [judge.roc_auc_score(own, each) for own, _, each in columns],
    }
    for name, values in per_class.items():
        assert _column(figures, name) == pytest.approx(values), name
    clipped = probabilities.astype(np.float64).clip(1e-7, 1 - 1e-7)
    losses = [judge.log_loss(own, each, labels=[0, 1]) for own, each in zip(true.T, clipped.T, strict=True)]
    expected = {
        **{f"macro_{name}": np.mean(per_class[name]) for name in ("precision", "recall", "f1", "roc_auc")},
        "mean_average_precision": np.mean(per_class["average_precision"]),
        "micro_f1": judge.f1_score(true.ravel(), said.ravel()),
        "subset_accuracy": (true == said).all(axis=1).mean(),
        "hamming_loss": judge.hamming_loss(true, said),
        "loss": np.mean(losses),
    }
    assert figures.metrics == pytest.approx(expected)


@pytest.mark.parametrize(("num_examples", "num_targets"), [(2, 1), (300, 1), (501, 4)])
def test_figures_of_numbers_agree_with_scikit_learn(num_examples, num_targets):
    targets, values = _numbers(num_examples, num_targets)
    figures = _compute("regression", targets, values)
    true, predicted = targets.astype(np.float64), values.astype(np.float64)
    expected = {
        "mean_absolute_error": judge.mean_absolute_error,
        "root_mean_squared_error": judge.root_mean_squared_error,
        "median_absolute_error": judge.median_absolute_error,
        "r2": judge.r2_score,
    }
    for name, reference in expected.items():
        assert figures.metrics[name] == pytest.approx(reference(true, predicted)), name
        each = reference(true, predicted, multioutput="raw_values")
        assert _column(figures, name, "per_target") == pytest.approx(each), name
    assert figures.metrics["loss"] == pytest.approx(judge.mean_squared_error(true, predicted) / 4)
    assert _column(figures, "name", "per_target") == _names(num_targets)


@pytest.mark.parametrize(
    ("task", "targets", "outputs"),
    [
        ("classification", *_classes(30, 2)),
        ("multi_label", *_labels(50, 3)),
        ("regression", *_numbers(50, 2)),
    ],
)
def test_every_metric_of_a_task_is_in_the_file_as_plain_json(task, targets, outputs):
    figures = _compute(task, targets, outputs.astype(np.float16))
    kept = figures.as_dict()
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    assert set(figures.metrics) == set(task_metrics(task)) <= set(kept)
    assert {type(value) for value in figures.metrics.values()} == {float}


def test_a_metric_that_is_not_defined_is_none_in_the_file():
    labels, probabilities = _classes(20, 2)
    for task, targets, outputs, undefined in (
        ("classification", np.zeros_like(labels), probabilities, {"roc_auc"}),
        ("classification", *_classes(20, 3), {"roc_auc"}),
        ("multi_label", np.ones((20, 2)), probabilities, {"macro_roc_auc"}),
        ("multi_label", np.zeros((20, 2)), probabilities, {"macro_roc_auc", "mean_average_precision"}),
        ("regression", np.ones((20, 2)), probabilities, {"r2"}),
    ):
        figures = _compute(task, targets, outputs).as_dict()
        assert {name for name in task_metrics(task) if figures[name] is None} == undefined
        assert figures.get("roc", []) == []


def test_macro_figures_say_which_classes_they_count_as_nothing():
    labels, probabilities = _classes(500, 10, absent=7)
    figures = _compute("classification", labels, probabilities)
    assert figures.details["num_absent_classes"] == 1
    others = judge.f1_score(labels, probabilities.argmax(axis=1), average=None, labels=[*range(7), 8, 9])
    assert macro_notes(figures.as_dict())["macro_f1"] == (
        f"1 of 10 classes have no examples and count as 0; the mean of the other classes is {others.mean():.4f}"
    )
    assert macro_notes(_compute("classification", *_classes(500, 10)).as_dict()) == {}


def test_a_label_that_nobody_has_counts_zero_and_has_no_areas():
    labels, probabilities = _labels(40, 3)
    labels[:, 1], probabilities[:, 1] = 0, 0.1
    figures = _compute("multi_label", labels, probabilities)
    first, absent, last = figures.details["per_class"]
    assert list(absent.values()) == ["name 1", 0, 0.0, 0.0, 0.0, None, None]
    mean = np.mean([first["average_precision"], last["average_precision"]])
    assert figures.metrics["mean_average_precision"] == pytest.approx(mean)
    assert figures.metrics["macro_f1"] == pytest.approx((first["f1"] + last["f1"]) / 3)


def test_a_target_that_never_changes_has_no_r2():
    targets, values = _numbers(20, 2)
    targets[:, 1] = 7
    first, last = _column(_compute("regression", targets, values), "r2", "per_target")
    assert first is not None
    assert last is None


@pytest.mark.parametrize("decimals", [1, 2, 6])
def test_roc_agrees_with_scikit_learn_with_and_without_ties(decimals):
    labels, probabilities = _classes(150, 2)
    score = probabilities[:, 1].round(decimals)
    figures = _compute("classification", labels, np.stack([1 - score, score], axis=1))
    assert figures.metrics["roc_auc"] == pytest.approx(judge.roc_auc_score(labels, score))
    false_rate, true_rate, thresholds = judge.roc_curve(labels, score, drop_intermediate=False)
    expected = np.stack([thresholds, false_rate, true_rate], axis=1)[1:]  # The first threshold is infinite.
    np.testing.assert_allclose([list(point.values()) for point in figures.details["roc"]], expected)


def test_roc_of_many_scores_is_at_most_200_points_and_keeps_the_area():
    figures = _compute("classification", *_classes(20_000, 2))
    points = [list(point.values())[1:] for point in figures.details["roc"]]
    assert len(points) <= 200
    assert points[-1] == [1.0, 1.0]
    false_rate, true_rate = zip([0.0, 0.0], *points, strict=True)
    assert np.trapezoid(true_rate, false_rate) == pytest.approx(figures.metrics["roc_auc"], abs=1e-3)


def test_ties_go_to_the_first_class_in_accuracy_and_top_k_alike():
    for top_k, expected in ((3, 0.75), (1, 0.25)):
        metrics = _compute("classification", np.arange(4), np.full((4, 4), 0.25), top_k=top_k).metrics
        assert (metrics["accuracy"], metrics["top_k_accuracy"]) == (0.25, expected)


@pytest.mark.parametrize(("num_classes", "expected"), [(2, 1), (3, 2), (6, 5), (10, 5)])
def test_top_k_is_below_the_number_of_classes(num_classes, expected):
    assert _compute("classification", *_classes(20, num_classes)).details["top_k"] == expected


def test_calibration_error_agrees_with_a_naive_loop():
    labels, probabilities = _classes(600, 4)
    probabilities[:15, 0] = np.arange(1, 16) / 15  # Right on the edges.
    figures = _compute("classification", labels, probabilities)
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
    bins = figures.details["calibration"]
    assert figures.metrics["calibration_error"] == pytest.approx(expected)
    assert [item["count"] for item in bins] == counts
    assert all(item["lower"] < item["confidence"] <= item["upper"] for item in bins)


def test_loss_of_a_certain_mistake_is_finite():
    figures = _compute("classification", np.array([0]), np.array([[0.0, 1.0]]))
    assert figures.metrics["loss"] == pytest.approx(-np.log(1e-7))


@pytest.mark.parametrize(
    ("task", "targets", "outputs", "message"),
    [
        (
            "classification",
            np.array([0, 1]),
            np.array([[0.5, 0.5], [-7.5, 3.0]]),
            r"received -7.5 at index 1\. Values outside this range occur in 1 of 2 rows\. End the model with a softmax",
        ),
        (
            "multi_label",
            np.zeros((3, 2)),
            np.full((3, 2), 1.5),
            r"received 1.5 at index 0.*End the model with one sigmoid per label",
        ),
    ],
)
def test_what_is_no_answer_is_refused(task, targets, outputs, message):
    with pytest.raises(InputError, match=message):
        _compute(task, targets, outputs)

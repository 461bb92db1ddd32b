import dataclasses
import json

import numpy as np
import pytest
from sklearn import metrics as judge

from tpu_components.core.base.errors import InputError
from tpu_components.core.results.metric_table import scalars, task_metrics
from tpu_components.evaluate_model.multi_label import compute_multi_label_metrics


def _random(num_examples, num_classes, digits=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random((num_examples, num_classes)) < np.linspace(0.1, 0.8, num_classes)
    logits = rng.normal(size=labels.shape) + 1.5 * (labels - 0.5)
    return labels.astype(np.float32), np.round(1 / (1 + np.exp(-logits)), digits).astype(np.float32)


def _names(num_classes):
    return [f"label {i}" for i in range(num_classes)]


# Of one digit, many probabilities are equal.
@pytest.mark.parametrize(("num_examples", "num_classes", "digits"), [(50, 2, 6), (400, 7, 6), (300, 4, 1), (60, 1, 2)])
def test_metrics_agree_with_scikit_learn(num_examples, num_classes, digits):
    labels, probabilities = _random(num_examples, num_classes, digits)
    result = compute_multi_label_metrics(labels, probabilities, _names(num_classes))

    predicted = probabilities > 0.5
    shape = (num_examples, num_classes)
    true, said = labels.astype(int).reshape(shape), predicted.astype(int).reshape(shape)
    per_class = [
        judge.precision_recall_fscore_support(true[:, i], said[:, i], average="binary", zero_division=0)[:3]
        for i in range(num_classes)
    ]
    assert [(one.precision, one.recall, one.f1) for one in result.per_class] == [
        pytest.approx(expected) for expected in per_class
    ]
    assert [one.support for one in result.per_class] == true.sum(axis=0).tolist()
    assert (result.macro_precision, result.macro_recall, result.macro_f1) == pytest.approx(np.mean(per_class, axis=0))
    assert result.micro_f1 == pytest.approx(judge.f1_score(true.ravel(), said.ravel()))
    assert result.subset_accuracy == pytest.approx((true == said).all(axis=1).mean())
    if num_classes > 1:
        assert result.micro_f1 == pytest.approx(judge.f1_score(true, said, average="micro"))
        assert result.subset_accuracy == pytest.approx(judge.accuracy_score(true, said))
    assert result.hamming_loss == pytest.approx(judge.hamming_loss(true, said))
    precisions = [judge.average_precision_score(true[:, i], probabilities[:, i]) for i in range(num_classes)]
    areas = [judge.roc_auc_score(true[:, i], probabilities[:, i]) for i in range(num_classes)]
    assert [one.average_precision for one in result.per_class] == pytest.approx(precisions)
    assert [one.roc_auc for one in result.per_class] == pytest.approx(areas)
    assert (result.mean_average_precision, result.macro_roc_auc) == pytest.approx((np.mean(precisions), np.mean(areas)))
    clipped = probabilities.astype(np.float64).clip(1e-7, 1 - 1e-7)
    losses = [judge.log_loss(true[:, i], clipped[:, i], labels=[0, 1]) for i in range(num_classes)]
    assert result.loss == pytest.approx(np.mean(losses))


def test_a_label_that_nobody_has_counts_zero_and_has_no_areas():
    labels, probabilities = _random(40, 3)
    labels[:, 1], probabilities[:, 1] = 0, 0.1
    result = compute_multi_label_metrics(labels, probabilities, _names(3))
    one = result.per_class[1]
    assert (one.support, one.precision, one.recall, one.f1) == (0, 0.0, 0.0, 0.0)
    assert (one.average_precision, one.roc_auc) == (None, None)
    others = [result.per_class[i] for i in (0, 2)]
    assert result.mean_average_precision == pytest.approx(np.mean([other.average_precision for other in others]))
    assert result.macro_f1 == pytest.approx(sum(other.f1 for other in others) / 3)


def test_a_label_that_all_have_leaves_no_area_under_the_curve():
    labels, probabilities = _random(10, 1)
    result = compute_multi_label_metrics(np.ones_like(labels), probabilities, _names(1))
    assert result.macro_roc_auc is None
    assert "macro_roc_auc" not in scalars(result)


def test_every_scalar_is_a_metric_that_a_gate_may_name():
    result = compute_multi_label_metrics(*_random(50, 3), _names(3))
    assert set(scalars(result)) == set(task_metrics("multi_label"))
    json.dumps(dataclasses.asdict(result), allow_nan=False)


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2)), "received 0 examples"),
        (np.zeros((3, 2)), np.zeros((3, 3)), r"Received: \[3, 2\] and \[3, 3\], with 2 class names"),
        (np.zeros((3, 2)), np.full((3, 2), np.nan), "3 of 3 rows hold NaN"),
        (np.zeros((3, 2)), np.full((3, 2), 4.0), r"received 4 at index 0.*End the model with one sigmoid per label"),
    ],
)
def test_what_is_no_answer_is_refused(labels, probabilities, message):
    with pytest.raises(InputError, match=message):
        compute_multi_label_metrics(labels, probabilities, _names(2))

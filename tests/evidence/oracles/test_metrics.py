"""Every figure of an evaluation against its definition, and what must not change it."""

import numpy as np
import pytest

from tests.evidence.oracles.cases import cases
from tests.evidence.oracles.metrics import compute, deviations
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.metrics.definitions import METRICS
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.evaluate_model.baseline import find_baseline

_CASES = {f"{task}, {name}": (task, targets, outputs) for task, name, targets, outputs in cases()}
_PERMUTABLE = [name for name, (task, *_) in _CASES.items() if task in ("classification", "multi_label")]


def test_every_figure_is_what_its_definition_says():
    found = list(deviations())
    assert {(task, figure) for task, _, figure, _ in found} == {(metric.task, metric.name) for metric in METRICS}
    for task, name, figure, deviation in found:
        assert deviation < 1e-12, f"{figure} of {task}, {name}"


@pytest.mark.parametrize("name", _CASES)
def test_the_order_of_examples_changes_nothing(name):
    task, targets, outputs = _CASES[name]
    order = np.random.default_rng(1).permutation(len(targets))
    assert compute(task, targets[order], outputs[order]) == pytest.approx(compute(task, targets, outputs), rel=1e-9)


@pytest.mark.parametrize("name", _CASES)
def test_every_example_three_times_changes_nothing(name):
    task, targets, outputs = _CASES[name]
    thrice = compute(task, np.repeat(targets, 3, axis=0), np.repeat(outputs, 3, axis=0))
    assert thrice == pytest.approx(compute(task, targets, outputs), rel=1e-9)


@pytest.mark.parametrize("name", _PERMUTABLE)
def test_other_names_for_the_classes_change_nothing(name):
    """A class moves to another place with its labels and its outputs; ties, which go to the first, are left out."""
    task, targets, outputs = _CASES[name]
    outputs = outputs + np.random.default_rng(3).random(outputs.shape).astype(np.float32) * 1e-4
    outputs /= max(outputs.max(), 1)
    place = np.random.default_rng(2).permutation(outputs.shape[1])
    if task == "classification" and outputs.shape[1] == 2:
        place = np.array([0, 1])  # The area is that of the second class.
    moved = np.argsort(place)[targets] if task == "classification" else targets[:, place]
    assert compute(task, moved, outputs[:, place]) == pytest.approx(compute(task, targets, outputs), rel=1e-9)


def test_two_classes_that_change_places_keep_the_area():
    _, labels, probabilities = _CASES["classification, two classes"]
    swapped = compute("classification", 1 - labels, probabilities[:, ::-1])["roc_auc"]
    assert swapped == pytest.approx(compute("classification", labels, probabilities)["roc_auc"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name, (task, *_) in _CASES.items() if task == "regression"])
def test_another_unit_scales_errors_and_leaves_shares(name):
    task, targets, outputs = _CASES[name]
    before = compute(task, targets.astype(np.float64), outputs.astype(np.float64))
    after = compute(task, targets.astype(np.float64) * 1000, outputs.astype(np.float64) * 1000)
    for figure, value in before.items():
        scale = {"r2": 1, "loss": 1e6}.get(figure, 1000)
        assert after[figure] == pytest.approx(value * scale, rel=1e-9), figure


@pytest.mark.parametrize("name", [name for name, (task, *_) in _CASES.items() if task != "language_model"])
def test_the_baseline_depends_on_no_order_and_on_no_duplicates(name):
    task, targets, outputs = _CASES[name]
    names = [str(i) for i in range(outputs.shape[1])]
    order = np.random.default_rng(1).permutation(len(targets))
    plain = find_baseline(GroundTruth(TASKS[task], targets, names), outputs)
    mixed = find_baseline(GroundTruth(TASKS[task], targets[order], names), outputs[order])
    assert (mixed.metric, mixed.answer, mixed.value) == (plain.metric, plain.answer, pytest.approx(plain.value))
    assert (mixed.advantage, mixed.margin) == pytest.approx((plain.advantage, plain.margin))
    thrice = find_baseline(
        GroundTruth(TASKS[task], np.repeat(targets, 3, axis=0), names), np.repeat(outputs, 3, axis=0)
    )
    assert (thrice.value, thrice.advantage) == (pytest.approx(plain.value), pytest.approx(plain.advantage))

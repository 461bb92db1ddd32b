"""The gate's intervals and tests on a few simulated data sets."""

import math
from pathlib import Path

import numpy as np
import pytest

import tpu_components.evaluate_model
from tests.evidence.oracles import intervals
from tpu_components.core.examples.interface import Classification, MultiLabel
from tpu_components.core.metrics.comparisons import compare
from tpu_components.core.metrics.definitions import HIGHER, estimators
from tpu_components.core.metrics.intervals import find_interval

_TABLE = Path(tpu_components.evaluate_model.__file__).with_name("intervals.md")
_NOMINAL = 0.05


def _most(repetitions):
    """Return the share that so many data sets exceed once in a thousand, if the true one is 5%."""
    return _NOMINAL + 3.1 * math.sqrt(_NOMINAL * (1 - _NOMINAL) / repetitions)


def _promoted(kind, num_examples, metric, repetitions):
    """Return how often an equal model is promoted, and how often the interval misses."""
    pool = intervals.KINDS[kind][0]((1.5, 1.5))
    rng, promoted, missed = np.random.default_rng(0), 0, 0
    for _ in range(repetitions):
        targets, outputs = pool.draw(rng, num_examples)
        ours, theirs = (pool.estimators(targets, answers)[metric]() for answers in outputs)
        difference = compare(ours, theirs, HIGHER, 0.95)
        promoted += difference is not None and difference.luck <= _NOMINAL
        if interval := find_interval(ours, 0.95):
            low, high = interval
            missed += not low - 1e-9 <= pool.truths(targets, outputs)[0][metric] <= high + 1e-9
    return promoted / repetitions, missed / repetitions


@pytest.mark.parametrize(("kind", "num_examples"), [("100 Zipf classes", 1000), ("20 Zipf classes", 500)])
def test_macro_recall_of_rare_classes_promotes_and_misses_one_in_twenty(kind, num_examples):
    """A class of one example has no variance around its own share: 10 and 53% of 100 Zipf classes once."""
    promoted, missed = _promoted(kind, num_examples, "macro_recall", 200)
    assert promoted <= _most(200)
    assert missed <= _most(200)


def test_the_interval_of_a_calibrated_models_error_holds_zero():
    """The error itself is above 0 by chance alone; its standard error does not reach down to 0."""
    assert _promoted("4 classes, calibrated", 500, "calibration_error", 100)[1] <= _most(100)


@pytest.mark.parametrize("kind", ["80 Zipf labels", "80 rare labels"])
def test_the_slices_of_many_labels_refuse_no_equal_model(kind):
    """An F1 of exactly 0 or 1 is no mean over all examples: half and more of equal models were refused once."""
    assert intervals.refused_by_slices(kind, 500, 60) <= _most(60)


def test_a_least_accuracy_refuses_no_good_model_of_tiny_slices():
    """Wilson's interval of one wrong answer ends below 0.9 even with the confidence of 20 slices."""
    assert intervals.refused_by_sites(20, 1, 100) <= _most(100)


def _label(found, num_examples=500, num_true=200):
    """Return the F1 of a label of which so many are found, all without a mistake."""
    true, said = np.zeros((num_examples, 1)), np.zeros((num_examples, 1))
    true[:num_true], said[:found] = 1, 1
    return estimators(MultiLabel(), true, said)["micro_f1"]()


def test_a_label_that_broke_altogether_is_seen_whatever_its_f1_was():
    for champion in (200, 199, 150):
        difference = compare(_label(0), _label(champion), HIGHER, 1 - 0.05 / 80)
        assert difference.most < -0.5, champion
    assert compare(_label(0, num_true=9), _label(9, num_true=9), HIGHER, 0.95) is None  # So few cannot say.
    same = compare(_label(200), _label(200), HIGHER, 0.95)
    assert -0.02 < same.least < 0 < same.most < 0.02
    assert same.luck == 1


def test_a_perfect_figure_of_few_examples_is_not_sure():
    """An AUC of 1 with two positives had the interval [0.996, 1]."""
    for num_positive, shown in ((2, False), (9, False), (10, True)):
        labels = (np.arange(500) < num_positive).astype(int)
        answers = np.stack([1 - labels, labels], axis=1).astype(float)
        interval = find_interval(estimators(Classification(), labels, answers)["roc_auc"](), 0.95)
        assert (interval is not None) == shown
    assert interval[0] < 0.75
    low, high = find_interval(_label(20, num_true=20), 0.95)
    assert low < 0.9
    assert high == 1


def test_the_table_keeps_what_the_gate_promises():
    lines = [line.strip("| ").split(" | ") for line in _TABLE.read_text(encoding="utf-8").splitlines() if "| " in line]
    figures = [line for line in lines if len(line) == 10 and line[0] != "data"]
    sizes = {(kind, size) for kind, (_, sizes) in intervals.KINDS.items() for size in sizes}
    assert {(line[0], int(line[1].replace(",", ""))) for line in figures} == sizes
    for kind, size, metric, _, shown, holds, promoted, wrong, power, ideal in figures:
        name = f"{metric} of {kind}, {size}"
        assert holds == "–" or float(holds) >= 93, name
        assert promoted == "–" or float(promoted) <= 7, name
        assert wrong == "–" or float(wrong) <= 7, name
        assert ideal == "–" or float(ideal) < 20 or float(power) >= 0.8 * float(ideal), name
        assert (holds == "–") == (float(shown) == 0), name
    gates = [line for line in lines if len(line) == 4 and line[0] != "gate"]
    assert {line[0] for line in gates} == {name for name, *_ in intervals.SLICES}
    assert all(float(line[2]) <= 7 for line in gates)
    years = {line[0]: line[2:] for line in lines if len(line) == 8 and line[0] != "52 weeks"}
    assert set(years) == {name for name, *_ in intervals.YEARS}
    for name, (error, *_, power, ideal) in years.items():
        assert name.endswith("test_decisions 1") or float(error) <= 7, name
        assert power == "–" or float(power) >= 0.8 * float(ideal), name


def test_a_year_of_decisions_on_one_test_set_promotes_falsely_no_more_often_than_one_decision():
    """Each with the whole error rate, 42% of the years had a false promotion."""
    year = intervals.simulate_equal(500, repetitions := 60, intervals.WEEKS)
    assert year.false <= _most(repetitions)


def test_margins_do_not_add_up_over_a_year():
    """Without the best that was promoted to compare with, the champion lost 4.3 points at a margin of 1."""
    year = intervals.simulate_creep(10_000, 2, intervals.WEEKS, 0.01, anchored=True)
    assert year.fell < 1
    assert year.number > 1, "models that are a little worse are promoted"

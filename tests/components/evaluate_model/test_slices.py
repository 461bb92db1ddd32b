import dataclasses

import numpy as np
import pytest

from components.artifacts import Manifest
from components.errors import InputError
from components.evaluate_model import EvaluateParams
from components.evaluate_model.gate import decide
from components.evaluate_model.slices import check_slices, find_slices
from components.interface import Classification, MultiLabel, Regression

_FIGURES = {"accuracy": 0.9}


@dataclasses.dataclass
class _Interface:
    task: object


@dataclasses.dataclass
class _Data:
    """As much of a manifest as slices look at."""

    interface: _Interface
    class_names: tuple[str, ...] = ("cat", "dog", "fox")
    input: object = None

    @property
    def task(self):
        return self.interface.task.name


def _classes(labels, *answers):
    """Return a data set of three classes, and what the model and the champion answer."""
    outputs = np.stack([np.eye(3, dtype=np.float32)[answer] for answer in answers])
    return _Data(_Interface(Classification())), labels, outputs, np.zeros(len(labels), int)


def _broken_cats():
    """A model that is better by 10 points in the mean, and has lost 30 points of the cats."""
    labels = np.repeat([0, 1, 2], 300)
    champion, model = labels.copy(), labels.copy()
    champion[300:] = np.where(np.arange(600) % 4 == 0, 0, labels[300:])
    model[:300] = np.where(np.arange(300) % 10 < 3, 1, 0)
    return _classes(labels, model, champion)


def test_a_better_mean_hides_no_class_that_broke():
    params = EvaluateParams(max_regression={})
    slices = find_slices(params, *_broken_cats())
    assert [(part.by, part.name, part.num_examples, part.metric) for part in slices] == [
        ("class", name, 300, "accuracy") for name in ("cat", "dog", "fox")
    ]
    assert (slices[0].value, slices[0].champion) == (0.7, 1.0)
    decision = decide(params, _FIGURES, _FIGURES, slices=slices)
    assert not decision.promote
    assert decision.reasons == (
        "failed: accuracy 0.7000 of class 'cat' (300 examples) is worse than the champion's 1.0000 by more than 0.0500"
        ", with 95 % confidence in all 3 slices",
    )
    allowed = dataclasses.replace(params, max_slice_regression=0.31)
    assert decide(allowed, _FIGURES, _FIGURES, slices=slices).reasons == (
        "passed: no slice is worse than the champion's by more than 0.3100, with 95 % confidence in all 3 slices",
    )


def test_a_slice_below_its_minimum_is_named_and_one_that_chance_may_have_put_there_is_not():
    params = EvaluateParams(slice_minimum=0.8)
    decision = decide(params, _FIGURES, None, slices=find_slices(params, *_broken_cats()))
    assert decision.reasons[1] == (
        "failed: accuracy 0.7000 of class 'cat' (300 examples) is below the least that a slice may have, 0.8000, "
        "with 95 % confidence in all 3 slices"
    )
    labels = np.repeat([0, 1], [10, 300])
    few = _classes(labels, np.where(np.arange(310) < 3, 1, labels))
    assert decide(params, _FIGURES, None, slices=find_slices(params, *few)).reasons[1] == (
        "passed: no slice is below the least that a slice may have, 0.8000, with 95 % confidence in all 2 slices"
    )


def test_of_equal_models_with_three_classes_one_in_twenty_seems_to_have_broken_one():
    generator, refused = np.random.default_rng(0), 0
    params = EvaluateParams(max_regression={}, max_slice_regression=0.0)
    labels = np.repeat(np.arange(3), 200)
    for _ in range(400):
        answers = [np.where(generator.random(600) < 0.1, (labels + 1) % 3, labels) for _ in range(2)]
        slices = find_slices(params, *_classes(labels, *answers))
        refused += not decide(params, _FIGURES, _FIGURES, slices=slices).promote
    assert 0 < refused / 400 <= 0.05 + 3.1 * np.sqrt(0.05 * 0.95 / 400)


def test_without_confidence_slices_are_compared_as_they_are():
    params = EvaluateParams(max_regression={}, confidence=0.5, max_slice_regression=0.3)
    slices = find_slices(params, *_broken_cats())
    assert slices[0].difference.most == pytest.approx(-0.3)
    assert decide(params, _FIGURES, _FIGURES, slices=slices).promote
    stricter = dataclasses.replace(params, max_slice_regression=0.299)
    assert not decide(stricter, _FIGURES, _FIGURES, slices=slices).promote


def test_many_slices_that_broke_are_counted():
    labels = np.repeat(np.arange(8), 100)
    data = _Data(_Interface(Classification()), tuple("abcdefgh"))
    outputs = np.stack([np.eye(8, dtype=np.float32)[answer] for answer in ((labels + 1) % 8, labels)])
    params = EvaluateParams(max_regression={})
    decision = decide(params, _FIGURES, _FIGURES, slices=find_slices(params, data, labels, outputs, labels))
    assert len(decision.reasons) == 6
    assert decision.reasons[-1] == "failed: 3 more slices are as bad"


def test_a_label_is_judged_by_its_f1_and_texts_by_their_length():
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 0]], np.float32)
    data = _Data(_Interface(MultiLabel()), ("hot", "sour"))
    outputs = np.array([[[0.9, 0.1], [0.2, 0.8], [0.1, 0.1], [0.9, 0.2]]], np.float32)
    params = EvaluateParams(slices=("class", "length"))
    slices = find_slices(params, data, labels, outputs, np.array([5, 9, 2, 7]))
    assert [(part.name, part.num_examples, part.metric, part.value) for part in slices[:2]] == [
        ("hot", 2, "micro_f1", 0.5),
        ("sour", 1, "micro_f1", 1.0),
    ]
    assert [part.name for part in slices[2:]] == [f"{n} to {n} tokens" for n in (2, 5, 7, 9)]


def test_a_regression_is_judged_by_the_loss_of_its_slices():
    data = _Data(_Interface(Regression((0.0,), (1.0,))), ("price",))
    targets = np.zeros((40, 1))
    outputs = np.stack([np.where(np.arange(40) < 20, 0.0, 1.0 + np.arange(40) / 100)[:, None], np.zeros((40, 1))])
    params = EvaluateParams(slices=("length",), max_regression={})
    slices = find_slices(params, data, targets, outputs, np.repeat([3, 8], 20))
    assert [part.metric for part in slices] == ["loss", "loss"]
    decision = decide(params, {"loss": 1}, {"loss": 1}, slices=slices)
    assert "of length '8 to 8 tokens' (20 examples) is worse than the champion's 0.0000" in decision.reasons[0]
    assert find_slices(EvaluateParams(), data, targets, outputs, targets) == ()


def test_what_the_examples_cannot_be_divided_by_is_refused(digits_records):
    manifest = Manifest.load(digits_records)
    check_slices(EvaluateParams(), manifest)
    with pytest.raises(InputError, match=r"'clas', as slices asks: expected one of class.*Did you mean 'class'"):
        check_slices(EvaluateParams(slices=("clas",)), manifest)
    with pytest.raises(InputError, match="'length'"):
        check_slices(EvaluateParams(slices=("length",)), manifest)
    data = _Data(_Interface(Regression()))
    with pytest.raises(InputError, match=r"slice_minimum=0\.5 bounds accuracy or F1, which a regression has not"):
        check_slices(EvaluateParams(slice_minimum=0.5), data)
    for changes in ({"slice_minimum": 1.5}, {"slice_minimum": -1}, {"max_slice_regression": -0.1}):
        with pytest.raises(InputError, match="=".join(map(str, next(iter(changes.items()))))):
            EvaluateParams(**changes)

import dataclasses
import json

import numpy as np
import pytest

from tpu_components.core.base import typed_values
from tpu_components.core.examples.interface import TASKS, ImageInput, Interface, Regression
from tpu_components.core.machines import device

_REGRESSION = Interface(ImageInput((8, 8, 1), "raw"), 2, "regression", (3.5, 2000.0), (1.5, 0.02))


def _labels(num_examples=40, num_classes=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, (num_examples, num_classes)), rng.random((num_examples, num_classes), np.float32)


def _numbers(num_examples=40):
    rng = np.random.default_rng(0)
    targets = (rng.normal(size=(num_examples, 2)) * _REGRESSION.std + _REGRESSION.mean).astype(np.float32)
    return targets, (targets + rng.normal(size=(num_examples, 2)) * [0.5, 0.01]).astype(np.float32)


def test_an_interface_comes_back_from_json_with_the_scale_of_its_targets():
    again = typed_values.read(json.loads(json.dumps(dataclasses.asdict(_REGRESSION))), Interface)
    assert again == _REGRESSION
    assert again.task == Regression((3.5, 2000.0), (1.5, 0.02))


@pytest.mark.parametrize(
    ("task", "facts", "target"),
    [
        ("classification", {"image_shape": (8, 8, 1), "num_classes": 3}, ((5,), "int32")),
        ("multi_label", {"image_shape": (8, 8, 1), "num_classes": 3}, ((5, 3), "float32")),
        ("regression", {"image_shape": (8, 8, 1), "num_targets": 3}, ((5, 3), "float32")),
    ],
)
def test_a_task_says_what_a_model_is_built_from_and_trained_with(task, facts, target):
    interface = Interface(ImageInput((8, 8, 1), "raw"), 3, task)
    assert interface.facts == facts
    assert interface.output_shape == (3,)
    assert interface.batch_shapes(5)[1] == target


@pytest.mark.parametrize(("task", "make"), [("multi_label", _labels), ("regression", _numbers)])
def test_loss_and_metric_are_those_that_keras_trains_with(task, make):
    device.prepare("tensorflow", "cpu", 1, "float32")
    import keras

    targets, outputs = make()
    interface = dataclasses.replace(_REGRESSION, task_name=task) if task == "regression" else None
    ours = interface.task if interface else TASKS[task]
    loss = ours.loss if callable(ours.loss) else keras.losses.get(ours.loss)
    metric = keras.metrics.get(ours.metric)
    targets = targets.astype(np.float32)
    np.testing.assert_allclose(np.asarray(loss(targets, outputs)), ours.losses(targets, outputs), rtol=1e-4)
    per_example = np.asarray(metric(targets, outputs) if callable(metric) else metric.fn(targets, outputs))
    np.testing.assert_allclose(per_example.mean(), ours.scores(targets, outputs).mean(), rtol=1e-4)

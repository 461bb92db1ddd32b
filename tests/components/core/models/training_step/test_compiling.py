import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines import device
from tpu_components.core.models.lookup import Brought, build_model
from tpu_components.core.models.training_step.compiling import compile_model, used_hyperparameters
from tpu_components.core.models.training_step.optimizers import learning_rate_at, scale_learning_rate
from tpu_components.train_model import TrainParams, train_model


@pytest.mark.parametrize(
    ("scaling", "optimizer", "expected"),
    [
        ("auto", "sgd", 0.8),
        ("auto", "adam", 0.1 * 8**0.5),
        ("auto", "adamw", 0.1 * 8**0.5),
        ("linear", "adam", 0.8),
        ("sqrt", "sgd", 0.1 * 8**0.5),
        ("none", "sgd", 0.1),
    ],
)
def test_learning_rate_grows_with_the_replicas_as_the_optimizer_wants(scaling, optimizer, expected):
    assert scale_learning_rate(0.1, 8, scaling, optimizer) == pytest.approx(expected, rel=1e-12)
    assert scale_learning_rate(0.1, 1, scaling, optimizer) == 0.1


def test_the_rate_of_an_epoch_is_that_of_its_last_step(tiny, digits_records, tmp_path):
    """Three steps an epoch: six of warm-up, then a cosine over six, which would be zero at the thirteenth step."""
    params = replace(
        tiny, epochs=4, warmup_epochs=2, learning_rate_schedule="cosine", batch_size_per_replica=512, optimizer="sgd"
    )
    shares = [2 / 6, 5 / 6, (1 + math.cos(math.pi * 2 / 6)) / 2, (1 + math.cos(math.pi * 5 / 6)) / 2]
    train_model(params, digits_records, tmp_path / "model")
    history = [json.loads(line) for line in (tmp_path / "model" / "history.jsonl").read_text().splitlines()]
    expected = [share * params.learning_rate for share in shares]
    assert [entry["learning_rate"] for entry in history] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("warmup_epochs", "shares"),
    [
        (0, [1, 1, 1, 1]),
        (1, [0, 2 / 3, 1, 1]),
        (1.5, [0, 2 / 4, 3 / 4, 1]),  # Steps are whole.
        (99, [0, 2 / 8, 3 / 8, 1]),  # The last step has the peak.
    ],
)
def test_constant_stays_at_the_peak_after_warmup(tiny, warmup_epochs, shares):
    device.prepare("tensorflow", "cpu", 1, "float32")
    interface = Interface(ImageInput((8, 8, 1), "raw"), 10)
    model = build_model(tiny.model, interface, {})
    compile_model(model, interface, replace(tiny, epochs=3, warmup_epochs=warmup_epochs), 1, 3, jit_compile=False)
    rates = [learning_rate_at(model.optimizer, step) for step in (0, 2, 3, 8)]
    assert rates == pytest.approx([tiny.learning_rate * share for share in shares], rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "changes", "expected"),
    [
        (None, {}, ("adam", 0.001, "constant")),
        (None, {"optimizer": "AdamW", "learning_rate": 0.02}, ("adamw", 0.02, "constant")),
        (lambda keras: keras.optimizers.RMSprop(0.05), {}, ("rmsprop", 0.05, "constant")),
        (lambda keras: keras.optimizers.RMSprop(0.05), {"learning_rate": 0.02}, ("adam", 0.02, "constant")),
        (
            lambda keras: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.3, 5, 0.9)),
            {},
            ("sgd", 0.3, "exponential_decay"),
        ),
        (
            lambda keras: keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(0.0, 20, warmup_target=0.4, warmup_steps=10)
            ),
            {},
            ("sgd", 0.4, "cosine_decay"),
        ),
        (
            lambda keras: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.07)),
            {},
            ("adam", 0.07, "constant"),
        ),
    ],
)
def test_used_hyperparameters_are_those_of_the_optimizer_that_trains(optimizer, changes, expected, tiny):
    import keras

    device.prepare("tensorflow", "cpu", 1, "float32")
    interface = Interface(ImageInput((8, 8, 1), "raw"), 10)
    model = build_model(tiny.model, interface, {})
    if optimizer is not None:
        vars(model)["brought"] = Brought(optimizer=optimizer(keras))
    used = used_hyperparameters(model, interface, TrainParams(tiny.model, epochs=4, **changes), steps_per_epoch=10)
    name, rate, schedule = expected
    assert (used["optimizer"], used["learning_rate"]) == (name, pytest.approx(rate))
    assert used.get("learning_rate_schedule", "constant") == schedule
    assert used["loss"] == "sparse_categorical_crossentropy"


@pytest.mark.parametrize(
    ("task", "size", "activation", "changes", "loss"),
    [
        ("classification", 10, "softmax", {}, "sparse_categorical_crossentropy"),
        ("classification", 10, "softmax", {"label_smoothing": 0.1}, "categorical_crossentropy"),
        ("multi_label", 10, "sigmoid", {}, "binary_crossentropy"),
        ("regression", 1, "linear", {}, "standardised_squared_error"),
        ("regression", 1, "linear", {"loss": "huber"}, "huber"),
    ],
)
def test_the_loss_of_every_task_has_a_name_that_json_can_hold(task, size, activation, changes, loss):
    import keras

    device.prepare("tensorflow", "cpu", 1, "float32")
    statistics = {"mean": (1.0,), "std": (2.0,)} if task == "regression" else {}
    interface = Interface(ImageInput((8, 8, 1), "raw"), size, task, **statistics)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(size, activation=activation)]
    used = used_hyperparameters(keras.Sequential(layers), interface, TrainParams("m", **changes), steps_per_epoch=10)
    assert json.loads(json.dumps(used["loss"])) == loss


def test_a_model_that_computes_with_bytes_is_told_to_rescale(quick):
    import keras

    device.prepare("tensorflow", "cpu", 1, "float32")
    layers = [keras.Input((8, 8, 1), dtype="uint8"), keras.layers.Conv2D(2, 3), keras.layers.Flatten()]
    layers.append(keras.layers.Dense(10))
    model = keras.Sequential(layers)
    with pytest.raises(
        InputError,
        match=r"step fails on examples of uint8\[8, 8, 1\]: .* DataType uint8 .*Rescaling\(1 / 255\)\.",
    ):
        compile_model(model, Interface(ImageInput((8, 8, 1), "raw"), 10), quick, 1, 10, jit_compile=False)


@pytest.mark.parametrize("added_by", ["add_loss", "activity_regularizer"])
def test_a_loss_that_a_layer_adds_in_bfloat16_trains_in_float32(quick, added_by):
    import keras

    class Penalized(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    device.prepare("tensorflow", "cpu", 1, "mixed_bfloat16")
    try:
        regularized = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L2(1.0))
        penalized = Penalized() if added_by == "add_loss" else regularized
        last = keras.layers.Dense(10, activation="softmax", dtype="float32")
        layers = [keras.Input((8, 8, 1), dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
        model = keras.Sequential([*layers, penalized, last])
        compile_model(model, Interface(ImageInput((8, 8, 1), "raw"), 10), quick, 1, 10, jit_compile=False)
        logs = model.train_on_batch(np.full((4, 8, 8, 1), 255, np.uint8), np.zeros(4, np.int32), return_dict=True)
    finally:
        device.prepare("tensorflow", "cpu", 1, "float32")
    assert logs["loss"] > 1


def _compile(tiny, dtype, optimizer):
    device.prepare("tensorflow", "cpu", 1, "float32")
    import keras

    dense = keras.layers.Dense(10, activation="softmax", dtype=dtype, name="logits")
    layers = [keras.Input((8, 8, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), dense]
    model = keras.Sequential(layers)
    interface = Interface(ImageInput((8, 8, 1), "raw"), 10)
    compile_model(model, interface, replace(tiny, optimizer=optimizer), 1, steps_per_epoch=4, jit_compile=False)


@pytest.mark.parametrize(
    ("optimizer", "effect"), [("adam", "does not change"), ("lamb", "does not change"), ("nadam", "become NaN")]
)
def test_an_optimizer_that_cannot_update_bfloat16_weights_is_refused(tiny, optimizer, effect):
    message = (
        rf"(?i:{optimizer}) cannot update weights of bfloat16, such as '\S*logits/\w+': .*{effect}.*mixed_bfloat16"
    )
    with pytest.raises(InputError, match=message):
        _compile(tiny, "bfloat16", optimizer)


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [("sgd", "bfloat16"), ("adafactor", "bfloat16"), ("adam", "mixed_bfloat16"), ("adam", "float16")],
)
def test_weights_that_the_optimizer_can_update_are_trained(tiny, optimizer, dtype):
    _compile(tiny, dtype, optimizer)

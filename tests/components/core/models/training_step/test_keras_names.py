"""Claims about what Keras names: the configuration names it too, and the training does what Keras's own `fit` does."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.evidence.oracles import keras_names
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import MULTI_LABEL, ImageInput, Interface
from tpu_components.core.machines import device
from tpu_components.core.models.training_step.compiling import compile_model
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.keras_names import class_of, offered_names
from tpu_components.core.models.training_step.losses import weigh_classes
from tpu_components.core.models.training_step.optimizers import in_steps, learning_rate_at

INTERFACE = Interface(ImageInput((4, 4, 1), "raw"), 3)


def compiled(**settings):
    device.prepare("tensorflow", "cpu", 1, "float32")
    model = keras_names.build()
    compile_model(model, INTERFACE, TrainParams("m", epochs=2, **settings), 1, keras_names.STEPS, jit_compile=False)
    return model


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("tensorflow", marks=pytest.mark.heavy),  # Trains with every optimizer of Keras: 25 s.
        pytest.param("jax", marks=pytest.mark.slow),  # Compiles a step for each: 40 s.
    ],
)
def test_every_optimizer_schedule_and_loss_trains_as_in_fit_of_keras_or_is_refused(backend):
    words = [sys.executable, "-m", keras_names.__name__, backend]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert {name for name, fact in said["optimizer"].items() if isinstance(fact, str)} == {
        "lossscaleoptimizer",
        "multioptimizer",
    }
    assert {name for name, fact in said["loss"].items() if isinstance(fact, str)} == {
        "ctc",
        "circle",
        "dice",
        "tversky",
    }
    for kind, facts in said.items():
        refused = {name for name, fact in facts.items() if isinstance(fact, str)}
        assert not refused & {name.replace("_", "") for name in offered_names(kind)}
    assert len(said["optimizer"]) >= 16
    assert len(said["loss"]) >= 22
    assert len(said["learning_rate_schedule"]) >= 6
    for kind, facts in said.items():
        for name, furthest in facts.items():
            assert isinstance(furthest, str) or furthest < 1e-6, (kind, name)


def test_an_optimizer_of_keras_trains_as_in_fit_of_keras():
    device.prepare("tensorflow", "cpu", 1, "float32")
    assert keras_names.compare("optimizer", "lion", is_jax=False) < 1e-6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"optimizer": "lyon"},
            r"Keras has no optimizer 'lyon': expected one of auto, adadelta, .* Did you mean 'lion'\?",
        ),
        (
            {"optimizer": "lion", "optimizer_parameters": {"beta1": 1}},
            r"optimizer 'lion' has no parameter 'beta1'. Its parameters are beta_1, .* Did you mean 'beta_1'\?",
        ),
        ({"optimizer_parameters": {"learning_rate": 1}}, "has no parameter 'learning_rate'"),
        (
            {"optimizer": "sgd", "optimizer_parameters": {"momentum": 3}},
            r"Cannot create the optimizer 'sgd'.*`momentum` must be",
        ),
        ({"optimizer": "LossScaleOptimizer"}, "Cannot create the optimizer .*missing.*inner_optimizer"),
        ({"learning_rate_schedule": "expo"}, "Keras has no learning_rate_schedule 'expo'"),
        ({"schedule_parameters": {"alpha": 1}}, "learning_rate_schedule=constant has no parameters"),
        (
            {"learning_rate_schedule": "exponential_decay"},
            "Cannot create the learning_rate_schedule .*missing.*decay_rate",
        ),
        ({"loss": "dice"}, r"loss=dice does not fit the data.* the shape \(\) instead of one number for each of 4"),
        (
            {"loss": "sparse_categorical_crossentropy", "label_smoothing": 0.1},
            "expects the number of a class as target, but label_smoothing",
        ),
    ],
)
def test_what_keras_does_not_have_or_refuses_is_a_mistake_in_words(settings, said):
    with pytest.raises(InputError, match=said):
        compiled(**settings)


@pytest.mark.parametrize("num_classes", [2, 3, 4, 10])
def test_a_loss_that_compares_examples_with_each_other_is_refused(num_classes):
    device.prepare("tensorflow", "cpu", 1, "float32")
    interface = Interface(INTERFACE.input, num_classes)
    with pytest.raises(InputError, match="loss=circle does not fit the data"):
        compile_model(keras_names.build(), interface, TrainParams("m", loss="circle"), 1, 5, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "sparse_categorical_crossentropy"}, "expects the number of a class"),
        ({"metrics": {"sparse_categorical_crossentropy": {}}}, r"The metric .* expects the number of a class"),
    ],
)
def test_what_takes_class_numbers_is_not_for_several_labels(settings, said):
    device.prepare("tensorflow", "cpu", 1, "float32")
    interface = replace(INTERFACE, task_name=MULTI_LABEL)
    with pytest.raises(InputError, match=said):
        compile_model(keras_names.build(), interface, TrainParams("m", **settings), 1, 5, False)


@pytest.mark.parametrize(
    ("kind", "typo", "meant"),
    [
        ("learning_rate_schedule", "cosin", "cosine"),
        ("learning_rate_schedule", "constat", "constant"),
        ("learning_rate_schedule", "cosine_deca", "cosine_decay"),
        ("optimizer", "AdamWW", "adamw"),
        ("optimizer", "atuo", "auto"),
        ("loss", "categorical_focal_crossentropi", "categorical_focal_crossentropy"),
        ("metric", "f1scor", "f1_score"),
        ("callback", "reduce_lr_on_plato", "reduce_lr_on_plateau"),
    ],
)
def test_a_typo_is_corrected_to_the_name_that_a_configuration_writes(kind, typo, meant):
    with pytest.raises(InputError, match=rf"Did you mean '{meant}'\?"):
        class_of(kind, typo)


@pytest.mark.parametrize("kind", ["optimizer", "learning_rate_schedule", "loss", "metric", "callback"])
def test_every_offered_name_is_found_and_none_is_refused(kind):
    offered = offered_names(kind)
    assert len(set(offered)) == len(offered) > 5
    for name in set(offered) - {"auto", "constant", "cosine"}:
        assert class_of(kind, name)
    refused = {"loss_scale_optimizer", "multi_optimizer", "ctc", "circle", "dice", "tversky", "mean_metric_wrapper"}
    assert not refused & set(offered)


def test_names_are_taken_in_any_spelling():
    assert class_of("optimizer", "adam_w") is class_of("optimizer", "AdamW")
    assert class_of("loss", "binary_focal_crossentropy").__name__ == "BinaryFocalCrossentropy"
    assert class_of("loss", "mse") is class_of("loss", "mean_squared_error")
    assert class_of("metric", "MAE") is class_of("metric", "MeanAbsoluteError")


def test_weight_decay_of_the_optimizer_is_that_of_the_training():
    assert compiled(optimizer="lion", weight_decay=0.1).optimizer.weight_decay == 0.1
    assert compiled(optimizer="muon").optimizer.adam_weight_decay == 0.0
    assert compiled(optimizer="lion", optimizer_parameters={"weight_decay": 0.2}).optimizer.weight_decay == 0.2
    with pytest.raises(InputError, match="weight_decay is set twice"):
        TrainParams("m", optimizer="lion", weight_decay=0.1, optimizer_parameters={"weight_decay": 0.2})


def test_a_schedule_rises_for_the_warmup_and_is_then_keras_own():
    optimizer = compiled(
        learning_rate=0.1,
        learning_rate_schedule="exponential_decay",
        schedule_parameters={"decay_rate": 0.5, "decay_epochs": 0.5},
        warmup_epochs=0.2,
    ).optimizer
    rates = [learning_rate_at(optimizer, step) for step in (0, 1, 2, 2 + 5, 2 + 10)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.05, 0.025])


@pytest.mark.parametrize("every", [1, 4])
def test_updates_have_the_rate_of_the_schedule_until_the_training_ends(every):
    """An update of four steps has the rate of the fourth. The whole schedule ran in a quarter of the training."""
    model = compiled(
        optimizer="sgd",
        learning_rate=0.1,
        learning_rate_schedule="cosine",
        warmup_epochs=0.4,
        optimizer_parameters={"gradient_accumulation_steps": every, "momentum": 0.0}
        if every > 1
        else {"momentum": 0.0},
    )
    weight = model.trainable_variables[0]
    gradients = [np.ones(variable.shape, np.float32) for variable in model.trainable_variables]
    changes = []
    for step in range(2 * keras_names.STEPS):
        before = np.array(weight)
        model.optimizer.apply(gradients)
        changes.append(float((before - np.array(weight)).mean()))
        rate = learning_rate_at(model.optimizer, step)
        assert changes[-1] == pytest.approx(0 if (step + 1) % every else rate, abs=1e-6)
    assert np.count_nonzero(np.array(changes) > 1e-4) >= 2 * keras_names.STEPS // every - 2


def test_boundaries_of_a_schedule_are_epochs_of_the_training_also_after_a_warmup():
    model = compiled(
        learning_rate=0.1,
        learning_rate_schedule="piecewise_constant_decay",
        schedule_parameters={"boundary_epochs": [1], "values": [0.1, 0.01]},
        warmup_epochs=0.4,
    )
    rates = [learning_rate_at(model.optimizer, step) for step in (2, 4, keras_names.STEPS, keras_names.STEPS + 1)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.01])


def test_gradients_of_several_steps_on_several_replicas_are_refused_with_tensorflow():
    with pytest.raises(InputError, match=r"with backend=tensorflow and 2 replicas. Set training.backend=jax"):
        compiled(num_replicas=2, optimizer_parameters={"gradient_accumulation_steps": 2})


def test_a_warmup_of_kerass_schedule_is_refused():
    with pytest.raises(InputError, match=r"warmup_target is not supported in schedule_parameters. Set training.warmup"):
        compiled(learning_rate_schedule="cosine", schedule_parameters={"warmup_target": 0.1, "warmup_steps": 2})


def test_values_of_a_schedule_are_for_one_replica_as_the_learning_rate_is():
    parameters = {"boundary_epochs": [1], "values": [0.1, 0.01]}
    model = keras_names.build()
    settings = TrainParams(
        "m",
        optimizer="sgd",
        epochs=2,
        learning_rate_schedule="piecewise_constant_decay",
        schedule_parameters=parameters,
    )
    compile_model(model, INTERFACE, settings, 4, 10, jit_compile=False)
    assert [learning_rate_at(model.optimizer, step) for step in (0, 11)] == pytest.approx([0.4, 0.04])


def test_epochs_of_a_schedule_become_steps():
    assert in_steps({"first_decay_epochs": 1.5, "t_mul": 2.0}, 10) == {"first_decay_steps": 15, "t_mul": 2.0}


def test_classes_weigh_as_they_are_asked_to():
    names, counts = ["rare", "none", "common"], [5, 0, 25]
    assert weigh_classes(TrainParams("m"), names, counts) == ()
    assert weigh_classes(TrainParams("m", balance_classes=True), names, counts) == (2.0, 1.0, 0.4)
    both = TrainParams("m", balance_classes=True, class_weights={"common": 0.5})
    assert weigh_classes(both, names, counts) == (2.0, 1.0, 0.2)
    with pytest.raises(InputError, match=r"contains 'rar', which is not a class .* Did you mean 'rare'\?"):
        weigh_classes(TrainParams("m", class_weights={"rar": 2.0}), names, counts)


@pytest.mark.parametrize("settings", [{"balance_classes": True}, {"class_weights": {"c": 2.0}}])
def test_weights_of_classes_are_refused_for_another_task(settings):
    assert weigh_classes(TrainParams("m", **settings), ["a", "b"], counts=()) == ()
    device.prepare("tensorflow", "cpu", 1, "float32")
    interface = replace(INTERFACE, task_name=MULTI_LABEL)
    with pytest.raises(
        InputError, match=r"balance_classes apply only to classification.*Received: multi_label\. Remove"
    ):
        compile_model(keras_names.build(), interface, TrainParams("m", **settings), 1, 5, jit_compile=False)


@pytest.mark.parametrize("loss", ["auto", "categorical_focal_crossentropy"])
def test_a_class_of_weight_three_counts_as_if_its_examples_stood_there_three_times(loss):
    device.prepare("tensorflow", "cpu", 1, "float32")
    images, labels = keras_names.examples()
    repeated = np.concatenate([np.arange(len(labels)), *[np.flatnonzero(labels == 2)] * 2])
    sums = []
    for table, some in (((1.0, 1.0, 3.0), np.arange(len(labels))), ((), repeated)):
        model = keras_names.build()
        settings = TrainParams("m", loss=loss, class_weights={"c": 3.0} if table else {})
        compile_model(model, INTERFACE, settings, 1, 10, jit_compile=False, class_weights=table)
        logs = model.train_on_batch(images[some], labels[some], np.ones(len(some), np.float32), return_dict=True)
        sums.append(len(some) * logs["loss"])
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)


def test_softened_labels_weigh_as_their_class():
    device.prepare("tensorflow", "cpu", 1, "float32")
    model, (images, labels) = keras_names.build(), keras_names.examples()
    outputs, targets = model.predict(images, verbose=0), 0.9 * np.eye(3)[labels] + 0.1 / 3
    settings = TrainParams("m", label_smoothing=0.1, class_weights={"c": 3.0})
    compile_model(model, INTERFACE, settings, 1, 10, jit_compile=False, class_weights=(1.0, 1.0, 3.0))
    weights = np.resize([1.0, 0.0, 0.5], len(labels)).astype(np.float32)
    logs = model.train_on_batch(images, labels, weights, return_dict=True)
    wanted = weights * np.array([1.0, 1.0, 3.0])[labels] * -(targets * np.log(outputs)).sum(axis=1)
    assert logs["loss"] == pytest.approx(wanted.mean(), rel=1e-5)
    # Metrics count every example of a weight above 0 alike.
    right = (outputs.argmax(axis=1) == labels)[weights > 0]
    assert logs["accuracy"] == pytest.approx(right.mean(), rel=1e-5)

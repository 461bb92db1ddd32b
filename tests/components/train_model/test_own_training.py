"""Claims about what a model brings for its training, and about metrics and callbacks that Keras names."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest

from tests.components.train_model.interrupting import continue_training, train_alone, train_until_sigterm
from tests.components.train_model.weights import assert_equal_models, history_of, weights_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import LAST_WEIGHTS_FILE, Manifest, learning_rates
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.core.models.training_step.hyperparameters import Stage
from tpu_components.core.models.training_step.optimizers import copy_optimizer
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.train_model import TrainParams, train_model

_OWN = """
import keras
from keras import ops

@keras.saving.register_keras_serializable()
def sharpness(y_true, y_pred):
    return ops.max(y_pred, axis=-1)

def loss(y_true, y_pred):
    return 2 * keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

def metrics():
    sharp = keras.metrics.MeanMetricWrapper(sharpness, name="sharpness")
    return [sharp, keras.metrics.F1Score(average="macro", name="f1")]

class Halve(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        assert {"val_loss", "val_f1", "accuracy"} <= logs.keys()
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate / 2

def callbacks():
    return [Halve()]

def build_model(image_shape, num_classes, compiled=True):
    inputs = keras.Input(image_shape, dtype="uint8")
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(num_classes)(body))
    if compiled:
        model.compile(keras.optimizers.Lion(0.004), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.fixture
def own(tiny, tmp_path):
    """A training of a model that brings everything."""
    (path := tmp_path / "own.py").write_text(_OWN)
    return replace(tiny, model=str(path), learning_rate=0.001, metrics={"sharpness": {}, "top": {}}, epochs=3)


def test_a_model_keeps_what_it_brings_and_the_gate_asks_for_its_metrics(own, digits_records, tmp_path, capfd):
    params = replace(own, metrics={"sharpness": {}, "top_k_categorical_accuracy": {"k": 2}}, monitor="val_f1")
    result = train_model(params, digits_records, tmp_path / "model")
    said = capfd.readouterr().err
    assert "training uses the model's own optimizer Lion, loss loss, metrics sharpness, f1, callbacks Halve" in said
    assert "Its outputs are treated as logits, and softmax is added" in said
    history = history_of(tmp_path / "model")
    validation = records.load_split(digits_records, Manifest.load(digits_records), "validation")
    assert [entry["learning_rate"] for entry in history] == pytest.approx([0.004, 0.002, 0.001])
    assert result.judged_by == "validation_f1"
    assert result.best_epoch == 1 + int(np.argmax([entry["validation_f1"] for entry in history]))
    # Both losses are the model's own: twice the cross-entropy.
    probabilities = predict(load_trained_model(tmp_path / "model", LAST_WEIGHTS_FILE), validation.inputs, 256)
    right = probabilities[np.arange(len(validation.labels)), validation.labels]
    cross_entropy = -np.log(right.clip(1e-7)).mean()
    assert history[-1]["validation_loss"] == pytest.approx(2 * cross_entropy, rel=1e-4)
    bounds = EvaluateParams(minimum={"f1": 0.5, "sharpness": 0.2, "top_k_categorical_accuracy": 0.6})
    evaluation = evaluate_model(bounds, digits_records, tmp_path / "model", tmp_path / "evaluation")
    assert evaluation.promote, evaluation.reasons
    assert evaluation.metrics["f1"] == pytest.approx(evaluation.metrics["macro_f1"], abs=1e-5)
    assert evaluation.metrics["top_k_categorical_accuracy"] > evaluation.metrics["accuracy"]
    written = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    low, high = written["intervals"]["f1"]
    own_low, own_high = written["intervals"]["macro_f1"]
    assert high - low == pytest.approx(own_high - own_low, rel=0.6)
    with pytest.raises(InputError, match=r"'recal' in minimum is not a metric of the task classification.*f1"):
        evaluate_model(EvaluateParams(minimum={"recal": 1}), digits_records, tmp_path / "model", tmp_path / "no")
    with pytest.raises(InputError, match="f1 cannot have a maximum"):
        evaluate_model(EvaluateParams(maximum={"f1": 1}), digits_records, tmp_path / "model", tmp_path / "no")
    with pytest.raises(InputError, match="Cannot use sharpness in max_regression"):
        evaluate_model(
            EvaluateParams(max_regression={"sharpness": 0}), digits_records, tmp_path / "model", tmp_path / "no"
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": {"f1_scor": {}}}, r"Keras has no metric 'f1_scor': .* Did you mean 'f1_score'\?"),
        (
            {"metrics": {"f1_score": {"mean": 1}}},
            "metric 'f1_score' has no parameter 'mean'. Its parameters are average",
        ),
        ({"metrics": {"f1_score": {}}}, "'f1_score' does not fit the data.*its result is not a single number"),
        ({"metrics": {}, "monitor": "acuracy"}, r"monitor='acuracy': expected one of .* Did you mean 'accuracy'\?"),
        ({"metrics": {}, "monitor": "sharpness"}, "monitor='sharpness'"),
        ({"metrics": {}, "callbacks": {"early_stoping": {}}}, "Keras has no callback 'early_stoping'"),
        (
            {"metrics": {}, "callbacks": {"early_stopping": {"monitor": "val_f2"}}},
            "EarlyStopping monitors 'val_f2', which is not measured",
        ),
        (
            {"metrics": {}, "callbacks": {"reduce_lr_on_plateau": {}}, "learning_rate_schedule": "cosine"},
            "ReduceLROnPlateau changes the learning rate, so it cannot be combined with a schedule",
        ),
    ],
)
def test_a_metric_or_callback_that_cannot_be_used_is_refused_before_training(
    own, digits_records, tmp_path, changes, said
):
    with pytest.raises(InputError, match=said):
        train_model(replace(own, **changes), digits_records, tmp_path / "model")
    assert not (tmp_path / "model").exists()


_COMPILED = """
import keras

def build_model(image_shape, num_classes):
    inputs = keras.Input(image_shape, dtype="uint8")
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(num_classes, activation="softmax", name="last")(body))
    model.compile(keras.optimizers.SGD({rate}, momentum=0.8, weight_decay=0.01), "categorical_focal_crossentropy")
    return model
"""


@pytest.fixture
def compiled(tiny, tmp_path):
    """Gives a training, all of whose settings of the optimizer are defaults, of a model that is compiled at a rate."""

    def at(rate, **changes):
        (path := tmp_path / "compiled.py").write_text(_COMPILED.format(rate=rate))
        return TrainParams(
            str(path), batch_size_per_replica=tiny.batch_size_per_replica, backend="tensorflow", **changes
        )

    return at


def test_model_and_report_show_what_the_model_is_compiled_with(compiled, digits_records, tmp_path):
    train_model(compiled(0.05, epochs=2), digits_records, tmp_path / "model")
    training = json.loads((tmp_path / "model" / "model.json").read_text())["training"]
    shown = {
        "optimizer": "sgd",
        "optimizer_parameters": {"momentum": 0.8},
        "learning_rate": 0.05,
        "learning_rate_scaling": "none",
        "learning_rate_schedule": "constant",
        "weight_decay": 0.01,
        "loss": "categorical_focal_crossentropy",
    }
    assert {name: training[name] for name in shown} == shown
    assert [entry["learning_rate"] for entry in history_of(tmp_path / "model")] == pytest.approx([0.05, 0.05])
    evaluate_model(EvaluateParams(), digits_records, tmp_path / "model", tmp_path / "evaluation")
    report = (tmp_path / "evaluation" / "report.html").read_text()
    assert "learning rate 0.05, batch" in report
    assert "learning rate 0.001" not in report


def test_a_stage_says_the_rate_and_the_optimizer_that_it_trains_with(compiled, digits_records, tmp_path, capfd):
    """A stage with a rate of its own replaces the model's optimizer."""
    stages = (Stage(1), Stage(1, learning_rate=1e-5))
    train_model(compiled(0.05, epochs=2, stages=stages), digits_records, tmp_path / "model")
    said = capfd.readouterr().err
    assert "stage 1/2: 1 epochs, learning rate 0.05, nothing frozen" in said
    assert "stage 2/2: 1 epochs, learning rate 1e-05, nothing frozen" in said
    training = json.loads((tmp_path / "model" / "model.json").read_text())["training"]
    assert training["optimizer"] == "sgd then adam"
    assert [stage["learning_rate"] for stage in training["stages"]] == [0.05, 1e-5]
    assert learning_rates(training) == "0.05 then 1e-05"


def test_a_training_that_diverges_names_the_rate_that_it_used(compiled, digits_records, tmp_path):
    with pytest.raises(
        InputError, match=r"optimizer that the model is compiled with \(1e\+30\), set training.optimizer"
    ):
        train_model(compiled(1e30, epochs=2), digits_records, tmp_path / "model")


def test_what_the_configuration_names_replaces_what_the_model_is_compiled_with(own, digits_records, tmp_path, capfd):
    params = replace(own, metrics={}, epochs=1, optimizer="sgd", loss="poisson")
    train_model(params, digits_records, tmp_path / "model")
    said = capfd.readouterr().err
    assert (
        "own metrics sharpness, f1, callbacks Halve; the configuration (optimizer, loss) replaces its optimizer Lion, "
        "loss loss" in said
    )


def test_callbacks_reduce_the_rate_and_stop_the_training_and_resume_in_their_state(
    tiny, digits_records, tmp_path, capfd
):
    params = replace(
        tiny,
        epochs=6,
        batch_size_per_replica=128,
        stages=(Stage(2, learning_rate=0.001), Stage(4, learning_rate=0.1)),
        callbacks={
            "reduce_lr_on_plateau": {
                "monitor": "val_accuracy",
                "min_delta": 1.0,
                "patience": 2,
                "factor": 0.5,
                "min_lr": 0.001,  # The rate of the first stage, in which there is nothing to reduce.
            },
            "early_stopping": {"monitor": "val_loss", "min_delta": 100.0, "patience": 4},
        },
    )
    result = train_alone(params, digits_records, tmp_path / "whole")
    rates = [entry["learning_rate"] for entry in history_of(tmp_path / "whole")]
    assert rates == pytest.approx([0.001, 0.001, 0.1, 0.05, 0.05])
    assert result.epochs == 5
    assert train_until_sigterm(params, digits_records, tmp_path / "ended", looks=10 * 3 + 5) == (3, 5)
    continue_training(params, digits_records, tmp_path / "ended", capfd)
    assert_equal_models(tmp_path / "whole", tmp_path / "ended")


def test_a_keras_file_keeps_its_optimizer_and_trains_as_in_fit_of_keras(tiny, digits_records, tmp_path, capfd):
    import keras

    from tpu_components.core.examples import records
    from tpu_components.core.examples.artifacts import Manifest

    inputs = keras.Input((8, 8, 1))
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(body))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.8), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(path := tmp_path / "own.keras")
    params = replace(tiny, model=str(path), learning_rate=0.001, epochs=1, batch_size_per_replica=1259)
    train_model(params, digits_records, tmp_path / "model")
    assert "own optimizer SGD, loss sparse_categorical_crossentropy" in capfd.readouterr().err
    split = records.load_split(digits_records, Manifest.load(digits_records), "train")
    model.fit(split.inputs, split.labels, batch_size=1259, epochs=1, verbose=0)
    received = weights_of(tmp_path / "model")
    assert not any(name.startswith("optimizer") for name in received), "the weights, once"
    for expected, name in zip(model.get_weights(), sorted(received), strict=True):
        assert np.allclose(received[name], expected, atol=1e-6)


_BINARY = """
import keras

def build_model(image_shape, num_classes, activation="sigmoid", loss="binary_crossentropy", measured=True):
    inputs = keras.Input(image_shape, dtype="uint8")
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, activation=activation, kernel_initializer="zeros")(body))
    if loss == "from_logits":
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
    metrics = ["accuracy", "binary_accuracy", keras.metrics.Precision(name="precision"), keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.SGD(0.5, momentum=0.8), loss, metrics=metrics if measured else None)
    return model
"""


@pytest.fixture(scope="module")
def odd_digits(tmp_path_factory):
    """1,259 digits to train on, in the classes even and odd."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    folder = tmp_path_factory.mktemp("odd")
    np.savez(folder / "odd.npz", x=digits.images.astype(np.uint8), y=digits.target % 2)
    write_records(WriteParams(f"npz:{folder / 'odd.npz'}", num_workers=1), folder / "records")
    return folder / "records"


@pytest.fixture(scope="module")
def binary_losses(odd_digits):
    """The number of examples, and the loss of two epochs of all of them in `fit` of Keras, with its own loss."""
    import keras

    from tpu_components.core.examples import records
    from tpu_components.core.examples.artifacts import Manifest

    split = records.load_split(odd_digits, Manifest.load(odd_digits), "train")
    inputs = keras.Input((8, 8, 1))
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    last = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="zeros")
    model = keras.Model(inputs, last(body))
    model.compile(keras.optimizers.SGD(0.5, momentum=0.8), "binary_crossentropy")
    fitted = model.fit(split.inputs, split.labels, batch_size=len(split.labels), epochs=2, verbose=0)
    return len(split.labels), fitted.history["loss"]


@pytest.mark.parametrize(
    ("activation", "loss"),
    [
        ("sigmoid", "binary_crossentropy"),
        (None, "from_logits"),
        # For several classes: of one output they are 0 or NaN in Keras.
        ("sigmoid", "sparse_categorical_crossentropy"),
        ("sigmoid", "categorical_crossentropy"),
    ],
)
def test_a_model_with_one_output_trains_as_in_fit_of_keras_and_is_judged_by_its_second_class(
    tiny, odd_digits, binary_losses, tmp_path, activation, loss
):
    from sklearn.metrics import precision_score, roc_auc_score

    from tpu_components.core.examples import records
    from tpu_components.core.examples.artifacts import Manifest

    (path := tmp_path / "binary.py").write_text(_BINARY)
    num_examples, losses = binary_losses
    measured = activation is None or loss == "binary_crossentropy"  # The metrics do not depend on the loss.
    params = replace(
        tiny,
        model=str(path),
        model_parameters={"activation": activation, "loss": loss, "measured": measured},
        epochs=2,
        learning_rate=0.001,  # The default, so that the model keeps its own optimizer.
        metrics={"f1_score": {"average": "macro"}} if measured else {},
        batch_size_per_replica=num_examples,
    )
    train_model(params, odd_digits, tmp_path / "model")
    assert [entry["loss"] for entry in history_of(tmp_path / "model")] == pytest.approx(losses, rel=1e-4)

    result = evaluate_model(EvaluateParams(), odd_digits, tmp_path / "model", tmp_path / "evaluation")
    test = records.load_split(odd_digits, Manifest.load(odd_digits), "test")
    with np.load(tmp_path / "evaluation" / "predictions.npz") as predictions:
        probabilities = predictions["probabilities"]
    assert probabilities.shape == (len(test.labels), 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    second = probabilities[:, 1]
    assert result.metrics["accuracy"] == pytest.approx(np.mean((second > 0.5) == test.labels))
    if measured:
        assert result.metrics["f1_score"] == pytest.approx(result.metrics["macro_f1"])
        assert result.metrics["binary_accuracy"] == pytest.approx(result.metrics["accuracy"])
        assert result.metrics["precision"] == pytest.approx(precision_score(test.labels, second > 0.5))
        assert result.metrics["auc"] == pytest.approx(roc_auc_score(test.labels, second), abs=0.01)


def test_metrics_of_a_model_that_returns_logits_get_probabilities(tiny, odd_digits, tmp_path):
    # Keras recommends a threshold of 0, or from_logits, to the metrics of such a model.
    (path := tmp_path / "binary.py").write_text(
        _BINARY.replace(
            'metrics = ["accuracy", "binary_accuracy", keras.metrics.Precision(name="precision")',
            "m = keras.metrics\n"
            '    metrics = [m.BinaryAccuracy(threshold=0), m.Precision(thresholds=0, name="precision"), '
            'm.Recall(thresholds=0.5, name="recall"), m.BinaryCrossentropy(from_logits=True)',
        )
    )
    parameters = {"activation": None, "loss": "from_logits"}
    params = replace(tiny, model=str(path), model_parameters=parameters, epochs=2, learning_rate=0.001)
    train_model(params, odd_digits, tmp_path / "model")
    metrics = evaluate_model(EvaluateParams(), odd_digits, tmp_path / "model", tmp_path / "evaluation").metrics
    with np.load(tmp_path / "evaluation" / "predictions.npz") as predictions:
        labels, positive = predictions["labels"] == 1, predictions["probabilities"][:, 1] > 0.5
    assert (
        metrics["binary_accuracy"] == pytest.approx(metrics["accuracy"]) == pytest.approx(np.mean(positive == labels))
    )
    assert metrics["precision"] == pytest.approx(np.mean(labels[positive]))
    assert metrics["recall"] == pytest.approx(np.mean(positive[labels]))
    assert metrics["binary_crossentropy"] == pytest.approx(metrics["loss"], rel=1e-4)


_STEP = """
import keras

@keras.saving.register_keras_serializable()
class Own(keras.Model):
    def train_step(self, {arguments}):
        {body}

def build_model(image_shape, num_classes):
    inputs = keras.Input(image_shape, dtype="uint8")
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    return Own(inputs, keras.layers.Dense(num_classes, activation="softmax")(body))
"""
_STEPS = {
    "tensorflow": ("data", "return {'loss': super().train_step(data)['loss'] * 1}"),
    "jax": ("state, data", "return super().train_step(state, data)"),
    "lost": ("data", "return {'los': super().train_step(data)['loss']}"),
}


def test_a_training_step_of_the_models_own_is_run_or_refused_by_its_backend(tiny, digits_records, tmp_path, capfd):
    for name, (arguments, body) in _STEPS.items():
        (tmp_path / f"{name}.py").write_text(_STEP.format(arguments=arguments, body=body))
    params = replace(tiny, epochs=1)
    train_model(replace(params, model=str(tmp_path / "tensorflow.py")), digits_records, tmp_path / "model")
    assert "own train_step (it gets padding as examples of weight 0" in capfd.readouterr().err
    (entry,) = history_of(tmp_path / "model")
    assert entry["validation_accuracy"] > 0.5
    with pytest.raises(
        InputError, match=r"train_step\(state, data\) fails with backend=tensorflow: .*backend=jax if it is written"
    ):
        train_model(replace(params, model=str(tmp_path / "jax.py")), digits_records, tmp_path / "no")
    with pytest.raises(InputError, match=r"train_step returns los, but no 'loss'. Return the loss"):
        train_model(replace(params, model=str(tmp_path / "lost.py")), digits_records, tmp_path / "no")


@pytest.mark.heavy  # A process of its own, with the jax backend: 15 s.
def test_a_training_step_of_the_jax_backend_is_run_there(tiny, digits_records, tmp_path, run_step):
    (path := tmp_path / "own.py").write_text(_STEP.format(arguments=_STEPS["jax"][0], body=_STEPS["jax"][1]))
    params = replace(tiny, model=str(path), epochs=1, backend="jax")
    done = run_step("train_model", params, records=digits_records, output=tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert history_of(tmp_path / "model")[0]["validation_accuracy"] > 0.5


_SMALL = """
import keras

class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1

class Own(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        self.seen = self.params["epochs"], logs["accuracy"]

class Batches(Own):
    def on_train_batch_end(self, batch, logs=None):
        print(batch)

class Failing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        logs["val_f3"]

@keras.saving.register_keras_serializable()
def always(y_true, y_pred):
    return keras.ops.ones_like(y_pred[:, 0])

def build_model(image_shape, num_classes, optimizer="Adam()", **compiling):
    inputs = keras.Input(image_shape, dtype="uint8")
    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(num_classes, {activation}, kernel_initializer="ones")(body))
    optimizer = {optimizer}
    optimizer and model.compile(optimizer, "sparse_categorical_crossentropy", metrics={metrics})
    return model

{more}
"""


@pytest.fixture
def small(tiny, tmp_path):
    """A function that writes a model's file and returns the parameters of a training of one epoch."""

    def write(more="", activation="'softmax'", optimizer=None, metrics="[]", **changes):
        values = {"more": more, "activation": activation, "optimizer": optimizer, "metrics": metrics}
        text = _SMALL
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        (path := tmp_path / "small.py").write_text(text)
        return replace(tiny, **{"model": str(path), "epochs": 1, **changes})

    return write


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1)]",
            r"LearningRateScheduler has on_epoch_begin, .* Set training.learning_rate_schedule",
        ),
        ("callbacks = [Batches()]", r"Batches has on_train_batch_end, .* Move the code to on_epoch_end"),
        (
            "callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: None)]",
            "LambdaCallback has on_epoch_begin",
        ),
        (
            "callbacks = [keras.callbacks.BackupAndRestore('backup')]",
            "BackupAndRestore is not supported. An interrupted training run resumes without it. Remove it",
        ),
        (
            "callbacks = [keras.callbacks.TerminateOnNaN()]",
            "TerminateOnNaN is not supported. A training run that diverges stops without it. Remove it",
        ),
        (
            "callbacks = [keras.callbacks.EarlyStopping(restore_best_weights=True)]",
            "restore_best_weights=True, which is not supported: .* Remove it, and set training.monitor",
        ),
        (
            "callbacks = [keras.callbacks.ModelCheckpoint('a.keras', save_freq=2)]",
            "ModelCheckpoint has a save_freq, .* set training.checkpoint_seconds",
        ),
        (
            "callbacks = [keras.callbacks.SwapEMAWeights()]",
            "SwapEMAWeights is not supported. Set training.ema_decay instead",
        ),
        ("callbacks = [Failing()]", "callback Failing failed at the end of epoch 1: KeyError: 'val_f3'"),
    ],
)
def test_a_callback_that_training_cannot_serve_is_refused(small, digits_records, tmp_path, more, said):
    with pytest.raises(InputError, match=said):
        train_model(small(more), digits_records, tmp_path / "model")


def test_lists_and_a_keras_loss_in_the_models_file_are_used(small, digits_records, tmp_path, capfd):
    more = (
        "loss = keras.losses.CategoricalFocalCrossentropy(gamma=5.0)\nmetrics = [keras.metrics.AUC(name='area')]\n"
        "callbacks = [Own()]"
    )
    train_model(small(more), digits_records, tmp_path / "model")
    assert "loss CategoricalFocalCrossentropy, metrics area, callbacks Own" in capfd.readouterr().err
    plain = small()
    train_model(plain, digits_records, tmp_path / "plain")
    losses = [history_of(tmp_path / name)[0]["loss"] for name in ("model", "plain")]
    assert losses[0] < 0.5 * losses[1]


def test_a_models_own_optimizer_keeps_what_it_excludes_from_weight_decay():
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    copied = copy_optimizer(optimizer)
    weights = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias")]
    copied.build(weights)
    copied.apply([np.zeros(2, np.float32)] * 2)
    assert np.array(weights[0]).tolist() == [1, 1]
    assert np.array(weights[1]).max() < 1


def test_an_average_of_weights_is_a_setting_and_not_the_optimizers(small, digits_records, tmp_path):
    params = small(optimizer="keras.optimizers.SGD(0.3, use_ema=True)", learning_rate=0.001)
    with pytest.raises(InputError, match=r"use_ema=True, which is not supported\. Set training\.ema_decay instead"):
        train_model(params, digits_records, tmp_path / "model")


@pytest.mark.parametrize("rate", [0.001, 0.0011])
def test_a_stages_own_rate_replaces_the_models_optimizer_also_if_it_is_the_default(
    small, digits_records, tmp_path, rate
):
    stages = Stage(1), Stage(1, learning_rate=rate)
    params = small(optimizer="keras.optimizers.SGD(0.3)", epochs=2, learning_rate=0.001, stages=stages)
    train_model(params, digits_records, tmp_path / "model")
    assert [entry["learning_rate"] for entry in history_of(tmp_path / "model")] == pytest.approx([0.3, rate])


def test_a_callback_that_stops_a_training_is_told(small, digits_records, tmp_path, capfd):
    stopping = {"early_stopping": {"monitor": "loss", "patience": 1, "min_delta": 100.0}}
    params = small(callbacks=stopping, epochs=4, stages=(Stage(3), Stage(1)))
    assert train_model(params, digits_records, tmp_path / "model").epochs == 2
    assert "stopped by a callback after 2 of 4 epochs" in capfd.readouterr().err


def test_a_schedule_that_cannot_be_copied_is_refused(small, digits_records, tmp_path):
    with pytest.raises(
        InputError,
        match=r"Cannot copy the model's optimizer SGD: .*'Schedule' must override `get_config.* Every stage needs a",
    ):
        train_model(
            small(optimizer="keras.optimizers.SGD(Schedule())", learning_rate=0.001), digits_records, tmp_path / "model"
        )


def test_a_named_loss_from_logits_gets_probabilities(small, digits_records, tmp_path):
    losses = []
    for name, parameters in (("own", {"from_logits": True}), ("plain", {})):
        params = small(activation="None", loss="categorical_crossentropy", loss_parameters=parameters)
        train_model(params, digits_records, tmp_path / name)
        losses.append(history_of(tmp_path / name)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_label_smoothing_is_left_out_of_the_validation_loss_of_a_named_loss(small, digits_records, tmp_path):
    params = small(loss="categorical_focal_crossentropy", label_smoothing=0.5)
    train_model(params, digits_records, tmp_path / "model")
    split = records.load_split(digits_records, Manifest.load(digits_records), "validation")
    outputs = predict(load_trained_model(tmp_path / "model", LAST_WEIGHTS_FILE), split.inputs, 256)
    losses = keras.losses.categorical_focal_crossentropy(np.eye(10, dtype=np.float32)[split.labels], outputs)
    (entry,) = history_of(tmp_path / "model")
    assert entry["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "loss", "last"),
    [
        ("inside", "keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)", "softmax"),
        ("inside", "keras.losses.categorical_crossentropy(y_true, y_pred, True, 0.1)", "softmax"),
        ("inside", "keras.losses.categorical_focal_crossentropy(y_true, y_pred, from_logits=True)", "None"),
        ("inside", "-keras.ops.sum(y_true * keras.ops.log_softmax(y_pred), -1)", "softmax"),
        ("inside", "keras.losses.binary_crossentropy(y_true, y_pred, from_logits=True)", "softmax"),
        ("outside", "keras.losses.sparse_categorical_crossentropy(y_true, y_pred)", "softmax"),
        ("outside", "keras.losses.categorical_focal_crossentropy(y_true, y_pred)", "None"),
        ("outside", "-keras.ops.sum(y_true * keras.ops.log(y_pred + 1e-7), -1)", "softmax"),
        ("outside", "keras.losses.categorical_hinge(y_true, y_pred)", "softmax"),
        ("outside", "keras.losses.mean_squared_error(y_true, y_pred)", "softmax"),
    ],
)
def test_a_loss_of_logits_is_refused_because_it_gets_probabilities(small, digits_records, tmp_path, name, loss, last):
    params = small(f"def loss(y_true, y_pred):\n    return {loss}", last if last == "None" else f"'{last}'")
    if name == "inside":
        with pytest.raises(InputError, match=r"loss=loss expects logits: .*Remove from_logits=True"):
            train_model(params, digits_records, tmp_path / "model")
    else:
        assert train_model(params, digits_records, tmp_path / "model").epochs == 1


def test_a_number_without_a_fraction_may_be_a_float_of_keras(small, digits_records, tmp_path):
    params = small(optimizer_parameters={"momentum": 0}, optimizer=None)
    assert train_model(replace(params, optimizer="sgd"), digits_records, tmp_path / "model").epochs == 1


def test_checkpoints_of_keras_are_written_by_epoch(small, digits_records, tmp_path):
    path = tmp_path / "{epoch:02d}-{val_accuracy:.2f}.weights.h5"
    params = small(callbacks={"model_checkpoint": {"filepath": str(path), "save_weights_only": True}})
    train_model(params, digits_records, tmp_path / "model")
    accuracy = history_of(tmp_path / "model")[0]["validation_accuracy"]
    assert (tmp_path / f"01-{accuracy:.2f}.weights.h5").exists()


def test_a_metric_that_training_cannot_call_with_weights_is_refused(small, digits_records, tmp_path):
    params = replace(small(), metrics={"mean_io_u": {"num_classes": 10}})
    with pytest.raises(InputError, match="The metric 'mean_io_u' does not fit the data"):
        train_model(params, digits_records, tmp_path / "model")


def test_a_metric_of_the_model_does_not_replace_the_tasks_own(small, digits_records, tmp_path):
    metrics = "[keras.metrics.MeanMetricWrapper(always, name='macro_f1')]"
    train_model(small(optimizer="keras.optimizers.Adam()", metrics=metrics), digits_records, tmp_path / "model")
    evaluation = evaluate_model(EvaluateParams(), digits_records, tmp_path / "model", tmp_path / "evaluation")
    assert evaluation.metrics["macro_f1"] < 0.99

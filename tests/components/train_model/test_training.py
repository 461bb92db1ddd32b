import json
import math
import re
import shutil
from dataclasses import asdict, replace

import keras
import numpy as np
import pytest

from tests.components.train_model.interrupting import train_alone
from tests.components.train_model.weights import assert_equal_models, history_of, weights_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import artifacts, records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.example_ids import TRAINED_ON_FILE, load_identities
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.core.results.receipt import RECEIPT_FILE
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.train_model import TrainParams, train_model
from tpu_components.train_model.checkpoints.checkpoint import load_arrays
from tpu_components.train_model.training import default_checkpoint_dir


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size_per_replica": 0}, "batch_size_per_replica=0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"warmup_epochs": -1.0}, r"warmup_epochs=-1\.0"),
        ({"ema_decay": 1.0}, r"ema_decay=1\.0"),
        ({"random_flip": "yes"}, "random_flip='yes'"),
        ({"early_stopping_epochs": -1}, "early_stopping_epochs=-1"),
        ({"class_weights": {"3": -1.0}}, r"class_weights\.3 must be at least 0.*Received: class_weights\.3=-1\.0"),
        ({"learning_rate_scaling": "cubic"}, "learning_rate_scaling='cubic'"),
        ({"backend": "torch"}, "backend='torch'"),
        ({"accelerator": "npu"}, "accelerator='npu'"),
        ({"precision": "float16"}, "precision='float16'"),
    ],
)
def test_params_refuse_a_value_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        TrainParams("digits_cnn", **changes)


def test_model_folder_holds_everything_that_later_steps_read(trained_digits, digits_records, quick):
    names = {path.name for path in trained_digits.iterdir()}
    assert names == {
        artifacts.MODEL_FILE,
        artifacts.ARCHITECTURE_FILE,
        artifacts.BEST_WEIGHTS_FILE,
        artifacts.LAST_WEIGHTS_FILE,
        artifacts.HISTORY_FILE,
        TRAINED_ON_FILE,
        RECEIPT_FILE,
        "tensorboard",
    }
    info, manifest = ModelInfo.load(trained_digits), Manifest.load(digits_records)
    assert (info.name, info.parameters) == (quick.model, quick.model_parameters)
    assert (info.class_names, info.input.image_shape) == (manifest.class_names, (8, 8, 1))
    assert info.dataset_fingerprint == manifest.fingerprint
    assert {name: info.training[name] for name in ("seed", "epochs", "backend", "num_replicas", "precision")} == {
        "seed": 0,
        "epochs": 3,
        "backend": "tensorflow",
        "num_replicas": 1,
        "precision": "float32",
    }


def test_examples_are_counted_once_per_epoch_and_the_model_says_which(trained_digits, digits_records):
    training = ModelInfo.load(trained_digits).training
    assert training["examples_seen"] == 3 * 1259
    trained_on = np.load(trained_digits / "trained_on.npy")
    assert set(trained_on.tolist()) == set(load_identities(digits_records, "train").tolist())
    assert len(trained_on) == len(set(trained_on.tolist()))
    assert training["steps"] == 3 * 40  # 39 full batches of 32 and one with 11.
    history = history_of(trained_digits)
    assert [entry["examples"] for entry in history] == [1259] * 3
    # The 21 that fill the last batch are no examples.
    assert [entry["examples_per_second"] * entry["seconds"] for entry in history] == pytest.approx([1259] * 3)


def test_training_learns(trained_digits):
    history = history_of(trained_digits)
    losses = [entry["loss"] for entry in history]
    assert losses == sorted(losses, reverse=True)
    assert history[-1]["validation_accuracy"] > 0.85


def test_tensorboard_shows_every_scalar_of_every_epoch(trained_digits):
    from tensorflow.core.util.event_pb2 import Event
    from tensorflow.python.lib.io.tf_record import tf_record_iterator

    (file,) = (trained_digits / "tensorboard").glob("events.out.tfevents.*")
    events = [Event.FromString(record) for record in tf_record_iterator(str(file))]
    found = {(event.step, value.tag) for event in events for value in event.summary.value}
    names = {"loss", "accuracy", "validation_loss", "validation_accuracy", "learning_rate"}
    assert {(epoch, name) for epoch in (1, 2, 3) for name in names} <= found


_PENALIZED = """
import keras

@keras.saving.register_keras_serializable()
class Penalty(keras.layers.Layer):
    def __init__(self, l2=0.0, **others):
        super().__init__(**others)
        self.l2 = l2

    def call(self, inputs):
        self.add_loss(keras.ops.convert_to_tensor(self.l2))
        return inputs

def build_model(image_shape, num_classes, l2, is_added=False):
    regularizer = keras.regularizers.L2(l2) if l2 and not is_added else None
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), keras.layers.Rescaling(1 / 16), keras.layers.Flatten(),
        *([Penalty(l2)] if is_added else []),
        keras.layers.Dense(num_classes, activation="softmax", kernel_regularizer=regularizer)])
"""


@pytest.mark.parametrize(
    ("l2", "data", "is_added"),
    [
        (0.0, "digits_records", False),
        (0.5, "digits_records", False),
        (0.5, "weighted_digits", False),
        (0.5, "digits_records", True),
    ],
)
def test_reported_loss_is_the_mean_over_examples_without_the_penalty(tiny, request, tmp_path, l2, data, is_added):
    """The learning rate is so small that the weights do not change: the loss of an epoch is that of one model."""
    data = request.getfixturevalue(data)
    (tmp_path / "penalized.py").write_text(_PENALIZED)
    params = replace(
        tiny,
        model=str(tmp_path / "penalized.py"),
        model_parameters={"l2": l2, "is_added": is_added},
        epochs=1,
        learning_rate=1e-12,
        batch_size_per_replica=300,
    )
    result = train_model(params, data, tmp_path / "model")
    model = load_trained_model(tmp_path / "model", artifacts.LAST_WEIGHTS_FILE)
    examples = records.load_split(data, Manifest.load(data), artifacts.TRAIN)
    probabilities = predict(model, examples.inputs, 256)
    own = probabilities[np.arange(len(examples.labels)), examples.labels].astype(np.float64)
    (entry,) = history_of(tmp_path / "model")
    loss = (examples.weights * -np.log(own)).mean()
    assert entry["loss"] == result.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    right = (probabilities.argmax(1) == examples.labels)[examples.weights > 0]
    assert result.metrics["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    kernel = np.array(model.weights[0], np.float64)
    penalty = l2 if is_added else l2 * np.square(kernel).sum()
    assert entry.get("penalty", 0.0) == pytest.approx(penalty, rel=1e-4)


def test_an_example_of_weight_0_is_left_out_of_the_loss_and_others_count_by_their_weight(
    tiny, weighted_digits, tmp_path
):
    """The reference never sees examples of weight 0; one batch holds all, so that the order does not matter."""
    manifest = Manifest.load(weighted_digits)
    count = manifest.split(artifacts.TRAIN).num_examples
    params = replace(tiny, epochs=5, optimizer="sgd", learning_rate=0.1, batch_size_per_replica=count)
    train_model(params, weighted_digits, tmp_path / "model")
    assert manifest.features["weight"] == "float32"
    examples = records.load_split(weighted_digits, manifest, artifacts.TRAIN)
    some = examples.weights > 0
    assert 200 < some.sum() < 300
    keras.utils.set_random_seed(params.seed)
    model = build_model(params.model, manifest.interface, {})
    model.compile(keras.optimizers.SGD(0.1, 0.9, nesterov=True), "sparse_categorical_crossentropy")
    weights = examples.weights[some] * some.sum() / count
    for _ in range(5):
        model.train_on_batch(examples.inputs[some], examples.labels[some], sample_weight=weights)
    trained = load_trained_model(tmp_path / "model", artifacts.LAST_WEIGHTS_FILE)
    for ours, theirs in zip(trained.weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(np.array(ours), theirs, rtol=1e-5, atol=1e-6)


def test_training_stops_early_and_keeps_the_weights_of_the_best_epoch(tiny, digits_records, tmp_path, capfd):
    """At this learning rate the third epoch is worse than the second."""
    params = replace(tiny, epochs=5, learning_rate=3.0, optimizer="sgd", seed=1, early_stopping_epochs=1)
    result = train_model(params, digits_records, tmp_path / "model")
    assert "stopped early: no lower validation loss for 1 epochs" in capfd.readouterr().err
    losses = [entry["validation_loss"] for entry in history_of(tmp_path / "model")]
    assert (result.epochs, result.judged_by) == (len(losses), "validation_loss")
    assert result.best_epoch == result.epochs - 1 == 1 + int(np.argmin(losses)) < 4
    until_best = replace(params, epochs=result.best_epoch, early_stopping_epochs=0)
    train_model(until_best, digits_records, tmp_path / "shorter")
    best, shorter = weights_of(tmp_path / "model" / "best.weights.h5"), weights_of(tmp_path / "shorter")
    layers = [name for name in best if name.startswith("layers/")]  # The file also holds the last optimizer state.
    assert len(layers) == 2
    assert all(np.array_equal(best[name], shorter[name]) for name in layers)


def test_without_a_validation_split_the_training_loss_decides(tiny, tmp_path, capfd):
    write_records(WriteParams("sklearn:digits", validation_fraction=0.0, num_workers=1), tmp_path / "records")
    params = replace(tiny, epochs=2, optimizer="sgd", early_stopping_epochs=1, batch_size_per_replica=256)
    result = train_model(params, tmp_path / "records", tmp_path / "model")
    said = capfd.readouterr().err
    assert "there is no validation split, so the best epoch is the one with the lowest training loss" in said
    losses = [entry["loss"] for entry in history_of(tmp_path / "model")]
    assert (result.best_epoch, result.judged_by) == (1 + int(np.argmin(losses)), "loss")
    assert all("validation_loss" not in entry for entry in history_of(tmp_path / "model"))


def test_streamed_training_in_mixed_precision_reads_every_example(tiny, digits_records, tmp_path):
    params = replace(tiny, epochs=1, in_memory_mib=0, shuffle_buffer=100, precision="mixed_bfloat16")
    result = train_model(params, digits_records, tmp_path / "model")
    assert (result.examples_seen, result.steps, result.precision) == (1259, 40, "mixed_bfloat16")
    assert result.metrics["loss"] < 2.3
    model = load_trained_model(tmp_path / "model")
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}


def test_finished_training_runs_again_without_training(tiny, digits_records, tmp_path, capfd):
    source = tmp_path / "plain.py"
    source.write_text("def build_model(image_shape, num_classes):\n    raise KeyboardInterrupt\n")
    params = replace(tiny, model=str(source), epochs=1)
    with pytest.raises(KeyboardInterrupt):  # A session that ends before it could train.
        train_model(params, digits_records, tmp_path / "model")
    source.write_text("from tests.components.preflight_training.dense import build_model\n")
    first = train_alone(params, digits_records, tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "first")
    again = train_alone(params, digits_records, tmp_path / "model")
    assert first.first_step_seconds > 0 == again.first_step_seconds
    assert (first.sessions, again.sessions) == (2, 3)
    assert again.goodput < first.goodput < 1
    assert first.paid_seconds["trained"] / sum(first.paid_seconds.values()) == first.goodput
    assert again.paid_seconds["trained"] == first.paid_seconds["trained"]
    same = ("first_step_seconds", "sessions", "goodput", "paid_seconds")
    assert replace(again, **{name: getattr(first, name) for name in same}) == first
    assert "continuing at epoch 2" in capfd.readouterr().err
    assert_equal_models(tmp_path / "first", tmp_path / "model")


@pytest.fixture(scope="module")
def other_checkpoints(tiny, digits_records, tmp_path_factory):
    """The checkpoints of an epoch from another seed. Not to be written to."""
    root = tmp_path_factory.mktemp("other")
    train_model(replace(tiny, epochs=1, seed=5), digits_records, root / "model", root / "checkpoints")
    return root / "checkpoints"


def test_checkpoint_of_another_training_is_ignored(tiny, digits_records, other_checkpoints, tmp_path, capfd):
    checkpoints = shutil.copytree(other_checkpoints, tmp_path / "checkpoints")
    result = train_model(replace(tiny, epochs=1), digits_records, tmp_path / "model", checkpoints)
    assert "belongs to another training run, so training starts from the beginning" in capfd.readouterr().err
    assert result.epochs == 1
    fresh = train_model(replace(tiny, epochs=1, profile_steps=2), digits_records, tmp_path / "fresh")
    assert result.metrics == fresh.metrics
    (profile,) = (tmp_path / "fresh" / "tensorboard").glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 1000
    assert len(list((tmp_path / "model" / "tensorboard").iterdir())) == 1


def test_best_weights_of_another_training_are_not_taken(tiny, digits_records, other_checkpoints, tmp_path):
    """Another training may have written its best weights into the folder and died before its checkpoint."""
    params = replace(tiny, epochs=1)
    train_alone(params, digits_records, tmp_path / "model", tmp_path / "ours")
    shutil.copyfile(other_checkpoints / "best.npz", tmp_path / "ours" / "best.npz")
    train_alone(params, digits_records, tmp_path / "again", tmp_path / "ours")
    assert_equal_models(tmp_path / "model", tmp_path / "again")


def test_damaged_checkpoint_is_named(tiny, digits_records, other_checkpoints, tmp_path):
    checkpoints = shutil.copytree(other_checkpoints, tmp_path / "checkpoints")
    path = checkpoints / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"checkpoint\.npz.*delete"):
        train_model(replace(tiny, epochs=1, seed=5), digits_records, tmp_path / "model", checkpoints)


def test_divergence_names_the_step_and_keeps_the_last_good_checkpoint(run_step_here, quick, digits_records, tmp_path):
    params = asdict(replace(quick, learning_rate=1e30, checkpoint_seconds=0.0))
    done = run_step_here("train_model", params, records=digits_records, output=tmp_path / "model")
    assert done.returncode == 2
    assert done.stdout == ""
    # Which value overflows first, and when, is up to the kernels.
    step = int(re.search(r"error: Training diverged: .* is not finite at step (\d+) of epoch 1", done.stderr)[1])
    assert "training.learning_rate (1e+30)" in done.stderr
    path = tmp_path / "model-checkpoints" / "checkpoint.npz"
    assert f"The last good checkpoint is kept in {path}" in done.stderr
    arrays, progress = load_arrays(path)
    assert (progress.epoch, progress.step) == (0, step - 1)
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert not (tmp_path / "model").exists()


def test_records_that_changed_are_found_while_the_first_steps_run(tiny, digits_records, tmp_path):
    """What no checksum of a record finds: another shard that was written under the name."""
    shutil.copytree(digits_records, tmp_path / "records")
    manifest = json.loads((tmp_path / "records" / "dataset.json").read_text())
    shard = manifest["splits"]["train"]["shards"][0]
    shard["crc32c"] = "00000000"
    (tmp_path / "records" / "dataset.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=rf"{shard['name']} does not match its manifest: expected checksum 00000000"):
        train_model(replace(tiny, epochs=1, checkpoint_seconds=0.0), tmp_path / "records", tmp_path / "model")
    assert not (tmp_path / "model-checkpoints" / "checkpoint.npz").exists()
    assert not (tmp_path / "model").exists()


def test_weights_that_are_not_finite_are_no_checkpoint(tiny, digits_records, tmp_path):
    """The loss is one step behind: it is still finite when the weights no longer are."""
    params = replace(tiny, learning_rate=1e39, optimizer="sgd", checkpoint_seconds=0.0)
    with pytest.raises(InputError, match=r"a weight is not finite at step 1 of epoch 1.*There was no checkpoint yet"):
        train_model(params, digits_records, tmp_path / "model")
    assert not (tmp_path / "model-checkpoints" / "checkpoint.npz").exists()


def test_batch_larger_than_the_split_is_refused(tiny, digits_records, tmp_path):
    with pytest.raises(InputError, match=r"at most 1259 examples.*1260 × 1 replicas = 1260"):
        train_model(replace(tiny, batch_size_per_replica=1260), digits_records, tmp_path / "model")
    with pytest.raises(InputError, match=r"400 × 4 replicas = 1600"):
        train_model(replace(tiny, batch_size_per_replica=400, num_replicas=4), digits_records, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_unknown_model_is_refused_before_anything_is_written(tiny, digits_records, tmp_path):
    with pytest.raises(InputError, match=r"Unknown model 'digit_cnn'.*Did you mean 'digits_cnn'"):
        train_model(replace(tiny, model="digit_cnn"), digits_records, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_platform_says_where_checkpoints_and_logs_go(tiny, digits_records, tmp_path, monkeypatch):
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", "gs://bucket/job/logs")
    with monkeypatch.context() as patch:
        patch.setattr("tpu_components.core.files.storage.BUCKETS_MOUNT", tmp_path / "gcs")
        train_model(replace(tiny, epochs=1, profile_steps=2), digits_records, tmp_path / "model")
    assert (tmp_path / "kept" / "checkpoint.npz").is_file()
    published = tmp_path / "gcs" / "bucket" / "job" / "logs"
    (curves,) = published.glob("events.out.tfevents.*")
    (profile,) = published.glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 1000
    (kept,) = (tmp_path / "model" / "tensorboard").glob("events.out.tfevents.*")
    assert curves.read_bytes() == kept.read_bytes(), "the whole curve is where the platform's TensorBoard looks"
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", "gs://bucket/job/checkpoints")
    assert str(default_checkpoint_dir(tmp_path)) == "/gcs/bucket/job/checkpoints"

"""Models of other programs: found or asked what their numbers mean, never guessed; then evaluated and exported."""

import dataclasses
import runpy
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.components.create_tfrecords.test_stored_records import as_files, write_digits
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.records import load_split
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.export_model import ExportParams, export_model
from tpu_components.import_model import ImportParams, import_model
from tpu_components.train_model import TrainParams, train_model

NAMES = tuple("0123456789")
LAYERS = keras.layers


def linear(*first, last=None, size=10):
    layers = [*first, LAYERS.Flatten(), last or LAYERS.Dense(size)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def fitted(model, records):
    """The model after a few steps on the digits, from pixels of 0 to 1."""
    examples = load_split(records, Manifest.load(records), "train")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(examples.inputs / np.float32(255), examples.labels, epochs=15, verbose=0)
    return model


@pytest.fixture(scope="module")
def foreign(digits_records, tmp_path_factory):
    """A folder with a linear classifier of pixels from 0 to 1, as a .keras file and as a SavedModel."""
    folder = tmp_path_factory.mktemp("foreign")
    model = fitted(linear(), digits_records)
    model.save(folder / "own.keras")
    model.export(folder / "own", verbose=False)
    return folder


def saved(folder, model, **signatures):
    tf.saved_model.save(model, str(folder), signatures=signatures)
    return folder


class Answering(tf.Module):
    """A classifier of images with several outputs, whose table is a resource of the SavedModel."""

    def __init__(self, dtype="float32", shape=(None, 8, 8, 1)):
        self.weights = tf.Variable(tf.random.stateless_normal((64, 10), (1, 2)))
        keys = tf.constant([0, 1], tf.int64)
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 2), 7)
        spec = tf.TensorSpec(shape, dtype, name="pictures")
        self.signature = tf.function(self.answer, input_signature=[spec]).get_concrete_function()

    def answer(self, pictures):
        scores = tf.reshape(tf.cast(pictures, tf.float32), (-1, 64)) @ self.weights / 255
        index = tf.argmax(scores, axis=-1)
        return {"scores": tf.nn.softmax(scores), "index": index, "looked_up": self.table.lookup(index)}


@pytest.mark.parametrize("file", ["own.keras", "own"])
def test_a_foreign_model_is_evaluated_and_exported_with_its_own_answers(
    file, foreign, digits_records, tmp_path, judged_here
):
    params = ImportParams(NAMES, pixel_range=(0, 1), outputs="logits" if file == "own" else "auto")
    result = import_model(params, digits_records, foreign / file, tmp_path / "model")
    assert (result.name, result.outputs, result.pixel_range) == (file, "logits", (0.0, 1.0))
    manifest = Manifest.load(digits_records)
    examples = load_split(digits_records, manifest, "test")
    original = keras.saving.load_model(foreign / "own.keras")
    expected = tf.nn.softmax(original(examples.inputs / np.float32(255))).numpy()
    imported = load_trained_model(tmp_path / "model")
    np.testing.assert_allclose(predict(imported, examples.inputs, 64), expected, atol=1e-5)
    accuracy = float((expected.argmax(1) == examples.labels).mean())
    judged = evaluate_model(
        EvaluateParams(minimum={"accuracy": 0.5}, accelerator="cpu"),
        digits_records,
        tmp_path / "model",
        tmp_path / "ev",
    )
    assert judged.promote
    assert judged.metrics["accuracy"] == pytest.approx(accuracy)
    assert "another program" in (tmp_path / "ev" / "report.html").read_text()
    exported = export_model(ExportParams(), digits_records, tmp_path / "model", tmp_path / "export")
    assert exported.formats.keys() == {"saved_model", "float", "int8"}


def test_a_signature_with_one_fitting_output_is_found_and_its_resources_are_exported(digits_records, tmp_path):
    module = Answering("uint8")
    path = saved(tmp_path / "own", module, serving_default=module.signature)
    result = import_model(ImportParams(NAMES), digits_records, path, tmp_path / "model")
    assert (result.outputs, result.pixel_range) == ("probabilities", (0.0, 255.0))
    export_model(ExportParams(required=("saved_model",)), digits_records, tmp_path / "model", tmp_path / "export")


def test_a_model_that_begins_with_a_scaling_layer_needs_no_range(digits_records, tmp_path):
    linear(LAYERS.Rescaling(1 / 255), last=LAYERS.Dense(10, activation="softmax")).save(tmp_path / "own.keras")
    result = import_model(ImportParams(NAMES), digits_records, tmp_path / "own.keras", tmp_path / "model")
    assert (result.outputs, result.pixel_range) == ("probabilities", (0.0, 255.0))
    with pytest.raises(InputError, match=r"pixel_range=\[0.0, 1.0\] contradicts the model 'own.keras', which begins"):
        import_model(
            ImportParams(NAMES, pixel_range=(0.0, 1.0)), digits_records, tmp_path / "own.keras", tmp_path / "again"
        )


def test_a_model_in_the_folder_of_an_artifact_is_found_whatever_its_name(foreign, digits_records, tmp_path):
    (tmp_path / "artifact").mkdir()
    shutil.copyfile(foreign / "own.keras", tmp_path / "artifact" / "data")
    params = ImportParams(NAMES, pixel_range=(0, 1), name="flowers")
    assert import_model(params, digits_records, tmp_path / "artifact", tmp_path / "model").name == "flowers"
    assert ModelInfo.load(tmp_path / "model").class_names == NAMES


CODE = """
import keras

@keras.saving.register_keras_serializable("mine")
class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2
"""


def test_custom_layers_need_their_code_which_travels_with_the_model(digits_records, tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    layer = runpy.run_path(str(tmp_path / "mine.py"))["Doubled"]
    linear(layer()).save(tmp_path / "own.keras")
    keras.saving.get_custom_objects().clear()
    params = ImportParams(NAMES, pixel_range=(0, 1))
    with pytest.raises(InputError, match=r"Cannot load the model .*own.keras.*set code to a .py file"):
        import_model(params, digits_records, tmp_path / "own.keras", tmp_path / "model")
    params = dataclasses.replace(params, code=str(tmp_path / "mine.py"))
    import_model(params, digits_records, tmp_path / "own.keras", tmp_path / "model")
    (tmp_path / "mine.py").unlink()
    assert load_trained_model(tmp_path / "model").output_shape == (None, 10)


_LINEAR = """
import keras

def build_model(image_shape, num_targets):
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(num_targets)])
"""


def test_a_regression_gives_the_units_of_its_targets(digits_records, tmp_path):
    pixels = load_split(digits_records, Manifest.load(digits_records), "train").inputs
    targets = pixels.mean(axis=(1, 2, 3)) * 10 + 500
    parts = {"x_train": pixels[:900], "y_train": targets[:900], "x_test": pixels[900:], "y_test": targets[900:]}
    np.savez(tmp_path / "data.npz", **parts)
    source = WriteParams(f"npz:{tmp_path}/data.npz", task="regression", validation_fraction=0.0, num_workers=1)
    write_records(source, tmp_path / "records")
    mean = LAYERS.Dense(1)
    model = linear(last=mean)
    mean.set_weights([np.full((64, 1), 10 / 64, np.float32), np.array([500], np.float32)])
    model.save(tmp_path / "own.keras")
    names = Manifest.load(tmp_path / "records").class_names
    params = ImportParams(names, pixel_range=(0, 255))
    assert import_model(params, tmp_path / "records", tmp_path / "own.keras", tmp_path / "model").outputs == "numbers"

    def judge(model):
        params = EvaluateParams(accelerator="cpu", max_regression={"r2": 0.0})
        return evaluate_model(params, tmp_path / "records", tmp_path / model, tmp_path / f"{model}-evaluation")

    assert judge("model").metrics["r2"] == pytest.approx(1, abs=1e-4)
    (tmp_path / "own.py").write_text(_LINEAR)
    start = TrainParams(
        str(tmp_path / "own.py"),
        initial_model=str(tmp_path / "model"),
        learning_rate=1e-12,
        epochs=1,
        backend="tensorflow",
    )
    train_model(start, tmp_path / "records", tmp_path / "trained")
    assert judge("trained").metrics["r2"] == pytest.approx(1, abs=1e-4)
    units = load_trained_model(tmp_path / "trained").layers[-1]
    assert (units.scale, units.offset) == ([1.0], [0.0]), "of each target, as exports need them"


SOFTMAX = {"last": LAYERS.Dense(10, activation="softmax")}


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            linear,
            {"pixel_range": ()},
            r"the model 'own.keras', because the range of its input pixels is unknown: .*Set pixel_range to the values",
        ),
        (linear, {"outputs": "probabilities"}, r"outputs='probabilities' contradicts the model 'own.keras'"),
        (linear, {"class_names": NAMES[::-1]}, r"classes of the model 'own.keras' do not match the records.*'9'"),
        (linear, {"class_names": NAMES[:9]}, r"classes of the model 'own.keras' do not match the records"),
        (lambda: linear(size=7), {}, r"does not fit the data: expected input .*\(None, 10\), received .*\(None, 7\)"),
        (lambda: linear(**SOFTMAX), {"outputs": "logits"}, r"outputs='logits' contradicts the model 'own.keras'"),
        (lambda: linear(last=LAYERS.Dense(10, activation="sigmoid")), {}, r"expected a last layer with softmax"),
        (
            lambda: keras.Sequential([keras.Input((9, 9, 3)), LAYERS.Flatten(), LAYERS.Dense(10)]),
            {},
            r"received \(None, 9, 9, 3\). Write the records with data.image_size=9,9 and data.channels=3",
        ),
        (lambda: linear(LAYERS.Rescaling(float("nan"))), {}, r"predicts NaN or infinity"),
        (
            lambda: linear(last=LAYERS.Dense(10, activation="softplus")),
            {},
            r"expected a last layer with softmax, received one with softplus",
        ),
    ],
)
def test_a_model_whose_numbers_have_another_meaning_is_refused(model, changes, message, digits_records, tmp_path):
    model().save(tmp_path / "own.keras")
    params = ImportParams(**{"class_names": NAMES, "pixel_range": (0, 1), **changes})
    with pytest.raises(InputError, match=message) as error:
        import_model(params, digits_records, tmp_path / "own.keras", tmp_path / "model")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (lambda: Answering(), {}, r"range of its input pixels is unknown"),
        (
            lambda: Answering(shape=(1, 8, 8, 1)),
            {},
            r"expected pixels of shape \(None, 8, 8, 1\), received float32 \(1, 8",
        ),
        (lambda: Answering(shape=(None, 28, 28, 1)), {}, r"received float32 \(None, 28, 28, 1\)"),
        (
            lambda: Answering("uint8"),
            {"signature": "predict"},
            r"no signature 'predict': expected one of 'serving_defaul",
        ),
        (
            lambda: Answering("uint8"),
            {"output_name": "index"},
            r"expected one output of shape \(None, 10\).*index int64",
        ),
        (lambda: Answering("uint8"), {"code": "mine.py"}, r"A SavedModel needs no code"),
        (lambda: Answering("uint8"), {"outputs": "logits"}, r"outputs='logits' contradicts the model 'own'"),
    ],
)
def test_a_signature_that_does_not_fit_is_refused(make, changes, message, digits_records, tmp_path):
    module = make()
    path = saved(tmp_path / "own", module, serving_default=module.signature)
    params = ImportParams(NAMES, **changes)
    with pytest.raises(InputError, match=message):
        import_model(params, digits_records, path, tmp_path / "model")


def damaged_saved_model(folder):
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"no graph")


def half_a_keras_file(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("config.json", "model.weights.h5", "metadata.json"):
            archive.writestr(name, "{")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (damaged_saved_model, r"Cannot load the SavedModel .*own: "),
        (half_a_keras_file, r"Cannot load the model .*own: "),
        (
            lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" * 9),
            r"received an HDF5 file: load it with Keras, and save",
        ),
        (lambda path: path.write_bytes(b"weights"), r"Expected a .keras file|expected a .keras file.*another file"),
        (lambda path: path.mkdir(), r"received a folder without a model"),
        (lambda path: None, r"there is no such file or folder"),
    ],
)
def test_what_does_not_load_is_one_paragraph(write, message, digits_records, tmp_path):
    write(tmp_path / "own")
    with pytest.raises(InputError, match=message) as error:
        import_model(ImportParams(NAMES, pixel_range=(0, 1)), digits_records, tmp_path / "own", tmp_path / "model")
    assert "\n" not in str(error.value)


def test_lambdas_are_never_loaded(digits_records, tmp_path):
    linear(LAYERS.Lambda(lambda pixels: pixels / 255)).save(tmp_path / "own.keras")
    with pytest.raises(InputError, match=r"a Lambda layer with Python code is never loaded"):
        import_model(
            ImportParams(NAMES, pixel_range=(0, 255)), digits_records, tmp_path / "own.keras", tmp_path / "model"
        )


def test_records_of_texts_and_folders_without_records_are_refused(foreign, review_records, tmp_path):
    params = ImportParams(("neg", "pos"), pixel_range=(0, 1))
    with pytest.raises(InputError, match=r"Only image models can be imported. Received: records of texts"):
        import_model(params, review_records, foreign / "own.keras", tmp_path / "model")
    with pytest.raises(InputError, match=r"dataset.json"):
        import_model(params, foreign, foreign / "own.keras", tmp_path / "model")


def test_a_changed_file_of_a_saved_model_is_found(foreign, digits_records, tmp_path):
    params = ImportParams(NAMES, pixel_range=(0, 1), outputs="logits")
    import_model(params, digits_records, foreign / "own", tmp_path / "model")
    with open(tmp_path / "model" / "saved_model" / "saved_model.pb", "ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"is damaged: saved_model/saved_model.pb is not the file that was imported"):
        load_trained_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_range": (1.0, 0.0)}, r"pixel_range must be \[low, high\]"),
        ({"pixel_range": (1.0,)}, r"pixel_range must be \[low, high\]"),
        ({"outputs": "numbers"}, r"outputs"),
        ({"code": "mine.zip"}, r"code must be a .py file"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ImportParams(NAMES, **changes)


def test_training_can_start_with_an_imported_model(foreign, digits_records, tmp_path):
    import_model(ImportParams(NAMES, pixel_range=(0, 1)), digits_records, foreign / "own.keras", tmp_path / "model")
    params = TrainParams("digits_cnn", epochs=1, initial_model=str(tmp_path / "model"), accelerator="cpu")
    with pytest.raises(InputError, match=r"Cannot start with the weights of"):
        train_model(params, digits_records, tmp_path / "trained")


def test_records_for_an_evaluation_need_no_training_split(foreign, tmp_path, judged_here):
    """A model of another program is judged on them; they cannot be trained on."""
    params = write_digits(tmp_path / "own", as_files)
    write_records(dataclasses.replace(params, split_files={"test": "*"}), tmp_path / "records")
    assert Manifest.load(tmp_path / "records").splits.keys() == {"test"}
    import_model(
        ImportParams(NAMES, pixel_range=(0, 1)), tmp_path / "records", foreign / "own.keras", tmp_path / "model"
    )
    rules = EvaluateParams(minimum={"accuracy": 0.5}, accelerator="cpu")
    judged = evaluate_model(rules, tmp_path / "records", tmp_path / "model", tmp_path / "evaluation")
    assert (judged.promote, judged.num_examples) == (True, 1300)
    exported = export_model(ExportParams(), tmp_path / "records", tmp_path / "model", tmp_path / "export")
    assert exported.formats.keys() == {"saved_model", "float"}, "int8 is calibrated on training examples"
    with pytest.raises(InputError, match=r"no 'train' split"):
        train_model(TrainParams("digits_cnn", accelerator="cpu"), tmp_path / "records", tmp_path / "trained")

import json

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION, LANGUAGE_MODEL, ImageInput, Interface
from tpu_components.core.machines import device
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.trained import check_rebuilds, load_trained_model, predict, save_architecture

_SHAPE = (6, 6, 1)


@pytest.fixture
def folder(tmp_path):
    """A model with random weights, saved as train_model does."""
    device.prepare("tensorflow", "cpu", 1, "mixed_bfloat16")
    model = build_model("digits_cnn", Interface(ImageInput(_SHAPE, "raw"), 3), {"filters": 2, "units": 4})
    model.compile("adam", "sparse_categorical_crossentropy")
    save_architecture(model, tmp_path)
    model.save_weights(tmp_path / "best.weights.h5")
    device.prepare("tensorflow", "cpu", 1, "float32")
    return tmp_path


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (10, *_SHAPE), np.uint8)


def test_architecture_holds_nothing_of_the_training(folder):
    assert "compile_config" not in (folder / "architecture.json").read_text()
    assert "adam" not in (folder / "architecture.json").read_text()


def test_a_model_trained_in_mixed_precision_computes_in_float32(folder):
    assert "mixed_bfloat16" in (folder / "architecture.json").read_text()
    assert {layer.compute_dtype for layer in load_trained_model(folder).layers} == {"float32"}


def test_input_can_be_of_another_type_with_the_same_values(folder, images):
    whole, floats = load_trained_model(folder), load_trained_model(folder, input_dtype="float32")
    assert floats.inputs[0].dtype == "float32"
    answer, other = np.asarray(whole(images)), np.asarray(floats(images.astype(np.float32)))
    assert np.array_equal(answer, other)


@pytest.mark.parametrize("batch_size", [1, 3, 10, 64])
def test_predict_answers_every_image_once_and_in_order(folder, images, batch_size):
    model = load_trained_model(folder)
    expected = np.concatenate([np.asarray(model(image[None])) for image in images])
    received = predict(model, images, batch_size, num_replicas=2)
    assert (received.shape, received.dtype) == ((10, 3), np.float32)
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_architecture_with_code_of_its_own_is_refused(folder):
    import keras

    layers = [keras.Input(_SHAPE, dtype="uint8"), keras.layers.Flatten(), keras.layers.Lambda(lambda x: x)]
    save_architecture(keras.Sequential(layers), folder)
    with pytest.raises(InputError, match=r"it contains custom code or is damaged.*[Ll]ambda"):
        load_trained_model(folder)


def test_a_model_with_code_of_its_own_is_found_before_it_is_trained():
    import keras

    class Doubling(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    def build(*layers):
        return keras.Sequential([keras.Input(_SHAPE), *layers, keras.layers.Flatten(), keras.layers.Dense(3)])

    check_rebuilds(build(keras.layers.Conv2D(2, 3)), "mine", CLASSIFICATION)
    check_rebuilds(
        keras.Model(pixels := keras.Input(_SHAPE), keras.ops.mean(pixels, (1, 2)) + 1), "mine", CLASSIFICATION
    )
    # A class that is registered is known in this process, and in no other.
    keras.saving.register_keras_serializable()(Doubling)
    before = dict(keras.saving.get_custom_objects())
    for layer, word in ((Doubling(), "Doubling"), (keras.layers.Lambda(lambda x: x), "lambda")):
        with pytest.raises(
            InputError, match=rf"cannot rebuild the model 'mine.keras' without its code \(.*{word}.*\).* Use a"
        ):
            check_rebuilds(build(layer), "mine.keras", CLASSIFICATION)
    assert keras.saving.get_custom_objects() == before
    with pytest.raises(InputError, match="cannot predict one character at a time"):
        check_rebuilds(build(), "mine", LANGUAGE_MODEL)


def test_weights_of_another_model_are_refused(folder):
    config = json.loads((folder / "architecture.json").read_text())
    for layer in config["config"]["layers"]:
        if layer["class_name"] == "Conv2D":
            layer["config"]["filters"] *= 2
    (folder / "architecture.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"Cannot load the model in {folder}"):
        load_trained_model(folder)


def test_missing_folder_is_named(tmp_path):
    device.prepare("tensorflow", "cpu", 1, "float32")
    with pytest.raises(InputError, match=r"Cannot load the model in .*gone.*Check the path"):
        load_trained_model(tmp_path / "gone")

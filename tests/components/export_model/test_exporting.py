import dataclasses
import json
import math
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.interface import TASKS, ImageInput, Interface
from tpu_components.core.models.trained import load_trained_model, predict
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.registry.versions import version_digest
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.export_model import ExportParams, comparison, export_model, exporting
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import predict_inputs
from tpu_components.train_model import train_model

# What a server does: it knows the export and nothing of this project.
_SERVE = """
import pathlib, sys
import numpy as np
import tensorflow as tf

saved_model, folder = sys.argv[1], pathlib.Path(sys.argv[2])
loaded = tf.saved_model.load(saved_model)
out = {}
for size in (1, 3, 17):
    for kind in ("png", "jpeg"):
        files = [path.read_bytes() for path in sorted(folder.glob(f"*.{kind}"))[:size]]
        pixels = np.load(folder / f"{kind}.npy")[:size]
        for given, answer in (("files", loaded.signatures["encoded"](encoded=tf.constant(files))),
                              ("pixels", loaded.signatures["serving_default"](image=tf.constant(pixels)))):
            for name, tensor in answer.items():
                value = tensor.numpy()
                out[f"{kind}_{given}_{size}_{name}"] = value.astype("U") if value.dtype == object else value
np.savez(folder / "answers.npz", **out)
"""


@pytest.fixture(scope="module")
def test_images(digits_records):
    return records.load_split(digits_records, Manifest.load(digits_records), "test").inputs


@pytest.fixture(scope="module")
def expected(trained_digits, test_images):
    from tpu_components.core.machines import device

    device.prepare("tensorflow", "cpu", 1, "float32")
    return predict(load_trained_model(trained_digits), test_images, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": -1.0}, r"tolerance=-1\.0"),
        ({"tolerance": 2.0}, r"tolerance=2\.0"),
        ({"min_agreement": 1.5}, r"min_agreement=1\.5"),
        ({"max_int8_accuracy_drop": -0.1}, r"max_int8_accuracy_drop=-0\.1"),
        ({"calibration_examples": 0}, "calibration_examples=0"),
        ({"required": ("int4",)}, r"one of saved_model, float, int8\. Received: required='int4'\. Did you mean"),
        ({"split": "dev"}, "train, validation, test.*split='dev'"),
    ],
)
def test_params_refuse_a_value_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        ExportParams(**changes)


def test_export_holds_every_format(export_dir):
    assert {path.name for path in export_dir.iterdir()} == {
        "saved_model",
        "model.tflite",
        "model_int8.tflite",
        "export.json",
    }
    assert (export_dir / "saved_model" / "saved_model.pb").is_file()


def test_export_json_describes_the_export(export_dir, digits_records, trained_digits):
    facts = json.loads((export_dir / "export.json").read_text())
    info = ModelInfo.load(trained_digits)
    assert facts["model"] == "digits_cnn"
    assert facts["class_names"] == list(info.class_names)
    assert facts["dataset_fingerprint"] == Manifest.load(digits_records).fingerprint
    assert facts["input"]["dtype"] == "uint8"
    assert facts["input"]["shape"] == [None, 8, 8, 1]
    assert facts["input"]["signatures"].keys() == {"serving_default", "encoded"}
    assert facts["compared_on"] == {"split": "test", "num_examples": 359}
    assert facts["formats"].keys() == {"saved_model", "float", "int8"}
    assert facts["left_out"] == {}
    for of_format in facts["formats"].values():
        assert of_format.keys() == {
            *("file", "bytes", "accuracy", "drop_interval", "agreement", "max_difference", "latency_ms"),
            *("examples_per_second", "latency_spread", "rate_spread"),
            "num_compared",
            "most_disagreeing",
        }
        for figure, spread in (("latency_ms", "latency_spread"), ("examples_per_second", "rate_spread")):
            least, most = of_format[spread]
            assert 0 < least <= of_format[figure] <= most
        assert (export_dir / of_format["file"]).exists()


def test_exported_formats_agree_with_the_trained_model(export_dir, expected):
    facts = json.loads((export_dir / "export.json").read_text())
    for name in ("saved_model", "float"):
        assert facts["formats"][name]["agreement"] == 1.0
        assert facts["formats"][name]["max_difference"] < 1e-5
        assert facts["formats"][name]["accuracy"] == facts["trained_accuracy"]
    assert facts["formats"]["int8"]["accuracy"] >= facts["trained_accuracy"] - 0.05


def test_int8_takes_a_third_of_the_space(export_dir):
    size = {name: (export_dir / name).stat().st_size for name in ("model.tflite", "model_int8.tflite")}
    assert size["model_int8.tflite"] <= 0.35 * size["model.tflite"]


def _serve_here(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["-c", *map(str, words)])
        code = words[-1] / "serve.py"
        code.write_text(_SERVE)
        runpy.run_path(str(code))


def _serve_apart(*words):
    subprocess.run([sys.executable, "-I", "-c", _SERVE, *words], check=True, cwd=words[-1])


@pytest.mark.parametrize("serve", [_serve_here, pytest.param(_serve_apart, marks=pytest.mark.slow)])  # 5 s: TensorFlow.
def test_saved_model_serves_pixels_and_files_also_in_a_process_of_its_own(
    export_dir, test_images, expected, tmp_path, serve
):
    for kind in ("png", "jpeg"):
        files = [tmp_path / f"{i:02d}.{kind}" for i in range(17)]
        for file, image in zip(files, test_images, strict=False):
            Image.fromarray(image[:, :, 0]).save(file)
        np.save(tmp_path / f"{kind}.npy", np.stack([np.asarray(Image.open(file))[..., None] for file in files]))
    serve(export_dir / "saved_model", tmp_path)
    with np.load(tmp_path / "answers.npz") as file:
        answers = dict(file)
    for size in (1, 3, 17):
        for kind in ("png", "jpeg"):
            for name in ("probabilities", "class_index", "class_name"):
                of_files, of_pixels = (answers[f"{kind}_{given}_{size}_{name}"] for given in ("files", "pixels"))
                assert np.array_equal(of_files, of_pixels)
        np.testing.assert_allclose(answers[f"png_pixels_{size}_probabilities"], expected[:size], atol=1e-6)
        index = answers[f"png_pixels_{size}_class_index"]
        assert np.array_equal(index, expected[:size].argmax(1))
        assert answers[f"png_pixels_{size}_class_name"].tolist() == [str(i) for i in index]


def test_saved_model_turns_photos_as_predict_does(export_dir, test_images, tmp_path):
    files = []
    for orientation, image in enumerate(test_images[:8, ..., 0], 1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files.append(tmp_path / f"{orientation}.jpeg")
        files[-1].write_bytes(encoded(image, "JPEG", exif=exif))
    signature = tf.saved_model.load(str(export_dir / "saved_model")).signatures["encoded"]
    answer = signature(encoded=tf.constant([file.read_bytes() for file in files]))
    expected = [dict(one.classes) for one in predict_inputs(export_dir, list(map(str, files)), top=10)]
    names = load_model(export_dir).class_names
    np.testing.assert_allclose(answer["probabilities"], [[one[name] for name in names] for one in expected], atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize(("file", "tolerance"), [("model.tflite", 1e-5), ("model_int8.tflite", 0.15)])
def test_lite_models_take_any_batch(export_dir, test_images, expected, file, tolerance, batch_size):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(export_dir / file))
    (given,), (answer,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert given["dtype"] == (np.uint8 if "int8" in file else np.float32)
    interpreter.resize_tensor_input(given["index"], (batch_size, 8, 8, 1))
    interpreter.allocate_tensors()
    some = test_images[:batch_size].astype(np.float64)
    if "int8" in file:
        scale, zero_point = given["quantization"]
        some = np.round(some / scale) + zero_point
    interpreter.set_tensor(given["index"], some.clip(0, 255).astype(given["dtype"]))
    interpreter.invoke()
    received = interpreter.get_tensor(answer["index"])
    assert received.shape == (batch_size, 10)
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, expected[:batch_size], atol=tolerance)


def test_disagreement_leaves_no_export(digits_records, trained_digits, tmp_path, judged_here):
    """No other program computes the last bit alike, so a tolerance of zero stands for a model that went wrong."""
    params = ExportParams(tolerance=0.0, calibration_examples=2, required=("float", "int8"))
    with pytest.raises(
        InputError,
        match=r"Nothing was exported, because required formats were left out: float, int8\. float: it differs from the "
        r"trained model on 359 examples .*, but only 0\.00e.*int8: the float model, from which .* is left out\. Check",
    ):
        export_model(params, digits_records, trained_digits, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_answers_are_no_numbers_leaves_no_export(digits_records, trained_digits, tmp_path, judged_here):
    shutil.copytree(trained_digits, tmp_path / "model")
    model = load_trained_model(trained_digits)
    model.set_weights([np.full_like(weights, np.nan) for weights in model.get_weights()])
    model.save_weights(tmp_path / "model" / "best.weights.h5")
    same = r"it differs from the trained model on \d+ examples by nan, but only 1\.00e-04 is allowed\. "
    with pytest.raises(
        InputError, match=rf"every format was left out\. saved_model: {same}float: {same}int8: the float model"
    ):
        export_model(ExportParams(), digits_records, tmp_path / "model", tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_model_of_another_data_set_is_refused(digits_records, trained_digits, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    dataclasses.replace(ModelInfo.load(model), class_names=("cat", "dog")).save(model)
    with pytest.raises(
        InputError,
        match=r"does not fit the data set: expected classification with the classes \['0', .*, received .* and images",
    ):
        export_model(ExportParams(), digits_records, model, tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("file", ["model.json", "architecture.json", "best.weights.h5"])
def test_damaged_model_is_refused_by_path(digits_records, trained_digits, tmp_path, file):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    (model / file).write_bytes((model / file).read_bytes()[:100])
    with pytest.raises(InputError, match=str(model)):
        export_model(ExportParams(), digits_records, model, tmp_path / "export")
    assert not (tmp_path / "export").exists()


_WITH_LOOP = """
import keras
from keras import layers


def build_model(image_shape, num_classes):
    image = keras.Input(image_shape, dtype="uint8")
    rows = layers.Reshape((8, 8))(layers.Rescaling(1 / 255)(image))
    answer = layers.LSTM(16, dropout=0.2, recurrent_dropout=0.2)(rows)
    return keras.Model(image, layers.Dense(num_classes, activation="softmax", dtype="float32")(answer))
"""


@pytest.mark.heavy  # Traces a loop for every format: 5 s.
def test_a_model_of_images_with_a_loop_exports(quick, digits_records, tmp_path, judged_here):
    """LiteRT has no loop over a changing batch, and calibrates none; masks of dropout are not exported."""
    (tmp_path / "loop.py").write_text(_WITH_LOOP)
    params = dataclasses.replace(quick, model=str(tmp_path / "loop.py"), model_parameters={}, epochs=1)
    train_model(params, digits_records, tmp_path / "model")
    result = export_model(ExportParams(), digits_records, tmp_path / "model", tmp_path / "export")
    assert result.formats["saved_model"]["agreement"] == result.formats["float"]["agreement"] == 1.0
    assert json.loads((tmp_path / "export" / "export.json").read_text())["quantization"] == "weights"
    images = records.load_split(digits_records, Manifest.load(digits_records), "test").inputs[:5]
    answers = [load_model(tmp_path / "export", use_int8).predict(images) for use_int8 in (False, True)]
    np.testing.assert_allclose(answers[0], answers[1], atol=0.05)


def test_pictures_with_a_margin_are_trained_on_judged_and_served_alike(quick, image_folder, tmp_path, judged_here):
    """Files of the larger size are kept to the byte, so a served model sees the very pixels that it is judged by."""
    folder = image_folder(per_class=20, size=(12, 12), kind="JPEG")
    write_records(WriteParams(f"images:{folder}", image_size=(8, 8), crop_margin=0.5), tmp_path / "records")
    params = dataclasses.replace(quick, epochs=1, batch_size_per_replica=8, random_crop_pixels=1)
    train_model(params, tmp_path / "records", tmp_path / "model")
    result = export_model(ExportParams(), tmp_path / "records", tmp_path / "model", tmp_path / "export")
    assert result.left_out == {}, "the signature for files answers as that for pixels"
    test = records.load_split(tmp_path / "records", Manifest.load(tmp_path / "records"), "test", with_keys=True)
    model = load_model(tmp_path / "export")
    assert model.input.margin == (4, 4)
    answers = predict_inputs(tmp_path / "export", [str(folder / key) for key in test.keys])
    likeliest = [dict(answer.classes)[model.class_names[0]] for answer in answers]
    np.testing.assert_array_equal(likeliest, model.predict(test.inputs)[:, 0])


def test_a_figure_that_cannot_be_measured_is_not_judged():
    """R² of a split whose targets are all equal: agreement and difference still are."""
    same = {"score": math.nan, "agreement": 1.0, "max_difference": 0.0, "drop_interval": None, "num_compared": 1}
    formats = {name: dict(same) for name in ("saved_model", "float", "int8")}
    equal = np.ones((4, 2), np.float32)
    scorer = comparison.Scorer(TASKS["regression"], "r2", equal, equal)
    assert math.isnan(scorer.trained)
    assert scorer.find_differing(ExportParams(), formats) == {}
    formats["float"]["max_difference"] = 1.0
    differing = scorer.find_differing(ExportParams(), formats)
    assert "it differs from the trained model" in differing["float"]


def _left_out(num_examples, num_lost, **params):
    """Why int8 is left out that loses some of the examples, all of which the trained model knows; None if it is not."""
    labels = np.zeros(num_examples, np.int64)
    expected = np.tile(np.float32([1, 0]), (num_examples, 1))
    answers = expected.copy()
    answers[:num_lost] = [0, 1]
    scorer = comparison.Scorer(TASKS["classification"], "accuracy", labels, expected)
    facts = {"num_compared": num_examples, **scorer.score(answers, np.arange(num_examples))}
    return scorer.find_differing(ExportParams(**params), {"int8": facts}).get("int8")


def test_one_image_of_a_small_test_split_is_chance():
    assert _left_out(72, 1) is None
    assert _left_out(72, 1, max_int8_accuracy_drop=0.0) is None
    assert _left_out(2, 0) is None
    reason = _left_out(72, 10)
    assert "loses 0.1389 of accuracy against the trained model on 72 examples, at least 0.07" in reason
    assert _left_out(10_000, 139), "the same share of more examples is none"
    assert _left_out(72, 72)


def test_an_operation_without_litert_form_leaves_the_saved_model(digits_records, tmp_path, quick, judged_here):
    """It is exported, registered under a digest of its own, and answers."""
    (tmp_path / "bicubic.py").write_text(_BICUBIC)
    params = dataclasses.replace(quick, model=str(tmp_path / "bicubic.py"), model_parameters={}, epochs=1)
    train_model(params, digits_records, tmp_path / "model")
    (tmp_path / "bicubic.py").unlink()  # Its code is kept with the model.
    required = ExportParams(required=("saved_model",))
    result = export_model(required, digits_records, tmp_path / "model", tmp_path / "export")
    assert result.formats.keys() == {"saved_model"}
    assert result.left_out.keys() == {"float", "int8"}
    assert "tf.ResizeBicubic" in result.left_out["float"]
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"saved_model", "export.json"}
    facts = json.loads((tmp_path / "export" / "export.json").read_text())
    assert facts["left_out"] == result.left_out
    assert facts["quantization"] is None
    images = records.load_split(digits_records, Manifest.load(digits_records), "test").inputs[:5]
    expected = predict(load_trained_model(tmp_path / "model"), images, 5)
    np.testing.assert_allclose(load_model(tmp_path / "export").predict(images), expected, atol=1e-5)
    with pytest.raises(
        InputError, match=r"Cannot predict with the int8 model .* it was not exported, because LiteRT does not support"
    ):
        load_model(tmp_path / "export", use_int8=True)
    before = version_digest(tmp_path / "model", tmp_path / "export")
    (tmp_path / "export" / "saved_model" / "saved_model.pb").write_bytes(b"another")
    assert version_digest(tmp_path / "model", tmp_path / "export") != before


_DIGITS = Interface(ImageInput((8, 8, 1), "raw"), 10)


def test_a_required_format_that_litert_cannot_have_is_missed_before_training(tmp_path):
    (tmp_path / "bicubic.py").write_text(_BICUBIC)
    params = TrainParams(str(tmp_path / "bicubic.py"))
    exporting.try_out(params, _DIGITS, ("saved_model",))
    with pytest.raises(InputError, match=r"export\.required=\['float'\] requires: float: .*Bicubic"):
        exporting.try_out(params, _DIGITS, ("float",))


def test_warnings_of_converters_are_hidden_also_in_a_notebook():
    """The converter to int8 warns, and in a test a warning is an error."""
    exporting.try_out(TrainParams("digits_cnn", {"filters": 2, "units": 2}), _DIGITS, ("float", "int8"))


_BICUBIC = """
import keras
from keras import layers


@keras.saving.register_keras_serializable()
class Larger(layers.Layer):
    def call(self, images):
        return keras.ops.image.resize(images, (16, 16), interpolation="bicubic")


def build_model(image_shape, num_classes):
    image = keras.Input(image_shape, dtype="uint8")
    larger = Larger()(layers.Rescaling(1 / 255)(image))
    answer = layers.Dense(num_classes, activation="softmax", dtype="float32")(layers.Flatten()(larger))
    return keras.Model(image, answer)
"""


@pytest.mark.slow  # Trains on JAX in mixed precision, in a process of its own, and exports: 25 s.
def test_model_trained_elsewhere_exports_alike(quick, digits_records, tmp_path, run_step):
    pytest.importorskip("jax", reason="needs the jax extra")
    params = dataclasses.replace(quick, backend="jax", precision="mixed_bfloat16")
    done = run_step("train_model", params, records=digits_records, output=tmp_path / "model")
    assert done.returncode == 0, done.stderr
    result = export_model(
        ExportParams(max_int8_accuracy_drop=0.05), digits_records, tmp_path / "model", tmp_path / "export"
    )
    assert result.formats["saved_model"]["agreement"] == result.formats["float"]["agreement"] == 1.0


def test_a_trial_tells_how_long_a_training_step_takes_for_an_example(tmp_path):
    """The step of a model that sleeps takes as long as it sleeps, however many examples are in the batch."""
    (tmp_path / "slow.py").write_text(
        "import time, keras\n"
        "@keras.saving.register_keras_serializable()\n"
        "class Slow(keras.Sequential):\n"
        "    def train_on_batch(self, *arguments, **options):\n"
        "        time.sleep(0.05)\n"
        "        return super().train_on_batch(*arguments, **options)\n"
        "def build_model(image_shape, num_classes):\n"
        "    return Slow([keras.Input(image_shape, dtype='uint8'), keras.layers.Flatten(),\n"
        "        keras.layers.Dense(num_classes, activation='softmax')])\n"
    )
    params = TrainParams(str(tmp_path / "slow.py"), batch_size_per_replica=8)
    trial = exporting.try_out(params, _DIGITS, (), is_timed=True)
    assert trial.example_seconds >= 0.05 / 8
    assert exporting.try_out(params, _DIGITS, ()).example_seconds == 0

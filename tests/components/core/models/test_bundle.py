"""A model's code as one file: what is in it, that nothing else is loaded, and that models with it can be rebuilt."""

import hashlib
import io
import json
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.models.bundle import data_files, fetch, importing_from, is_reference, open_bundle
from tpu_components.core.models.lookup import build_model, bundle_of, model_code
from tpu_components.core.models.trained import check_rebuilds, load_trained_model, save_architecture

_DIGITS = Interface(ImageInput((8, 8, 1), "raw"), 10)
_SCALING = """
import keras


@keras.saving.register_keras_serializable(package="mine")
class Scale(keras.layers.Layer):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, images):
        return keras.ops.cast(images, "float32") * self.factor * SCALE

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


SCALE = 1.0
"""
_MODEL = """
from pathlib import Path

import keras

FACTOR = float((Path(__file__).parent / "factor.txt").read_text())


def build_model(image_shape, num_classes):
    from my_scaling import Scale

    return keras.Sequential(
        [
            keras.Input(image_shape, dtype="uint8"),
            Scale(FACTOR),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )
"""


@pytest.fixture
def folder(tmp_path):
    """A model's file, a module that it imports when it builds, a file that it names, and what it does not need."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "my_model.py").write_text(_MODEL)
    (code / "my_scaling.py").write_text(_SCALING)
    (code / "factor.txt").write_text("0.5")
    (code / "unrelated.py").write_text("raise RuntimeError('not needed')\n")
    return code


def _save(model, name, directory):
    directory.mkdir()
    save_architecture(model, directory, check_rebuilds(model, name, "classification"))
    model.save_weights(directory / "best.weights.h5")


def test_a_bundle_holds_what_the_model_needs_and_is_equal_for_equal_files(folder):
    name = str(folder / "my_model.py")
    bundle = bundle_of(name)
    (folder / "unrelated.py").write_text("")
    assert bundle_of(name) == bundle
    assert bundle.name == "my_model.zip"
    (folder / "my_scaling.py").write_text(_SCALING + "\n")
    assert bundle_of(name).digest != bundle.digest
    (folder / "bundle.zip").write_bytes(bundle.content)
    with zipfile.ZipFile(folder / "bundle.zip") as zipped:
        assert set(zipped.namelist()) == {"bundle.json", "my_model.py", "my_scaling.py", "factor.txt"}
        assert json.loads(zipped.read("bundle.json")) == {"model": "my_model.py"}


def test_what_a_bundle_holds_beside_code_is_told(folder):
    assert data_files(bundle_of(str(folder / "my_model.py"))) == {"factor.txt": 3}


@pytest.mark.parametrize(
    "credentials",
    ['{"type": "service_account"}', '{"private_key": "-----BEGIN"}', "-----BEGIN EC PRIVATE KEY-----\nMHc"],
)
def test_credentials_do_not_travel(folder, credentials):
    (folder / "my_scaling.py").write_text("KEY = 'key.json'\n")
    (folder / "key.json").write_text(json.dumps({"type": "labels"}))
    assert "key.json" in data_files(bundle_of(str(folder / "my_model.py")))
    (folder / "key.json").write_text(credentials)
    with pytest.raises(InputError, match=r"my_model\.py' .*: its code uses 'key\.json', which contains cred"):
        bundle_of(str(folder / "my_model.py"))


@pytest.mark.parametrize("name", ["factor.txt", "mine.keras"])
def test_what_is_too_large_does_not_travel(folder, name):
    with open(folder / name, "wb") as file:
        file.truncate((256 << 20) + 1)
    model = folder / (name if name.endswith(".keras") else "my_model.py")
    with pytest.raises(
        InputError,
        match=rf"at most 268,435,456 bytes of files, received 268,.*The largest file is '{name}'\. Put large files",
    ):
        bundle_of(str(model))


def test_what_every_machine_has_needs_no_bundle():
    assert bundle_of("digits_cnn") is None
    assert bundle_of("json:loads") is None


def test_a_model_is_built_from_its_bundle_wherever_that_lies(folder, tmp_path, bucket):
    bundle = bundle_of(str(folder / "my_model.py"))
    for root in (str(tmp_path / "kept"), "gs://bucket/models"):
        reference = bundle.reference(root)
        assert is_reference(reference)
        if root.startswith("gs://"):
            bucket.blob(reference.removeprefix("gs://bucket/")).upload_from_string(bundle.content)
        else:
            _store(bundle, root)
        model = build_model(reference, _DIGITS, {})
        assert model.layers[0].factor == 0.5
        assert bundle_of(reference) == bundle
        assert model_code(reference).digest == model_code(str(folder / "my_model.py")).digest


def test_another_file_under_a_digest_is_refused(folder, tmp_path):
    bundle = bundle_of(str(folder / "my_model.py"))
    place = tmp_path / bundle.digest
    place.mkdir()
    (place / "my_model.zip").write_bytes(bundle.content + b"more")
    message = rf"The code in .* has been changed: expected SHA-256 {bundle.digest[:16]}…, received "
    with pytest.raises(InputError, match=message):
        build_model(str(place / "my_model.zip"), _DIGITS, {})
    with pytest.raises(InputError, match=message):
        bundle_of(str(place / "my_model.zip"))


def test_what_is_no_bundle_is_refused_every_time_and_leaves_nothing(folder):
    bundle = bundle_of(str(folder / "my_model.py"))
    all_opened = open_bundle(bundle.content, bundle.digest, bundle.name).folder.parent
    before = set(all_opened.iterdir())
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as zipped:
        zipped.writestr("my_model.py", "")
    for content in (b"no archive", b"no archive", other.getvalue()):
        with pytest.raises(
            InputError, match=r"Cannot open the code in code\.zip: it is not a bundle.* Expected the path"
        ):
            open_bundle(content, hashlib.sha256(content).hexdigest(), "code.zip")
        assert set(all_opened.iterdir()) == before


def test_a_keras_file_is_its_own_bundle(tmp_path):
    import keras

    layers = [keras.Input((8, 8, 1), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    path = tmp_path / "mine.keras"
    keras.Sequential(layers).save(path)
    bundle = bundle_of(str(path))
    assert build_model(_store(bundle, tmp_path), _DIGITS, {}).count_params() == 650


def test_a_model_with_layers_of_its_own_is_rebuilt_from_the_code_beside_it(folder, tmp_path):
    """Two models whose modules have the same names, from code that has changed between them and is gone since."""
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 1), np.uint8)
    name, expected = str(folder / "my_model.py"), {}
    for version, scale in (("first", "1.0"), ("second", "0.125")):
        (folder / "my_scaling.py").write_text(_SCALING.replace("SCALE = 1.0", f"SCALE = {scale}"))
        _forget("my_scaling")
        model = build_model(name, _DIGITS, {})
        _save(model, name, tmp_path / version)
        expected[version] = model.predict(images, verbose=0)
    shutil.rmtree(folder)
    _forget("my_scaling")
    models = {version: load_trained_model(tmp_path / version) for version in expected}
    for version, model in models.items():
        np.testing.assert_allclose(model.predict(images, verbose=0), expected[version], atol=1e-6)
        assert str(folder) not in type(model.layers[0]).call.__code__.co_filename
    code = tmp_path / "second" / "code.zip"
    code.write_bytes((tmp_path / "first" / "code.zip").read_bytes())
    with pytest.raises(InputError, match=r"The code in .*second/code\.zip"):
        load_trained_model(tmp_path / "second")


_PARTS = """
RUN = []


def scale():
    from .deep.constants import SCALE

    return SCALE * len(RUN)


from . import deep
"""


def test_layers_of_two_bundles_that_import_when_called_import_each_their_own_modules(folder, tmp_path):
    """A champion and a challenger of one name, in one process; with a package whose modules import each other."""
    images = np.ones((1, 8, 8, 1), np.uint8)
    expected = {}
    scaling = _SCALING.replace("        return keras", "        from my_parts import scale\n\n        return keras", 1)
    scaling = scaling.replace("* SCALE", "* scale()").replace('"factor": self.factor}', '"factor": 0.0}')
    lazy = "        from my_parts.deep.constants import BIAS\n\n        self.factor = factor + BIAS"
    (folder / "my_scaling.py").write_text(scaling.replace("        self.factor = factor", lazy))
    (folder / "my_parts" / "deep").mkdir(parents=True)
    (folder / "my_parts" / "__init__.py").write_text(_PARTS)
    (folder / "my_parts" / "deep" / "__init__.py").write_text("import my_parts\n\nmy_parts.RUN.append(1)\n")
    (folder / "my_model.py").write_text(_MODEL.replace("Scale(FACTOR)", "Scale(0.0)"))
    name = str(folder / "my_model.py")
    for version, number in (("first", 1.0), ("second", 0.125)):
        (folder / "my_parts" / "deep" / "constants.py").write_text(f"SCALE = {number}\nBIAS = {number}\n")
        _forget("my_scaling", "my_parts")
        model = build_model(name, _DIGITS, {})
        _save(model, name, tmp_path / version)
        expected[version] = model.predict(images, verbose=0)
    shutil.rmtree(folder)
    _forget("my_scaling", "my_parts")
    models = {version: load_trained_model(tmp_path / version) for version in expected}
    for version, model in models.items():
        np.testing.assert_allclose(model.predict(images, verbose=0), expected[version], atol=1e-6)
        assert float(model.layers[0](images)[0, 0, 0, 0]) == {"first": 1.0, "second": 0.125**2}[version]


_OWN = """
import keras


@keras.saving.register_keras_serializable()
class Twice(keras.layers.Layer):
    def call(self, images):
        parts = __import__("my_parts.numbers", fromlist=["TWO"])
        from my_parts import numbers

        return keras.ops.cast(images, "float32") * numbers.TWO * (parts is numbers)


def build_model(image_shape, num_classes):
    layers = [keras.Input(image_shape, dtype="uint8"), Twice(), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    return keras.Sequential([*layers, keras.layers.Softmax()])
"""


def test_a_layer_in_the_models_own_file_may_import_when_it_is_called_also_in_threads(folder, tmp_path):
    (folder / "my_parts").mkdir()
    (folder / "my_parts" / "numbers.py").write_text("TWO = 2\n")
    (folder / "my_model.py").write_text(_OWN.replace("import keras\n", "import keras\nimport my_parts.numbers\n", 1))
    bundle = bundle_of(str(folder / "my_model.py"))
    reference = _store(bundle, tmp_path / "bucket")
    shutil.rmtree(folder)
    _forget("my_parts")
    twice = build_model(reference, _DIGITS, {}).layers[0]
    with importing_from(fetch(reference)):
        pass  # As a second model does; what was imported before is there again.
    images = np.full((1, 8, 8, 1), 3, np.uint8)
    here = Path.cwd()
    with ThreadPoolExecutor(8) as pool:
        assert {float(answer[0, 0, 0, 0]) for answer in pool.map(twice.call, [images] * 200)} == {6.0}
    assert Path.cwd() == here


def test_an_error_of_a_bundles_module_names_the_line_of_the_module(folder, tmp_path):
    (folder / "my_scaling.py").write_text("\n\nimport there_is_no_such_library\n")
    bundle = bundle_of(str(folder / "my_model.py"))
    reference = _store(bundle, tmp_path / "bucket")
    _forget("my_scaling")
    with pytest.raises(InputError, match=r"\(my_scaling\.py, line 3\).*there_is_no_such_library"):
        build_model(reference, _DIGITS, {})


def _store(bundle, root):
    """Write a bundle below a folder, and return its reference."""
    place = Path(bundle.reference(str(root)))
    place.parent.mkdir(parents=True)
    place.write_bytes(bundle.content)
    return str(place)


def _forget(*names):
    """Let the next import of these modules run them again."""
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


def test_a_model_of_keras_layers_carries_no_code(tmp_path):
    _save(build_model("digits_cnn", _DIGITS, {"filters": 2, "units": 2}), "digits_cnn", tmp_path / "model")
    assert not (tmp_path / "model" / "code.zip").exists()


def test_what_is_not_registered_is_refused_with_what_to_write(folder):
    name = str(folder / "my_model.py")
    (folder / "my_scaling.py").write_text(
        _SCALING.replace('@keras.saving.register_keras_serializable(package="mine")', "")
    )
    _forget("my_scaling")
    with pytest.raises(
        InputError, match=r"cannot rebuild .* from its file \(.*Scale.*\).* Put @keras\.saving\.register_keras_ser"
    ):
        check_rebuilds(build_model(name, _DIGITS, {}), name, "classification")


_SUBCLASSED = """
import keras


@keras.saving.register_keras_serializable()
class Net(keras.Model):
    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.flatten = keras.layers.Flatten()
        self.answer = keras.layers.Dense(num_classes, activation="softmax")

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}

    def build(self, shape):
        self.answer.build(self.flatten.compute_output_shape(shape))

    def call(self, images):
        return self.answer(self.flatten(images) / 255)


def build_model(image_shape, num_classes):
    return Net(num_classes)
"""


def test_a_subclassed_model_is_called_on_its_input_and_rebuilt(folder, tmp_path):
    name = str(folder / "net.py")
    (folder / "net.py").write_text(_SUBCLASSED)
    model = build_model(name, _DIGITS, {})
    assert (model.input_shape, model.output_shape, model.count_params()) == ((None, 8, 8, 1), (None, 10), 650)
    _save(model, name, tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 1), np.uint8)
    again = load_trained_model(tmp_path / "model")
    np.testing.assert_allclose(again.predict(images, verbose=0), model.predict(images, verbose=0), atol=1e-6)


def test_a_subclassed_model_without_its_configuration_is_told_what_to_write(folder):
    (folder / "net.py").write_text(_SUBCLASSED.replace("def get_config", "def other"))
    name = str(folder / "net.py")
    with pytest.raises(
        InputError, match=r"net\.py' cannot be saved: Object Net was created by .* Give each class, .* a get_con"
    ):
        check_rebuilds(build_model(name, _DIGITS, {}), name, "classification")


def test_a_subclassed_model_that_cannot_be_called_on_keras_input_is_told_how(folder):
    (folder / "net.py").write_text(_SUBCLASSED.replace("return self.answer(", "return images.numpy() + self.answer("))
    with pytest.raises(
        InputError, match=r"Cannot call the model .* on keras\.Input\(\(8, 8, 1\)\): .*numpy.*keras\.ops in call"
    ):
        build_model(str(folder / "net.py"), _DIGITS, {})

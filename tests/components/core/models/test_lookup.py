import importlib
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from tests.support.cli import COMPONENTS, REPOSITORY, readme_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import LANGUAGE_MODEL, CorpusInput, ImageInput, Interface, TextInput
from tpu_components.core.machines import device
from tpu_components.core.models.lookup import brought_by, build_model, check_model, model_code, source_files
from tpu_components.core.models.ready import REGISTRY
from tpu_components.core.models.trained import check_rebuilds

_SHAPE, _CLASSES = (8, 8, 1), 10
_DIGITS = Interface(ImageInput(_SHAPE, "raw"), _CLASSES)
_IMDB = Interface(TextInput(250, 15_000, "f" * 64, "words", "start"), 2)
_LABELS = Interface(ImageInput(_SHAPE, "raw"), 3, "multi_label")
_NUMBERS = Interface(ImageInput(_SHAPE, "raw"), 2, "regression", (3.5, 2000.0), (1.5, 0.25))
_PAIR = Interface(ImageInput(_SHAPE, "raw"), 2)
_NUMBER = Interface(ImageInput(_SHAPE, "raw"), 1, "regression", (3.5,), (1.5,))
_PICTURES = Interface(ImageInput((32, 32, 3), "raw"), 10)
_MNIST = Interface(ImageInput((28, 28, 1), "raw"), 10)
_SOURCE = """
import keras

def build_model(image_shape, num_classes, units=4):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
        keras.layers.Dense(units),
        keras.layers.Dense(num_classes, activation="softmax")])
"""


@pytest.fixture(autouse=True)
def _tensorflow():
    device.prepare("tensorflow", "cpu", 1, "float32")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my_digits.py"
    path.write_text(_SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "interface", "num_parameters"),
    [
        ("digits_cnn", _DIGITS, 151_306),
        ("mnist_cnn", _MNIST, 468_202),
        ("fashion_mnist_cnn", _MNIST, 437_482),
        ("cifar10_cnn", _PICTURES, 1_676_982),
        ("cifar10_resnet", _PICTURES, 274_042),
        ("mobilenet_v2", _PICTURES, 2_270_794),
        ("imdb_lstm", _IMDB, 496_705),
    ],
)
def test_models_are_as_large_as_their_docstrings_say_and_give_probabilities(name, interface, num_parameters):
    model = build_model(name, interface, {})
    assert model.count_params() == num_parameters
    documented = importlib.import_module(REGISTRY[name]).build_model.__doc__
    assert f"{num_parameters:,} parameters" in documented
    answer = np.asarray(model(np.full((2, *interface.input.shape), 255, interface.input.dtype)))
    assert answer.shape == (2, interface.num_classes)
    np.testing.assert_allclose(answer.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_registered_models_give_probabilities_for_texts(num_classes):
    model = build_model("imdb_lstm", Interface(TextInput(9, 50, "f" * 64, "words", "start"), num_classes), {})
    ids = np.random.default_rng(0).integers(0, 50, (4, 9)).astype(np.int32)
    answer = np.asarray(model(ids))
    assert answer.shape == (4, num_classes)
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer.sum(axis=1), 1, rtol=1e-5)
    assert len(np.unique(answer[:, 0])) == 4


def test_an_lstm_written_out_gives_the_same_answers():
    interface = Interface(TextInput(9, 50, "f" * 64, "words", "start"), 2)
    loop, written_out = (build_model("imdb_lstm", interface, {"unroll": unroll}) for unroll in (False, True))
    written_out.set_weights(loop.get_weights())
    ids = np.random.default_rng(0).integers(0, 50, (4, 9)).astype(np.int32)
    np.testing.assert_allclose(np.asarray(written_out(ids)), np.asarray(loop(ids)), atol=1e-6)


def test_a_backbone_takes_its_weights_from_a_file_that_fits(tmp_path):
    import keras

    small = {"alpha": 0.35, "weights": str(tmp_path / "small.weights.h5")}
    backbone = keras.applications.MobileNetV2((32, 32, 3), 0.35, include_top=False, weights=None)
    backbone.save_weights(small["weights"])
    built = build_model("mobilenet_v2", _PICTURES, small).get_layer("backbone")
    pairs = zip(built.get_weights(), backbone.get_weights(), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    for parameters, said in (
        ({**small, "alpha": 0.5}, "with the same alpha"),
        ({**small, "weights": str(tmp_path / "none.weights.h5")}, "there is no such file"),
    ):
        with pytest.raises(InputError, match=f"Cannot load the weights .*{said}"):
            build_model("mobilenet_v2", _PICTURES, parameters)
    with pytest.raises(InputError, match=r"colour images of at least 32×32 pixels\. Received: 28×28×1"):
        build_model("mobilenet_v2", _MNIST, {})


@pytest.mark.parametrize("depth", [20, 32])
def test_resnet_has_as_many_layers_as_its_depth(depth):
    """As the paper counts: convolutions and the dense layer, without those of the shortcuts."""
    model = build_model("cifar10_resnet", _PICTURES, {"depth": depth})
    kernels = [v.shape for v in model.trainable_variables if len(v.shape) > 1]
    assert sum(shape[:2] != (1, 1) for shape in kernels) == depth
    assert [shape for shape in kernels if shape[:2] == (1, 1)] == [(1, 1, 16, 32), (1, 1, 32, 64)]


def test_resnet_halves_the_image_twice_and_once_more_with_a_pooled_stem():
    for parameters, size in (({}, 8), ({"stem_pooling": True, "width": 32}, 4)):
        model = build_model("cifar10_resnet", _PICTURES, parameters)
        assert model.layers[-3].output.shape[1:3] == (size, size)
    assert model.count_params() == 1_087_722


@pytest.mark.parametrize(("depth", "nearest"), [(18, 20), (21, 20), (110, 56), (31, 32)])
def test_resnet_of_no_such_depth_is_refused_with_the_nearest(depth, nearest):
    with pytest.raises(InputError, match=rf"6n \+ 2, from 20 to 56\. Received: depth={depth}\. Try depth={nearest}"):
        build_model("cifar10_resnet", _PICTURES, {"depth": depth})


def test_cifar10_cnn_is_the_network_of_the_tutorial():
    layers = build_model("cifar10_cnn", _PICTURES, {}).layers
    assert [type(layer).__name__ for layer in layers] == [
        *("Rescaling", "BatchNormalization", "Conv2D", "Conv2D", "MaxPooling2D", "Dropout"),
        *("BatchNormalization", "Conv2D", "Conv2D", "MaxPooling2D", "Dropout"),
        *("Flatten", "Dense", "Dropout", "Dense"),
    ]
    assert [layer.filters for layer in layers if type(layer).__name__ == "Conv2D"] == [32, 32, 64, 64]
    assert [layer.rate for layer in layers if type(layer).__name__ == "Dropout"] == [0.25, 0.25, 0.5]


def test_unknown_model_is_refused_with_the_nearest_name():
    with pytest.raises(
        InputError, match=r"Unknown model 'cifar_cnn'.*cifar10_cnn, .*digits_cnn, .*Did you mean 'cifar10_cnn'"
    ):
        check_model("cifar_cnn")
    with pytest.raises(InputError, match=r"Unknown model 'zzz'.*module:function\.$"):
        check_model("zzz")


def test_parameters_that_the_model_does_not_take_are_named():
    with pytest.raises(InputError, match=r"Unknown parameter 'layers'.*\['dropout', 'filters', 'units'\]"):
        build_model("digits_cnn", _DIGITS, {"layers": 3})


def test_model_from_a_python_file(source):
    model = build_model(str(source), _DIGITS, {"units": 3})
    assert model.count_params() == 65 * 3 + 4 * 10


def test_model_from_a_module_and_function(source, monkeypatch):
    monkeypatch.syspath_prepend(source.parent)
    assert build_model("my_digits:build_model", _DIGITS, {}).output_shape == (None, 10)
    del sys.modules["my_digits"]


_TEXT_SOURCE = """
import keras

def build_model(vocabulary_size, num_tokens, num_classes):
    return keras.Sequential([
        keras.Input((num_tokens,), dtype="int32"), keras.layers.Embedding(vocabulary_size, 2),
        keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(num_classes, activation="softmax")])
"""
_REVIEWS = Interface(TextInput(5, 20, "f" * 64, "words", "start"), 2)


def test_model_of_texts_is_built_from_their_facts(tmp_path):
    (tmp_path / "words.py").write_text(_TEXT_SOURCE)
    model = build_model(str(tmp_path / "words.py"), _REVIEWS, {})
    assert (model.input_shape, model.output_shape, model.count_params()) == ((None, 5), (None, 2), 20 * 2 + 3 * 2)


def test_one_function_builds_models_of_images_and_of_texts(tmp_path):
    path = tmp_path / "either.py"
    path.write_text(
        "import keras\n"
        "def build_model(num_classes, image_shape=None, num_tokens=0, vocabulary_size=0):\n"
        "    shape = image_shape or (num_tokens,)\n"
        "    return keras.Sequential([keras.Input(shape, dtype='uint8' if image_shape else 'int32'),\n"
        "        keras.layers.Flatten(), keras.layers.Dense(num_classes, activation='softmax')])\n"
    )
    assert build_model(str(path), _DIGITS, {}).input_shape == (None, 8, 8, 1)
    assert build_model(str(path), _REVIEWS, {}).input_shape == (None, 5)


def test_model_of_the_other_kind_of_data_is_refused_in_words(tmp_path):
    path = tmp_path / "words.py"
    path.write_text(_TEXT_SOURCE)
    with pytest.raises(
        InputError, match=r"words\.py' needs vocabulary_size, num_tokens, which the data \(images for classification\)"
    ):
        build_model(str(path), _DIGITS, {})
    with pytest.raises(InputError, match=r"'digits_cnn' needs image_shape, which the data \(texts for "):
        build_model("digits_cnn", _REVIEWS, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "",
            r"image_shape=\(8, 8, 1\), num_c.*: got an .* 'image_shape'\. The function has the parameters \(\)\.",
        ),
        (
            "shape, num_classes",
            r"missing a required argument: 'shape'\. The function has the parameters \(shape, num_classes\)\.",
        ),
        ("shape, classes, /", r"missing a required .*'shape'.* has the parameters \(shape, classes, /\)\."),
        (
            "image_shape, num_classes, units",
            r"with the keyword arguments image_shape=.*: missing a required argument: 'units'\. The function has the",
        ),
    ],
)
def test_builder_with_the_wrong_arguments_is_told_what_it_gets(tmp_path, arguments, said):
    path = tmp_path / "mine.py"
    path.write_text(f"def build_model({arguments}):\n    pass\n")
    with pytest.raises(InputError, match=rf"{said}.* Write def build_model\(image_shape, num_classes\)"):
        build_model(str(path), _DIGITS, {})


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize(
    "code",
    [
        "class Net(nn.Module):\n    pass",
        "class Net(nn.Module):\n    pass\ndef build_model(image_shape, num_classes):\n    return Net()",
    ],
)
def test_pytorch_code_is_told_that_keras_is_expected(tmp_path, monkeypatch, code, is_installed):
    path = tmp_path / "mine.py"
    path.write_text(f"import torch.nn as nn\n{code}\n")
    for name in ("torch", "torch.nn"):
        module = types.ModuleType(name) if is_installed else None  # With None an import raises ModuleNotFoundError.
        monkeypatch.setitem(sys.modules, name, module)
    if is_installed:
        sys.modules["torch"].nn = sys.modules["torch.nn"]
        sys.modules["torch.nn"].Module = type("Module", (), {"__module__": "torch.nn.modules.module"})
    with pytest.raises(
        InputError, match=r"This is PyTorch code, .* a Keras model is required: write the model with keras\.layers\.$"
    ):
        build_model(str(path), _DIGITS, {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py", r"Cannot read the model 'nowhere\.py'"),
        ("nowhere.keras", r"Cannot read the model 'nowhere\.keras'"),
        ("no_such_module:build", r"Cannot import the model's module 'no_such_module'"),
        ("json:no_such_function", r"does not define no_such_function\("),
    ],
)
def test_model_that_is_not_there_is_named(name, message):
    with pytest.raises(InputError, match=message):
        build_model(name, _DIGITS, {})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import no_such_package",
            r"Cannot import .*mine\.py': ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("layers = keras.layers", r"Cannot import the model .*mine\.py': NameError: name 'keras' is not defined"),
        ("def build_model(:\n", r"Cannot import the model .*mine\.py.*invalid syntax"),
        ("def build_model(image_shape, num_classes):\n    kears", r"Cannot build the model .*NameError: name 'kears'"),
        (
            "def build_model(image_shape, num_classes):\n    return 1 / 0\n",
            r"with the parameters \{\} \(mine.py, line 2\): ZeroDivisionError: division by zero",
        ),
        (
            "def build_model(image_shape, num_classes):\n    pass",
            r"is not a Keras model: .*received NoneType. Return a Keras model",
        ),
        (
            "import keras\n"
            "def build_model(image_shape, num_classes):\n"
            "    image = keras.Input(image_shape, dtype='uint8')\n"
            "    answer = keras.layers.Dense(num_classes, activation='softmax')(keras.layers.Flatten()(image))\n"
            "    return keras.Model(image, {'answer': answer})",
            r"is a mapping: expected a tensor",
        ),
        (
            "import keras\n"
            "def build_model(image_shape, num_classes):\n"
            "    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(7, activation='softmax')])",
            r"output \(None, 10\), received .* and \(None, 7\)",
        ),
    ],
)
def test_mistakes_in_a_models_file_are_told_in_a_sentence(tmp_path, code, message):
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(InputError, match=message):
        build_model(str(path), _DIGITS, {})


def test_a_models_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "my_blocks.py").write_text(
        "from keras import layers\ndef head(n): return layers.Dense(n, activation='softmax')\n"
    )
    (tmp_path / "mine.py").write_text(
        "import keras\n"
        "def build_model(image_shape, num_classes):\n"
        "    from my_blocks import head\n"
        "    return keras.Sequential(\n"
        "        [keras.Input(image_shape, dtype='uint8'), keras.layers.Flatten(), head(num_classes)])\n"
    )
    assert build_model(str(tmp_path / "mine.py"), _DIGITS, {}).count_params() == 65 * 10


@pytest.mark.parametrize(
    ("file", "interface"),
    [
        ("my_classifier.py", _DIGITS),
        ("my_labels.py", _LABELS),
        ("my_numbers.py", _NUMBERS),
        ("my_texts.py", _IMDB),
        ("my_characters.py", Interface(CorpusInput(8, 50), 50, LANGUAGE_MODEL)),
    ],
)
def test_the_readmes_models_fit_what_they_are_for(tmp_path, file, interface):
    (tmp_path / file).write_text(readme_model(file))
    check_rebuilds(build_model(str(tmp_path / file), interface, {}), file, interface.task_name)


def test_the_files_of_a_model_are_those_that_it_imports(tmp_path, monkeypatch):
    for name, text in {
        "mine.py": "from blocks import tail\nimport nets.small",
        "beside.py": "",
        "blocks/__init__.py": "",
        "blocks/tail.py": "def tail():\n    from . import deep",
        "blocks/deep/__init__.py": "import numpy",
        "data/script.py": "",
        "nets/__init__.py": "import nets.layers",
        "nets/layers.py": "",
        "nets/small/__init__.py": "from .. import layers",
        "nets/small/cnn.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def names(model):
        return {str(path.relative_to(tmp_path)) for path in source_files(model)}

    small = {"nets/__init__.py", "nets/layers.py", "nets/small/__init__.py"}
    mine = {"mine.py", "blocks/__init__.py", "blocks/tail.py", "blocks/deep/__init__.py"} | small
    assert names(str(tmp_path / "mine.py")) == mine
    monkeypatch.syspath_prepend(tmp_path)
    assert names("mine:build_model") == mine
    assert names("nets.small:build_model") == small
    assert names("nets.small.cnn:build_model") == {"nets/__init__.py", "nets/small/__init__.py", "nets/small/cnn.py"}
    assert names("nets:build_model") == {"nets/__init__.py", "nets/layers.py"}
    assert source_files("digits_cnn") == []


def test_an_installed_models_code_is_its_own_package_alone(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    for name in ("their_nets/__init__.py", "their_nets/cnn.py", "other/__init__.py"):
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text("import numpy")
    monkeypatch.syspath_prepend(installed)
    assert model_code("their_nets.cnn:build_model").files.keys() == {"their_nets/__init__.py", "their_nets/cnn.py"}


@pytest.mark.parametrize("folder", [REPOSITORY, REPOSITORY.parent, COMPONENTS, COMPONENTS.parent])
def test_a_model_that_imports_a_ready_one_has_the_same_code_from_every_working_directory(folder, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from tpu_components.core.models.ready.digits_cnn import build_model\n")
    elsewhere = model_code(str(tmp_path / "mine.py")).files
    monkeypatch.chdir(folder)
    assert model_code(str(tmp_path / "mine.py")).files == elsewhere
    assert {"mine.py", "tpu_components/core/models/ready/digits_cnn.py"} <= elsewhere.keys()


def _keras_file(path, *layers):
    import keras

    keras.Sequential([keras.Input(_SHAPE, dtype="uint8"), *layers]).save(path)
    return str(path)


def test_model_from_a_keras_file(tmp_path):
    from keras import layers

    name = _keras_file(tmp_path / "a.keras", layers.Flatten(), layers.Dense(_CLASSES, activation="softmax"))
    assert build_model(name, _DIGITS, {}).count_params() == 65 * 10


def test_keras_file_with_code_of_its_own_is_refused(tmp_path):
    from keras import layers

    name = _keras_file(tmp_path / "a.keras", layers.Flatten(), layers.Lambda(lambda x: x), layers.Dense(_CLASSES))
    with pytest.raises(InputError, match=r"Cannot load the model file .*a\.keras.*custom code"):
        build_model(name, _DIGITS, {})


def test_keras_file_takes_no_parameters(tmp_path):
    path = tmp_path / "a.keras"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"does not accept parameters\. Received: \['units'\]"):
        check_model(str(path), {"units": 3})


def test_damaged_keras_file_is_refused(tmp_path):
    path = tmp_path / "a.keras"
    path.write_bytes(b"no zip file")
    with pytest.raises(InputError, match=r"Cannot load the model file .*a\.keras"):
        build_model(str(path), _DIGITS, {})


def _ending_in(tmp_path, last, fact="num_classes"):
    path = tmp_path / "my_model.py"
    path.write_text(
        "import keras\nfrom keras import layers\n\n"
        f"def build_model(image_shape, {fact}):\n"
        '    inputs = keras.Input(image_shape, dtype="uint8")\n'
        f"    body = layers.Flatten()(inputs)\n"
        f"    return keras.Model(inputs, {last})\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("interface", "last", "message"),
    [
        (
            _LABELS,
            'layers.Dense(num_classes, activation="softmax")(body)',
            "multi_label .*last layer with sigmoid.*with softmax",
        ),
        (
            _NUMBERS,
            'layers.Dense(num_targets, activation="sigmoid")(body)',
            "regression .*without an activation.*sigmoid",
        ),
        (
            _NUMBERS,
            'layers.Dense(num_targets, activation="relu")(body)',
            "without an activation, received one with relu",
        ),
        (_NUMBERS, "layers.Softmax()(layers.Dense(num_targets)(body))", "received one with softmax"),
        (
            _DIGITS,
            'layers.Dense(num_classes, activation="sigmoid")(body)',
            "classification .*last layer with softmax.*sigmoid",
        ),
        (_NUMBERS, "layers.Dense(num_targets + 1)(body)", r"expected input .* and output \(None, 2\).*\(None, 3\)"),
    ],
)
def test_model_that_cannot_give_the_tasks_answers_is_refused(tmp_path, interface, last, message):
    fact = "num_targets" if interface is _NUMBERS else "num_classes"
    with pytest.raises(InputError, match=message):
        build_model(_ending_in(tmp_path, last, fact), interface, {})


_SIGMOID = 'layers.Dense(1, activation="sigmoid")(body)'


@pytest.mark.parametrize(
    ("last", "is_logit"),
    [
        (_SIGMOID, False),
        ("layers.Activation('sigmoid', dtype='float32')(layers.Dense(1)(body))", False),
        ("keras.ops.sigmoid(layers.Dense(1)(body))", False),
        ("layers.Reshape((1,))(layers.Dense(1, activation='sigmoid')(body))", False),
        ("layers.Activation('linear', dtype='float32')(layers.Dense(1, activation='sigmoid')(body))", False),
        ("keras.Sequential([layers.Dense(1, activation='sigmoid')])(body)", False),
        ("layers.Dense(1)(body)", True),
        ("layers.Activation('linear', dtype='float32')(layers.Dense(1)(body))", True),
    ],
)
def test_one_output_for_two_classes_is_the_probability_of_the_second(tmp_path, last, is_logit):
    warnings = []
    model = build_model(_ending_in(tmp_path, last), _PAIR, {}, warnings.append)
    assert model.output_shape == (None, 2)
    images = np.random.default_rng(0).integers(0, 9, (20, *_SHAPE), np.uint8)
    answers = np.asarray(model(images))
    kernel, _ = model.get_weights()
    logits = images.reshape(20, -1) @ kernel.astype(np.float64)
    np.testing.assert_allclose(answers[:, 1], 1 / (1 + np.exp(-logits[:, 0])), atol=1e-5)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-6)
    assert any("logits, and sigmoid is added" in warning for warning in warnings) == is_logit
    assert warnings[-1].endswith("is used as the probability of the second class.")


@pytest.mark.parametrize(
    ("interface", "last", "message"),
    [
        (
            _PAIR,
            "layers.Dense(1, activation='softmax')(body)",
            r'always 1\. End .*Dense\(1, activation="sigmoid"\), or',
        ),
        (
            _PAIR,
            "layers.Dense(1, activation='tanh')(body)",
            r'layer with sigmoid, received .*tanh\. End the model with keras\.layers\.Dense\(1, activation="sigmoid"\)',
        ),
        (_PAIR, "keras.ops.squeeze(layers.Dense(1)(body), -1)", r"End the model with keras\.layers\.Reshape\(\(1,\)\)"),
        (_PAIR, "[layers.Dense(1)(body), layers.Dense(2)(body)]", r"with a single output that ends with"),
        (
            _PAIR,
            "layers.Dense(2, activation='sigmoid')(body)",
            r'End the model with .*Dense\(num_classes, activation="softmax"',
        ),
        (
            _PAIR,
            "layers.Reshape((1, 1))(layers.Dense(1)(body))",
            r"End the model with keras\.layers\.Reshape\(\(1,\)\)",
        ),
        (
            _PAIR,
            "layers.Reshape((1, 2))(layers.Dense(2)(body))",
            r"End the model with keras\.layers\.Reshape\(\(2,\)\)",
        ),
        (
            _PAIR,
            "layers.Dense(2)(layers.Reshape((8, 8))(body))",
            r"keras\.layers\.Flatten\(\), or .* pooling layer, before",
        ),
        (_DIGITS, _SIGMOID, r'End the model with keras\.layers\.Dense\(num_classes, activation="softmax"\)'),
        (_DIGITS, "layers.Dense(1, activation='softmax')(body)", r'output \(None, 10\).*activation="softmax"\)'),
        (_LABELS, _SIGMOID, r'End the model with keras\.layers\.Dense\(num_classes, activation="sigmoid"\)'),
        (
            _NUMBER,
            _SIGMOID,
            r"last layer without an activation, .* End the model with keras\.layers\.Dense\(num_targets\)",
        ),
        (_NUMBER, "layers.ReLU()(layers.Dense(1)(body))", r"without an activation, received one with relu"),
        (
            _NUMBER,
            "layers.Dense(1, activation='softmax')(body)",
            r"always 1\. End the model with .*Dense\(num_targets\)\.",
        ),
    ],
)
def test_what_to_write_is_said_of_an_ending_that_does_not_fit(tmp_path, interface, last, message):
    with pytest.raises(InputError, match=message):
        build_model(_ending_in(tmp_path, last, interface.task.size_fact), interface, {})


def test_one_output_of_a_file_whose_layers_have_keras_default_names_gets_the_other_class(tmp_path):
    import keras

    layers = [keras.Input(_SHAPE), keras.layers.Rescaling(1 / 255, name="rescaling"), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
    model.save(tmp_path / "binary.keras")
    keras.utils.clear_session()  # As in a new process, in which the next Rescaling is called `rescaling`, too.
    assert build_model(str(tmp_path / "binary.keras"), _PAIR, {}).output_shape == (None, 2)


@pytest.mark.parametrize(
    ("interface", "last"),
    [
        (_PAIR, 'layers.Dense(1, name="probabilities")(body)'),
        (_DIGITS, 'layers.Dense(10, name="probabilities")(body)'),
        (_PAIR, 'layers.Dense(1, activation="sigmoid", name="both_classes")(body)'),
        (_NUMBER, 'layers.Dense(1, name="target_units")(body)'),
    ],
)
def test_a_layer_with_the_name_of_one_that_is_added_is_to_be_renamed(tmp_path, interface, last):
    with pytest.raises(InputError, match=r"has a layer with the name '\w+', which .*\. Rename the model's layer\."):
        build_model(_ending_in(tmp_path, last, interface.task.size_fact), interface, {})


def test_probabilities_that_are_only_cast_or_reshaped_get_no_second_softmax(tmp_path):
    last = "layers.Activation('linear', dtype='float32')(layers.Dense(num_classes, activation='softmax')(body))"
    warnings = []
    model = build_model(_ending_in(tmp_path, last), _DIGITS, {}, warnings.append)
    images = np.random.default_rng(0).integers(0, 256, (20, *_SHAPE), np.uint8)
    assert np.asarray(model(images)).max() > 0.9, "softmax of a softmax of ten classes is at most 0.24"
    assert not any("logits" in warning for warning in warnings)


def test_a_training_step_of_a_models_own_is_refused_with_one_output(tmp_path):
    (path := tmp_path / "own.py").write_text(
        "import keras\n"
        "class Own(keras.Model):\n"
        "    def train_step(self, data):\n"
        "        return super().train_step(data)\n"
        "def build_model(image_shape, num_classes):\n"
        "    inputs = keras.Input(image_shape)\n"
        "    body = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))\n"
        "    return Own(inputs, keras.layers.Dense(1, activation='sigmoid')(body))\n"
    )
    with pytest.raises(InputError, match=r'own train_step: .* model with one output .*activation="softmax"\)\.'):
        build_model(str(path), _PAIR, {})


@pytest.mark.parametrize(
    "last",
    [
        'layers.Activation("softmax", dtype="float32")(layers.Dense(num_classes)(body))',
        'keras.Sequential([layers.Dense(num_classes, activation="softmax")])(body)',
        'layers.Reshape((num_classes,))(layers.Dense(num_classes, activation="softmax")(body))',
    ],
)
def test_an_ending_may_be_a_layer_a_model_or_something_that_is_not_told(tmp_path, last):
    assert build_model(_ending_in(tmp_path, last), _DIGITS, {}).output_shape == (None, 10)


def test_regression_gives_numbers_in_the_targets_units_whatever_the_precision(tmp_path):
    import keras

    device.prepare("tensorflow", "cpu", 1, "mixed_bfloat16")
    model = build_model(_ending_in(tmp_path, "layers.Dense(num_targets)(body)", "num_targets"), _NUMBERS, {})
    images = np.random.default_rng(0).integers(0, 256, (20, *_SHAPE), np.uint8)
    standardised = np.asarray(keras.Model(model.input, model.layers[-1].input)(images)).astype(np.float32)
    answer = np.asarray(model(images))
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, standardised * [1.5, 0.25] + [3.5, 2000.0], rtol=1e-6)


def test_regression_is_rebuilt_without_its_code_to_the_same_numbers(tmp_path):
    from tpu_components.core.models.trained import load_trained_model, save_architecture

    model = build_model(_ending_in(tmp_path, "layers.Dense(num_targets)(body)", "num_targets"), _NUMBERS, {})
    save_architecture(model, tmp_path)
    model.save_weights(tmp_path / "best.weights.h5")
    images = np.random.default_rng(0).integers(0, 256, (20, *_SHAPE), np.uint8)
    again = load_trained_model(tmp_path)
    np.testing.assert_array_equal(np.asarray(again(images)), np.asarray(model(images)))


def test_model_of_classes_is_refused_for_numbers_by_what_it_is_built_from():
    with pytest.raises(
        InputError,
        match=r"'digits_cnn' needs num_classes, .* data \(images for regression\) do not have\. Choose .*, num_targets",
    ):
        build_model("digits_cnn", _NUMBERS, {})


_OWN_TRAINING = """
import keras

class Focal(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

def build_model(image_shape, num_classes):
    last = keras.layers.Dense(num_classes, activation="softmax")
    model = keras.Sequential([keras.Input(image_shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), last])
    model.compile(keras.optimizers.Lion(clipnorm=1.0), loss=Focal(), metrics=["accuracy"])
    return model
"""


def test_a_model_brings_what_it_is_compiled_with_unless_a_file_cannot_hold_it(tmp_path):
    (path := tmp_path / "own.py").write_text(_OWN_TRAINING)
    warnings = []
    model = build_model(str(path), _DIGITS, {}, warnings.append)
    brought = brought_by(model)
    assert (type(brought.optimizer).__name__, type(brought.loss).__name__) == ("Lion", "Focal")
    assert warnings == []
    model.save(path := tmp_path / "own.keras")
    assert brought_by(build_model(str(path), _DIGITS, {}, warnings.append)).optimizer is None
    (said,) = warnings
    assert "is compiled with a custom loss or metric" in said


def test_a_model_that_is_not_compiled_gives_no_warning(tmp_path, source):
    import keras

    warnings = []
    build_model(str(source), _DIGITS, {}, warnings.append)
    last = keras.layers.Dense(10, activation="softmax")
    file = _keras_file(tmp_path / "plain.keras", keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), last)
    build_model(file, _DIGITS, {}, warnings.append)
    assert warnings == []


def _write_model(folder, end, image="keras.Input(image_shape, dtype='uint8')"):
    """Write a model whose last layer gets `end`, an expression of the image x."""
    (path := folder / "own.py").write_text(
        "import keras\nfrom keras import layers\n\ndef build_model(image_shape, num_classes):\n"
        f"    x = {image}\n    y = {end}\n"
        "    return keras.Model(x, layers.Dense(num_classes, activation='softmax')(y))\n\n"
        "def Negated():\n    x = keras.Input((8, 8, 3), dtype='uint8')\n    return keras.Model(x, -x)\n"
    )
    return path


@pytest.mark.parametrize(
    ("begin", "is_warned"),
    [
        ("layers.Flatten()(x)", True),
        ("layers.Flatten()(layers.Rescaling(1 / 255)(x))", False),
        ("layers.Flatten()(x / 255)", False),
        ("layers.BatchNormalization()(layers.Flatten()(x))", False),
        ("keras.Sequential([layers.Flatten()])(x)", False),  # Another model may do it.
    ],
)
def test_a_model_that_gets_pixels_as_they_are_gives_a_warning(tmp_path, begin, is_warned):
    """A model made for x / 255 was trained on pixels up to 255, without a word."""
    path = _write_model(tmp_path, begin, "keras.Input(image_shape)")
    warnings = []
    build_model(str(path), _DIGITS, {}, warnings.append)
    assert bool(warnings) == is_warned
    assert all("keras.layers.Rescaling(1 / 255)" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("begin", "layer"),
    [
        ("layers.Conv2D(2, 3, name='first')(x)", "first"),
        ("layers.AveragePooling2D(2, name='first')(x)", "first"),
        ("keras.Sequential([keras.Input(image_shape, dtype='uint8'), layers.Conv2D(2, 3, name='inner')])(x)", "inner"),
        ("layers.Conv2D(2, 3)(layers.Rescaling(1 / 255)(x))", ""),
        ("keras.Sequential([keras.Input(image_shape), layers.Conv2D(2, 3)])(x)", ""),
        ("layers.Embedding(256, 2)(layers.Flatten()(x))", ""),
        ("layers.Dense(2)(x)", ""),
        ("layers.GlobalAveragePooling2D()(x)", ""),
    ],
)
def test_a_layer_that_tensorflow_cannot_call_on_integers_is_refused(tmp_path, begin, layer):
    """JAX trained such a model, and TensorFlow could not evaluate it."""
    path = _write_model(tmp_path, f"layers.Flatten()({begin})")
    if layer:
        with pytest.raises(
            InputError, match=rf"integer inputs to the layer '{layer}', which needs floats. .*Rescaling"
        ):
            build_model(str(path), _DIGITS, {})
    else:
        answers = build_model(str(path), _DIGITS, {})(np.zeros((1, *_DIGITS.input.shape), np.uint8))
        assert answers.shape == (1, 10)


@pytest.mark.parametrize(
    ("begin", "operation"),
    [
        ("keras.applications.resnet50.preprocess_input(x)", "add"),
        ("(x - 128) / 128", "subtract"),
        ("x * 2", "multiply"),
        ("keras.Sequential([keras.Input(image_shape, dtype='uint8'), Negated()])(x)", "negative"),
        ("keras.applications.resnet50.preprocess_input(keras.ops.cast(x, 'float32'))", ""),
        ("keras.applications.mobilenet_v2.preprocess_input(x)", ""),
        ("x[..., ::-1] / 255 - 1", ""),
        ("layers.Rescaling(1 / 255)(x) * 2", ""),
    ],
)
def test_arithmetic_with_8_bit_pixels_is_refused(tmp_path, begin, operation):
    """The backbone of a ResNet got 228 instead of -28.9."""
    path = _write_model(tmp_path, f"layers.Flatten()({begin})")
    interface = replace(_DIGITS, input=ImageInput((8, 8, 3), "raw"))
    if operation:
        with pytest.raises(
            InputError, match=rf"applies '{operation}' to pixels that are 8-bit .*keras\.ops\.cast\(inputs"
        ):
            build_model(str(path), interface, {})
    else:
        assert build_model(str(path), interface, {}).output_shape == (None, 10)


def test_a_training_step_of_a_models_own_is_refused_where_it_would_be_lost(tmp_path):
    (path := tmp_path / "own.py").write_text(
        "import keras\n"
        "class Own(keras.Model):\n"
        "    def __init__(self, n):\n"
        "        super().__init__()\n"
        "        self.last = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(n, activation='softmax')])\n"
        "    def call(self, x):\n"
        "        return self.last(x)\n"
        "    def train_step(self, data):\n"
        "        return {}\n"
        "def build_model(image_shape, num_classes):\n"
        "    return Own(num_classes)\n"
    )
    with pytest.raises(
        InputError, match=r"with its own train_step: .* return Own\(inputs, outputs\), .* or remove train_step"
    ):
        build_model(str(path), _DIGITS, {})

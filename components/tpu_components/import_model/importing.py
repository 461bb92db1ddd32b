"""Loads a model that another program trained, checks it with the records, and writes it in train_model's format."""

import dataclasses
import math
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.frameworks import keras
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    ARCHITECTURE_FILE,
    BEST_WEIGHTS_FILE,
    MODEL_FILE,
    SAVED_MODEL_DIR,
    Manifest,
    ModelInfo,
    file_sha256,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    ImageInput,
    Interface,
)
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines import device as devices
from tpu_components.core.models.bundle import Bundle, custom_objects, objects_of_keras_only, open_bundle
from tpu_components.core.models.lookup import bundle_of, explain, fit_to_data
from tpu_components.core.models.saved_model import SavedModel, as_range, load
from tpu_components.core.models.trained import load_trained_model, predict, save_architecture, save_saved_model
from tpu_components.import_model.params import AUTO, LOGITS, PROBABILITIES, ImportParams, ImportResult

_STEP = "import_model"
_WHOLE = (0.0, 255.0)
_COMPARED = 64
_BATCH = 32
_SUM_TOLERANCE = 1e-2  # Probabilities in bfloat16 have 8 bits.
_COPY_TOLERANCE = 2e-2
_LARGEST_SCALE = 1 / 64  # A layer with a smaller factor scales pixels of 0 to 255, not numbers of 0 to 1.
_KERAS_FILE = ("config.json", "model.weights.h5")  # In the archive.
_HDF5 = b"\x89HDF\r\n\x1a\n"


def import_model(
    params: ImportParams, records_dir: str | Path, model_path: str | Path, output: str | Path
) -> ImportResult:
    """Import a model that another program trained, for the steps that evaluate, export and register models.

    Args:
        params: Classes, range of the pixels, and kind of the outputs.
        records_dir: Folder that create_tfrecords wrote, with data like the data that the model will predict.
        model_path: A .keras file, a SavedModel, or a folder that contains one of them.
        output: Folder to write. It is written completely or not at all.

    Raises:
        InputError: If the model cannot be loaded or does not fit the records, or if the range of its input pixels or
            the kind of its outputs cannot be determined.
    """
    records_dir = Location(records_dir).as_path()
    model_path = Location(model_path).as_path()
    output = Location(output).as_path()
    storage.require_output(output, MODEL_FILE)
    manifest = Manifest.load(records_dir, verify=False)
    if not isinstance(manifest.input, ImageInput):
        raise InputError(
            f"Only image models can be imported. Received: records of {manifest.input.plural}. They contain token IDs, "
            "which a model that another program trained does not know. Train a model with train_model."
        )
    name = params.name or model_path.name
    info = ModelInfo(name, {}, params.class_names, manifest.input, manifest.task, manifest.fingerprint, {})
    if not info.fits(manifest):
        raise InputError(
            f"The classes of the model {name!r} do not match the records in {records_dir}: "
            f"{info.compare_with(manifest)}. Set class_names of import_model to the names in the order of "
            "the model's outputs, set data.class_names to the same list, and write the records again."
        )
    split = next(iter(manifest.splits))
    examples = records.spread_inputs(records_dir, manifest, split, _COMPARED)[1]
    path, is_keras = _find_model(model_path)
    devices.prepare("tensorflow", "cpu", 1, "float32")
    # Without mean and deviation: the outputs of a regression are already in the units of the targets.
    interface = Interface(manifest.input, len(manifest.class_names), manifest.task)
    with tempfile.TemporaryDirectory(prefix="import-") as scratch, storage.staged_directory(output) as staged:
        source = _KerasFile if is_keras else _SavedModelFolder
        imported = source(params, name, path, interface, Path(scratch))
        answers = imported.check(examples)
        imported.save(staged)
        _check_copy(name, staged, examples, answers)
        digests = {file: file_sha256(staged / file) for file in (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE)}
        dataclasses.replace(info, digests=digests).save(staged)
    progress.say(
        _STEP,
        f"{name}: the outputs are {imported.outputs}, the input pixels range from {imported.pixel_range[0]:g} to "
        f"{imported.pixel_range[1]:g}. It is unknown whether the model was trained on examples of the test split",
    )
    return ImportResult(
        name,
        "keras" if is_keras else "saved_model",
        imported.outputs,
        imported.pixel_range,
        imported.model.count_params(),
        len(examples),
    )


def _find_model(path: Path) -> tuple[Path, bool]:
    """Return the .keras file or the SavedModel at a path or in a folder, and whether it is a .keras file."""
    expected = "a .keras file, a SavedModel (a folder with saved_model.pb), or a folder with one of them"
    if not path.exists():
        raise InputError(f"Cannot import the model {path}: there is no such file or folder. Expected {expected}.")
    if path.is_file():
        if _is_keras_file(path):
            return path, True
        with open(path, "rb") as file:
            is_hdf5 = file.read(len(_HDF5)) == _HDF5
        received = "an HDF5 file: load it with Keras, and save it as NAME.keras" if is_hdf5 else "another file"
        raise InputError(f"Cannot import the model {path}: expected {expected}, received {received}.")
    folders = [path, *sorted(folder for folder in path.iterdir() if folder.is_dir())]
    models = [(folder, False) for folder in folders if (folder / "saved_model.pb").is_file()]
    models += [(file, True) for file in sorted(path.iterdir()) if file.is_file() and _is_keras_file(file)]
    if len(models) != 1:
        names = quoted([file.name for file, _ in models])
        received = f"a folder with several models: {names}" if models else "a folder without a model"
        raise InputError(f"Cannot import the model {path}: expected {expected}, received {received}.")
    return models[0]


def _is_keras_file(path: Path) -> bool:
    """Return whether a file is a model that Keras 3 saved. The file's name does not matter."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return set(_KERAS_FILE) <= set(archive.namelist())


class _Imported:
    """A model of another program, with additional layers that adapt it to the records.

    Attributes:
        model: A keras.Model that takes pixels from 0 to 255 and returns the task's outputs.
        outputs: See `ImportResult`.
        pixel_range: See `ImportResult`.
    """

    model: Any
    outputs: str
    pixel_range: tuple[float, float]

    def __init__(self, params: ImportParams, name: str, interface: Interface) -> None:
        self._params = params
        self._name = name
        self._interface = interface

    @property
    def _image_shape(self) -> tuple[int, int, int]:
        inputs = self._interface.input
        assert isinstance(inputs, ImageInput)
        return inputs.image_shape

    def check(self, examples: np.ndarray) -> np.ndarray:
        """Check the model's predictions for some examples. Return the predictions.

        Raises:
            InputError: If predictions are not finite, or are not probabilities although the task requires them, or if
                the parameter `outputs` says that the model returns logits, but it returns probabilities.
        """
        answers = predict(self.model, examples, _BATCH)
        if self._params.outputs == LOGITS and self._interface.task_name == CLASSIFICATION:
            # The last layer is the activation, no matter which program wrote the model.
            scores = keras.Model(self.model.inputs[0], self.model.layers[-1].input)
            if self._are_probabilities(predict(scores, examples, _BATCH)):
                raise InputError(
                    f"outputs={LOGITS!r} contradicts the model {self._name!r}, whose outputs are numbers from 0 to 1 "
                    f"that add up to 1. Remove outputs={LOGITS!r}."
                )
        if not np.isfinite(answers).all():
            raise InputError(
                f"The model {self._name!r} predicts NaN or infinity for an example. Check its weights and pixel_range."
            )
        if self._interface.task_name != REGRESSION and not self._are_probabilities(answers):
            raise InputError(
                f"The model {self._name!r} does not return probabilities: expected numbers from 0 to 1"
                + (" that add up to 1" if self._interface.task_name == CLASSIFICATION else "")
                + f", received {np.round(answers[0][:5].astype(float), 3).tolist()} for the first example. If they are "
                f"logits, set outputs to {LOGITS}; otherwise correct the model or signature."
            )
        return answers

    def _are_probabilities(self, answers: np.ndarray) -> bool:
        are_shares = bool(((answers >= -1e-6) & (answers <= 1 + 1e-6)).all())
        is_one = self._interface.task_name == MULTI_LABEL or bool(
            (np.abs(answers.sum(axis=-1) - 1) <= _SUM_TOLERANCE).all()
        )
        return are_shares and is_one

    def _range(self, own: tuple[float, float] | None, why: str) -> tuple[float, float]:
        """Return the range of the model's input pixels: the detected range or, if there is none, the parameter.

        Args:
            own: Range that was detected in the model, or None.
            why: How the range was detected, for an error message.

        Raises:
            InputError: If the range is unknown, or the parameter `pixel_range` contradicts the model.
        """
        requested = self._params.pixel_range
        if own is None and not requested:
            raise InputError(
                f"Cannot import the model {self._name!r}, because the range of its input pixels is unknown: expected a "
                "model that begins with a layer that scales pixels, received a model without this layer. Set "
                "pixel_range to the values to which the pixels 0 and 255 were scaled in training, such as [0, 1] or "
                "[-1, 1]. If pixels were not scaled, set pixel_range to [0, 255]."
            )
        if own and requested and tuple(requested) != own:
            raise InputError(
                f"pixel_range={list(requested)} contradicts the model {self._name!r}, which {why}. Remove pixel_range."
            )
        return own or (requested[0], requested[1])

    def save(self, staged: Path) -> None:
        """Write the architecture and the weights of the model to a folder."""
        raise NotImplementedError


class _KerasFile(_Imported):
    """A model in a .keras file."""

    def __init__(self, params: ImportParams, name: str, path: Path, interface: Interface, scratch: Path) -> None:
        super().__init__(params, name, interface)
        self._code: Bundle | None = None
        objects: Mapping[str, Any] = {}
        if params.code:
            self._code = bundle_of(str(storage.localize(params.code, scratch)))
            assert self._code is not None
            objects = custom_objects(open_bundle(self._code.content, self._code.digest, self._code.name))
        loaded = self._load(path, objects, scratch)
        starts_with = _first_scale(loaded)
        self.pixel_range = self._range(starts_with, "begins with a layer that scales pixels of 0 to 255")
        shape = interface.input.shape
        input_shape = getattr(loaded, "input_shape", None)
        sizes = input_shape[1:] if isinstance(input_shape, tuple) else ()
        fits = len(sizes) == 3 and all(size in (None, wanted) for size, wanted in zip(sizes, shape, strict=True))
        if not fits:
            advice = "Import an image model with one input."
            if len(sizes) == 3 and None not in sizes:
                advice = f"Write the records with data.image_size={sizes[0]},{sizes[1]} and data.channels={sizes[2]}."
            raise InputError(
                f"The model {name!r} does not fit the records: expected one input of shape "
                f"(None, {', '.join(map(str, shape))}), received {input_shape}. {advice}"
            )
        pixels = keras.Input(shape, name="image")
        answer = loaded(as_range(pixels, self.pixel_range))
        if isinstance(answer, (dict, list, tuple)):
            raise InputError(
                f"The model {name!r} has several outputs: expected one tensor. Import a model with one output."
            )
        activation = interface.task.activation
        if interface.task_name != REGRESSION and params.outputs == LOGITS:
            answer = keras.layers.Activation(activation, dtype="float32")(answer)
        notes: list[str] = []
        self.model = fit_to_data(str(path), keras.Model(pixels, answer), interface, notes.append)
        are_logits = params.outputs == LOGITS or any("logits" in note for note in notes)
        if params.outputs == PROBABILITIES and are_logits:
            raise InputError(
                f"outputs={PROBABILITIES!r} contradicts the model {name!r}, whose last layer has no activation. Remove "
                f"outputs={PROBABILITIES!r}."
            )
        self.outputs = "numbers" if interface.task_name == REGRESSION else LOGITS if are_logits else PROBABILITIES

    def _load(self, path: Path, objects: Mapping[str, Any], scratch: Path) -> Any:
        named = scratch / "model.keras"  # Keras requires this suffix.
        shutil.copyfile(path, named)
        try:
            with objects_of_keras_only():
                return keras.saving.load_model(named, dict(objects), compile=False, safe_mode=True)
        except Exception as error:  # Keras and custom classes raise anything.
            raise InputError(
                f"Cannot load the model {path}: {explain(error)}. Expected a file that Keras 3 saved. If it has custom "
                "classes or functions, set code to a .py file that registers them with "
                "@keras.saving.register_keras_serializable(); a Lambda layer with Python code is never loaded."
            ) from error

    def save(self, staged: Path) -> None:
        """Write the architecture, the weights and the custom code of the model to a folder."""
        save_architecture(self.model, staged, self._code)
        self.model.save_weights(staged / BEST_WEIGHTS_FILE)


class _SavedModelFolder(_Imported):
    """A SavedModel that is called through one of its signatures."""

    def __init__(self, params: ImportParams, name: str, path: Path, interface: Interface, scratch: Path) -> None:
        super().__init__(params, name, interface)
        if params.code:
            raise InputError(
                "A SavedModel needs no code, because it contains its operations. Received: "
                f"code={params.code!r}. Remove code."
            )
        self._path = path
        signatures = load(path).signatures
        if params.signature not in signatures:
            raise InputError(
                f"The SavedModel {path} has no signature {params.signature!r}: expected one of "
                f"{quoted(sorted(signatures)) or 'none'}. Set signature to the name of the one "
                "that takes images and returns predictions."
            )
        signature = signatures[params.signature]
        shape = self._image_shape
        inputs = signature.structured_input_signature[1]
        if len(inputs) != 1:
            raise InputError(
                f"{self._where} takes the inputs {quoted(sorted(inputs))}: expected one input, the images. Set "
                "signature to a signature that takes only images."
            )
        ((input_name, spec),) = inputs.items()
        dtype = spec.dtype.name
        sizes = tuple(spec.shape) if spec.shape.rank is not None else (None,) * 4
        fits = len(sizes) == 4 and all(
            size in (None, wanted) for size, wanted in zip(sizes, (None, *shape), strict=True)
        )
        if not fits or dtype not in ("uint8", "float32", "float16", "bfloat16", "int32"):
            raise InputError(
                f"{self._where} does not fit the records: expected pixels of shape (None, "
                f"{', '.join(map(str, shape))}), received {dtype} {sizes}. Set signature to a signature that fits, or "
                "write the records with the model's data.image_size and data.channels."
            )
        own = _WHOLE if dtype == "uint8" else None
        self.pixel_range = self._range(own, "takes uint8 pixels")
        output_name = self._output_name(signature.structured_outputs)
        activation = interface.task.activation if params.outputs == LOGITS else ""
        if interface.task_name == REGRESSION:
            activation = ""
        self._saved = SavedModel(params.signature, input_name, output_name, dtype, shape, self.pixel_range, activation)
        self.model = self._saved.build(path)
        self.outputs = "numbers" if interface.task_name == REGRESSION else params.outputs
        if self.outputs == AUTO:
            self.outputs = PROBABILITIES  # `check` finds out.

    @property
    def _where(self) -> str:
        return f"The signature {self._params.signature!r} of {self._path}"

    def _output_name(self, outputs: Mapping[str, Any]) -> str:
        """Return the name of the signature's output that has the shape of the task's outputs.

        Raises:
            InputError: If the output that the parameters name does not fit or, without a name, if not exactly one
                output fits.
        """
        wanted = self._interface.output_shape
        fitting = [
            name
            for name, spec in outputs.items()
            if spec.dtype.is_floating
            and spec.shape.rank == 1 + len(wanted)
            and tuple(spec.shape[1:]) in (wanted, (None,))
        ]
        name = self._params.output_name or (fitting[0] if len(fitting) == 1 else "")
        if name not in fitting:
            received = ", ".join(f"{name} {spec.dtype.name} {tuple(spec.shape)}" for name, spec in outputs.items())
            raise InputError(
                f"{self._where} does not fit the records: expected one output of shape (None, "
                f"{', '.join(map(str, wanted))}), a number for each of {len(self._params.class_names)} classes or "
                f"targets, received {received}. Set output_name, or correct class_names."
            )
        return name

    def save(self, staged: Path) -> None:
        """Write the SavedModel, a description of the used signature, and the weights to a folder."""
        shutil.copytree(self._path, staged / SAVED_MODEL_DIR)
        save_saved_model(self._saved, staged)
        self.model.save_weights(staged / BEST_WEIGHTS_FILE)


def _first_scale(model: Any) -> tuple[float, float] | None:
    """Return (0, 255) if a model begins with a layer that scales pixels of this range, or None if this is unknown."""
    layers = list(getattr(model, "layers", ()))
    while layers:
        layer = layers.pop(0)
        kind = type(layer).__name__
        if kind in ("Functional", "Sequential"):
            layers = [*layer.layers, *layers]
        elif kind == "Rescaling":
            largest = float(np.max(np.abs(layer.scale)))
            return _WHOLE if 0 < largest <= _LARGEST_SCALE else None
        elif kind == "Normalization":
            mean = np.asarray(getattr(layer, "mean", math.nan), np.float64)
            return _WHOLE if np.max(mean) > 1 else None
        elif kind not in ("InputLayer", "Resizing", "CenterCrop", "ZeroPadding2D", "Identity", "Reshape"):
            return None
    return None


def _check_copy(name: str, folder: Path, examples: np.ndarray, answers: np.ndarray) -> None:
    """Raise InputError if the saved copy of a model predicts differently from the original model.

    Args:
        name: Name of the model in messages.
        folder: Folder of the saved copy.
        examples: Examples to predict.
        answers: Predictions of the original model for these examples.
    """
    copied = predict(load_trained_model(folder), examples, _BATCH)
    scale = max(float(np.abs(answers).max()), 1.0)
    if not np.allclose(copied, answers, atol=_COPY_TOLERANCE * scale):
        raise InputError(
            f"The model {name!r} cannot be saved: rebuilt from its configuration and weights, it predicts "
            f"{np.round(copied[0][:5].astype(float), 3).tolist()} instead of "
            f"{np.round(answers[0][:5].astype(float), 3).tolist()}. Custom classes need a get_config that returns the "
            "arguments of __init__."
        )

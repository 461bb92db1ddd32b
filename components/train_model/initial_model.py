"""Initial model of a training: an earlier model, whose weights the training starts with."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.models.trained import load_trained_model
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, version_name
from tpu_components.core.registry.versions import fetch, fetch_folder, model_digest


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """A trained model.

    Attributes:
        name: `MODEL@NUMBER` of a version, or the folder.
        digest: SHA-256 of the model; see `model_digest`.
        directory: The folder, on this machine.
    """

    name: str
    digest: str
    directory: Path

    def weights(self, model: Any) -> list[np.ndarray]:
        """Return the weights of its best epoch, in the order of `model.weights`.

        Args:
            model: The keras.Model that takes them.

        Raises:
            InputError: If the two models do not have weights of the same names and shapes.
        """
        trained = load_trained_model(self.directory)
        ours, theirs = _shapes(model), _shapes(trained)
        if ours != theirs:
            pairs = itertools.zip_longest(ours, theirs, fillvalue="no further weight")
            our, their = next(pair for pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"Cannot start with the weights of {self.name}: this model has {our}, and {self.name} has {their}. Use "
                "the model and parameters that it was trained with, or remove training.initial_model."
            )
        return [np.asarray(keras.ops.convert_to_numpy(weight)) for weight in trained.weights]


def _shapes(model: Any) -> list[str]:
    """Return the name and the shape of every weight, as text."""
    return [f"{weight.name} {tuple(weight.shape)}" for weight in model.weights]


def find_initial_model(named: str, scratch: Path) -> InitialModel | None:
    """Return the model that `TrainParams.initial_model` names; None if it names none, or an alias without a version.

    Args:
        named: A folder, here or on gs://, or `REGISTRY/MODEL@VERSION_OR_ALIAS`.
        scratch: Folder for a model on gs://.

    Raises:
        InputError: If there is no such model or version, or a file of the version was changed after registration.
    """
    if not named:
        return None
    if (referred := parse_reference(named)) is None:
        directory = fetch_folder(named, scratch)
        return InitialModel(named, model_digest(directory), directory)
    registry, wanted = referred
    version = registry.find(wanted)
    if version is None:
        return None
    directory = fetch(version, MODEL_DIR, scratch)
    return InitialModel(version_name(registry.model_name, version.number), model_digest(directory), directory)


def require_same_data(initial: InitialModel, manifest: Manifest) -> None:
    """Check that a model has the same inputs, task and classes as a data set.

    Raises:
        InputError: If inputs or classes differ. For texts, the vocabulary must be equal too: it maps words to ids.
    """
    info = ModelInfo.load(initial.directory)
    info.check_files(initial.directory)
    if not info.fits(manifest):
        raise InputError(
            f"The initial model {initial.name} does not fit the data set: {info.compare_with(manifest)}. Train on such "
            "data, or remove training.initial_model."
        )

"""Finds the initial model of a training run: an earlier model whose weights training starts with."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras
from tpu_components.core.examples.artifacts import VALIDATION, Manifest, ModelInfo
from tpu_components.core.examples.example_ids import are_among, load_identities, load_trained_on
from tpu_components.core.models.lookup import UNITS_LAYER
from tpu_components.core.models.trained import load_trained_model
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, version_name
from tpu_components.core.registry.versions import fetch, fetch_folder, model_digest
from tpu_components.train_model.checkpoints import checkpoint
from tpu_components.train_model.result import STEP


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """A trained model whose weights a training run starts with.

    Attributes:
        name: `MODEL@NUMBER` for a registered version, otherwise the model's folder as the configuration names it.
        digest: SHA-256 of the model, from `model_digest`.
        directory: Folder of the model on this machine.
    """

    name: str
    digest: str
    directory: Path

    def copy_to(self, model: Any) -> None:
        """Copy the weights of the trained model's best epoch to `model`, which then makes the same predictions.

        For a regression, the scaling of the outputs to the targets' units is copied too. With the mean and deviation of
        other data, the same weights would predict other numbers.

        Args:
            model: The keras.Model that gets the weights.

        Raises:
            InputError: If the weights of the two models differ in name or shape.
        """
        trained = load_trained_model(self.directory)
        ours, theirs = _shapes(model), _shapes(trained)
        if ours != theirs:
            pairs = itertools.zip_longest(ours, theirs, fillvalue="no other weight")
            our, their = next(pair for pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"Cannot start with the weights of {self.name}: this model has {our}, and {self.name} has {their}. "
                f"Use the model and the parameters with which {self.name} was trained, or remove "
                "training.initial_model."
            )
        checkpoint.assign(model.weights, [np.asarray(keras.ops.convert_to_numpy(weight)) for weight in trained.weights])
        if units := _units_of(model):
            kept = _units_of(trained)
            units.scale = kept.scale if kept else [1.0] * len(units.scale)
            units.offset = kept.offset if kept else [0.0] * len(units.offset)


def _units_of(model: Any) -> Any:
    """Return the layer that converts a regression's outputs to the targets' units, or None if there is none."""
    return next((layer for layer in model.layers if layer.name == UNITS_LAYER), None)


def _shapes(model: Any) -> list[str]:
    """Return the name and the shape of every weight, as text."""
    return [f"{weight.name} {tuple(weight.shape)}" for weight in model.weights]


def find_initial_model(named: str, records_dir: Path, manifest: Manifest, scratch: Path) -> InitialModel | None:
    """Return the model that `TrainParams.initial_model` names.

    Return None if `named` is empty, or if no version has the alias that it names. Log a warning if the model was
    trained on examples that are now in the validation split.

    Args:
        named: Value of `TrainParams.initial_model`: a folder, local or on gs://, or
            `REGISTRY/MODEL@VERSION_OR_ALIAS`.
        records_dir: Folder of the records to train on.
        manifest: Manifest of these records.
        scratch: Temporary folder to which a model on gs:// is copied.

    Raises:
        InputError: If the model or version does not exist, if a file of the version was changed after registration, or
            if the model does not match the inputs, task or classes of the data set, or the vocabulary of its texts.
    """
    if not named:
        return None
    if (referred := parse_reference(named)) is None:
        name = named
        directory = fetch_folder(named, scratch)
    else:
        version = referred.find()
        if version is None:
            progress.say(STEP, f"{named} does not have a version yet, so training starts with new weights")
            return None
        name = version_name(referred.registry.model_name, version.number)
        directory = fetch(version, MODEL_DIR, scratch)
    info = ModelInfo.load(directory)
    info.check_files(directory)
    if not info.fits(manifest):
        raise InputError(
            f"The initial model {name} does not fit the data set: {info.compare_with(manifest)}. Use matching "
            "data, or remove training.initial_model."
        )
    progress.say(STEP, f"starting with the weights of {name}")
    trained_on = load_trained_on(directory)
    validation = load_identities(records_dir, VALIDATION)
    if trained_on is not None and validation is not None and (num_seen := int(are_among(validation, trained_on).sum())):
        progress.say(
            STEP,
            f"Warning: {name} was trained on {num_seen:,} of the {len(validation):,} validation examples, so the "
            "validation metrics, which determine the best epoch, are too good. To keep examples in their splits, use "
            "the test_fraction and validation_fraction of the earlier data",
        )
    return InitialModel(name, model_digest(directory), directory)

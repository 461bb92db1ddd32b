"""A trained model as the formats take it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import ModelInfo
from tpu_components.core.examples.interface import TASKS, ImageInput
from tpu_components.core.models.lookup import UNITS_LAYER
from tpu_components.core.models.stepping import StepModel


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A trained model, and what it takes to write it in any format.

    Attributes:
        model: The Keras model.
        info: Its description.
        model_dir: Folder that it was loaded from.
        calibrate: Function that reads the inputs to calibrate with, where they are needed.
    """

    model: Any
    info: ModelInfo
    model_dir: Path
    calibrate: Callable[[], np.ndarray]

    @property
    def answer(self) -> str:
        """The name of what the model gives."""
        return TASKS[self.info.task].answer

    @property
    def scale(self) -> dict[str, list[float]]:
        """The scale and offset from standardised numbers to a regression target's units; empty for other models."""
        units = self.model.layers[-1]
        is_ours = units.name == UNITS_LAYER and hasattr(units, "scale")
        return {"scale": units.scale, "offset": units.offset} if is_ours else {}

    @functools.cached_property
    def steps(self) -> StepModel:
        """A language model taken one character at a time."""
        return StepModel(self.model)

    @property
    def step_specs(self) -> list[Any]:
        """The inputs of a language model's step, ids and the state, as TensorFlow's specs."""
        tf = records.tensorflow()
        return [
            tf.TensorSpec((None,), tf.int32, name="tokens"),
            tf.TensorSpec((None, self.steps.state_size), tf.float32, name="state"),
        ]

    @functools.cached_property
    def without_units(self) -> Any:
        """The model up to standardised numbers, of a regression; one of images takes pixels as float32."""
        import keras

        from tpu_components.core.models.trained import load_trained_model

        is_of_images = isinstance(self.info.input, ImageInput)
        model = load_trained_model(self.model_dir, input_dtype="float32") if is_of_images else self.model
        return keras.Model(model.input, model.layers[-1].input) if self.scale else model

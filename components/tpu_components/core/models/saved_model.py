"""TensorFlow SavedModels that a user has imported, wrapped as Keras models.

The Keras model calls one signature of the SavedModel. If necessary, added layers convert the pixels for the signature,
and the output to probabilities. Only TensorFlow can run the model. The files of the SavedModel are in `saved_model/` in
the model's folder, and `architecture.json` contains their digests.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras, tf
from tpu_components.core.examples.artifacts import SAVED_MODEL_DIR, file_sha256
from tpu_components.core.models.lookup import explain

PIXELS_LAYER, SIGNATURE_LAYER, ACTIVATION_LAYER = "pixels", "signature", "probabilities"


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A signature of a SavedModel, with the conversions of its input and output.

    Attributes:
        signature: Name of the signature.
        input_name: Name of the signature's input.
        output_name: Name of the signature's output to use.
        input_dtype: Dtype of the signature's input.
        input_shape: Shape of an image, (height, width, channels).
        pixel_range: Values that the signature expects for the pixel values 0 and 255.
        activation: Keras name of an activation that converts the output to probabilities. Empty for no activation.
        files: SHA-256 of every file, by its path in `saved_model/`.
    """

    signature: str
    input_name: str
    output_name: str
    input_dtype: str
    input_shape: tuple[int, int, int]
    pixel_range: tuple[float, float]
    activation: Annotated[str, ("", "softmax", "sigmoid")]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def build(self, folder: Path) -> Any:
        """Return a Keras model that takes float32 pixels in [0, 255] and calls the SavedModel in `folder`.

        Raises:
            InputError: If Keras does not run on TensorFlow, or a file is missing or has been changed.
        """
        if keras.backend.backend() != "tensorflow":
            raise InputError(
                f"The model in {folder.parent} is a SavedModel, which only TensorFlow can run. Received: the backend "
                f"{keras.backend.backend()}. Set backend to tensorflow."
            )
        received = digest_files(folder)
        if self.files and received != self.files:
            changed = sorted(name for name in {*received, *self.files} if received.get(name) != self.files.get(name))
            raise InputError(
                f"The model in {folder.parent} is damaged: {SAVED_MODEL_DIR}/{changed[0]} is not the file that was "
                "imported. Import it again."
            )
        signature = keras.layers.TFSMLayer(str(folder), self.signature, trainable=False, name=SIGNATURE_LAYER)
        pixels = keras.Input(self.input_shape, name="image")
        answer = signature(as_range(pixels, self.pixel_range, self.input_dtype))
        answer = answer[self.output_name] if isinstance(answer, dict) else answer
        if self.activation:
            answer = keras.layers.Activation(self.activation, name=ACTIVATION_LAYER, dtype="float32")(answer)
        return keras.Model(pixels, answer)


def as_range(pixels: Any, pixel_range: tuple[float, float], dtype: str = "float32") -> Any:
    """Convert pixels in [0, 255] to another range and dtype. If the range differs, a Keras layer is added."""
    low, high = pixel_range
    if (low, high) != (0, 255):
        pixels = keras.layers.Rescaling((high - low) / 255, low, name=PIXELS_LAYER, dtype="float32")(pixels)
    return pixels if dtype == "float32" else keras.ops.cast(pixels, dtype)


def digest_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, by its path in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


def load(folder: Path) -> Any:
    """Load a SavedModel with TensorFlow.

    Raises:
        InputError: If TensorFlow cannot load it.
    """
    try:
        return tf.saved_model.load(str(folder))
    except Exception as error:  # TensorFlow raises errors of many classes.
        raise InputError(
            f"Cannot load the SavedModel {folder}: {explain(error)}. Expected a folder that tf.saved_model.save or "
            "keras.Model.export wrote, with operations of TensorFlow only."
        ) from error

"""A SavedModel of another program as a Keras model: one of its signatures, between layers that fit it to our data.

Only TensorFlow can run it. Its files are in `saved_model/` of the model's folder; their digests are in
`architecture.json`.
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
    """How the data pass through a signature.

    Attributes:
        signature: Name of the signature.
        input_name: Name of its input.
        output_name: Name of the output to use.
        input_dtype: Dtype of the input.
        input_shape: Shape of an image, (height, width, channels).
        pixel_range: Values that the signature takes for the pixels 0 and 255.
        activation: Keras name of the activation that turns the output into probabilities; empty for none.
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
        """Return the Keras model of the SavedModel in `folder`, from float32 pixels in [0, 255].

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
    """Return pixels from 0 to 255 in another range, by a layer of Keras if they change."""
    low, high = pixel_range
    if (low, high) != (0, 255):
        pixels = keras.layers.Rescaling((high - low) / 255, low, name=PIXELS_LAYER, dtype="float32")(pixels)
    return pixels if dtype == "float32" else keras.ops.cast(pixels, dtype)


def digest_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, by its path in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


def load(folder: Path) -> Any:
    """Return a SavedModel as TensorFlow loads it.

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

"""MobileNetV2 for photos, with optional pretrained weights and a new head."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location

LEAST_IMAGE_SHAPE = (32, 32, 3)  # Smallest height and width, and the channels; `init` reads it.


def build_model(
    image_shape: tuple[int, int, int], num_classes: int, alpha: float = 1.0, weights: str = "", dropout: float = 0.2
) -> Any:
    """Build MobileNetV2 (https://arxiv.org/abs/1801.04381) and a dense layer: 2,270,794 parameters for 10 classes.

    To freeze layers in `training.stages`, use their names, `backbone` and `head`; see the configuration
    `photos_mobilenet`. A pretrained backbone keeps its batch-normalisation statistics in every stage, because the
    statistics of a small data set would degrade the model (https://keras.io/guides/transfer_learning/).

    Args:
        image_shape: (height, width, 3), where height and width are at least 32. The input is uint8[batch,
            *image_shape].
        num_classes: Number of classes; the output is float32[batch, num_classes] probabilities.
        alpha: Width multiplier of the backbone.
        weights: File with the backbone's weights, local or on gs:// or s3://, for this `alpha` and without a top.
            `keras.applications.MobileNetV2(include_top=False, alpha=alpha).save_weights(...)` writes such a file. If
            empty, the backbone starts with random weights.
        dropout: Dropout rate between the backbone and the dense layer.

    Raises:
        InputError: If the images are too small or have no colour channels, or the weights cannot be read or belong to
            another model.
    """
    import keras
    from keras import layers

    height, width, channels = image_shape
    least_height, least_width, colours = LEAST_IMAGE_SHAPE
    if channels != colours or height < least_height or width < least_width:
        size = f"{max(height, least_height)},{max(width, least_width)}"
        raise InputError(
            "The model mobilenet_v2 needs colour images of at least 32×32 pixels. Received: "
            f"{height}×{width}×{channels}. Set data.channels=3 and data.image_size={size}."
        )
    if weights and not Location(weights).is_remote and not Path(weights).is_file():
        raise InputError(
            f"Cannot load the weights {weights!r}: there is no such file. Expected a file from "
            "keras.applications.MobileNetV2(include_top=False).save_weights(…). Check model.parameters.weights."
        )
    backbone = keras.applications.MobileNetV2(
        image_shape, alpha, include_top=False, weights=None, pooling="avg", name="backbone"
    )
    if weights:
        _load(backbone, weights)
    pixels = keras.Input(image_shape, dtype="uint8")
    scaled = layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    seen = layers.Dropout(dropout)(backbone(scaled, training=False if weights else None))
    probabilities = layers.Dense(num_classes, activation="softmax", dtype="float32", name="head")(seen)
    return keras.Model(pixels, probabilities, name="mobilenet_v2")


def _load(backbone: Any, weights: str) -> None:
    with tempfile.TemporaryDirectory(prefix="weights-") as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", "Skipping nested container|A total of")  # Keras leaves such layers random.
        try:
            backbone.load_weights(storage.localize(weights, Path(folder)))
        except (OSError, ValueError, UserWarning) as error:
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(
                f"Cannot load the weights {weights!r}: {said} Expected weights of MobileNetV2 without a top and with "
                "the same alpha, as .weights.h5 or .h5. Check model.parameters."
            ) from error

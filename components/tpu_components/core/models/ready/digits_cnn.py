"""A small convolutional network for small grey images."""

from typing import Any


def build_model(
    image_shape: tuple[int, int, int], num_classes: int, filters: int = 32, units: int = 128, dropout: float = 0.3
) -> Any:
    """Build a network of two convolutions, max pooling and a dense layer.

    It has 151,306 parameters for 8×8×1 images and 10 classes. The architecture follows
    https://doi.org/10.1109/5.726791.

    `tpu-pipelines run digits` reaches an accuracy of 0.99 in 50 s (11 s for training) on 2 cores of an AMD EPYC.

    Args:
        image_shape: (height, width, channels); the input is uint8[batch, *image_shape].
        num_classes: Number of classes; the output is float32[batch, num_classes] probabilities.
        filters: Channels of the first convolution; the second has twice as many.
        units: Width of the dense layer.
        dropout: Dropout rate after the dense layer.
    """
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input(image_shape, dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(filters, 3, padding="same", activation="relu"),
            layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(num_classes, activation="softmax", dtype="float32"),
        ],
        name="digits_cnn",
    )

"""A convolutional network for small colour images, such as those of CIFAR-10."""

from typing import Any


def build_model(image_shape: tuple[int, int, int], num_classes: int, dropout: float = 0.25, units: int = 512) -> Any:
    """Build a network of two blocks, with two convolutions each, and a dense layer.

    It has 1,676,982 parameters for 32×32×3 images and 10 classes. A batch normalisation precedes each block.

    `tpu-pipelines run cifar10_cnn` reaches a test accuracy of 0.82 in 13 minutes on 2 cores of an AMD EPYC with bf16
    units.

    Args:
        image_shape: (height, width, channels); the input is uint8[batch, *image_shape].
        num_classes: Number of classes; the output is float32[batch, num_classes] probabilities.
        dropout: Dropout rate after each block. The rate after the dense layer is twice as high.
        units: Width of the dense layer.
    """
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input(image_shape, dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.BatchNormalization(momentum=0.9),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(dropout),
            layers.BatchNormalization(momentum=0.9),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(dropout),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dropout(2 * dropout),
            layers.Dense(num_classes, activation="softmax", dtype="float32"),
        ],
        name="cifar10_cnn",
    )

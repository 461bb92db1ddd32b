"""What the registered models are trained on: an interface each, and how many examples."""

from tests.components.conftest import EVERYTHING
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    IMAGE,
    LANGUAGE_MODEL,
    CorpusInput,
    ImageInput,
    Interface,
    TextInput,
)

_MNIST = Interface(ImageInput((28, 28, 1), "raw"), 10)
_CIFAR10 = Interface(ImageInput((32, 32, 3), "raw"), 10)
READY_DATA = {
    "digits_cnn": (Interface(ImageInput((8, 8, 1), "raw"), 10), 1259),
    "mnist_cnn": (_MNIST, 60_000),
    "fashion_mnist_cnn": (_MNIST, 60_000),
    "cifar10_cnn": (_CIFAR10, 50_000),
    "cifar10_resnet": (_CIFAR10, 50_000),
    "mobilenet_v2": (Interface(ImageInput((160, 160, 3), "raw"), 10), 3_000),
    "shakespeare_lstm": (Interface(CorpusInput(128, 67), 67, LANGUAGE_MODEL), 7_424),
    "imdb_lstm": (Interface(TextInput(320, 15_000, "f" * 64, "words", "start"), 2), 22_500),
}
_FOR_IMAGES = ("random_flip", "random_crop_pixels", "random_resized_crop", "mixup_alpha")


def everything_for(interface):
    """All that a training step can do beside Keras's own, for these data."""
    left_out = {
        *(() if interface.input.kind == IMAGE else _FOR_IMAGES),
        *(() if interface.task_name == CLASSIFICATION else ("label_smoothing",)),
    }
    return {name: value for name, value in EVERYTHING.items() if name not in left_out}

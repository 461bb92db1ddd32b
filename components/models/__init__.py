"""Ready models: one file each, found by name."""

REGISTRY = {
    "digits_cnn": "components.models.digits_cnn",
    "mnist_cnn": "components.models.mnist_cnn",
    "fashion_mnist_cnn": "components.models.fashion_mnist_cnn",
    "cifar10_cnn": "components.models.cifar10_cnn",
    "cifar10_resnet": "components.models.cifar10_resnet",
    "imdb_lstm": "components.models.imdb_lstm",
    "shakespeare_lstm": "components.models.shakespeare_lstm",
}

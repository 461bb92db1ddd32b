"""A pipeline that writes TFRecord files with this package, and trains on a TPU with your own code in plain JAX."""

from typing import Any

from kfp import dsl

import tpu_pipelines as tp
from tpu_components.kfp import Components, on_current_data, with_images


# Your own image, with JAX for TPUs, and TensorFlow to read the records.
@dsl.component(base_image="us-docker.pkg.dev/my-project/images/jax:1", install_kfp_package=False)
def train_linear_model(records: dsl.Input[dsl.Dataset], model: dsl.Output[dsl.Model], steps: int = 300) -> float:
    """Train a linear classifier by gradient descent on all devices. Return its accuracy on the test split.

    Args:
        records: TFRecord files written by create_tfrecords, with the images as raw pixels.
        steps: Number of gradient steps.

    Returns:
        model: The weights, `weights.npy`.
        Output: Accuracy on the test split.
    """
    import json
    import os

    import jax
    import jax.numpy as jnp
    import numpy as np
    import tensorflow as tf

    with open(f"{records.path}/dataset.json") as file:
        manifest = json.load(file)
    size = int(np.prod(manifest["image_shape"]))
    classes = len(manifest["class_names"])

    def load(split: str) -> tuple[np.ndarray, np.ndarray]:
        names = [shard["name"] for shard in manifest["splits"][split]["shards"]]
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        data = tf.data.TFRecordDataset([f"{records.path}/{name}" for name in names])
        rows = [tf.io.parse_single_example(example, features) for example in data]
        images = np.stack([np.frombuffer(row["image"].numpy(), np.uint8) for row in rows])
        return images.reshape(len(rows), size) / np.float32(255), np.array([int(row["label"]) for row in rows])

    images, labels = load("train")

    def loss(weights: jax.Array) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(images @ weights)
        return -jnp.mean(log_probabilities[jnp.arange(len(labels)), labels])

    update = jax.jit(lambda weights: weights - 5.0 * jax.grad(loss)(weights))
    weights = jnp.zeros((size, classes))
    for _ in range(steps):
        weights = update(weights)

    os.makedirs(model.path)
    np.save(f"{model.path}/weights.npy", np.asarray(weights))
    images, labels = load("test")
    return float(np.mean(np.argmax(images @ np.asarray(weights), axis=1) == labels))


def make_pipeline(platform: str, image: str = "", machine: Any = "v5e-4") -> Any:
    """Return the pipeline for a platform.

    Args:
        platform: `vertex`, `kubeflow`, or `local` for a run with kfp.local.
        image: This package's image in your registry, named by digest. Not needed for `local`.
        machine: Machine that runs the training; see `tp.on_machine`.
    """
    steps = with_images(image) if image else Components()
    write_records = on_current_data(steps.create_tfrecords)
    train = tp.on_machine(train_linear_model, machine, platform=platform, environment={"JAX_PLATFORMS": "tpu,cpu"})

    @dsl.pipeline(name="foreign-training")
    def pipeline(source: str = "sklearn:digits") -> float:
        records = write_records(source=source).outputs["records"]
        return train(records=records).outputs["Output"]

    return pipeline

"""A pipeline that evaluates and exports a Keras model. Another program has written the data and trained the model."""

from typing import Any

from kfp import dsl

import tpu_pipelines as tp
from tpu_components.kfp import Components, on_current_data, with_images


# Stands for your own training. For a file in a bucket: dsl.importer("gs://my-bucket/digits.keras", dsl.Model).
@dsl.component(base_image="us-docker.pkg.dev/my-project/images/tensorflow:1", install_kfp_package=False)
def train_elsewhere(records: dsl.Output[dsl.Dataset], model: dsl.Output[dsl.Model], epochs: int = 30) -> str:
    """Write scikit-learn's digits as TFRecord files, and train a Keras model on them.

    Args:
        epochs: Number of training epochs.

    Returns:
        records: TFRecord files with the features `image/encoded` and `image/class/label`.
        model: The file `digits.keras`, which takes pixels from 0 to 1 and gives logits.
        Output: `tfrecords:` and the URI of the files: the value for the parameter `source` of create_tfrecords.
    """
    import os

    import keras
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images[..., None] / 16
    os.makedirs(records.path)
    for split, part in {"train": slice(0, 1400), "test": slice(1400, None)}.items():
        with tf.io.TFRecordWriter(f"{records.path}/{split}.tfrecord") as file:
            for image, label in zip(images[part], digits.target[part], strict=True):
                picture = tf.io.encode_png(np.round(image * 255).astype(np.uint8)).numpy()
                features = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    network = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    network.fit(images[:1400], digits.target[:1400], epochs=epochs, verbose=0)
    os.makedirs(model.path)
    network.save(f"{model.path}/digits.keras")
    return f"tfrecords:{records.uri}"


def make_pipeline(platform: str, image: str = "", machine: Any = "v5e-1") -> Any:
    """Return the pipeline for a platform.

    Args:
        platform: `vertex`, `kubeflow`, or `local` for a run with kfp.local.
        image: This package's image in your registry, named by digest. Not needed for `local`.
        machine: Machine that runs the evaluation, for example `l4-1`; see `tp.on_machine`.
    """
    steps = with_images(image) if image else Components()
    write_records = on_current_data(steps.create_tfrecords)
    evaluate_model = tp.on_machine(steps.evaluate_model, machine, platform=platform)

    @dsl.pipeline(name="foreign-model")
    def pipeline(epochs: int = 30) -> None:
        foreign = train_elsewhere(epochs=epochs)
        records = write_records(source=foreign.outputs["Output"], rewrite=False).outputs["records"]
        trained = steps.import_model(
            records=records, model=foreign.outputs["model"], class_names=[*"0123456789"], pixel_range=[0, 1]
        ).outputs["trained"]
        evaluated = evaluate_model(records=records, model=trained, minimum={"accuracy": 0.85})
        with dsl.If(evaluated.outputs["Output"] == True, name="passed"):  # noqa: E712 (KFP overloads ==)
            steps.export_model(records=records, model=trained)

    return pipeline

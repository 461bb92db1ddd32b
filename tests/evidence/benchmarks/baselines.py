"""The plain ways of doing the same, as tutorials show them."""

import json
import sys
import time
from pathlib import Path


def _write(files: list[Path], path: Path, *, decode: bool) -> float:
    import tensorflow as tf

    def feature(image: bytes, label: int) -> "tf.train.Example":
        values = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        return tf.train.Example(features=tf.train.Features(feature=values))

    start = time.perf_counter()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i, file in enumerate(files):
            content = file.read_bytes()
            if decode:
                content = tf.io.decode_jpeg(content).numpy().tobytes()
            writer.write(feature(content, i % 10).SerializeToString())
    return len(files) / (time.perf_counter() - start)


def write_plain(files: list[Path], path: Path) -> float:
    """Records/s of the loop that stores each file's bytes."""
    return _write(files, path, decode=False)


def write_decoded(files: list[Path], path: Path) -> float:
    """Records/s of the loop that stores each file's pixels, as we do."""
    return _write(files, path, decode=True)


def read_one_by_one(path: Path) -> float:
    """Records/s of the pipeline that parses one example, decodes one image, and batches last."""
    import tensorflow as tf

    def parse(serialized: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        fields = tf.io.parse_single_example(serialized, spec)
        return tf.cast(tf.io.decode_jpeg(fields["image"], channels=3), tf.float32) / 255, fields["label"]

    start = time.perf_counter()
    count = sum(len(labels) for _, labels in tf.data.TFRecordDataset(str(path)).map(parse).batch(128))
    return count / (time.perf_counter() - start)


def fit(path: str) -> float:
    """Images/s of Model.fit on float32 arrays in RAM: the CIFAR-10 network, batch 128, Adam; the better "
    "of two epochs."""
    import keras
    import numpy as np
    from keras import layers

    with np.load(path) as data:
        images, labels = data["images"].astype(np.float32) / 255, data["labels"]
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            layers.BatchNormalization(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.BatchNormalization(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    # jit_compile=False: what Keras would choose ("auto") is XLA on some versions, three times slower on a CPU.
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.fit(images[:1280], labels[:1280], batch_size=128, verbose=0)
    rates = []
    for _ in range(2):
        start = time.perf_counter()
        model.fit(images, labels, batch_size=128, verbose=0)
        rates.append(len(images) / (time.perf_counter() - start))
    return max(rates)


if __name__ == "__main__":
    print(json.dumps({"examples_per_second": fit(sys.argv[1])}))

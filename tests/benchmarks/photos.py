"""Photos of 500×375: written, and fed at 224×224, beside a plain tf.data pipeline in turn.

`python -m tests.benchmarks photos`. The photos are parts of scikit-learn's two pictures: real detail, in files of about
60 KB.
"""

import dataclasses
import resource
import time
from pathlib import Path

import numpy as np

NUM_PHOTOS, HEIGHT, WIDTH = 1000, 375, 500
SIZE = (224, 224)
_BATCH = 128


def make_photos(folder: Path, count: int = NUM_PHOTOS) -> list[Path]:
    """JPEG files of different places of two pictures, half of them mirrored."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    draw, files = np.random.default_rng(0), []
    pictures = load_sample_images().images
    for number in range(count):
        picture = pictures[number % 2]
        top, left = draw.integers(0, np.subtract(picture.shape[:2], (HEIGHT, WIDTH)) + 1)
        part = picture[top : top + HEIGHT, left : left + WIDTH]
        file = folder / ("china", "flower")[number % 2] / f"{number:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(part[:, :: draw.choice((-1, 1))].copy()).save(file, quality=87)
        files.append(file)
    return files


def write_plain(files: list[Path], path: Path) -> float:
    """Records/s of a plain loop that decodes, resizes and writes."""
    import tensorflow as tf

    start = time.perf_counter()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, file in enumerate(files):
            pixels = tf.image.resize(tf.io.decode_jpeg(file.read_bytes(), channels=3), SIZE)
            content = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=92).numpy()
            values = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString())
    return len(files) / (time.perf_counter() - start)


def feed_plain(paths: list[str]) -> float:
    """Images/s of the pipeline that tutorials show: parse one, decode one, resize it, batch; AUTOTUNE."""
    import tensorflow as tf

    def parse(serialized: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        fields = tf.io.parse_single_example(serialized, spec)
        return tf.image.resize(tf.io.decode_jpeg(fields["image"], channels=3), SIZE), fields["label"]

    start = time.perf_counter()
    dataset = tf.data.TFRecordDataset(paths).shuffle(1000).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    count = sum(len(labels) for _, labels in dataset.batch(_BATCH).prefetch(tf.data.AUTOTUNE))
    return count / (time.perf_counter() - start)


@dataclasses.dataclass(frozen=True)
class Photos:
    """The photos as files, and a folder to work in."""

    folder: Path
    work: Path

    def write(self, encoding: str, name: str) -> float:
        """Write records; returns how many per second."""
        from components.create_tfrecords import WriteParams, plan_dataset, write_records

        params = WriteParams(
            f"images:{self.folder}",
            image_size=SIZE,
            encoding=encoding,
            validation_fraction=0,
            test_fraction=0,
            join_copies=False,
        )
        start = time.perf_counter()
        return write_records(params, self.work / name, plan_dataset(params)).num_examples / (
            time.perf_counter() - start
        )

    def feed(self, name: str) -> float:
        """Images/s of a streamed epoch, as training gets it; the filling of the last batch does not count."""
        from components.artifacts import Manifest
        from components.feeding import open_training_split

        manifest = Manifest.load(self.work / name, verify=False)
        reader = open_training_split(self.work / name, manifest, _BATCH, 0, 0, 1000)
        start = time.perf_counter()
        count = sum(int(weights.numpy().sum()) for _, _, weights in reader.batches(0, 0))
        return count / (time.perf_counter() - start)


def resident_mib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

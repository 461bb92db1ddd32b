"""Photos of 500×375: written, and fed at 224×224, beside a plain tf.data pipeline in turn.

`python -m tests.evidence.benchmarks photos`. The photos are parts of scikit-learn's two pictures: real detail, in files
of about 60 KB.
"""

import dataclasses
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NUM_PHOTOS, HEIGHT, WIDTH = 1000, 375, 500
SIZE = (224, 224)
_BATCH = 128
TIMES = 4  # An epoch's start, some 0.1 s, is to count as little as in one of a real data set.
Work = Callable[[], int]  # Returns how many photos it did.


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


def rates(work: Work) -> tuple[float, float]:
    """Photos per second, and per second of CPU time: others use the machine too."""
    start, before = time.perf_counter(), _cpu_seconds()
    count = work()
    return count / (time.perf_counter() - start), count / (_cpu_seconds() - before)


def _cpu_seconds() -> float:
    """CPU time of this process, and of those running that it started; see proc_pid_stat(5)."""
    seconds = time.process_time()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # It has ended meanwhile.
            continue
        if int(fields[1]) == os.getpid():
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def write_plain(files: list[Path], path: Path) -> int:
    """Write records in a plain loop that decodes, resizes and writes; returns how many."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, file in enumerate(files):
            pixels = tf.image.resize(tf.io.decode_jpeg(file.read_bytes(), channels=3), SIZE)
            content = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=92).numpy()
            values = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString())
    return len(files)


def plain_pipeline(paths: list[str]) -> Any:
    """The pipeline that tutorials show, a tf.data.Dataset: parse one, decode one, resize it, batch; AUTOTUNE."""
    import tensorflow as tf

    def parse(serialized: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        fields = tf.io.parse_single_example(serialized, spec)
        return tf.image.resize(tf.io.decode_jpeg(fields["image"], channels=3), SIZE), fields["label"]

    dataset = tf.data.TFRecordDataset(paths).shuffle(1000).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(_BATCH).prefetch(tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class Photos:
    """The photos as files, and a folder to work in."""

    folder: Path
    work: Path

    def write(self, encoding: str, name: str) -> int:
        """Write records; returns how many."""
        from tpu_components.create_tfrecords import WriteParams, write_records

        params = WriteParams(
            f"images:{self.folder}",
            image_size=SIZE,
            encoding=encoding,
            validation_fraction=0,
            test_fraction=0,
            join_copies=False,
        )
        return write_records(params, self.work / name).num_examples

    def reader(self, name: str) -> Any:
        """A reader of batches as training gets them, streamed; its epoch holds every photo `TIMES` times."""
        from tpu_components.core.examples.artifacts import TRAIN, Manifest
        from tpu_components.core.examples.feeding import open_training_split

        manifest = Manifest.load(self.work / name, verify=False)
        split = manifest.split(TRAIN)
        longer = dataclasses.replace(split, num_examples=TIMES * split.num_examples, shards=TIMES * split.shards)
        manifest = dataclasses.replace(manifest, splits={TRAIN: longer})
        return open_training_split(self.work / name, manifest, _BATCH, 0, 0, 1000)


def feed(reader: Any) -> int:
    """Read an epoch; returns its images, without the filling of the last batch."""
    return sum(int(weights.numpy().sum()) for _, _, weights in reader.batches(0, 0))


def resident_mib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

"""Records of 70,000 images compared with TFDS's writer, in turn.

`python -m tests.evidence.benchmarks.tfds --python ENV/bin/python` runs it.

TFDS is no dependency of this project. It runs in an environment of its own, which is thrown away:

    uv venv /tmp/tfds && uv pip install --python /tmp/tfds/bin/python tensorflow-datasets tensorflow-cpu

Both get the same files, of which 60,000 are CIFAR-10's and 10,000 noise. TFDS stores a file's bytes unseen, in the
order of its keys' hashes. This project decodes every image first, sets aside what is damaged, looks for copies,
measures, and then stores the pixels of images as small as these; with `--encoding encoded` the file's bytes, as TFDS
does. Seconds are from a process's start to its end, libraries and all; memory is that of all its processes at the peak,
pages that several share counted once.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from tests.evidence.benchmarks.processes import proportional_bytes
from tests.support.cli import DATA
from tpu_components.core.pages.blocks import Table

_NUM_IMAGES, _NUM_MADE, _CLASSES = 70_000, 10_000, 10
_COLUMNS = {"writer": "<", "examples/s": ">", "seconds": ">", "CPU s": ">", "MiB at the peak": ">", "MiB written": ">"}
_TFDS = """
import sys
from pathlib import Path
import tensorflow_datasets as tfds

class Images(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        names = sorted(path.name for path in Path(sys.argv[1], "train").iterdir())
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=names)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(Path(sys.argv[1], "train"))}

    def _generate_examples(self, folder):
        for path in folder.rglob("*.jpg"):
            yield path.relative_to(folder).as_posix(), {"image": path, "label": path.parent.name}

Images(data_dir=sys.argv[2]).download_and_prepare()
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.tfds", description=__doc__)
    parser.add_argument("--python", required=True, help="Python of an environment that has tensorflow-datasets")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ours = [
        sys.executable,
        "-m",
        "tpu_components.create_tfrecords",
        "--validation-fraction",
        "0",
        "--test-fraction",
        "0",
    ]
    with tempfile.TemporaryDirectory(prefix="tfds-") as name:
        images = _make_images(Path(name) / "images")
        commands = {
            "this project, pixels": [*ours, "--source", f"images:{images}", "--output"],
            "this project, files' bytes": [*ours, "--source", f"images:{images}", "--encoding", "encoded", "--output"],
            "TFDS, files' bytes": [arguments.python, "-c", _TFDS, str(images)],
        }
        taken: dict[str, list[tuple[float, ...]]] = {writer: [] for writer in commands}
        for number in range(arguments.rounds):
            for place, (writer, command) in enumerate(commands.items()):
                taken[writer].append(_run(command, Path(name) / f"{number}-{place}"))
    rows = []
    for writer, runs in taken.items():
        seconds, cpu, peak, written = map(statistics.median, zip(*runs, strict=True))
        rate = f"{_NUM_IMAGES / seconds:,.0f}"
        rows.append((writer, rate, f"{seconds:.1f}", f"{cpu:.1f}", f"{peak / 2**20:,.0f}", f"{written / 2**20:,.0f}"))
    print("\n".join(Table(_COLUMNS, rows).lines()))


def _make_images(folder: Path) -> Path:
    """Write 70,000 files into a folder for each class, below that of one split."""
    with tarfile.open(DATA / "cifar10.tar.xz") as archive:
        for member in archive:
            parts = member.name.split("/")
            if member.isfile() and len(parts) == 4:
                _write(folder / "train" / parts[2] / f"{parts[1]}-{parts[3]}", _content(archive, member))
    noise = np.random.default_rng(0)
    classes = sorted((folder / "train").iterdir())
    for number in range(_NUM_MADE):
        content = simplejpeg.encode_jpeg(noise.integers(0, 256, (32, 32, 3), np.uint8), 90, "RGB", "444")
        _write(classes[number % _CLASSES] / f"made-{number:05d}.jpg", content)
    assert sum(1 for _ in folder.rglob("*.jpg")) == _NUM_IMAGES
    return folder


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _run(command: Sequence[str], output: Path) -> tuple[float, ...]:
    """Run a command; returns its seconds, CPU seconds, bytes of memory at the peak, and bytes written."""
    before, begun, peak, ended = os.times(), time.perf_counter(), [0], threading.Event()
    process = subprocess.Popen(
        [*command, str(output)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **_QUIET}
    )

    def watch() -> None:
        while not ended.wait(0.1):
            peak[0] = max(peak[0], proportional_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds, after = time.perf_counter() - begun, os.times()
    ended.set()
    watcher.join()
    if code:
        raise RuntimeError(f"{command[0]} ended with {code}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, cpu, peak[0], sum(path.stat().st_size for path in output.rglob("*.tfrecord*"))


_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

if __name__ == "__main__":
    main()

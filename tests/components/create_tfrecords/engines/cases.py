"""Data sets that every engine is to write to the same bytes."""

import dataclasses
import filecmp
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import DATA
from tpu_components.create_tfrecords import WriteParams


def images(folder: Path) -> WriteParams:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    noise[7] = noise[21]  # Copies under two names, which draw different splits.
    for i, pixels in enumerate(noise):
        (folder / f"{i % 2}").mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).resize((8, 8 + i % 7)).save(folder / f"{i % 2}" / f"{i}.png")
    (folder / "0" / "damaged.png").write_bytes(b"no image")
    return WriteParams(f"images:{folder}", max_bad_fraction=0.1, image_size=(8, 8))


def groups(folder: Path) -> WriteParams:
    params = images(folder)
    rows = [f"{i % 2}/{i}.png,{i % 2},{i // 4}" for i in range(40)]
    (folder / "labels.csv").write_text("\n".join(["path,label,patient", *rows]))
    return dataclasses.replace(params, source=f"csv:{folder}/labels.csv", group_column="patient")


def texts(folder: Path) -> WriteParams:
    folder.mkdir()
    words = ("Good", "bad", "long", "film", "plot")
    rows = [f"{' '.join(words[(i * k) % 5] for k in range(1, 7))} {i % 17},{i % 2}" for i in range(60)]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    return WriteParams(f"csv:{folder}/reviews.csv", num_tokens=5, vocabulary_size=12)


def corpus(folder: Path) -> WriteParams:
    folder.mkdir()
    (folder / "poem.txt").write_text("To be, or not to be, that is the question. " * 40)
    return WriteParams(f"corpus:{folder}/poem.txt", num_tokens=20)


def numbers(folder: Path) -> WriteParams:
    folder.mkdir()
    random = np.random.default_rng(0)
    np.savez(folder / "x.npz", x=random.integers(0, 256, (50, 4, 4), np.uint8), y=random.normal(size=(50, 2)))
    return WriteParams(f"npz:{folder}/x.npz", task="regression")


def shared(name: str, kind: str) -> Callable[[Path], WriteParams]:
    def make(folder: Path) -> WriteParams:
        packed = DATA / name
        if not packed.exists():
            pytest.skip(f"needs {packed}")
        if packed.suffix != ".xz":
            return WriteParams(f"{kind}:{packed}", num_tokens=100)
        subprocess.run(["tar", "xJf", packed, "-C", folder.parent], check=True)
        return WriteParams(f"{kind}:{folder.parent}/{name.partition('.')[0]}")

    return make


CIFAR, IMDB = shared("cifar10.tar.xz", "images"), shared("imdb_sample.tar.xz", "text")
SHAKESPEARE = shared("tinyshakespeare.txt", "corpus")


def same_files(left: Path, right: Path) -> bool:
    names = sorted(path.name for path in left.iterdir())
    assert names == sorted(path.name for path in right.iterdir())
    return filecmp.cmpfiles(left, right, names, shallow=False) == (names, [], [])

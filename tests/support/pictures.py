"""Tiny data sets of pictures that differ from one another."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]
MakeFolder = Callable[..., Path]


def encode_picture(
    seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB", kind: str = "PNG", **options
) -> bytes:
    """The bytes of a picture of smooth noise; `size` is (height, width)."""
    height, width = size
    noise = np.random.default_rng(seed).integers(0, 256, (height // 2 + 2, width // 2 + 2, 3), np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    return encoded(image, kind, **options)


def encoded(picture: Image.Image | np.ndarray, kind: str = "PNG", **options) -> bytes:
    """The bytes of a picture's file; of an array, [height, width] or [height, width, channels]."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def encode() -> Encode:
    """Make a picture's bytes."""
    return encode_picture


@pytest.fixture
def image_folder(tmp_path: Path) -> MakeFolder:
    """Make a folder per class with `per_class` pictures each."""

    def make(per_class: int = 10, classes: tuple[str, ...] = ("cat", "dog"), name: str = "data", **options) -> Path:
        root = tmp_path / name
        for number, class_name in enumerate(classes):
            (root / class_name).mkdir(parents=True)
            for i in range(per_class):
                kind = options.get("kind", "PNG").lower()
                (root / class_name / f"{i:04d}.{kind}").write_bytes(encode_picture(seed=1000 * number + i, **options))
        return root

    return make

"""Batches of image files to pixels, for training and evaluation: a thread per core, in code that lets others run."""

import functools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from components.images import UNUSUAL, ImageRule, decode_jpeg, decode_pixels, jpeg_header, reduction
from components.interface import ImageInput

_ALIGNMENT = 64  # Of TensorFlow's tensors, in bytes.
_WORKERS = os.cpu_count() or 1
_RUNS_PER_WORKER = 4  # Of a batch: few to be handed over, and enough that none waits long for the last.
# Of image files that Python hands on, one at a time, however many cores decode them: some 8 µs each.
MOST_PER_SECOND = 100_000.0


def decode_batch(files: Sequence[bytes], inputs: ImageInput) -> np.ndarray:
    """Return uint8[files, height, width, channels], each image written straight into its place.

    The pixels that `images.decode_pixels` gives, to the bit; where an image is resized, up to one level (of 255) apart.

    Args:
        files: Image files as records hold them, turned already where they had to be.
        inputs: Shape that they are resized to, and the way.

    Raises:
        UnreadableImageError: If one is damaged.
    """
    height, width, channels = inputs.image_shape
    rule = ImageRule((height, width), channels, reduced=inputs.reduced)
    batch = _aligned((len(files), *inputs.image_shape))
    size = max(1, len(files) // (_RUNS_PER_WORKER * _WORKERS))

    def decode(start: int) -> None:
        for file, out in zip(files[start : start + size], batch[start : start + size], strict=True):
            _decode_into(rule, file, out)

    for _ in _workers().map(decode, range(0, len(files), size)):
        pass
    return batch


@functools.cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WORKERS, "decode")


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an empty uint8 array that begins where TensorFlow takes it over without a copy."""
    memory = np.empty(math.prod(shape) + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + math.prod(shape)].reshape(shape)


def _decode_into(rule: ImageRule, file: bytes, out: np.ndarray) -> None:
    height, width, kind = jpeg_header(file, rule.max_pixels)
    grey = rule.channels == 1
    if kind in ("", UNUSUAL):
        out[...] = decode_pixels(file, rule)
    elif (height, width) == rule.image_size:
        decode_jpeg(file, "GRAY" if grey else "RGB", (height, width), buffer=out)
    else:
        ratio = reduction((height, width), out.shape[:2]) if rule.reduced else 1
        # Four channels, since what is as wide as a machine word is transposed several times faster.
        pixels = decode_jpeg(file, "GRAY" if grey else "RGBX", (height, width), ratio)
        out[...] = _resize(pixels, out.shape[:2])[..., : rule.channels]


def _resize(pixels: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
    """Resize uint8[height, width, 1 or 4] as Pillow does (bilinear, antialiased), in less than half its time."""
    height, width, channels = pixels.shape
    together = {1: np.float32, 4: np.complex128}[channels]  # A pixel as one element, to transpose.
    rows = _weights(height, image_size[0]) @ pixels.reshape(height, -1).astype(np.float32)
    columns = np.ascontiguousarray(rows.view(together).T).view(np.float32)
    resized = _weights(width, image_size[1]) @ columns
    resized += 0.5
    return resized.astype(np.uint8).reshape(image_size[1], image_size[0], channels).transpose(1, 0, 2)


@functools.lru_cache(4096)  # Photos come in a few sizes; where each has its own, it costs a tenth of a decoding.
def _weights(before: int, after: int) -> Any:
    """Return the share of every pixel of a line in those of the resized line: sparse float32[after, before]."""
    from scipy import sparse

    scale = before / after
    centres = (np.arange(after)[:, None] + 0.5) * scale
    radius = max(scale, 1.0)
    first = np.floor(centres - radius + 0.5).astype(int)
    places = first + np.arange(int(np.ceil(2 * radius)) + 1)
    shares = np.maximum(0.0, 1 - np.abs(places + 0.5 - centres) / radius) * ((places >= 0) & (places < before))
    shares /= shares.sum(axis=1, keepdims=True)
    lines = np.repeat(np.arange(after), places.shape[1])
    counts = shares.ravel() > 0
    cells = (shares.ravel()[counts], (lines[counts], places.ravel()[counts]))
    return sparse.csr_matrix(cells, (after, before), np.float32)

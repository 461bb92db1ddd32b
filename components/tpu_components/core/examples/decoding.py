"""Multithreaded decoder for batches of image files, for training and evaluation.

The decoder uses one thread per available CPU, and releases the GIL.
"""

import functools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.examples.images import decode_jpeg, jpeg_header, read_image, reduction
from tpu_components.core.examples.interface import ImageInput, ImageRule
from tpu_components.core.examples.resizing import resize_into

_ALIGNMENT = 64  # Alignment of TensorFlow's tensors, in bytes.
_WORKERS = available_cpus()
_RUNS_PER_WORKER = 4  # Pieces of a batch per worker: few to submit, but enough that all workers end together.
# Upper limits of image files per second, for any number of cores. Python passes on one file at a time, in about 8 µs.
# Pixels that are resized are copied under the GIL: for photos of 500×375 that become 224×224, on an AMD EPYC, another
# 13 µs out of the decoder, 14 into the resizer, 10 back and into the batch, and 14 in Python code.
MOST_PER_SECOND, MOST_RESIZED_PER_SECOND = 100_000.0, 17_000.0


def decode_batch(files: Sequence[bytes], inputs: ImageInput) -> np.ndarray:
    """Decode image files into one array, uint8[len(files), *inputs.fed_shape].

    The pixels are the same as from `images.read_image`, except that pixels of resized images differ by at most two
    levels (of 255); see `resizing.resize_into`. JPEG files that need no resizing are decoded directly into the array.

    Args:
        files: Contents of image files from records. Photos are already rotated.
        inputs: Shape and margin to resize to, and whether larger JPEG files are decoded at a reduced size.

    Raises:
        UnreadableImageError: If a file is damaged.
    """
    batch = _aligned((len(files), *inputs.fed_shape))
    rule = inputs.stored_rule
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
    """Return an uninitialized uint8 array that is aligned so that TensorFlow can use it without a copy."""
    memory = np.empty(math.prod(shape) + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + math.prod(shape)].reshape(shape)


def _decode_into(rule: ImageRule, file: bytes, out: np.ndarray) -> None:
    height, width, kind = jpeg_header(file, rule.max_pixels)
    if not kind:
        out[...] = read_image(file, rule).pixels
    elif (height, width) == rule.image_size:
        decode_jpeg(file, rule.channels, (height, width), buffer=out)
    else:
        ratio = reduction((height, width), out.shape[:2]) if rule.reduced else 1
        resize_into(decode_jpeg(file, rule.channels, (height, width), ratio), out)

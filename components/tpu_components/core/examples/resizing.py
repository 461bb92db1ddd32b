"""Image resizing with nearly the same results as Pillow's, in a fifth of the time.

This module needs the package `cykooz_resizer`, which is not installed on servers.
"""

import threading
from typing import Any

import numpy as np

from tpu_components.core.examples.images import Picture, encode_jpeg, read_image
from tpu_components.core.examples.interface import ImageRule

_of_thread = threading.local()


def resize_into(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize an image into the array `out`. The GIL is released.

    Values differ from those of `images.resize_pixels` by at most two levels (of 255). For most sizes, they differ by at
    most one. From 64×64 to 224×224, 6 values in 100,000 differ by two.

    Args:
        pixels: uint8[height, width, 1 or 3].
        out: uint8[new height, new width, 1 or 3], which is filled with the resized image.
    """
    from cykooz_resizer import ImageData, PixelType

    kind = PixelType.U8 if pixels.shape[2] == 1 else PixelType.U8x3
    whole = ImageData(pixels.shape[1], pixels.shape[0], kind, pixels.tobytes())
    resized = ImageData(out.shape[1], out.shape[0], kind)
    resizer, bilinear = _resizer()
    resizer.resize(whole, resized, bilinear)
    out[...] = np.frombuffer(resized.get_buffer(), np.uint8).reshape(out.shape)


def _resizer() -> tuple[Any, Any]:
    """Return this thread's resizer and its options. A resizer can resize one image at a time."""
    from cykooz_resizer import FilterType, ResizeAlg, ResizeOptions, Resizer

    if not hasattr(_of_thread, "resizer"):
        bilinear = ResizeOptions(ResizeAlg.convolution(FilterType.bilinear), use_alpha=False)
        _of_thread.resizer = Resizer(), bilinear
    return _of_thread.resizer


def check_resized(content: bytes, rule: ImageRule, quality: int) -> tuple[bytes, tuple[int, ...], Picture]:
    """Resize an image to the size of a rule, and encode it as JPEG.

    Return the JPEG file, its shape (height, width, channels) and the resized image. A JPEG file that already has this
    shape, and is not rotated by its EXIF orientation, is returned unchanged.

    Raises:
        UnreadableImageError: If the file is not an image, or is truncated.
    """
    picture = read_image(content, rule, keep_size=True)
    pixels = picture.pixels
    if rule.image_size and rule.image_size != pixels.shape[:2]:
        pixels = np.empty((*rule.image_size, pixels.shape[2]), np.uint8)
        resize_into(picture.pixels, pixels)
        picture = picture._replace(pixels=pixels, is_original=False)
    has_shape = (*picture.size, 1 if picture.jpeg == "Gray" else 3) == pixels.shape
    is_kept = has_shape and picture.jpeg and not picture.was_turned
    return content if is_kept else encode_jpeg(pixels, quality), pixels.shape, picture

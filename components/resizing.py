"""Pictures at another size as Pillow makes them, in less than half its time, for who has scipy; a server has not."""

import functools
from typing import Any

import numpy as np

from components.images import UNUSUAL, ImageRule, encode_jpeg, is_turned, jpeg_header, open_image


def resize_into(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize a picture as `images.resize_pixels` does, up to one level (of 255) apart: two sparse products.

    Args:
        pixels: uint8[height, width, channels].
        out: uint8[…, …, channels], filled with the resized picture.
    """
    (height, width, channels), (rows_wanted, columns_wanted) = pixels.shape, out.shape[:2]
    rows = _weights(height, rows_wanted) @ pixels.reshape(height, -1).astype(np.float32)
    rows = rows.reshape(rows_wanted, width, channels)
    columns = np.empty((width, channels, rows_wanted), np.float32)
    for channel in range(channels):  # One at a time: NumPy copies runs of three places several times more slowly.
        columns[:, channel] = rows[..., channel].T
    resized = _weights(width, columns_wanted) @ columns.reshape(width, -1)
    resized += 0.5
    levels = resized.astype(np.uint8).reshape(columns_wanted, channels, rows_wanted)
    for channel in range(channels):
        out[..., channel] = levels[:, channel].T


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


def check_resized(content: bytes, rule: ImageRule, quality: int) -> tuple[bytes, tuple[int, ...], np.ndarray]:
    """Bring an image to the rule's size; returns a JPEG file of it, (height, width, channels) and the pixels before.

    A JPEG file that has that size and those channels already is kept to the byte.

    Raises:
        UnreadableImageError: If the file is no image, or is truncated.
    """
    pixels = open_image(content, rule, keep_size=True).decode()
    if rule.image_size and rule.image_size != pixels.shape[:2]:
        whole, pixels = pixels, np.empty((*rule.image_size, pixels.shape[2]), np.uint8)
        resize_into(whole, pixels)
    height, width, kind = jpeg_header(content)
    is_as_wanted = (height, width, 1 if kind == "Gray" else 3) == pixels.shape and kind != UNUSUAL
    if is_as_wanted and not (rule.upright and is_turned(content)):
        return content, pixels.shape, pixels
    return encode_jpeg(pixels, quality), pixels.shape, pixels

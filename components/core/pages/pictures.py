"""Pictures for HTML pages, which hold them as `data:` URIs."""

import base64

import numpy as np

from tpu_components.core.examples.images import encode_jpeg, encode_png, image_of

_JPEG_QUALITY = 80


def thumbnail(pixels: np.ndarray, most_pixels: int) -> str:
    """Return a picture as a `data:` URI: a PNG file of the same size if it is small, otherwise a smaller JPEG file.

    Args:
        pixels: uint8[height, width, 1 or 3].
        most_pixels: Height and width up to which a picture is small. A larger one is reduced to fit.
    """
    image = image_of(pixels)
    if max(image.size) > most_pixels:
        image.thumbnail((most_pixels, most_pixels))
        small = np.asarray(image)
        kind, content = "jpeg", encode_jpeg(small.reshape(*small.shape[:2], -1), _JPEG_QUALITY)
    else:
        kind, content = "png", encode_png(pixels)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

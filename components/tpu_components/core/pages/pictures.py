"""Images for HTML pages, embedded as `data:` URIs."""

import base64

import markupsafe
import numpy as np

from tpu_components.core.examples.images import encode_jpeg, encode_png, image_of

_JPEG_QUALITY = 85
_DENSITY = 2  # Pixels of a picture for each CSS pixel: phone screens have several.
_PICTURE = markupsafe.Markup('<img src="{}" alt="{}" title="{}"{}>')
PICTURES = markupsafe.Markup('<div class="pictures">{}</div>')  # A row of pictures.
_CRISP = markupsafe.Markup(' class="crisp"')


def show_picture(pixels: np.ndarray, side: int, name: str, hint: str = "") -> markupsafe.Markup:
    """Return an `<img>` element with an image: a PNG if the image fits into `side`, otherwise a smaller JPEG.

    Args:
        pixels: uint8[height, width, 1 or 3].
        side: Height and width to which the page's style limits the image, in CSS pixels.
        name: Text for readers who do not see the image.
        hint: Tooltip. The default is the name.
    """
    image = image_of(pixels)
    look = markupsafe.Markup()
    if max(image.size) <= side:
        kind = "png"
        content = encode_png(pixels)
        look = _CRISP
    else:
        image.thumbnail((_DENSITY * side, _DENSITY * side))
        small = np.asarray(image)
        kind = "jpeg"
        content = encode_jpeg(small.reshape(*small.shape[:2], -1), _JPEG_QUALITY)
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return _PICTURE.format(source, name, hint or name, look)

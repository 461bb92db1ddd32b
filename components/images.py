"""Image files to pixels: strict, so that a damaged file is noticed here and not in a model's accuracy."""

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

# Pillow guesses among dozens of formats, some of which start other programs (EPS: Ghostscript); files are not trusted.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MODES = {1: "L", 3: "RGB"}
# For Pillow: libjpeg-turbo's own conversion from CMYK is one level off Pillow's and TensorFlow's.
_UNUSUAL = "unusual"
_GREY_MODES = ("1", "L", "LA")
# A few kilobytes can claim 65,535 × 65,535 pixels.
_MAX_PIXELS = 1 << 27
# Pillow asks for so much of a file at a time, and a kilobyte may hold a megapixel; see `open_image`.
_WATCHED_BLOCK_BYTES = 1 << 14
_START_OF_SCAN, _MAX_SCANS = b"\xff\xda", 32  # Each of a progressive JPEG is a pass over all pixels; 10 are usual.


class UnreadableImageError(Exception):
    """The bytes are no image, or a damaged one. The message is the reason, without the path."""


@dataclasses.dataclass(frozen=True)
class ImageRule:
    """What every image must be like, or be turned into.

    Attributes:
        image_size: (height, width) to resize to, or None: no resizing.
        channels: 1 or 3 to convert to, or 0: no conversion.
        max_pixels: The largest image to decode, as its header says. The default takes 400 MB.
    """

    image_size: tuple[int, int] | None
    channels: int
    max_pixels: int = _MAX_PIXELS


def has_image_suffix(name: str) -> bool:
    """Whether a file is named like an image of a format that can be read."""
    return Image.registered_extensions().get(PurePosixPath(name).suffix.lower()) in _FORMATS


@dataclasses.dataclass(frozen=True)
class OpenImage:
    """An image file of which no more than the header has been read.

    Attributes:
        num_pixels: As the header says, before it is resized.
        num_bytes: Size of the file.
        decode: Reads the rest: uint8[height, width, channels], as `decode_pixels`.
    """

    num_pixels: int
    num_bytes: int
    decode: Callable[[], np.ndarray]


def decode_pixels(content: bytes, rule: ImageRule) -> np.ndarray:
    """uint8[height, width, channels] of an image file, resized and converted as the rule says.

    Transparency is dropped, 16 bits are cut to the upper 8, and of an animation the first frame counts.

    Raises:
        UnreadableImageError: If the file is no image, is truncated, or has more pixels than the rule allows.
    """
    return open_image(content, rule).decode()


def open_image(content: bytes, rule: ImageRule, watch: Callable[[], None] | None = None) -> OpenImage:
    """Read the header of an image file, and see what the rest would cost.

    Args:
        content: The file.
        rule: What it is turned into.
        watch: Called again and again while the file is read; to give up, it raises UnreadableImageError. Between two
            calls some milliseconds pass, or, where the format cannot be read in parts, the time of `num_pixels`.

    Raises:
        UnreadableImageError: As `decode_pixels`, which `decode` raises too.
    """
    height, width, kind = _jpeg_header(content, rule.max_pixels)
    if kind in ("", _UNUSUAL) or content.count(_START_OF_SCAN) > _MAX_SCANS:
        image = _open_with_pillow(content, rule, watch)
        return OpenImage(image.height * image.width, len(content), lambda: _pixels(_fit(_load(image, rule), rule)))

    def decode() -> np.ndarray:
        grey = rule.channels == 1 or (rule.channels == 0 and kind == "Gray")
        try:
            pixels = simplejpeg.decode_jpeg(content, colorspace="GRAY" if grey else "RGB")
        except ValueError as error:
            raise UnreadableImageError(f"damaged JPEG: {error}") from error
        return pixels if rule.image_size is None else resize_pixels(pixels, rule.image_size)

    return OpenImage(height * width, len(content), decode)


def convert_pixels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """uint8[height, width, channels]: the same picture in grey (1) or colour (3)."""
    if pixels.shape[2] == channels:
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(image.convert(_MODES[channels])).reshape(*pixels.shape[:2], channels)


def resize_pixels(pixels: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
    """uint8[*image_size, channels]: the same picture at another size (bilinear, antialiased)."""
    if pixels.shape[:2] == image_size:
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return _pixels(_fit(image, ImageRule(image_size, 0)))


def _fit(image: Any, rule: ImageRule) -> Any:
    """An image at the rule's size. Pillow lets other threads run meanwhile, but not while it copies into an array."""
    if rule.image_size is None or image.size == rule.image_size[::-1]:
        return image
    return image.resize(rule.image_size[::-1], Image.Resampling.BILINEAR)


def _pixels(image: Any) -> np.ndarray:
    """uint8[height, width, channels]."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _jpeg_header(content: bytes, max_pixels: int = _MAX_PIXELS) -> tuple[int, int, str]:
    """Height, width and colour space of a JPEG file, or that it is an unusual one; empty for other files."""
    if content[:3] != b"\xff\xd8\xff":
        return 0, 0, ""
    try:
        height, width, kind, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:  # Damaged, or subsampled in a way that libjpeg-turbo's interface has no name for.
        return 0, 0, _UNUSUAL
    _check_size(height, width, max_pixels)
    return height, width, _UNUSUAL if kind == "CMYK" else kind


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise UnreadableImageError(f"{height}×{width} pixels: expected at most {max_pixels:,} in all")


class _WatchedFile(io.BytesIO):
    """A file in memory that calls `watch` before every read."""

    def __init__(self, content: bytes, watch: Callable[[], None]) -> None:
        super().__init__(content)
        self._watch = watch

    def read(self, size: int | None = -1, /) -> bytes:
        self._watch()
        return super().read(size)


def _open_with_pillow(content: bytes, rule: ImageRule, watch: Callable[[], None] | None) -> Any:
    if not content:
        raise UnreadableImageError("empty file")
    with _naming_damage():
        file = _WatchedFile(content, watch) if watch else io.BytesIO(content)
        image: Any = Image.open(file, formats=_FORMATS)
        _check_size(image.height, image.width, rule.max_pixels)
        if watch:
            image.decodermaxblock = _WATCHED_BLOCK_BYTES
    return image


def _load(image: Any, rule: ImageRule) -> Any:
    """An opened image, read and in the rule's mode."""
    with _naming_damage():
        image.load()
        if image.mode.startswith("I;16"):  # convert() would clip at 255.
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise UnreadableImageError(f"32 bits per pixel (mode {image.mode}): expected 8 or 16")
        mode = _MODES[rule.channels or (1 if image.mode in _GREY_MODES else 3)]
        return image if image.mode == mode else image.convert(mode)


@contextlib.contextmanager
def _naming_damage() -> Iterator[None]:
    try:
        with warnings.catch_warnings(action="ignore"):  # Odd metadata is no concern here; size is checked.
            yield
    except UnreadableImageError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImageError("not an image") from error
    except Exception as error:  # On hostile bytes Pillow's decoders raise whatever their parsing meets.
        raise UnreadableImageError(f"damaged image: {error}") from error


def check_encoded(content: bytes, rule: ImageRule) -> tuple[bytes, tuple[int, int, int], np.ndarray]:
    """The bytes to store for an image that stays encoded, its (height, width, channels) once read, and its pixels.

    JPEG (but CMYK and the like) and PNG are kept to the byte. What TensorFlow cannot decode, or decodes to other
    pixels, is turned into PNG.

    Raises:
        UnreadableImageError: If the file is no image, or is truncated.
    """
    pixels = decode_pixels(content, ImageRule(None, rule.channels))
    height, width, channels = pixels.shape
    shape = (*(rule.image_size or (height, width)), channels)
    if _jpeg_header(content)[2] not in ("", _UNUSUAL) or content.startswith(b"\x89PNG\r\n\x1a\n"):
        return content, shape, pixels
    return encode_png(pixels), shape, pixels


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG file of uint8[height, width, 1 or 3], from which the very same pixels are read."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()

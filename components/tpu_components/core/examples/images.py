"""Strict decoders of image files.

Damaged files raise errors, so that they do not reduce a model's accuracy unnoticed.
"""

import contextlib
import dataclasses
import functools
import io
import math
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from tpu_components.core.examples.interface import ImageRule, UnreadableError

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Pillow guesses among dozens of formats, some of which start other programs (EPS: Ghostscript); files are not trusted.
SERVED_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# Formats of phones, which the server rejects. Pillow reads AVIF if built with it, and HEIC if pillow-heif is installed.
_PLUGIN_FORMATS = {".avif": "AVIF", ".heic": "HEIF", ".heif": "HEIF"}
# ISO 14496-12: brands in the first box of a HEIC (ISO 23008-12) or AVIF file.
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"hevc": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC", b"avif": "AVIF"}
_EXIF_IN_JPEG = b"Exif\0"
_EXIF_ORIENTATION = 0x0112
_TIFF_SIDES = _WIDTH, _LENGTH, _TILE_WIDTH, _TILE_LENGTH = 256, 257, 322, 323  # TIFF 6.0, sections 8 and 15.
_TIFF_TYPES = {3: "H", 4: "I"}  # Types of the sides: SHORT and LONG.
_MODES = {1: "L", 3: "RGB"}
REDUCTIONS = (8, 4, 2)  # Scales that both libjpeg and TensorFlow support.
_GREY_MODES = ("1", "L", "LA")
_MOST_SIDE_PIXELS = 1 << 20  # Pillow needs memory for each row, however short.
_CONVERTED_PIXELS = 1 << 22  # Converted at a time, to limit the memory for a large image.
_LOSSLESS_FORMATS = ("PNG", "BMP", "GIF", "PPM")
_LOSSLESS_IN_TIFF = (
    *("raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "lzma", "zstd"),
    *("group3", "group4", "tiff_ccitt"),
)
_WEBP_CHUNKS = 12  # Length of a WebP file's header.
_MODES_OF_8_BITS = ("L", "P", "1", "LA")  # Pillow opens no file of 16 bits per channel in these.
_MAX_16_BIT_PPM = 65535
_FEW_LEVELS = 64  # Of 256: what remains of an image whose values use at most 14 of 16 bits.
_MOST_SAMPLED = 256
# Thresholds for one colour, which a lossy format may change by a few levels, and for transparency with content.
_FLAT, _MOST_FLAT_COLOURS, _VARYING_ALPHA = 8, 256, 64
# Chunks of a PNG file that do not change the pixels (PNG 3rd edition, section 11.3).
_PNG_METADATA = (
    *(b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"gAMA", b"cHRM", b"sRGB", b"cICP"),
    *(b"sBIT", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"tIME"),
)
# Texts from which Pillow reads the EXIF orientation of a PNG file.
_TEXTS_WITH_ORIENTATION = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
MOST_SCANS = 32  # Each scan of a progressive JPEG is a pass over all pixels; 10 are usual.


class UnreadableImageError(UnreadableError):
    """The file is not an image, or is damaged. The message is the reason, without the path."""


def has_image_suffix(name: str) -> bool:
    """Return whether a file name has the suffix of an image format that can be read, possibly with a plugin."""
    suffix = PurePosixPath(name).suffix.lower()
    return suffix in _PLUGIN_FORMATS or Image.registered_extensions().get(suffix) in SERVED_FORMATS


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return all image formats that the installed libraries can read."""
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    return (*SERVED_FORMATS, *(name for name in sorted(set(_PLUGIN_FORMATS.values())) if name in Image.OPEN))


def _orientation(jpeg: bytes) -> int:
    """Read the EXIF orientation of a JPEG file, from 1 (upright) to 8. Return 1 if the file has no orientation."""
    if _EXIF_IN_JPEG not in jpeg:
        return 1
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata are ignored; damaged pixels are detected when they are decoded.
        return 1
    return orientation if orientation in range(1, 9) else 1


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate or mirror pixels by their EXIF orientation (https://exiftool.org/TagNames/EXIF.html, Orientation)."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])


class Picture(NamedTuple):
    """An image that has been read.

    Attributes:
        pixels: uint8[height, width, channels], converted by the `ImageRule`.
        size: (height, width) as stored in the file, before resizing and rotation. For TIFF files, the size after
            rotation.
        was_turned: Whether the image was rotated or mirrored, because of its EXIF orientation.
        jpeg: Colour space of a JPEG file (see `jpeg_header`), or an empty string for every other image.
        has_few_levels: Whether the file has 16 bits per channel but uses so few of them that at most 64 of 256 levels
            remain.
        is_only_alpha: Whether the content is only in the transparency, so that without transparency the whole image has
            one colour.
        loaded: Pillow's image of the file, before any conversion, or None for arrays and for most JPEG files.
        is_original: Whether `pixels` are the unconverted pixels of `loaded`.
    """

    pixels: np.ndarray
    size: tuple[int, int]
    was_turned: bool = False
    jpeg: str = ""
    has_few_levels: bool = False
    is_only_alpha: bool = False
    loaded: Any = None
    is_original: bool = False

    @property
    def losses(self) -> dict[str, int]:
        """For each `Loss.statistic` in `LOSSES`: 1 if the conversion of the image lost such content, otherwise 0."""
        return {"num_few_levels": int(self.has_few_levels), "num_only_alpha": int(self.is_only_alpha)}


class Loss(NamedTuple):
    """A kind of content that images lose in conversion.

    Attributes:
        statistic: Name of the statistic that counts the images with this loss.
        explanation: What is lost, why, and what to do.
    """

    statistic: str
    explanation: str


# Such images are not corrected: training, predictions and the exported model must convert images alike. Scaling each
# image by its brightest value would make equal values unequal in two images, and only the user knows whether black or
# white belongs behind a transparent drawing. So the loss is only reported, and the user converts the images.
LOSSES = (
    Loss(
        "num_few_levels",
        "16-bit images keep at most 64 of 256 grey levels, because only the upper 8 bits are used. If the values have "
        "10 or 12 bits, scale all images by the same factor and save them with 8 bits: for 12 bits, value // 16",
    ),
    Loss(
        "num_only_alpha",
        "images have only one colour, because their content is in the transparency, which is dropped. Put them on a "
        "background first, for example with ImageMagick's `magick mogrify -background white -alpha remove`",
    ),
)


def describe_losses(counts: Mapping[str, int], total: int) -> list[str]:
    """Return a sentence for logs about each kind of content loss that occurs.

    Args:
        counts: Number of images with each kind of loss, by `Loss.statistic`.
        total: Total number of images.
    """
    return [
        f"{counts[loss.statistic]:,} of {total:,} {loss.explanation}" for loss in LOSSES if counts.get(loss.statistic)
    ]


class OpenImage(NamedTuple):
    """An image file of which only the header has been read.

    Attributes:
        num_pixels: Number of pixels to decode, before resizing, according to the header. For tiled TIFF files, all
            pixels of the tiles are counted.
        num_bytes: Size of the file.
        decode: Function that reads the rest of the file and returns the image; see `read_image`.
    """

    num_pixels: int
    num_bytes: int
    decode: Callable[[], Picture]


def read_image(content: bytes | np.ndarray, rule: ImageRule, keep_size: bool = False) -> Picture:
    """Read an image, and resize and convert it according to a rule.

    Transparency is dropped, 16-bit values keep their upper 8 bits, and only the first frame of an animation is read.
    The result says whether the image loses its content in this way; see `LOSSES`.

    Args:
        content: The bytes of an image file, or pixels, uint8[height, width, 1 or 3]. For pixels, the margin of the rule
            is ignored.
        rule: Size and channels to convert to.
        keep_size: Whether to skip the last step, resizing. The JPEG decoder may still reduce the size of the image.

    Raises:
        UnreadableImageError: If the file is not an image, is truncated, or has more pixels than the rule allows.
    """
    if isinstance(content, bytes):
        return open_image(content, rule, keep_size=keep_size).decode()
    height, width, channels = content.shape
    if rule.channels not in (0, channels):
        content = _pixels(image_of(content).convert(_MODES[rule.channels]))
    return Picture(resize_pixels(content, rule.image_size or (height, width)), (height, width))


def open_image(content: bytes, rule: ImageRule, keep_size: bool = False) -> OpenImage:
    """Read the header of an image file, without decoding the pixels.

    Args:
        content: The bytes of the file.
        rule: Size and channels to convert to.
        keep_size: See `read_image`.

    Raises:
        UnreadableImageError: If the header is damaged or the image has too many pixels. Other errors of `read_image`
            are raised by the `decode` function of the result.
    """
    if rule.image_size and any(rule.margin):
        size = rule.image_size
        larger = size[0] + rule.margin[0], size[1] + rule.margin[1]
        whole = open_image(content, dataclasses.replace(rule, image_size=larger, margin=(0, 0)))

        def decode_middle() -> Picture:
            picture = whole.decode()
            return picture._replace(pixels=middle(picture.pixels[None], size)[0], is_original=False)

        return whole._replace(decode=decode_middle)
    height, width, kind = jpeg_header(content, rule.max_pixels)
    if not kind or count_scans(content) > MOST_SCANS:
        image = _open_with_pillow(content, rule)
        size = (image.height, image.width)
        num_pixels = math.prod(_decoded_size(image, content))

        def load() -> Picture:
            try:
                loaded = _load(image, rule)
            except UnreadableImageError:  # Loading the pixels also reads the metadata after them.
                if (essential := _without_metadata(content)) is content:
                    raise
                loaded = _load(_identify(essential, rule), rule)
            fitted = loaded.image if keep_size else _fit(loaded.image, rule.image_size)
            return Picture(
                _pixels(fitted),
                size,
                loaded.was_turned,
                kind,
                loaded.has_few_levels,
                loaded.is_only_alpha,
                loaded.original,
                fitted is loaded.original,
            )

        return OpenImage(num_pixels, len(content), load)

    def decode() -> Picture:
        orientation = _orientation(content) if rule.upright else 1
        wanted = rule.image_size
        if wanted and orientation >= 5:
            wanted = wanted[::-1]
        scale = reduction((height, width), wanted) if wanted and rule.reduced else 1
        pixels = decode_jpeg(content, rule.channels or (1 if kind == "Gray" else 3), (height, width), scale)
        if orientation > 1:
            pixels = _turn(pixels, orientation)
        if rule.image_size and not keep_size:
            pixels = resize_pixels(pixels, rule.image_size)
        return Picture(pixels, (height, width), orientation > 1, kind)

    return OpenImage(height * width, len(content), decode)


def middle(pictures: Any, size: Sequence[int]) -> Any:
    """Return the center crops of images, uint8[N, size[0], size[1], channels].

    Args:
        pictures: Images of the same shape, uint8[N, height, width, channels].
        size: Height and width of the crop; further elements are ignored.

    Example:
        >>> middle(np.arange(16).reshape(1, 4, 4, 1), (2, 2))[0, :, :, 0].tolist()
        [[5, 6], [9, 10]]
    """
    (_, height, width, _), (rows, columns, *_) = pictures.shape, size
    top, left = (height - rows) // 2, (width - columns) // 2
    return pictures[:, top : top + rows, left : left + columns]


def reduction(size: tuple[int, int], wanted: tuple[int, int]) -> int:
    """Return the largest factor (8, 4, 2 or 1) by which libjpeg may reduce an image that is then resized to `wanted`.

    The reduction makes images a little sharper. Compared to images that are decoded at full size, photographs differ by
    1 to 5 levels (of 255) on average, and by up to 100 at edges. Training, evaluation and serving must reduce images in
    the same way, so all three call this function.

    Example:
        >>> reduction((1000, 800), (224, 224)), reduction((375, 500), (224, 224))
        (2, 1)
    """
    fitting = (
        ratio
        for ratio in REDUCTIONS
        if all(-(-side // ratio) >= least for side, least in zip(size, wanted, strict=True))
    )
    return next(fitting, 1)


def decode_jpeg(content: bytes, channels: int, size: tuple[int, int], ratio: int = 1, **options: Any) -> np.ndarray:
    """Decode a JPEG file to uint8[height, width, channels], optionally at a reduced size.

    Args:
        content: The bytes of the file.
        channels: Number of channels to convert to, 1 or 3.
        size: (height, width) of the image in the file.
        ratio: Number by which libjpeg divides the height and the width: 1, 2, 4 or 8.
        options: Further arguments of `simplejpeg.decode_jpeg`.

    Raises:
        UnreadableImageError: If the file is damaged.
    """
    if ratio > 1:
        options |= {"min_factor": ratio, "min_height": -(-size[0] // ratio), "min_width": -(-size[1] // ratio)}
    try:
        return simplejpeg.decode_jpeg(content, colorspace="GRAY" if channels == 1 else "RGB", **options)
    except ValueError as error:
        raise UnreadableImageError(f"damaged JPEG: {error}") from error


def image_of(pixels: np.ndarray) -> Image.Image:
    """Convert pixels, uint8[height, width, 1 or 3], to a Pillow image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def resize_pixels(pixels: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
    """Resize an image to uint8[*image_size, channels] (bilinear, antialiased)."""
    if pixels.shape[:2] == image_size:
        return pixels
    return _pixels(_fit(image_of(pixels), image_size))


def _fit(image: Any, image_size: tuple[int, int] | None) -> Any:
    """Resize an image, unless `image_size` is None. Other threads can run while Pillow resizes."""
    if image_size is None or image.size == image_size[::-1]:
        return image
    return image.resize(image_size[::-1], Image.Resampling.BILINEAR)


def _pixels(image: Any) -> np.ndarray:
    """Return the pixels of a Pillow image, uint8[height, width, channels]."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _bands(image: Any) -> Iterator[Any]:
    """Divide a Pillow image into bands of rows. Yield a copy of each band, from top to bottom."""
    rows = max(1, _CONVERTED_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def original_pixels(content: bytes, picture: Picture) -> Iterator[np.ndarray]:
    """Yield the pixels of a lossless image file as they were saved, in bands of rows.

    For a lossy format, nothing is yielded. The result does not depend on the version of Pillow.

    Args:
        content: The bytes of the file.
        picture: The image that Pillow read from it.

    Yields:
        uint8[rows, width, channels]: 1 channel for grey, 3 for colour, and one more for transparency. Palettes are
        converted to colours, or to grey if all their colours are grey. uint16[rows, width, 1] for 16-bit grey images.
    """
    loaded = picture.loaded
    if not is_lossless(content, loaded):
        return
    if picture.is_original:
        yield picture.pixels
        return
    mode = _original_mode(loaded)
    for band in _bands(loaded):
        pixels = _pixels(band if mode == band.mode else band.convert(mode))
        # In the native byte order. Pillow opens some 16-bit files in a 32-bit mode.
        yield pixels.astype(np.uint16) if mode.startswith("I") else pixels


def _original_mode(loaded: Any) -> str:
    if loaded.mode == "1":
        return "L"
    if loaded.mode != "P":
        return str(loaded.mode)
    if "transparency" in loaded.info:
        return "RGBA"
    palette = np.array(loaded.getpalette("RGB")).reshape(-1, 3)
    return "L" if (palette == palette[:, :1]).all() else "RGB"


def is_lossless(content: bytes, loaded: Any) -> bool:
    """Return whether Pillow's image of a file, `loaded`, has exactly the pixels that were saved."""
    if loaded.format == "WEBP":
        return _is_lossless_webp(content)
    if loaded.format == "TIFF":
        # Current versions of Pillow rotate a TIFF file while loading it; old versions do not.
        is_upright = loaded.getexif().get(_EXIF_ORIENTATION, 1) == 1
        return is_upright and loaded.info.get("compression") in _LOSSLESS_IN_TIFF
    return loaded.format in _LOSSLESS_FORMATS


def _is_lossless_webp(content: bytes) -> bool:
    """Return whether a WebP file is compressed losslessly. Return False for animations.

    The first chunk with pixel data shows which compression is used. A colour profile or EXIF metadata may precede this
    chunk: https://developers.google.com/speed/webp/docs/riff_container.
    """
    at = _WEBP_CHUNKS
    while at + 8 <= len(content):
        kind, (length,) = content[at : at + 4], struct.unpack_from("<I", content, at + 4)
        if kind in (b"VP8L", b"VP8 ", b"ANIM"):
            return kind == b"VP8L"
        at += 8 + length + length % 2
    return False


def count_scans(content: bytes) -> int:
    """Return an upper bound on the number of scans in a JPEG file, which limits the time to decode the file.

    A scan is a pass over all pixels of a progressive JPEG. The bytes that mark a scan may also occur in metadata, and
    are counted there as well.
    """
    return content.count(b"\xff\xda")


def jpeg_header(content: bytes, max_pixels: int) -> tuple[int, int, str]:
    """Read the height, width and colour space of a JPEG file.

    The colour space is empty if Pillow must decode the file: a file of another format, or a JPEG file that
    libjpeg-turbo does not decode to the same pixels as TensorFlow. Height and width are 0 if they cannot be read.

    Raises:
        UnreadableImageError: If the image has too many pixels.
    """
    if content[:3] != b"\xff\xd8\xff":
        return 0, 0, ""
    try:
        height, width, kind, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:  # Damaged, or subsampled in a way that libjpeg-turbo's interface has no name for.
        return 0, 0, ""
    _check_size(height, width, max_pixels)
    # libjpeg-turbo's own conversion from CMYK is one level off Pillow's and TensorFlow's.
    return height, width, "" if kind == "CMYK" else kind


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if max(height, width) > _MOST_SIDE_PIXELS:
        raise UnreadableImageError(f"{height}×{width} pixels: expected at most {_MOST_SIDE_PIXELS:,} on each side")
    if height * width > max_pixels:
        raise UnreadableImageError(f"{height}×{width} pixels: expected at most {max_pixels:,} in total")


def _open_with_pillow(content: bytes, rule: ImageRule) -> Any:
    """Open an image file with Pillow.

    A PNG file whose metadata Pillow rejects is opened without the metadata. Its pixels are the same.
    """
    try:
        return _identify(content, rule)
    except UnreadableImageError:
        if (essential := _without_metadata(content)) is content:
            raise
        return _identify(essential, rule)


def _identify(content: bytes, rule: ImageRule) -> Any:
    if not content:
        raise UnreadableImageError("no bytes")
    with _naming_damage(_BRANDS.get(content[8:12], "") if content[4:8] == b"ftyp" else ""):
        image: Any = Image.open(io.BytesIO(content), formats=rule.formats or _formats())
        _check_size(*_decoded_size(image, content), rule.max_pixels)
    return image


def _without_metadata(content: bytes) -> bytes:
    """Return a PNG file without texts, colour profiles and other metadata. Return any other content unchanged.

    Pillow rejects a file whose metadata are damaged or exceed its limits, even if the pixels are intact. Chunks with
    the orientation of the image are kept. Nothing is decompressed.
    """
    if not content.startswith(_PNG_SIGNATURE):
        return content
    at = len(_PNG_SIGNATURE)
    start = 0
    kept: list[bytes] = []
    while at + 8 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        kind = content[at + 4 : at + 8]
        if not kind.isalpha():  # A length was damaged, so chunks that change the pixels may have been skipped.
            return content
        if kind in _PNG_METADATA and not content.startswith(_TEXTS_WITH_ORIENTATION, at + 8):
            kept.append(content[start:at])
            start = at + 12 + length
        at += 12 + length
    return b"".join([*kept, content[start:]]) if kept else content


def _decoded_size(image: Any, content: bytes) -> tuple[int, int]:
    """Return the height and width of the area that is decoded.

    For a tiled TIFF file, this is the area of all tiles that cover the image.

    The difference can be large: a TIFF file of one pixel and 44 kB may have a tile of 32,768×32,768 pixels.
    """
    if image.format != "TIFF":
        return image.height, image.width
    sides = _tiff_sides(content)
    height, width = sides.get(_LENGTH, image.height), sides.get(_WIDTH, image.width)
    tile_height, tile_width = sides.get(_TILE_LENGTH) or 1, sides.get(_TILE_WIDTH) or 1
    return -(-height // tile_height) * tile_height, -(-width // tile_width) * tile_width


def _tiff_sides(content: bytes) -> dict[int, int]:
    """Read the sizes of image and tiles from the first directory of a TIFF file, as {tag: pixels}.

    Pillow's own reader cannot be used, because libtiff, which decodes the tiles, accepts types that Pillow skips.

    Raises:
        UnreadableImageError: If a tag occurs twice, or has another type than the format allows.
    """
    order = "<" if content.startswith(b"II") else ">"
    # Offset and type of the directory's offset, type of the number of entries, and the entries' fields.
    at, offset, count, entry = (8, "Q", "Q", "HHQ8s") if 43 in content[2:4] else (4, "I", "H", "HHI4s")  # 43: BigTIFF.
    (start,) = struct.unpack_from(order + offset, content, at)
    (num_entries,) = struct.unpack_from(order + count, content, start)
    start += struct.calcsize(order + count)
    sides: dict[int, int] = {}
    for number in range(num_entries):
        place = start + number * struct.calcsize(order + entry)
        tag, kind, num_values, value = struct.unpack_from(order + entry, content, place)
        if tag in _TIFF_SIDES:
            if tag in sides or kind not in _TIFF_TYPES or num_values != 1:
                raise UnreadableImageError("a TIFF file that gives its size more than once, or with an unexpected type")
            (sides[tag],) = struct.unpack_from(order + _TIFF_TYPES[kind], value)
    return sides


class _Loaded(NamedTuple):
    """A Pillow image as stored in the file and as converted by a rule, with attributes for `Picture`."""

    original: Any
    image: Any
    was_turned: bool
    has_few_levels: bool
    is_only_alpha: bool


def _load(image: Any, rule: ImageRule) -> _Loaded:
    """Read the pixels of an opened image, and convert it to the rule's mode."""
    with _naming_damage():
        has_16_bits = _has_16_bits(image)
        is_tiff = image.format == "TIFF"  # Pillow rotates a TIFF file while loading it, and forgets the orientation.
        orientation = _orientation_of(image) if is_tiff and rule.upright else 1
        image.load()
        original = image
        if rule.upright and not is_tiff:
            orientation = _orientation_of(image)
        if image.mode.startswith("I;16") or (image.mode == "I" and has_16_bits):  # convert() would clip at 255.
            values = np.asarray(image)
            if values.min() < 0:  # As in CT scans. They would become bright.
                raise UnreadableImageError(
                    f"16-bit values from {values.min():,} to {values.max():,}, expected no values below 0. Add the "
                    "same offset to all images, and save them as unsigned values"
                )
            image = Image.fromarray((values >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise UnreadableImageError(f"32 bits per channel (mode {image.mode}): expected 8 or 16")
        mode = _MODES[rule.channels or (1 if image.mode in _GREY_MODES else 3)]
        converted = image if image.mode == mode else image.convert(mode)
        if orientation > 1 and not is_tiff:
            converted = image_of(_turn(_pixels(converted), orientation))
        return _Loaded(
            original,
            converted,
            orientation > 1,
            has_16_bits and _span(converted) < _FEW_LEVELS,
            image.has_transparency_data and _is_only_alpha(image, converted),
        )


def _orientation_of(image: Any) -> int:
    """Return the EXIF orientation of an image that Pillow has opened, from 1 (upright) to 8."""
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata are ignored, like those of a JPEG file.
        return 1
    return orientation if orientation in range(1, 9) else 1


def _has_16_bits(image: Any) -> bool:
    """Return whether an image file that Pillow has opened, but not loaded, has 16 bits per channel.

    Pillow reduces 16-bit colours, and 16-bit grey with transparency, to 8 bits. It opens a 16-bit PGM file in a 32-bit
    mode.
    """
    if image.mode in _MODES_OF_8_BITS or not image.tile:
        return False
    options = image.tile[0].args
    if image.format == "PPM":
        return image.mode == "I" or (isinstance(options, tuple) and _MAX_16_BIT_PPM in options)
    return image.format in ("PNG", "TIFF") and ";16" in str(options)


def _span(image: Any) -> int:
    """Return the largest difference between two values of a channel."""
    extrema = np.array(image.getextrema()).reshape(-1, 2)
    return int((extrema[:, 1] - extrema[:, 0]).max())


def _is_only_alpha(image: Any, converted: Any) -> bool:
    """Return whether the content of an image is only in its transparency: nearly one colour, but varying alpha.

    At most 256×256 of its pixels are examined.
    """
    size = tuple(min(side, _MOST_SAMPLED) for side in image.size)
    if size != image.size:
        image, converted = (each.resize(size, Image.Resampling.NEAREST) for each in (image, converted))
    # `getcolors` stops early at most other images, which saves most of the time.
    is_flat = converted.getcolors(_MOST_FLAT_COLOURS) and _span(converted) < _FLAT
    return bool(is_flat) and _span(image.convert("RGBA").getchannel("A")) >= _VARYING_ALPHA


@contextlib.contextmanager
def _naming_damage(brand: str = "") -> Iterator[None]:
    """Convert all errors that Pillow raises in the `with` block to UnreadableImageError.

    `brand` is the format of a HEIC or AVIF file, for the message, otherwise empty.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Odd metadata does not matter here; the size is checked.
            yield
    except UnreadableImageError:
        raise
    except UnidentifiedImageError as error:
        if brand:
            plugin = "pillow-heif" if brand == "HEIC" else "a version of Pillow with AVIF"
            raise UnreadableImageError(
                f"{brand} is not supported by the installed libraries: install {plugin}, or convert the file"
            ) from error
        raise UnreadableImageError("not an image") from error
    except Exception as error:  # For malicious files, Pillow's decoders raise many classes of errors.
        raise UnreadableImageError(f"damaged image: {error}") from error


def check_encoded(content: bytes, rule: ImageRule) -> tuple[bytes, tuple[int, ...], Picture]:
    """Check an image file, and convert it to PNG if it cannot be stored unchanged.

    Return the bytes to store, the shape (height, width, channels) and the decoded image.

    JPEG files (except unusual ones, for example CMYK) and PNG files are stored unchanged. Files that TensorFlow cannot
    decode are converted to PNG. So are files for which TensorFlow gives different pixels than this module, such as
    photos with an EXIF rotation.

    Raises:
        UnreadableImageError: If the file is not an image, or is truncated.
    """
    picture = read_image(content, rule, keep_size=True)
    height, width, channels = picture.pixels.shape
    shape = (*(rule.image_size or (height, width)), channels)
    is_kept = picture.jpeg or content.startswith(_PNG_SIGNATURE)
    return content if is_kept and not picture.was_turned else encode_png(picture.pixels), shape, picture


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """Encode uint8[height, width, 1 or 3] as JPEG. Colours are stored at half the resolution (4:2:0)."""
    kind, sampling = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, kind, sampling)


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode uint8[height, width, 1 or 3] as PNG, which is lossless."""
    buffer = io.BytesIO()
    image_of(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def are_other_pixels(array: np.ndarray) -> bool:
    """Return whether an array has pixels of a type other than uint8: floats in [0, 1], or integers up to 255."""
    if array.dtype == np.uint8 or array.dtype.kind not in "fiu" or not array.size or array.min() < 0:
        return False
    return bool(array.max() <= 1 if array.dtype.kind == "f" else 1 < array.max() <= 255)


def to_pixels(array: np.ndarray) -> np.ndarray:
    """Convert floats in [0, 1], or integers in [0, 255], to uint8 pixels in [0, 255].

    Example:
        >>> to_pixels(np.array([0.0, 0.5, 1.0])).tolist(), to_pixels(np.array([0, 200])).tolist()
        ([0, 128, 255], [0, 200])
    """
    return np.round(array * 255 if array.dtype.kind == "f" else array).astype(np.uint8)

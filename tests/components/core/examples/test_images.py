"""Claims about what becomes of an image file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.evidence.benchmarks.attacks import TIFF_TYPES, tiled_tiff
from tests.support.pictures import encoded
from tpu_components.core.examples import images
from tpu_components.core.examples.images import (
    UnreadableImageError,
    check_encoded,
    open_image,
    read_image,
    resize_pixels,
)
from tpu_components.core.examples.interface import ImageRule

AS_FOUND = ImageRule(None, 0)


def _claims_size(height: int, width: int) -> bytes:
    """A PNG of a few bytes that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3), ("LA", 1), ("1", 1)])
def test_read_image_gives_the_channels_that_the_file_has(encode, mode, channels):
    assert read_image(encode(mode=mode), AS_FOUND).pixels.shape == (8, 8, channels)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA", "LA", "1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_read_image_converts_to_the_channels_asked_for(encode, mode, channels):
    content = encode(mode=mode)
    pixels = read_image(content, ImageRule(None, channels)).pixels
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("L" if channels == 1 else "RGB"))
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, expected.reshape(8, 8, channels))


def test_read_image_drops_transparency_and_keeps_the_colour_below():
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert read_image(encoded(image), AS_FOUND).pixels[0, 0].tolist() == [10, 20, 30]


def test_read_image_keeps_the_upper_half_of_16_bits():
    values = np.array([[0, 255, 256], [32768, 65279, 65535]], np.uint16)
    assert read_image(encoded(values), AS_FOUND).pixels[..., 0].tolist() == [[0, 0, 1], [128, 254, 255]]


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_read_image_of_jpeg_equals_pillow(encode, mode):
    content = encode(size=(33, 47), mode=mode, kind="JPEG")
    expected = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(read_image(content, AS_FOUND).pixels.squeeze(), expected)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_read_image_reads_cmyk_jpeg_as_pillow_does(encode, subsampling):
    content = encode(mode="CMYK", kind="JPEG", subsampling=subsampling)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(read_image(content, AS_FOUND).pixels, expected)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_read_image_resizes_to_height_and_width(encode, kind, mode):
    content = encode(size=(40, 20), mode=mode, kind=kind)
    pixels = read_image(content, ImageRule((10, 30), 0)).pixels
    expected = Image.open(io.BytesIO(content)).resize((30, 10), Image.Resampling.BILINEAR)
    assert pixels.shape == (10, 30, len(mode))
    np.testing.assert_array_equal(pixels.squeeze(), np.asarray(expected))


def test_a_jpeg_is_shrunk_by_libjpeg_to_no_less_than_is_wanted(encode):
    content = encode(size=(64, 90), kind="JPEG")
    pixels = read_image(content, ImageRule((16, 20), 3, reduced=True), keep_size=True).pixels
    expected = Image.open(io.BytesIO(content))
    expected.draft("RGB", (22, 16))  # Pillow asks libjpeg for a quarter, too.
    np.testing.assert_array_equal(pixels, np.asarray(expected))
    assert read_image(content, ImageRule((16, 23), 3, reduced=True), keep_size=True).pixels.shape == (16, 23, 3)
    assert read_image(content, ImageRule((17, 23), 3, reduced=True), keep_size=True).pixels.shape == (32, 45, 3)


def test_how_far_a_jpeg_is_shrunk_goes_by_its_sides_once_it_is_turned(encode):
    turned = Image.Exif()
    turned[0x0112] = 6  # A quarter turn: 60×128 becomes 128×60.
    content = encode(size=(60, 128), kind="JPEG", exif=turned)
    rule = ImageRule((60, 30), 3, upright=True, reduced=True)
    assert read_image(content, rule, keep_size=True).pixels.shape == (64, 30, 3)
    assert check_encoded(content, rule)[1] == (60, 30, 3)


def test_resize_and_convert_leave_a_picture_that_fits_alone():
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert resize_pixels(pixels, (4, 4)) is pixels
    assert read_image(pixels, AS_FOUND).pixels is read_image(pixels, ImageRule((4, 4), 3)).pixels is pixels


def test_pixels_go_from_grey_to_colour_and_back():
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    colour = read_image(grey, ImageRule(None, 3)).pixels
    np.testing.assert_array_equal(colour, np.repeat(grey, 3, axis=2))
    np.testing.assert_array_equal(read_image(colour, ImageRule(None, 1)).pixels, grey)


@pytest.mark.parametrize("image_size", [None, (4, 4)])
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_read_image_refuses_truncated_jpeg(encode, image_size, kept):
    content = encode(size=(64, 64), kind="JPEG")
    with pytest.raises(UnreadableImageError, match=r"damaged JPEG: .*[Pp]remature end"):
        read_image(content[: int(len(content) * kept)], ImageRule(image_size, 0))


def test_read_image_refuses_a_jpeg_cut_off_in_its_header(encode):
    with pytest.raises(UnreadableImageError, match=r"damaged image|not an image"):
        read_image(encode(kind="JPEG")[:100], AS_FOUND)


@pytest.mark.parametrize("options", [{"mode": "CMYK", "kind": "JPEG"}, {"kind": "PNG"}])
def test_read_image_refuses_a_truncated_image_that_pillow_reads(encode, options):
    content = encode(size=(64, 64), **options)
    with pytest.raises(UnreadableImageError, match=r"damaged image: .*truncated"):
        read_image(content[: len(content) // 2], AS_FOUND)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no bytes"),
        (b"hello world", "not an image"),
        (b"\x00" * 100, "not an image"),
        (b"<html></html>", "not an image"),
        # Pillow starts another program to read PostScript.
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n", "not an image"),
    ],
)
def test_read_image_refuses_what_is_no_image(content, reason):
    with pytest.raises(UnreadableImageError, match=f"^{reason}$"):
        read_image(content, AS_FOUND)


@pytest.mark.parametrize(("height", "width"), [(12_000, 12_000), (60_000, 60_000), (1, (1 << 20) + 1)])
def test_read_image_refuses_a_png_bomb_before_unpacking_it(height, width):
    with pytest.raises(UnreadableImageError, match=r"pixels"):
        read_image(_claims_size(height, width), AS_FOUND)


def test_read_image_refuses_a_jpeg_bomb_before_unpacking_it(encode):
    content = bytearray(encode(kind="JPEG"))
    at = content.index(b"\xff\xc0") + 5  # Start of frame: marker, length, precision, then height and width.
    content[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    with pytest.raises(UnreadableImageError, match="65000×65000 pixels: expected at most 134,217,728 in total"):
        read_image(bytes(content), AS_FOUND)


def test_read_image_refuses_32_bit_pixels():
    buffer = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(buffer, "TIFF")
    with pytest.raises(UnreadableImageError, match=r"32 bits per channel \(mode F\): expected 8 or 16"):
        read_image(buffer.getvalue(), AS_FOUND)


def test_tiles_of_a_tiff_file_are_decoded_and_count_as_pixels():
    content = tiled_tiff(10, 16, pixel=7)
    assert np.array_equal(read_image(content, AS_FOUND).pixels, np.full((10, 10, 1), 7))
    assert open_image(content, AS_FOUND).num_pixels == 16 * 16
    assert open_image(tiled_tiff(20, 32), AS_FOUND).num_pixels == 32 * 32
    with pytest.raises(UnreadableImageError, match="64×64 pixels: expected at most 4,095 in total"):
        open_image(tiled_tiff(1, 64), ImageRule(None, 1, max_pixels=4095))


@pytest.mark.parametrize("kind", TIFF_TYPES)
def test_a_tile_that_pillow_and_libtiff_read_differently_is_refused(kind):
    """Each takes the first entry of a type that it supports, and Pillow does not support 17, SLONG8."""
    first = ((322, kind, 112), (323, kind, 112))
    with pytest.raises(UnreadableImageError, match="gives its size more than once"):
        read_image(tiled_tiff(1, 16, first=first), AS_FOUND)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_hostile_bytes_are_refused_with_one_exception(encode, kind):
    content, random = encode(kind=kind), np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(random.integers(1, 6)):
            damaged[random.integers(0, min(len(damaged), 80))] = random.integers(0, 256)
        try:
            assert read_image(bytes(damaged[: random.integers(1, len(damaged) + 1)]), AS_FOUND).pixels.ndim == 3
        except UnreadableImageError as error:
            assert str(error)  # noqa: PT017 (most are refused; the claim is that nothing else is raised)


@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "P"), ("PNG", "L")])
def test_check_encoded_leaves_jpeg_and_png_untouched(encode, kind, mode):
    content = encode(size=(10, 12), kind=kind, mode=mode)
    assert check_encoded(content, ImageRule(None, 3))[:2] == (content, (10, 12, 3))


def test_check_encoded_says_the_shape_after_resizing_and_keeps_the_bytes(encode):
    content = encode(size=(10, 12), kind="JPEG")
    assert check_encoded(content, ImageRule((4, 5), 1))[:2] == (content, (4, 5, 1))


@pytest.mark.parametrize(
    ("kind", "mode"), [("WEBP", "RGB"), ("GIF", "P"), ("BMP", "P"), ("BMP", "1"), ("TIFF", "L"), ("JPEG", "CMYK")]
)
def test_check_encoded_turns_what_tensorflow_reads_otherwise_into_png(encode, kind, mode):
    content = encode(size=(10, 12), kind=kind, mode=mode)
    stored, shape, _ = check_encoded(content, AS_FOUND)
    assert Image.open(io.BytesIO(stored)).format == "PNG"
    pixels = read_image(content, AS_FOUND).pixels
    assert shape == pixels.shape
    np.testing.assert_array_equal(read_image(stored, AS_FOUND).pixels, pixels)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_an_image_of_more_pixels_than_allowed_is_refused_by_its_header(encode, kind, monkeypatch):
    content = encode(size=(30, 40), kind=kind)
    assert read_image(content, ImageRule(None, 3, max_pixels=1200)).pixels.shape == (30, 40, 3)
    for decoder in ("simplejpeg.decode_jpeg", "PIL.Image.Image.load"):
        monkeypatch.setattr(decoder, lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(UnreadableImageError, match="30×40 pixels: expected at most 1,199 in total"):
        read_image(content, ImageRule(None, 3, max_pixels=1199))


def test_check_encoded_refuses_truncated_jpeg(encode):
    content = encode(size=(64, 64), kind="JPEG")
    with pytest.raises(UnreadableImageError, match="damaged JPEG"):
        check_encoded(content[:-200], AS_FOUND)


def _file(size: tuple[int, int], kind: str, **options) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize(size).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_an_open_image_knows_its_size_and_is_decoded_as_any(kind):
    content, rule = _file((90, 70), kind), ImageRule((8, 8), 3)
    image = open_image(content, rule)
    assert (image.num_pixels, image.num_bytes) == (90 * 70, len(content))
    assert np.array_equal(image.decode().pixels, read_image(content, rule).pixels)


def _photo(orientation, kind="JPEG"):
    """A photo of 8×16 pixels, dark on the left, that says how it is to be turned; and its pixels as they lie."""
    pixels = np.repeat(np.linspace(0, 255, 16).astype(np.uint8)[None], 8, 0)
    pixels[:4] //= 2  # The upper half darker: every way to turn it looks another way.
    image, exif, buffer = Image.fromarray(pixels), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(buffer, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_its_exif_says(orientation, kind):
    """Pillow's own way is the judge."""
    content = _photo(orientation, kind)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("L"))[..., None]
    picture = read_image(content, ImageRule(None, 1, upright=True))
    turned = picture.pixels
    assert turned.shape == expected.shape == ((16, 8, 1) if orientation >= 5 else (8, 16, 1))
    assert np.abs(turned.astype(int) - expected).max() <= 1
    size = turned.shape[:2] if kind == "TIFF" else (8, 16)  # Pillow tells a TIFF file's as it is to be seen.
    assert (picture.size, picture.was_turned) == (size, orientation > 1)


@pytest.mark.parametrize(
    "between", [(b"\xff\xfe\xff\xff" + bytes(0xFFFD)) * 2, b"\xff"], ids=["long comments", "a fill byte"]
)
def test_exif_is_found_whatever_stands_before_it(between):
    content = _photo(6)
    assert read_image(content[:2] + between + content[2:], ImageRule(None, 1, upright=True)).pixels.shape == (16, 8, 1)


def test_a_photo_stays_as_it_lies_where_that_is_asked():
    assert read_image(_photo(6), ImageRule(None, 1)).pixels.shape == (8, 16, 1)
    assert check_encoded(_photo(6), ImageRule(None, 1))[0] == _photo(6)


def test_a_turned_photo_is_stored_as_it_is_to_be_seen():
    rule = ImageRule(None, 1, upright=True)
    content, shape, picture = check_encoded(_photo(6), rule)
    assert shape == (16, 8, 1)
    assert np.array_equal(read_image(content, ImageRule(None, 1)).pixels, picture.pixels)
    assert check_encoded(_photo(1), rule)[0] == _photo(1)


@pytest.mark.parametrize("damage", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
def test_damaged_exif_turns_nothing(damage):
    content = _photo(1)
    damaged = content[:2] + b"\xff\xe1" + (len(damage) + 2).to_bytes(2) + damage + content[2:]
    assert not read_image(damaged, ImageRule(None, 1, upright=True)).was_turned


def test_a_photo_of_a_phone_names_what_reads_it():
    for brand, plugin in ((b"heic", "HEIC .*pillow-heif"), (b"avif", "AVIF .*version of Pillow with AVIF")):
        with pytest.raises(UnreadableImageError, match=plugin):
            read_image(b"\0\0\0\x18ftyp" + brand + b"\0" * 40, ImageRule(None, 0, formats=images.SERVED_FORMATS))
    assert images.has_image_suffix("IMG_1.HEIC")


def test_what_pillow_can_read_besides_is_read_but_not_from_the_network():
    buffer = io.BytesIO()
    Image.new("RGB", (16, 8), (200, 10, 10)).save(buffer, "AVIF")
    assert read_image(buffer.getvalue(), ImageRule(None, 0)).pixels.shape == (8, 16, 3)
    with pytest.raises(UnreadableImageError, match="AVIF"):
        read_image(buffer.getvalue(), ImageRule(None, 0, formats=images.SERVED_FORMATS))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _with_chunk(png: bytes, chunk: bytes, behind: bool = False) -> bytes:
    at = len(png) - 12 if behind else 33  # Before the end chunk, or after the header.
    return png[:at] + chunk + png[at:]


_LONG = zlib.compress(b"a" * (3 << 20))
METADATA = {
    "a long compressed text": _chunk(b"zTXt", b"Comment\0\0" + _LONG),
    "a long international text": _chunk(b"iTXt", b"Comment\0\1\0\0\0" + _LONG),
    "texts longer than 64 MiB": _chunk(b"tEXt", b"Comment\0" + b"a" * (900 << 10)) * 80,
    "a long colour profile": _chunk(b"iCCP", b"profile\0\0" + _LONG),
    "a colour profile without a name": _chunk(b"iCCP", b"junk"),
    "a resolution that is cut off": _chunk(b"pHYs", b"abc"),
    "a gamma that is cut off": _chunk(b"gAMA", b"a"),
    "colours that are cut off": _chunk(b"cHRM", b"abc"),
    "a text with a wrong checksum": _chunk(b"tEXt", b"Comment\0abc")[:-1] + b"?",
}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("name", METADATA)
def test_metadata_of_a_png_that_pillow_refuses_do_not_hide_its_pixels(name, behind):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    content = _with_chunk(encoded(pixels), METADATA[name], behind)
    for watch in (None, lambda: None):
        np.testing.assert_array_equal(open_image(content, AS_FOUND, watch).decode().pixels, pixels)
    assert check_encoded(content, AS_FOUND)[0] == content


@pytest.mark.parametrize("name", METADATA)
def test_tensorflow_reads_the_same_pixels_of_a_png_whose_metadata_pillow_refuses(name):
    """The exported model decodes stored files with TensorFlow."""
    import tensorflow as tf

    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    content = _with_chunk(encoded(pixels), METADATA[name])
    np.testing.assert_array_equal(tf.io.decode_png(content).numpy(), pixels)


def test_a_png_cut_off_in_a_text_behind_its_pixels_is_read():
    content = _with_chunk(encoded(Image.new("L", (4, 4), 9)), _chunk(b"tEXt", b"Comment\0" + b"a" * 100), behind=True)
    assert read_image(content[:-60], AS_FOUND).pixels.tolist() == [[[9]] * 4] * 4


def test_a_png_stays_turned_if_its_colour_profile_is_left_out():
    profile = METADATA["a long colour profile"]
    assert read_image(_with_chunk(_photo(6, "PNG"), profile), ImageRule(None, 1, upright=True)).was_turned
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'
    content = _with_chunk(_with_chunk(_photo(1, "PNG"), profile), _chunk(b"iTXt", xmp))
    content = content.replace(_chunk(b"eXIf", content[content.find(b"eXIf") + 4 :].partition(b"IDAT")[0][:-8]), b"")
    assert read_image(content, ImageRule(None, 1, upright=True)).pixels.shape == (16, 8, 1)


def test_a_png_with_damaged_pixels_is_refused_with_and_without_its_metadata():
    content = _with_chunk(encoded(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)), b"")
    damaged = _with_chunk(content[:-500], METADATA["a long compressed text"])
    with pytest.raises(UnreadableImageError, match="damaged image"):
        read_image(damaged, AS_FOUND)


@pytest.mark.parametrize("length", [4, 8, 40, 100, 1 << 31])
def test_a_png_whose_text_has_a_damaged_length_is_refused_and_keeps_no_other_palette(length):
    content = _with_chunk(encoded(Image.new("P", (64, 64), 3)), _chunk(b"tEXt", b"Comment\0abcdefghij"))
    at = content.index(b"tEXt") - 4
    damaged = content[:at] + struct.pack(">I", length) + content[at + 4 :]
    with pytest.raises(UnreadableImageError, match=r"damaged image|not an image"):
        read_image(damaged, AS_FOUND)


def test_a_bitmap_of_5_bits_per_colour_has_no_16_bits_per_value():
    rows = np.full((4, 4), 0b0111101111101111, "<u2").tobytes()
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    header = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 16, 3, len(rows), 0, 0, 0, 0) + masks
    content = b"BM" + struct.pack("<IHHI", 14 + len(header) + len(rows), 0, 0, 14 + len(header)) + header + rows
    assert not read_image(content, AS_FOUND).has_few_levels


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_damaged_exif_of_other_formats_turns_nothing(kind):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 4)).save(
        buffer, kind, **({} if kind == "TIFF" else {"exif": b"Exif\0\0II*\0\xff\xff\xff\xff"})
    )
    picture = read_image(buffer.getvalue(), ImageRule(None, 0, upright=True))
    assert (picture.pixels.shape, picture.was_turned) == ((4, 8, 3), False)


def _raw_png(kind: int, values: np.ndarray) -> bytes:
    """A PNG of 16 bits: grey (0), colour (2), grey (4) or colour (6) with transparency; Pillow writes only grey."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _16_bits(form: str, most: int) -> bytes:
    """An image with values from 0 to `most` in a file of 16 bits per value."""
    grey = np.linspace(0, most, 64).round().astype(np.uint16).reshape(8, 8, 1)
    kind, _, form = form.partition(" ")
    if kind == "PNG":
        full = np.full_like(grey, 65535)
        colours = np.repeat(grey, 3, axis=2)
        planes = {"L": (0, grey), "RGB": (2, colours), "LA": (4, np.dstack([grey, full]))}
        return _raw_png(*planes.get(form, (6, np.dstack([colours, full]))))
    if kind == "PPM":
        values = grey if form == "P5" else np.repeat(grey, 3, axis=2)
        return f"{form} 8 8 65535\n".encode() + values.astype(">u2").tobytes()
    buffer = io.BytesIO()
    order = ">u2" if form == "I;16B" else "<u2"
    image = Image.frombytes(form.partition(" ")[0], (8, 8), grey.astype(order).tobytes())
    image.save(buffer, "TIFF", **({"compression": "tiff_lzw"} if form.endswith("lzw") else {}))
    return buffer.getvalue()


_FORMS = ("PNG L", "PNG RGB", "PNG LA", "PNG RGBA", "PPM P5", "PPM P6", "TIFF I;16", "TIFF I;16B", "TIFF I;16 lzw")


@pytest.mark.parametrize("form", _FORMS)
def test_files_of_16_bits_that_use_few_of_them_are_noticed_in_every_format(form):
    for most, has_few in ((1023, True), (4095, True), (16000, True), (40000, False), (65535, False)):
        picture = read_image(_16_bits(form, most), AS_FOUND)
        assert picture.has_few_levels == has_few, most
        assert abs(int(picture.pixels.max()) - (most >> 8)) <= 1  # Pillow rounds PPM.
    assert not read_image(encoded(Image.new("L", (8, 8), 3)), AS_FOUND).has_few_levels, "8 bits lose nothing"


def test_a_pgm_of_10_bits_says_so_and_keeps_256_grey_levels():
    values = np.linspace(0, 1023, 256).astype(">u2")
    picture = read_image(b"P5 16 16 1023\n" + values.tobytes(), AS_FOUND)
    assert len(np.unique(picture.pixels)) > 250
    assert not picture.has_few_levels


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("PNG", "RGBA"),
        ("PNG", "LA"),
        ("PNG", "P"),
        ("WEBP", "RGBA"),
        ("WEBP", "lossy"),
        ("GIF", "RGBA"),
        ("TIFF", "RGBA"),
    ],
)
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_a_drawing_in_the_transparency_is_noticed(kind, mode, channels):
    drawing = np.zeros((16, 16, 4), np.uint8)
    drawing[4:12, 4:12, 3] = 255
    whole = drawing.copy()
    whole[:8, :, :3] = 200
    for pixels, is_only_alpha in ((drawing, True), (whole, False)):
        image = Image.fromarray(pixels)
        buffer = io.BytesIO()
        if mode in ("LA", "P"):
            image = image.convert("LA") if mode == "LA" else image.quantize(8)
        image.save(buffer, kind, **({"lossless": mode != "lossy", "exact": True} if kind == "WEBP" else {}))
        assert read_image(buffer.getvalue(), ImageRule(None, channels)).is_only_alpha == is_only_alpha


def test_a_plain_picture_without_content_in_its_transparency_is_nothing_special():
    for image in (Image.new("RGBA", (4, 4), (0, 0, 0, 255)), Image.new("RGBA", (4, 4)), Image.new("RGB", (4, 4))):
        assert not read_image(encoded(image), AS_FOUND).is_only_alpha


def test_losses_are_told_with_their_number_and_what_to_do():
    told = images.describe_losses({"num_few_levels": 3, "num_only_alpha": 1200}, 2000)
    assert [text.partition(" images")[0] for text in told] == ["3 of 2,000 16-bit", "1,200 of 2,000"]
    assert "value // 16" in told[0]
    assert "background" in told[1]
    assert images.describe_losses({"num_few_levels": 0}, 5) == []
    assert {loss.statistic for loss in images.LOSSES} == set(
        read_image(encoded(Image.new("L", (2, 2))), AS_FOUND).losses
    )


def _signed_tiff(values: np.ndarray) -> bytes:
    """An uncompressed TIFF file of int16[height, width]; Pillow writes no signed values."""
    height, width = values.shape
    content = values.astype("<i2").tobytes()
    sides = (256, width), (257, height), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, height)
    tags = (*sides, (279, len(content)), (339, 2))  # SampleFormat 2: signed.
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    start = struct.pack("<I", 8 + len(content))
    return b"II*\0" + start + content + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_values_below_0_are_refused_and_do_not_become_bright():
    values = np.array([[-1000, 0], [300, 32767]])
    with pytest.raises(UnreadableImageError, match=r"16-bit values from -1,000 to 32,767, .* Add the same offset"):
        read_image(_signed_tiff(values), AS_FOUND)
    assert read_image(_signed_tiff(np.maximum(values, 0)), AS_FOUND).pixels[..., 0].tolist() == [[0, 0], [1, 127]]

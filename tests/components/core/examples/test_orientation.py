"""Claims about the EXIF orientation in a SavedModel's graph, judged by the decoder of records and predictions."""

import struct

import numpy as np
import pytest

from tests.support.pictures import encode_picture
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples.images import read_image
from tpu_components.core.examples.interface import ImageRule
from tpu_components.core.examples.orientation import read_orientation
from tpu_components.core.examples.records import decode_image


def exif(orientation: int, order: str = ">", tag: int = 0x0112, kind: int = 3) -> bytes:
    """EXIF data with two tags, in big-endian (`>`) or little-endian (`<`) order."""
    width = struct.pack(order + "HHII", 0x0100, 4, 1, 16)
    entry = struct.pack(order + "HHIHH", tag, kind, 1, orientation, 0)
    header = {">": b"MM", "<": b"II"}[order] + struct.pack(order + "HI", 42, 8)
    return b"Exif\0\0" + header + struct.pack(order + "H", 2) + width + entry + bytes(4)


@pytest.mark.parametrize("order", "><")
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_files_are_turned_as_records_are(orientation, kind, order):
    content = encode_picture(size=(16, 24), kind=kind, exif=exif(orientation, order))
    stored = read_image(content, ImageRule(None, 3, upright=True))
    assert stored.was_turned == (orientation > 1)
    served = decode_image(tf.constant(content), stored.pixels.shape, upright=True)
    np.testing.assert_array_equal(served, stored.pixels)
    left = read_image(content, ImageRule(None, 3)).pixels
    np.testing.assert_array_equal(decode_image(tf.constant(content), left.shape), left)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_turned_photo_is_reduced_as_in_records(orientation):
    content = encode_picture(size=(70, 180), kind="JPEG", exif=exif(orientation))
    stored = read_image(content, ImageRule((32, 16), 3, upright=True, reduced=True)).pixels.astype(int)
    served = decode_image(tf.constant(content), (32, 16, 3), reduced=True, upright=True).numpy()
    assert np.abs(served - stored).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    "data",
    [
        exif(0),
        exif(9),
        exif(6, tag=0x0113),
        exif(6)[:20],
        b"Exif\0\0MM\0*\xff\xff\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
        b"Exif\0\0",
    ],
)
def test_metadata_without_a_valid_orientation_are_ignored(kind, data):
    assert read_orientation(tf.constant(encode_picture(kind=kind, exif=data))) == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_files_without_metadata_and_cut_files_are_upright(kind):
    content = encode_picture(kind=kind)
    for length in (*range(0, 40, 3), len(content)):
        assert read_orientation(tf.constant(content[:length])) == 1


def test_metadata_may_follow_other_segments():
    content = encode_picture(kind="JPEG", exif=exif(8), icc_profile=bytes(100_000), comment=b"first")
    at = content.index(b"\xff\xe1")
    length = 2 + int.from_bytes(content[at + 2 : at + 4])
    moved = content[:at] + content[at + length :]  # Without EXIF, which is added after all other metadata.
    at_pixels = moved.index(b"\xff\xdb")
    assert read_orientation(tf.constant(moved)) == 1
    assert read_orientation(tf.constant(moved[:at_pixels] + content[at : at + length] + moved[at_pixels:])) == 8

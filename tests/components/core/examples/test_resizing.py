"""Claims about pictures that are brought to another size."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from tpu_components.core.examples.images import (
    UnreadableImageError,
    encode_png,
    read_image,
    resize_pixels,
)
from tpu_components.core.examples.interface import ImageRule
from tpu_components.core.examples.resizing import check_resized, resize_into


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("before", [(375, 500), (40, 24), (20, 31), (3, 200), (1, 1)])
def test_a_picture_is_resized_as_pillow_does_up_to_one_level(before, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (*before, channels), np.uint8)
    out = np.empty((40, 33, channels), np.uint8)
    resize_into(pixels, out)
    assert np.abs(out - resize_pixels(pixels, (40, 33)).astype(int)).max() <= 1


def test_from_64_to_224_a_few_values_differ_from_pillows_by_two_levels():
    generator, apart = np.random.default_rng(0), []
    for _ in range(5):
        pixels, out = generator.integers(0, 256, (64, 64, 3), np.uint8), np.empty((224, 224, 3), np.uint8)
        resize_into(pixels, out)
        apart.append(np.abs(out - resize_pixels(pixels, (224, 224)).astype(int)))
    assert np.max(apart) == 2
    assert np.mean(np.array(apart) > 1) < 2e-4


def test_check_resized_gives_a_jpeg_of_the_size_and_keeps_one_that_has_it(encode):
    content = encode(size=(40, 30), kind="JPEG")
    stored, shape, picture = check_resized(content, ImageRule((20, 16), 3), 92)
    assert Image.open(io.BytesIO(stored)).size == (16, 20)
    assert shape == picture.pixels.shape == (20, 16, 3)
    assert check_resized(stored, ImageRule((20, 16), 3), 10)[0] == stored
    grey, shape, _ = check_resized(stored, ImageRule((20, 16), 1), 92)
    assert (Image.open(io.BytesIO(grey)).mode, shape) == ("L", (20, 16, 1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_check_resized_gives_the_pixels_of_read_image_up_to_one_level(encode, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(size=(60, 128), kind=kind, exif=exif)
    rule = ImageRule((40, 33), 3, upright=True, reduced=True)
    _, shape, picture = check_resized(content, rule, 92)
    assert shape == (40, 33, 3)
    assert np.abs(picture.pixels - read_image(content, rule).pixels.astype(int)).max() <= 1


def test_check_resized_refuses_a_truncated_file(encode):
    content = encode(size=(60, 128), kind="JPEG")
    with pytest.raises(UnreadableImageError, match="damaged JPEG"):
        check_resized(content[: len(content) // 2], ImageRule((40, 33), 3), 92)


def test_resized_photographs_are_as_close_to_those_served_as_the_readme_says():
    for photo in load_sample_images().images:
        stored, _, _ = check_resized(encode_png(photo), ImageRule((224, 224), 3), 92)
        apart = np.abs(read_image(stored, ImageRule(None, 0)).pixels - resize_pixels(photo, (224, 224)).astype(int))
        assert apart.mean() < 3
        assert apart.max() < 60

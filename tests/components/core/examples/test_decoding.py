"""Claims about image files that are decoded a batch at a time."""

import numpy as np
import pytest

from tpu_components.core.examples.decoding import decode_batch
from tpu_components.core.examples.images import UnreadableImageError, read_image
from tpu_components.core.examples.interface import ImageInput, ImageRule


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("size", "most"), [((20, 24), 0), ((45, 70), 1), ((21, 24), 1), ((11, 9), 1), ((40, 48), 1), ((160, 97), 1)]
)
def test_a_batch_has_the_pixels_that_pillow_gives(encode, channels, reduced, size, most):
    files = [
        encode(size=size, mode=mode, kind=kind, seed=seed)
        for seed, (mode, kind) in enumerate([("RGB", "JPEG"), ("L", "JPEG"), ("RGB", "PNG"), ("CMYK", "JPEG")])
    ]
    batch = decode_batch(files, ImageInput((20, 24, channels), "encoded", reduced=reduced))
    rule = ImageRule((20, 24), channels, reduced=reduced)
    expected = np.stack([read_image(file, rule).pixels for file in files])
    assert (batch.shape, batch.dtype) == (expected.shape, np.uint8)
    assert np.abs(batch.astype(int) - expected).max() <= most


def test_no_files_are_an_empty_batch():
    assert decode_batch([], ImageInput((4, 5, 3), "encoded")).shape == (0, 4, 5, 3)


@pytest.mark.parametrize("size", [(64, 64), (80, 90)])
def test_a_damaged_file_in_a_batch_is_refused(encode, size):
    whole = encode(size=size, kind="JPEG")
    with pytest.raises(UnreadableImageError, match=r"damaged JPEG: .*[Pp]remature end"):
        decode_batch([whole, whole[: len(whole) // 2]], ImageInput((64, 64, 3), "encoded"))

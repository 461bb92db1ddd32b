"""A photo that is stored turned is answered turned: records, predict and the server agree."""

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import encoded
from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import AnyInput, ImageInput, ImageRule
from tpu_components.create_tfrecords.encoders import ImageEncoder
from tpu_components.serving.inputs import _decode_image
from tpu_components.serving.instances import parse_request
from tpu_components.serving.params import ServeParams


@pytest.fixture
def photo():
    """A photo of 16×8 pixels that is to be turned by a quarter, as a phone stores it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(np.arange(128, dtype=np.uint8).reshape(16, 8), exif=exif)


@pytest.mark.parametrize("upright", [True, False])
def test_records_predictions_and_the_server_turn_alike(photo, upright):
    given = ImageInput((8, 16, 1) if upright else (16, 8, 1), "raw", upright)
    stored = ImageEncoder(ImageRule(None, 1, upright=upright), given, 92).store("", photo, None)
    assert stored.counts == (upright, False, False)
    request = parse_request(photo, given, ServeParams())
    for pixels in (_decode_image("x", photo, given, [])[0], request.inputs[0]):
        assert pixels.tobytes() == stored.fields["image"]


def test_models_from_before_leave_photos_as_they_lie():
    raw = {"kind": "image", "image_shape": [8, 16, 1], "encoding": "raw"}
    assert typed_values.read(raw, AnyInput, any_version=True).upright is False
    assert typed_values.read({**raw, "upright": True}, AnyInput, any_version=True).upright is True
    with pytest.raises(InputError, match="upright is 'yes', expected true or false"):
        typed_values.read({**raw, "upright": "yes"}, AnyInput, any_version=True)

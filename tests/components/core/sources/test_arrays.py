"""Images in arrays."""

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset


@pytest.mark.parametrize(
    ("dtype", "most", "advice"),
    [
        ("uint16", 1023, r"for 10-bit values, \(images >> 2\)"),
        ("int32", 4095, r"for 12-bit values, \(images >> 4\)"),
        ("uint16", 65535, r"for 16-bit values, \(images >> 8\)"),
    ],
)
def test_arrays_of_more_than_8_bits_are_refused_with_the_shift_that_keeps_their_levels(tmp_path, dtype, most, advice):
    images = np.zeros((20, 8, 8), dtype)
    images[3, 2, 1] = most
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(20) % 2)
    with pytest.raises(InputError, match=advice):
        plan_dataset(WriteParams(f"npz:{tmp_path}/a.npz"))

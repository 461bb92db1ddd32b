import io

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.unpacking import SMALL_BYTES, read_arrays, require_plausible


@pytest.mark.parametrize("num_bytes", [1, SMALL_BYTES // 100, SMALL_BYTES])
def test_a_file_unpacks_to_a_hundred_times_its_size_or_to_what_is_small(num_bytes):
    most = max(SMALL_BYTES, 100 * num_bytes)
    require_plausible("a.npz", num_bytes, most)
    with pytest.raises(InputError, match=rf"expected at most {most >> 20:,} MiB after decompression"):
        require_plausible("a.npz", num_bytes, most + 1)


def test_an_array_that_its_header_makes_larger_than_the_file_is_not_allocated():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((1, 1000), np.uint8))
    content = buffer.getvalue().replace(b"(1, 1000)", b"(9, 1000)")
    with pytest.raises(ValueError, match=r"an array of uint8\[9, 1000\] in only 1,128 bytes"):
        read_arrays("a.npy", content)

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.unpacking import SMALL_BYTES, require_plausible


@pytest.mark.parametrize("num_bytes", [1, SMALL_BYTES // 100, SMALL_BYTES])
def test_a_file_unpacks_to_a_hundred_times_its_size_or_to_what_is_small(num_bytes):
    most = max(SMALL_BYTES, 100 * num_bytes)
    require_plausible("a.npz", num_bytes, most)
    with pytest.raises(InputError, match=rf"expected at most {most >> 20:,} MiB after decompression"):
        require_plausible("a.npz", num_bytes, most + 1)

"""Claims about parts that one process writes and another one reads."""

import dataclasses
import hashlib

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Quarantined
from tpu_components.create_tfrecords.parts import Part, part_bytes, read_part

PART = Part(
    "",
    kept=np.array([0, 2], np.int32),
    sizes=np.array([3, 4], np.int32),
    digests=hashlib.sha256(b"con").digest() + hashlib.sha256(b"tent").digest(),
    identities=np.array([1, 2**63], np.uint64),
    counts=np.array([[1], [0]], np.int32),
    figures=np.array([[-1] * 5, [1, 2, 3, 4, 5]], np.int16),
    looks=np.arange(144, dtype=np.uint8).reshape(2, 8, 9),
    num_pixels=np.array([72, 2**27], np.int32),
    bad=(Quarantined("b.png", "damaged: \u00fc"),),
    content=b"content",
)
_COLUMNS = ("kept", "sizes", "identities", "counts", "figures", "looks", "num_pixels")


def _assert_same(part, expected):
    assert (part.digests, part.bad, part.content) == (expected.digests, expected.bad, expected.content)
    for name in _COLUMNS:
        received, wanted = getattr(part, name), getattr(expected, name)
        assert (received is None) == (wanted is None)
        if wanted is not None:
            assert received.dtype == wanted.dtype
            np.testing.assert_array_equal(received, wanted)


def test_a_part_is_read_as_it_was_written():
    _assert_same(read_part("a", part_bytes(PART)), PART)


def test_a_part_of_no_example_is_read_as_it_was_written():
    columns = {name: getattr(PART, name)[:0] for name in _COLUMNS if name != "looks"}
    nothing = dataclasses.replace(PART, **columns, digests=b"", looks=None, content=b"")
    _assert_same(read_part("a", part_bytes(nothing)), nothing)


@pytest.mark.parametrize("file", [b"", b"PK", part_bytes(PART)[:-30]])
def test_what_is_no_part_is_refused(file):
    with pytest.raises(
        InputError, match=r"Cannot read gs://b/000000.npz: expected the part .* Remove the file, and run"
    ):
        read_part("gs://b/000000.npz", file)

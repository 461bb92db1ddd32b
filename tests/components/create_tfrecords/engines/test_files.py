"""Claims about parts that one process writes and another one reads."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from components.artifacts import Quarantined
from components.create_tfrecords.engines.files import is_saved, load_part, save_part
from components.create_tfrecords.parts import Part
from components.errors import InputError

PART = Part(
    "",
    kept=[0, 2],
    sizes=[3, 4],
    labels=[[0.1, 1 / 3], [2.0, float(np.float32(0.7))]],
    digests=b"d" * 64,
    bad=[Quarantined("b.png", "damaged: \u00fc")],
    counts=Counter(num_turned=1),
    identities=b"i" * 16,
    looks=np.arange(144, dtype=np.uint8).reshape(2, 8, 9),
)


def test_a_part_is_read_as_it_was_saved(tmp_path):
    path = str(tmp_path / "000003.npz")
    save_part(path, "key", PART, b"content")
    part, content = load_part(path, "key")
    assert content == b"content"
    for name in ("kept", "sizes", "labels", "digests", "bad", "odd", "counts", "identities", "figures"):
        assert getattr(part, name) == getattr(PART, name)
    assert part.looks.dtype == np.uint8
    assert np.array_equal(part.looks, PART.looks)


def test_a_part_of_no_example_is_read_as_it_was_saved(tmp_path):
    path = str(tmp_path / "000000.npz")
    save_part(path, "key", Part("", bad=PART.bad), b"")
    part, content = load_part(path, "key")
    assert (part.kept, part.labels, part.digests, part.bad, content) == ([], [], b"", PART.bad, b"")


def test_only_a_whole_part_of_the_same_key_counts_as_saved(tmp_path):
    path = str(tmp_path / "000000.npz")
    assert not is_saved(path, "key")
    save_part(path, "key", PART, b"content")
    assert is_saved(path, "key")
    assert not is_saved(path, "another")
    with pytest.raises(InputError, match=r"expected another, received key"):
        load_part(path, "another")
    whole = Path(path).read_bytes()
    for damaged in (b"", whole[:-30], whole.replace(b"content", b"c0ntent", 1)):
        Path(path).write_bytes(damaged)
        assert not is_saved(path, "key")
        with pytest.raises(InputError, match=r"Cannot read the part .*000000.npz.* Run that task again"):
            load_part(path, "key")

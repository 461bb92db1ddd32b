"""Images in arrays."""

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import list_examples
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


def test_labels_may_be_truth_values(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(20) % 2 == 1)
    assert list_examples(WriteParams(f"npz:{tmp_path}/a.npz")).class_names == ("False", "True")
    listing = list_examples(WriteParams(f"npz:{tmp_path}/a.npz", class_names=("cat", "dog")))
    assert (listing.class_names, listing.labels[:4].tolist()) == (("cat", "dog"), [0, 1, 0, 1])


def test_columns_of_labels_may_be_floats_of_0_and_1(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    labels = np.random.default_rng(1).integers(0, 2, (20, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    assert list_examples(WriteParams(f"npz:{tmp_path}/a.npz", task="multi_label")).labels.tolist() == labels.tolist()
    labels[3, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    with pytest.raises(InputError, match=r"expected uint8 or bool \[20, classes\] of 0 and 1"):
        list_examples(WriteParams(f"npz:{tmp_path}/a.npz", task="multi_label"))

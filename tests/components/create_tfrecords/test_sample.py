"""Claims about the sample of a data set: which examples it has."""

import numpy as np

from tpu_components.create_tfrecords import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.sample import sample_of

_COUNT = 64


def test_the_sample_of_a_regression_varies_where_the_data_do(tmp_path):
    targets = np.zeros(_COUNT * 2, np.float32)
    params = WriteParams(f"npz:{tmp_path / 'rare.npz'}", task="regression", validation_fraction=0.0, test_fraction=0.0)

    images = np.random.default_rng(0).integers(0, 256, (len(targets), 2, 4), np.uint8)

    def sample():
        np.savez(tmp_path / "rare.npz", x=images, y=targets)
        plan = plan_dataset(params)
        return plan, sample_of(plan, _COUNT)

    targets[0] = 1  # Else there is nothing to learn.
    plan, chosen = sample()
    rare = plan.order["train"][-1]
    targets[:] = 0
    targets[rare] = 1
    plan, chosen = sample()
    assert rare not in plan.order["train"][:_COUNT]
    assert set(plan.listing.labels[chosen].ravel().tolist()) == {0.0, 1.0}
    assert len(chosen) <= _COUNT + 2

"""Chooses a sample of a planned data set, and writes its records to a temporary folder."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpu_components.core.examples.artifacts import TRAIN, Manifest
from tpu_components.core.examples.interface import REGRESSION
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.create_tfrecords.preparing import prepare
from tpu_components.create_tfrecords.writer import write_files


def sample_of(plan: DatasetPlan, count: int) -> np.ndarray:
    """Return indices of the first `count` training examples in the listing of the source, int[…].

    For a regression, the result also contains the training examples with the smallest and the largest value of each
    target.
    """
    training = plan.order[TRAIN]
    if plan.params.task != REGRESSION:
        return training[:count]
    targets = plan.listing.labels[training]
    extremes = training[[*targets.argmin(0), *targets.argmax(0)]]
    return np.unique(np.concatenate([extremes, training[:count]]))


@contextlib.contextmanager
def written(sample: DatasetPlan) -> Iterator[tuple[Path, Manifest]]:
    """Context manager: write the records of a sample to a temporary folder, and delete it after the `with` block.

    Yield the folder and the manifest of the records.

    Raises:
        InputError: If the examples cannot be read, or differ from each other, for example in size.
    """
    with tempfile.TemporaryDirectory(prefix="tpu-pipelines-") as folder:
        records_dir = Path(folder)
        if stored := sample.listing.stored:  # A sample has its own records.
            listing = dataclasses.replace(sample.listing, stored=None)
            params = dataclasses.replace(sample.params, rewrite=True, encoding=stored.encoding)
            sample = dataclasses.replace(sample, listing=listing, params=params)
        prepared = prepare(sample)
        write_files(prepared, prepared.write(prepared.cut(1), records_dir), records_dir).save(records_dir)
        yield records_dir, Manifest.load(records_dir, verify=False)

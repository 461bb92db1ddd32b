"""Claims about tasks that one process hands to another one, which has not listed the source."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.create_tfrecords.engines.cases import corpus, groups, images, numbers, texts
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.spans import Span
from tpu_components.core.sources.tasks import load_tasks, pack_tasks
from tpu_components.create_tfrecords import WriteParams, plan_dataset


def packed(folder: Path) -> WriteParams:
    """The pictures in an archive, with their classes beside them."""
    images(folder)
    with tarfile.open(folder.parent / "pictures.tar", "w") as archive:
        for number, path in enumerate(sorted(folder.glob("*/[0-9]*.png"))):
            for suffix, content in ((".png", path.read_bytes()), (".cls", path.parent.name.encode())):
                member = tarfile.TarInfo(f"{number}{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return WriteParams(f"webdataset:{folder.parent}/pictures.tar")


def column(folder: Path) -> WriteParams:
    """The pictures as a column of a table."""
    images(folder)
    paths = sorted(folder.glob("*/[0-9]*.png"))
    table = {"image": [path.read_bytes() for path in paths], "label": [path.parent.name for path in paths]}
    table["trust"] = [number / 4 for number in range(len(paths))]
    pq.write_table(pa.table(table), folder.parent / "pictures.parquet")
    return WriteParams(f"parquet:{folder.parent}/pictures.parquet", columns={"weight": "trust"})


def pack(listing, tasks):
    """The file of some tasks, as an engine writes it."""
    counts = {number: len(indices) for number, indices in tasks.items()}
    return pack_tasks("key", listing.select(np.concatenate(list(tasks.values()))), counts)


@pytest.mark.parametrize("make", [images, groups, texts, corpus, numbers, packed, column])
def test_a_worker_gets_what_the_listing_says(tmp_path, make):
    listing = plan_dataset(make(tmp_path / "data")).listing
    uri, tasks = str(tmp_path / "00002.npz"), {7: np.array([3, 1, 8]), 8: np.array([30]), 9: np.arange(10, 20)}
    Path(uri).write_bytes(pack(listing, tasks))
    handed = dict(load_tasks(uri, "key"))
    assert list(handed) == [7, 8, 9]
    for number, indices in tasks.items():
        sent, received = listing.select(indices), handed[number]
        assert (received.root, received.keys, received.values) == (sent.root, sent.keys, sent.values)
        assert np.array_equal(received.hashes, sent.hashes)
        assert np.array_equal(received.weights, sent.weights)
        assert (sent.weights is None) == (make is not column)
        assert np.array_equal(list(received.read_each()), list(sent.read_each()))
    if make in (packed, column):
        # A table's column was unpacked to a file of this machine.
        assert isinstance(handed[8].contents[0], Span) == (make is packed), "named, and not copied"


def test_tasks_of_something_else_or_in_pieces_are_refused(tmp_path):
    listing = plan_dataset(images(tmp_path / "data")).listing
    path = tmp_path / "00000.npz"
    with pytest.raises(InputError, match=r"Cannot read .*00000.npz.*there is no such file"):
        list(load_tasks(str(path), "key"))
    path.write_bytes(pack(listing, {0: np.arange(5)}))
    with pytest.raises(InputError, match=r"belong to other data, .*: expected the digest another, received key"):
        list(load_tasks(str(path), "another"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        InputError, match=r"Cannot read .*expected complete tasks .*Remove the file, and run the step again"
    ):
        list(load_tasks(str(path), "key"))

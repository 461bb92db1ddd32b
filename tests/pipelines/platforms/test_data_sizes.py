"""What steps ask for, by the size of data that were only listed."""

import dataclasses

import numpy as np
import pytest

from tests.support.fakes.vertex_rules import free_gib
from tpu_components.core.examples.interface import TEXT
from tpu_components.core.files import storage
from tpu_components.core.sources.columns import Files
from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.listing import Listing
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.steps import gib
from tpu_pipelines.platforms.data_sizes import DataSize, measure, with_sizes
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.resources import resources_of

GIB = 2**30
CONFIG = load_config("digits", ["data.source=images:gs://bucket/photos", "data.image_size=[224, 224]"])
SMALL = DataSize(0, GIB, {"train": GIB, "validation": GIB, "test": GIB})


def listed(sizes, **fields):
    names = [f"{i}.jpg" for i in range(len(sizes))]
    files = Files.collect(storage.StoredFile(name, size, "v") for name, size in zip(names, sizes, strict=True))
    splits = np.array(["train"] * (len(files) - 1) + ["test"])
    return Listing(names, np.zeros(len(files), int), ("a", "b"), splits=splits, files=files, **fields)


def asked(config, size, target="kubeflow"):
    sized, said = with_sizes(config, size, PLATFORMS[target])
    steps = ("create_tfrecords", "train_model", "evaluate_model", "export_model")
    return {step: resources_of(sized, step) for step in steps}, said


def test_small_data_ask_for_what_every_step_has():
    found, said = asked(CONFIG, SMALL)
    assert {one.memory for one in found.values()} == {"12Gi"}
    assert said == ""
    assert with_sizes(CONFIG, SMALL, PLATFORMS["vertex"])[0] == CONFIG


def test_memory_and_disk_follow_from_the_listed_size_and_it_is_said():
    size = DataSize(20 * GIB, 60 * GIB, {"train": 500 * GIB, "validation": 5 * GIB, "test": 30 * GIB})
    found, said = asked(CONFIG, size)
    assert {step: one.memory for step, one in found.items()} == {
        "create_tfrecords": "44Gi",  # 4 and the source twice.
        "train_model": "20Gi",  # 4 and twice the 4 GiB that it may hold of each of two splits.
        "evaluate_model": "64Gi",
        "export_model": "64Gi",
    }
    assert found["create_tfrecords"].disk == "120Gi"
    assert said == (
        "for up to 60.0 GiB of records: create_tfrecords 44Gi of memory, evaluate_model 64Gi of memory, export_model "
        "64Gi of memory, train_model 20Gi of memory, create_tfrecords 120Gi of disk"
    )


@pytest.mark.parametrize("test_gib", [0.1, 2.5, 2.6, 3, 4, 8, 16, 50])
def test_on_vertex_a_step_has_the_memory_that_its_data_take(test_gib):
    """The service's agents take a part of the machine that a step asks for, of a small one up to 40%."""
    found, _ = asked(CONFIG, DataSize(0, GIB, {"test": int(test_gib * GIB)}), "vertex")
    assert free_gib(gib(found["evaluate_model"].memory)) >= 4 + 2 * test_gib


def test_on_vertex_the_host_and_a_steps_disk_are_as_they_are():
    size = DataSize(0, 200 * GIB, {"train": 500 * GIB, "test": GIB})
    sized, said = with_sizes(CONFIG, size, PLATFORMS["vertex"])
    assert sized.resources == {}
    assert said == "records of this size may not fit on the disk of a step, which has 100 GB"


def test_what_is_set_by_hand_stays():
    config = load_config(
        "digits", ["resources={evaluate_model: {memory: 20Gi}, create_tfrecords: {disk: 50Gi, cpu: 8}}"]
    )
    found, said = asked(config, DataSize(0, 60 * GIB, {"train": GIB, "test": 30 * GIB}))
    assert found["evaluate_model"].memory == "20Gi"
    assert (found["create_tfrecords"].disk, found["create_tfrecords"].cpu) == ("50Gi", 8)
    assert said == "for up to 60.0 GiB of records: export_model 64Gi of memory"


def test_a_limit_above_the_data_asks_for_no_more_than_they_take():
    config = load_config("digits", ["training.in_memory_mib=65536"])
    assert resources_of(config, "train_model").memory == "132Gi"
    found, said = asked(config, SMALL)
    assert found["train_model"].memory == "12Gi"
    assert "train_model 12Gi of memory" in said


@pytest.mark.parametrize(
    ("sizes", "fields", "data", "expected"),
    [
        ([100_000] * 4, {}, {"image_size": (224, 224)}, DataSize(0, 602_112, {"train": 451_584, "test": 150_528})),
        ([400_000] * 4, {}, {"image_size": (224, 224)}, DataSize(0, 1_600_000, {"train": 451_584, "test": 150_528})),
        ([100_000] * 4, {}, {}, DataSize(0, 400_000, {"train": 3_000_000, "test": 1_000_000})),
        ([1_000] * 4, {}, {}, DataSize(0, 40_000, {"train": 30_000, "test": 10_000})),
        ([2_000] * 4, {"kind": TEXT}, {"num_tokens": 250}, DataSize(0, 12_000, {"train": 3_000, "test": 1_000})),
    ],
)
def test_files_are_measured_by_their_size_and_what_they_become(sizes, fields, data, expected):
    params = dataclasses.replace(load_config("digits").data, validation_fraction=0.0, **data)
    size = measure(listed(sizes, **fields), params)
    assert dataclasses.replace(size, splits={name: size.splits[name] for name in ("train", "test")}) == expected


def test_arrays_are_held_whole(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(40) % 2)
    params = dataclasses.replace(load_config("digits").data, source=f"npz:{tmp_path}/data.npz")
    size = measure(list_examples(params), params)
    assert size.splits == {"train": 28 * 64, "validation": 4 * 64, "test": 8 * 64}
    assert (size.held, size.records, sum(size.splits.values())) == (images.nbytes, images.nbytes, images.nbytes)

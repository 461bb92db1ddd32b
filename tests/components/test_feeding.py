import dataclasses

import keras
import numpy as np
import pytest

from components import records
from components.artifacts import TRAIN, Manifest
from components.create_tfrecords import WriteParams, write_records
from components.errors import InputError
from components.feeding import InMemoryReader, StreamingReader, open_training_split, steps_per_epoch

_NUM_EXAMPLES = 60


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Sixty images whose first two pixels are their number, in shards; an epoch can be read off its images."""
    folder = tmp_path_factory.mktemp("numbered")
    images = np.random.default_rng(0).integers(1, 256, (_NUM_EXAMPLES, 30, 30, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(_NUM_EXAMPLES)
    np.savez(folder / "data.npz", x_train=images, y_train=np.arange(_NUM_EXAMPLES) % 3)
    params = WriteParams(f"npz:{folder / 'data.npz'}", validation_fraction=0, test_fraction=0, num_workers=1)
    write_records(params, folder / "records")
    return folder / "records", Manifest.load(folder / "records")


@pytest.fixture(params=["memory", "stream"])
def make_reader(request, numbered):
    directory, manifest = numbered

    def make(batch_size, seed=0):
        if request.param == "memory":
            return InMemoryReader(records.load_split(directory, manifest, TRAIN), batch_size, seed)
        return StreamingReader(directory, manifest, batch_size, seed, shuffle_buffer=20)

    return make


def _epoch(reader, epoch=0, start_step=0):
    """Numbers, labels and weights of the epoch's batches, each [steps, batch]."""
    batches = list(reader.batches(epoch, start_step).as_numpy_iterator())
    return tuple(
        np.stack(of_all)
        for of_all in (
            [images[:, 0, 0, 0] for images, _, _ in batches],
            [labels for _, labels, _ in batches],
            [weights for _, _, weights in batches],
        )
    )


def test_steps_per_epoch_rounds_up():
    assert [steps_per_epoch(10, size) for size in (1, 3, 5, 10, 11)] == [10, 4, 2, 1, 1]


@pytest.mark.parametrize("batch_size", [1, 12, 60, 7, 59])
def test_every_epoch_holds_every_example_once_with_weight_one(make_reader, batch_size):
    numbers, labels, weights = _epoch(make_reader(batch_size))
    assert numbers.shape == weights.shape == (steps_per_epoch(_NUM_EXAMPLES, batch_size), batch_size)
    assert sorted(numbers[weights == 1].tolist()) == list(range(_NUM_EXAMPLES))
    assert np.array_equal(labels, numbers % 3)
    assert set(np.unique(weights)) <= {0.0, 1.0}


def test_padding_is_real_images_at_the_end_with_weight_zero(make_reader):
    reader = make_reader(59)
    images = [images for images, _, _ in reader.batches(0, 0).as_numpy_iterator()]
    _, _, weights = _epoch(reader)
    assert weights.reshape(-1).tolist() == [1.0] * 60 + [0.0] * 58
    filling = np.concatenate(images)[60:]
    assert (filling[:, 1:] > 0).all()
    assert len(np.unique(filling[:, 0, 0, 0])) == 58


@pytest.mark.parametrize("start_step", [0, 1, 4, 8])
def test_start_step_gives_the_tail_of_the_same_epoch(make_reader, start_step):
    reader = make_reader(7)
    for whole, tail in zip(_epoch(reader, 2), _epoch(reader, 2, start_step), strict=True):
        assert np.array_equal(whole[start_step:], tail)


def test_batches_say_how_many_they_are(make_reader):
    assert int(make_reader(7).batches(0, 2).cardinality()) == 7


def test_epochs_differ_and_repeat_with_the_seed(make_reader):
    first = _epoch(make_reader(60), 0)[0]
    assert np.array_equal(first, _epoch(make_reader(60), 0)[0])
    assert not np.array_equal(first, _epoch(make_reader(60), 1)[0])
    assert not np.array_equal(first, _epoch(make_reader(60, seed=1), 0)[0])
    assert not np.array_equal(first, np.sort(first))


def test_a_streamed_epoch_mixes_shards(numbered):
    directory, manifest = numbered
    one = manifest.split(TRAIN).shards[0]
    # The same shard three times over: content is what the readers trust the manifest for.
    split = dataclasses.replace(manifest.split(TRAIN), num_examples=180, shards=(one, one, one))
    tripled = dataclasses.replace(manifest, splits={TRAIN: split})
    numbers, _, weights = _epoch(StreamingReader(directory, tripled, 16, 0, shuffle_buffer=1))
    assert np.bincount(numbers[weights == 1]).tolist() == [3] * 60


def test_a_streamed_epoch_is_built_once_whatever_epoch_and_step(numbered):
    directory, manifest = numbered
    reader = StreamingReader(directory, manifest, 16, 0, shuffle_buffer=20)
    for epoch, start_step in ((0, 0), (1, 0), (2, 3)):
        reader.batches(epoch, start_step)
    read, _, parse = reader._stages
    assert (read.experimental_get_tracing_count(), parse.experimental_get_tracing_count()) == (1, 1)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_streamed_epoch_is_read_whatever_seed_keras_has(numbered, seed):
    keras.utils.set_random_seed(seed)
    directory, manifest = numbered
    numbers, _, weights = _epoch(StreamingReader(directory, manifest, 12, 0, shuffle_buffer=20))
    assert sorted(numbers[weights == 1].tolist()) == list(range(_NUM_EXAMPLES))


def test_split_is_held_in_memory_up_to_the_limit(numbered):
    directory, manifest = numbered
    small = dataclasses.asdict(manifest.split(TRAIN))["num_examples"] * 30 * 30 * 3
    assert small < 1 << 20
    assert isinstance(open_training_split(directory, manifest, 4, 0, 1, 8), InMemoryReader)
    assert isinstance(open_training_split(directory, manifest, 4, 0, 0, 8), StreamingReader)


def test_missing_training_split_is_named(numbered):
    directory, manifest = numbered
    with pytest.raises(InputError, match="no 'train' split"):
        open_training_split(directory, dataclasses.replace(manifest, splits={}), 4, 0, 1, 8)

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import TRAIN, Manifest, Shard
from tpu_components.core.examples.feeding import (
    Cut,
    InMemoryReader,
    StreamingReader,
    open_training_split,
    steps_per_epoch,
)
from tpu_components.create_tfrecords import WriteParams, write_records

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

    def make(batch_size, seed=0, share=WHOLE):
        cut = Cut(_NUM_EXAMPLES, batch_size, share)
        if request.param == "memory":
            return InMemoryReader(records.load_split(directory, manifest, TRAIN, share=share), cut, seed)
        return StreamingReader(directory, manifest, cut, seed, shuffle_buffer=20)

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


@pytest.mark.parametrize(("num_hosts", "batch_size"), [(2, 12), (4, 8), (7, 14), (8, 56)])
def test_hosts_see_every_example_once_in_steps_as_many_as_one_host_has(make_reader, num_hosts, batch_size):
    readers = [make_reader(batch_size, share=Share(host, num_hosts)) for host in range(num_hosts)]
    epochs = [_epoch(reader, 1) for reader in readers]
    steps = steps_per_epoch(_NUM_EXAMPLES, batch_size)
    assert {numbers.shape for numbers, _, _ in epochs} == {(steps, batch_size // num_hosts)}
    seen = [numbers[weights == 1] for numbers, _, weights in epochs]
    assert sorted(np.concatenate(seen).tolist()) == list(range(_NUM_EXAMPLES))
    weights = np.stack([weights for _, _, weights in epochs])
    assert weights[:, :-1].all(), "only the last batch is filled up, as one host's is"
    assert (np.concatenate([numbers.ravel() for numbers, _, _ in epochs]) < _NUM_EXAMPLES).all()
    for reader, (numbers, _, _) in zip(readers[-2:], epochs[-2:], strict=True):
        assert np.array_equal(_epoch(reader, 1, start_step=1)[0], numbers[1:])


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
    numbers, _, weights = _epoch(StreamingReader(directory, tripled, Cut(180, 16), 0, shuffle_buffer=1))
    assert np.bincount(numbers[weights == 1]).tolist() == [3] * 60


def test_a_streamed_epoch_is_built_once_whatever_epoch_and_step(numbered, monkeypatch):
    directory, manifest = numbered
    functions, make = [], tf.function
    monkeypatch.setattr(tf, "function", lambda *a, **k: functions.append(make(*a, **k)) or functions[-1])
    reader = StreamingReader(directory, manifest, Cut(_NUM_EXAMPLES, 16), 0, shuffle_buffer=20)
    for epoch, start_step in ((0, 0), (1, 0), (2, 3)):
        reader.batches(epoch, start_step)
    assert [function.experimental_get_tracing_count() for function in functions] == [1, 1]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_streamed_epoch_is_read_whatever_seed_keras_has(numbered, seed):
    keras.utils.set_random_seed(seed)
    directory, manifest = numbered
    numbers, _, weights = _epoch(StreamingReader(directory, manifest, Cut(_NUM_EXAMPLES, 12), 0, shuffle_buffer=20))
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


@pytest.fixture
def in_shards(numbered, tmp_path):
    """The sixty images in twelve shards of five."""
    directory, manifest = numbered
    (whole,) = manifest.split(TRAIN).shards
    payloads = list(tf.data.TFRecordDataset(str(directory / whole.name)).as_numpy_iterator())
    shards = []
    for number in range(12):
        content = b"".join(map(records.frame_record, payloads[5 * number : 5 * number + 5]))
        (tmp_path / f"shard-{number}").write_bytes(content)
        shards.append(Shard(f"shard-{number}", 5, len(content), "0"))
    split = dataclasses.replace(manifest.split(TRAIN), shards=tuple(shards))
    return tmp_path, dataclasses.replace(manifest, splits={TRAIN: split})


@pytest.mark.parametrize("in_memory_mib", [0, 100], ids=["streamed", "in memory"])
def test_no_host_needs_the_shards_of_another(in_shards, in_memory_mib):
    directory, manifest = in_shards
    stored = [int(image[0, 0, 0]) for image in records.load_split(directory, manifest, TRAIN).inputs]
    shard_of = {number: place // 5 for place, number in enumerate(stored)}

    def read(host, epoch):
        return _epoch(open_training_split(directory, manifest, 12, 0, in_memory_mib, 20, Share(host, 4)), epoch)[0]

    shared_out = []
    for epoch in (0, 1):
        images = [read(host, epoch) for host in range(4)]
        own = [{shard_of[number] for number in each.ravel().tolist()} for each in images]
        assert [len(shards) for shards in own] == [3] * 4
        assert set.union(*own) == set(range(12))
        shared_out.append(own)
        for host in (0, 3):
            others = [directory / f"shard-{number}" for number in set(range(12)) - own[host]]
            for path in others:
                path.rename(path.with_suffix(".away"))
            assert np.array_equal(read(host, epoch), images[host])
            for path in others:
                path.with_suffix(".away").rename(path)
    assert (shared_out[0] == shared_out[1]) == (in_memory_mib > 0), "what is streamed is dealt anew in every epoch"

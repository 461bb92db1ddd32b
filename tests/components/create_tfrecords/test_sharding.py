"""Claims about how many shards there are and what each holds."""

import pytest

from tpu_components.create_tfrecords.parts import plan_shards


@pytest.mark.parametrize("num_examples", [1, 2, 5, 97, 1000])
@pytest.mark.parametrize("total_mib", [0, 1, 33, 500])
def test_plan_shards_covers_every_example_once_in_sizes_that_differ_by_at_most_one(num_examples, total_mib):
    plan = plan_shards("train", num_examples, total_mib << 20)
    covered = [i for start, end in plan.values() for i in range(start, end)]
    sizes = [end - start for start, end in plan.values()]
    assert covered == list(range(num_examples))
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_plan_shards_makes_shards_of_the_target_size():
    assert len(plan_shards("train", 10_000, 100 << 20, target_shard_mib=32)) == 4


def test_plan_shards_names_say_split_place_and_count():
    assert list(plan_shards("test", 3, 64 << 20, target_shard_mib=32)) == [
        "test-00000-of-00002.tfrecord",
        "test-00001-of-00002.tfrecord",
    ]

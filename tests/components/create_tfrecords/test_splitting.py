"""Claims about which example goes to which split."""

import doctest

import numpy as np
import pytest

from components.create_tfrecords import splitting
from components.create_tfrecords.splitting import assign_splits, hash_unit, hold_out, storage_order

KEYS = [f"img/{i}.png" for i in range(1000)]
LABELS = np.arange(1000) % 7


def _split(keys=KEYS, labels=LABELS, own=None, **options):
    options = {"validation_fraction": 0.1, "test_fraction": 0.2} | options
    return assign_splits(keys, labels, own, **options)


@pytest.mark.parametrize("stratify", [True, False])
def test_assign_splits_puts_every_example_in_exactly_one_split(stratify):
    splits, _ = _split(stratify=stratify)
    assert splits.shape == (1000,)
    assert set(splits.tolist()) == {"train", "validation", "test"}


@pytest.mark.parametrize("stratify", [True, False])
def test_assign_splits_gives_the_fractions_of_the_whole(stratify):
    splits, _ = _split(stratify=stratify)
    shares = {name: float(np.mean(splits == name)) for name in ("train", "validation", "test")}
    assert shares == pytest.approx({"train": 0.7, "validation": 0.1, "test": 0.2}, abs=0.03)


def test_assign_splits_is_deterministic_and_the_seed_changes_it():
    first, rule = _split(seed=3)
    again, same_rule = _split(seed=3)
    other, _ = _split(seed=4)
    assert first.tolist() == again.tolist()
    assert rule == same_rule
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize("stratify", [True, False])
def test_assign_splits_does_not_depend_on_listing_order(stratify):
    shuffled = np.random.default_rng(0).permutation(1000)
    straight, _ = _split(stratify=stratify)
    mixed, _ = _split(keys=[KEYS[i] for i in shuffled], labels=LABELS[shuffled], stratify=stratify)
    assert mixed.tolist() == straight[shuffled].tolist()


@pytest.mark.parametrize("members", [2, 3, 5, 10, 99, 100])
def test_stratified_shares_are_exact_per_class(members):
    labels = np.repeat([0, 1, 2], members)
    keys = [f"{label}/{i}" for i, label in enumerate(labels)]
    held = hold_out(keys, labels, 0.2, purpose="test")
    wanted = min(max(int(np.floor(0.2 * members + 0.5)), 1), members - 1)
    assert [int(held[labels == label].sum()) for label in range(3)] == [wanted] * 3


def test_stratified_hold_out_leaves_a_class_of_one_in_training():
    held = hold_out(["a", "b", "c"], np.array([0, 1, 1]), 0.5, purpose="test")
    assert not held[0]
    assert held.sum() == 1


def test_unstratified_adding_examples_moves_none():
    before, _ = _split(stratify=False)
    after, _ = _split(keys=KEYS + [f"new/{i}" for i in range(500)], labels=np.zeros(1500, int), stratify=False)
    assert after[:1000].tolist() == before.tolist()


@pytest.mark.parametrize("stratify", [True, False])
def test_groups_never_straddle_splits(stratify):
    groups = [f"patient-{i // 8}" for i in range(1000)]
    splits, rule = _split(groups=groups, stratify=stratify)
    by_group = {group: set(splits[np.array(groups) == group].tolist()) for group in set(groups)}
    assert all(len(found) == 1 for found in by_group.values())
    assert set(splits.tolist()) == {"train", "validation", "test"}
    assert "by group" in rule


def test_the_sources_own_splits_are_kept():
    own = np.array(["train"] * 600 + ["validation"] * 100 + ["test"] * 300)
    splits, rule = _split(own=own)
    assert splits.tolist() == own.tolist()
    assert rule == "the source's own test, train, validation"


def test_fractions_fill_in_only_the_split_that_the_source_lacks():
    own = np.array(["train"] * 700 + ["test"] * 300)
    splits, rule = _split(own=own)
    assert (splits == "test").tolist() == (own == "test").tolist()
    assert 65 <= int((splits == "validation").sum()) <= 75
    assert rule == "the source's own test, train; validation held out of the rest stratified by class, seed 0"


def test_fractions_of_zero_hold_nothing_out():
    splits, rule = _split(validation_fraction=0, test_fraction=0)
    assert set(splits.tolist()) == {"train"}
    assert rule == "all examples train"


def test_storage_order_is_a_permutation_that_follows_keys_not_places():
    order = storage_order(KEYS, seed=1)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))
    backwards = KEYS[::-1]
    assert [backwards[i] for i in storage_order(backwards, seed=1)] == [KEYS[i] for i in order]


def test_hash_unit_is_uniform_and_independent_between_purposes():
    one, two = hash_unit(0, "test", KEYS), hash_unit(0, "validation", KEYS)
    assert one.min() >= 0
    assert one.max() < 1
    assert one.mean() == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.1


def test_splitting_examples_in_docstrings_run():
    assert doctest.testmod(splitting).failed == 0

"""Claims about which example goes to which split."""

import unicodedata

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS
from tpu_components.core.sources.columns import hash_unit
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.splitting import assign_splits, storage_order, tell_apart

KEYS = [f"img/{i}.png" for i in range(1000)]
LABELS = np.arange(1000) % 7


def _split(keys=KEYS, labels=LABELS, own=None, **options):
    options = {"validation_fraction": 0.1, "test_fraction": 0.2} | options
    splits, rule = assign_splits(keys, labels, own, **options)
    return np.array(SPLITS)[splits], rule


@pytest.mark.parametrize("stratify", [True, False])
def test_assign_splits_puts_every_example_in_one_split_and_gives_the_fractions_of_the_whole(stratify):
    splits, _ = _split(stratify=stratify)
    assert splits.shape == (1000,)
    shares = {name: float(np.mean(splits == name)) for name in set(splits.tolist())}
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


@pytest.mark.parametrize(
    ("members", "expected"),
    [(1, ["train"]), (2, ["test", "train"]), (3, ["test", "train", "validation"])],
)
def test_a_class_of_few_has_what_it_can_in_every_split(members, expected):
    for seed in range(20):
        splits, _ = _split(keys=[f"{i}" for i in range(members)], labels=np.zeros(members, int), seed=seed)
        assert sorted(splits.tolist()) == expected


def test_every_class_is_in_every_split():
    labels = np.arange(120) % 12
    for seed in range(50):
        splits, _ = _split(keys=[f"{i}" for i in range(120)], labels=labels, seed=seed)
        assert all(len(set(labels[splits == name].tolist())) == 12 for name in ("train", "validation", "test"))


def test_the_rule_says_how_many_may_go_back_from_the_split_that_they_are_lent_to():
    assert (
        "examples moved between splits, because a class or the number of groups is small: 1,"
        in _split(keys=["a", "b", "c"], labels=np.zeros(3, int))[1]
    )
    assert "lent" not in _split()[1]
    groups = [f"{i % 3}" for i in range(30)]
    lent = _split(keys=KEYS[:30], labels=LABELS[:30], groups=groups, validation_fraction=0, seed=2)[1]
    assert "examples moved between splits, because a class or the number of groups is small: 10," in lent


def test_copies_stay_together_under_whatever_label():
    keys = [f"{i // 3}" for i in range(120)]
    for seed in range(50):
        splits, _ = _split(keys=keys, labels=np.arange(120) % 7, seed=seed)
        assert len(set(zip(keys, splits.tolist(), strict=True))) == 40


def _grow(random: np.random.Generator, least: int, most: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """The splits of a data set's examples before and after it has grown, at most to the double."""
    before = int(random.integers(least, most))
    labels = random.integers(0, random.integers(2, 6), before + int(random.integers(1, before)))
    keys = [str(key) for key in random.integers(0, 2**62, len(labels))]
    first, _ = _split(keys=keys[:before], labels=labels[:before], **options)
    # Growth has no direction: new examples come in front, behind and between.
    order = random.permutation(len(keys))
    then, _ = _split(keys=[keys[i] for i in order], labels=labels[order], **options)
    return first, then[np.argsort(order)[:before]]


def test_a_thousand_data_sets_grow_and_no_example_leaves_the_test_split_for_training():
    random = np.random.default_rng(0)
    for _ in range(1000):
        before, after = _grow(random, 100, 600)
        assert not np.any((before == "test") & (after == "train"))
        assert not np.any((before == "train") & (after == "test"))


def test_a_thousand_small_data_sets_grow_and_without_stratification_nothing_moves():
    random = np.random.default_rng(0)
    for _ in range(1000):
        before, after = _grow(random, 3, 60, stratify=False)
        assert before.tolist() == after.tolist()


def test_small_classes_take_back_only_what_they_lent():
    keys, labels = [f"{i}" for i in range(30)], np.arange(30) % 3
    drawn, _ = _split(keys=keys, labels=labels, stratify=False)
    for count in range(3, 30):
        splits, _ = _split(keys=keys[:count], labels=labels[:count])
        for label in range(3):
            ours = (labels[:count] == label) & (splits == "test")
            wanted = (labels[:count] == label) & (drawn[:count] == "test")
            # All that were drawn, unless all of the class were; one that is lent where none was.
            assert (ours & wanted).sum() == ours.sum() or (not wanted.any() and ours.sum() == 1)


@pytest.mark.parametrize("stratify", [True, False])
def test_groups_never_straddle_splits(stratify):
    groups = [f"patient-{i // 8}" for i in range(1000)]
    splits, rule = _split(groups=groups, stratify=stratify)
    by_group = {group: set(splits[np.array(groups) == group].tolist()) for group in set(groups)}
    assert all(len(found) == 1 for found in by_group.values())
    assert set(splits.tolist()) == {"train", "validation", "test"}
    assert "by group" in rule


@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_few_groups_are_filled_to_the_nearest_share(count):
    groups = [f"patient-{i % count}" for i in range(600)]
    for seed in range(50):
        splits, _ = _split(keys=[f"{i}" for i in range(600)], labels=np.zeros(600, int), groups=groups, seed=seed)
        share = np.mean(splits == "test")
        assert abs(share - 0.2) <= max(0.05, 0.5 / count, 1 / count - 0.2) + 1e-9
        assert set(splits.tolist()) == {"train", "validation", "test"}


def test_a_group_of_half_of_all_is_not_tested_for_a_fifth():
    groups = ["large"] * 300 + [f"{i % 10}" for i in range(300)]
    for seed in range(50):
        splits, _ = _split(keys=[f"{i}" for i in range(600)], labels=np.zeros(600, int), groups=groups, seed=seed)
        assert np.mean(splits == "test") == pytest.approx(0.2, abs=0.051)


def test_many_groups_stay_where_they_are_when_others_come():
    def split(count: int) -> np.ndarray:
        groups = [f"patient-{i // 4}" for i in range(count)]
        return _split(keys=[f"{i}" for i in range(count)], labels=np.zeros(count, int), groups=groups)[0]

    assert split(8800)[:8000].tolist() == split(8000).tolist()


def test_the_sources_own_splits_are_kept():
    own = np.array(["train"] * 600 + ["validation"] * 100 + ["test"] * 300)
    splits, rule = _split(own=own)
    assert splits.tolist() == own.tolist()
    assert rule == "the source's test, train, validation"


def test_fractions_fill_in_only_the_split_that_the_source_lacks():
    own = np.array(["train"] * 700 + ["test"] * 300)
    splits, rule = _split(own=own)
    assert (splits == "test").tolist() == (own == "test").tolist()
    assert 50 <= int((splits == "validation").sum()) <= 90
    assert rule == "the source's test, train; validation held out of the rest stratified by class, seed 0"


def test_fractions_of_zero_hold_nothing_out():
    splits, rule = _split(validation_fraction=0, test_fraction=0)
    assert set(splits.tolist()) == {"train"}
    assert rule == "all examples are used for training"


def test_storage_order_is_a_permutation_that_follows_keys_not_places():
    order = storage_order(KEYS, seed=1)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))
    backwards = KEYS[::-1]
    assert [backwards[i] for i in storage_order(backwards, seed=1)] == [KEYS[i] for i in order]


def test_storage_order_is_that_of_the_hashes_though_it_is_made_of_parts():
    keys = [*KEYS, *KEYS[:10]]  # Equal ones stay in their order.
    order = storage_order(keys, seed=1)
    assert order.dtype == np.int32
    assert order.tolist() == np.argsort(hash_unit(1, "order", keys), kind="stable").tolist()
    assert storage_order([], seed=1).tolist() == []


def test_what_repeats_is_told_apart_by_label_and_count():
    assert list(tell_apart(["b", "a", "a", "a"], np.array([0, 1, 2, 1]))) == ["b", "a/1/1", "a/2/1", "a/1/2"]


def test_hash_unit_is_uniform_and_independent_between_purposes():
    one, two = hash_unit(0, "test", KEYS), hash_unit(0, "validation", KEYS)
    assert one.min() >= 0
    assert one.max() < 1
    assert one.mean() == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.1


@pytest.mark.parametrize("kind", ["ids", "groups"])
def test_names_in_one_form_of_unicode_are_drawn_as_before_and_those_in_two_forms_together(kind):
    plain = [f"Café Zoë {i}" for i in range(4000)]  # So many that no group is moved to mend the shares.
    composed, decomposed = ([unicodedata.normalize(form, name) for name in plain] for form in ("NFC", "NFD"))

    def draw(names):
        keys = [str(i) for i in range(len(names))] if kind == "groups" else names
        own = {"groups": names} if kind == "groups" else {"have_forms": True}
        return _split(keys, np.arange(len(keys)) % 2, stratify=False, **own)[0].tolist()

    for names in (composed, decomposed):  # By the hash of the name as it is written, as earlier versions did.
        assert draw(names) == _split(names, np.arange(4000) % 2, stratify=False)[0].tolist()
    both = draw(composed + decomposed[:200])
    assert both[:200] == both[4000:]
    # What was tested in one of the forms is tested in both.
    for new, *old in zip(both[:200], draw(composed), draw(decomposed), strict=False):
        assert SPLITS.index(new) == max(map(SPLITS.index, old))


def test_paths_in_two_forms_of_unicode_are_two_files():
    names = [unicodedata.normalize(form, f"Café/{i}.png") for form in ("NFC", "NFD") for i in range(400)]
    splits, _ = _split(names, np.arange(800) % 2, stratify=False)
    assert splits[:400].tolist() != splits[400:].tolist()


def test_a_class_whose_groups_are_all_held_out_is_refused(tmp_path):
    rows = [f"text {i} of {name},{name},patient {name}" for name in "abcdef" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,patient", *rows]) + "\n")
    with pytest.raises(
        InputError, match=r"have no training examples: '\w' \(of 20 examples\).* by this rule: .* by group"
    ):
        plan_dataset(WriteParams(f"csv:{tmp_path}/t.csv", group_column="patient"))

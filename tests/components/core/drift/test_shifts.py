"""Drift is looked for where it is known to be, or not to be: in data drawn from one source, and in changed ones."""

import dataclasses
import itertools
import json
import math
import re
import string
import tarfile
from collections import Counter
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont
from scipy.stats import norm

from tests.support.html_page import Page
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.measuring import count_independent, count_labels, distributions, measure_pictures
from tpu_components.core.drift.shifts import MEASURES, find_shifts, say_power
from tpu_components.core.drift.sketches import DataSketch, Moments
from tpu_components.core.drift.version_sketches import sketch_at
from tpu_components.core.examples.artifacts import Manifest, Quarantined, Split, TargetStatistics
from tpu_components.core.examples.interface import IMAGE, TEXT, ImageInput
from tpu_components.core.examples.text import split_words
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.preparing import list_common
from tpu_pipelines.cli.main import main

_CIFAR = Path(__file__).parents[5] / "shared" / "data" / "cifar10.tar.xz"
_IMDB = _CIFAR.with_name("imdb_sample.tar.xz")
_NUM_EXAMPLES, _NUM_RESAMPLES, _NUM_QUICK = 500, 500, 200


def measured(pictures):
    """Figures of pictures, as records have them."""
    sizes = np.array([picture.shape[:2] for picture in pictures], np.int16)
    return np.hstack([measure_pictures(pictures), sizes])


def data(rows, labels=(), quarantined=0, num_classes=10, groups=None, **changes):
    """The sketch of a data set of one split that has these figures."""
    counts = tuple(np.bincount(np.array(labels, int), minlength=num_classes).tolist())
    dependence = {} if groups is None else count_independent(IMAGE, rows, np.array(labels), groups)
    split = Split(len(rows), counts, (), distributions=distributions(IMAGE, rows), independence=dependence)
    made = Manifest(
        fingerprint="",
        source="images:made",
        split_rule="",
        input=ImageInput((8, 8, 3), "raw"),
        task="classification",
        features={},
        class_names=tuple(f"class {i}" for i in range(num_classes)),
        splits={"train": split},
        quarantined=tuple(Quarantined(f"{i}", "damaged") for i in range(quarantined)),
    )
    return DataSketch.make(dataclasses.replace(made, **changes))


def drifted(new, old):
    return {shift.figure for shift in find_shifts(new, old) if shift.drifted}


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    light = generator.uniform(60, 190, (3000, 1, 1, 1)) + generator.normal(0, 40, (3000, 8, 8, 3))
    return measured(list(light.clip(0, 255).astype(np.uint8)))


def test_of_data_drawn_from_one_source_at_most_one_pair_in_a_hundred_drifts(rows):
    generator, alarms = np.random.default_rng(1), 0
    labels = generator.integers(0, 10, len(rows))
    for _ in range(_NUM_QUICK):
        order = generator.permutation(len(rows))
        new, old = order[:_NUM_EXAMPLES], order[_NUM_EXAMPLES:]
        alarms += bool(drifted(data(rows[new], labels[new]), data(rows[old], labels[old])))
    assert alarms <= _NUM_QUICK * 0.01


def _patients(generator, correlation=0.3, shift=0.0, num_patients=40, num_each=25):
    """Figures and classes of pictures that are alike within a patient, and the patients."""
    patients = np.repeat(np.arange(num_patients), num_each)
    own, rest = generator.normal(size=(num_patients, 8))[patients], generator.normal(size=(len(patients), 8))
    values = math.sqrt(correlation) * own + math.sqrt(1 - correlation) * rest
    values[:, 0] += shift
    return (1000 + 100 * values[:, :7]).astype(np.int16), (values[:, 7] > 0).astype(int), patients


def test_data_of_forty_patients_raise_no_more_false_alarms_than_promised():
    """Without the groups, more than one in ten of the pairs drift."""
    generator, alarms = np.random.default_rng(0), {True: 0, False: 0}
    for known in alarms:
        for _ in range(50):
            drawn = [_patients(generator) for _ in range(2)]
            new, old = (data(rows, labels, groups=groups if known else None) for rows, labels, groups in drawn)
            alarms[known] += bool(drifted(new, old))
    assert alarms[True] <= 3 < alarms[False]  # More than 3 of 50 occur twice in 1,000 times, if 1% is promised.


def test_a_shift_of_data_of_forty_patients_is_found():
    generator = np.random.default_rng(0)
    (rows, labels, groups), (moved, *others) = _patients(generator), _patients(generator, shift=1.5)
    new, old = data(moved, others[0], groups=others[1]), data(rows, labels, groups=groups)
    assert drifted(new, old) == {"brightness"}
    assert "which are grouped and therefore not independent" in say_power(new, old, find_shifts(new, old), "images")


def test_a_difference_that_is_sure_and_too_small_to_matter_is_no_drift(rows):
    many = np.repeat(rows, 30, axis=0)
    shifted = many.copy()
    shifted[:, 0] += 20  # Two grey levels.
    (brightness,) = (shift for shift in find_shifts(data(shifted), data(many)) if shift.figure == "brightness")
    assert brightness.luck < 1e-6
    assert brightness.effect < MEASURES[brightness.measure][0]
    assert not brightness.drifted


def test_classes_that_become_more_or_new_drift(rows):
    old = data(rows, np.arange(len(rows)) % 10)
    some = rows[:_NUM_EXAMPLES]
    more = data(some, np.where(np.arange(500) % 5 == 0, 3, np.arange(500) % 10))
    assert drifted(more, old) == {"classes"}
    (shift,) = (shift for shift in find_shifts(more, old) if shift.drifted)
    assert shift.before == "'class 3' 10.0%"
    renamed = data(some, np.arange(500) % 2, num_classes=2, class_names=("class 0", "bird"))
    assert "classes" in drifted(renamed, old)


def numbers(mean, std, count, furthest=3):
    """The sketch of a regression of which only the targets are known. The furthest is this many deviations away."""
    moments = Moments(count, mean, std, mean - furthest * std, mean + furthest * std)
    return DataSketch("", "", IMAGE, "regression", count, 0, targets={"price": moments})


def test_targets_and_inputs_that_were_set_aside_drift(rows):
    assert drifted(numbers(105.0, 20.0, 500), numbers(100.0, 20.0, 3000)) == {"target price"}
    assert drifted(numbers(100.5, 20.0, 500), numbers(100.0, 20.0, 3000)) == set()
    assert drifted(data(rows[:500], [0] * 500, quarantined=60), data(rows, [0] * 3000)) == {"set aside"}


@pytest.mark.parametrize(
    ("new", "old", "has_drifted"),
    [
        ((100.0, 5.0, 300), (100.0, 15.0, 300), True),
        ((100.0, 15.0, 300), (100.0, 5.0, 300), True),
        ((100.0, 0.0, 300), (100.0, 5.0, 3000), True),
        ((100.0, 5.0, 30_000), (100.0, 5.5, 30_000), False),  # Sure, but too small to matter.
        ((100.0, 5.0, 300), (100.0, 6.5, 300), False),  # Large enough, but it may be chance.
        ((100.0, 5.0, 300), (100.0, 15.0, 300, 15), False),  # The same with heavy tails.
        ((100.0, 0.0, 50), (100.0, 5.0, 3000), False),  # As of a target that is rarely not 100.
    ],
)
def test_targets_with_another_spread_drift(new, old, has_drifted):
    new, old = numbers(*new), numbers(*old)
    assert drifted(new, old) == ({"spread of target price"} if has_drifted else set())


def test_targets_of_all_splits_are_described_together(rows):
    targets = {"train": TargetStatistics(10.0, 2.0, 4.0, 18.0), "test": TargetStatistics(20.0, 1.0, 17.0, 25.0)}
    splits = {name: Split(50, (), (), targets=(target,)) for name, target in targets.items()}
    sketch = data(rows, splits=splits, task="regression", class_names=("price",))
    moments = sketch.targets["price"]
    assert moments == Moments(100, 15.0, pytest.approx(math.sqrt((4 + 1) / 2 + 25)), 4.0, 25.0)
    assert moments.most_kurtosis == pytest.approx(11**2 / 27.5)


def test_spreads_of_older_sketches_that_do_not_know_the_range_are_compared():
    def older(*moments):
        sketch = numbers(*moments)
        return dataclasses.replace(sketch, targets={"price": Moments(sketch.num_examples, *moments[:2])})

    new, old = (100.0, 5.0, 300), (100.0, 15.0, 300)
    assert drifted(numbers(*new), older(*old)) == drifted(older(*new), older(*old)) == {"spread of target price"}


@pytest.mark.parametrize("shape", ["normal", "uniform", "exponential", "laplace", "poisson", "lognormal"])
def test_of_targets_drawn_from_one_source_at_most_one_pair_in_a_hundred_drifts(shape):
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(1000):
        drawn = [getattr(generator, shape)(size=count) for count in (100, 400)]
        furthest = [np.abs(values - values.mean()).max() / values.std() for values in drawn]
        new, old = (numbers(v.mean(), v.std(), len(v), far) for v, far in zip(drawn, furthest, strict=True))
        alarms += bool(drifted(new, old))
    assert alarms <= 17  # More than 17 of 1,000 occur once in 70 times, if 1% is promised.


def test_splits_are_pooled(rows):
    halves = {"train": rows[:2000], "test": rows[2000:]}
    parts = {name: Split(len(some), (), (), distributions=distributions(IMAGE, some)) for name, some in halves.items()}
    whole, pooled = (sketch.distributions["brightness"] for sketch in (data(rows), data(rows, splits=parts)))
    assert pooled.counts == whole.counts
    assert (pooled.mean, pooled.std) == pytest.approx((whole.mean, whole.std), rel=1e-5)


def test_the_bins_of_a_whole_do_not_depend_on_how_it_is_divided(rows):
    expected = data(rows).distributions
    for num_parts in (2, 5, 40):
        places = np.random.default_rng(num_parts).integers(0, num_parts, len(rows))
        parts = {
            f"{i}": Split(len(some), (), (), distributions=distributions(IMAGE, some))
            for i, some in ((i, rows[places == i]) for i in range(num_parts))
        }
        pooled = data(rows, splits=parts).distributions
        assert {name: (own.edges, own.counts) for name, own in pooled.items()} == {
            name: (own.edges, own.counts) for name, own in expected.items()
        }


def test_distributions_that_do_not_overlap_are_as_far_apart_as_can_be(rows):
    """As an industrial camera has them: all of one size, and nearly of one brightness."""
    generator = np.random.default_rng(0)
    new, old = rows[:500].copy(), rows.copy()
    new[:, 0], old[:, 0] = generator.normal(1265, 1.6, 500).round(), generator.normal(1205, 1.5, 3000).round()
    new[:, 5], old[:, 5] = 360, 260
    shifts = {shift.figure: shift for shift in find_shifts(data(new), data(old))}
    assert (shifts["brightness"].effect, shifts["height"].effect) == (1.0, 1.0)
    assert {name for name, shift in shifts.items() if shift.drifted} == {"brightness", "height"}


_OLD_EDGES = {"brightness": range(0, 257, 8), "height": [round(2 ** (i / 2)) for i in range(2, 31)]}


def as_of_old(sketch):
    """The sketch as an older version has kept it: in bins that were the same for all data, the last ones open."""
    kept = {}
    for name, edges in _OLD_EDGES.items():
        own, edges = sketch.distributions[name], np.array(edges, float)
        # Of these values no bin reaches over an old one's edge.
        counts, _ = np.histogram(np.clip(own.edges[:-1], edges[0], edges[-1]), edges, weights=own.counts)
        counts = tuple(int(count) for count in counts)
        kept[name] = dataclasses.replace(own, edges=tuple(edges.tolist()), counts=counts)
    return dataclasses.replace(sketch, distributions=kept)


def test_sketches_of_older_versions_are_compared_by_what_both_know(rows):
    dark, tall = rows[:500].copy(), rows[:500].copy()
    dark[:, 0] //= 2
    tall[:, 5] = 11
    old = data(rows, np.arange(3000) % 10)
    for some, figure in ((rows[:500], None), (dark, "brightness"), (tall, "height")):
        new = data(some, np.arange(500) % 10)
        effects = {
            shift.figure: shift.effect for shift in find_shifts(new, old) if shift.figure in ("brightness", "height")
        }
        for ours, theirs in ((new, as_of_old(old)), (as_of_old(new), old), (as_of_old(new), as_of_old(old))):
            shifts = find_shifts(ours, theirs)
            assert {shift.figure for shift in shifts} == {"brightness", "height", "classes"}
            assert {shift.figure for shift in shifts if shift.drifted} == ({figure} if figure else set())
            for shift in shifts:
                assert shift.effect <= effects.get(shift.figure, 1.0) + 1e-12, "only what is certain is counted"


# Draws of a figure, moved by a share of the cases: the largest distance to those that are not moved.
_FAMILIES = {
    "normal": lambda generator, count, moved: generator.normal(1205 + 300 * 2 * norm.ppf((1 + moved) / 2), 300, count),
    "narrow": lambda generator, count, moved: generator.normal(1205 + 15 * 2 * norm.ppf((1 + moved) / 2), 15, count),
    "skew": lambda generator, count, moved: np.exp(generator.normal(6 + 2 * norm.ppf((1 + moved) / 2), 1, count)),
    "two sizes": lambda generator, count, moved: np.where(generator.random(count) < 0.5 + moved, 480, 1080),
    "some far away": lambda generator, count, moved: np.where(
        generator.random(count) < moved, 2500, generator.normal(1205, 3, count)
    ),
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_shift_of_the_size_that_is_said_is_found_in_four_of_five_cases(family):
    def draw(count, moved):
        values = _FAMILIES[family](generator, count, moved).clip(0, 32767).astype(np.int16)
        figures = distributions(IMAGE, np.tile(values[:, None], 7))
        return DataSketch("", "", IMAGE, "regression", count, 0, distributions={"width": figures["width"]})

    generator, tries = np.random.default_rng(0), 200
    said = say_power(draw(300, 0), draw(900, 0), find_shifts(draw(300, 0), draw(900, 0)), "pictures")
    size = float(re.search(r"by (0\.\d+) or more in at least 80% of cases", said)[1])
    found = sum(bool(drifted(draw(300, size), draw(900, 0))) for _ in range(tries))
    assert found >= 0.75 * tries, "80%, less what chance takes of so few tries"


def with_labels(labels):
    """The sketch of a multi-label data set: bool[examples, classes]."""
    num_examples, num_classes = labels.shape
    split = Split(num_examples, tuple(labels.sum(0).tolist()), (), distributions=count_labels(labels))
    names = tuple(f"class {i}" for i in range(num_classes))
    return data(np.empty((0, 7)), splits={"train": split}, task="multi_label", class_names=names)


def labels_that_come_together(generator, count, groups=range(8)):
    """All ten labels of one group, and sometimes those of another."""
    has_group = np.zeros((count, 8), bool)
    has_group[np.arange(count), generator.choice(groups, count)] = True
    has_group[np.arange(count), generator.choice(groups, count)] |= generator.random(count) < 0.3
    return np.repeat(has_group, 10, axis=1)


def test_labels_that_come_together_raise_no_more_false_alarms_than_promised():
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(_NUM_QUICK):
        new, old = (with_labels(labels_that_come_together(generator, count)) for count in (200, 500))
        alarms += bool(drifted(new, old))
    assert alarms <= _NUM_QUICK * 0.01


def test_more_labels_other_labels_and_one_that_is_more_frequent_drift():
    generator = np.random.default_rng(0)
    old = with_labels(generator.random((3000, 80)) < 0.02)
    assert drifted(with_labels(generator.random((500, 80)) < 0.02), old) == set()
    assert drifted(with_labels(generator.random((500, 80)) < 0.1), old) == {"labels", "single class"}
    one = generator.random((500, 80)) < 0.02
    one[:, 7] |= generator.random(500) < 0.15
    assert "single class" in drifted(with_labels(one), old)
    half = with_labels(labels_that_come_together(generator, 3000, range(4)))
    assert "classes" in drifted(with_labels(labels_that_come_together(generator, 500, range(4, 8))), half)


def test_of_older_multi_label_data_that_do_not_count_labels_the_single_classes_are_compared():
    generator = np.random.default_rng(0)
    new, old = (with_labels(generator.random((count, 80)) < 0.02) for count in (500, 3000))
    older = dataclasses.replace(old, distributions={})
    assert {shift.figure for shift in find_shifts(new, older)} == {"single class", "classes"}
    assert {shift.figure for shift in find_shifts(older, older)} == {"single class"}
    assert drifted(new, older) == set()


def test_data_that_do_not_compare_are_refused(rows):
    with pytest.raises(InputError, match="expected the same task, received classification and regression"):
        find_shifts(data(rows), data(rows, task="regression"))


def test_the_command_says_what_has_drifted(tmp_path, capsys):
    generator = np.random.default_rng(2)
    for name, most in (("before", 200), ("alike", 200), ("dark", 110)):
        pictures = generator.integers(20, most, (400, 6, 6, 3)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=pictures, y=np.arange(400) % 2)
        write_records(WriteParams(f"npz:{tmp_path}/{name}.npz", num_workers=1), tmp_path / name)
    capsys.readouterr()
    against = ["--against", str(tmp_path / "before")]
    assert main(["drift", str(tmp_path / "alike"), *against]) == 0
    out = capsys.readouterr().out
    assert out.startswith("none of 8 figures has drifted\n")
    assert "threshold" in out
    assert (
        "below 0.00125, which is 0.01 (for a confidence of 0.99) divided among 8 tests (Bonferroni). "
        "Tests: the Kolmogorov-Smirnov test (" in out
    )
    assert "the chi-squared test (classes)." in out
    page = tmp_path / "drift.html"
    assert main(["drift", str(tmp_path / "dark"), *against, "--json", "--output", str(page)]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["drifted"]
    assert {"brightness", "contrast"} <= {figure["figure"] for figure in said["figures"] if figure["drifted"]}
    told = " ".join(Page(page.read_text()).words)
    assert "of 8 figures have drifted: " in told
    assert "divided among 8 tests (Bonferroni)" in told
    assert "; threshold 0.1; p-value 1." in told
    assert main(["drift", str(tmp_path / "nowhere"), *against]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_words_are_compared_and_vocabularies_are_not(tmp_path, capsys):
    generator = np.random.default_rng(4)
    for name, words, count in (("old", "abcdefghij", 900), ("few", "abcdefghij", 60), ("other", "klmnopqrst", 200)):
        vocabulary = [letter * size for letter in words for size in range(1, 9)]
        rows = (f"{' '.join(generator.choice(vocabulary, 12))},{i % 2}" for i in range(count))
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]))
        write_records(
            WriteParams(f"csv:{tmp_path}/{name}.csv", vocabulary_size=40, num_tokens=12, num_workers=1), tmp_path / name
        )
    old, few, other = (sketch_at(str(tmp_path / name)) for name in ("old", "few", "other"))
    assert len(old.common_words) == 81
    assert old.common_words[""] == 0
    assert sum(old.common_words.values()) == 12 * old.num_training
    assert drifted(few, old) == set()
    assert drifted(other, old) == {"common words"}
    assert "unknown_share" in old.distributions, "it is kept for people to look at"
    figures = {shift.figure for shift in find_shifts(few, old)}
    assert figures == {"words", "word_length", "classes", "common words"}


def num_alarms(draw):
    """Number of pairs, each drawn from one data set, between which something drifts."""
    return sum(bool(drifted(*draw(np.random.default_rng(seed)))) for seed in range(_NUM_RESAMPLES))


def warmer(image):
    scaled = [band.point(lambda value, k=k: value * k) for band, k in zip(image.split(), (1.1, 1, 0.9), strict=True)]
    return Image.merge("RGB", scaled)


SHIFTS = {
    "darker by a fifth": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "brighter by a fifth": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "warmer light": warmer,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "cropped to the middle": lambda image: image.crop((6, 6, 26, 26)).resize((32, 32), Image.Resampling.BILINEAR),
    "larger files": lambda image: image.resize((48, 48)),
    "noisy": lambda image: Image.fromarray(
        (np.asarray(image) + np.random.default_rng(5).normal(0, 12, (32, 32, 3))).clip(0, 255).astype(np.uint8)
    ),
    "upside down": lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
}


LABEL_SHIFTS = {
    "a class three times as frequent": lambda labels: np.where(np.arange(len(labels)) % 4 == 0, 3, labels),
    "a fifth of the labels wrong": lambda labels: np.where(np.arange(len(labels)) % 5 == 0, (labels + 1) % 10, labels),
}
# No figure looks at where things are, nor at pictures and labels together.
NOT_FOUND = {"upside down", "a fifth of the labels wrong"}


@pytest.mark.slow  # Unpacks CIFAR-10 from ../shared/data: 30 s.
@pytest.mark.skipif(not _CIFAR.exists(), reason=f"there is no {_CIFAR}")
def test_made_shifts_of_photos_are_found_in_500_of_them(capsys):
    with tarfile.open(_CIFAR) as archive:
        files = [member for member in archive if member.isfile() and "/test/" in member.name][::3]
        images = [Image.open(archive.extractfile(member)).convert("RGB") for member in files]
    names = [Path(member.name).parent.name for member in files]
    labels = np.unique(names, return_inverse=True)[1]
    rows = measured([np.asarray(image) for image in images])
    order = np.random.default_rng(3).permutation(len(images))
    new, rest = order[:_NUM_EXAMPLES], order[_NUM_EXAMPLES:]
    old = data(rows[rest], labels[rest])

    def look(change):
        return data(measured([np.asarray(change(images[i])) for i in new]), labels[new])

    known = {name: drifted(look(change), old) for name, change in SHIFTS.items()}
    known |= {name: drifted(data(rows[new], change(labels[new])), old) for name, change in LABEL_SHIFTS.items()}

    def draw(generator):
        some, others = np.split(generator.permutation(len(rows)), [_NUM_EXAMPLES])
        return data(rows[some], labels[some]), data(rows[others], labels[others])

    alarms = num_alarms(draw)
    tell(capsys, known, alarms)
    assert {name for name, figures in known.items() if not figures} == NOT_FOUND
    assert alarms <= _NUM_RESAMPLES * 0.01


def tell(capsys, known, alarms):
    with capsys.disabled():
        print()
        for name, figures in known.items():
            print(f"{name}: {', '.join(sorted(figures)) or 'not found'}")
        print(f"false alarms: {alarms} of {_NUM_RESAMPLES}")


FONTS = {
    "the same font": "DejaVuSans",
    "with serifs": "DejaVuSerif",
    "bold": "DejaVuSans-Bold",
    "of one width": "DejaVuSansMono",
    "oblique": "DejaVuSans-Oblique",
    "of a printed book": "cmr10",
}
NOT_FOUND_OF_FONTS = {"the same font", "oblique"}  # A slanted stroke is as bright and as sharp.


def test_letters_of_another_font_are_found_in_500_of_them():
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"

    def letters(font, count, seed):
        """Letters in white on black, 28×28, here and there and in sizes from 18 to 22."""
        generator, pictures = np.random.default_rng(seed), []
        sizes = [ImageFont.truetype(folder / f"{font}.ttf", size) for size in range(18, 23)]
        labels = generator.integers(0, 26, count)
        for label in labels:
            picture = Image.new("L", (28, 28))
            place = tuple(14 + generator.integers(-3, 4, 2))
            own = sizes[generator.integers(len(sizes))]
            ImageDraw.Draw(picture).text(place, string.ascii_lowercase[label], 255, own, anchor="mm")
            pictures.append(np.asarray(picture)[:, :, None])
        return data(measured(pictures), labels, num_classes=26)

    old = letters("DejaVuSans", 3000, seed=6)
    known = {name: drifted(letters(font, _NUM_EXAMPLES, seed=7), old) for name, font in FONTS.items()}
    assert {name for name, figures in known.items() if not figures} == NOT_FOUND_OF_FONTS


def with_typos(text, share=0.1):
    letters = np.frombuffer(text, np.uint8).copy()
    generator = np.random.default_rng(len(text))
    places = np.flatnonzero((letters >= ord("a")) & (letters <= ord("z")) & (generator.random(len(letters)) < share))
    letters[places] = generator.integers(ord("a"), ord("z") + 1, len(places))
    return letters.tobytes()


_ROTATED = bytes.maketrans(b"abcdefghijklmnopqrstuvwxyz", b"nopqrstuvwxyzabcdefghijklm")
TEXT_SHIFTS = {
    "half as long": lambda text: text[: len(text) // 2],
    "another language, of words as long": lambda text: text.lower().translate(_ROTATED),
    "a tenth of the letters mistyped": with_typos,
    "without articles": lambda text: b" ".join(word for word in split_words(text) if word not in (b"the", b"a", b"an")),
    "without spaces": lambda text: text.replace(b" ", b""),
    "marked up": lambda text: b"<p><i>" + text.replace(b". ", b".</i> <i>") + b"</i></p>",
}
NOT_FOUND_OF_TEXTS = {"a fifth of the labels wrong"}


@pytest.mark.slow  # Reads the sample of IMDB in ../shared/data: 20 s.
@pytest.mark.skipif(not _IMDB.exists(), reason=f"there is no {_IMDB}")
def test_made_shifts_of_reviews_are_found_in_500_of_them(capsys):
    with tarfile.open(_IMDB) as archive:
        files = [member for member in archive if member.isfile() and member.name.endswith(".txt")]
        texts = [archive.extractfile(member).read() for member in files]
    labels = np.array(["/pos/" in member.name for member in files], int)
    order = np.random.default_rng(3).permutation(len(texts))
    new, rest = order[:_NUM_EXAMPLES], order[_NUM_EXAMPLES:]

    def sketch(texts, labels):
        words = [split_words(text) for text in texts]
        rows = [(len(own), 0, round(10 * len(text) / len(own))) for own, text in zip(words, texts, strict=True)]
        return of_texts(np.array(rows), labels, list_common(Counter(itertools.chain(*words))))

    def of_texts(rows, labels, common):
        counts = dict(zip("01", np.bincount(labels, minlength=2).tolist(), strict=True))
        figures = distributions(TEXT, rows)
        return DataSketch(
            "", "", TEXT, "classification", len(rows), 0, counts, {}, figures, len(rows), common_words=common
        )

    old = sketch([texts[i] for i in rest], labels[rest])
    some = [texts[i] for i in new]
    known = {
        name: drifted(sketch([change(text) for text in some], labels[new]), old) for name, change in TEXT_SHIFTS.items()
    }
    mixed, wrong = np.where(np.arange(len(new)) % 4 == 0, 1, labels[new]), np.arange(len(new)) % 5 == 0
    known["a class a quarter more frequent"] = drifted(sketch(some, mixed), old)
    known["a fifth of the labels wrong"] = drifted(sketch(some, np.where(wrong, 1 - labels[new], labels[new])), old)

    # Words are counted once for all that is drawn.
    words = [Counter(split_words(text)) for text in texts]
    vocabulary = [word for word, _ in sum(words, Counter()).most_common(1000)]
    counts = np.array([[own[word] for word in vocabulary] for own in words], np.int32)
    lengths = np.array([own.total() for own in words])
    rows = np.array([(n, 0, round(10 * len(text) / n)) for n, text in zip(lengths, texts, strict=True)])

    def count(some):
        ranked = Counter(dict(zip(vocabulary, counts[some].sum(axis=0).tolist(), strict=True)))
        others = int(lengths[some].sum()) - ranked.total()
        common = list_common(ranked)
        return common | {"": common[""] + others}

    def draw(generator):
        parts = np.split(generator.permutation(len(texts)), [_NUM_EXAMPLES])
        return (of_texts(rows[part], labels[part], count(part)) for part in parts)

    alarms = num_alarms(draw)
    tell(capsys, known, alarms)
    assert {name for name, figures in known.items() if not figures} == NOT_FOUND_OF_TEXTS
    assert alarms <= _NUM_RESAMPLES * 0.01


@pytest.mark.parametrize(("word", "are_compared"), [("film", True), ("élan", False)])
def test_words_that_different_rules_divided_are_compared_only_in_ascii(word, are_compared):
    rows = np.array([(4, 0, 50)] * 300)

    def sketch(rule):
        figures = distributions(TEXT, rows)
        return DataSketch(
            *("", "", TEXT, "classification", 300, 0),
            distributions=figures,
            num_training=300,
            common_words={word: 900, "": 300},
            tokenization=rule,
        )

    def compared(new, old):
        return {shift.figure for shift in find_shifts(sketch(new), sketch(old))} - {"set aside"}

    figures = {"common words", "words", "word_length"}
    assert compared("unicode_words", "unicode_words") == compared("words", "") == figures
    assert compared("unicode_words", "") == (figures if are_compared else set())

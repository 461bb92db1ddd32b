import dataclasses
import json

import numpy as np
import pytest

from tpu_components.core.drift.measuring import (
    FIGURES,
    NOT_MEASURED,
    count_labels,
    distributions,
    is_measured,
    measure_pictures,
)
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.interface import IMAGE, TEXT
from tpu_components.create_tfrecords import WriteParams, encoders, parts, write_records


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_measured_as_their_definitions_say(channels):
    pictures = [noise(12, 9, channels), noise(7, 20, channels), noise(12, 9, channels) // 2]
    measured = measure_pictures(pictures)
    for picture, (brightness, contrast, sharpness) in zip(pictures, measured[:, :3] / 10, strict=True):
        weights = [0.25, 0.5, 0.25] if channels == 3 else [1]
        grey = picture @ np.array(weights)
        steps = np.concatenate([np.abs(np.diff(grey, axis=axis)).ravel() for axis in (0, 1)])
        assert brightness == pytest.approx(grey.mean(), abs=0.06)
        assert contrast == pytest.approx(grey.std(), abs=0.06)
        assert sharpness == pytest.approx(steps.mean(), abs=0.06)
    for picture, shares in zip(pictures, measured[:, 3:] / 1000, strict=True):
        light = picture.sum((0, 1)) / picture.sum() if channels == 3 else np.full(3, 1 / 3)
        assert shares == pytest.approx(light[[0, 2]], abs=0.001)


def test_a_picture_of_one_point_has_no_contrast():
    assert measure_pictures([np.full((1, 1, 1), 200, np.uint8)]).tolist() == [[2000, 0, 0, 333, 333]]


def test_a_distribution_has_the_bins_that_hold_something_and_exact_figures():
    rows = np.array([[10, 0, 52], [20, 500, 48], [NOT_MEASURED] * 3, [32767, 1000, 900]], np.int16)
    words, unknown, length = distributions(TEXT, rows).values()
    assert (words.edges, words.counts) == ((10, 11, 20, 21, 32640, 32768), (1, 0, 1, 0, 1))
    assert (words.num_examples, words.minimum, words.maximum) == (3, 10, 32767)
    assert words.mean == pytest.approx((10 + 20 + 32767) / 3, abs=1e-6)
    assert (unknown.mean, unknown.maximum) == (0.5, 1.0)
    assert (unknown.edges, unknown.counts) == ((0, 0.001, 0.5, 0.502, 1.0, 1.004), (1, 0, 1, 0, 1))
    assert (length.minimum, length.maximum, length.counts) == (4.8, 90.0, (1, 0, 1, 0, 1))
    assert unknown.std == pytest.approx(np.std([0, 0.5, 1]), abs=1e-6)
    assert distributions(IMAGE, np.full((4, 7), NOT_MEASURED)) == {}


def test_no_bin_is_wider_than_a_unit_and_a_128th_of_its_values():
    rows = np.random.default_rng(0).integers(0, 2**15, (5000, 7)).astype(np.int16)
    for figure, distribution in zip(FIGURES[IMAGE], distributions(IMAGE, rows).values(), strict=True):
        lows, highs = (np.array(distribution.edges[part]) / figure.scale for part in (slice(-1), slice(1, None)))
        is_filled = np.array(distribution.counts) > 0
        assert (highs - lows <= np.maximum(1, lows / 128) * (1 + 1e-9))[is_filled].all(), figure.name
        assert sum(distribution.counts) == 5000


def test_labels_are_counted_by_example():
    labels = count_labels(np.array([[1, 0, 1], [0, 0, 0], [0, 0, 1]]))["labels"]
    assert (labels.edges, labels.counts, labels.mean) == ((0, 1, 2, 3), (1, 1, 1), 1)


def test_the_measured_share_is_chosen_by_content():
    draw = np.random.default_rng(0)
    identities = [draw.bytes(8) for _ in range(4000)]
    chosen = [is_measured(identity, 0.25) for identity in identities]
    assert sum(chosen) == pytest.approx(1000, abs=100)
    assert chosen == [is_measured(identity, 0.25) for identity in identities]
    assert all(is_measured(identity, 1.0) for identity in identities)


def test_figures_do_not_depend_on_how_the_work_is_cut_or_how_many_are_measured_on_their_order(
    image_folder, tmp_path, monkeypatch
):
    params = WriteParams(f"images:{image_folder(per_class=30)}", num_workers=2)
    monkeypatch.setattr(encoders, "MOST_MEASURED", 30)
    write_records(params, tmp_path / "whole")
    monkeypatch.setattr(parts, "TASK_EXAMPLES", 3)
    write_records(params, tmp_path / "cut")
    assert (tmp_path / "whole" / "dataset.json").read_bytes() == (tmp_path / "cut" / "dataset.json").read_bytes()
    splits = Manifest.load(tmp_path / "whole").splits
    assert 15 < sum(split.distributions["height"].num_examples for split in splits.values()) < 45


def test_examples_that_are_moved_to_another_split_take_their_figures_along(tmp_path):
    images = noise(60, 8, 8)
    images = np.concatenate([images, np.clip(images.astype(int) + 3, 0, 255).astype(np.uint8)])  # Near copies.
    np.savez(tmp_path / "x.npz", x=images, y=np.arange(120) % 2)
    write_records(WriteParams(f"npz:{tmp_path}/x.npz", num_workers=1), tmp_path / "records")
    splits = Manifest.load(tmp_path / "records").splits
    for split in splits.values():
        assert split.distributions["brightness"].num_examples == split.num_examples


def test_an_older_manifest_without_distributions_is_read(digits_records, tmp_path):
    raw = json.loads((digits_records / "dataset.json").read_bytes())
    for split in raw["splits"].values():
        del split["distributions"]
    manifest = Manifest.parse(raw)
    assert all(not split.distributions for split in manifest.splits.values())
    whole = Manifest.load(digits_records)
    splits = {name: dataclasses.replace(split, distributions={}) for name, split in whole.splits.items()}
    assert manifest == dataclasses.replace(whole, splits=splits)

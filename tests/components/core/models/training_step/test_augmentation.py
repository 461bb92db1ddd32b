"""What augmentation makes of images and labels, on both backends."""

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import CLASSIFICATION
from tpu_components.core.machines import device
from tpu_components.core.models.training_step.augmentation import (
    Draws,
    augment,
    check_augmentation,
    interpolation_matrices,
    mixup_shares,
)
from tpu_components.core.models.training_step.hyperparameters import TrainParams

_IMAGES = np.random.default_rng(0).integers(0, 256, (96, 6, 5, 3), np.uint8)
_LABELS = (np.arange(96) % 4).astype(np.int32)


@pytest.fixture(autouse=True)
def _tensorflow():
    device.prepare("tensorflow", "cpu", 1, "float32")


def _augment(settings, seed=1, step=2, groups=1, images=_IMAGES, size=()):
    size = size or images.shape[1:3]
    images, labels = augment(images, _LABELS, settings, Draws(seed, step), 4, groups, size)
    return np.asarray(images), np.asarray(labels)


@pytest.mark.parametrize(
    ("random_flip", "axes"),
    [
        ("horizontal", [(), (1,)]),
        ("vertical", [(), (0,)]),
        ("horizontal_and_vertical", [(), (0,), (1,), (0, 1)]),
    ],
)
def test_each_image_is_flipped_by_chance_of_its_own(random_flip, axes):
    flipped, labels = _augment(TrainParams("digits_cnn", random_flip=random_flip))
    assert flipped.dtype == np.uint8
    assert np.array_equal(labels, _LABELS)
    found = [
        [np.array_equal(out, np.flip(image, way)) for way in axes] for image, out in zip(_IMAGES, flipped, strict=True)
    ]
    counts = np.sum(found, axis=0)
    assert counts.sum() == 96
    assert counts.min() > 96 / len(axes) / 2


def test_crops_move_an_image_both_ways_and_mirror_its_edge():
    padded = np.pad(_IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    cropped, _ = _augment(TrainParams("digits_cnn", random_crop_pixels=2))
    moves = set()
    for image, out in zip(padded, cropped, strict=True):
        (move,) = [(y, x) for y in range(5) for x in range(5) if np.array_equal(out, image[y : y + 6, x : x + 5])]
        moves.add(move)
    assert {y for y, _ in moves} == {x for _, x in moves} == set(range(5))
    assert len(moves) > 15


def test_a_crop_of_images_with_a_margin_takes_their_own_pixels():
    larger = np.random.default_rng(0).integers(0, 256, (96, 10, 9, 3), np.uint8)
    settings = TrainParams("digits_cnn", random_crop_pixels=2, random_flip="horizontal")
    cropped, _ = _augment(settings, images=larger, size=(6, 5))
    moves = set()
    for image, out in zip(larger, cropped, strict=True):
        crops = {(y, x): image[y : y + 6, x : x + 5] for y in range(5) for x in range(5)}
        moves |= {at for at, crop in crops.items() if np.array_equal(out, crop) or np.array_equal(out, crop[:, ::-1])}
    assert moves >= {(y, x) for y in (0, 4) for x in (0, 4)}
    padded = np.pad(larger, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    further, _ = _augment(TrainParams("digits_cnn", random_crop_pixels=3), images=larger, size=(6, 5))
    for image, out in zip(padded, further, strict=True):
        assert any(np.array_equal(out, image[y : y + 6, x : x + 5]) for y in range(7) for x in range(7))


def test_images_with_a_margin_lose_it_whatever_else_is_asked_for():
    larger = np.random.default_rng(0).integers(0, 256, (96, 10, 9, 3), np.uint8)
    middle, _ = _augment(TrainParams("digits_cnn", label_smoothing=0.1), images=larger, size=(6, 5))
    assert np.array_equal(middle, larger[:, 2:8, 2:7])
    settings = TrainParams("digits_cnn", random_resized_crop=1.0)
    whole, _ = _augment(settings, images=np.full((96, 10, 9, 3), 7, np.uint8), size=(6, 5))
    assert whole.shape == (96, 6, 5, 3)
    assert (whole == 7).all()


def test_a_crop_and_a_flip_are_one_of_the_flipped_images_crops():
    padded = np.pad(_IMAGES, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    changed, _ = _augment(TrainParams("digits_cnn", random_flip="horizontal", random_crop_pixels=1))
    for image, out in zip(padded, changed, strict=True):
        crops = [image[y : y + 6, x : x + 5] for y in range(3) for x in range(3)]
        assert any(np.array_equal(out, way) for crop in crops for way in (crop, crop[:, ::-1]))


def test_a_part_is_resized_to_the_whole_as_pillow_does():
    images = np.random.default_rng(0).integers(0, 256, (96, 30, 40, 3), np.uint8)
    settings = TrainParams("digits_cnn", random_resized_crop=0.25)
    resized, _ = _augment(settings, images=images)
    draws = Draws(1, 2)
    area, ratio = 0.25 + 0.75 * np.asarray(draws.shares(96)), np.asarray(draws.shares(96))
    aspect = (4 / 3) ** (2 * ratio - 1)
    height, top = np.minimum(np.sqrt(area / aspect), 1), np.asarray(draws.shares(96))
    width, left = np.minimum(np.sqrt(area * aspect), 1), np.asarray(draws.shares(96))
    top, left = top * (1 - height) * 30, left * (1 - width) * 40
    for image, out, y, x, h, w in zip(images, resized, top, left, height * 30, width * 40, strict=True):
        expected = Image.fromarray(image).resize((40, 30), Image.Resampling.BILINEAR, (x, y, x + w, y + h))
        assert np.abs(out.astype(int) - np.asarray(expected)).max() <= 1
    assert (height * width).min() < 0.3
    assert (height * width).max() > 0.9


def test_the_whole_of_an_image_is_the_image():
    zero, one = np.zeros((1, 1, 1), np.float32), np.ones((1, 1, 1), np.float32)
    np.testing.assert_array_equal(np.asarray(interpolation_matrices(7, zero, one, 7))[0], np.eye(7))


@pytest.mark.parametrize("groups", [1, 4])
def test_mixup_mixes_images_and_labels_of_one_group_alike(groups):
    mixed, targets = _augment(TrainParams("digits_cnn", mixup_alpha=0.4), groups=groups)
    assert mixed.dtype == np.uint8
    size = 96 // groups
    partner = np.concatenate([np.arange(start, start + size)[::-1] for start in range(0, 96, size)])
    one_hot = np.eye(4)[_LABELS]
    apart = _LABELS[partner] != _LABELS
    share = targets[np.arange(96), _LABELS[partner]][apart]
    assert np.all((share >= 0) & (share <= 0.5))
    assert len(np.unique(share)) > apart.sum() * 0.8
    expected = (1 - share[:, None]) * one_hot[apart] + share[:, None] * one_hot[partner][apart]
    np.testing.assert_allclose(targets[apart], expected, atol=1e-6)
    share = share[:, None, None, None]
    pixels = (1 - share) * _IMAGES[apart] + share * _IMAGES[partner][apart]
    np.testing.assert_allclose(mixed[apart], pixels, atol=0.51)
    np.testing.assert_allclose(targets[~apart], one_hot[~apart], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 4.0])
def test_mixup_shares_are_quantiles_of_the_beta_distribution(alpha):
    drawn = np.random.default_rng(0).beta(alpha, alpha, 400_000)
    expected = np.quantile(np.minimum(drawn, 1 - drawn), (np.arange(1024) + 0.5) / 1024)
    np.testing.assert_allclose(mixup_shares(alpha), expected, atol=0.004)


def test_smoothed_labels_give_the_loss_of_keras():
    import keras

    _, targets = _augment(TrainParams("digits_cnn", label_smoothing=0.1))
    np.testing.assert_allclose(targets, 0.9 * np.eye(4)[_LABELS] + 0.025, atol=1e-6)
    guesses = np.random.default_rng(1).dirichlet(np.ones(4), 96).astype(np.float32)
    expected = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)(np.eye(4)[_LABELS], guesses)
    assert float(keras.losses.CategoricalCrossentropy()(targets, guesses)) == pytest.approx(float(expected), rel=1e-5)


def test_what_is_drawn_depends_on_seed_and_step_alone():
    settings = TrainParams("digits_cnn", random_flip="horizontal", random_crop_pixels=2, mixup_alpha=0.2)
    one, same = _augment(settings), _augment(settings)
    assert np.array_equal(one[0], same[0])
    assert np.array_equal(one[1], same[1])
    for seed, step in ((1, 3), (2, 2)):
        assert not np.array_equal(one[0], _augment(settings, seed, step)[0])


_WITH_JAX = """
import sys
from tpu_components.core.machines import device
device.prepare("jax", "cpu", 1, "float32")
import numpy as np
from tests.components.core.models.training_step import test_augmentation as tests
for check in (
    lambda: tests.test_each_image_is_flipped_by_chance_of_its_own("horizontal_and_vertical", [(), (0,), (1,), (0, 1)]),
    tests.test_crops_move_an_image_both_ways_and_mirror_its_edge,
    tests.test_a_crop_and_a_flip_are_one_of_the_flipped_images_crops,
    tests.test_a_part_is_resized_to_the_whole_as_pillow_does,
    lambda: tests.test_mixup_mixes_images_and_labels_of_one_group_alike(4),
    tests.test_smoothed_labels_give_the_loss_of_keras,
    tests.test_what_is_drawn_depends_on_seed_and_step_alone,
):
    check()
print("all hold")
"""


@pytest.mark.heavy  # A process that imports both backends: 5 s.
def test_all_of_it_holds_with_jax(run_with_jax):
    assert run_with_jax(_WITH_JAX).strip() == "all hold"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"random_flip": "sideways"}, "none, horizontal, vertical, horizontal_and_vertical.*random_flip='sideways'"),
        ({"random_crop_pixels": -1}, "random_crop_pixels=-1"),
        ({"random_resized_crop": 1.5}, "from 0 to 1. Received: random_resized_crop=1.5"),
        ({"mixup_alpha": -0.1}, r"mixup_alpha=-0\.1"),
        ({"mixup_alpha": float("nan")}, "mixup_alpha=nan"),
        ({"mixup_alpha": 11.0}, r"mixup_alpha=11\.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1\.0"),
        ({"label_smoothing": -0.1}, r"label_smoothing=-0\.1"),
    ],
)
def test_a_value_out_of_range_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        TrainParams("digits_cnn", **changes)


def test_what_cannot_be_augmented_is_named():
    check_augmentation(TrainParams("digits_cnn", label_smoothing=0.1), (None, 250), CLASSIFICATION)
    with pytest.raises(InputError, match=r"apply only to images\. Received: a model with the input \(None, 250\)"):
        check_augmentation(TrainParams("digits_cnn", mixup_alpha=0.2), (None, 250), CLASSIFICATION)
    check_augmentation(TrainParams("digits_cnn", random_crop_pixels=7), (None, 8, 9, 1), CLASSIFICATION)
    with pytest.raises(InputError, match="random_crop_pixels=8 for images of 8×9 pixels"):
        check_augmentation(TrainParams("digits_cnn", random_crop_pixels=8), (None, 8, 9, 1), CLASSIFICATION)

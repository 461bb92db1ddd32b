"""An evaluation says how the model does on parts of the examples."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.components.judging import decide_on, said
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.interface import Classification, MultiLabel, Regression
from tpu_components.core.examples.records import read_batches
from tpu_components.core.examples.slice_values import load_groups, load_slices
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.evaluate_model.evaluation import check_slices
from tpu_components.evaluate_model.slices import find_slices

_FIGURES = {"accuracy": 0.9}


def _classes(labels, *answers, **properties):
    """Return examples of three classes, and what the model and the champion answer."""
    outputs = np.stack([np.eye(3, dtype=np.float32)[answer] for answer in answers])
    return GroundTruth(Classification(), labels, ("cat", "dog", "fox"), properties=properties), outputs


def _broken_cats():
    """A model that is better by 10 points in the mean, and has lost 30 points of the cats."""
    labels = np.repeat([0, 1, 2], 300)
    champion, model = labels.copy(), labels.copy()
    champion[300:] = np.where(np.arange(600) % 4 == 0, 0, labels[300:])
    model[:300] = np.where(np.arange(300) % 10 < 3, 1, 0)
    return _classes(labels, model, champion)


def test_a_better_mean_hides_no_class_that_broke():
    params = EvaluateParams(max_regression={})
    slices = find_slices(params, *_broken_cats())
    assert [(part.by, part.name, part.num_examples, part.metric) for part in slices] == [
        ("class", name, 300, "accuracy") for name in ("cat", "dog", "fox")
    ]
    assert (slices[0].value, slices[0].champion) == (0.7, 1.0)
    decision = decide_on(params, _FIGURES, _FIGURES, slices=slices)
    assert not decision.promote
    assert said(decision) == (
        "failed: accuracy 0.7000 of class 'cat' (300 examples) is worse than the champion's 1.0000 by more than 0.0500"
        ", with 95% confidence in all 3 slices",
    )
    allowed = dataclasses.replace(params, max_slice_regression=0.31)
    assert said(decide_on(allowed, _FIGURES, _FIGURES, slices=slices)) == (
        "passed: no slice is worse than the champion's by more than 0.3100, with 95% confidence in all 3 slices",
    )


def test_a_slice_below_its_minimum_is_named_and_one_that_chance_may_have_put_there_is_not():
    params = EvaluateParams(slice_minimum=0.8)
    decision = decide_on(params, _FIGURES, slices=find_slices(params, *_broken_cats()))
    assert said(decision)[1] == (
        "failed: accuracy 0.7000 of class 'cat' (300 examples) is below the minimum of slices, 0.8000, "
        "with 95% confidence in all 3 slices"
    )
    labels = np.repeat([0, 1], [10, 300])
    few = _classes(labels, np.where(np.arange(310) < 3, 1, labels))
    assert said(decide_on(params, _FIGURES, slices=find_slices(params, *few)))[1] == (
        "passed: no slice is below the minimum of slices, 0.8000, with 95% confidence in all 2 slices"
    )


def test_of_equal_models_with_three_classes_one_in_twenty_seems_to_have_broken_one():
    generator, refused = np.random.default_rng(0), 0
    params = EvaluateParams(max_regression={}, max_slice_regression=0.0)
    labels = np.repeat(np.arange(3), 200)
    for _ in range(400):
        answers = [np.where(generator.random(600) < 0.1, (labels + 1) % 3, labels) for _ in range(2)]
        slices = find_slices(params, *_classes(labels, *answers))
        refused += not decide_on(params, _FIGURES, _FIGURES, slices=slices).promote
    assert 0 < refused / 400 <= 0.05 + 3.1 * np.sqrt(0.05 * 0.95 / 400)


def test_without_confidence_slices_are_compared_as_they_are():
    params = EvaluateParams(max_regression={}, confidence=0.5, max_slice_regression=0.3)
    slices = find_slices(params, *_broken_cats())
    assert slices[0].difference.most == pytest.approx(-0.3)
    assert decide_on(params, _FIGURES, _FIGURES, slices=slices).promote
    stricter = dataclasses.replace(params, max_slice_regression=0.299)
    assert not decide_on(stricter, _FIGURES, _FIGURES, slices=slices).promote


def test_many_slices_that_broke_are_counted():
    labels = np.repeat(np.arange(8), 100)
    outputs = np.stack([np.eye(8, dtype=np.float32)[answer] for answer in ((labels + 1) % 8, labels)])
    params = EvaluateParams(max_regression={})
    decision = decide_on(
        params,
        _FIGURES,
        _FIGURES,
        slices=find_slices(params, GroundTruth(Classification(), labels, "abcdefgh"), outputs),
    )
    assert len(said(decision)) == 6
    assert said(decision)[-1] == "failed: 3 more slices fail"


def test_a_label_is_judged_by_its_f1_and_texts_by_their_length():
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 0]], np.float32)
    outputs = np.array([[[0.9, 0.1], [0.2, 0.8], [0.1, 0.1], [0.9, 0.2]]], np.float32)
    lengths = {"length": np.array([5, 9, 2, 7])}
    truth = GroundTruth(MultiLabel(), labels, ("hot", "sour"), properties=lengths)
    params = EvaluateParams(slices=("class", "length"))
    slices = find_slices(params, truth, outputs)
    assert [(part.name, part.num_examples, part.metric, part.value) for part in slices[:2]] == [
        ("hot", 2, "micro_f1", 0.5),
        ("sour", 1, "micro_f1", 1.0),
    ]
    assert [part.name for part in slices[2:]] == [f"{n} to {n} tokens" for n in (2, 5, 7, 9)]


def test_a_regression_is_judged_by_the_loss_of_its_slices():
    lengths = {"length": np.repeat([3, 8], 20)}
    truth = GroundTruth(Regression((0.0,), (1.0,)), np.zeros((40, 1)), ("price",), properties=lengths)
    outputs = np.stack([np.where(np.arange(40) < 20, 0.0, 1.0 + np.arange(40) / 100)[:, None], np.zeros((40, 1))])
    params = EvaluateParams(slices=("length",), max_regression={})
    slices = find_slices(params, truth, outputs)
    assert [part.metric for part in slices] == ["loss", "loss"]
    decision = decide_on(params, {"loss": 1}, {"loss": 1}, slices=slices)
    assert "of length '8 to 8 tokens' (20 examples) is worse than the champion's 0.0000" in said(decision)[0]
    assert find_slices(EvaluateParams(), truth, outputs) == ()


def test_what_the_examples_cannot_be_divided_by_is_refused(digits_records):
    manifest = Manifest.load(digits_records)
    check_slices(EvaluateParams(), manifest, digits_records)
    with pytest.raises(InputError, match=r"into slices by 'clas': expected one of class.*Did you mean 'class'"):
        check_slices(EvaluateParams(slices=("clas",)), manifest, digits_records)
    with pytest.raises(InputError, match="'length'"):
        check_slices(EvaluateParams(slices=("length",)), manifest, digits_records)
    with pytest.raises(
        InputError, match=r"slice_minimum=0\.5 is not supported for a regression, which has no accuracy or F1"
    ):
        EvaluateParams(max_regression={}, slice_minimum=0.5).check_task("regression")
    for changes in ({"slice_minimum": 1.5}, {"slice_minimum": -1}, {"max_slice_regression": -0.1}):
        with pytest.raises(InputError, match="=".join(map(str, next(iter(changes.items()))))):
            EvaluateParams(**changes)


def test_examples_are_divided_by_a_column_that_the_records_keep(tmp_path):
    rows = [f"film {i},{'pos' if i % 2 else 'neg'},{'berlin' if i % 3 else ''}" for i in range(60)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label,site", *rows]))
    params = WriteParams(f"csv:{tmp_path}/films.csv", slice_columns=("site",), num_workers=1, num_tokens=4)
    write_records(params, tmp_path / "records")
    assert load_groups(tmp_path / "records", "test") is None
    manifest = Manifest.load(tmp_path / "records")
    asked = EvaluateParams(slices=("site",))
    check_slices(asked, manifest, tmp_path / "records")
    batches = read_batches(tmp_path / "records", manifest, "test", 8, with_keys=True).as_numpy_iterator()
    fields = [text for batch in batches for text in batch["text"]]
    sites = load_slices(tmp_path / "records", "test")
    expected = ["berlin" if int(text.split()[1]) % 3 else "" for text in fields]
    assert sites["site"].tolist() == expected, "in stored order"
    labels = np.zeros(len(expected), int)
    outputs = np.eye(2, dtype=np.float32)[labels][None]
    truth = GroundTruth(Classification(), labels, ("neg", "pos"), properties=sites)
    slices = find_slices(asked, truth, outputs)
    assert [(part.by, part.name, part.num_examples) for part in slices] == [
        ("site", name, expected.count(name)) for name in ("", "berlin")
    ]
    with pytest.raises(InputError, match=r"name it in data\.slice_columns"):
        check_slices(EvaluateParams(slices=("city",)), manifest, tmp_path / "records")
    (tmp_path / "records" / "slices.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"slices\.npz: expected the slice values that create_tfrecords wrote"):
        load_slices(tmp_path / "records", "test")


def test_the_groups_of_a_column_are_kept_beside_the_records(tmp_path):
    rows = [f"film {i},{'pos' if i % 2 else 'neg'},director {i // 6:02d}" for i in range(120)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label,director", *rows]))
    params = WriteParams(f"csv:{tmp_path}/films.csv", group_column="director", num_workers=1, num_tokens=4)
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    for split, described in manifest.splits.items():
        batches = read_batches(tmp_path / "records", manifest, split, 8, with_keys=True).as_numpy_iterator()
        directors = [int(text.split()[1]) // 6 for batch in batches for text in batch["text"]]
        assert load_groups(tmp_path / "records", split).tolist() == directors, "in stored order"
        assert set(described.independence) == {"classes", "words", "unknown_share", "word_length"}
    assert load_slices(tmp_path / "records", "test") == {}


@pytest.fixture
def photos(tmp_path, image_folder) -> Path:
    """Records of photos of seven sizes, some of them copies in another format, and one that is damaged."""
    folder = image_folder(per_class=30, size=(64, 64))
    for i, path in enumerate(sorted(folder.glob("*/*"))):
        with Image.open(path) as original:
            picture = original.resize((16 + 16 * (i % 7), 20))
        picture.save(path)
        if i < 12:
            picture.save(path.with_suffix(".webp"), lossless=True)
    (folder / "cat" / "damaged.png").write_bytes(b"no image")
    params = WriteParams(f"images:{folder}", image_size=(8, 8), max_bad_fraction=0.1, num_workers=1)
    write_records(params, tmp_path / "records")
    assert json.loads((tmp_path / "records" / "copies.json").read_text())["exact"] == 12
    return tmp_path / "records"


def _num_pixels(path):
    with Image.open(path) as picture:
        return picture.height * picture.width


def test_pictures_are_divided_into_quarters_by_the_size_of_their_files(photos):
    manifest = Manifest.load(photos)
    for split in manifest.splits:
        batches = read_batches(photos, manifest, split, 8, with_keys=True).as_numpy_iterator()
        keys = [key.decode() for batch in batches for key in batch["key"]]
        folder = Path(manifest.source.removeprefix("images:"))
        expected = [_num_pixels(folder / key) for key in keys]
        sizes = load_slices(photos, split)["size"]
        assert sizes.tolist() == expected, "in stored order"
    asked = EvaluateParams(slices=("size",), split="train")
    check_slices(asked, manifest, photos)
    sizes = load_slices(photos, "train")
    labels = np.zeros(len(sizes["size"]), int)
    truth = GroundTruth(Classification(), labels, manifest.class_names, properties=sizes)
    slices = find_slices(asked, truth, np.eye(2, dtype=np.float32)[labels][None])
    bounds = [re.fullmatch(r"([\d,]+) to ([\d,]+) pixels", part.name).groups() for part in slices]
    bounds = [[int(bound.replace(",", "")) for bound in pair] for pair in bounds]
    assert [part.num_examples for part in slices] == [
        np.count_nonzero((sizes["size"] >= least) & (sizes["size"] <= most)) for least, most in bounds
    ]
    assert len(bounds) == 4
    assert sum(part.num_examples for part in slices) == len(labels)


def test_pictures_of_one_size_are_one_slice_and_records_without_sizes_are_to_be_written_again(digits_records, tmp_path):
    manifest = Manifest.load(digits_records)
    asked = EvaluateParams(slices=("size",))
    check_slices(asked, manifest, digits_records)
    labels = np.zeros(manifest.splits["test"].num_examples, int)
    outputs = np.eye(10, dtype=np.float32)[labels][None]
    sizes = load_slices(digits_records, "test")
    truth = GroundTruth(Classification(), labels, manifest.class_names, properties=sizes)
    slices = find_slices(asked, truth, outputs)
    assert [(part.name, part.num_examples) for part in slices] == [("64 to 64 pixels", len(labels))]
    with pytest.raises(
        InputError, match=r"by 'size': .* written by an earlier version, .*\. Run create_tfrecords again"
    ):
        check_slices(asked, manifest, tmp_path)


def test_a_column_called_like_a_property_is_the_column():
    scored = _classes(np.zeros(3, int), [0, 1, 0], size=np.array(["S", "XL", "S"]))
    slices = find_slices(EvaluateParams(slices=("size",)), *scored)
    assert [(part.name, part.num_examples, part.value) for part in slices] == [("S", 2, 1.0), ("XL", 1, 0.0)]


def test_a_column_for_slices_has_to_be_there(tmp_path):
    (tmp_path / "films.csv").write_text("text,label\na film,pos\n")
    for source, message in (
        (f"csv:{tmp_path}/films.csv", "Missing columns"),
        ("sklearn:digits", "requires a csv:, .* source"),
    ):
        with pytest.raises(InputError, match=message):
            write_records(WriteParams(source, slice_columns=("site",), num_workers=1), tmp_path / "records")

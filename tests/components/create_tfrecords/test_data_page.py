import dataclasses

import numpy as np
import pytest

from tests.support.browser import assert_opens, needs_browser
from tests.support.html_page import Page
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records
from tpu_components.create_tfrecords.data_page import choose_samples, render_page

NO_COPIES = {"exact": 0, "near": 0, "left_out": 0, "contradictory": 0, "across_splits": 0, "sets": []}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Records of pictures of two classes, one of them damaged and two of them equal under several labels."""
    from PIL import Image

    root = tmp_path_factory.mktemp("page")
    draw = np.random.default_rng(0)
    for number in range(40):
        path = root / "data" / ("cat", "<b>dog\u202e</b>".replace("/", "|"))[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8))
        coarse.resize((100, 120), Image.Resampling.BICUBIC).save(path)
    copied = (root / "data" / "cat" / "0.png").read_bytes()
    (root / "data" / "<b>dog\u202e<|b>" / "copy.png").write_bytes(copied)
    (root / "data" / "cat" / "damaged.png").write_bytes(copied[:200])
    params = WriteParams(f"images:{root}/data", image_size=(32, 32), max_bad_fraction=0.1, num_workers=1)
    write_records(params, root / "records")
    return root / "records"


def test_the_page_shows_balance_figures_samples_copies_and_what_was_set_aside(written):
    text = (written / "data.html").read_text()
    page = Page(text)
    words = " ".join(page.words)
    for said in ("Classes, largest first", "brightness", "sharpness", "Samples", "Quarantined", "damaged.png"):
        assert said in words
    assert "several labels" in words
    assert "copy.png" in words
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 12
    assert all(picture["src"].startswith("data:image/") for picture in pictures)
    assert len(text) < 200_000


def test_the_page_holds_no_markup_of_strangers_and_needs_nothing_else(written):
    text = (written / "data.html").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;dog\\u202e" in text
    assert not [value for name in ("src", "href") for value in Page(text).values(name) if not value.startswith("data:")]
    assert "<script" not in text


def test_the_page_is_replaced_with_its_records(written, tmp_path):
    params = WriteParams("sklearn:digits", num_workers=1, seed=1)
    for _ in range(2):
        write_records(params, tmp_path / "records")
    assert (tmp_path / "records" / "data.html").is_file()


def test_many_classes_are_shown_at_both_ends(written):
    manifest = Manifest.load(written)
    count = 1000
    splits = {
        name: dataclasses.replace(split, class_counts=tuple(range(count))) for name, split in manifest.splits.items()
    }
    names = tuple(f"class {i}" for i in range(count))
    text = render_page(dataclasses.replace(manifest, class_names=names, splits=splits), NO_COPIES, {})
    assert "The largest and the smallest of 1,000 classes." in text
    assert 'title="class 999"' in text
    assert 'title="class 0"' in text
    assert 'title="class 500"' not in text


def test_figures_of_a_sample_say_so_and_classes_without_a_sample_are_left_out(written):
    manifest = Manifest.load(written)
    assert "chosen by their hashes" not in render_page(manifest, NO_COPIES, {})
    splits = {}
    for name, split in manifest.splits.items():
        labels = dataclasses.replace(split.distributions["width"], num_examples=10 * split.num_examples)
        figures = {**split.distributions, "labels": labels}
        splits[name] = dataclasses.replace(split, num_examples=10 * split.num_examples, distributions=figures)
    assert "chosen by their hashes" in render_page(dataclasses.replace(manifest, splits=splits), NO_COPIES, {})
    params = WriteParams(f"images:{written.parent}/data", image_size=(32, 32), max_bad_fraction=0.1)
    plan = plan_dataset(params)
    damaged = np.array([[key.endswith("damaged.png") for key in plan.listing.keys].index(True)])
    assert choose_samples(plan, {"train": damaged}) == {}


def test_texts_and_targets_have_their_own_figures(review_records, tmp_path):
    page = (review_records / "data.html").read_text()
    assert "unknown share" in page
    assert "<blockquote" in page
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", x=images, y=np.arange(40) / 4)
    params = WriteParams(f"npz:{tmp_path}/x.npz", task="regression", num_workers=1)
    write_records(params, tmp_path / "records")
    page = (tmp_path / "records" / "data.html").read_text()
    assert "<h2><bdi>Targets</bdi></h2>" in page
    assert "target from" in page


@needs_browser
@pytest.mark.slow  # Starts a browser.
def test_a_browser_has_nothing_to_complain_of(written, tmp_path):
    assert_opens(written / "data.html", tmp_path)

"""Claims about texts as a source: folders, CSV files and Keras's reviews become records of ids."""

import csv
import json
import random

import numpy as np
import pytest

from tests.components.create_tfrecords.engines.cases import same_files
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.text import load_vocabulary
from tpu_components.core.sources.kinds import list_examples
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records

TRAIN = {"good": ["a fine fine film", "fine film, fine"], "poor": ["a dull film", "dull dull <br /> dull"]}
TEST = {"good": ["fine unheard-of words"], "poor": ["a dull film"]}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "reviews"
    for split, classes in {"train": TRAIN, "test": TEST}.items():
        for name, texts in classes.items():
            (root / split / name).mkdir(parents=True)
            for i, text in enumerate(texts):
                (root / split / name / f"{i}.txt").write_text(text)
    return root


def _write(source, output, **params):
    params = {"validation_fraction": 0, "num_tokens": 4, "vocabulary_size": 6, "num_workers": 1, **params}
    write_records(WriteParams(source, **params), output)
    return Manifest.load(output)


def _ids(directory, manifest, split):
    examples = records.load_split(directory, manifest, split, with_keys=True)
    return dict(zip(examples.keys, examples.inputs.tolist(), strict=True))


def test_folder_of_texts_becomes_ids_of_the_training_splits_words(folder, tmp_path):
    manifest = _write(f"text:{folder}", tmp_path / "out")
    assert (manifest.class_names, manifest.task, manifest.input.kind) == (("good", "poor"), "classification", "text")
    # dull and fine stand there four times each, film thrice, a twice.
    assert load_vocabulary(tmp_path / "out", manifest.input) == (b"dull", b"fine", b"film", b"a")
    assert _ids(tmp_path / "out", manifest, "train") == {
        "train/good/0.txt": [5, 3, 3, 4],
        "train/good/1.txt": [0, 3, 4, 3],
        "train/poor/0.txt": [0, 5, 2, 4],
        "train/poor/1.txt": [0, 2, 2, 2],
    }
    assert _ids(tmp_path / "out", manifest, "test")["test/good/0.txt"] == [3, 1, 1, 1]


def test_the_film_reviews_are_taken_as_their_archive_holds_them(folder, tmp_path, capsys):
    for name in ("README", "imdb.vocab", "train/urls_good.txt", "train/labeledBow.feat", "test/urls_poor.txt"):
        (folder / name).write_text("no review")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("nobody knows")
    with pytest.raises(InputError, match=r"Classes without test examples in .*: 'unsup'.*name the classes"):
        _write(f"text:{folder}", tmp_path / "out")
    manifest = _write(f"text:{folder}", tmp_path / "out", class_names=("good", "poor"))
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {"train": 4, "test": 2}
    said = capsys.readouterr().err
    assert "left out 5 files that are not in a class folder" in said
    assert "left out 1 files in 'unsup'" in said


def test_records_hold_the_text_itself(folder, tmp_path):
    manifest = _write(f"text:{folder}", tmp_path / "out")
    texts = records.pick_texts(tmp_path / "out", manifest, "test", [0, 1])
    assert set(texts.values()) == {"fine unheard-of words", "a dull film"}


def test_what_was_done_to_the_texts_is_counted_and_said(folder, tmp_path, capfd):
    manifest = _write(f"text:{folder}", tmp_path / "out", num_tokens=3)
    assert manifest.splits["train"].statistics == {
        "num_truncated": 1,
        "num_padded": 0,
        "num_tokens": 12,
        "num_unknown": 0,
    }
    test = manifest.splits["test"].statistics
    assert test == {
        "num_truncated": 1,
        "num_padded": 0,
        "num_tokens": 6,
        "num_unknown": 3,
        "num_also_in_train": 1,
    }
    said = capfd.readouterr().err
    assert "Texts with more than 3 tokens keep only their last 3 tokens" in said
    assert "test: 1 of 2 texts truncated, 0 padded, 50.00% of the kept tokens unknown" in said
    assert "1 of 2 texts in test have an exact or near copy in train, so the metrics will be too high" in said


def test_words_of_the_test_split_are_not_learned(folder, tmp_path):
    manifest = _write(f"text:{folder}", tmp_path / "out", vocabulary_size=100)
    assert b"unheard" not in load_vocabulary(tmp_path / "out", manifest.input)
    assert manifest.input.vocabulary_size == 100  # As asked for: a model's shape does not follow the data.


def test_texts_without_words_and_those_that_are_no_text_are_set_aside(folder, tmp_path):
    (folder / "train" / "good" / "empty.txt").write_text(" !\n")
    (folder / "train" / "good" / "latin.txt").write_bytes("caf\xe9 fine".encode("latin-1"))
    with pytest.raises(InputError, match=r"2 of 8 inputs are unreadable: .*no word in it"):
        _write(f"text:{folder}", tmp_path / "no")
    manifest = _write(f"text:{folder}", tmp_path / "out", max_bad_fraction=0.3)
    assert {item.key: item.reason for item in manifest.quarantined} == {
        "train/good/empty.txt": "no word in it",
        "train/good/latin.txt": "not UTF-8: invalid continuation byte at byte 3",
    }


def test_any_number_of_workers_writes_the_same_bytes(tmp_path):
    root = tmp_path / "many"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for i in range(700):  # More than a worker takes at a time.
            (root / name / f"{i}.txt").write_text(f"word{i} {name} common")
    one = _write(f"text:{root}", tmp_path / "one", vocabulary_size=1000)
    two = _write(f"text:{root}", tmp_path / "two", vocabulary_size=1000, num_workers=2)
    assert one == two
    assert same_files(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("change", [{"truncate": "end"}, {"num_tokens": 5}, {"vocabulary_size": 5}])
def test_another_rule_gives_another_fingerprint(folder, tmp_path, change):
    first = _write(f"text:{folder}", tmp_path / "one")
    assert _write(f"text:{folder}", tmp_path / "two", **change).fingerprint != first.fingerprint


def _table(path, texts):
    """A table of texts of two classes, which are drawn to splits."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *([text, f"class {i % 2}"] for i, text in enumerate(texts))])
    return f"csv:{path}"


def _reviews(separator):
    """Reviews of four words and a number, with a separator between them."""
    words = ["电影", "演员", "剧情", "音乐", "很好", "糟糕", "精彩", "无聊"]
    return [separator.join([*random.Random(i).sample(words, 4), f"第{i}"]) for i in range(120)]


_DRAWN = {"validation_fraction": 0.2, "test_fraction": 0.3, "num_tokens": 16, "vocabulary_size": 500}


@pytest.mark.parametrize("separator", ["", "，", "\u3000", "\u00a0"])
def test_words_of_the_test_split_are_known_whatever_separates_them(separator, tmp_path, capsys):
    source = _table(tmp_path / "reviews.csv", _reviews(separator))
    for rule, is_known in (("words_and_characters", True), ("words", False)):
        manifest = _write(source, tmp_path / rule, tokenization=rule, **_DRAWN)
        assert manifest.input.tokenization == rule
        statistics = manifest.splits["test"].statistics
        assert (statistics["num_unknown"] < 0.2 * statistics["num_tokens"]) == is_known
        warning = "of the words in test are unknown, because the rule data.tokenization=words does not split texts such"
        assert (warning in capsys.readouterr().err) != is_known


@pytest.mark.parametrize("rule", ["words_and_characters", "unicode_words"])
def test_no_rule_changes_the_split_of_an_example(rule, tmp_path):
    texts = [*_reviews("，"), *_reviews("，")[:20], *(f"Café, número {i % 40}" for i in range(60))]
    texts += [text.replace("，", "。") for text in _reviews("，")[20:40]]  # Copies only by the new rules.
    source = _table(tmp_path / "reviews.csv", texts)
    keys = {}
    for name in ("words", rule):
        manifest = _write(source, tmp_path / name, tokenization=name, **_DRAWN)
        keys[name] = {split: sorted(_ids(tmp_path / name, manifest, split)) for split in manifest.splits}
    assert keys["words"] == keys[rule]
    assert min(map(len, keys[rule].values())) > 10


@pytest.mark.parametrize(
    ("texts", "change", "cause"),
    [
        ([f"unique{i}" for i in range(60)], {}, "most texts are a single word such as 'unique"),
        ([f"one{i} two{i} three{i}" for i in range(60)], {}, "they do not occur in the training texts. Check that"),
        (
            [f"one{i} two{i} a" for i in range(60)],
            {"vocabulary_size": 4},
            "only the 2 most frequent words of the train",
        ),
    ],
)
def test_the_cause_of_unknown_words_is_named(texts, change, cause, tmp_path, capsys):
    _write(_table(tmp_path / "reviews.csv", texts), tmp_path / "out", **{**_DRAWN, **change})
    assert f"of the words in test are unknown, because {cause}" in capsys.readouterr().err


def test_csv_with_texts(tmp_path):
    with open(tmp_path / "reviews.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "split"])
        for split, classes in {"train": TRAIN, "test": TEST}.items():
            writer.writerows([text, name, split] for name, texts in classes.items() for text in texts)
        writer.writerow(['long, "quoted"\n' + "word " * 50_000, "good", "test"])
    manifest = _write(f"csv:{tmp_path}/reviews.csv", tmp_path / "out")
    ids = _ids(tmp_path / "out", manifest, "train")
    assert ids["line/00000002"] == [5, 3, 3, 4]
    assert manifest.splits["test"].num_examples == 3


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_a_corpus_has_a_task_of_its_own(tmp_path, task):
    (tmp_path / "text.txt").write_text("words and words")
    with pytest.raises(InputError, match=f"task='{task}' requires a csv:, .* npz:, .* source"):
        plan_dataset(WriteParams(f"corpus:{tmp_path}/text.txt", task=task))


def test_keras_reviews_are_put_back_into_words(monkeypatch):
    from keras.datasets import imdb

    train = np.array([[1, 4, 5], [1, 6, 2]], object), np.array([1, 0])
    test = np.array([[1, 4]], object), np.array([1])
    monkeypatch.setattr(imdb, "load_data", lambda: (train, test))
    monkeypatch.setattr(imdb, "get_word_index", lambda: {"the": 1, "film": 2, "it's": 3})
    listing = list_examples(WriteParams("keras:imdb"))
    assert list(listing.texts) == [b"the film", b"it's", b"the"]
    assert (listing.class_names, listing.labels.tolist()) == (("neg", "pos"), [1, 0, 1])
    assert listing.splits.tolist() == ["train", "train", "test"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 2}, "vocabulary_size must be at least 3.*vocabulary_size=2"),
        ({"num_tokens": 0}, "num_tokens must be at least 1. Received: num_tokens=0"),
        ({"truncate": "middle"}, "truncate must be one of start, end. Received: truncate='middle'"),
        ({"image_size": (8, 8)}, r"image_size does not apply to texts. Received: image_size=\(8, 8\) with 'text:"),
    ],
)
def test_unfit_parameters_are_refused(folder, tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        _write(f"text:{folder}", tmp_path / "out", **change)


def test_what_is_for_texts_is_refused_for_images(tmp_path):
    with pytest.raises(InputError, match=r"truncate does not apply to images. Received: truncate='end' with "):
        write_records(WriteParams("sklearn:digits", truncate="end"), tmp_path / "out")


def test_manifest_names_the_fields_of_a_record(folder, tmp_path):
    _write(f"text:{folder}", tmp_path / "out")
    raw = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert raw["features"] == {"tokens": "bytes", "text": "bytes", "label": "int64", "key": "bytes"}
    assert (raw["input"], raw["num_tokens"], raw["truncate"]) == ("text", 4, "start")
    assert raw["tokenization"] == "words_and_characters"

"""A corpus is written and read in windows of tokens."""

import dataclasses

import numpy as np
import pytest

from tests.components.corpora import TEXT, corpus_params
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.generation import Alphabet
from tpu_components.core.examples.interface import PADDING, UNKNOWN
from tpu_components.core.files import storage
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records


def written(params, directory):
    write_records(params, directory)
    return Manifest.load(directory)


@pytest.mark.parametrize(("num_tokens", "context_tokens"), [(16, 0), (16, 8), (16, 15), (7, 3), (1, 0), (5000, 10)])
def test_every_character_of_every_split_is_predicted_exactly_once(tmp_path, num_tokens, context_tokens):
    params = corpus_params(tmp_path, num_tokens=num_tokens, context_tokens=context_tokens)
    listing = plan_dataset(params).listing
    corpus = listing.corpus
    seen = {split: np.zeros(len(ids), int) for split, ids in corpus.ids.items()}
    for example, (split, count) in enumerate(zip(listing.splits, listing.labels, strict=True)):
        end = corpus.ends[example]
        start = end - count
        assert 0 < count <= num_tokens
        seen[split][start:end] += 1
        # What stands before it in the split is what it reads.
        known = corpus.ids[split][max(end - num_tokens - 1, 0) : end]
        passage = corpus.passage(split, example)
        assert len(passage) == num_tokens + 1
        assert np.array_equal(passage[len(passage) - len(known) :], known)
        assert not passage[: len(passage) - len(known)].any()
    assert all((counts == 1).all() for counts in seen.values())
    assert sum(map(len, seen.values())) == len(TEXT)


def test_records_give_the_text_back_and_each_target_is_the_next_character(tmp_path):
    params = corpus_params(tmp_path)
    manifest = written(params, tmp_path / "records")
    alphabet, text = Alphabet(manifest.class_names), ""
    for split in ("train", "validation", "test"):
        examples = records.load_split(tmp_path / "records", manifest, split, with_keys=True)
        assert examples.inputs.shape == examples.labels.shape == (manifest.splits[split].num_examples, 16)
        counts = examples.labels != PADDING
        # A passage's own characters, one on: the input at a place is the target at the place before.
        assert np.array_equal(examples.labels[:, :-1][counts[:, :-1]], examples.inputs[:, 1:][counts[:, :-1]])
        assert manifest.splits[split].statistics["num_characters"] == counts.sum()
        class_counts = np.bincount(examples.labels[counts], minlength=len(manifest.class_names))
        assert np.array_equal(manifest.splits[split].class_counts, class_counts)
        assert examples.keys[0] == f"characters {len(text)}-{len(text) + 16}"
        text += alphabet.decode(examples.labels[counts].tolist())
    assert text == TEXT


def test_splits_follow_each_other_and_test_passages_read_what_stands_before_them(tmp_path):
    params = corpus_params(tmp_path, test_fraction=0.25, validation_fraction=0.1, context_tokens=8)
    manifest = written(params, tmp_path / "records")
    size = len(TEXT)
    ends = [size - round(size * 0.25) - round(size * 0.1), size - round(size * 0.25), size]
    assert manifest.split_rule == (
        f"by position: train 0 to {ends[0]:,}, validation {ends[0]:,} to {ends[1]:,}, test {ends[1]:,} to {size:,}"
    )
    train = records.load_split(tmp_path / "records", manifest, "train")
    test = records.load_split(tmp_path / "records", manifest, "test")
    assert (train.labels[:-1] != PADDING).all()  # In training nothing is read twice but by the last passage.
    assert ((test.labels[1:-1] != PADDING).sum(1) == 8).all()
    assert (test.labels[1:-1, 8:] != PADDING).all()
    assert (test.inputs[0, 0], (test.labels[0] != PADDING).all()) == (PADDING, True)


def test_the_vocabulary_is_of_the_training_split_alone(tmp_path):
    text = "abab" * 100 + "éé" + "ab" * 20  # Only the last tenth has the é.
    manifest = written(corpus_params(tmp_path, text, test_fraction=0.1), tmp_path / "records")
    assert manifest.class_names == ("[PAD]", "[UNK]", "a", "b")
    assert [manifest.splits[name].statistics["num_unknown"] for name in ("train", "validation", "test")] == [0, 0, 2]
    assert (records.load_split(tmp_path / "records", manifest, "test").labels == UNKNOWN).sum() == 2


def test_the_same_text_gives_the_same_records_in_shards_of_any_size(tmp_path):
    params = corpus_params(tmp_path, TEXT * 120)
    one = write_records(params, tmp_path / "one")
    many = write_records(dataclasses.replace(params, target_shard_mib=1, num_workers=2), tmp_path / "many")
    other = write_records(dataclasses.replace(params, context_tokens=4), tmp_path / "other")
    assert many.num_shards > one.num_shards == 3
    assert one.fingerprint == many.fingerprint != other.fingerprint
    again = write_records(params, tmp_path / "one")
    assert again == one


def test_a_corpus_in_a_bucket_gives_the_same_records(tmp_path, bucket):
    params = corpus_params(tmp_path)
    local = write_records(params, tmp_path / "local")
    storage.upload(tmp_path, "gs://bucket/plays")
    remote = write_records(dataclasses.replace(params, source="corpus:gs://bucket/plays/text.txt"), tmp_path / "remote")
    assert remote.fingerprint == local.fingerprint


def test_a_changed_character_changes_the_data_version(tmp_path):
    before = plan_dataset(corpus_params(tmp_path)).listing
    after = plan_dataset(corpus_params(tmp_path, TEXT[:-1] + "!")).listing
    assert before.content_digest() != after.content_digest()
    assert before.stat_digest() != after.stat_digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "a" * 500}, r"two different characters to train on. Received: \['a'\] in the first 350 "),
        ({"text": "abc"}, r"The 'validation' split is empty: .*text.txt has 3 characters, and this split gets 0.1"),
        ({"channels": 3}, r"channels does not apply to a corpus. Received: channels=3 with 'corpus:"),
        ({"class_names": ("a", "b")}, r"class_names does not apply to a corpus. Received: class_names=\('a', 'b'\)"),
        ({"vocabulary_size": 99}, r"vocabulary_size does not apply to a corpus. Received: vocabulary_size=99"),
        ({"group_column": "act"}, r"group_column='act' requires a csv:, .* source"),
        ({"context_tokens": 16}, r"below num_tokens=16. Received: context_tokens=16"),
        ({"num_tokens": 0, "context_tokens": 0}, r"num_tokens must be at least 1. Received: num_tokens=0"),
    ],
)
def test_what_cannot_be_a_corpus_is_refused_in_words(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        plan_dataset(corpus_params(tmp_path, **changes))


def test_a_corpus_that_is_not_utf8_or_not_there_is_refused(tmp_path):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 500)
    with pytest.raises(InputError, match=r"latin.txt: expected text in UTF-8, received .*0xe9 in position 0"):
        plan_dataset(WriteParams(f"corpus:{tmp_path}/latin.txt"))
    with pytest.raises(InputError, match=r"nowhere.txt"):
        plan_dataset(WriteParams(f"corpus:{tmp_path}/nowhere.txt"))


@pytest.mark.parametrize("size", [60, 300, 600])
def test_a_split_shorter_than_a_passage_is_one_passage(tmp_path, size):
    params = corpus_params(tmp_path, text=(TEXT * 2)[:size], num_tokens=128, context_tokens=64)
    manifest = written(params, tmp_path / "records")
    assert manifest.splits["test"].num_examples == 1
    assert manifest.splits["validation"].num_examples == 1


def test_only_a_corpus_has_context():
    with pytest.raises(InputError, match=r"context_tokens=8 requires a corpus: source. Received: 'sklearn:digits'"):
        plan_dataset(WriteParams("sklearn:digits", context_tokens=8))

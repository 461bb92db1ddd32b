import re

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.sources.containers import list_containers
from tpu_components.core.sources.kinds import SOURCES, find_location, find_source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.predict_batch import PredictParams

# Text, kind and place.
REFS = {
    "images:/data/flowers": ("images", "/data/flowers"),
    "images:~/flowers/": ("images", "~/flowers/"),
    "images://data/flowers": ("images", "//data/flowers"),
    "csv:gs://bucket/a b@c:d.csv": ("csv", "gs://bucket/a b@c:d.csv"),
    "images:/data/10:30/x": ("images", "/data/10:30/x"),
    "parquet:s3://bucket/train-*.parquet": ("parquet", "s3://bucket/train-*.parquet"),
    "tfrecords:hf://datasets/me/x@main": ("tfrecords", "hf://datasets/me/x@main"),
    "huggingface:me/flowers:small": ("huggingface", "me/flowers:small"),
    "keras:mnist": ("keras", "mnist"),
    "imges:x": ("imges", "x"),
    "csv:": ("csv", ""),
    "csv:a\nb": ("csv", "a\nb"),
    "gs://bucket/flowers": ("", "gs://bucket/flowers"),
    "S3://bucket/flowers": ("", "S3://bucket/flowers"),
    "/data/10:30/x": ("", "/data/10:30/x"),
    "~/flowers": ("", "~/flowers"),
    ":x": ("", ":x"),
    "": ("", ""),
}


@pytest.mark.parametrize("text", REFS)
def test_a_source_has_a_kind_and_a_place_and_is_written_as_it_was_read(text):
    ref = SourceRef.parse(text)
    assert (ref.kind, ref.place) == REFS[text]
    assert isinstance(ref.place, Location)
    assert str(ref) == text
    assert ref == SourceRef.parse(str(ref))


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_is_found_by_its_form(kind):
    assert find_source(SourceRef.parse(SOURCES[kind].form)) is SOURCES[kind]


def test_the_location_of_a_source_is_where_its_data_lie():
    assert find_location(SourceRef.parse("csv:gs://bucket/list.csv")).scheme is Scheme.GOOGLE
    hub = find_location(SourceRef.parse("huggingface:me/flowers:small"))
    assert (hub.scheme, hub.key) == (Scheme.HUGGING_FACE, "me/flowers@refs/convert/parquet")
    assert find_location(SourceRef.parse("keras:mnist")) == ""


@pytest.mark.parametrize("kind", [WriteParams, PredictParams])
def test_parameters_offer_their_source_as_a_value_and_keep_its_text(kind):
    params = kind("images:gs://bucket/flowers")
    assert params.source_ref is params.source_ref
    assert str(params.source_ref) == params.source
    assert params == kind("images:gs://bucket/flowers"), "a value that was asked for changes nothing"


def test_a_source_without_a_known_kind_names_the_nearest(tmp_path):
    advice = {
        "imges:x": "Did you mean 'images'",
        str(tmp_path): f"Did you mean images:{tmp_path}",
        "csv:": "has no location: expected csv:FILE",
        "gs://bucket/x": "Did you mean images:gs://bucket/x, or text:gs://bucket/x?",
        "photos": "Did you mean images:photos, or text:photos?",
        "s3://bucket/List.CSV": "Did you mean csv:s3://bucket/List.CSV?",
        "gs://bucket/train-*.tfrecord": "Did you mean tfrecords:gs://bucket/train-*.tfrecord?",
        "a/b.tar": "Did you mean webdataset:a/b.tar?",
        "kera": "Did you mean 'keras'?",
    }
    for text, words in advice.items():
        with pytest.raises(InputError, match=re.escape(words)):
            find_source(SourceRef.parse(text))


@pytest.mark.parametrize(
    "pattern", ["{}/train-*.tar", "{}/*/a.tar", "{}/[tx]rain-0.tar", "{}//train-?.tar", "train-*.tar", "./train-*.tar"]
)
def test_a_pattern_names_the_files_below_the_folder_before_its_first_wildcard(pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    for name in ("train-0.tar", "test-0.tar", "train/a.tar"):
        (tmp_path / name).write_bytes(b"")
    expected = "train/a.tar" if "*/a" in pattern else "train-0.tar"
    (found,) = list_containers(Location(pattern.format(tmp_path)), (".tar",))
    assert (tmp_path / found.path).samefile(tmp_path / expected)
    assert found.name == expected


def test_a_pattern_may_not_be_in_the_name_of_a_bucket():
    with pytest.raises(InputError, match="expected the name of a bucket"):
        list_containers(Location("gs://buck*/x.tar"), (".tar",))

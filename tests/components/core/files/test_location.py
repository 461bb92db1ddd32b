import copy
import json
import os
import pickle
from pathlib import Path

import pytest

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location, Scheme

# Text; scheme, bucket and key of a URI, or None for a path; name and parent.
PLACES = {
    "gs://bucket/data/list.csv": ((Scheme.GOOGLE, "bucket", "data/list.csv"), "list.csv", "gs://bucket/data"),
    "gs://bucket/data/": ((Scheme.GOOGLE, "bucket", "data/"), "data", "gs://bucket"),
    "gs://bucket/data//": ((Scheme.GOOGLE, "bucket", "data//"), "data", "gs://bucket"),
    "gs://bucket/a//b": ((Scheme.GOOGLE, "bucket", "a//b"), "b", "gs://bucket/a/"),
    "gs://bucket//a": ((Scheme.GOOGLE, "bucket", "/a"), "a", "gs://bucket/"),
    "gs://bucket": ((Scheme.GOOGLE, "bucket", ""), "", "gs://bucket"),
    "gs://bucket/": ((Scheme.GOOGLE, "bucket", ""), "", "gs://bucket"),
    "GS://bucket/x": ((Scheme.GOOGLE, "bucket", "x"), "x", "GS://bucket"),
    "s3://My_Bucket/a b/c@d:e.png": ((Scheme.S3, "My_Bucket", "a b/c@d:e.png"), "c@d:e.png", "s3://My_Bucket/a b"),
    "s3://bucket/a://b": ((Scheme.S3, "bucket", "a://b"), "b", "s3://bucket/a:/"),
    "s3://bucket/line\nfeed": ((Scheme.S3, "bucket", "line\nfeed"), "line\nfeed", "s3://bucket"),
    "hf://datasets/me/flowers@refs/convert/parquet": (
        (Scheme.HUGGING_FACE, "datasets", "me/flowers@refs/convert/parquet"),
        "parquet",
        "hf://datasets/me/flowers@refs/convert",
    ),
    "/data/flowers": (None, "flowers", "/data"),
    "/data/flowers/": (None, "flowers", "/data"),
    "/data": (None, "data", "/"),
    "/": (None, "", "/"),
    "list.csv": (None, "list.csv", "."),
    "./list.csv": (None, "list.csv", "."),
    "../list.csv": (None, "list.csv", ".."),
    "~/data": (None, "data", "~"),
    "a b@c:d.csv": (None, "a b@c:d.csv", "."),
    "/data/10:30/x": (None, "x", "/data/10:30"),
    "gs:/bucket/x": (None, "x", "gs:/bucket"),
    "/data/gs://x": (None, "x", "/data/gs:/"),
    "C://data": (None, "data", "C:/"),
    "größe/日本": (None, "日本", "größe"),
    "": (None, "", "."),
}


@pytest.mark.parametrize("text", PLACES)
def test_a_location_has_the_parts_of_its_text(text):
    uri, name, parent = PLACES[text]
    place = Location(text)
    assert (place.is_remote, place.is_path) == (uri is not None, uri is None)
    assert (place.name, place.parent) == (name, parent)
    assert (place.scheme, place.key) == ((uri[0], uri[2]) if uri else (None, ""))
    if uri:
        assert place.bucket == uri[1]


@pytest.mark.parametrize("text", PLACES)
def test_a_location_is_its_text_wherever_it_is_stored_or_hashed(text):
    place = Location(text)
    _ = place.scheme, place.is_path
    assert place == text
    assert (str(place), f"{place}", repr(place)) == (text, text, repr(text))
    assert type(str(place)) is str
    assert json.dumps({"place": place}) == json.dumps({"place": text})
    assert digest_of([place]) == digest_of([text])
    assert {place: 1}[text] == 1
    for same in (pickle.loads(pickle.dumps(place)), copy.deepcopy(place), Location(place)):
        assert (type(same), same, same.scheme) == (Location, text, place.scheme)


@pytest.mark.parametrize("text", ["/data/x", "data/x", "x", "./x", "a/b/"])
def test_name_and_parent_of_a_path_are_those_of_the_standard_library(text):
    assert Location(text).name == Path(text).name
    assert Path(Location(text).parent) == Path(text).parent


@pytest.mark.parametrize("text", ["file:///data/x", "https://example.com/x", "minio://bucket/x", "gcs://bucket/x"])
def test_a_uri_of_no_object_store_is_neither_remote_nor_a_path(text, tmp_path, monkeypatch):
    """As a path, each would be a new folder named after the scheme."""
    monkeypatch.chdir(tmp_path)
    place = Location(text)
    assert (place.is_remote, place.is_path, place.scheme) == (False, False, None)
    expected = "expected a path on this machine, or a URI that begins with gs://, s3://, hf://"
    for use in (storage.read_bytes, storage.exists, storage.list_files, lambda uri: storage.write_file(uri, b"")):
        with pytest.raises(InputError, match=expected):
            use(text)
    with pytest.raises(InputError, match=expected), storage.staged_directory(text):
        pass
    assert os.listdir() == []


@pytest.mark.parametrize("uri", ["gs://bucket/data", "file:///data"])
def test_a_uri_is_refused_where_a_path_is_expected(uri):
    with pytest.raises(InputError, match="expected a path on this machine, received a URI"):
        Location(uri).as_path()
    assert Location("~/a b").as_path() == Path("~/a b")


@pytest.mark.parametrize("uri", ["gs://", "s3:///data", "GS:///x", "minio://"])
def test_a_uri_without_a_bucket_says_so_where_the_bucket_is_used(uri):
    scheme = uri[: uri.index("://") + 3]
    with pytest.raises(InputError, match=f"expected {scheme}BUCKET/PATH, received no bucket name"):
        _ = Location(uri).bucket


@pytest.mark.parametrize(
    ("text", "folder"), [("/data//", "/data"), ("/", "/"), ("", ""), ("gs://b/a//", "gs://b/a"), ("a", "a")]
)
def test_a_folder_has_no_slash_at_its_end(text, folder):
    assert Location(text).folder == folder


@pytest.mark.parametrize("root", ["/data", "/data/", "gs://bucket/data", "gs://bucket/data/"])
def test_a_child_stays_below_its_folder(root):
    place = Location(root)
    assert place.child("a/b.png") == f"{root.rstrip('/')}/a/b.png"
    assert place.child("a").child("b c").parent.parent == place.folder
    for name in ("../x", "a/../../x", "/etc/passwd", ".."):
        with pytest.raises(InputError, match=f"Cannot use the path '{name}': expected a path below '{root}'"):
            place.child(name)
    with pytest.raises(InputError, match=r"Cannot use the path 'a\\x00b': .*NUL"):
        place.child("a\0b")

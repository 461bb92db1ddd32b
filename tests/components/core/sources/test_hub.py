"""Data sets of the Hugging Face hub, from a server that answers as the hub does.

Its rules are those that the hub's own client relies on, huggingface_hub 2.4: `HfApi.repo_info` (`/revision/`),
`HfApi.list_repo_tree` (`/tree/`), `hf_hub_url` (`/resolve/`) and, for errors, `hf_raise_for_status` (`X-Error-Code`).
"""

import functools
import http.server
import json
import threading
import urllib.parse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfFileSystem, constants

from tests.support.pictures import encoded
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.kinds import find_location, list_examples, source_version
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef

REPOSITORY = "someone/reviews"
BRANCH = "refs/convert/parquet"


class Hub(http.server.BaseHTTPRequestHandler):
    """One data set; every third request fails if `fails` says so."""

    protocol_version = "HTTP/1.1"

    def __init__(self, root, fails, *arguments):
        self.root, self.fails = root, fails
        super().__init__(*arguments)

    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.fails():
            return self.answer(503)
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if REPOSITORY not in path:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if BRANCH not in path:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        below = self.root / path.partition(BRANCH)[2].strip("/")
        if "/resolve/" in path:
            content = below.read_bytes()
            start, _, end = self.headers.get("Range", f"bytes=0-{len(content) - 1}")[6:].partition("-")
            part = content[int(start) : int(end) + 1]
            return self.answer(206, part, Content_Range=f"bytes {start}-{end}/{len(content)}")
        if "/tree/" in path:
            entries = [self.entry(entry) for entry in sorted(below.rglob("*"))]
            return self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
        said = json.dumps({"id": REPOSITORY, "sha": "0" * 40, "siblings": [], "tags": []})
        return self.answer(200, said.encode(), Content_Type="application/json")

    def entry(self, path):
        kind = {"type": "directory"} if path.is_dir() else {"type": "file", "size": path.stat().st_size}
        return {"path": path.relative_to(self.root).as_posix(), "oid": f"{path.stat().st_mtime_ns:x}", **kind}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return the folder that is served, and a list of whether each next request fails."""
    failing = []
    fails = lambda: failing.pop(0) if failing else False  # noqa: E731
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, tmp_path / "hub", fails))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    HfFileSystem.clear_instance_cache()
    yield tmp_path / "hub", failing
    HfFileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


def write_table(path, columns, features):
    """Write Parquet with the metadata that datasets 5.2 writes (`ArrowWriter._build_metadata`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    HfFileSystem.clear_instance_cache()  # Which keeps what it has listed.


def classes(*names):
    return {"names": list(names), "_type": "ClassLabel"}


TEXTS = {"text": {"dtype": "string", "_type": "Value"}, "label": classes("neg", "pos")}


def write_reviews(hub, config="plain_text"):
    for split, count in {"train": 20, "test": 8}.items():
        columns = {"text": [f"{split} text {i}" for i in range(count)], "label": [i % 2 for i in range(count)]}
        write_table(hub / config / split / "0000.parquet", columns, TEXTS)
    unsupervised = {"text": ["one", "two"], "label": [-1, -1]}
    write_table(hub / config / "unsupervised" / "0000.parquet", unsupervised, TEXTS)


def error_of(function, *arguments):
    with pytest.raises(InputError) as error:
        function(*arguments)
    return str(error.value)


def listed(source=f"huggingface:{REPOSITORY}", **values):
    return list_examples(WriteParams(source, **values))


def test_texts_have_the_names_of_their_classes_and_their_own_splits(hub):
    write_reviews(hub[0])
    listing = listed()
    assert listing.class_names == ("neg", "pos")
    assert np.array(listing.labels).tolist() == [i % 2 for i in range(8)] + [i % 2 for i in range(20)]
    assert listing.splits.tolist() == ["test"] * 8 + ["train"] * 20
    assert bytes(listing.read(0)) == b"test text 0"
    assert (
        listing.notes[0]
        == "the split 'unsupervised' is left out, because it is not a training, validation or test split"
    )


def test_a_part_of_a_split_is_that_split_and_it_is_said(hub):
    write_reviews(hub[0])
    (hub[0] / "plain_text" / "train").rename(hub[0] / "plain_text" / "partial-train")
    listing = listed()
    assert listing.splits.tolist() == ["train"] * 20 + ["test"] * 8
    assert "the hub has only a part of the split 'partial-train' as Parquet" in listing.notes


def test_a_split_whose_labels_are_kept_back_is_left_out(hub):
    write_reviews(hub[0])
    write_table(
        hub[0] / "plain_text" / "validation" / "0000.parquet",
        {"text": ["a", "b"], "label": [-1, -1]},
        TEXTS,
    )
    listing = listed()
    assert "validation" not in listing.splits
    assert "the split 'validation' is left out, because it has no labels" in listing.notes


def test_images_are_read_as_the_hub_holds_them(hub):
    images = [encoded(np.full((4, 4, 3), value, np.uint8)) for value in range(6)]
    write_table(
        hub[0] / "default" / "train" / "0000.parquet",
        {"img": [{"bytes": image, "path": None} for image in images], "fine_label": [2, 0, 2, 0, 2, 0]},
        {"img": {"_type": "Image"}, "fine_label": classes("cat", "never", "ant")},
    )
    listing = listed()
    assert listing.class_names == ("cat", "ant"), "in the data set's order; a class that has no example is none"
    assert np.array(listing.labels).tolist() == [1, 0, 1, 0, 1, 0]
    assert [listing.read(i) for i in range(6)] == images


def test_lists_of_classes_are_several_labels(hub):
    columns = {"text": ["a", "b", "c"], "label": [[0, 2], [1], []]}
    for feature in ({"feature": classes("x", "y", "z"), "_type": "List"}, [classes("x", "y", "z")]):
        write_table(hub[0] / "default" / "train" / "0.parquet", columns, {"label": feature})
        listing = listed(task="multi_label")
        assert (listing.class_names, listing.labels.tolist()) == (("x", "y", "z"), [[1, 0, 1], [0, 1, 0], [0, 0, 0]])


def test_every_third_request_may_fail(hub, monkeypatch):
    write_reviews(hub[0])
    whole = listed()
    monkeypatch.setattr("time.sleep", lambda _: None)  # Before each retry: a second.
    HfFileSystem.clear_instance_cache()
    hub[1][:] = [True, False, False] * 4
    assert listed().stat_digest() == whole.stat_digest()
    assert len(hub[1]) < 12, "requests failed"


def test_data_that_changed_have_another_version(hub):
    write_reviews(hub[0])
    params = WriteParams(f"huggingface:{REPOSITORY}")
    before = source_version(params)
    write_reviews(hub[0])
    assert source_version(params) != before


def test_configurations_are_named_where_one_must_be_chosen(hub):
    for config in ("cola", "sst2"):
        write_reviews(hub[0], config)
    assert len(listed(f"huggingface:{REPOSITORY}:sst2").keys) == 28
    said = error_of(listed)
    assert "expected one of its configurations, 'cola', 'sst2', received 'default'" in said


def test_what_is_not_there_is_an_error_of_the_user(hub):
    hub[0].mkdir()
    assert "has no such data set, revision or file" in error_of(listed, "huggingface:someone/other")
    assert "has no such data set" in error_of(listed, "huggingface:alone")
    assert "not supported" in error_of(storage.write_file, f"hf://datasets/{REPOSITORY}/a", b"")


def test_the_same_files_here_give_the_same_examples(hub, tmp_path):
    write_reviews(hub[0])
    there, here = (
        listed(f"parquet:{find_location(SourceRef('huggingface', Location(REPOSITORY)))}/plain_text/train"),
        listed(f"parquet:{hub[0]}/plain_text/train"),
    )
    assert list(there.texts) == list(here.texts)
    assert (there.labels.tolist(), there.class_names) == (here.labels.tolist(), here.class_names)


@pytest.mark.parametrize("source", ["csv:{}/a.csv", "corpus:{}/a.txt", "npz:{}/a.npz", "labelstudio:{}/a.json"])
def test_a_file_that_the_hub_says_is_larger_than_the_memory_is_refused_before_it_is_read(hub, monkeypatch, source):
    folder, _ = hub
    before = Hub.entry

    def claim(self, path):
        return before(self, path) | ({"size": 10**18} if path.is_file() else {})

    monkeypatch.setattr(Hub, "entry", claim)
    for name in ("a.csv", "a.txt", "a.npz", "a.json"):
        (folder / "d").mkdir(parents=True, exist_ok=True)
        (folder / "d" / name).write_text("text,label\nhello,a\n")
    place = f"hf://datasets/{REPOSITORY}@{urllib.parse.quote(BRANCH, safe='')}/d"
    said = error_of(list_examples, WriteParams(source.format(place)))
    assert said.startswith("Cannot read 'hf://datasets/someone/reviews")
    assert "its size, 909,495 TiB, is larger than this machine's memory (" in said, said


def test_a_file_that_the_hub_says_is_larger_than_the_disk_is_not_downloaded(hub, monkeypatch, tmp_path):
    folder, _ = hub
    before = Hub.entry
    monkeypatch.setattr(Hub, "entry", lambda self, path: {**before(self, path), "size": 10**18})
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "a.bin").write_bytes(b"abc")
    place = f"hf://datasets/{REPOSITORY}@{urllib.parse.quote(BRANCH, safe='')}/d"
    assert "larger than the free disk space (" in error_of(storage.localize, place, tmp_path / "cache")

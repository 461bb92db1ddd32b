"""Claims about files, on disk and on gs:// (the real client against a local server)."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.auth.exceptions import RefreshError, TransportError

from tests.support.pictures import encode_picture
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import object_stores, storage
from tpu_components.create_tfrecords import WriteParams, write_records

FILES = {"a.txt": b"alpha", "sub/b.txt": b"beta" * 1000, "sub/deep/c.txt": b""}


def _fill(root: Path) -> Path:
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def _contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# Reading from a disk


def test_list_files_gives_names_and_sizes_sorted(tmp_path):
    found = storage.list_files(str(_fill(tmp_path)))
    assert [(file.name, file.num_bytes) for file in found] == [("a.txt", 5), ("sub/b.txt", 4000), ("sub/deep/c.txt", 0)]


def test_list_files_versions_change_with_the_file(tmp_path):
    _fill(tmp_path)
    before = storage.list_files(str(tmp_path))
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    after = storage.list_files(str(tmp_path))
    assert [one.version == two.version for one, two in zip(before, after, strict=True)] == [False, True, True]


def test_list_files_leaves_out_hidden_files_and_folders(tmp_path):
    _fill(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x").write_bytes(b"x")
    (tmp_path / "sub" / ".x").write_bytes(b"x")
    assert [file.name for file in storage.list_files(str(tmp_path))] == sorted(FILES)


def test_list_files_lists_a_broken_link_as_missing(tmp_path):
    _fill(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    assert storage.StoredFile("broken", 0, "missing") in storage.list_files(str(tmp_path))


def test_list_files_refuses_a_file_a_missing_and_an_empty_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("file", "Cannot list .*file'"),
        ("none", "Cannot list .*none'"),
        ("empty", "Found no files in"),
    ):
        with pytest.raises(InputError, match=f"{message}.*Check the path"):
            storage.list_files(str(tmp_path / name))


def test_read_bytes_gives_the_content(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    assert storage.read_bytes(str(tmp_path / "x")) == b"content"


def test_read_bytes_refuses_what_is_missing_or_no_file(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("none", "file/below", "loop", "x" * 300):
        with pytest.raises(InputError, match=f"Cannot read '{tmp_path}/{name}': there is no such file. Check the path"):
            storage.read_bytes(str(tmp_path / name))
    for name in ("", "/pipe"):
        with pytest.raises(InputError, match=rf"Cannot read '{tmp_path}{name}': expected a file, received a folder"):
            storage.read_bytes(f"{tmp_path}{name}")


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user whom file modes bind; this is root")
def test_read_bytes_and_list_files_refuse_what_may_not_be_read(tmp_path):
    _fill(tmp_path)
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(InputError, match=r"a.txt': permission denied"):
        storage.read_bytes(str(tmp_path / "a.txt"))
    (tmp_path / "sub").chmod(0)
    with pytest.raises(InputError, match=r"sub': permission denied"):
        storage.list_files(str(tmp_path))
    (tmp_path / "sub").chmod(0o755)


def test_localize_leaves_a_local_path_alone(tmp_path):
    assert storage.localize(str(tmp_path), tmp_path / "cache") == tmp_path
    assert not (tmp_path / "cache").exists()


# Writing: whole or not at all


def test_write_bytes_makes_folders_and_a_file_that_others_may_read(tmp_path):
    storage.write_bytes(tmp_path / "new" / "x", b"content")
    assert (tmp_path / "new" / "x").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "new" / "x").stat().st_mode) == 0o644
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"]


def test_write_bytes_that_fails_leaves_the_old_content_and_no_scrap(tmp_path, monkeypatch):
    storage.write_bytes(tmp_path / "x", b"old")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        storage.write_bytes(tmp_path / "x", b"new")
    assert _contents(tmp_path) == {"x": b"old"}


def test_write_bytes_names_a_full_disk(tmp_path, monkeypatch):
    def fail(_: int) -> None:
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=r"Could not write .*/x: the disk is full .*unchanged. Free some space"):
        storage.write_bytes(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


def test_write_json_refuses_numbers_that_are_not_finite(tmp_path):
    storage.write_json(tmp_path / "x.json", {"loss": 1.5})
    assert (tmp_path / "x.json").read_text() == '{\n  "loss": 1.5\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant: nan"):
        storage.write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert (tmp_path / "x.json").read_text() == '{\n  "loss": 1.5\n}\n'


@pytest.mark.parametrize("existing", [False, True])
def test_staged_directory_appears_whole_at_the_end(tmp_path, existing):
    final = tmp_path / "parent" / "final"
    if existing:
        storage.write_bytes(final / "old", b"old")
    with storage.staged_directory(final) as staged:
        (staged / "new").write_bytes(b"new")
        assert final.exists() == existing
    assert _contents(final) == {"new": b"new"}
    assert stat.S_IMODE(final.stat().st_mode) == 0o755
    assert [path.name for path in final.parent.iterdir()] == ["final"]


@pytest.mark.parametrize("error", [ValueError("mistake"), KeyboardInterrupt("stop"), OSError(5, "Input/output error")])
def test_staged_directory_keeps_the_old_content_when_the_block_fails(tmp_path, error):
    storage.write_bytes(tmp_path / "final" / "old", b"old")

    def fail_in_mid_write() -> None:
        with storage.staged_directory(tmp_path / "final") as staged:
            (staged / "new").write_bytes(b"new")
            raise error

    with pytest.raises(type(error), match=r"mistake|stop|Input"):
        fail_in_mid_write()
    assert _contents(tmp_path) == {"final/old": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize("number", [28, 122])
def test_staged_directory_names_a_full_disk(tmp_path, number):
    message = rf"Could not write {tmp_path}/final: the disk is full \([\d,]+ MiB free\)"
    with pytest.raises(InputError, match=message), storage.staged_directory(tmp_path / "final"):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_replace_directory_that_fails_keeps_the_old_content(tmp_path):
    storage.write_bytes(tmp_path / "final" / "old", b"old")
    with pytest.raises(FileNotFoundError, match="none"):
        storage.replace_directory(tmp_path / "none", tmp_path / "final")
    assert _contents(tmp_path) == {"final/old": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_link_tree_copies_without_taking_room(tmp_path):
    _fill(tmp_path / "source")
    storage.write_bytes(tmp_path / "target" / "old", b"old")
    storage.link_tree(tmp_path / "source", tmp_path / "target")
    assert _contents(tmp_path / "target") == FILES
    assert os.path.samefile(tmp_path / "source" / "a.txt", tmp_path / "target" / "a.txt")


def test_link_tree_copies_where_links_are_refused(tmp_path, monkeypatch):
    def refuse(*_: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    storage.link_tree(_fill(tmp_path / "source"), tmp_path / "target")
    assert _contents(tmp_path / "target") == FILES
    assert not os.path.samefile(tmp_path / "source" / "a.txt", tmp_path / "target" / "a.txt")


def test_link_tree_that_fails_keeps_the_old_content(tmp_path):
    storage.write_bytes(tmp_path / "target" / "old", b"old")
    with pytest.raises(FileNotFoundError, match="none"):
        storage.link_tree(tmp_path / "none", tmp_path / "target")
    assert _contents(tmp_path) == {"target/old": b"old"}


def test_on_a_mounted_bucket_the_disk_that_stages_the_files_is_what_can_be_full(tmp_path, monkeypatch):
    """GCSFuse says of its own disk what no disk has; what is written there lies on the machine's own first.

    Here both are one disk, as in a pod: it has to hold the files twice.
    """
    mount, local = tmp_path / "gcs", tmp_path / "local"
    mount.mkdir()
    local.mkdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage, "BUCKETS_MOUNT", mount)
    monkeypatch.setattr(tempfile, "tempdir", str(local))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=1 << (60 if Path(path).is_relative_to(mount) else 20))
    )
    records = mount / "bucket" / "records"
    storage.require_free_bytes(records, 1 << 19)
    with pytest.raises(InputError, match=rf"Cannot write to {records}: expected at least 2 MiB .* in {local}, where"):
        storage.require_free_bytes(records, 1 << 20)
    with (
        pytest.raises(InputError, match=rf"the disk is full \(1 MiB free in {local}\)"),
        storage.naming_full_disk(records),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_require_free_bytes_compares_with_the_disk_of_a_folder_to_come(tmp_path):
    storage.require_free_bytes(tmp_path / "not" / "yet", 1)
    with pytest.raises(InputError, match=r"Cannot write to .*not/yet: expected at least 1,099,511,627,776 MiB of free"):
        storage.require_free_bytes(tmp_path / "not" / "yet", 1 << 60)


# gs://


def test_localize_takes_a_whole_bucket_and_upload_fills_one(bucket, tmp_path):
    storage.upload(_fill(tmp_path / "here"), "gs://bucket")
    assert _contents(storage.localize("gs://bucket", tmp_path / "cache")) == FILES


def test_localize_refuses_object_names_that_climb_out(bucket, storage_server, tmp_path):
    bucket.blob("data/x.txt").upload_from_string("evil")
    # Cloud Storage allows such names; the emulator refuses them.
    objects = storage_server._storage.objects["bucket"]  # noqa: SLF001
    objects["data/../../x.txt"] = {**objects.pop("data/x.txt"), "name": "data/../../x.txt"}
    with pytest.raises(InputError, match=r"Cannot use the path '../../x.txt': expected a path below"):
        storage.localize("gs://bucket/data", tmp_path / "cache")
    assert not list(tmp_path.rglob("x.txt"))


def test_upload_refuses_nothing_to_upload(tmp_path):
    with pytest.raises(InputError, match=f"Cannot upload {tmp_path}/none: expected a file or a folder with files"):
        storage.upload(tmp_path / "none", "gs://bucket/x")


def test_what_is_missing_on_a_bucket_is_refused_by_name(bucket, tmp_path):
    with pytest.raises(InputError, match=r"'gs://bucket/none': there is no such file, folder or bucket \(.*\). Check"):
        storage.read_bytes("gs://bucket/none")
    with pytest.raises(InputError, match="Found no files in 'gs://bucket/none'"):
        storage.list_files("gs://bucket/none")
    with pytest.raises(InputError, match="Cannot read 'gs://bucket/none': there is no such file or folder"):
        storage.localize("gs://bucket/none", tmp_path)
    with pytest.raises(InputError, match="'gs://no-bucket/x': there is no such file, folder or bucket"):
        storage.list_files("gs://no-bucket/x")
    with pytest.raises(InputError, match="Cannot use 'gs://': expected gs://BUCKET/PATH, received no bucket name"):
        storage.read_bytes("gs://")


def test_missing_credentials_are_named_with_the_way_out(monkeypatch, tmp_path, request):
    object_stores.google_client.cache_clear()
    request.addfinalizer(object_stores.google_client.cache_clear)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(
        InputError, match=r"there are no Google Cloud credentials. Run `gcloud auth application-default login`"
    ):
        storage.read_bytes("gs://bucket/x")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (exceptions.Forbidden("no role"), InputError, r"Cloud Storage denied access \(no role\)"),
        (exceptions.BadRequest("Invalid name"), InputError, r"Cloud Storage rejected the request \(Invalid name"),
        (RefreshError("invalid_grant"), InputError, r"sign-in .* no longer valid \(invalid_grant\).*gcloud auth"),
        (exceptions.ServiceUnavailable("try later"), PlatformError, r"does not respond .*try later"),
        (TransportError("no route"), PlatformError, r"does not respond .*no route"),
    ],
)
def test_what_the_service_says_is_no_stack_trace(bucket, monkeypatch, error, kind, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(type(bucket), "list_blobs", fail)
    monkeypatch.setattr(type(bucket.client), "list_blobs", fail)
    with pytest.raises(kind, match=words):
        storage.list_files("gs://bucket/a")


def test_what_is_no_name_of_a_bucket_is_refused(bucket):
    with pytest.raises(InputError, match=r"expected the name of a bucket, .* Received: 'My_Bucket!'"):
        storage.read_bytes("gs://My_Bucket!/x")


def test_one_client_serves_all_reads(bucket):
    store = object_stores.GoogleStorage()
    assert store.bucket("one").client is store.bucket("other").client


# Records from a bucket


@pytest.fixture
def pictures(bucket, tmp_path) -> Path:
    """A local folder of pictures, and the same on gs://bucket/pictures."""
    folder = tmp_path / "pictures"
    for number, name in enumerate(("cat", "dog")):
        for i in range(10):
            storage.write_bytes(folder / name / f"{i}.png", encode_picture(100 * number + i))
    rows = "".join(f"{name}/{i}.png,{name}\n" for name in ("cat", "dog") for i in range(10))
    storage.upload(folder, "gs://bucket/pictures")
    storage.write_bytes(tmp_path / "labels.csv", ("path,label\n" + rows).encode())
    return folder


@pytest.mark.parametrize("slash", ["", "/"])
def test_create_tfrecords_reads_images_from_a_bucket(pictures, tmp_path, slash):
    local = write_records(WriteParams(f"images:{pictures}"), tmp_path / "local")
    remote = write_records(WriteParams(f"images:gs://bucket/pictures{slash}"), tmp_path / "remote")
    assert remote == local
    shards = [{p.name: p.read_bytes() for p in (tmp_path / name).glob("*.tfrecord")} for name in ("local", "remote")]
    assert shards[0] == shards[1]
    assert Manifest.load(tmp_path / "remote").source == f"images:gs://bucket/pictures{slash}"


def test_create_tfrecords_reads_a_csv_from_a_bucket(pictures, bucket, tmp_path):
    rows = (tmp_path / "labels.csv").read_text() + "cat/gone.png,cat\n"
    bucket.blob("pictures/labels.csv").upload_from_string(rows)
    (pictures / "labels.csv").write_text(rows)
    params = WriteParams(f"csv:{pictures}/labels.csv", max_bad_fraction=0.1)
    local = write_records(params, tmp_path / "local")
    remote = write_records(
        WriteParams("csv:gs://bucket/pictures/labels.csv", max_bad_fraction=0.1), tmp_path / "remote"
    )
    assert remote == local
    assert remote.num_quarantined == 1
    (item,) = Manifest.load(tmp_path / "remote").quarantined
    assert item.reason.startswith("Cannot use 'gs://bucket/pictures/cat/gone.png': there is no such file")


def test_on_a_mounted_bucket_a_folder_is_copied_and_its_description_comes_last(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BUCKETS_MOUNT", tmp_path)
    order = []
    copy = shutil.copyfile
    monkeypatch.setattr(
        shutil, "copyfile", lambda source, target: (order.append(Path(target).name), copy(source, target))
    )
    final = tmp_path / "bucket" / "records"
    with storage.staged_directory(final) as staged:
        assert not staged.is_relative_to(tmp_path)
        (staged / "dataset.json").write_text("{}")
        (staged / "deep").mkdir()
        (staged / "deep" / "z.json").write_text("1")
        (staged / "zz.tfrecord").write_text("2")
    assert order[-1] == "dataset.json"
    assert sorted(path.name for path in final.rglob("*") if path.is_file()) == ["dataset.json", "z.json", "zz.tfrecord"]


def test_a_lock_is_held_by_one_and_changes_no_file(tmp_path):
    path = tmp_path / "lock"
    path.write_text("somebody's")
    with storage.locked(path), pytest.raises(BlockingIOError), storage.locked(path, wait=False):
        pass
    with storage.locked(path, wait=False):
        assert path.read_text() == "somebody's"


@pytest.mark.parametrize("target", ["theirs", "missing"])
def test_a_lock_that_is_a_link_is_refused(tmp_path, target):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "lock").symlink_to(tmp_path / target)
    expected = pytest.raises(InputError, match=r"Cannot lock .*lock: expected a file, received a symbolic link")
    with expected, storage.locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_new_file_is_not_what_a_link_points_at(tmp_path, link):
    (tmp_path / "theirs").write_text("theirs")
    link(tmp_path / "theirs", tmp_path / "run.log")
    with storage.new_file(tmp_path / "run.log") as file:
        file.write("ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "run.log").read_text() == "ours"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "Disable slist on flush dest failure failed (file write failed: errno = 28, error message = 'No')"
        ),
        OSError("320 requested and 0 written"),
    ],
)
def test_a_full_disk_is_said_in_words_where_a_library_gives_its_number_in_the_message_or_not_at_all(error):
    """HDF5 and NumPy's tofile."""
    with pytest.raises(InputError, match="the disk is full"), storage.naming_faults():
        raise error
    with pytest.raises(RuntimeError, match="something else"), storage.naming_faults():
        raise RuntimeError("something else")


def test_a_fault_that_a_library_meets_again_while_it_frees_a_file_is_not_printed(monkeypatch):
    class Freed:
        def __init__(self, error):
            self.error = error

        def __del__(self):
            raise self.error

    said = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))
    with storage.naming_faults():
        Freed(RuntimeError("Can't decrement id ref count (file write failed: errno = 28)"))
        Freed(RuntimeError("another one"))
    assert said == ["another one"]


def test_a_disk_that_cannot_be_read_is_said_in_words():
    said = r"Cannot read or write a\.png: input/output error\. Check the disk"
    with pytest.raises(PlatformError, match=said), storage.naming_faults():
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a.png")

"""Data that somebody writes to while they are read are refused, by every engine and for every kind of source."""

import os
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.create_tfrecords import WriteParams, source_version, write_records
from tpu_components.create_tfrecords.engines import fan_out
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.preparing import prepare
from tpu_components.create_tfrecords.writer import write_prepared
from tpu_pipelines.pipeline.cache_keys import data_version

_CHANGED = r"The data changed while they were being read: 1 files differ from the listing, for example '"


def _images(folder):
    return f"images:{folder}/data", "data/0/0.png"


def _csv(folder):
    (folder / "data/labels.csv").write_text("path,label\n" + "".join(f"{i % 2}/{i}.png,{i % 2}\n" for i in range(40)))
    return f"csv:{folder}/data/labels.csv", "data/1/1.png"


def _texts(folder):
    for i in range(40):
        path = folder / "texts" / f"{i % 2}" / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"word{i} and more")
    return f"text:{folder}/texts", "texts/0/2.txt"


def _webdataset(folder):
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "data", ".")
    return f"webdataset:{folder}/a.tar", "a.tar"


def _parquet(folder):
    files = [(folder / f"data/{i % 2}/{i}.png").read_bytes() for i in range(40)]
    pq.write_table(pa.table({"image": files, "label": [f"{i % 2}" for i in range(40)]}), folder / "a.parquet")
    return f"parquet:{folder}/a.parquet", "a.parquet"


@pytest.fixture
def pictures(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    for i, pixels in enumerate(noise):
        (tmp_path / "data" / f"{i % 2}").mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).save(tmp_path / "data" / f"{i % 2}" / f"{i}.png")
    return tmp_path


def _write_again(path):
    """Write the same bytes again, as an export job does."""
    content = path.read_bytes()
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("make", [_images, _csv, _texts, _webdataset, _parquet])
def test_a_file_that_is_written_again_meanwhile_is_noticed(pictures, make):
    source, name = make(pictures)
    prepared = prepare(plan_dataset(WriteParams(source, num_workers=1)))
    prepared.plan.listing.require_unchanged()

    def parts():
        _write_again(pictures / name)
        yield from prepared.write(prepared.cut(1), pictures)

    with pytest.raises(InputError, match=_CHANGED):
        write_prepared(prepared, pictures / "records", parts())
    assert not (pictures / "records").exists()
    write_records(WriteParams(source, num_workers=1), pictures / "records")


@pytest.mark.parametrize("form", ["link/../a.tar", "../elsewhere/a.tar", "a.tar"])
def test_an_unchanged_archive_is_found_again_by_its_path_as_it_is_written(pictures, monkeypatch, form):
    _webdataset(pictures)
    elsewhere = pictures / "elsewhere"
    (pictures / "other" / "inner").mkdir(parents=True)
    elsewhere.mkdir()
    for folder in (elsewhere, pictures / "other"):
        shutil.copy(pictures / "a.tar", folder)
    (elsewhere / "link").symlink_to(pictures / "other" / "inner")
    monkeypatch.chdir(elsewhere)
    plan_dataset(WriteParams(f"webdataset:{form}")).listing.require_unchanged()


def test_a_file_that_is_gone_meanwhile_is_noticed(pictures):
    plan = plan_dataset(WriteParams(f"images:{pictures}/data"))
    (pictures / "data/0/0.png").unlink()
    with pytest.raises(InputError, match=_CHANGED):
        plan.listing.require_unchanged()


def test_records_are_of_the_version_that_a_cache_will_keep_them_under(pictures):
    params = WriteParams(f"images:{pictures}/data", num_workers=1)
    version = source_version(params)
    write_records(params, pictures / "records", version)
    shutil.rmtree(pictures / "records")
    _write_again(pictures / "data/0/0.png")
    with pytest.raises(
        InputError, match=r"have changed since this run began: expected version \w{12}, received \w{12}\."
    ):
        write_records(params, pictures / "records", version)
    with pytest.raises(InputError, match="have changed since this run began"):
        fan_out.plan_parts(params, str(pictures / "plan"), version)
    assert not (pictures / "records").exists()
    assert not (pictures / "plan").exists()


def test_the_fingerprint_of_files_that_change_meanwhile_is_not_kept(pictures, monkeypatch):
    listing = plan_dataset(WriteParams(f"images:{pictures}/data")).listing
    digest = type(listing).content_digest

    def change_and_digest(self):
        _write_again(pictures / "data/0/0.png")
        return digest(self)

    monkeypatch.setattr(type(listing), "content_digest", change_and_digest)
    with pytest.raises(InputError, match=_CHANGED):
        data_version(listing, pictures / "memo")
    assert not (pictures / "memo").exists()


def test_parts_of_data_that_changed_meanwhile_are_not_put_together(pictures, monkeypatch):
    params = WriteParams(f"images:{pictures}/data", num_workers=1, engine="fan_out", engine_tasks=1)
    plan, parts = str(pictures / "plan"), str(pictures / "parts")
    fan_out.plan_parts(params, plan)
    part_bytes = fan_out.part_bytes

    def change_and_pack(part):
        _write_again(pictures / "data/0/0.png")
        return part_bytes(part)

    monkeypatch.setattr(fan_out, "part_bytes", change_and_pack)
    with pytest.raises(InputError, match=_CHANGED):
        fan_out.write_parts(params, plan, parts, 0)
    monkeypatch.undo()
    shutil.rmtree(pictures / "plan")
    fan_out.plan_parts(params, plan)
    with pytest.raises(InputError, match="it is empty, or was written with other data, parameters or code"):
        fan_out.merge_parts(params, plan, [parts], pictures / "records")
    assert fan_out.write_parts(params, plan, parts, 0).num_kept == 0
    fan_out.merge_parts(params, plan, [parts], pictures / "records")


def test_another_inode_in_a_mounted_bucket_is_no_change(pictures, monkeypatch):
    """As in gcsfuse, which numbers the files anew at each look-up."""
    stat = os.stat

    def look_up(path, **options):
        found = stat(path, **options)
        times = {name: getattr(found, name) for name in ("st_mtime_ns", "st_ctime_ns")}
        return os.stat_result((found.st_mode, found.st_ino + 1, *found[2:]), times)

    params = WriteParams(f"images:{pictures}/data")
    on_disk = plan_dataset(params).listing
    monkeypatch.setattr(os, "stat", look_up)
    with pytest.raises(InputError, match=r"The data changed while they were being read: 40 files"):
        on_disk.require_unchanged()
    monkeypatch.setattr("tpu_components.core.files.storage.BUCKETS_MOUNT", pictures)
    plan_dataset(params).listing.require_unchanged()

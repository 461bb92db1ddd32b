"""Claims about records that several commands write and another one puts together."""

import dataclasses
import io
import shutil
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.components.create_tfrecords.engines.cases import (
    CIFAR,
    IMDB,
    SHAKESPEARE,
    corpus,
    groups,
    images,
    numbers,
    same_files,
    texts,
)
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import as_json
from tpu_components.core.examples.records import encode_example, frame_record, read_fields
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.component import create_tfrecords, merge_parts, plan_parts, write_parts
from tpu_components.create_tfrecords.engines import fan_out
from tpu_components.create_tfrecords.preparing import Prepared
from tpu_pipelines.platforms.local.runner import print_as_before


def _fan_out(params: WriteParams, folder: str) -> tuple[str, list[str]]:
    fan_out.plan_parts(params, f"{folder}/plan")
    folders = [f"{folder}/range-{number}" for number in range(params.engine_tasks)]
    for number in reversed(range(len(folders))):
        fan_out.write_parts(params, f"{folder}/plan", folders[number], number)
    return f"{folder}/plan", folders


@pytest.mark.parametrize("make", [images, groups, texts, corpus, numbers])
def test_several_commands_write_the_same_bytes_as_one_machine_alone(tmp_path, make, monkeypatch):
    params = dataclasses.replace(make(tmp_path / "data"), engine="fan_out", engine_tasks=3, num_workers=1)
    alone = write_records(params, tmp_path / "alone")
    plan, folders = _fan_out(params, tmp_path)
    monkeypatch.delattr(Prepared, "write")  # What is put together is what those commands wrote.
    assert fan_out.merge_parts(params, plan, folders, tmp_path / "merged") == alone
    assert same_files(tmp_path / "merged", tmp_path / "alone")


def _few_images(folder: Path) -> WriteParams:
    return dataclasses.replace(images(folder / "data"), engine_tasks=3, num_workers=1)


@pytest.fixture
def params(tmp_path) -> WriteParams:
    return _few_images(tmp_path)


@pytest.fixture(scope="module")
def fanned(tmp_path_factory):
    """Parameters, the plan and the folders of the ranges that they wrote. Not to be written to."""
    folder = tmp_path_factory.mktemp("fanned")
    params = _few_images(folder)
    return params, *_fan_out(params, str(folder))


@pytest.fixture(scope="module")
def written_alone(fanned, tmp_path_factory):
    """What one machine alone returns for the parameters of `fanned`."""
    return write_records(fanned[0], tmp_path_factory.mktemp("alone") / "records")


def test_a_range_that_is_written_again_keeps_the_parts_that_are_whole(params, tmp_path):
    folder = Path(_fan_out(params, tmp_path)[1][-1])
    folder = folder / "whole"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    first, damaged, missing = sorted(before)
    damaged_bytes = bytearray(before[damaged])
    damaged_bytes[len(damaged_bytes) // 2] ^= 1
    (folder / damaged).write_bytes(damaged_bytes)
    (folder / missing).unlink()
    (folder / f".{missing}.abc.tmp").write_bytes(b"half")
    written = (folder / first).stat().st_mtime_ns
    result = fan_out.write_parts(params, f"{tmp_path}/plan", str(folder.parent), 2)
    assert (result.num_parts, result.num_kept) == (len(before), len(before) - 2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (folder / first).stat().st_mtime_ns == written


@pytest.mark.parametrize("make", [images, texts])
def test_parts_in_a_bucket_are_put_together_to_the_same_bytes(bucket, tmp_path, make):
    params = dataclasses.replace(make(tmp_path / "data"), engine_tasks=3, num_workers=1)
    plan, folders = _fan_out(params, "gs://bucket/run")
    last = max(bucket.list_blobs(prefix="run/plan"), key=lambda blob: blob.time_created)
    assert last.name == "run/plan/plan.json"  # Without which nobody reads the rest.
    again = fan_out.write_parts(params, plan, folders[1], 1)
    assert again.num_kept == again.num_parts > 0
    first = bucket.get_blob(f"run/range-1/whole/{again.first:06d}.npz")
    first.upload_from_string(first.download_as_bytes()[:-9])
    again = fan_out.write_parts(params, plan, folders[1], 1)
    assert again.num_kept == again.num_parts - 1
    assert fan_out.merge_parts(params, plan, folders, tmp_path / "merged") == write_records(params, tmp_path / "alone")
    assert same_files(tmp_path / "merged", tmp_path / "alone")


def test_parts_that_are_missing_are_named_and_nothing_is_written(fanned, tmp_path):
    params, plan, folders = fanned
    with pytest.raises(InputError, match=r"npz\. .* not passed: received 2 folders without pieces of range 1\. Run"):
        fan_out.merge_parts(params, plan, [folders[0], folders[2]], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(InputError, match=r"Unknown range 3: expected a number from 0 to 2"):
        fan_out.write_parts(params, plan, f"{tmp_path}/range-3", 3)


def test_parts_of_other_data_or_parameters_are_refused(params, tmp_path):
    plan, folders = _fan_out(params, tmp_path)
    changed = dataclasses.replace(params, seed=1)
    with pytest.raises(InputError, match=r"have changed since .*plan was written: expected .*Run plan again"):
        fan_out.write_parts(changed, plan, folders[0], 0)
    (tmp_path / "data" / "0" / "0.png").write_bytes((tmp_path / "data" / "0" / "2.png").read_bytes())
    with pytest.raises(InputError, match=r"have changed since"):
        fan_out.merge_parts(params, plan, folders, tmp_path / "merged")
    fan_out.plan_parts(params, plan)
    with pytest.raises(InputError, match=r"Cannot combine .*/range-0 with the other folders: it is empty, or was"):
        fan_out.merge_parts(params, plan, folders, tmp_path / "merged")


def test_an_image_of_another_size_ends_the_range_that_meets_it(tmp_path, image_folder, encode):
    folder = image_folder()
    (folder / "dog" / "odd.png").write_bytes(encode(size=(9, 9)))
    params = WriteParams(f"images:{folder}", engine_tasks=1, num_workers=1)
    fan_out.plan_parts(params, f"{tmp_path}/plan")
    with pytest.raises(InputError, match=r"Images differ in size: expected 8×8 .* received 9×9"):
        fan_out.write_parts(params, f"{tmp_path}/plan", f"{tmp_path}/range", 0)


def test_the_wrappers_write_what_the_step_alone_writes(params, tmp_path):
    source, data = params.source, {"engine_tasks": 2.0, "max_bad_fraction": 0.1, "image_size": [8.0, 8.0]}
    places = {name: types.SimpleNamespace(path=str(tmp_path / name), metadata={}) for name in ("plan", "0", "1", "out")}
    plan_parts.python_func(places["plan"], source, data)
    counts = [write_parts.python_func(places["plan"], places[str(i)], i, source, data) for i in range(2)]
    assert sum(counts) == fan_out.PartsPlan.load(tmp_path / "plan").num_parts
    parts, records = [places["0"], places["1"]], places["out"]
    alone = types.SimpleNamespace(path=str(tmp_path / "alone"), metadata={})
    count = create_tfrecords.python_func(alone, source=source, max_bad_fraction=0.1, image_size=[8, 8])
    assert merge_parts.python_func(places["plan"], parts, records, source, data) == count
    assert records.metadata == alone.metadata
    assert same_files(tmp_path / "out", tmp_path / "alone")


def _run_here(params: WriteParams, folder: Path) -> Path:
    """Run the three components through kfp.local; returns the records' folder."""
    from kfp import dsl, local

    asked = {"source": params.source, "data": as_json(params)}

    @dsl.pipeline(name="fan-out")
    def pipeline() -> None:
        planned = plan_parts(**asked).outputs["planned"]
        with dsl.ParallelFor(list(range(params.engine_tasks))) as number:
            written = write_parts(planned=planned, number=number, **asked).outputs["parts"]
        merge_parts(planned=planned, parts=dsl.Collected(written), **asked)

    with warnings.catch_warnings(action="ignore"), print_as_before():
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(folder), raise_on_error=True)
        pipeline()
    (records,) = folder.glob("fan-out-*/create-tfrecords/records")
    return records


@pytest.mark.slow  # Two minutes, with ../shared/data.
@pytest.mark.parametrize("make", [images, groups, CIFAR, IMDB, SHAKESPEARE])
def test_every_engine_writes_the_same_bytes(tmp_path, make):
    params = make(tmp_path / "data")
    for num_workers in (1, 2):
        write_records(dataclasses.replace(params, num_workers=num_workers), tmp_path / str(num_workers))
    assert same_files(tmp_path / "1", tmp_path / "2")
    fanned = _run_here(dataclasses.replace(params, engine="fan_out", engine_tasks=3), tmp_path / "runs")
    assert same_files(fanned, tmp_path / "1")


def _change_part(path: Path, change) -> None:
    """Write a part again, with its checksum: its arrays, and its records' fields, as `change` has them."""
    with np.load(path) as stored:
        arrays = dict(stored)
    ends, content = np.cumsum(arrays["sizes"]).tolist(), arrays["content"].tobytes()
    frames = [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    frames = change(arrays, [{name: value for name, [value] in read_fields(frame).items()} for frame in frames])
    arrays["content"] = np.frombuffer(b"".join(frames), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    ResumeState(str(path.parent.parent)).finish(path.name, file.getvalue(), {})


def _frames(fields):
    return [frame_record(encode_example(one)) for one in fields]


def _other_labels(arrays, fields):
    return _frames([{**one, "label": 1 - one["label"]} for one in fields])


def _cut_off(arrays, fields):
    frames = _frames(fields)
    return [*frames[:-1], frames[-1][:-100]]


def _other_names(arrays, fields):
    return _frames([{**one, "key": b"x" * len(one["key"])} for one in fields])


def _another_order(arrays, fields):
    arrays["kept"] = arrays["kept"][::-1].copy()
    return _frames(fields)


def _fewer_sizes(arrays, fields):
    arrays["sizes"] = arrays["sizes"][:-1]
    return _frames(fields[:-1])


def _one_less(arrays, fields):
    for name in ("kept", "sizes", "identities", "counts", "figures", "looks", "num_pixels"):
        arrays[name] = arrays[name][:-1]
    return _frames(fields[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_other_labels, "a name, label or weight that differs"),
        (_cut_off, "bytes of records, and metadata that describes different records"),
        (_fewer_sizes, "bytes of records, and metadata that describes different records"),
        (_other_names, "a name, label or weight that differs"),
        (_another_order, "examples in another order"),
        (_one_less, "quarantined inputs, but the task has"),
    ],
)
def test_a_part_that_was_changed_is_refused_though_it_has_its_checksum(
    fanned, written_alone, tmp_path, change, message
):
    params, plan, (first, second, third) = fanned
    folders = [first, str(shutil.copytree(second, tmp_path / "range-1")), third]
    part = min(Path(folders[1], "whole").iterdir())
    _change_part(part, change)
    with pytest.raises(InputError, match=rf"{part} does not match its task .*{message}.*un that task again"):
        fan_out.merge_parts(params, plan, folders, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    part.unlink()  # As the message advises.
    fan_out.write_parts(params, plan, folders[1], 1)
    assert fan_out.merge_parts(params, plan, folders, tmp_path / "merged") == written_alone

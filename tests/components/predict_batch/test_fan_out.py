"""Claims about predictions that several commands write and another one puts together."""

import dataclasses
import json
import sys
import types
from pathlib import Path

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.predict_batch import PredictParams, fan_out, predict_batch
from tpu_components.predict_batch.component import answer_range, merge_answers


@pytest.fixture(scope="module")
def export_dir(exported_digits):
    return exported_digits.path


@pytest.fixture
def params(image_folder):
    """Eleven pictures of which one is damaged, in three files."""
    root = image_folder(11, ("a",), mode="L")
    (root / "a" / "0004.png").write_bytes(b"no picture")
    return PredictParams(f"images:{root}", part_examples=4, num_workers=1)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def answer(params, export_dir, folder, num_ranges=2):
    folders = [f"{folder}/{number}" for number in range(num_ranges)]
    for number in reversed(range(num_ranges)):
        fan_out.answer_range(params, export_dir, folders[number], number, num_ranges)
    return folders


@pytest.mark.parametrize("num_ranges", [2, 5])
def test_several_commands_write_the_same_bytes_as_one_machine_alone(export_dir, params, tmp_path, num_ranges):
    alone = predict_batch(params, export_dir, tmp_path / "alone")
    assert (alone.num_examples, alone.num_set_aside, alone.num_files) == (11, 1, 3)
    folders = answer(params, export_dir, tmp_path / "parts", num_ranges)
    assert fan_out.merge_ranges(params, export_dir, folders[::-1], tmp_path / "merged") == alone
    assert contents(tmp_path / "merged") == contents(tmp_path / "alone")
    assert not list(tmp_path.glob(".merged*"))


def test_a_range_that_is_answered_again_keeps_the_files_that_are_finished(export_dir, params, tmp_path):
    (folder,) = answer(params, export_dir, tmp_path, 1)

    def written_at():
        return {path.name: path.stat().st_mtime_ns for path in Path(folder, "whole").iterdir()}

    before = written_at()
    Path(folder, "notes", "predictions-00001-of-00003.jsonl.json").unlink()
    assert fan_out.answer_range(params, export_dir, folder, 0, 1) == fan_out.AnsweredRange(3, 2)
    assert dict(before.items() ^ written_at().items()).keys() == {"predictions-00001-of-00003.jsonl"}


def test_what_is_missing_or_of_something_else_is_refused(export_dir, params, tmp_path):
    first, second = answer(params, export_dir, tmp_path)
    with pytest.raises(
        InputError, match=r"2 of 3 pieces are missing, the first is predictions-00001-of-00003.jsonl: .* received 1"
    ):
        fan_out.merge_ranges(params, export_dir, [first], tmp_path / "merged")
    with pytest.raises(InputError, match=r"Unknown range 2: expected a number from 0 to 1\."):
        fan_out.answer_range(params, export_dir, tmp_path / "2", 2, 2)
    other = PredictParams(params.source, part_examples=5, num_workers=1)
    with pytest.raises(InputError, match=r"Cannot combine .*/0 with the other folders: expected work with"):
        fan_out.merge_ranges(other, export_dir, [first, second], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_model_the_pictures_and_the_ranges_may_be_in_a_bucket(export_dir, params, tmp_path, bucket):
    predict_batch(params, export_dir, tmp_path / "alone")
    storage.upload(Path(export_dir), "gs://bucket/export")
    storage.upload(Path(params.source.removeprefix("images:")), "gs://bucket/pictures")
    there = dataclasses.replace(params, source="images:gs://bucket/pictures")
    folders = answer(there, "gs://bucket/export", "gs://bucket/parts")
    fan_out.merge_ranges(there, "gs://bucket/export", folders, tmp_path / "merged")
    merged, alone = contents(tmp_path / "merged"), contents(tmp_path / "alone")
    summary = json.loads(merged.pop("predictions.json"))
    assert summary == {**json.loads(alone.pop("predictions.json")), "source": "images:gs://bucket/pictures"}
    assert merged == alone
    assert fan_out.answer_range(there, export_dir, folders[1], 1, 2).num_kept == 2, "the model is the same one here"

    with pytest.raises(InputError, match=r"Cannot write to gs://bucket/parts/1: expected an empty folder, or"):
        fan_out.answer_range(params, export_dir, folders[1], 1, 2)
    bucket.blob("parts/1/whole/predictions-00001-of-00003.jsonl").upload_from_string("[]")
    with pytest.raises(InputError, match=r"predictions-00001-of-00003.jsonl is damaged: expected checksum \w{8}, rec"):
        fan_out.merge_ranges(there, export_dir, folders, tmp_path / "again")


def test_the_commands_and_the_wrappers_write_what_the_step_alone_writes(
    export_dir, params, tmp_path, monkeypatch, capsys
):
    predict_batch(params, export_dir, tmp_path / "alone")

    def command(*words):
        asked = ("--export", export_dir, "--source", params.source, "--part-examples", 4, "--num-workers", 1)
        monkeypatch.setattr(sys, "argv", ["fan_out", *map(str, (words[0], *asked, *words[1:]))])
        assert fan_out.main() == 0
        return json.loads(capsys.readouterr().out)

    parts = [tmp_path / "parts" / str(number) for number in range(2)]
    for number, folder in enumerate(parts):
        command("answer", "--number", number, "--ranges", 2, "--output", folder)
    assert command("merge", "--parts", *parts, "--output", tmp_path / "merged")["num_predicted"] == 10
    assert contents(tmp_path / "merged") == contents(tmp_path / "alone")

    places = {
        name: types.SimpleNamespace(path=str(tmp_path / "run" / name / "out"), metadata={})
        for name in ("0", "1", "all")
    }
    export, asked = types.SimpleNamespace(path=str(export_dir)), {"part_examples": 4.0, "num_workers": 1.0}
    counts = [answer_range.python_func(export, places[str(i)], i, 2, params.source, asked) for i in range(2)]
    assert counts == [1, 2]
    ranges = [places["0"], places["1"]]
    assert merge_answers.python_func(export, ranges, places["all"], params.source, asked) == 10
    assert contents(tmp_path / "run" / "all" / "out") == contents(tmp_path / "alone")

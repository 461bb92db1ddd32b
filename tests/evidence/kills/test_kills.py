"""`make kills` finds what it is there to find; and the first of the kills."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.evidence.kills import answers
from tests.evidence.kills.__main__ import TURNS, kill_of, report, run_undisturbed, slice_of, try_kill
from tests.evidence.kills.outcome import differences, outcome
from tests.evidence.kills.steps import RUN, Step, leftovers
from tests.support import beam
from tests.support.cli import REPOSITORY

_STEP = """
import os, sys, time

def main():
    folder = sys.argv[1]
    os.mkdir(folder + "/{first}")
    for name in ("one", "two"):
        time.sleep(0.1)
        with open(folder + "/{first}/" + name, "w") as file:
            file.write(name)
    {then}
"""
_WHOLE = 'os.rename(folder + "/.made", folder + "/made")'


@pytest.fixture
def make_step(tmp_path, monkeypatch):
    """A step that makes a folder of two files, in place or whole."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, first, then, before=""):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(before + _STEP.format(first=first, then=then))
        return Step(name, name, lambda folder: {"": [str(folder)]}, ("made",))

    return make


def kill(number, share, is_before_change):

    return dataclasses.replace(kill_of(number), share=share, is_before_change=is_before_change)


_START_ANEW = "import shutil; shutil.rmtree(sys.argv[1] + '/.made', ignore_errors=True)\n"


@pytest.mark.parametrize("is_before_change", [False, True])
def test_a_step_that_is_whole_or_not_there_stands_the_kills(make_step, tmp_path, is_before_change):
    step = make_step("whole", ".made", _WHOLE, "import sys\n" + _START_ANEW)
    expected = run_undisturbed(step, tmp_path / "undisturbed")
    assert expected.num_changes == 4
    assert expected.left["made"].keys() == {"one", "two"}
    for share in (0.0, 0.5, 0.9):
        assert try_kill(expected, kill(0, share, is_before_change), tmp_path) == []


def test_a_half_written_folder_and_what_cannot_go_on_are_found(make_step, tmp_path):
    expected = run_undisturbed(make_step("half", "made", "pass"), tmp_path / "undisturbed")
    faults = try_kill(expected, kill(0, 0.7, True), tmp_path)
    assert faults[0] == "made was there, and not whole"
    assert "half ended with 1" in faults[1]
    assert "FileExistsError" in faults[1]


def test_what_differs_is_named(tmp_path):
    for name, text in (("a", '{"loss": 1, "seconds": 2}'), ("b", '{"loss": 1, "seconds": 3}'), ("c", '{"loss": 2}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "figures.json").write_text(text)
    a, b, c = (outcome(tmp_path / name) for name in "abc")
    assert differences(a, b) == []
    assert differences(a, c) == ["figures.json"]
    assert differences(a, {}) == ["figures.json"]


def test_the_measurements_of_a_receipt_are_not_compared(tmp_path):
    receipt = {"program": "a", "steps": 78, "step_ms": {"p50": 2.6}, "waiting": 0.1, "price": {"usd": 1.0}}
    measured = receipt | {"steps": 70, "step_ms": {"p50": 9.1}, "waiting": None, "price": None}
    left = []
    for name, content in (("a", receipt), ("b", measured), ("c", receipt | {"program": "c"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "receipt.json").write_text(json.dumps(content))
        left.append(outcome(tmp_path / name))
    assert differences(left[1], left[0]) == []
    assert differences(left[2], left[0]) == ["receipt.json"]


def test_what_is_left_half_written_is_found(tmp_path):
    (tmp_path / "registry" / "digits" / "versions" / ".0002.x.tmp").mkdir(parents=True)
    assert leftovers(tmp_path) == ["registry/digits/versions/.0002.x.tmp"]


def test_slices_cover_every_kill_once_and_every_step_in_both_ways():
    numbers = [number for i in (1, 2, 3) for number in slice_of(300, f"{i}/3")]
    assert numbers == list(range(300))
    kills = [kill_of(number) for number in numbers]
    assert kills == [kill_of(number) for number in numbers]
    for step in {*TURNS}:
        shares = sorted(one.share for one in kills if one.step == step and not one.is_before_change)
        changes = sorted(one.share for one in kills if one.step == step and one.is_before_change)
        for some in (shares, changes):
            assert max(b - a for a, b in zip([0.0, *some], [*some, 1.0], strict=True)) < 3 / len(some)
    assert {one.is_alone for one in kills if one.step == RUN} == {True, False}


def test_the_table_counts_what_was_killed_and_what_was_the_same_again():
    lines = report([(kill_of(0), []), (kill_of(5), ["x"]), (kill_of(1), [])]).splitlines()
    assert re.fullmatch(r"deploy_model +2 +1 +1 +1", lines[1])
    assert re.fullmatch(r"in all +3 +2 +1 +2", lines[-1])


@pytest.mark.slow  # Five minutes: thirty kills are one of every turn.
def test_killed_at_any_moment_every_step_and_the_run_give_the_same_again(tmp_path):
    command = [sys.executable, "-m", "tests.evidence.kills", "--kills", "30", "--work", str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # A minute.
def test_killed_at_any_moment_commands_that_write_together_give_the_same_again():
    command = [sys.executable, "-m", "tests.evidence.kills.fan_out", "--kills", "20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # Two minutes.
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_steps_stand_a_full_disk_a_damaged_one_and_a_clock_that_steps():
    steps = ("create_tfrecords", "train_model", "evaluate_model", "deploy_model", "predict_batch")
    command = [
        sys.executable,
        "-m",
        "tests.evidence.kills.faults",
        "full",
        "damaged",
        "clock",
        "--times",
        "5",
        "--steps",
        *steps,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # Two minutes, with Apache Beam.
def test_killed_at_any_moment_records_that_beam_writes_are_the_same_again():
    beam.require_beam()
    done = beam.run([beam.PYTHON, "-m", "tests.evidence.kills.beam", "--kills", "4"])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # Two minutes, with Apache Beam.
def test_killed_at_any_moment_answers_of_beams_workers_are_the_same_again(tmp_path):
    beam.require_beam()
    command = [sys.executable, "-m", "tests.evidence.kills.answers", "--only-export", str(tmp_path / "export")]
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
    done = beam.run(
        [beam.PYTHON, "-m", "tests.evidence.kills.beam", "--kills", "4", "--export", str(tmp_path / "export")]
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # Half a minute.
def test_killed_at_any_moment_predict_batch_answers_every_picture_once():
    command = [sys.executable, "-m", "tests.evidence.kills.answers", "--kills", "4", "--images", "5000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pictures_left_out_or_answered_twice_are_found(tmp_path):
    lines = [json.dumps({"key": name}) for name in ("a", "b", "b", "d")]
    (tmp_path / "predictions-00000-of-00001.jsonl").write_text("\n".join(lines))
    (tmp_path / "predictions.json").write_text('{"num_predicted": 4}')
    assert answers.find_faults(tmp_path, {"a", "b", "c"}) == [
        "1 not answered",
        "1 answered more than once",
        "1 not among the pictures",
        "1 stated too many or too few",
    ]

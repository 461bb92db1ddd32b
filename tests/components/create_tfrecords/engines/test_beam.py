"""Claims about records that the workers of an Apache Beam runner write."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

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
from tests.support import beam
from tests.support.cli import REPOSITORY
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.component import command_line
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.engines.beam import write_with_beam


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Apache Beam is installed here")
def test_where_beam_is_not_installed_it_is_said_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("TPU_PIPELINES_BEAM_PYTHON", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none" / ".venv"))
    with pytest.raises(InputError, match=r"Apache Beam is not installed. Run make beam-env"):
        write_with_beam(WriteParams("sklearn:digits", engine="beam"), tmp_path / "records")
    assert not list(tmp_path.iterdir())


def _python(path: Path, ending: str) -> Path:
    """A Python of another environment, of which the command with Beam writes as this one's step alone does."""
    words = '[ "$*" != "${*#-P -m tpu_components.create_tfrecords.engines beam }" ] || exit 9; shift 4'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{words}\n{ending}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Apache Beam is installed here")
@pytest.mark.parametrize("is_named", [True, False])
def test_the_environment_that_make_has_made_is_found_and_writes_the_records(tmp_path, monkeypatch, is_named):
    params = dataclasses.replace(images(tmp_path / "data"), engine="beam", num_workers=1)
    python = _python(tmp_path / ".beam/bin/python", f'exec {sys.executable} -m tpu_components.create_tfrecords "$@"')
    monkeypatch.delenv("TPU_PIPELINES_BEAM_PYTHON", raising=False)
    if is_named:
        monkeypatch.setenv("TPU_PIPELINES_BEAM_PYTHON", str(python))
    else:
        monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert write_with_beam(params, tmp_path / "records") == write_records(params, tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Apache Beam is installed here")
@pytest.mark.parametrize(
    ("ending", "error", "message"),
    [
        (
            "echo working >&2; echo 'error: Found no files. Check it.' >&2; exit 2",
            InputError,
            "^Found no files. Check it",
        ),
        ("echo 'error: The Beam job is lost.' >&2; exit 1", PlatformError, "^The Beam job is lost"),
        ("exit 9", PlatformError, "ended with exit code 9. See its output above for the reason"),
    ],
)
def test_what_the_other_environment_says_of_a_failure_is_what_the_step_says(
    tmp_path, monkeypatch, capsys, ending, error, message
):
    monkeypatch.setenv("TPU_PIPELINES_BEAM_PYTHON", str(_python(tmp_path / "python", ending)))
    with pytest.raises(error, match=message):
        write_with_beam(WriteParams("sklearn:digits", engine="beam"), tmp_path / "records")
    assert "error:" not in capsys.readouterr().err  # It is told once, by who calls the step.


def test_a_python_that_is_not_there_is_a_mistake(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_BEAM_PYTHON", str(tmp_path / "python"))
    if importlib.util.find_spec("apache_beam") is None:
        with pytest.raises(
            InputError, match=r"Cannot run .*python, the value of TPU_PIPELINES_BEAM_PYTHON: No such file"
        ):
            write_with_beam(WriteParams("sklearn:digits", engine="beam"), tmp_path / "records")


def test_an_option_that_can_be_none_is_refused():
    with pytest.raises(InputError, match=r"beam_options must use the names of Beam's options.* Received: '--region'"):
        WriteParams("sklearn:digits", beam_options={"--region": "us-central1"})


def write(params: WriteParams, output: Path, **options: str):
    """What the command with Beam does."""
    beam.require_beam()
    params = dataclasses.replace(params, engine_tasks=3, num_workers=1, beam_options=options)
    return beam.run(beam.command("--output", output, *command_line.flags_of(params)))


@pytest.mark.slow  # 10 s each, with Apache Beam; those of ../shared/data a minute.
@pytest.mark.parametrize("make", [images, groups, texts, corpus, numbers, CIFAR, IMDB, SHAKESPEARE])
def test_a_runner_in_this_process_writes_the_same_bytes(tmp_path, make):
    params = make(tmp_path / "data")
    done = write(params, tmp_path / "records")
    assert done.returncode == 0, done.stderr
    alone = write_records(params, tmp_path / "alone")
    assert json.loads(done.stdout) == dataclasses.asdict(alone)
    assert same_files(tmp_path / "records", tmp_path / "alone")
    assert not list(tmp_path.glob(".*")), "its parts are gone"


@pytest.mark.slow  # 10 s, with Apache Beam.
def test_the_wrapper_writes_what_the_step_alone_writes(tmp_path):
    beam.require_beam()
    params = images(tmp_path / "data")
    script = (
        "import json, sys, types\n"
        "from tpu_components.create_tfrecords.component import write_with_beam\n"
        "records = types.SimpleNamespace(path=sys.argv[1], metadata={})\n"
        "data = {'engine': 'beam', 'engine_tasks': 2.0, 'max_bad_fraction': 0.1, 'num_workers': 1.0}\n"
        "data['image_size'] = [8.0, 8.0]\n"
        "print(json.dumps([write_with_beam.python_func(records, sys.argv[2], data), records.metadata]))\n"
    )
    done = beam.run([beam.PYTHON, "-c", script, str(tmp_path / "records"), params.source])
    assert done.returncode == 0, done.stderr
    alone = write_records(params, tmp_path / "alone")
    assert json.loads(done.stdout) == [alone.num_examples, dataclasses.asdict(alone)]
    assert same_files(tmp_path / "records", tmp_path / "alone")


@pytest.mark.slow  # 20 s, with Apache Beam.
def test_workers_in_processes_of_their_own_write_the_same_bytes(tmp_path):
    params = images(tmp_path / "data")
    done = write(params, tmp_path / "records", direct_num_workers="2", direct_running_mode="multi_processing")
    assert done.returncode == 0, done.stderr
    write_records(params, tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")


@pytest.mark.slow  # 20 s, with Apache Beam.
def test_a_job_that_is_started_again_writes_what_is_missing(tmp_path):
    params = dataclasses.replace(images(tmp_path / "data"), engine_tasks=3, num_workers=1)
    place = tmp_path / "temp"
    assert write(params, tmp_path / "records", temp_location=str(place)).returncode == 0
    shutil.rmtree(tmp_path / "records")
    (job,) = place.iterdir()
    before = {path: path.stat().st_mtime_ns for path in job.glob("whole/*.npz")}
    lost = min(path for path in before)
    lost.unlink()
    done = write(params, tmp_path / "records", temp_location=str(place))
    assert done.returncode == 0, done.stderr
    assert {path for path, time in before.items() if path.stat().st_mtime_ns != time} == {lost}
    write_records(params, tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")


@pytest.mark.slow  # 10 s, with Apache Beam.
def test_a_step_that_is_ended_while_it_writes_says_so_and_keeps_its_parts(tmp_path):
    beam.require_beam()
    words = ["--source", "sklearn:digits", "--output", tmp_path / "records", "--engine-tasks", 20]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(beam.command(*words), stderr=subprocess.PIPE, text=True, env=environment) as step:
        while not list(tmp_path.glob(".records.parts/*/notes/*.json")):
            assert step.poll() is None
            time.sleep(0.01)
        step.terminate()
        _, told = step.communicate(timeout=60)
    assert step.returncode == 143, told
    assert told.strip().endswith("error: The process ended because of SIGTERM. Run the same step again to continue.")
    assert not (tmp_path / "records").exists()
    done = beam.run(beam.command(*words))
    assert done.returncode == 0, done.stderr
    write_records(WriteParams("sklearn:digits"), tmp_path / "alone")
    assert same_files(tmp_path / "records", tmp_path / "alone")


@pytest.mark.slow  # 40 s, with Apache Beam.
def test_a_mistake_is_one_paragraph(tmp_path, image_folder, encode):
    folder = image_folder()
    (folder / "dog" / "odd.png").write_bytes(encode(size=(9, 9)))
    params = WriteParams(f"images:{folder}")
    for options, told in (
        ({}, "error: Images differ in size: expected 8×8 like the first image, received 9×9 for 'dog/odd.png'"),
        ({"region": "us", "max_num_workers": "many"}, "argument --max_num_workers: invalid int value: 'many'"),
        ({"worker_machine_typ": "n2"}, "Beam has no option 'worker_machine_typ'."),
        ({"runner": "Nonsense"}, "Unexpected pipeline runner: Nonsense."),
        (
            {"runner": "DataflowRunner", "project": "p"},
            "Dataflow needs more beam_options: region, temp_location, sdk_container_image.",
        ),
    ):
        done = write(params, tmp_path / "records", **options)
        assert done.returncode == 2, done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("error: "), done.stderr
        assert told in last
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "records").exists()

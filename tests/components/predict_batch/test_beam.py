"""Claims about predictions of the workers of an Apache Beam runner."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.create_tfrecords.engines.cases import same_files
from tests.support import beam
from tests.support.cli import REPOSITORY
from tpu_components.core.base.errors import InputError
from tpu_components.core.component import command_line
from tpu_components.core.files import storage
from tpu_components.predict_batch import PredictParams, predict_batch


@pytest.fixture
def pictures(image_folder):
    """Eleven pictures of which one is damaged."""
    root = image_folder(11, ("a",), mode="L")
    (root / "a" / "0004.png").write_bytes(b"no picture")
    return root


@pytest.fixture
def params(pictures):
    """To answer them in three files."""
    return PredictParams(f"images:{pictures}", part_examples=4, num_workers=1)


def answer(params: PredictParams, export_dir, output: Path, **options: str):
    """What the command with Beam does."""
    beam.require_beam()
    flags = command_line.flags_of(dataclasses.replace(params, engine="beam", beam_options=options))
    return beam.run(beam.answering("--export", export_dir, "--output", output, *flags))


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Apache Beam is installed here")
def test_where_beam_is_not_installed_it_is_said_what_to_do(export_dir, params, tmp_path):
    with pytest.raises(InputError, match=r"Apache Beam is not installed\. Run make beam-env"):
        predict_batch(dataclasses.replace(params, engine="beam"), export_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "bean"}, "engine must be one of local, beam. Received: engine='bean'. Did you mean 'beam'?"),
        ({"engine": "fan_out"}, r"engine must be one of local, beam\. Received: engine='fan_out'"),
        ({"beam_options": {"--region": "us"}}, "must use the names of Beam's options, such as .* Received: '--region'"),
    ],
)
def test_an_engine_or_an_option_that_can_be_none_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        PredictParams("images:photos", **fields)


def images(pictures: Path, folder: Path) -> str:
    return f"images:{pictures}"


def table(pictures: Path, folder: Path) -> str:
    rows = [f"{path.relative_to(folder)},{number}" for number, path in enumerate(sorted(pictures.glob("a/*.png")))]
    (folder / "pictures.csv").write_text("\n".join(["path,id", *rows]))
    return f"csv:{folder}/pictures.csv"


def column(pictures: Path, folder: Path) -> str:
    contents = [path.read_bytes() for path in sorted(pictures.glob("a/*.png"))]
    pq.write_table(pa.table({"image": contents}), folder / "pictures.parquet")
    return f"parquet:{folder}/pictures.parquet"


def arrays(pictures: Path, folder: Path) -> str:
    np.savez(folder / "x.npz", x=np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8))
    return f"npz:{folder}/x.npz"


@pytest.mark.slow  # 10 s each, with Apache Beam.
@pytest.mark.parametrize("make", [images, table, column, arrays])
def test_a_runner_in_this_process_writes_the_same_bytes(export_dir, params, pictures, tmp_path, make):
    params = dataclasses.replace(params, source=make(pictures, tmp_path))
    done = answer(params, export_dir, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    alone = predict_batch(params, export_dir, tmp_path / "alone")
    assert json.loads(done.stdout) == dataclasses.asdict(alone)
    assert alone.num_set_aside == (make is not arrays)
    assert same_files(tmp_path / "out", tmp_path / "alone")
    assert not list(tmp_path.glob(".*")), "what was begun is gone"


@pytest.mark.slow  # 20 s, with Apache Beam.
def test_texts_and_records_are_answered_to_the_same_bytes(
    export_dir, exported_reviews, digits_records, tmp_path, monkeypatch
):
    (tmp_path / "reviews.csv").write_text("id,review\n7,great lovely film\n8,awful dull film\n9, \n")
    texts = PredictParams(f"csv:{tmp_path}/reviews.csv", part_examples=2, num_workers=1)
    records = PredictParams(f"records:{digits_records}", part_examples=600, num_workers=1)
    for name, params, export in (("texts", texts, exported_reviews), ("records", records, export_dir)):
        done = answer(params, export, tmp_path / name)
        assert done.returncode == 0, done.stderr
        predict_batch(params, export, tmp_path / f"{name}-alone")
        assert same_files(tmp_path / name, tmp_path / f"{name}-alone")


@pytest.mark.slow  # 10 s, with Apache Beam.
def test_records_in_a_bucket_are_answered_by_way_of_it(export_dir, digits_records, tmp_path, bucket):
    storage.upload(digits_records, "gs://bucket/records")
    storage.upload(export_dir, "gs://bucket/export")
    params = PredictParams("records:gs://bucket/records", part_examples=600, num_workers=1)
    done = answer(params, "gs://bucket/export", tmp_path / "out", temp_location="gs://bucket/temp")
    assert done.returncode == 0, done.stderr
    (job,) = {blob.name.split("/")[1] for blob in bucket.list_blobs(prefix="temp/")}
    assert len(storage.names_in(f"gs://bucket/temp/{job}/whole")) == 3
    predict_batch(params, export_dir, tmp_path / "alone")
    assert same_files(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow  # 20 s, with Apache Beam.
@pytest.mark.parametrize("mode", ["multi_processing", "multi_threading"])
def test_several_workers_write_the_same_bytes(export_dir, params, tmp_path, mode):
    done = answer(params, export_dir, tmp_path / "out", direct_num_workers="2", direct_running_mode=mode)
    assert done.returncode == 0, done.stderr
    predict_batch(params, export_dir, tmp_path / "alone")
    assert same_files(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow  # 20 s, with Apache Beam.
def test_a_job_that_is_started_again_answers_what_is_missing(export_dir, params, tmp_path):
    place = tmp_path / "temp"
    assert answer(params, export_dir, tmp_path / "out", temp_location=str(place)).returncode == 0
    shutil.rmtree(tmp_path / "out")
    (job,) = place.iterdir()
    before = {path: path.stat().st_mtime_ns for path in job.glob("whole/*")}
    assert len(before) == 3
    lost = min(before)
    Path(job, "notes", f"{lost.name}.json").unlink()
    done = answer(params, export_dir, tmp_path / "out", temp_location=str(place))
    assert done.returncode == 0, done.stderr
    assert {path for path, time in before.items() if path.stat().st_mtime_ns != time} == {lost}
    predict_batch(params, export_dir, tmp_path / "alone")
    assert same_files(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow  # 20 s, with Apache Beam.
def test_a_step_that_is_ended_while_it_answers_says_so_and_keeps_what_is_finished(export_dir, digits_records, tmp_path):
    beam.require_beam()
    params = PredictParams(f"records:{digits_records}", part_examples=20, num_workers=1, engine="beam")
    words = beam.answering("--export", export_dir, "--output", tmp_path / "out", *command_line.flags_of(params))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as step:
        while not list(tmp_path.glob(".out.begun/beam/*/notes/*")):
            assert step.poll() is None
            time.sleep(0.01)
        step.terminate()
        _, told = step.communicate(timeout=60)
    assert step.returncode == 143, told
    assert told.strip().endswith("error: The process ended because of SIGTERM. Run the same step again to continue.")
    assert not (tmp_path / "out").exists()
    done = beam.run(words)
    assert done.returncode == 0, done.stderr
    predict_batch(dataclasses.replace(params, engine="local"), export_dir, tmp_path / "alone")
    assert same_files(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow  # 10 s, with Apache Beam.
def test_the_wrapper_writes_what_the_step_alone_writes(export_dir, params, tmp_path):
    beam.require_beam()
    script = (
        "import json, sys, types\n"
        "from tpu_components.predict_batch.component import predict_with_beam\n"
        "export, predictions = (types.SimpleNamespace(path=path, metadata={}) for path in sys.argv[1:3])\n"
        "asked = {'part_examples': 4.0, 'beam_options': {'direct_num_workers': '1'}}\n"
        "number = predict_with_beam.python_func(export, predictions, sys.argv[3], asked)\n"
        "print(json.dumps([number, predictions.metadata]))\n"
    )
    done = beam.run([beam.PYTHON, "-c", script, str(export_dir), str(tmp_path / "out"), params.source])
    assert done.returncode == 0, done.stderr
    alone = predict_batch(params, export_dir, tmp_path / "alone")
    assert json.loads(done.stdout) == [alone.num_predicted, dataclasses.asdict(alone)]
    assert same_files(tmp_path / "out", tmp_path / "alone")

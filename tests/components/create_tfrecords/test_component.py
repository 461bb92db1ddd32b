"""Claims about the KFP wrapper and the README's table."""

import dataclasses
import json
import types
from pathlib import Path

import pytest

from tpu_components import create_tfrecords as package
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.create_tfrecords import WriteResult
from tpu_components.create_tfrecords.component import create_tfrecords, list_source

README = Path(package.__file__).with_name("README.md")


def test_the_wrapper_writes_records_metadata_and_a_step_record(image_folder, tmp_path):
    records = types.SimpleNamespace(path=str(tmp_path / "run" / "records"), metadata={})
    (tmp_path / "run").mkdir()
    count = create_tfrecords.python_func(records, source=f"images:{image_folder()}", image_size=[6.0, 7.0], channels=1)
    manifest = Manifest.load(tmp_path / "run" / "records")
    assert count == 20
    assert manifest.input.image_shape == (6, 7, 1)
    assert set(records.metadata) == {field.name for field in dataclasses.fields(WriteResult)}
    assert records.metadata["fingerprint"] == manifest.fingerprint
    assert json.loads((tmp_path / "run" / "step.json").read_text())["state"] == "succeeded"


def test_the_wrapper_run_twice_gives_the_same(image_folder, tmp_path):
    source, found = f"images:{image_folder()}", []
    for _ in range(2):
        records = types.SimpleNamespace(path=str(tmp_path / "run" / "records"), metadata={})
        (tmp_path / "run").mkdir(exist_ok=True)
        create_tfrecords.python_func(records, source=source)
        found.append((records.metadata, [path.read_bytes() for path in sorted(Path(records.path).iterdir())]))
    assert found[0] == found[1]


def test_the_wrapper_passes_a_mistake_on_and_records_it(tmp_path):
    (tmp_path / "run").mkdir()
    records = types.SimpleNamespace(path=str(tmp_path / "run" / "records"), metadata={})
    with pytest.raises(InputError, match="Unknown source 'nowhere'"):
        create_tfrecords.python_func(records, source="nowhere")
    record = json.loads((tmp_path / "run" / "step.json").read_text())
    assert (record["state"], record["is_input_error"]) == ("failed", True)
    assert record["error"].startswith("Unknown source 'nowhere'")


def test_a_run_says_what_a_cache_would_return_after_the_data_have_changed(bucket, image_folder, tmp_path, capfd):
    """The step that a cache skips cannot say it, so the run before does."""
    folder = image_folder()
    for path in Path(folder).rglob("*.png"):
        bucket.blob(f"photos/{path.parent.name}/{path.name}").upload_from_filename(path)
    source = f"images:gs://{bucket.name}/photos"
    for version, is_said in ((list_source.python_func(source=source), False), ("", True)):
        (tmp_path / "run").mkdir(exist_ok=True)
        records = types.SimpleNamespace(path=str(tmp_path / "run" / "records"), metadata={})
        create_tfrecords.python_func(records, data_version=version, source=source)
        said = f"data_version is empty: if {source} changes, the platform's cache still returns"
        assert (said in capfd.readouterr().err) is is_said
    records.path = str(tmp_path / "run" / "others")
    create_tfrecords.python_func(records, source=f"images:{folder}")
    assert "data_version" not in capfd.readouterr().err


def test_the_readme_names_every_source():
    from tpu_components.core.sources.kinds import SOURCES

    assert [name for name in SOURCES if f"| `{name}:" not in README.read_text()] == []

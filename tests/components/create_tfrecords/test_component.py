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
from tpu_components.create_tfrecords.component import create_tfrecords

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


def test_the_readme_names_every_source():
    from tpu_components.core.sources.kinds import SOURCES

    assert [name for name in SOURCES if f"| `{name}:" not in README.read_text()] == []

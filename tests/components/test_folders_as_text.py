"""Folders are given to the functions of the steps as paths or as text."""

import inspect
import typing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords import write_records
from tpu_components.deploy_model import deploy_model
from tpu_components.evaluate_model import evaluate_model
from tpu_components.export_model import export_model
from tpu_components.predict_batch import predict_batch
from tpu_components.preflight_training import preflight_training
from tpu_components.train_model import train_model

_FUNCTIONS = [
    write_records,
    preflight_training,
    train_model,
    evaluate_model,
    export_model,
    deploy_model,
    predict_batch,
]


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.__name__)
def test_every_folder_may_be_text(function):
    kinds = typing.get_type_hints(function)
    folders = [
        name for name in inspect.signature(function).parameters if name.endswith(("_dir", "output", "directory"))
    ]
    folders = [name for name in folders if name != "cache_dir"]
    assert folders
    assert [name for name in folders if not {str, Path} <= set(typing.get_args(kinds[name]))] == []


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.__name__)
def test_a_uri_is_no_folder_to_write(function, tmp_path, monkeypatch):
    """As a path, it would be a new folder named after the scheme."""
    monkeypatch.chdir(tmp_path)
    names = inspect.signature(function).parameters
    required = [name for name, parameter in names.items() if parameter.default is inspect.Parameter.empty]
    written = "directory" if "directory" in names else "output"
    with pytest.raises(InputError, match="expected a path on this machine, received a URI"):
        function(**{name: "gs://bucket/x" if name == written else "nothing" for name in required})
    assert list(tmp_path.iterdir()) == []


def test_records_are_written_to_a_folder_given_as_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        path = tmp_path / "photos" / "cd"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 9 * number, np.uint8)).save(path)
    assert write_records(WriteParams("images:photos"), "records").num_examples == 20
    assert (tmp_path / "records" / "dataset.json").exists()

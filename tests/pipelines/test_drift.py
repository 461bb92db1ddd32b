"""Claims about data held against those of a registered version."""

import dataclasses
import json
import shutil

import pytest

from components.artifacts import Manifest
from components.data_sketch import DataSketch, sketch_at
from components.errors import InputError
from pipelines.cli.main import main


def test_a_version_keeps_what_its_data_are_compared_by(finished_run, tmp_path, capsys):
    records, version = finished_run[0] / "digits" / "records", f"{finished_run[0]}/registry/digits@champion"
    sketch = sketch_at(version)
    assert sketch == sketch_at(str(records)) == DataSketch.make(Manifest.load(records))
    assert len(json.dumps(dataclasses.asdict(sketch))) < 10_000
    assert main(["drift", str(records), "--against", version]) == 0
    capsys.readouterr()
    shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
    described = tmp_path / "registry" / "digits" / "versions" / "0001" / "version.json"
    for kept, message in ((None, "from before versions kept it"), ({"kind": 3}, "its sketch is not of this version")):
        raw = json.loads(described.read_text())
        described.write_text(json.dumps(raw | {"lineage": {"sketch": kept}}))
        assert main(["drift", str(records), "--against", f"{tmp_path}/registry/digits@0001"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InputError, match="There is no 'latest' of 'digits'"):
        sketch_at(f"{tmp_path}/registry/digits@latest")

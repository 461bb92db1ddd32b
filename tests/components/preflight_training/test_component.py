"""The wrapper, called as a pipeline calls it; the tests that all steps share are in `test_components.py`."""

import json
from pathlib import Path

import pytest
from kfp import dsl

from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.component import preflight_training

pytestmark = pytest.mark.usefixtures("warm_compiler")


@pytest.fixture
def run_component(digits_records, cache_dir, tmp_path, monkeypatch):
    """Call the wrapper; returns its two artifacts, the second of them the page, and the record it left."""
    monkeypatch.setenv("TPU_PIPELINES_CACHE_DIR", str(cache_dir))

    def run(**values):
        preflight = dsl.Artifact(name="preflight", uri=str(tmp_path / "preflight" / "preflight"))
        report = dsl.HTML(name="report", uri=str(tmp_path / "report" / "report.html"))
        for artifact in (preflight, report):
            Path(artifact.path).parent.mkdir()
        error = None
        try:
            preflight_training.python_func(
                records=dsl.Dataset(name="records", uri=str(digits_records)),
                preflight=preflight,
                report=report,
                training={  # KFP hands whole numbers over as floats.
                    "model": "digits_cnn",
                    "model_parameters": {"filters": 4.0, "units": 8.0},
                    "batch_size_per_replica": 32.0,
                },
                **values,
            )
        except InputError as raised:
            error = raised
        return preflight, report, json.loads((tmp_path / "preflight" / "step.json").read_text()), error

    return run


def test_what_passes_leaves_its_figures_as_metadata(run_component):
    preflight, report, record, error = run_component()
    assert error is None
    assert preflight.metadata["passed"] is True
    assert preflight.metadata["verdict"] == "fits"
    assert preflight.metadata["step_ms"] > 0
    found = json.loads((Path(preflight.path) / "preflight.json").read_text())
    assert found["model_parameters"] == {"filters": 4, "units": 8}
    assert Path(report.path).read_text() == (Path(preflight.path) / "preflight.html").read_text()
    assert record["state"] == "succeeded"


def test_what_does_not_pass_stops_the_pipeline_and_leaves_its_report(run_component):
    preflight, report, record, error = run_component(max_step_ms=1e-6)
    assert "max_step_ms=1e-06" in str(error)
    assert "preflight: false" in str(error)
    assert (record["state"], record["is_input_error"]) == ("failed", True)
    assert preflight.metadata["passed"] is False
    assert "max_step_ms" in preflight.metadata["reasons"][0]
    assert "max_step_ms" in Path(report.path).read_text()

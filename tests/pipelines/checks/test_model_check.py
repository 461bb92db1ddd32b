"""Which models are tried before they are trained, and what is found."""

import json

import pytest

from tpu_components.core.base.errors import InputError
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.runs import prerequisites
from tpu_pipelines.runs.prerequisites import check_data, check_model_works, needs_check


@pytest.fixture
def own_model(tmp_path):
    """A digits configuration's overrides for a model file that needs a package which is not there."""
    path = tmp_path / "mine.py"
    path.write_text("import no_such_package\n\n\ndef build_model(image_shape, num_classes): ...\n")
    return f"model={json.dumps({'name': str(path), 'parameters': {}})}"


def test_a_model_is_tried_where_its_mistakes_would_cost_time_or_money(own_model):
    def tried(*overrides):
        return needs_check(load_config("digits", overrides))

    assert not tried()
    assert not tried("export.required=[saved_model]")
    assert tried("export.required=[int8]")
    assert tried(own_model)
    assert tried(own_model, "preflight=false", "export.required=[float]")
    assert not tried(own_model, "preflight=false")


@pytest.mark.parametrize("is_here", [True, pytest.param(False, marks=pytest.mark.slow)])  # 5 s: TensorFlow.
def test_a_mistake_in_the_models_file_is_told_before_anything_is_compiled(own_model, monkeypatch, is_here):
    if is_here:
        monkeypatch.setattr(prerequisites, "in_fresh_process", lambda function, *arguments: function(*arguments))
    config = load_config("digits", [own_model])
    with pytest.raises(
        InputError, match=r"Cannot import the model .*mine\.py': ModuleNotFoundError: No module named 'no_"
    ):
        check_model_works(config, check_data(config))

"""The commands and components that predicted in parallel tasks are refused; the message names what to use instead."""

import sys

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.predict_batch import PredictParams, fan_out

REFUSED = "Predicting in parallel tasks was removed. Use predict_batch, .* or predict_batch with engine=beam"


@pytest.mark.parametrize("words", [["answer", "--number", "0"], ["merge"], []])
def test_a_removed_command_is_refused_and_its_replacement_is_named(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fan_out", *words])
    assert fan_out.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: Predicting in parallel tasks was removed. Use predict_batch")
    assert "engine=beam" in err


def test_what_earlier_compiled_components_call_is_refused(tmp_path):
    params = PredictParams("sklearn:digits")
    with pytest.raises(InputError, match=REFUSED):
        fan_out.answer_range(params, f"{tmp_path}/export", f"{tmp_path}/answers", 0, 2)
    with pytest.raises(InputError, match=REFUSED):
        fan_out.merge_ranges(params, f"{tmp_path}/export", [f"{tmp_path}/answers"], tmp_path / "predictions")

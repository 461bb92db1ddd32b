import json
import os
import signal
import time

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.termination import Terminated
from tpu_components.core.component.step_record import StepRecord, step_record


def _record(tmp_path):
    return json.loads((tmp_path / "step.json").read_text())


def test_success_is_recorded_beside_the_artifact(tmp_path):
    with step_record("train_model", str(tmp_path / "trained")):
        assert not (tmp_path / "step.json").exists()
    record = _record(tmp_path)
    assert 0 <= record.pop("seconds") < 60
    assert record == {"step": "train_model", "state": "succeeded", "error": "", "is_input_error": False}


def test_mistake_is_recorded_with_its_message_alone(tmp_path):
    with pytest.raises(InputError, match="epochs=0"), step_record("train_model", str(tmp_path / "trained")):
        raise InputError("Received: epochs=0.")
    record = _record(tmp_path)
    assert (record["state"], record["error"], record["is_input_error"]) == ("failed", "Received: epochs=0.", True)


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), KeyboardInterrupt(), SystemExit(1)])
def test_any_other_end_is_recorded_with_its_stack_trace(tmp_path, error):
    with pytest.raises(type(error)), step_record("train_model", str(tmp_path / "trained")):
        raise error
    record = _record(tmp_path)
    assert (record["state"], record["is_input_error"]) == ("failed", False)
    assert record["error"].startswith("Traceback")
    assert type(error).__name__ in record["error"]


def test_sigterm_ends_the_step_and_is_recorded_in_words(tmp_path):
    with pytest.raises(Terminated) as ended, step_record("train_model", str(tmp_path / "trained")):
        os.kill(os.getpid(), signal.SIGTERM)
    record = _record(tmp_path)
    assert (ended.value.code, record["state"], record["is_input_error"]) == (143, "failed", False)
    assert record["error"] == "The process ended because of SIGTERM. Run the same step again to continue."


def test_second_run_replaces_the_record(tmp_path):
    with pytest.raises(InputError), step_record("train_model", str(tmp_path / "trained")):
        raise InputError("once")
    with step_record("train_model", str(tmp_path / "trained")):
        pass
    assert _record(tmp_path)["state"] == "succeeded"


@pytest.mark.parametrize("kind", [InputError, PlatformError, RuntimeError])
def test_a_record_holds_no_password_of_an_address(tmp_path, kind):
    with pytest.raises(kind), step_record("train_model", str(tmp_path / "trained")):
        raise kind("no answer from http://me:SECRET@store:9000/bucket")
    assert "no answer from http://***@store:9000/bucket" in _record(tmp_path)["error"]
    assert "SECRET" not in (tmp_path / "step.json").read_text()


def test_a_clock_that_is_set_back_takes_no_time_away(tmp_path, monkeypatch):
    moments = iter(range(1000, 0, -2))
    monkeypatch.setattr(time, "time", lambda: next(moments))
    with step_record("train_model", str(tmp_path / "trained")):
        time.time()
    assert StepRecord.load(tmp_path).seconds >= 0


def test_a_record_from_before_with_negative_seconds_is_read(tmp_path):
    (tmp_path / "step.json").write_text('{"step": "train_model", "state": "succeeded", "seconds": -2.0}')
    assert StepRecord.load(tmp_path).state == "succeeded"

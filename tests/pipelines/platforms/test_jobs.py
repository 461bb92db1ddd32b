"""Claims about what the states of a job's steps say of its model."""

import pytest

from tpu_components.core.base.states import State
from tpu_pipelines.platforms.jobs import Submission


@pytest.mark.parametrize(
    ("state", "steps", "passed_gate", "promoted", "result"),
    [
        (State.SUCCEEDED, {"export_model": "succeeded", "deploy_model": "succeeded"}, True, True, "promoted"),
        (State.SUCCEEDED, {"export_model": "cached", "deploy_model": "cached"}, True, True, "promoted"),
        (State.SUCCEEDED, {"export_model": "succeeded"}, True, False, "passed"),
        (State.SUCCEEDED, {"mark_promoted": "succeeded"}, True, False, "passed"),
        (State.SUCCEEDED, {"evaluate_model": "succeeded", "export_model": "skipped"}, False, False, "not promoted"),
        (State.FAILED, {"export_model": "succeeded", "deploy_model": "failed"}, True, False, "failed"),
        (State.RUNNING, {"export_model": "succeeded", "deploy_model": "running"}, True, False, "running"),
    ],
)
def test_a_job_is_promoted_only_if_it_registered_its_model(state, steps, passed_gate, promoted, result):
    job = Submission("digits-1", "digits", state, steps=steps)
    assert (job.passed_gate, job.promoted, job.result) == (passed_gate, promoted, result)

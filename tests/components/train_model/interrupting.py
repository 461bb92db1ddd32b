"""A training that SIGTERM ends in the middle of an epoch."""

import itertools
import os
import signal
from pathlib import Path

import keras
import pytest

from tpu_components.core.base import termination
from tpu_components.train_model import TrainParams, TrainResult, train_model
from tpu_components.train_model.checkpoints.checkpoint import load_arrays
from tpu_components.train_model.session import Session


def train_alone(params: TrainParams, records: Path, output: Path, checkpoints: Path | None = None) -> TrainResult:
    """Train with layers whose names are counted from the first, as in a process of its own."""
    keras.utils.clear_session()
    return train_model(params, records, output, checkpoints)


def continue_training(params: TrainParams, records: Path, output: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Train again what was ended, and check that it continues from its checkpoint."""
    train_alone(params, records, output)
    assert "continuing at epoch" in capfd.readouterr().err


def train_until_sigterm(params: TrainParams, records: Path, output: Path, looks: int) -> tuple[int, int]:
    """Train as a step does, until SIGTERM comes as it looks for the so-manieth time whether a checkpoint is due.

    Returns:
        The epochs that its checkpoint has, and the steps within the one after.
    """
    look, count = Session.is_due, itertools.count(1)

    def look_and_hear(session: Session, step: int) -> bool:
        if next(count) == looks:
            os.kill(os.getpid(), signal.SIGTERM)
        return look(session, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "is_due", look_and_hear)
        with pytest.raises(termination.Terminated), termination.heard():
            train_alone(params, records, output)
    assert not output.exists()
    _, progress = load_arrays(output.with_name(f"{output.name}-checkpoints") / "checkpoint.npz")
    return progress.epoch, progress.step

"""What happens between two steps. Imports Keras: load it only after `device.prepare`."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np

from components.progress import Progress
from components.train_model import checkpoint as checkpoints
from components.training_step.hyperparameters import TrainParams


class Session(Protocol):
    """A training in progress, as its callback needs it."""

    params: TrainParams
    progress: checkpoints.TrainingProgress
    steps: int
    batch_size: int

    def examples_before(self, step: int) -> int:
        """Return how many examples of the epoch come before a step."""

    def variables(self) -> Mapping[str, Any]:
        """Return all that a checkpoint holds, by name."""

    def save_checkpoint(self, step: int, epoch_seconds: float) -> None:
        """Save a checkpoint after so many steps of the epoch."""

    def divergence(self, step: int, what: str) -> Exception:
        """Return the error that says where the training diverged."""


class StepWatch(keras.callbacks.Callback):
    """Checks every loss, saves a checkpoint when one is due, and shows progress."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.first_step_at: float | None = None  # Of this session, by the monotonic clock.

    def begin_epoch(self, bar: Progress, restored: dict[str, np.ndarray] | None) -> None:
        """Set up for one call of `fit`; `restored` is the checkpoint it starts from, if it does."""
        self._bar, self._restored = bar, restored
        self._first_step = self._session.progress.step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Put the running metrics back that `fit` has just reset."""
        if self._restored is not None and self._first_step:
            metrics = {k: v for k, v in self._session.variables().items() if k.startswith("metric/")}
            checkpoints.restore(metrics, {name: self._restored[name] for name in metrics})
        self._start = self._saved = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Refuse a loss that is not finite; then save, if it is time."""
        session = self._session
        step = self._first_step + batch + 1
        loss = float((logs or {})["loss"])
        if not np.isfinite(loss):
            raise session.divergence(step, "the loss")
        if self.first_step_at is None:
            self.first_step_at = time.monotonic()
        self._bar.update(session.examples_before(step) - session.examples_before(step - 1), f"loss {loss:.4f}")
        now = time.monotonic()
        if step < session.steps and now - self._saved >= session.params.checkpoint_seconds:
            session.save_checkpoint(step, now - self._start)
            self._saved = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Hand the epoch's time and examples over with its metrics."""
        if logs is not None:
            logs["seconds"] = time.monotonic() - self._start
            session = self._session
            logs["examples"] = session.examples_before(session.steps) - session.examples_before(self._first_step)

"""Training loop of the TensorFlow backend: Keras's `fit`.

Import this module only after `device.prepare`, because it imports Keras.
"""

import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tpu_components.core.base.progress import Progress
from tpu_components.core.examples.feeding import EpochReader
from tpu_components.train_model.loop import Session, restore_metrics
from tpu_components.train_model.parts import Array
from tpu_components.train_model.stopwatch import COMPUTE


class FitLoop:
    """Runs Keras's `fit` on the batches of a reader, one epoch per call."""

    def __init__(self, session: Session, reader: EpochReader) -> None:
        self._session, self._reader, self._watch = session, reader, StepWatch(session)

    @property
    def first_step_at(self) -> float | None:
        """Time at which the first step of this session ended, by `time.monotonic`; None before."""
        return self._watch.first_step_at

    def take_up_model(self) -> None:
        """Do nothing: `fit` uses the model as it is compiled."""

    def run_epoch(self, epoch: int, bar: Progress, restored: Mapping[str, Array] | None) -> dict[str, float]:
        """See `Loop`."""
        self._watch.begin_epoch(bar, restored)
        with self._session.stopwatch.measure(COMPUTE):
            logs = self._session.model.fit(
                self._reader.batches(epoch, self._session.progress.step),
                initial_epoch=epoch,
                epochs=epoch + 1,
                shuffle=False,  # The reader shuffles. Keras warns when it is asked to shuffle a dataset.
                verbose=0,
                callbacks=[self._watch],
            ).history
        return {name: values[-1] for name, values in logs.items()}


class StepWatch(keras.callbacks.Callback):
    """Checks every loss, saves a checkpoint when one is due, and shows progress."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.first_step_at: float | None = None  # Of this session, by the monotonic clock.

    def begin_epoch(self, bar: Progress, restored: Mapping[str, Array] | None) -> None:
        """Prepare for one call of `fit`. `restored` is the checkpoint that it continues from; None if there is none."""
        self._bar, self._restored = bar, restored
        self._first_step = self._session.progress.step
        self._start = self._saved = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restore the running metrics, which `fit` has just reset."""
        restore_metrics(self._session, self._restored)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raise an error if the loss is not finite; then save a checkpoint if one is due."""
        session = self._session
        step = self._first_step + batch + 1
        loss = float((logs or {})["loss"])
        if not np.isfinite(loss):
            raise session.divergence(step, "the loss")
        if self.first_step_at is None:
            self.first_step_at = time.monotonic()
        self._bar.update(session.examples_before(step) - session.examples_before(step - 1), f"loss {loss:.4f}")
        now = time.monotonic()
        if step < session.steps and session.is_due(now - self._saved):
            session.save_checkpoint(step, now - self._start)
            self._saved = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add `seconds` and `examples` to the metrics of the epoch."""
        if logs is not None:
            logs["seconds"] = time.monotonic() - self._start
            session = self._session
            logs["examples"] = session.examples_before(session.steps) - session.examples_before(self._first_step)

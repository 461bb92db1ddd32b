"""Result of a training run.

For the parameters of a training run, see `TrainParams` in `core.models.training_step.hyperparameters`.
"""

import dataclasses
from collections.abc import Mapping

STEP = "train_model"  # Name of the step in log messages.


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Outcome of a training run.

    Attributes:
        epochs: Number of finished epochs.
        best_epoch: Epoch (from 1) whose weights are in best.weights.h5.
        judged_by: Metric by which the best epoch was chosen, for example `validation_loss`, or `loss` (of the training
            split) if there is no validation split.
        steps: Number of optimizer steps.
        examples_seen: Number of examples that contributed to a gradient. Each example counts exactly once per epoch.
        seconds: Duration of the epochs of all sessions, in seconds. It includes compilation, but not the time before
            the first epoch.
        examples_per_second: Training examples per second, as the median over the epochs.
        metrics: Metrics of the last epoch on the training split, measured while the weights change: `loss`, without
            regularization penalties, and the metrics of the task, for example `accuracy`.
        backend: Keras backend that was used.
        accelerator: Kind of device that was used.
        num_replicas: Number of replicas that were used.
        precision: Precision that was used.
        num_synchronized_layers: Number of batch-normalisation layers whose statistics are computed over the batch of
            all replicas; 0 with one replica.
        first_step_seconds: Seconds from the start of this session to the end of its first step, including start-up and
            compilation. 0 if no step was left to train.
        time: Seconds of all epochs, grouped by what the host waited for: `compute` (training and validation on the
            device), `input` (with the tensorflow backend, included in `compute`) and `checkpoint`. `host` is the
            remaining time, in which the host did not wait.
        sessions: Number of sessions: 1 plus the number of interruptions.
        goodput: Share of the paid time of all sessions that was spent on steps that are part of the result. The rest is
            start-up, waiting, validation, and steps that were lost when a session was killed.
        paid_seconds: Seconds of all sessions, by what the time was spent on: `trained`, `start_up`, `waiting` (for
            input and checkpoints), `lost` (steps that were lost when a session was killed) and `other` (validation,
            compilation of later stages and saving the model). The time of a killed session is counted up to its last
            record, which was written at most 10 seconds before the kill.
    """

    epochs: int
    best_epoch: int
    judged_by: str
    steps: int
    examples_seen: int
    seconds: float
    examples_per_second: float
    metrics: Mapping[str, float]
    backend: str
    accelerator: str
    num_replicas: int
    precision: str
    num_synchronized_layers: int
    first_step_seconds: float = 0.0
    time: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sessions: int = 1
    goodput: float = 0.0
    paid_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

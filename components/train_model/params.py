"""What comes back; what a user may set are the training's hyper-parameters."""

import dataclasses
from collections.abc import Mapping

from tpu_components.core.models.step.hyperparameters import Stage, TrainParams

__all__ = ["Stage", "TrainParams", "TrainResult"]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The outcome of a training.

    Attributes:
        epochs: Epochs done.
        best_epoch: The epoch (from 1) whose weights are in best.weights.h5.
        judged_by: The figure of the history of which it has the lowest: `validation_loss`, or `loss`, the training
            split's, where there is no validation split.
        steps: Optimizer steps.
        examples_seen: Examples that counted in a gradient; every epoch counts each exactly once.
        seconds: Seconds of training, all sessions together, without start-up.
        examples_per_second: Median over the epochs.
        metrics: Metrics of the last epoch, on the training split as it was learned: `loss`, without penalties, and for
            classes `accuracy`.
        backend: The backend used.
        accelerator: The kind of device used.
        num_replicas: The number of replicas used.
        precision: The precision used.
        num_synchronized_layers: Layers of batch normalisation that normalise by the batch of all replicas, where there
            are several.
        first_step_seconds: From the start of this session to the end of its first step, start-up and compilation
            included; 0 where it had none left.
        time: Seconds of all epochs by what the host waited for: `compute`, the device, validation with it; `input`,
            which the tensorflow backend has in `compute`; `checkpoint`; the rest is the `host`'s own.
        sessions: Starts that it took: one more than it was interrupted, or killed before it could train.
        goodput: Share of all sessions' time in which it learned what is in the result.
        paid_seconds: That time by what became of it: `trained`, `start_up` of every session, `waiting` for input and
            checkpoints, `lost` by kills, and `other`, validation and saving the model. A killed session counts to its
            last sign of life, at most 10 s before.
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

"""What a user may set, and what comes back."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from components.device import ACCELERATORS, BACKENDS, PRECISIONS
from components.errors import InputError
from components.models.compiling import check_optimization


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """How to train; one field per component input.

    Attributes:
        model: A registered name, a .py or .keras file, or module:function.
        model_parameters: Its hyper-parameters.
        epochs: Passes over the training split, at most.
        batch_size_per_replica: Examples per replica and step; the global batch is this times the replicas.
        optimizer: `adam`, `adamw` or `sgd` (with Nesterov momentum 0.9).
        learning_rate: Peak learning rate for one replica.
        learning_rate_scaling: How it grows with the replicas: `linear`, `sqrt`, `none`; `auto` is linear for sgd,
            else sqrt.
        learning_rate_schedule: `constant`, or `cosine` down to zero at the last step.
        warmup_epochs: Epochs over which the learning rate rises from zero.
        weight_decay: Share of a weight, times the learning rate, that each step takes off (decoupled, as in AdamW), for
            adamw and sgd; biases and normalisation's parameters keep theirs.
        random_flip: Flip half of the training images: `none`, `horizontal`, `vertical` or `horizontal_and_vertical`.
        random_crop_pixels: Move training images by up to so many pixels each way; their edge is mirrored.
        mixup_alpha: Mix training images and labels in pairs, with shares from Beta(alpha, alpha); 0.2 is usual.
        label_smoothing: Share of a training label that is spread evenly over all classes; 0.1 is usual.
        ema_decay: Judge and save a running average of the weights, of which every step keeps this share; 0 is none.
        early_stopping_epochs: Stop after so many epochs without a lower validation loss; 0 is never.
        seed: Of initial weights, order, dropout and augmentation.
        backend: `tensorflow`, `jax` or `auto`.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`; a TPU must be asked for.
        num_replicas: Devices to use; 0 is all, and one on a CPU. On a CPU any number is simulated.
        precision: `float32`, `mixed_bfloat16` or `auto`, which chooses for the device.
        in_memory_mib: A split up to this size, decoded, is held in RAM; a larger one is streamed.
        shuffle_buffer: Examples among which a streamed split is shuffled.
        checkpoint_seconds: Time between checkpoints within an epoch; there is one after every epoch too.
    """

    model: str
    model_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epochs: int = 10
    batch_size_per_replica: int = 128
    optimizer: str = "adam"
    learning_rate: float = 0.001
    learning_rate_scaling: str = "auto"
    learning_rate_schedule: str = "constant"
    warmup_epochs: float = 0.0
    weight_decay: float = 0.0
    random_flip: str = "none"
    random_crop_pixels: int = 0
    mixup_alpha: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    early_stopping_epochs: int = 0
    seed: int = 0
    backend: str = "auto"
    accelerator: str = "auto"
    num_replicas: int = 0
    precision: str = "auto"
    in_memory_mib: int = 4096
    shuffle_buffer: int = 20_000
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_optimization(self)
        if self.shuffle_buffer < 1:
            raise InputError(f"shuffle_buffer must be at least 1. Received: shuffle_buffer={self.shuffle_buffer}.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be at least 0 and below 2**32. Received: seed={self.seed}.")
        for name in ("early_stopping_epochs", "num_replicas", "in_memory_mib", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must not be negative, and finite. Received: {name}={getattr(self, name)}.")
        for name, known in (("backend", BACKENDS), ("accelerator", ACCELERATORS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}. Received: {name}={getattr(self, name)!r}.")

    def check_batch_fits(self, num_train_examples: int) -> None:
        """Check the batch against the training split.

        Raises:
            InputError: If one global batch is larger than the split.
        """
        batch_size = self.batch_size_per_replica * max(self.num_replicas, 1)
        if batch_size > num_train_examples:
            raise InputError(
                f"The batch is larger than the training split: expected at most {num_train_examples} examples a step, "
                f"received batch_size_per_replica={self.batch_size_per_replica} × {max(self.num_replicas, 1)} "
                f"replicas = {batch_size}. Lower training.batch_size_per_replica or add data."
            )


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training came to.

    Attributes:
        epochs: Epochs done.
        best_epoch: The epoch (from 1) whose weights are in best.weights.h5.
        steps: Optimizer steps.
        examples_seen: Examples that counted in a gradient; every epoch counts each exactly once.
        seconds: Of training, all sessions together, without start-up.
        examples_per_second: Median over the epochs.
        metrics: Of the last epoch, on the training split as it was learned: `loss`, and for classes `accuracy`.
        backend: The backend used.
        accelerator: The kind of device used.
        num_replicas: The number of replicas used.
        precision: The precision used.
    """

    epochs: int
    best_epoch: int
    steps: int
    examples_seen: int
    seconds: float
    examples_per_second: float
    metrics: Mapping[str, float]
    backend: str
    accelerator: str
    num_replicas: int
    precision: str

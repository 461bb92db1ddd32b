"""Hyper-parameters of a training: what train_model takes, and what preflight_training compiles."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Amount, NotNegative, Positive, Range, Share, check_fields
from tpu_components.core.examples.feeding import RESIDENCIES
from tpu_components.core.machines.device import ACCELERATORS, BACKENDS, PRECISIONS
from tpu_components.core.models.step.sharding import FULLY_SHARDED, SHARDINGS

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine")
SCALINGS = ("auto", "linear", "sqrt", "none")
FLIPS = ("none", "horizontal", "vertical", "horizontal_and_vertical")
# A batch has its size from the compilation, and the seed is a variable; the rest is the host's business.
_OUTSIDE_THE_PROGRAM = (
    "batch_size_per_replica",
    "early_stopping_epochs",
    "seed",
    "accelerator",
    "num_replicas",
    "in_memory_mib",
    "shuffle_buffer",
    "checkpoint_seconds",
    "profile_steps",
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a training.

    Attributes:
        epochs: Passes over the training split.
        frozen: Layers that do not learn in it, by name or pattern as `block_*`, with all that they hold.
        learning_rate: Peak learning rate for one replica; 0 takes the training's.
    """

    epochs: Positive
    frozen: tuple[str, ...] = ()
    learning_rate: Amount = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The hyper-parameters of a training; one field per component input.

    Attributes:
        model: A registered name, a .py or .keras file, or module:function.
        model_parameters: Its hyper-parameters.
        epochs: Passes over the training split, at most.
        batch_size_per_replica: Examples per replica and step; the global batch is this times the replicas.
        optimizer: `adam`, `adamw` or `sgd` (with Nesterov momentum 0.9).
        learning_rate: Peak learning rate for one replica.
        learning_rate_scaling: Growth of the learning rate with the replicas: `linear`, `sqrt`, `none`; `auto` is linear
            for sgd, else sqrt.
        learning_rate_schedule: `constant`, or `cosine` down to zero after the last step.
        warmup_epochs: Epochs over which the learning rate rises from zero.
        stages: Parts of the training, one after the other, each with `epochs`, `frozen` (layers that rest, by name or
            pattern) and `learning_rate`; schedule, warm-up and optimizer start anew in each. Empty is one of all.
        weight_decay: Share of a weight, times the learning rate, that each step takes off (decoupled, as in AdamW), for
            adamw and sgd; biases of any shape, normalisation's parameters and activations' slopes keep theirs.
        random_flip: Flip half of the training images: `none`, `horizontal`, `vertical` or `horizontal_and_vertical`.
        random_crop_pixels: Move training images by up to so many pixels each way; their edge is mirrored.
        random_resized_crop: Cut a part out of training images and resize it to the whole: the least share of the area
            that it has, at aspects of 3/4 to 4/3; 0.08 is usual for photos, 0 is none.
        mixup_alpha: Mix training images and labels in pairs, with shares from Beta(alpha, alpha); 0.2 is usual.
        label_smoothing: Share of a training label that is spread evenly over all classes; 0.1 is usual.
        ema_decay: Judge and save a running average of the weights, of which every step keeps this share; 0 is none.
        early_stopping_epochs: Stop after so many epochs of the last stage without a lower validation loss, or training
            loss where there is no validation split; 0 is never.
        seed: Seed of initial weights, order, dropout and augmentation.
        backend: `tensorflow`, `jax` or `auto`.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`; a TPU must be asked for.
        num_replicas: Devices to use; 0 is all, and one on a CPU. On a CPU any number is simulated.
        precision: `float32`, `mixed_bfloat16` or `auto`, which chooses for the device.
        in_memory_mib: A split up to this size, decoded, is held in RAM; a larger one is streamed.
        shuffle_buffer: Examples among which a streamed split is shuffled.
        residency: Place of the training split: `device` is its memory, once and for all epochs, with the jax backend;
            `host` hands batches over; `auto` is the device where the split is held in RAM and fits beside the model.
        steps_per_execution: Steps that the device takes without the host, with the jax backend; 0 is as many as last a
            quarter of a second, but 1 on a CPU.
        sharding: Place of the weights on several devices, with the jax backend: `replicated` is whole on each,
            `fully_sharded` a part on each, of large ones, with all that the optimizer remembers of it; for models that
            do not fit otherwise.
        checkpoint_seconds: Time between checkpoints within an epoch; there is one after every epoch too.
        profile_steps: Steps to profile for TensorBoard once the first is compiled; 0 is none.
    """

    model: str
    model_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epochs: Positive = 10
    batch_size_per_replica: Positive = 128
    optimizer: Annotated[str, OPTIMIZERS] = "adam"
    learning_rate: Annotated[float, Range(above=0, below=math.inf)] = 0.001
    learning_rate_scaling: Annotated[str, SCALINGS] = "auto"
    learning_rate_schedule: Annotated[str, SCHEDULES] = "constant"
    warmup_epochs: Amount = 0.0
    stages: tuple[Stage, ...] = ()
    weight_decay: Amount = 0.0
    random_flip: Annotated[str, FLIPS] = "none"
    random_crop_pixels: NotNegative = 0
    random_resized_crop: Share = 0.0
    mixup_alpha: Annotated[float, Range(0, 10)] = 0.0
    label_smoothing: Annotated[float, Range(0, below=1)] = 0.0
    ema_decay: Annotated[float, Range(0, below=1)] = 0.0
    early_stopping_epochs: NotNegative = 0
    seed: Annotated[int, Range(0, below=2**32)] = 0
    backend: Annotated[str, BACKENDS] = "auto"
    accelerator: Annotated[str, ACCELERATORS] = "auto"
    num_replicas: NotNegative = 0
    precision: Annotated[str, PRECISIONS] = "auto"
    in_memory_mib: NotNegative = 4096
    shuffle_buffer: Positive = 20_000
    residency: Annotated[str, RESIDENCIES] = "auto"
    steps_per_execution: NotNegative = 0
    sharding: Annotated[str, SHARDINGS] = "replicated"
    checkpoint_seconds: Amount = 60.0
    profile_steps: NotNegative = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.stages and self.epochs != (total := sum(stage.epochs for stage in self.stages)):
            raise InputError(
                f"epochs must be those of all stages together. Received: epochs={self.epochs}, and {total} in stages. "
                f"Set training.epochs={total}, or leave it out of the configuration."
            )
        if self.sharding == FULLY_SHARDED and self.backend == "tensorflow":
            raise InputError("sharding=fully_sharded needs backend=jax. Received: backend=tensorflow.")
        if self.weight_decay and self.optimizer == "adam":
            raise InputError(
                f"weight_decay={self.weight_decay} needs optimizer=adamw or sgd. Received: "
                f"optimizer={self.optimizer!r}."
            )

    @property
    def moves_pixels(self) -> bool:
        """Whether training images are flipped, moved or cut."""
        return self.random_flip != "none" or bool(self.random_crop_pixels or self.random_resized_crop)

    @property
    def softens_labels(self) -> bool:
        """Whether labels become probabilities, float32[batch, num_classes]."""
        return bool(self.label_smoothing or self.mixup_alpha)

    @property
    def program(self) -> Self:
        """This training with the default of all that is no part of the compiled step: equal for equal programs."""
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: defaults[name] for name in _OUTSIDE_THE_PROGRAM})

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

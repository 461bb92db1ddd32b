"""Hyper-parameters of a training: what train_model takes, and what preflight_training compiles."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.feeding import RESIDENCIES
from tpu_components.core.machines.device import ACCELERATORS, BACKENDS, PRECISIONS
from tpu_components.core.models.step.sharding import FULLY_SHARDED, SHARDINGS

OF_THE_TASK = "auto"
SCALINGS = ("auto", "linear", "sqrt", "none")
FLIPS = ("none", "horizontal", "vertical", "horizontal_and_vertical")
CHOICES = {
    "learning_rate_scaling": SCALINGS,
    "random_flip": FLIPS,
    "backend": BACKENDS,
    "accelerator": ACCELERATORS,
    "precision": PRECISIONS,
    "residency": RESIDENCIES,
    "sharding": SHARDINGS,
}
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

    epochs: int
    frozen: tuple[str, ...] = ()
    learning_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"epochs of a stage must be at least 1. Received: epochs={self.epochs}.")
        if not 0 <= self.learning_rate < math.inf:
            raise InputError(
                "learning_rate of a stage must be positive, or 0 for the training's. Received: "
                f"learning_rate={self.learning_rate}."
            )


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The hyper-parameters of a training; one field per component input.

    Attributes:
        model: A registered name, a .py or .keras file, or module:function.
        model_parameters: Its hyper-parameters.
        epochs: Passes over the training split, at most.
        batch_size_per_replica: Examples per replica and step; the global batch is this times the replicas.
        optimizer: An optimizer of Keras: `adam`, `adamw`, `sgd` (here with Nesterov momentum 0.9), `lion`, `muon`, ….
        optimizer_parameters: Its parameters by Keras's names, such as `beta_1`, `global_clipnorm` or
            `gradient_accumulation_steps`.
        learning_rate: Peak learning rate for one replica.
        learning_rate_scaling: Growth of the learning rate with the replicas: `linear`, `sqrt`, `none`; `auto` is linear
            for sgd, else sqrt.
        learning_rate_schedule: `constant`, `cosine` down to zero after the last step, or a schedule of Keras, such as
            `exponential_decay`.
        schedule_parameters: Its parameters by Keras's names; a number of steps may be given in epochs, as
            `decay_epochs` for `decay_steps`.
        warmup_epochs: Epochs over which the learning rate rises from zero.
        stages: Parts of the training, one after the other, each with `epochs`, `frozen` (layers that rest, by name or
            pattern) and `learning_rate`; schedule, warm-up and optimizer start anew in each. Empty is one of all.
        weight_decay: Share of a weight, times the learning rate, that each step takes off (decoupled, as in AdamW);
            biases of any shape, normalisation's parameters and activations' slopes keep theirs.
        loss: A loss of Keras, such as `categorical_focal_crossentropy`; `auto` is that of the data's task. A
            regression's is computed in the targets' own units.
        loss_parameters: Its parameters by Keras's names, such as `gamma`.
        balance_classes: Weigh every class in the loss by the inverse of its share of the training examples, so that
            rare classes count as much as common ones.
        class_weights: Weights of classes in the loss, by name; 1 where a class has none. They multiply those of
            `balance_classes`.
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
    epochs: int = 10
    batch_size_per_replica: int = 128
    optimizer: str = "adam"
    optimizer_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    learning_rate: float = 0.001
    learning_rate_scaling: str = "auto"
    learning_rate_schedule: str = "constant"
    schedule_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warmup_epochs: float = 0.0
    stages: tuple[Stage, ...] = ()
    weight_decay: float = 0.0
    loss: str = OF_THE_TASK
    loss_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    balance_classes: bool = False
    class_weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    random_flip: str = "none"
    random_crop_pixels: int = 0
    random_resized_crop: float = 0.0
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
    residency: str = "auto"
    steps_per_execution: int = 0
    sharding: str = "replicated"
    checkpoint_seconds: float = 60.0
    profile_steps: int = 0

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}. Received: {name}={getattr(self, name)!r}.")
        for name in ("epochs", "batch_size_per_replica", "shuffle_buffer"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1. Received: {name}={getattr(self, name)}.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be positive. Received: learning_rate={self.learning_rate}.")
        if self.stages and self.epochs != (total := sum(stage.epochs for stage in self.stages)):
            raise InputError(
                f"epochs must be those of all stages together. Received: epochs={self.epochs}, and {total} in stages. "
                f"Set training.epochs={total}, or leave it out of the configuration."
            )
        for name in (
            "warmup_epochs",
            "weight_decay",
            "early_stopping_epochs",
            "num_replicas",
            "in_memory_mib",
            "steps_per_execution",
            "checkpoint_seconds",
            "profile_steps",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must not be negative, and finite. Received: {name}={getattr(self, name)}.")
        for name in ("ema_decay", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 0 and below 1. Received: {name}={getattr(self, name)}.")
        if self.sharding == FULLY_SHARDED and self.backend == "tensorflow":
            raise InputError("sharding=fully_sharded needs backend=jax. Received: backend=tensorflow.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be at least 0 and below 2**32. Received: seed={self.seed}.")
        if self.random_crop_pixels < 0:
            raise InputError(
                f"random_crop_pixels must not be negative. Received: random_crop_pixels={self.random_crop_pixels}."
            )
        if not 0 <= self.random_resized_crop <= 1:
            raise InputError(
                f"random_resized_crop must be from 0 to 1. Received: random_resized_crop={self.random_resized_crop}."
            )
        if not 0 <= self.mixup_alpha <= 10:
            raise InputError(f"mixup_alpha must be from 0 to 10. Received: mixup_alpha={self.mixup_alpha}.")
        for name, weight in self.class_weights.items():
            if not 0 <= weight < math.inf:
                raise InputError(f"class_weights must not be negative, and finite. Received: {name}={weight}.")
        if self.weight_decay and "weight_decay" in self.optimizer_parameters:
            raise InputError("weight_decay is set twice: as training.weight_decay and as the optimizer's. Remove one.")

    @property
    def moves_pixels(self) -> bool:
        """Whether training images are flipped, moved or cut."""
        return self.random_flip != "none" or bool(self.random_crop_pixels or self.random_resized_crop)

    @property
    def softens_labels(self) -> bool:
        """Whether labels become probabilities, float32[batch, num_classes]."""
        return bool(self.label_smoothing or self.mixup_alpha)

    @property
    def weighs_classes(self) -> bool:
        """Whether examples of some classes count more in the loss than others."""
        return self.balance_classes or bool(self.class_weights)

    @property
    def names_more_of_keras(self) -> bool:
        """Whether something is asked for by one of Keras's names, which only Keras itself can check."""
        own = (self.optimizer_parameters, self.schedule_parameters, self.loss_parameters)
        names = (self.optimizer, self.learning_rate_schedule, self.loss)
        return any(own) or not {*names} <= {"adam", "adamw", "sgd", "constant", "cosine", OF_THE_TASK}

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

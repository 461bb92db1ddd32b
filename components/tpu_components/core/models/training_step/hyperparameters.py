"""Hyper-parameters of a training run, for train_model and preflight_training."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import (
    Amount,
    NotNegative,
    Positive,
    Range,
    Role,
    Seed,
    Share,
    check_fields,
    check_together,
    with_role,
)
from tpu_components.core.examples.feeding import RESIDENCIES
from tpu_components.core.machines.device import ACCELERATORS, BACKENDS, PRECISIONS
from tpu_components.core.models.training_step.sharding import FULLY_SHARDED, SHARDINGS

AUTO = OF_THE_TASK = OF_THE_MODEL = "auto"


class Part(Role):
    """Mark of a `TrainParams` field that is part of the optimizer, or that does not affect the compiled program."""

    OPTIMIZER = enum.auto()  # If one of these is changed, it replaces the optimizer of a compiled model.
    HOST = enum.auto()  # Outside of the compiled program: used by the host or passed to the program as an argument.


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a training run.

    Attributes:
        epochs: Passes over the training split.
        frozen: Layers that are not trained in this stage, with their sublayers: names, or patterns such as `block_*`.
        learning_rate: Peak learning rate for one replica. 0 means the learning rate of the training run.
    """

    epochs: Positive
    frozen: tuple[str, ...] = ()
    learning_rate: Amount = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The hyper-parameters of a training run. Each field is an input of the component.

    Attributes:
        model: A registered name, a .py or .keras file, or module:function.
        model_parameters: Hyper-parameters of the model: arguments of the function that builds it, by name, such as
            `dropout`.
        epochs: Largest number of passes over the training split.
        batch_size_per_replica: Examples per replica and step. The global batch size is this number times the number of
            replicas.
        optimizer: A Keras optimizer, such as `adam`, `adamw`, `sgd` (with Nesterov momentum 0.9), `lion` or `muon`.
            With `auto`, a compiled model keeps its optimizer, unless you change another setting of the optimizer or of
            the learning rate. In all other cases, `auto` means `adam`.
        optimizer_parameters: Parameters of the optimizer by Keras's names, such as `beta_1`, `global_clipnorm` or
            `gradient_accumulation_steps`.
        learning_rate: Peak learning rate for one replica.
        learning_rate_scaling: Scaling of the learning rate by the number of replicas: `linear`, `sqrt` or `none`;
            `auto` is `linear` for sgd and `sqrt` for other optimizers.
        learning_rate_schedule: `constant`, `cosine` (down to zero after the last step), or a Keras schedule such as
            `exponential_decay`.
        schedule_parameters: Parameters of the schedule by Keras's names. To set a number of steps in epochs, write, for
            example, `decay_epochs` instead of `decay_steps`.
        warmup_epochs: Epochs over which the learning rate rises from zero.
        stages: Stages of the training run, in order, each with `epochs`, `frozen` (layers that are not trained, by name
            or pattern) and `learning_rate`. Schedule, warm-up and optimizer restart in each stage. Empty means a single
            stage.
        initial_model: Model whose weights training starts with: `REGISTRY/MODEL@VERSION`, or a folder that train_model
            wrote, local or on gs://. In a configuration, `MODEL@VERSION` means a version in the configuration's
            registry. VERSION is a number or an alias, as in `digits@champion`. If the alias has no version yet, or this
            parameter is empty, training starts with randomly initialized weights. The model to train must have
            the same layers, inputs and classes as the initial model.
        weight_decay: Decoupled weight decay per step as in AdamW, multiplied by the learning rate. Biases, parameters
            of normalisation layers and slopes of activations do not decay.
        loss: A Keras loss, such as `categorical_focal_crossentropy`. `auto` uses the function `loss` in the model's
            file if there is one, otherwise the loss that the model is compiled with, otherwise the default loss of the
            task. For a regression, the default loss is computed in standard deviations of each target, and any other
            loss in the targets' units.
        loss_parameters: Parameters of the loss by Keras's names, such as `gamma`.
        metrics: Additional metrics: Keras metrics with their parameters, such as `{"f1_score": {"average": "macro"}}`,
            or metrics that come with the model, such as `{"my_metric": {}}`. The gate may set bounds for these metrics.
        balance_classes: Weight every class in the loss by the inverse of its share of the training examples, so that
            rare classes count as much as common ones.
        class_weights: Weights of classes in the loss, by class name. Classes that are not listed have the weight 1. The
            weights are multiplied with those of `balance_classes`.
        random_flip: Directions in which half of the training images are flipped: `none`, `horizontal`, `vertical` or
            `horizontal_and_vertical`.
        random_crop_pixels: Shift training images randomly by up to this number of pixels, with mirrored edges.
        random_resized_crop: Crop a random part of training images, with an aspect ratio of 3/4 to 4/3, and resize it to
            the full size. The value is the smallest share of the area; 0.08 is usual for photos, 0 disables it.
        mixup_alpha: Mix training images and labels in pairs. The shares of a pair are drawn from the distribution
            Beta(alpha, alpha). 0.2 is usual, 0 disables mixing.
        label_smoothing: Share of a training label that is spread evenly over all classes. 0.1 is usual.
        ema_decay: Decay of the running average of the weights. The average is validated and saved instead of the
            weights. 0 disables the average.
        early_stopping_epochs: In the last stage, stop after this number of epochs without an improvement of `monitor`.
            0 disables early stopping.
        monitor: Metric that determines the best epoch, such as `validation_accuracy`. `auto` is `validation_loss`, or
            `loss` if there is no validation split.
        callbacks: Keras callbacks with their parameters, called at the end of each epoch, such as
            `{"reduce_lr_on_plateau": {"monitor": "val_loss", "patience": 3}}`. Callbacks that the function `callbacks`
            in the model's file returns are called, too.
        seed: Seed for initial weights, shuffling, dropout and augmentation.
        backend: `tensorflow`, `jax`, or `auto`: jax if a TPU or GPU is requested, otherwise tensorflow.
        accelerator: `cpu`, `gpu`, `tpu` or `auto`. On a platform, `auto` is the accelerator of the configuration's
            `machine`. Elsewhere it is a GPU if the backend sees one, otherwise the CPU, and never a TPU.
        num_replicas: Number of devices. 0 uses all devices, or one on a CPU. On a CPU, any number can be simulated.
        precision: `float32`, `mixed_bfloat16` or `auto`. `auto` is `mixed_bfloat16` on a TPU and, if the backend is
            TensorFlow, also on a CPU with bfloat16 units. In all other cases, it is `float32`.
        in_memory_mib: Largest decoded size of a split to hold in RAM, in MiB. A larger split is streamed.
        shuffle_buffer: Size of the shuffle buffer of a streamed split, in examples.
        residency: Where the training split is kept. `device` keeps it in device memory, which needs the jax backend.
            `host` streams batches from the host. `auto` is `device` if the split is in RAM and fits in device memory
            together with the model.
        steps_per_execution: Steps per call of the compiled program, with the jax backend. 0 uses the number of steps
            that takes a quarter of a second, or 1 on a CPU.
        sharding: Placement of weights on several devices, with the jax backend. `replicated` keeps a copy on each
            device. `fully_sharded` keeps only a part of each large weight and of its optimizer state on each device,
            for models that do not fit in the memory of one device.
        checkpoint_seconds: Time between checkpoints within an epoch. Each epoch also ends with a checkpoint.
        profile_steps: Number of steps to profile for TensorBoard, after the first step. 0 disables profiling.
    """

    model: str
    model_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epochs: Positive = 10
    batch_size_per_replica: Positive = 128
    optimizer: Annotated[str, Part.OPTIMIZER] = OF_THE_MODEL
    optimizer_parameters: Annotated[Mapping[str, Any], Part.OPTIMIZER] = dataclasses.field(default_factory=dict)
    learning_rate: Annotated[float, Range(above=0, below=math.inf), Part.OPTIMIZER] = 0.001
    learning_rate_scaling: Annotated[str, ("auto", "linear", "sqrt", "none"), Part.OPTIMIZER] = "auto"
    learning_rate_schedule: Annotated[str, Part.OPTIMIZER] = "constant"
    schedule_parameters: Annotated[Mapping[str, Any], Part.OPTIMIZER] = dataclasses.field(default_factory=dict)
    warmup_epochs: Annotated[Amount, Part.OPTIMIZER] = 0.0
    stages: tuple[Stage, ...] = ()
    initial_model: Annotated[str, Part.HOST] = ""
    weight_decay: Annotated[Amount, Part.OPTIMIZER] = 0.0
    loss: str = OF_THE_TASK
    loss_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    balance_classes: bool = False
    class_weights: Mapping[str, Amount] = dataclasses.field(default_factory=dict)
    random_flip: Annotated[str, ("none", "horizontal", "vertical", "horizontal_and_vertical")] = "none"
    random_crop_pixels: NotNegative = 0
    random_resized_crop: Share = 0.0
    mixup_alpha: Annotated[float, Range(0, 10)] = 0.0
    label_smoothing: Annotated[float, Range(0, below=1)] = 0.0
    ema_decay: Annotated[float, Range(0, below=1)] = 0.0
    early_stopping_epochs: Annotated[NotNegative, Part.HOST] = 0
    monitor: Annotated[str, Part.HOST] = AUTO
    callbacks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    seed: Annotated[Seed, Part.HOST] = 0
    backend: Annotated[str, BACKENDS] = "auto"
    accelerator: Annotated[str, ACCELERATORS, Part.HOST] = "auto"
    num_replicas: Annotated[NotNegative, Part.HOST] = 0
    precision: Annotated[str, PRECISIONS] = "auto"
    in_memory_mib: Annotated[NotNegative, Part.HOST] = 4096
    shuffle_buffer: Annotated[Positive, Part.HOST] = 20_000
    residency: Annotated[str, RESIDENCIES] = "auto"
    steps_per_execution: NotNegative = 0
    sharding: Annotated[str, SHARDINGS] = "replicated"
    checkpoint_seconds: Annotated[Amount, Part.HOST] = 60.0
    profile_steps: Annotated[NotNegative, Part.HOST] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        total = sum(stage.epochs for stage in self.stages)
        check_together(
            (
                self.stages and self.epochs != total,
                f"epochs must be the sum of the epochs of all stages. Received: epochs={self.epochs}, and {total} in "
                f"stages. Set epochs={total}. In a configuration, set training.epochs={total}, or leave it out.",
            ),
            (
                self.sharding == FULLY_SHARDED and self.backend == "tensorflow",
                "sharding=fully_sharded requires backend=jax. Received: backend=tensorflow. Change one of them.",
            ),
            (
                self.weight_decay and "weight_decay" in self.optimizer_parameters,
                "weight_decay is set twice: as weight_decay and in optimizer_parameters. Remove one of them.",
            ),
        )

    @property
    def moves_pixels(self) -> bool:
        """Whether training images are flipped, shifted or cropped."""
        return self.random_flip != "none" or bool(self.random_crop_pixels or self.random_resized_crop)

    @property
    def softens_labels(self) -> bool:
        """Whether augmentation converts labels to probabilities, float32[batch, num_classes]."""
        return bool(self.label_smoothing or self.mixup_alpha)

    @property
    def weighs_classes(self) -> bool:
        """Whether examples of some classes count more in the loss than others."""
        return self.balance_classes or bool(self.class_weights)

    @property
    def names_more_of_keras(self) -> bool:
        """Whether only Keras can check some of the training settings.

        This is the case if the settings name an optimizer, schedule, loss or monitored metric other than the common
        ones, name metrics or callbacks, or set parameters of an optimizer, schedule or loss, even of a common one.
        """
        own = (self.optimizer_parameters, self.schedule_parameters, self.loss_parameters, self.metrics, self.callbacks)
        names = (self.optimizer, self.learning_rate_schedule, self.loss, self.monitor)
        return any(own) or not {*names} <= {"adam", "adamw", "sgd", "constant", "cosine", AUTO}

    @property
    def optimizer_name(self) -> str:
        """Name of the optimizer that training creates if it does not use the optimizer of a compiled model."""
        return "adam" if self.optimizer == OF_THE_MODEL else self.optimizer.lower()

    @property
    def of_optimizer(self) -> tuple[str, ...]:
        """Names of the optimizer and learning-rate settings that differ from their defaults.

        If no setting differs, a compiled model keeps its optimizer.
        """
        usual = TrainParams(self.model)
        names = with_role(TrainParams, Part.OPTIMIZER)
        return tuple(name for name in names if getattr(self, name) != getattr(usual, name))

    @property
    def program(self) -> Self:
        """Copy in which all hyper-parameters that do not affect the compiled program have their defaults.

        Two sets of hyper-parameters that give the same program have equal copies.
        """
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: defaults[name] for name in with_role(TrainParams, Part.HOST)})

    def check_batch_fits(self, num_train_examples: int) -> None:
        """Check that a global batch is not larger than the training split.

        Raises:
            InputError: If the batch is larger.
        """
        batch_size = self.batch_size_per_replica * max(self.num_replicas, 1)
        if batch_size > num_train_examples:
            raise InputError(
                f"The batch is larger than the training split: expected at most {num_train_examples} examples per "
                f"step, received batch_size_per_replica={self.batch_size_per_replica} × {max(self.num_replicas, 1)} "
                f"replicas = {batch_size}. Lower training.batch_size_per_replica, or add data."
            )

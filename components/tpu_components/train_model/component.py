"""The step train_model as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
TrainParams.
"""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def train_model(
    records: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    fingerprint: Dict[str, str] = {},
    *,
    model: str,
    model_parameters: Dict[str, Any] = {},
    epochs: int = 10,
    batch_size_per_replica: int = 128,
    optimizer: str = "auto",
    optimizer_parameters: Dict[str, Any] = {},
    learning_rate: float = 0.001,
    learning_rate_scaling: str = "auto",
    learning_rate_schedule: str = "constant",
    schedule_parameters: Dict[str, Any] = {},
    warmup_epochs: float = 0.0,
    stages: List[Dict[str, Any]] = [],
    initial_model: str = "",
    weight_decay: float = 0.0,
    loss: str = "auto",
    loss_parameters: Dict[str, Any] = {},
    metrics: Dict[str, Dict[str, Any]] = {},
    balance_classes: bool = False,
    class_weights: Dict[str, float] = {},
    random_flip: str = "none",
    random_crop_pixels: int = 0,
    random_resized_crop: float = 0.0,
    mixup_alpha: float = 0.0,
    label_smoothing: float = 0.0,
    ema_decay: float = 0.0,
    early_stopping_epochs: int = 0,
    monitor: str = "auto",
    callbacks: Dict[str, Dict[str, Any]] = {},
    seed: int = 0,
    backend: str = "auto",
    accelerator: str = "auto",
    num_replicas: int = 0,
    precision: str = "auto",
    in_memory_mib: int = 4096,
    shuffle_buffer: int = 20000,
    residency: str = "auto",
    steps_per_execution: int = 0,
    sharding: str = "replicated",
    checkpoint_seconds: float = 60.0,
    profile_steps: int = 0,
) -> None:
    """Train a Keras model. A restarted task continues from its checkpoint.

    Args:
        records: Records that create_tfrecords wrote.
        fingerprint: Digests of the step's `code`, of the `model` and of the `environment`, and the names of `image` and
            `machine`. The step does not read them; the platform's cache runs the step again when one changes.
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
            parameter is empty, training starts with randomly initialized weights. The model to train must have the same
            layers, inputs and classes as the initial model.
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

    Returns:
        trained: Trained model: best and last weights, architecture, `history.jsonl` and TensorBoard logs.
    """
    inputs = dict(locals())
    import functools

    from tpu_components.core.component.step_record import run_component
    from tpu_components.core.machines.hosts import is_writer
    from tpu_components.train_model import TrainParams, jobset, train_model

    ask = jobset.requested_jobset()
    work = functools.partial(jobset.train_on_hosts, ask) if ask else train_model
    run_component("train_model", work, TrainParams, inputs, "records", "trained")
    if not is_writer():
        raise SystemExit(0)  # Otherwise KFP's executor would overwrite the outputs of host 0.

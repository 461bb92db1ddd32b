"""KFP wrapper of train_model."""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_model(
    records: dsl.Input[dsl.Dataset],
    trained: dsl.Output[dsl.Model],
    model: str,
    model_parameters: Dict[str, Any] = {},
    epochs: int = 10,
    batch_size_per_replica: int = 128,
    optimizer: str = "adam",
    optimizer_parameters: Dict[str, Any] = {},
    learning_rate: float = 0.001,
    learning_rate_scaling: str = "auto",
    learning_rate_schedule: str = "constant",
    schedule_parameters: Dict[str, Any] = {},
    warmup_epochs: float = 0.0,
    stages: List[Dict[str, Any]] = [],
    weight_decay: float = 0.0,
    loss: str = "auto",
    loss_parameters: Dict[str, Any] = {},
    balance_classes: bool = False,
    class_weights: Dict[str, float] = {},
    random_flip: str = "none",
    random_crop_pixels: int = 0,
    random_resized_crop: float = 0.0,
    mixup_alpha: float = 0.0,
    label_smoothing: float = 0.0,
    ema_decay: float = 0.0,
    early_stopping_epochs: int = 0,
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
    fingerprint: Dict[str, str] = {},
) -> None:
    """Train a Keras model; a restarted task continues from its checkpoint."""
    inputs = dict(locals())
    import dataclasses
    import pathlib

    from tpu_components.core.machines.hosts import is_writer
    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.train_model import TrainParams, jobset, train_model

    with step_record("train_model", trained.path):
        params, ask = params_from(inputs, TrainParams), jobset.asked()
        paths = pathlib.Path(records.path), pathlib.Path(trained.path)
        result = jobset.train_on_hosts(ask, params, *paths) if ask else train_model(params, *paths)
        trained.metadata.update(dataclasses.asdict(result))
    if not is_writer():
        raise SystemExit(0)  # Otherwise KFP's executor would overwrite the outputs of host 0.
